// heddle/model/recompute_plan.hpp: the set of saved activations, by name, that are recomputed instead of kept.
#pragma once

#include <heddle/core/error.hpp>

#include <array>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>

namespace heddle::inline v0::model {

/// What a transformer saves from forward to backward, besides the input of each block, which is always kept.
enum class activation {
  ln_1_out,  ///< with the statistics of its rows, as of the other norms
  attn_qkv,  ///< queries, keys and values
  attn_out,  ///< the heads' outputs, with the log-sum-exp of their scores; the scores themselves are never kept
  mid,       ///< the residual stream between attention and MLP
  ln_2_out,
  mlp_hidden,     ///< before the GELU
  mlp_activated,  ///< after it
  ln_f_out,       ///< from here on: behind the last block
  head_logits,
};
inline constexpr std::array<std::string_view, 9> activation_names{
    "ln_1.out", "attn.qkv", "attn.out", "mid", "ln_2.out", "mlp.hidden", "mlp.activated", "ln_f.out", "head.logits"};

/// Some of them.
struct activation_set {
  unsigned bits = 0;
  constexpr bool has(activation a) const noexcept { return (bits >> static_cast<unsigned>(a) & 1u) != 0; }
  constexpr bool any() const noexcept { return bits != 0; }
  friend constexpr activation_set operator|(activation_set a, activation_set b) noexcept { return {a.bits | b.bits}; }
  friend constexpr activation_set operator&(activation_set a, activation_set b) noexcept { return {a.bits & b.bits}; }
  friend constexpr bool operator==(activation_set, activation_set) = default;
};
inline constexpr activation_set block_activations{(1u << 7) - 1};  ///< of a block
inline constexpr activation_set end_activations{3u << 7};          ///< of what follows the last block

/// The activation of this name; none if there is no such name.
constexpr activation_set activation_named(std::string_view name) noexcept {
  for (std::size_t i = 0; i < activation_names.size(); ++i)
    if (activation_names[i] == name) return {1u << i};
  return {};
}

/// Which activations a stage drops after forward and computes again in backward.
struct recompute_plan {
  activation_set named{};  ///< in every block, and behind the last
  int every = 0;  ///< all of blocks k-1, 2k-1, ... of the model: of each of them only the input is kept; 0: none

  constexpr activation_set of_block(int layer) const noexcept {
    if (every > 0 && (layer + 1) % every == 0) return block_activations;
    return named & block_activations;
  }
  constexpr activation_set of_end() const noexcept { return named & end_activations; }
  constexpr bool any() const noexcept { return named.any() || every > 0; }
  friend constexpr bool operator==(const recompute_plan&, const recompute_plan&) = default;
};

/// `"none"`, `"full"` (all of every block), `"every 2"` and names, separated by commas: `"every 2,head.logits"`.
/// Errors: `config_error` naming what is not known and what would be.
inline recompute_plan parse_recompute(std::string_view text) {
  recompute_plan plan;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view one = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    if (one == "none") continue;
    constexpr std::string_view every = "every ";
    if (one == "full") {
      plan.every = 1;
    } else if (one.substr(0, every.size()) == every) {
      const char* const end = one.data() + one.size();
      const auto [last, error] = std::from_chars(one.data() + every.size(), end, plan.every);
      if (error != std::errc{} || last != end || plan.every < 1) {
        std::string message = "heddle: recompute \"";
        message += one;
        message += "\": every how many blocks? Write \"every 2\"";
        throw config_error(message);
      }
    } else {
      const activation_set known = activation_named(one);
      if (!known.any()) {
        std::string message = "heddle: recompute \"";
        message += one;
        message += "\" names no saved activation; there are none, full, every <k>";
        for (const std::string_view name : activation_names) (message += ", ") += name;
        throw config_error(message);
      }
      plan.named = plan.named | known;
    }
  }
  return plan;
}

/// In the same form.
inline std::string to_string(const recompute_plan& plan) {
  std::string text;
  const auto add = [&](std::string_view part) {
    if (!text.empty()) text += ',';
    text += part;
  };
  if (plan.every == 1) add("full");
  if (plan.every > 1) add("every " + std::to_string(plan.every));
  for (std::size_t i = 0; i < activation_names.size(); ++i)
    if (plan.named.has(static_cast<activation>(i))) add(activation_names[i]);
  return text.empty() ? "none" : text;
}

/// What the settings of a stage's memory say is computed again.
template <class Settings>
constexpr recompute_plan recompute_plan_of(const Settings& s) noexcept {
  if constexpr (requires { s.again; })
    return s.again;
  else
    return {};
}

}  // namespace heddle::inline v0::model
