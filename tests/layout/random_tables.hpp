// tests/layout/random_tables.hpp: layouts made at random, as values.
#pragma once

#include <heddle/layout/placement.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>

// Operators 0 and 1; policies balanced, zigzag and ragged<2, 1>, or the first of them.
template <std::size_t Axes>
heddle::detail::axis_table<Axes> random_table(int dims, bool varying, std::mt19937_64& random, int policy_count = 3) {
  namespace hd = heddle;
  using hd::axis_role, hd::detail::axis_table, hd::detail::axis_use;
  using hd::detail::functions_of;
  static constexpr const hd::detail::split_functions* policies[]{
      &functions_of<hd::split::balanced>, &functions_of<hd::split::zigzag>, &functions_of<hd::split::ragged<2, 1>>};
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
  axis_table<Axes> t;
  std::array<std::size_t, Axes> order{};
  for (std::size_t a = 0; a < Axes; ++a) order[a] = a;
  std::shuffle(order.begin(), order.end(), random);
  std::array<int, 12> levels{};
  const int summed_by = below(2);
  for (const std::size_t a : order) {
    const int choice = below(7);
    axis_use& u = t.use[a];
    if (choice < 3 && dims > 0) {
      const int d = below(dims), p = (std::min)(policy_count - 1, (std::max)(0, below(5) - 2));
      u = {axis_role::sharded, d, levels[static_cast<std::size_t>(d)]++, -1, p, policies[p]};
    } else if (choice == 3) {
      u = {axis_role::partial, -1, -1, summed_by};
    } else if (choice == 4 && below(3) == 0) {
      u = {axis_role::identical};
    } else if (choice == 5 && varying && below(4) == 0) {
      u = {axis_role::varying};
    }
  }
  return t;
}
