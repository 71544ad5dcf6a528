// heddle/infer/diffusion_rules.hpp: rules of diffusion decoding: which masks a step commits.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// A masked position of a block: its place, counted from the block's first position, the token that was drawn for it,
/// and that token's probability.
struct candidate {
  std::int64_t place = 0;
  std::int32_t token = 0;
  double probability = 0;
  friend bool operator==(const candidate&, const candidate&) = default;
};

/// Which candidates become tokens. `validate()` throws `config_error` for settings that cannot work. `begin(state,
/// positions)`: a block of so many positions begins, most of them masked.
/// `choose(state, candidates, taken)` sets `taken`, all 0 and of the same size, to 1 for those that are committed;
/// candidates ascend by place, and there is at least one.
/// A rule that takes none gets the likeliest candidate committed. Optional: `fuse(state, place, logits, mask)` changes
/// the logits of a masked position before its token is
/// drawn, once in each step; the token `mask` is never drawn. A state belongs to one request, so that no answer depends
/// on another.
template <class R>
concept diffusion_rule =
    std::default_initializable<R> && requires(const R& rule, typename R::state& state, std::int64_t positions,
                                              std::span<const candidate> candidates, std::span<std::uint8_t> taken) {
      requires std::default_initializable<typename R::state>;
      rule.validate();
      rule.begin(state, positions);
      rule.choose(state, candidates, taken);
    };

namespace detail {
[[noreturn]] inline void refuse_rule(const char* setting, double value, const char* expected) {
  throw config_error(std::string("heddle: a rule of diffusion: ") + setting + " must be " + expected + ", got " +
                     number_text(value));
}
inline void require_tau(double tau) {
  if (!(tau > 0 && tau <= 1)) refuse_rule("tau", tau, "above 0 and at most 1");
}
inline std::size_t likeliest_of(std::span<const candidate> c) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < c.size(); ++i)
    if (c[i].probability > c[best].probability) best = i;
  return best;
}
// Those of at least min(tau, the greatest - 1e-5).
inline void take_above(double tau, std::span<const candidate> c, std::span<std::uint8_t> taken) {
  const double least = (std::min)(tau, c[likeliest_of(c)].probability - 1e-5);
  for (std::size_t i = 0; i < c.size(); ++i) taken[i] = c[i].probability >= least ? 1 : 0;
}
}  // namespace detail

/// Commits every candidate whose probability is at least `tau`, or within 1e-5 of the greatest where that is less: at
/// least one.
/// Source: Wu et al. 2025, Fast-dLLM, arXiv:2505.22618; Ma et al. 2025, dInfer, arXiv:2510.08666.
struct threshold {
  double tau = 0.9;  ///< in (0, 1]

  struct state {};
  void validate() const { detail::require_tau(tau); }
  static void begin(state&, std::int64_t) noexcept {}
  void choose(state&, std::span<const candidate> c, std::span<std::uint8_t> taken) const {
    detail::take_above(tau, c, taken);
  }
};

/// Commits of every run of masked positions beside each other the likeliest candidate, if its probability is above
/// `low`; besides all above `tau`, and always the likeliest of the block.
/// New tokens are apart from each other, and a run of n masks takes about log2(n) steps. Source: hierarchical decoding
/// of dInfer, arXiv:2510.08666.
struct one_per_run {
  double tau = 0.9;  ///< in (0, 1]
  double low = 0.4;  ///< in [0, 1]

  struct state {};
  void validate() const {
    detail::require_tau(tau);
    if (!(low >= 0 && low <= 1)) detail::refuse_rule("low", low, "from 0 to 1");
  }
  static void begin(state&, std::int64_t) noexcept {}
  void choose(state&, std::span<const candidate> c, std::span<std::uint8_t> taken) const {
    for (std::size_t first = 0, end = 0; first < c.size(); first = end) {
      for (end = first + 1; end < c.size() && c[end].place == c[end - 1].place + 1;) ++end;
      const std::size_t best = first + detail::likeliest_of(c.subspan(first, end - first));
      if (c[best].probability > low) taken[best] = 1;
    }
    for (std::size_t i = 0; i < c.size(); ++i)
      if (c[i].probability > tau) taken[i] = 1;
    taken[detail::likeliest_of(c)] = 1;
  }
};

