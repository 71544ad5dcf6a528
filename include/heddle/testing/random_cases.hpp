// heddle/testing/random_cases.hpp: random meshes and shapes, and smallest failing cases.
#pragma once

#include <heddle/core/random.hpp>
#include <heddle/core/shape.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/testing/report.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace heddle::inline v0 {
namespace testing {

/// Which cases are drawn. The same seed draws the same cases on every machine.
struct case_options {
  std::uint64_t seed = 1;
  std::int64_t cases = 100;
  int most_per_axis = 8;              ///< ranks along one axis
  int most_ranks = 16;                ///< ranks of the mesh
  std::int64_t most_extent = 64;      ///< of one dimension, from 0 on
  std::int64_t most_elements = 4096;  ///< of the tensor
};

namespace detail {

template <std::size_t Axes, std::size_t Rank>
struct drawn_case {
  std::array<int, Axes> ranks{};
  std::array<std::int64_t, Rank> extents{};
};

template <mesh_like Mesh, class... Tags>
constexpr std::array<int, sizeof...(Tags)> fixed_ranks(type_list<Tags...>) {
  return {Mesh::template axis_of<Tags>::fixed_size...};
}
template <mesh_like Mesh>
Mesh mesh_of(const std::array<int, Mesh::rank>& ranks) {
  if constexpr (Mesh::is_static)
    return Mesh{};
  else
    return Mesh::from_extents(ranks);
}

template <mesh_like Mesh, std::size_t Rank>
drawn_case<Mesh::rank, Rank> draw(const case_options& options, std::int64_t number) {
  const counter_random random(options.seed, static_cast<std::uint64_t>(number));
  std::uint64_t next = 0;
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random.integer(next++) % static_cast<std::uint64_t>(n < 1 ? 1 : n));
  };
  drawn_case<Mesh::rank, Rank> c;
  constexpr auto fixed = fixed_ranks<Mesh>(typename Mesh::tags{});
  std::int64_t ranks = 1;
  for (const int f : fixed) ranks *= f == dynamic ? 1 : f;
  const auto first =
      static_cast<std::size_t>(below(static_cast<std::int64_t>(Mesh::rank)));  // whose turn it is to be large
  for (std::size_t i = 0; i < Mesh::rank; ++i) {
    const std::size_t a = (first + i) % Mesh::rank;
    c.ranks[a] = fixed[a];
    if (fixed[a] != dynamic) continue;
    const std::int64_t room = options.most_ranks / ranks;
    c.ranks[a] = static_cast<int>(1 + below(room < options.most_per_axis ? room : options.most_per_axis));
    ranks *= c.ranks[a];
  }
  std::int64_t elements = 1;
  for (std::size_t i = 0, start = static_cast<std::size_t>(below(static_cast<std::int64_t>(Rank))); i < Rank; ++i) {
    std::int64_t& e = c.extents[(start + i) % Rank];
    const std::int64_t room = options.most_elements / (elements < 1 ? 1 : elements);
    const std::int64_t most = room < options.most_extent ? room : options.most_extent;
    // Half of the extents are beside a multiple of the ranks, where cuts change.
    const std::int64_t beside = ranks * below(4) + below(3) - 1;
    e = below(2) == 0 && beside >= 0 && beside <= most ? beside : below(most + 1);
    elements *= e;
  }
  return c;
}

}  // namespace detail

/// Checks `law(mesh, shape, seed) -> report` in random cases: meshes of type `Mesh` (its dynamic axes are drawn) and shapes
/// of `Rank` dimensions. In the first case that fails, ranks and extents are made smaller as long as it still does; the
/// report names the seed, the smallest mesh and shape, and what was wrong. A law that throws
/// fails, and so does one that looked at no case at all.
template <mesh_like Mesh, std::size_t Rank, class Law>
[[nodiscard]] report for_random_cases(const case_options& options, Law&& law) {
  using drawn = detail::drawn_case<Mesh::rank, Rank>;
  report all;
  const auto holds = [&](const drawn& c, std::int64_t number) -> report {
    try {
      return law(detail::mesh_of<Mesh>(c.ranks), make_shape(c.extents),
                 options.seed + static_cast<std::uint64_t>(number));
    } catch (...) {
      return failure(detail::thrown_text());
    }
  };
  for (std::int64_t number = 0; number < options.cases; ++number) {
    drawn now = detail::draw<Mesh, Rank>(options, number);
    report found = holds(now, number);
    all.cases += found.cases;
    if (found.ok()) continue;
    constexpr auto fixed = detail::fixed_ranks<Mesh>(typename Mesh::tags{});
    int tries = 200;
    const auto shrink = [&](int least, auto& value, auto smaller) {
      if (smaller < least || smaller >= value || tries-- <= 0) return false;
      const auto before = std::exchange(value, smaller);
      report r = holds(now, number);
      if (r.ok()) {
        value = before;
        return false;
      }
      found = std::move(r);
      return true;
    };
    for (bool again = true; again && tries > 0;) {
      again = false;
      for (std::size_t a = 0; a < Mesh::rank; ++a)
        if (fixed[a] == dynamic)
          again = shrink(1, now.ranks[a], 1) || shrink(1, now.ranks[a], now.ranks[a] / 2) ||
                  shrink(1, now.ranks[a], now.ranks[a] - 1) || again;
      for (std::int64_t& e : now.extents)
        again = shrink(0, e, std::int64_t{0}) || shrink(0, e, std::int64_t{1}) || shrink(0, e, e / 2) ||
                shrink(0, e, e - 1) || again;
    }
    std::string text = "seed ";
    text += std::to_string(options.seed);
    text += ", case ";
    text += std::to_string(number);
    text += ", made smaller: mesh ";
    text += to_string(detail::mesh_of<Mesh>(now.ranks));
    text += ", shape ";
    text += to_string(make_shape(now.extents));
    text += ": ";
    text += found.what;
    return failure(std::move(text), all.cases);
  }
  if (options.cases <= 0) return failure("no case was asked for", 0);
  if (all.cases == 0) return failure("no case was checked: the law left every drawn one out", 0);
  return all;
}

}  // namespace testing
}  // namespace heddle::inline v0
