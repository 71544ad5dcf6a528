// heddle/infer/diffusion.hpp: decodes masked language models, blocks of masks at a time.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/policy.hpp>
#include <heddle/core/random.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/decoding.hpp>
#include <heddle/infer/diffusion_caches.hpp>
#include <heddle/infer/diffusion_rules.hpp>
#include <heddle/infer/logit.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/sampling.hpp>
#include <heddle/infer/step.hpp>
#include <heddle/model/reach.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// What `diffusion` did. `forwards`: steps of a request in which positions were predicted; `refreshes`: of these, those
/// that computed all rows of a request without being the only way
/// (`none`); `stored`: blocks that were computed once more (`exact`). `committed / forwards` is tokens a forward.
struct diffusion_counts {
  std::int64_t forwards = 0;
  std::int64_t committed = 0;
  std::int64_t refreshes = 0;
  std::int64_t stored = 0;
  std::int64_t rows = 0;  ///< that were computed for all this
  friend bool operator==(const diffusion_counts&, const diffusion_counts&) = default;
};

/// Rows [first, first + rows) of a text, which see the tokens [0, keys).
struct window {
  std::int64_t first = 0, rows = 0, keys = 0;
  friend bool operator==(const window&, const window&) = default;
};

namespace detail {
template <bool Ok, class Cache, class Reach>
inline constexpr bool diffusion_cache_fits_reach = Ok;
template <bool Ok, std::int64_t Block, class Reach>
inline constexpr bool diffusion_block_fits_reach = Ok;
}  // namespace detail

/// Decodes a masked language model (LLaDA, Dream, SDAR). An answer begins as masks, `max_tokens` of them, in blocks of
/// `Block`. A step predicts the masked positions of the first block that has some, draws a
/// token for each, and commits those that the rule takes; a committed token is never drawn again, and the mask is never
/// drawn. Events have tokens in order, as soon as all before them are committed.
/// `Rule`: `threshold`, `one_per_run`, `credit`, `fixed_steps`. `Cache`: rows that are computed again (`none`,
/// `prefix`, `dual`, `vicinity`, `exact`). `Reach`: of the model, `model::everything`,
/// `model::blocks<Block>`, whose blocks begin at position 0, or, with a block of one token, `model::earlier`, which is
/// `one_token` by another way.
/// A probability is softmax in double over all logits, the mask's too. The token at a position is drawn with the
/// request's options and seed by `token_sampler`, in step i of a block by numbers of its own.
/// An engine with it takes `paged` or `contiguous`, refuses requests with masks, penalties or log-probabilities of
/// other tokens, and, but for `exact`, those whose
/// prompt and answer together have more rows than a step.
/// Source: Nie et al. 2025, arXiv:2502.09992 (LLaDA); Ma et al. 2025, arXiv:2510.08666 (dInfer).
template <std::int64_t Block = 32, diffusion_rule Rule = threshold, diffusion_cache Cache = dual,
          class Reach = model::everything>
class diffusion {
  static_assert(Block > 0, "heddle: diffusion<Block, ...>: a block has at least one token");
  static constexpr bool causal = std::is_same_v<Reach, model::earlier>;
  static constexpr bool in_blocks = model::reach_rows<Reach> > 0;
  static_assert(detail::diffusion_block_fits_reach < !causal || Block == 1, Block, Reach >,
                "heddle: diffusion with the reach model::earlier decodes one token at a time: masks behind a token are "
                "not seen by it; take a block of 1, or a model that was trained with another reach");
  static_assert(detail::diffusion_block_fits_reach < !in_blocks || Block == model::reach_rows<Reach>, Block, Reach >,
                "heddle: diffusion<Block, ..., model::blocks<Rows>>: Block must be the model's Rows");
  static_assert(
      detail::diffusion_cache_fits_reach < Cache::stores == in_blocks || std::is_same_v<Cache, none> ||
          (causal && std::is_same_v<Cache, prefix>),
      Cache, Reach >,
      "heddle: diffusion: the cache does not fit the model's reach: exact is for model::blocks<Rows>, prefix, "
      "dual and vicinity for model::everything, prefix for model::earlier, none for all but that");
  static_assert(detail::diffusion_cache_fits_reach < !causal || std::is_same_v<Cache, prefix>, Cache, Reach >,
                "heddle: diffusion with the reach model::earlier takes the cache prefix");

