// heddle/train/mixed_types.hpp: checks a `precision`, and addresses stochastic rounding.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/random.hpp>
#include <heddle/train/precision.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::train {

namespace detail {

// The types below carry what the compiler prints next to the advice.
template <class T, class Part>
inline constexpr bool scalar_holds = heddle::v0::detail::holds_exactly<Part, T>;
template <class T>
inline constexpr bool scalar_is_trained = !std::is_same_v<T, f16>;
template <class T, class Master>
inline constexpr bool steps_are_kept = !std::is_same_v<T, Master>;
template <class Arithmetic, class Rounding>
inline constexpr bool is_rounded_stochastically_from =
    !std::is_same_v<Rounding, rounding::stochastic> || std::is_same_v<Arithmetic, float>;
// Checks one after the other and stops at the first mistake, so that one mistake gives one error.
template <class T, class W, class G, class M, class Arithmetic, class WeightRounding, class MomentRounding>
constexpr bool mixed_types_checked() {
  if constexpr (std::is_same_v<T, f16>)
    static_assert(
        scalar_is_trained<T>,
        "heddle: a model of f16 would need its loss scaled, which heddle does not do: gradients below 2^-24 would be "
        "lost; take bf16, float or double");
  else if constexpr (is_half_precision<T> && std::is_same_v<M, W> && std::is_same_v<WeightRounding, rounding::nearest>)
    static_assert(steps_are_kept<T, M>,
                  "heddle: weights of bf16 that are their own masters lose steps of less than half a last place: leave "
                  "masters_in<bf16> out (masters are float then), or take weights_in<bf16, rounding::stochastic>");
  else if constexpr (!scalar_holds<T, W>)
    static_assert(scalar_holds<T, W>,
                  "heddle: weights_in<W> is wider than the model's scalar, in which it computes: take a model of wider "
                  "elements, or masters_in<M> for more bits in the optimizer");
  else if constexpr (!scalar_holds<sum_of_type<T>, G>)
    static_assert(
        scalar_holds<sum_of_type<T>, G>,
        "heddle: gradients_in<G> is wider than the model's scalar, in which gradients are computed and added up");
  else if constexpr (!scalar_holds<M, W>)
    static_assert(
        scalar_holds<M, W>,
        "heddle: masters_in<M> is narrower than the weights, which are of the model's scalar if weights_in<W> is "
        "not given: master weights are what weights are rounded from; give them at least as many bits");
  else
    static_assert(is_rounded_stochastically_from<Arithmetic, WeightRounding> &&
                      is_rounded_stochastically_from<Arithmetic, MomentRounding>,
                  "heddle: stochastic rounding is from float, and the optimizer computes in double here: take masters "
                  "and moments "
                  "of float or bf16");
  return true;
}

template <class T, class Precision>
struct products_are_of {
  static constexpr bool value = !Precision::rounds_products || std::is_same_v<T, float>;
};
template <class T, class Precision>
struct scaled_products_are_of {
  static constexpr bool value = !Precision::scales_products || std::is_same_v<T, float>;
};
// In a function: clang takes a class whose own assertion failed for broken, and says so at every use.
template <class T, class Precision>
constexpr bool products_checked() {
  static_assert(products_are_of<T, Precision>::value,
                "heddle: products_in<bf16> is of models whose scalar is float, in which products are added up");
  static_assert(scaled_products_are_of<T, Precision>::value,
                "heddle: products_in<float8> is of models whose scalar is float, in which products are added up");
  return true;
}
// Elements of a run of neighbours in a whole parameter, where they lie in the flat buffer and in that parameter.
struct rounded_run {
  std::int64_t begin, end;
  std::int64_t in_whole;
  std::uint64_t parameter;
};

// What the bits of stochastic rounding are drawn for. A stream of its own for each step (below 2^40), parameter (below 2^22)
// and use; streams below 2^24 are those of the initial weights.
enum class rounded : std::uint64_t { weight, moment };  // and the numbers behind `moment`: of further moments
constexpr compute::stochastic rounding_of(std::uint64_t seed, std::int64_t step, std::uint64_t parameter, rounded what,
                                          std::int64_t index) {
  const std::uint64_t stream =
      (static_cast<std::uint64_t>(step) << 24) | (parameter << 2) | static_cast<std::uint64_t>(what);
  return {counter_random(seed, stream), static_cast<std::uint64_t>(index)};
}

}  // namespace detail

}  // namespace heddle::inline v0::train
