// heddle/mesh/folding.hpp: two meshes over the same ranks as one mesh, of whose axes both are made.
#pragma once

#include <heddle/core/type_list.hpp>
#include <heddle/mesh/mesh.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {

/// Tag of an axis of a folded mesh: the part that axis `A` of the first mesh and axis `B` of the second have in common.
template <class A, class B>
struct both {};

namespace detail {

enum class fold_problem : unsigned char { none, shared_axes, sizes, factors };

template <std::size_t Shared, std::size_t N, std::size_t M>
struct fold_extents {
  static constexpr std::size_t n = N - Shared, m = M - Shared;
  std::array<int, Shared + n * m> extents{};
  fold_problem problem = fold_problem::none;
};

// The common refinement of two factorisations of the same ranks. The first `Shared` axes belong to both; of the others axis i of
// one and j of the other have extents[Shared + i * m + j] ranks in common. From the fastest axis on, whatever is left of the two
// axes at hand must divide.
template <std::size_t Shared, std::size_t N, std::size_t M>
constexpr fold_extents<Shared, N, M> fold_of(const std::array<int, N>& a, const std::array<int, M>& b) {
  fold_extents<Shared, N, M> f;
  f.extents.fill(1);
  for (std::size_t i = 0; i < Shared; ++i) {
    f.extents[i] = a[i];
    if (a[i] != b[i]) f.problem = fold_problem::shared_axes;
  }
  if (f.problem == fold_problem::none && mesh_size(a) != mesh_size(b)) f.problem = fold_problem::sizes;
  if (f.problem != fold_problem::none) return f;
  std::size_t i = N, j = M;
  int left = 1, right = 1;
  while (true) {
    while (left == 1 && i > Shared) left = a[--i];
    while (right == 1 && j > Shared) right = b[--j];
    if (left == 1 || right == 1) return f;  // both are: the sizes agree
    const int common = left < right ? left : right;
    if ((left < right ? right : left) % common != 0) {
      f.problem = fold_problem::factors;
      return f;
    }
    f.extents[Shared + (i - Shared) * f.m + (j - Shared)] = common;
    left /= common;
    right /= common;
  }
}

template <bool Ok, class First, class Second>
inline constexpr bool meshes_fold = Ok;

template <class... Lists>
struct axes_joined {
  using type = type_list<>;
};
template <class... A>
struct axes_joined<type_list<A...>> {
  using type = type_list<A...>;
};
template <class... A, class... B, class... More>
struct axes_joined<type_list<A...>, type_list<B...>, More...> : axes_joined<type_list<A..., B...>, More...> {};
template <class List>
struct mesh_along;
template <class... A>
struct mesh_along<type_list<A...>> {
  using type = mesh<A...>;
};

template <class First, class Second, class Firsts, class Seconds>
struct fold_types;
template <class First, class Second, class... A, class... B>
struct fold_types<First, Second, type_list<A...>, type_list<B...>> {
  static constexpr std::size_t in_both = (std::size_t{0} + ... + (Second::template has<A> ? 1u : 0u));
  // As many axes as both have lead both, in the same order.
  static constexpr bool shared_lead = ((!Second::template has<A> || (First::template position<A> < in_both)) && ...) &&
                                      ((!First::template has<B> || (Second::template position<B> < in_both)) && ...) &&
                                      [] {
                                        bool same = true;
                                        ((same = same &&
                                                 [] {
                                                   if constexpr (Second::template has<A>)
                                                     return First::template position<A> == Second::template position<A>;
                                                   else
                                                     return true;
                                                 }()),
                                         ...);
                                        return same;
                                      }();
  static constexpr std::size_t shared = shared_lead ? in_both : 0;
  static constexpr bool is_static = First::is_static && Second::is_static;
  static constexpr fold_problem problem = [] {
    if constexpr (!shared_lead)
      return fold_problem::shared_axes;
    else if constexpr (is_static)
      return fold_of<shared>(First::extents(), Second::extents()).problem;
    else
      return fold_problem::none;
  }();
  static_assert(meshes_fold<(problem != fold_problem::shared_axes), First, Second>,
                "heddle: fold: axes that both meshes have, such as pp, must come first in both, in the same order and "
                "with as many ranks, so that their groups are the same ranks");
  static_assert(meshes_fold<(problem != fold_problem::sizes), First, Second>,
                "heddle: fold: two meshes over the same ranks must have as many ranks");
  static_assert(
      meshes_fold<(problem != fold_problem::factors), First, Second>,
      "heddle: fold: groups of the two meshes overlap in part: from the last axis on, an axis of one mesh must "
      "be a factor of the other's, or the other way round, as 2 x 4 and 4 x 2 are and 2 x 3 and 3 x 2 are not");

  template <std::size_t At, class Tag>
  static constexpr auto axis_at() {
    if constexpr (!is_static || problem != fold_problem::none) {
      return type_list<axis<Tag>>{};
    } else {
      constexpr int extent = fold_of<shared>(First::extents(), Second::extents()).extents[At];
      return type_list<axis<Tag, extent>>{};
    }
  }
  template <class X, class Y>
  static constexpr auto pair() {
    if constexpr (First::template has<Y> || Second::template has<X>) {
      return type_list<>{};
    } else {
      constexpr std::size_t i = First::template position<X> - shared, j = Second::template position<Y> - shared;
      return axis_at<shared + i * (sizeof...(B) - shared) + j, both<X, Y>>();
    }
  }
  template <class X>
  static constexpr auto row() {
    if constexpr (Second::template has<X>)
      return axis_at<First::template position<X>, X>();
    else
      return typename axes_joined<decltype(pair<X, B>())...>::type{};
  }
  using type = typename mesh_along<typename axes_joined<decltype(row<A>())...>::type>::type;
};

}  // namespace detail

/// The mesh of whose axes both meshes are made: those that both have, as they are, and a `both<A, B>` for each other pair. Its ranks have
/// the numbers that they have in both. Where both are static the extents are, too.
/// Errors: does not compile where axes that both have do not come first in both, or static extents do not fit.
/// Source: Liu et al. 2025, arXiv:2504.14960 (MoE Parallel Folding).
template <mesh_like First, mesh_like Second>
using folded_mesh = typename detail::fold_types<First, Second, typename First::tags, typename Second::tags>::type;

/// The two meshes as one: `fold(mesh<axis<pp>, axis<dp>, axis<tp>>{2, 2, 4}, mesh<axis<pp>, axis<edp>, axis<ep>>{2, 1, 8})`.
/// Errors: `mesh_error` where axes that both have differ in extent, the meshes in their number of ranks, or groups overlap in part.
template <mesh_like First, mesh_like Second>
constexpr folded_mesh<First, Second> fold([[maybe_unused]] const First& first, [[maybe_unused]] const Second& second) {
  using types = detail::fold_types<First, Second, typename First::tags, typename Second::tags>;
  using result = folded_mesh<First, Second>;
  if constexpr (types::is_static) {
    return result{};
  } else {
    const auto f = detail::fold_of<types::shared>(first.extents(), second.extents());
    if (f.problem != detail::fold_problem::none)
      throw mesh_error(
          "heddle: fold: mesh " + to_string(first) + " and mesh " + to_string(second) +
          (f.problem == detail::fold_problem::shared_axes ? " differ along an axis that both have"
           : f.problem == detail::fold_problem::sizes
               ? " have " + std::to_string(first.size()) + " and " + std::to_string(second.size()) + " ranks"
               : " have groups that overlap in part: from the last axis on, an axis of one must be a "
                 "factor of the other's, or the other way round"));
    return result::from_extents(f.extents);
  }
}

}  // namespace heddle::inline v0
