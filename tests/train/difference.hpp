// tests/train/difference.hpp: compares the numbers of two runs of a trainer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace train_test {

/// The greatest difference relative to the greatest number of `b`; NaN where there is one, 1e300 where the sizes differ or are 0.
inline double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return 1e300;
  double worst = 0, greatest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (std::isnan(d) || d > worst) worst = d;  // a NaN stays
    greatest = (std::max)(greatest, std::abs(b[i]));
  }
  return worst / greatest;
}

/// The same of the tensor that differs most; 1e300 where the names differ or there is none.
inline double relative_difference(const std::map<std::string, std::vector<double>>& a,
                                  const std::map<std::string, std::vector<double>>& b) {
  if (a.size() != b.size() || a.empty()) return 1e300;
  double worst = 0;
  for (const auto& [name, values] : b) {
    const auto found = a.find(name);
    if (found == a.end()) return 1e300;
    const double d = relative_difference(found->second, values);
    if (std::isnan(d) || d > worst) worst = d;
  }
  return worst;
}

}  // namespace train_test
