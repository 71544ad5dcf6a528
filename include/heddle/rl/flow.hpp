// heddle/rl/flow.hpp: a pipeline of reinforcement learning as values, for runs and plans.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/infer/kv.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::inline v0::rl {

/// What a `pipeline` decides, as values: one run, one simulation and one planner serve all of them.
/// Units: batches (of as many groups as a step takes) and versions (optimizer steps done).
struct flow {
  /// Generators on ranks of their own, beside the trainer's; else both are on all ranks, in turn.
  bool apart = false;
  /// How far generators may be ahead: of `updates` batches, those of one version of the weights, so many more, as a
  /// fraction `ahead` / `of` of them. 0: synchronous.
  std::int64_t ahead = 0, of = 1;
  std::int64_t updates = 1;           ///< optimizer steps between two sendings of weights
  bool in_flight = false;             ///< weights are replaced between two decoding steps, inside answers
  infer::kv cache = infer::kv::keep;  ///< then, of the answers that are being written
  std::int64_t rolling = 0;           ///< generators that take weights at one meeting, in turn; 0: all
  bool delayed = false;        ///< generators get weights beside their own, and take them at the end of their window
  std::int64_t over = 1;       ///< batches of groups begun; above 1 what is not finished with the first is interrupted
  std::int64_t slots = 0;      ///< sequences of a generator that are kept busy; 0: as many as its engine has room for
  double least_share = 0;      ///< of the effective sample size; below, what older versions wrote is given up
  std::int64_t most_age = -1;  ///< in versions; groups with older tokens are given up; negative: any age
  bool as_is = false;          ///< objectives need not read what drew a token

  /// Groups that may have begun when `left` of them have left (used or given up), with batches of `groups`.
  constexpr std::int64_t may_begin(std::int64_t left, std::int64_t groups) const noexcept {
    const std::int64_t window = groups * updates * (of + ahead) / of, begun = groups * over;
    return left + (window > begun ? window : begun);
  }
  /// Whether a step takes the groups that are finished, in place of the batch that is next.
  constexpr bool overtakes() const noexcept { return over > 1 || in_flight; }
  /// The greatest lag of a token, in versions; -1: of answers that are interrupted or overtaken, as long as they are.
  constexpr std::int64_t greatest_lag() const noexcept {
    if (most_age >= 0) return most_age;
    return overtakes() ? -1 : (updates * (of + ahead) + of - 1) / of - 1;
  }
  friend bool operator==(const flow&, const flow&) = default;

  /// Errors: `config_error` naming the choice that cannot be, and why.
  void validate() const {
    const auto require = [](bool holds, const std::string& what) {
      if (!holds) throw config_error("heddle: rl::flow." + what);
    };
    require(of >= 1 && ahead >= 0,
            "ahead / of must be a fraction of at least 0, got " + std::to_string(ahead) + " / " + std::to_string(of));
    require(updates >= 1, "updates must be at least 1, got " + std::to_string(updates));
    require(rolling >= 0, "rolling must be at least 0, got " + std::to_string(rolling));
    require(over >= 1, "over must be at least 1, got " + std::to_string(over));
    require(slots >= 0, "slots must be at least 0, got " + std::to_string(slots));
    require(least_share >= 0 && least_share <= 1, "least_share must be 0 to 1, got " + number_text(least_share));
    require(apart || !in_flight,
            "in_flight replaces weights while answers are written: generators need ranks of their own");
    require(apart || ahead == 0, "ahead: generators on the trainer's own ranks cannot be ahead of it");
    require(!delayed || (apart && !overtakes()),
            "delayed: weights wait until the answers of a window are complete: generators need ranks of their own, and "
            "answers that end with the version that began them");
    require(apart || rolling == 0, "rolling: generators on the trainer's own ranks take weights together");
  }
};

/// In words, one line.
inline std::string to_string(const flow& f) {
  std::string text = f.apart ? "apart" : "colocated";
  if (f.in_flight)
    text +=
        ", weights in flight (" + std::string(f.cache == infer::kv::keep ? "keep" : "recompute") + " keys and values)";
  if (f.ahead > 0) text += ", ahead by " + std::to_string(f.ahead) + "/" + std::to_string(f.of) + " batch";
  if (f.ahead == 0 && f.updates == 1) text += ", synchronous";
  if (f.updates > 1) text += ", weights after " + std::to_string(f.updates) + " steps";
  if (f.rolling > 0) text += ", loaded by " + std::to_string(f.rolling) + " generators at a time";
  if (f.delayed) text += ", loaded beside those in use";
  if (f.over > 1) text += ", interrupted, " + std::to_string(f.over) + " batches begun";
  if (f.slots > 0) text += ", " + std::to_string(f.slots) + " slots";
  if (f.least_share > 0) text += ", effective share at least " + number_text(f.least_share);
  if (f.most_age >= 0) text += ", age at most " + std::to_string(f.most_age);
  return text;
}

}  // namespace heddle::inline v0::rl
