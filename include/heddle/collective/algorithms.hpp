// heddle/collective/algorithms.hpp: every collective algorithm of heddle, in one list.
#pragma once

#include <heddle/collective/algorithm/bidirectional_ring.hpp>
#include <heddle/collective/algorithm/binomial.hpp>
#include <heddle/collective/algorithm/bruck.hpp>
#include <heddle/collective/algorithm/direct.hpp>
#include <heddle/collective/algorithm/dissemination.hpp>
#include <heddle/collective/algorithm/double_tree.hpp>
#include <heddle/collective/algorithm/dyadic.hpp>
#include <heddle/collective/algorithm/grid_all_to_all.hpp>
#include <heddle/collective/algorithm/hierarchical.hpp>
#include <heddle/collective/algorithm/pairwise.hpp>
#include <heddle/collective/algorithm/pat.hpp>
#include <heddle/collective/algorithm/rabenseifner.hpp>
#include <heddle/collective/algorithm/recursive_doubling.hpp>
#include <heddle/collective/algorithm/recursive_halving.hpp>
#include <heddle/collective/algorithm/reduce_scatter_gather.hpp>
#include <heddle/collective/algorithm/reduce_then_scatter.hpp>
#include <heddle/collective/algorithm/ring.hpp>
#include <heddle/collective/algorithm/scatter_all_gather.hpp>
#include <heddle/collective/algorithm/swing.hpp>
#include <heddle/collective/rounds.hpp>
#include <heddle/core/type_list.hpp>

#include <string>
#include <string_view>

namespace heddle::inline v0 {

/// The algorithms that come with heddle; those with parameters, with usual ones.
using known_algorithms =
    type_list<algo::ring, algo::bidirectional_ring, algo::recursive_doubling, algo::recursive_halving,
              algo::rabenseifner, algo::bruck, algo::pat, algo::swing, algo::hierarchical<2>, algo::hierarchical<4>,
              algo::hierarchical<8>, algo::double_tree<1>, algo::double_tree<8>, algo::dyadic, algo::binomial,
              algo::scatter_all_gather<algo::ring>, algo::scatter_all_gather<algo::recursive_doubling>,
              algo::scatter_all_gather<algo::bruck>, algo::reduce_scatter_gather<algo::ring>,
              algo::reduce_scatter_gather<algo::recursive_halving>, algo::reduce_scatter_gather<algo::pat>,
              algo::reduce_then_scatter, algo::direct, algo::scattered<32>, algo::pairwise, algo::grid_all_to_all,
              algo::hierarchical_all_to_all<2>, algo::hierarchical_all_to_all<4>, algo::hierarchical_all_to_all<8>,
              algo::dissemination>;

namespace algo {
template <int... Extents>
struct torus;  // not in the list: it is for one number of ranks
}

namespace detail {

// Whether an algorithm is heddle's, with all algorithms that it is made of: tests prove its rounds. Those of others are
// checked when they are first called.
template <class A>
inline constexpr bool is_proved = []<class... As>(type_list<As...>) { return contains<A, As...>; }(known_algorithms{});
template <int... Extents>
inline constexpr bool is_proved<algo::torus<Extents...>> = true;
template <int... Extents>
inline constexpr bool is_proved<algo::swing_torus<Extents...>> = true;
template <int Limit>
inline constexpr bool is_proved<algo::scattered<Limit>> = true;
template <int Chunks>
inline constexpr bool is_proved<algo::double_tree<Chunks>> = true;
template <int Most>
inline constexpr bool is_proved<algo::bounded_pat<Most>> = true;
template <int PerNode>
inline constexpr bool is_proved<algo::hierarchical_all_to_all<PerNode>> = true;
template <int G, class Inside, class Between>
inline constexpr bool is_proved<algo::hierarchical<G, Inside, Between>> = is_proved<Inside> && is_proved<Between>;
template <class Scatter>
inline constexpr bool is_proved<algo::reduce_scatter_gather<Scatter>> = is_proved<Scatter>;
template <class Gather>
inline constexpr bool is_proved<algo::scatter_all_gather<Gather>> = is_proved<Gather>;

template <class A, comm_operation What>
consteval bool offers_anywhere() {
  for (int p = 1; p <= 64; ++p)
    if (A::template offers<What>(p)) return true;
  return false;
}

// "algo::ring, algo::bruck": those with rounds for so many ranks that keep order and grouping where it matters.
template <comm_operation What, class... As>
std::string names_of_algorithms(type_list<As...>, int ranks, bool commutative, bool associative) {
  std::string text;
  const auto add = [&]<class A>(type_list<A>) {
    if constexpr (offers_anywhere<A, What>()) {
      if (!A::template offers<What>(ranks)) return;
      constexpr fold_order order = A::template order<What>;
      if (!commutative && order == fold_order::any) return;
      if (!associative && (order == fold_order::any || order == fold_order::rank)) return;
      text += text.empty() ? "algo::" : ", algo::";
      text += std::string_view(A::name);
    }
  };
  (add(type_list<As>{}), ...);
  return text.empty() ? "none" : text;
}

}  // namespace detail

}  // namespace heddle::inline v0