/// Each masked position keeps credits of the tokens that were its likeliest ones in earlier steps of the block. In a
/// step they are multiplied by `beta`, the likeliest token's grows by p^gamma, and
/// the logits by `alpha` log(1 + credit); then as `threshold`. Credits are kept by request and block. Source: credit
/// decoding of dInfer, arXiv:2510.08666.
struct credit {
  double tau = 0.9;    ///< in (0, 1]
  double alpha = 0.7;  ///< at least 0
  double gamma = 0.2;  ///< at least 0
  double beta = 0.8;   ///< in [0, 1]

  /// Of each position of the block its tokens with credit.
  struct state {
    std::vector<std::vector<std::pair<std::int32_t, double>>> credits{};
  };
  void validate() const {
    detail::require_tau(tau);
    if (!(alpha >= 0 && std::isfinite(alpha))) detail::refuse_rule("alpha", alpha, "at least 0 and finite");
    if (!(gamma >= 0 && std::isfinite(gamma))) detail::refuse_rule("gamma", gamma, "at least 0 and finite");
    if (!(beta >= 0 && beta <= 1)) detail::refuse_rule("beta", beta, "from 0 to 1");
  }
  static void begin(state& s, std::int64_t) noexcept { s.credits.clear(); }
  /// Shapes: logits [vocabulary].
  void fuse(state& s, std::int64_t place, std::span<double> logits, std::int32_t mask) const {
    if (const auto needed = static_cast<std::size_t>(place) + 1; s.credits.size() < needed) s.credits.resize(needed);
    auto& of_place = s.credits[static_cast<std::size_t>(place)];
    std::int32_t best = mask == 0 ? 1 : 0;
    double most = logits[0], sum = 0;
    for (std::size_t v = 0; v < logits.size(); ++v) {
      most = (std::max)(most, logits[v]);
      if (static_cast<std::int32_t>(v) != mask && logits[v] > logits[static_cast<std::size_t>(best)])
        best = static_cast<std::int32_t>(v);
    }
    for (const double x : logits) sum += std::exp(x - most);
    bool found = false;
    const double more = std::pow(std::exp(logits[static_cast<std::size_t>(best)] - most) / sum, gamma);
    for (auto& [token, amount] : of_place) {
      amount *= beta;
      if (token != best) continue;
      amount += more;
      found = true;
    }
    if (!found) of_place.emplace_back(best, more);
    for (const auto& [token, amount] : of_place) logits[static_cast<std::size_t>(token)] += alpha * std::log1p(amount);
  }
  void choose(state&, std::span<const candidate> c, std::span<std::uint8_t> taken) const {
    detail::take_above(tau, c, taken);
  }
};

/// Commits the likeliest candidates, in `steps` steps equally many of a block's positions; the first steps one more
/// where they do not divide. Of equals the first.
/// Source: Nie et al. 2025, LLaDA, arXiv:2502.09992, low-confidence remasking.
struct fixed_steps {
  std::int64_t steps = 32;

  struct state {
    std::int64_t positions = 0, step = 0;
  };
  void validate() const {
    if (steps < 1) detail::refuse_rule("steps", static_cast<double>(steps), "at least 1");
  }
  static void begin(state& s, std::int64_t positions) noexcept { s = {positions, 0}; }
  void choose(state& s, std::span<const candidate> c, std::span<std::uint8_t> taken) const {
    std::int64_t count = (std::max)(std::int64_t{1}, s.positions / steps + (s.step < s.positions % steps ? 1 : 0));
    ++s.step;
    for (; count > 0; --count) {
      std::size_t best = c.size();
      for (std::size_t i = 0; i < c.size(); ++i)
        if (taken[i] == 0 && (best == c.size() || c[i].probability > c[best].probability)) best = i;
      if (best == c.size()) return;
      taken[best] = 1;
    }
  }
};

}  // namespace heddle::inline v0::infer
