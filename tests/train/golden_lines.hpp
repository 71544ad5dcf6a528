// tests/train/golden_lines.hpp: reads golden files of lines, each a name and numbers, and computes what their scripts began with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace golden_lines {

class lines {
 public:
  explicit lines(const std::string& path) {
    std::ifstream in(path);
    if (!in) throw std::runtime_error("cannot open " + path);
    for (std::string line; std::getline(in, line);) {
      std::istringstream words(line);
      std::string name;
      words >> name;
      for (double x = 0; words >> x;) values_[name].push_back(x);
    }
  }
  const std::vector<double>& at(const std::string& name) const { return values_.at(name); }

 private:
  std::map<std::string, std::vector<double>> values_;
};

/// The sines that redco_golden.py calls `numbers`.
inline std::vector<double> numbers(int which, std::int64_t count) {
  std::vector<double> all;
  for (std::int64_t i = 0; i < count; ++i) all.push_back(std::sin(1 + 3 * which + 0.7 * static_cast<double>(i)));
  return all;
}
/// The greatest difference relative to the greatest element of the second.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return 1e300;
  double worst = 0, most = 1e-300;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (!(d <= worst)) worst = d;
    most = (std::max)(most, std::abs(b[i]));
  }
  return worst / most;
}

}  // namespace golden_lines
