// tests/infer/diffusion_any_rule.hpp: a rule of diffusion that is chosen at run time.
#pragma once

#include <heddle/infer/diffusion_rules.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <variant>

namespace diffusion_test {

namespace inf = heddle::infer;

/// A user's own rule: Dream's schedule, `_sample` with `maskgit_plus`: of n masks n (1 - s / t) in a step from t to s,
/// times from 1 to 1e-3.
struct maskgit {
  std::int64_t steps = 16;
  struct state {
    std::int64_t step = 0;
  };
  void validate() const {}
  static void begin(state&, std::int64_t) noexcept {}
  void choose(state& s, std::span<const inf::candidate> c, std::span<std::uint8_t> taken) const {
    const auto time = [&](std::int64_t i) {
      return 1.0 - (1.0 - 1e-3) * static_cast<double>(i) / static_cast<double>(steps);
    };
    auto count = static_cast<std::int64_t>(c.size());
    if (s.step < steps - 1)
      count = static_cast<std::int64_t>(static_cast<double>(count) * (1 - time(s.step + 1) / time(s.step)));
    ++s.step;
    for (; count > 0; --count) {
      std::size_t best = c.size();
      for (std::size_t i = 0; i < c.size(); ++i)
        if (taken[i] == 0 && (best == c.size() || c[i].probability > c[best].probability)) best = i;
      taken[best] = 1;
    }
  }
};

/// One of the rules.
struct any_rule {
  std::variant<inf::threshold, inf::one_per_run, inf::credit, inf::fixed_steps, maskgit> rule{};
  struct state {
    std::variant<inf::threshold::state, inf::one_per_run::state, inf::credit::state, inf::fixed_steps::state,
                 maskgit::state>
        of{};
  };
  template <class Rule>
  static typename Rule::state& state_of(state& s) {
    if (!std::holds_alternative<typename Rule::state>(s.of)) s.of.template emplace<typename Rule::state>();
    return std::get<typename Rule::state>(s.of);
  }
  void validate() const {
    std::visit([](const auto& r) { r.validate(); }, rule);
  }
  void begin(state& s, std::int64_t masks) const {
    std::visit([&](const auto& r) { r.begin(state_of<std::remove_cvref_t<decltype(r)>>(s), masks); }, rule);
  }
  void choose(state& s, std::span<const inf::candidate> c, std::span<std::uint8_t> taken) const {
    std::visit([&](const auto& r) { r.choose(state_of<std::remove_cvref_t<decltype(r)>>(s), c, taken); }, rule);
  }
  void fuse(state& s, std::int64_t place, std::span<double> logits, std::int32_t mask) const {
    if (const auto* const r = std::get_if<inf::credit>(&rule)) r->fuse(state_of<inf::credit>(s), place, logits, mask);
  }
};

/// The rule of an entry of expected.json.
template <class Json>
any_rule rule_of(const Json& loop) {
  const std::string kind = loop.at("loop");
  if (kind == "fixed" || kind == "static") return {inf::fixed_steps{loop.at("steps").template get<std::int64_t>()}};
  if (kind == "maskgit") return {maskgit{loop.at("steps").template get<std::int64_t>()}};
  const std::string rule = loop.at("rule");
  const auto number = [&](const char* key) { return loop.at(key).template get<double>(); };
  if (rule == "threshold") return {inf::threshold{number("tau")}};
  if (rule == "one_per_run") return {inf::one_per_run{number("tau"), number("low")}};
  return {inf::credit{number("tau"), number("alpha"), number("gamma"), number("beta")}};
}

}  // namespace diffusion_test
