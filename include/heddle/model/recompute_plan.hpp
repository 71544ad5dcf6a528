// heddle/model/recompute_plan.hpp: the activations, by name, that are recomputed.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
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
/// The names of the kinds of activations, in the order of `activation`.
inline constexpr std::array<std::string_view, 9> activation_names{
    "ln_1.out", "attn.qkv", "attn.out", "mid", "ln_2.out", "mlp.hidden", "mlp.activated", "ln_f.out", "head.logits"};

/// A set of saved activations: of a transformer by `activation`, of layers of one's own by `own_activations`.
struct activation_set {
  unsigned bits = 0;
  constexpr bool has(activation a) const noexcept { return (bits >> static_cast<unsigned>(a) & 1u) != 0; }
  constexpr bool any() const noexcept { return bits != 0; }
  friend constexpr activation_set operator|(activation_set a, activation_set b) noexcept { return {a.bits | b.bits}; }
  friend constexpr activation_set operator&(activation_set a, activation_set b) noexcept { return {a.bits & b.bits}; }
  friend constexpr bool operator==(activation_set, activation_set) = default;
};
namespace detail {
inline constexpr unsigned first_own_activation = 9, most_own_activations = 23;
inline constexpr unsigned of_own_layers = ~0u << first_own_activation;
}  // namespace detail
/// All activations of a block.
inline constexpr activation_set block_activations{((1u << 7) - 1) | detail::of_own_layers};
/// The activations of what follows the last block.
inline constexpr activation_set end_activations{(3u << 7) | detail::of_own_layers};

/// The names of the activations that layers of one's own call by their tags, in the order in which they are met.
struct own_activations {
  std::array<std::string_view, detail::most_own_activations> names{};
  unsigned count = 0;

  /// The activation of this name, with which it begins to have a place. Errors: `config_error` for more than 23.
  constexpr activation_set named(std::string_view name) {
    const activation_set known = find(name);
    if (known.any()) return known;
    if (count == names.size())
      throw config_error("heddle: the layers of a model have more than 23 activations that are called by their tags");
    names[count] = name;
    return {1u << (detail::first_own_activation + count++)};
  }
  /// None if there is no such name.
  constexpr activation_set find(std::string_view name) const noexcept {
    for (unsigned i = 0; i < count; ++i)
      if (names[i] == name) return {1u << (detail::first_own_activation + i)};
    return {};
  }
};

namespace detail {
// None if there is no such name.
constexpr activation_set activation_if_named(std::string_view name) noexcept {
  for (std::size_t i = 0; i < activation_names.size(); ++i)
    if (activation_names[i] == name) return {1u << i};
  return {};
}
[[noreturn]] HEDDLE_INLINE void refuse_activation_name(std::string_view name);
}  // namespace detail

/// The activation of this name. Errors: `config_error` with the names that there are, if there is no such name; in a constant
/// expression that does not compile.
constexpr activation_set activation_named(std::string_view name) {
  const activation_set known = detail::activation_if_named(name);
  if (!known.any()) detail::refuse_activation_name(name);
  return known;
}

/// A share of rows: of n rows floor(n * part / of).
struct row_share {
  int part = 0, of = 1;
  constexpr bool any() const noexcept { return part > 0; }
  constexpr std::int64_t of_rows(std::int64_t rows) const noexcept { return rows * part / of; }
  friend constexpr bool operator==(row_share, row_share) = default;
};

/// Which activations a stage drops after forward and computes again in backward.
struct recompute_plan {
  activation_set named{};  ///< in every block, and behind the last
  int every = 0;  ///< all of blocks k-1, 2k-1, ... of the model: of each of them only the input is kept; 0: none
  row_share tail{};  ///< of `attn.out`, where it is dropped, the last rows of a rank are kept all the same
  int first = 0;     ///< all of blocks 0 ... first-1 of the model, the form of Galvatron's plans (arXiv:2211.13878)

  /// Whether of this block only the input is kept.
  constexpr bool all_of_block(int layer) const noexcept {
    return layer < first || (every > 0 && (layer + 1) % every == 0);
  }
  constexpr activation_set of_block(int layer) const noexcept {
    return all_of_block(layer) ? block_activations : named & block_activations;
  }
  constexpr activation_set of_end() const noexcept { return named & end_activations; }
  constexpr bool any() const noexcept { return named.any() || every > 0 || first > 0; }
  /// Whether outputs of attention are dropped in some block.
  constexpr bool drops_attention() const noexcept {
    return every > 0 || first > 0 || named.has(activation::attn_out);
  }
  /// Whether this block keeps a tail of them.
  constexpr bool keeps_tail(int layer) const noexcept { return tail.any() && of_block(layer).has(activation::attn_out); }
  friend constexpr bool operator==(const recompute_plan&, const recompute_plan&) = default;
};

/// `"none"`, `"full"` (all of every block), `"every 2"`, `"first 20"` (all of blocks 0 to 19), `"keep-tail 1/2"` and names, separated by
/// commas: `"every 2,head.logits"`. `own`: what else the model's layers have. Errors: `config_error` naming what is not known and what would be.
HEDDLE_INLINE recompute_plan parse_recompute(std::string_view text, const own_activations& own = {});

/// A plan as text, in the form that is read.
HEDDLE_INLINE std::string to_string(const recompute_plan& plan, const own_activations& own = {});

/// What the settings of a stage's memory say is computed again.
template <class Settings>
constexpr recompute_plan recompute_plan_of(const Settings& s) noexcept {
  if constexpr (requires { s.again; })
    return s.again;
  else
    return {};
}

}  // namespace heddle::inline v0::model

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/model/impl/recompute_plan.hpp>
#endif
