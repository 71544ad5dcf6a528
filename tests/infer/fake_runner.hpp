// A runner whose logits are a hash of the tokens that its cache has in a sequence's blocks, so that a stale row, a wrong block or a missed
// copy changes them; and the answer to a request computed from the text alone, without an engine.
#pragma once

#include <heddle/infer/engine.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

namespace fake {

namespace inf = heddle::infer;

inline constexpr inf::step_limits small_limits{
    .vocabulary = 13, .context = 48, .block_rows = 4, .blocks = 60, .max_rows = 24};

inline std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

/// Logits behind a text. `habit` is added to the token that the last one leads to, so that texts repeat themselves.
struct language {
  std::int64_t vocabulary = small_limits.vocabulary;
  double habit = 0;
  std::int32_t broken_after = -1;  ///< logits behind this token are NaN
  std::int32_t odd_after = -1;     ///< the habit is another behind this token
  std::int64_t window = 0;         ///< last tokens that count; 0: all

  template <class Token>
  void logits(std::int64_t length, Token&& token, std::span<double> to) const {
    std::uint64_t hash = 0;
    for (std::int64_t i = window > 0 && length > window ? length - window : 0; i < length; ++i)
      hash = mixed(hash * 31 + static_cast<std::uint64_t>(token(i)) + 1);
    const std::int64_t last = token(length - 1);
    for (std::int64_t v = 0; v < vocabulary; ++v)  // multiples of 1/64 in [-2, 2)
      to[static_cast<std::size_t>(v)] = static_cast<double>(mixed(hash + static_cast<std::uint64_t>(v)) % 256) / 64 - 2;
    to[static_cast<std::size_t>((last * 5 + (last == odd_after ? 4 : 3)) % vocabulary)] += habit;
    if (last == broken_after) to[1] = std::numeric_limits<double>::quiet_NaN();
  }
};

class runner {
 public:
  using scalar = double;
  using capabilities = inf::capabilities<inf::truncate, inf::causal_rows, inf::tree_rows, inf::next_token>;
  explicit runner(inf::step_limits l = small_limits, language of = {})
      : limits_(l), language_(of), cache_(static_cast<std::size_t>(l.blocks * l.block_rows), 99) {
    language_.vocabulary = l.vocabulary;
    language_.window = l.window;
  }
  inf::step_limits limits() const { return limits_; }

  void run(const inf::step& s, std::span<double> logits) {
    inf::require_step(s, limits_);
    if (on_step) on_step();
    if (fail_next) {
      fail_next = false;
      throw std::runtime_error("the runner failed");
    }
    const auto rows = static_cast<std::size_t>(limits_.block_rows);
    for (const inf::row_move& m : s.moves)
      cache_[static_cast<std::size_t>(m.to)] = cache_[static_cast<std::size_t>(m.from)];
    moves += std::ssize(s.moves);
    const std::vector<std::int32_t> before = cache_;
    for (const inf::block_copy& c : s.copies)  // all at once: none reads what another wrote
      std::copy_n(before.begin() + c.from * limits_.block_rows, rows, cache_.begin() + c.to * limits_.block_rows);
    const auto row = [&](const inf::sequence_rows& q, std::int64_t t) -> std::int32_t& {
      const std::int32_t block = s.blocks[static_cast<std::size_t>(q.first_block + t / limits_.block_rows)];
      return cache_[static_cast<std::size_t>(block * limits_.block_rows + t % limits_.block_rows)];
    };
    for (const inf::sequence_rows& q : s.sequences)
      for (std::int64_t i = 0; i < q.rows; ++i)
        row(q, q.position + i) = s.tokens[static_cast<std::size_t>(q.first_row + i)];
    std::size_t wanted = 0;
    const auto width = static_cast<std::size_t>(limits_.vocabulary);
    streams_.clear();
    for (const inf::sequence_rows& q : s.sequences)
      for (; wanted < s.wanted.size() && s.wanted[wanted] < q.first_row + q.rows; ++wanted) {
        std::vector<std::int64_t> seen;  // rows of the sequence from the last one's to the first's
        for (std::int64_t i = s.wanted[wanted] - q.first_row; i >= 0;
             i = s.parents.empty() ? i - 1 : s.parents[static_cast<std::size_t>(q.first_row + i)])
          seen.push_back(q.position + i);
        const std::int64_t length = q.position + std::ssize(seen);
        const auto token = [&](std::int64_t t) {
          return row(q, t < q.position ? t : seen[static_cast<std::size_t>(length - 1 - t)]);
        };
        language_.logits(length, token, logits.subspan(wanted * width, width));
        streams_.push_back(token(length - 1));
        streams_.push_back(static_cast<double>(length));
      }
    if (fail_late) {
      fail_late = false;
      throw std::runtime_error("the runner failed late");
    }
    ++steps;
    most_rows = (std::max)(most_rows, s.rows());
    copies += std::ssize(s.copies);
    last = s;
  }

