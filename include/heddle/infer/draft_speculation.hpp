// heddle/infer/draft_speculation.hpp: speculation by a smaller model with its own cache.
#pragma once

#include <heddle/infer/cache.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/decoding.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/sampling.hpp>
#include <heddle/infer/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Proposes `Tokens` tokens that a draft model, with the same vocabulary, draws for all sequences of a step together: `Tokens` small steps. It draws with
/// the request's seed, temperature and filters, so with the random numbers that the engine draws with; where the draft's distribution is close,
/// so are the tokens. A proposal is kept while it is the token that is drawn at its place: answers are the same, token for token, as without
/// it, for any draft. The draft computes a prompt when it first proposes; it knows neither penalties nor masks. Blocks that its cache lacks are
/// taken from requests that do not decode in this step; without any, there is no proposal.
/// Source: Leviathan et al. 2023, arXiv:2211.17192, section 2 (drafting); the acceptance here is by equal draws.
template <step_runner Draft, std::int64_t Tokens = 4>
class draft_speculation {
 public:
  static_assert(Tokens > 0,
                "heddle: draft_speculation<Draft, Tokens>: Tokens is the number of proposals and must be positive");
  static_assert(detail::all_offered<capabilities<truncate, next_token>, runner_capabilities<Draft>>::value,
                "heddle: draft_speculation<Draft>: rows of rejected proposals are overwritten in the draft's cache, and it draws the token "
                "behind a row; take a causal draft (next_token) whose layers keep no states (truncate)");
  using kind = decoding_kind;
  using needs = infer::capabilities<truncate, next_token>;
  static constexpr std::int64_t most_proposed = Tokens;
  static constexpr bool lossless = true;
  using scalar = typename Draft::scalar;

  /// The draft must outlive the policy, and nothing else may use its cache.
  explicit draft_speculation(Draft& draft) : draft_(&draft), limits_(draft.limits()), blocks_(limits_) {}

  /// Errors: whatever the draft throws.
  void propose(std::span<proposal> proposals) {
    drafting_.clear();
    for (proposal& p : proposals)
      if (can_know(p)) drafting_.push_back({.of = &p, .state = &known_[p.id]});
    for (drafted& d : drafting_) begin(d);
    for (drafted& d : drafting_) d.done = !make_room(d);
    while (run_step()) {
    }
    for (drafted& d : drafting_) blocks_.shrink(d.state->blocks, std::ssize(d.state->tokens));
  }
  void ended(request_id id) {
    const auto at = known_.find(id);
    if (at == known_.end()) return;
    blocks_.release(at->second.blocks);
    known_.erase(at);
  }
  /// Blocks of the draft's cache that are in use.
  std::int64_t blocks_used() const noexcept { return blocks_.counts().used; }

 private:
  struct sequence {
    std::vector<std::int32_t> tokens{};  // whose rows are in the draft's cache
    sequence_blocks blocks{};
  };
  struct drafted {
    proposal* of = nullptr;
    sequence* state = nullptr;
    bool done = false;

    std::int64_t length() const noexcept { return std::ssize(of->text) + std::ssize(of->tokens); }
    std::int32_t token(std::int64_t i) const {
      const std::int64_t n = std::ssize(of->text);
      return i < n ? of->text[static_cast<std::size_t>(i)] : of->tokens[static_cast<std::size_t>(i - n)];
    }
  };

  bool can_know(const proposal& p) const {
    const auto unknown = [&](std::int32_t t) { return t >= limits_.vocabulary; };
    return std::ssize(p.text) + p.most <= limits_.context && std::none_of(p.text.begin(), p.text.end(), unknown);
  }

  // Forgets what the draft proposed and the text does not have; the last token's row is always computed.
  static void begin(drafted& d) {
    std::vector<std::int32_t>& have = d.state->tokens;
    const std::span<const std::int32_t> text = d.of->text.first(d.of->text.size() - 1);
    const auto ends = std::mismatch(have.begin(), have.end(), text.begin(), text.end());
    have.erase(ends.first, have.end());
  }

  // Blocks for all that is drafted; those that are not drafted for give theirs back. False, and none are held, if they do not suffice.
  bool make_room(drafted& d) {
    const std::int64_t tokens = std::ssize(d.of->text) + d.of->most - 1;
    if (blocks_.grow(d.state->blocks, tokens)) return true;
    for (auto& [id, s] : known_) {
      const auto is_this = [&](const drafted& other) { return other.state == &s; };
      if (std::any_of(drafting_.begin(), drafting_.end(), is_this)) continue;
      forget(s);
      if (blocks_.grow(d.state->blocks, tokens)) return true;
    }
    forget(*d.state);
    return false;
  }
  void forget(sequence& s) {
    blocks_.release(s.blocks);
    s.tokens.clear();
  }

  // One step of the draft for all that lack proposals. False if none does.
  bool run_step() {
    step_ = {};
    std::int64_t left = limits_.max_rows;
    std::vector<std::pair<drafted*, bool>> taken;  // whether its last row is wanted
    for (drafted& d : drafting_) {
      const std::int64_t position = std::ssize(d.state->tokens);
      const std::int64_t rows = d.done ? 0 : (std::min)(left, d.length() - position);
      if (rows == 0) continue;
      const std::int64_t blocks = detail::blocks_of_tokens(position + rows, limits_.block_rows);
      step_.sequences.push_back({.first_row = step_.rows(),
                                 .rows = rows,
                                 .position = position,
                                 .first_block = std::ssize(step_.blocks),
                                 .blocks = blocks});
      const std::vector<std::int32_t>& own = d.state->blocks.blocks;
      step_.blocks.insert(step_.blocks.end(), own.begin(), own.begin() + blocks);
      for (std::int64_t i = position; i < position + rows; ++i) {
        step_.tokens.push_back(d.token(i));
        d.state->tokens.push_back(d.token(i));
      }
      const bool wanted = position + rows == d.length();
      if (wanted) step_.wanted.push_back(step_.rows() - 1);
      taken.emplace_back(&d, wanted);
      left -= rows;
    }
    if (taken.empty()) return false;
    const auto vocabulary = static_cast<std::size_t>(limits_.vocabulary);
    logits_.resize(step_.wanted.size() * vocabulary);
    try {
      draft_->run(std::as_const(step_), std::span<scalar>(logits_));
    } catch (...) {  // the rows are not there
      for (const auto& t : taken) forget(*t.first->state);
      throw;
    }
    std::size_t row = 0;
    for (const auto& [d, wanted] : taken)
      if (wanted) draw(*d, std::span<const scalar>(logits_).subspan(vocabulary * row++, vocabulary));
    return true;
  }

  void draw(drafted& d, std::span<const scalar> logits) {
    drawn_as_.sampling = d.of->asked->sampling;
    drawn_as_.sampling.repetition_penalty = 1;
    drawn_as_.sampling.frequency_penalty = drawn_as_.sampling.presence_penalty = 0;
    try {
      d.of->tokens.push_back(sampler_.draw(logits, drawn_as_, d.of->seed, d.length(), {}, {}).token);
      d.done = std::ssize(d.of->tokens) == d.of->most;
    } catch (const numeric_error&) {  // the draft has nothing to propose
      d.done = true;
    }
  }

  Draft* draft_;
  step_limits limits_;
  paged_blocks blocks_;
  std::map<request_id, sequence> known_{};
  std::vector<drafted> drafting_{};
  step step_{};
  std::vector<scalar> logits_{};
  token_sampler sampler_{};
  request drawn_as_{};
};

}  // namespace heddle::inline v0::infer
