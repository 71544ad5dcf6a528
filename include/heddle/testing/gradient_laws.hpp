// heddle/testing/gradient_laws.hpp: laws of gradient layouts: duals, and adjoint moves.
#pragma once

#include <heddle/layout/gradient.hpp>
#include <heddle/testing/tensor_laws.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace testing {

/// Law 6: the dual of the dual is the layout itself. `static_assert(dual_is_an_involution<L>);`
template <layout_like L>
inline constexpr bool dual_is_an_involution = std::is_same_v<dual<dual<L>>, L>;

namespace detail {

// Whether the rank's part counts in an inner product: of ranks that hold one value as one computation, the first.
template <class L>
bool counts_in_product(const L& layout, int rank) {
  const auto extents = layout.mesh().extents();
  for (std::size_t a = 0; a < extents.size(); ++a)
    if (L::table.use[a].role == axis_role::identical && hd::mesh_coordinate(extents, a, rank) != 0) return false;
  return true;
}

template <class L, std::int64_t... E>
[[gnu::noinline]] double inner_product(const L& layout, const shape<E...>& s, const std::vector<std::vector<double>>& x,
                                       const std::vector<std::vector<double>>& y) {
  double sum = 0;
  for (std::size_t r = 0; r < x.size(); ++r)
    if (counts_in_product(layout, static_cast<int>(r)))
      for_each_held(layout, s, static_cast<int>(r), [&](std::int64_t at, std::int64_t) {
        sum += x[r][static_cast<std::size_t>(at)] * y[r][static_cast<std::size_t>(at)];
      });
  return sum;
}

}  // namespace detail

/// Law 6, adjointness, for one pair: with A the redistribution from `From` to `To`, and A' the one from `dual<To>` to
/// `dual<From>`, <y, A x> equals <A' y, x> for made-up x and y. The inner product is what a gradient means: ranks that hold
/// copies of a value hold parts of its gradient, so all ranks' products are summed; identical values count once.
template <layout_like To, layout_like From, std::int64_t... E>
[[nodiscard]] report check_adjoint(const From& from, const shape<E...>& s, std::uint64_t seed = 1) {
  using mesh_type = typename From::mesh_type;
  using world_type = counting::world<mesh_type>;
  using from_dual = dual<From>;
  using to_dual = dual<To>;
  const mesh_type& mesh = from.mesh();
  const To to{mesh};
  const to_dual above{mesh};
  const from_dual below{mesh};
  const auto wrong = [&](std::string_view what) {
    return failure(text_of({"seed ", seed, ", ", to_string(from), " -> ", to_string(to), ", backward ",
                            to_string(above), " -> ", to_string(below), ", shape ", to_string(s), ": ", what}));
  };
  std::vector<std::vector<double>> x, y, ax, aty;
  for (int r = 0; r < mesh.size(); ++r) {
    x.push_back(detail::values(some_part(from, s, r, seed).elements()));
    y.push_back(detail::values(some_part(above, s, r, seed + 1).elements()));
  }
  auto [found, thrown] = detail::on_counting_world<mesh_type>(
      mesh,
      [&](world_type& w) { return detail::values(redistribute<To>(some_part(from, s, w.rank(), seed), w).elements()); },
      [&](world_type& w) {
        return detail::values(redistribute<from_dual>(some_part(above, s, w.rank(), seed + 1), w).elements());
      });
  if (thrown) return wrong(*thrown);
  for (detail::moved_part& f : found) {
    ax.push_back(std::move(f.copied));
    aty.push_back(std::move(f.moved));
  }
  const double forward = detail::inner_product(to, s, ax, y);
  const double backward = detail::inner_product(from, s, x, aty);
  if (forward != backward)  // whole numbers: exact
    return wrong(text_of({"<y, A x> is ", detail::digits(forward), ", <A' y, x> is ", detail::digits(backward)}));
  return {true, {}, 1};
}

/// `check_adjoint` for every pair of these layouts.
template <layout_like... Ls, mesh_like Mesh, std::int64_t... E>
[[nodiscard]] report check_adjoints(type_list<Ls...>, const Mesh& mesh, const shape<E...>& s, std::uint64_t seed = 1) {
  report found;
  [[maybe_unused]] const auto from = [&]<class From>(std::type_identity<From>) {
    ((found.ok() ? void(found += check_adjoint<Ls>(From{mesh}, s, seed)) : void()), ...);
  };
  (from(std::type_identity<Ls>{}), ...);
  if (found.cases == 0 && found.ok()) return failure("no pair of layouts was given", 0);
  return found;
}

}  // namespace testing
}  // namespace heddle::inline v0