  /// Of each wanted row its token, and the tokens up to it.
  std::span<const double> streams() const { return streams_; }

  /// The tokens that rows of the cache hold.
  std::vector<std::int32_t>& cached() { return cache_; }

  std::int64_t moves = 0, steps = 0, most_rows = 0, copies = 0;
  std::function<void()> on_step{};  ///< called at the beginning of each
  bool fail_next = false;           ///< before the cache changes
  bool fail_late = false;  ///< after rows were moved and written
  inf::step last{};  ///< the step that ran last

 private:
  inf::step_limits limits_;
  language language_;
  std::vector<std::int32_t> cache_;
  std::vector<double> streams_{};
};

struct answer {
  std::vector<std::int32_t> tokens{};
  std::vector<double> log_probabilities{};
  inf::finish_reason finish = inf::finish_reason::none;
  friend bool operator==(const answer&, const answer&) = default;
};

/// The answer to a request with a seed, from the definition.
inline answer alone(const inf::request& r, const language& of, std::int64_t context,
                    const std::vector<std::int32_t>& end_tokens = {}) {
  answer a;
  std::vector<std::int32_t> text = r.prompt;
  std::vector<double> logits(static_cast<std::size_t>(of.vocabulary));
  inf::token_sampler sampler;
  while (a.finish == inf::finish_reason::none) {
    inf::token_counts counts;
    counts.add_prompt(r.prompt);
    for (const std::int32_t t : a.tokens) counts.add_answer(t);
    of.logits(std::ssize(text), [&](std::int64_t t) { return text[static_cast<std::size_t>(t)]; }, logits);
    try {
      const inf::drawn_token drawn = sampler.draw(std::span<const double>(logits), r, r.sampling.seed.value_or(0),
                                                  std::ssize(text), a.tokens, counts);
      text.push_back(drawn.token);
      a.tokens.push_back(drawn.token);
      if (drawn.log_probability) a.log_probabilities.push_back(*drawn.log_probability);
    } catch (const heddle::numeric_error&) {
      a.finish = inf::finish_reason::error;
      break;
    }
    const auto is_in = [&](const std::vector<std::int32_t>& ends) { return std::ranges::count(ends, text.back()) > 0; };
    if (is_in(r.stop_tokens) || (!r.ignore_end_tokens && is_in(end_tokens)))
      a.finish = inf::finish_reason::stop;
    else if (std::ssize(a.tokens) == r.max_tokens || std::ssize(text) == context)
      a.finish = inf::finish_reason::length;
  }
  return a;
}

inline std::int64_t between(std::mt19937& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

/// A request of any kind; prompts begin alike often. `longest`: of the prompt.
inline inf::request any_request(std::mt19937& random, std::int64_t longest,
                                std::int64_t vocabulary = small_limits.vocabulary) {
  inf::request r;
  const std::int64_t length = between(random, 1, longest);
  const std::int64_t alike = between(random, 0, length);
  const std::int64_t family = between(random, 0, 2);
  for (std::int64_t i = 0; i < length; ++i)
    r.prompt.push_back(
        static_cast<std::int32_t>(i < alike ? (i * 7 + family) % vocabulary : between(random, 0, vocabulary - 1)));
  r.max_tokens = between(random, 1, 20);
  r.log_probabilities = between(random, 0, 1);
  inf::sampling_options& s = r.sampling;
  s.seed = random();
  switch (between(random, 0, 4)) {
    case 0:
      s.temperature = 0;
      break;
    case 1:
      s.top_k = between(random, 1, 5);
      break;
    case 2:
      s.top_p = 0.7;
      break;
    case 3:
      s.min_p = 0.2;
      break;
    default:
      break;
  }
  if (between(random, 0, 3) == 0) {
    s.repetition_penalty = 1.2;
    s.frequency_penalty = 0.5;
    s.presence_penalty = 0.25;
  }
  if (between(random, 0, 3) == 0) r.stop_tokens = {static_cast<std::int32_t>(between(random, 0, vocabulary - 1))};
  if (between(random, 0, 4) == 0)
    r.mask = [](std::span<const std::int32_t> a, std::span<double> logits) {  // tokens of one parity, in turn
      for (std::size_t i = 0; i < logits.size(); ++i)
        if (i % 2 == static_cast<std::size_t>(a.size() % 2)) logits[i] = -std::numeric_limits<double>::infinity();
    };
  return r;
}

}  // namespace fake
