// heddle/plan/kendall_tau.hpp: Kendall's rank correlation of two lists of numbers.
#pragma once

#include <heddle/core/error.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace heddle::inline v0::plan {

/// Kendall's tau-b of two lists: 1 if all pairs have the same order in both, -1 if all have the other; pairs that are equal
/// in one list count for neither. 0 where one list has only equal numbers. Time: n^2.
/// Errors: `config_error` for lists of different lengths or fewer than two numbers.
/// Source: Kendall 1945, The treatment of ties in ranking problems, Biometrika 33 (3).
inline double kendall_tau(std::span<const double> a, std::span<const double> b) {
  if (a.size() != b.size() || a.size() < 2)
    throw config_error("heddle: kendall_tau takes two lists of as many numbers, two or more; got " +
                       std::to_string(a.size()) + " and " + std::to_string(b.size()));
  const auto order = [](double x, double y) { return (x > y) - (x < y); };
  std::int64_t same = 0, in_a = 0, in_b = 0;  // same less other; pairs that differ in a, in b
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const int of_a = order(a[i], a[j]), of_b = order(b[i], b[j]);
      same += of_a * of_b;
      in_a += of_a != 0;
      in_b += of_b != 0;
    }
  if (in_a == 0 || in_b == 0) return 0;
  return static_cast<double>(same) / std::sqrt(static_cast<double>(in_a) * static_cast<double>(in_b));
}

}  // namespace heddle::inline v0::plan