 public:
  using kind = decoding_kind;
  using needs = std::conditional_t<causal, capabilities<next_token>, capabilities<window_rows, rows_see<Reach>>>;
  using rule_type = Rule;
  static constexpr std::int64_t most_proposed = 0;
  static constexpr bool lossless = causal;
  static constexpr bool windows = true;
  /// Whether all rows of a window see all its keys, and not only those up to their own.
  static constexpr bool everywhere = !causal;

  /// An engine refuses this one: it has no mask.
  diffusion() = default;
  /// `mask`: the token that stands for one that is not decided. `shifted`: a row predicts the token behind its own
  /// (Dream). `refresh_every`: all rows also in each step of a block whose number it
  /// divides; 0: only when the cache says so.
  explicit diffusion(Rule rule, std::int32_t mask, bool shifted = causal, std::int64_t refresh_every = 0)
      : rule_(std::move(rule)), mask_(mask), shifted_(shifted), refresh_every_(refresh_every) {}

  static void propose(std::span<proposal>) noexcept {}
  void ended(request_id id) { texts_.erase(id); }
  const Rule& rule() const noexcept { return rule_; }
  std::int32_t mask() const noexcept { return mask_; }
  diffusion_counts counts() const noexcept { return counts_; }

  // ---- what an engine asks ----
  /// Errors: `config_error` for a mask outside the vocabulary, settings of the rule that cannot work, a block with more
  /// rows than a step.
  void require(const step_limits& l, std::int64_t rows_of_step) const {
    rule_.validate();
    if (mask_ < 0 || mask_ >= l.vocabulary)
      throw config_error("heddle: diffusion: the mask should be a token of the vocabulary of " +
                         std::to_string(l.vocabulary) + ", got " + std::to_string(mask_));
    if (l.vocabulary < 2)
      throw config_error("heddle: diffusion: a vocabulary should have a token beside the mask, got " +
                         std::to_string(l.vocabulary) + " tokens");
    if (refresh_every_ < 0)
      throw config_error("heddle: diffusion: refresh_every should be at least 0, got " +
                         std::to_string(refresh_every_));
    if (causal && !shifted_)
      throw config_error(
          "heddle: diffusion: rows of a model with the reach model::earlier predict the token behind "
          "their own: shifted should be true");
    if (in_blocks && Block + (shifted_ ? 1 : 0) > rows_of_step)
      throw config_error("heddle: diffusion: a block needs " + std::to_string(Block + (shifted_ ? 1 : 0)) +
                         " rows of a step, it has " + std::to_string(rows_of_step));
  }
  /// Errors: `request_error`.
  void require(const request& r, std::int64_t context, std::int64_t rows_of_step) const {
    if (r.mask) throw request_error("mask", "diffusion decoding takes none");
    if (has_penalties(r.sampling))
      throw request_error("sampling", "diffusion decoding takes no penalties: tokens are not drawn in their order");
    if (r.log_probabilities.value_or(0) > 0)
      throw request_error("log_probabilities", "diffusion decoding gives those of the tokens themselves: 0, got " +
                                                   std::to_string(*r.log_probabilities));
    if (r.log_probabilities && r.log_probabilities_of == log_probability_of::drawn)
      throw request_error("log_probabilities_of", "diffusion decoding gives those of the model");
    if (const auto at = std::find(r.prompt.begin(), r.prompt.end(), mask_); at != r.prompt.end() && !causal)
      throw request_error("prompt",
                          "token " + std::to_string(at - r.prompt.begin()) + " is the mask, " + std::to_string(mask_));
    if (const std::int64_t total = tokens_of(r, context); !causal && !Cache::stores && total > rows_of_step)
      throw request_error("max_tokens", "prompt and answer are computed together in one step of at most " +
                                            std::to_string(rows_of_step) + " rows, got " + std::to_string(total) +
                                            " tokens");
  }
  /// A request waits to be decoded. `context`: most tokens of prompt and answer.
  void begin(request_id id, const request& r, std::int64_t context) {
    text& t = texts_[id];
    t.tokens = r.prompt;
    t.tokens.resize(static_cast<std::size_t>(tokens_of(r, context)), mask_);
    t.log_probabilities.resize(t.tokens.size());
    t.shown = t.answer = std::ssize(r.prompt);
    t.is_mask.assign(t.tokens.size(), 0);
    std::fill(t.is_mask.begin() + t.answer, t.is_mask.end(), std::uint8_t{1});
    t.end = in_blocks ? t.answer / Block * Block : t.answer;
    next_block(t);
  }
  /// All tokens of a request, undecided ones as masks.
  std::span<const std::int32_t> tokens(request_id id) const { return texts_.at(id).tokens; }
  /// The request's rows are no longer in the cache.
  void lost(request_id id) {
    text& t = texts_.at(id);
    t.stored = 0;
    t.fresh = true;
  }
  /// Plans a step of a request with at most `left` rows; false if that is too few. `windows(id)` and `wanted(id)`,
  /// ascending rows of the text, hold until the next call.
  bool next(request_id id, std::int64_t left) {
    text& t = texts_.at(id);
    t.windows.clear();
    t.wanted.clear();
    const std::int64_t behind = shifted_ ? 1 : 0;
    for (std::int64_t p = t.first; p < t.end; ++p)
      if (is_mask(t, p)) t.wanted.push_back(p - behind);
    t.refreshed = false;
    if constexpr (causal)
      plan_causal(t, left);
    else if constexpr (in_blocks)
      plan_blocks(t, left);
    else
      plan_rows(t, left);
    return !t.windows.empty();
  }
  std::span<const window> windows_of(request_id id) const { return texts_.at(id).windows; }
  std::span<const std::int64_t> wanted(request_id id) const { return texts_.at(id).wanted; }
  /// After the step that `next` planned. Shapes: logits [wanted rows, vocabulary]. Errors: `numeric_error`, as
  /// `token_sampler`.
  template <logit T>
  void commit(request_id id, const request& asked, std::uint64_t seed, std::span<const T> logits,
              std::int64_t vocabulary) {
    text& t = texts_.at(id);
    for (const window& w : t.windows) counts_.rows += w.rows;
    if (in_blocks || causal) keep_stored(t);
    if (t.wanted.empty()) return;
    ++counts_.forwards;
    counts_.refreshes += t.refreshed ? 1 : 0;
    draw(t, asked, seed, logits, vocabulary);
    taken_.assign(candidates_.size(), 0);
    rule_.choose(t.of_rule, std::span<const candidate>(candidates_), std::span<std::uint8_t>(taken_));
    if (std::find(taken_.begin(), taken_.end(), std::uint8_t{1}) == taken_.end())
      taken_[detail::likeliest_of(candidates_)] = 1;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (taken_[i] == 0) continue;
      const auto place = static_cast<std::size_t>(t.first + candidates_[i].place);
      t.tokens[place] = candidates_[i].token;
      t.log_probabilities[place] = of_model_[i];
      t.is_mask[place] = 0;
      ++counts_.committed;
    }
    t.fresh = false;
    ++t.step;
    ++t.step_of_block;
    if (std::find(t.is_mask.begin() + t.first, t.is_mask.begin() + t.end, std::uint8_t{1}) == t.is_mask.begin() + t.end)
      next_block(t);
  }
  /// The next token of the answer that follows others, if it is decided, and the logarithm of its probability: each is
  /// given once.
  bool take(request_id id, drawn_token& to) {
    text& t = texts_.at(id);
    if (t.shown == std::ssize(t.tokens) || is_mask(t, t.shown)) return false;
    const auto at = static_cast<std::size_t>(t.shown++);
    to = {.token = t.tokens[at], .log_probability = t.log_probabilities[at]};
    return true;
  }

 private:
  struct text {
    std::vector<std::int32_t> tokens{};
    std::vector<double> log_probabilities{};
    std::vector<std::uint8_t> is_mask{};
    std::int64_t answer = 0, shown = 0;
    std::int64_t first = 0, end = 0;  // of the block
    std::int64_t stored = 0;          // rows at the beginning that are computed for good
    std::int64_t step = 0, step_of_block = 0;
    bool fresh = true;  // no row is in the cache
    bool refreshed = false;
    typename Rule::state of_rule{};
    std::vector<window> windows{};
    std::vector<std::int64_t> wanted{};
  };

  static bool is_mask(const text& t, std::int64_t place) { return t.is_mask[static_cast<std::size_t>(place)] != 0; }
  static std::int64_t tokens_of(const request& r, std::int64_t context) {
    std::int64_t total = std::ssize(r.prompt) + (std::min)(r.max_tokens, context - std::ssize(r.prompt));
    if (in_blocks) total = (total + Block - 1) / Block * Block;
    return (std::min)(total, context);
  }
  void next_block(text& t) const {
    t.first = t.end;
    t.end = (std::min)(t.first + Block, std::ssize(t.tokens));
    t.step_of_block = 0;
    t.of_rule = {};
    rule_.begin(t.of_rule, t.end - t.first);
  }
  void plan_causal(text& t, std::int64_t left) const {
    const std::int64_t rows = (std::min)(t.first - t.stored, left);
    if (rows <= 0) return;
    t.windows.push_back({t.stored, rows, t.stored + rows});
    if (t.stored + rows < t.first) t.wanted.clear();  // a part of the prompt
  }
  // Rows of finished blocks that are not stored, then the block: all at once if they fit, else as many blocks as do.
  void plan_blocks(text& t, std::int64_t left) const {
    const std::int64_t begin = Cache::stores ? t.stored : 0;
    if (!Cache::stores && t.end > left) {
      t.wanted.clear();
      return;
    }
    for (std::int64_t first = begin; first < t.first && left >= Block; first += Block, left -= Block)
      t.windows.push_back({first, Block, first + Block});
    const bool all = begin + std::ssize(t.windows) * Block == t.first;
    const bool one_before = t.windows.empty() && !t.wanted.empty() && t.wanted.front() < t.first;
    if (const std::int64_t rows = t.end - t.first; all && rows + (one_before ? 1 : 0) <= left) {
      if (one_before) t.windows.push_back({t.first - 1, 1, t.first});
      t.windows.push_back({t.first, rows, t.end});
    } else {
      t.wanted.clear();
    }
  }
  void plan_rows(text& t, std::int64_t left) const {
    const std::int64_t total = std::ssize(t.tokens);
    const bool all = t.fresh || Cache::refreshes(t.step, t.step_of_block) ||
                     (refresh_every_ > 0 && t.step_of_block % refresh_every_ == 0);
    row_range rows = all ? row_range{0, total} : Cache::window({t.first, t.end}, total);
    rows.first = (std::max)(std::int64_t{0}, (std::min)(rows.first, t.first - (shifted_ ? 1 : 0)));
    rows.end = (std::min)((std::max)(rows.end, t.end), total);
    t.refreshed = all && !std::is_same_v<Cache, none>;
    if (rows.end - rows.first <= left) t.windows.push_back({rows.first, rows.end - rows.first, total});
  }
  void keep_stored(text& t) {
    for (const window& w : t.windows)
      if (causal ? w.first == t.stored : Cache::stores && w.first == t.stored && w.keys <= t.first) {
        t.stored = w.keys;
        counts_.stored += causal ? 0 : 1;
      }
  }
  template <class T>
  void draw(text& t, const request& asked, std::uint64_t seed, std::span<const T> logits, std::int64_t vocabulary) {
    candidates_.clear();
    of_model_.clear();
    request plain;
    plain.sampling = asked.sampling;
    const std::uint64_t of_step =
        t.step_of_block == 0 ? seed : counter_random(seed, static_cast<std::uint64_t>(t.step_of_block)).integer(0);
    const auto words = static_cast<std::size_t>(vocabulary), mask = static_cast<std::size_t>(mask_);
    for (std::size_t i = 0; i < t.wanted.size(); ++i) {
      const std::int64_t place = t.wanted[i] + (shifted_ ? 1 : 0);
      const std::span<const T> of_row = logits.subspan(i * words, words);
      row_.assign(of_row.begin(), of_row.end());
      if (!(row_[mask] < std::numeric_limits<double>::infinity())) token_sampler::not_a_number(mask, row_[mask]);
      double changed_normalizer = 0;
      const double normalizer = log_sum(row_);
      if constexpr (requires { rule_.fuse(t.of_rule, place, std::span<double>(row_), mask_); }) {
        rule_.fuse(t.of_rule, place - t.first, std::span<double>(row_), mask_);
        changed_normalizer = log_sum(row_);
      } else {
        changed_normalizer = normalizer;
      }
      row_[mask] = -std::numeric_limits<double>::infinity();
      const drawn_token drawn = sampler_.draw(std::span<const double>(row_), plain, of_step, place, {}, nothing_);
      const auto token = static_cast<std::size_t>(drawn.token);
      candidates_.push_back({place - t.first, drawn.token, std::exp(row_[token] - changed_normalizer)});
      of_model_.push_back(static_cast<double>(of_row[token]) - normalizer);
    }
  }
  static double log_sum(const std::vector<double>& x) {
    const double most = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const double v : x) sum += std::exp(v - most);
    return most + std::log(sum);
  }

  Rule rule_{};
  std::int32_t mask_ = -1;
  bool shifted_ = causal;
  std::int64_t refresh_every_ = 0;
  std::map<request_id, text> texts_{};
  diffusion_counts counts_{};
  std::vector<candidate> candidates_{};
  std::vector<double> of_model_{}, row_{};
  std::vector<std::uint8_t> taken_{};
  token_sampler sampler_{};
  token_counts nothing_{};
};

}  // namespace heddle::inline v0::infer
