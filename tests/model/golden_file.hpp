// tests/model/golden_file.hpp: reads tests/golden/*_golden.bin, and compares with what is in it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace model_test {

/// The greatest difference of two vectors relative to the greatest element of the second.
template <class A, class B>
double relative_error(const A& a, const B& b) {
  if (a.size() != b.size()) return 1e300;
  double worst = 0, greatest = 1e-300;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (std::isnan(difference) || difference > worst) worst = difference;  // a NaN stays
    greatest = (std::max)(greatest, std::abs(static_cast<double>(b[i])));
  }
  return worst / greatest;
}

/// A file of tests/golden; its format is in the README there.
class golden_file {
 public:
  struct record {
    std::vector<std::int64_t> shape;
    std::vector<double> values;
  };
  explicit golden_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error("cannot open " + path);
    std::array<char, 16> magic{};
    in.read(magic.data(), 16);
    if (std::string(magic.data(), 16) != "heddle-golden-1\n") throw std::runtime_error(path + " is no golden file");
    const auto records = read<std::int32_t>(in);
    for (std::int32_t r = 0; r < records; ++r) {
      const auto kind = read<std::int32_t>(in);
      std::string name(static_cast<std::size_t>(read<std::int32_t>(in)), '\0');
      in.read(name.data(), static_cast<std::streamsize>(name.size()));
      record rec;
      rec.shape.resize(static_cast<std::size_t>(read<std::int32_t>(in)));
      std::size_t n = 1;
      for (std::int64_t& e : rec.shape) {
        e = read<std::int64_t>(in);
        n *= static_cast<std::size_t>(e);
      }
      for (std::size_t i = 0; i < n; ++i)
        rec.values.push_back(kind == 0   ? static_cast<double>(read<std::int32_t>(in))
                             : kind == 1 ? static_cast<double>(read<float>(in))
                                         : read<double>(in));
      records_.emplace(std::move(name), std::move(rec));
    }
    if (!in) throw std::runtime_error(path + " ends early");
  }
  const record& at(const std::string& name) const { return records_.at(name); }
  const std::vector<double>& values(const std::string& name) const { return at(name).values; }
  std::vector<std::int32_t> ids(const std::string& name) const {
    std::vector<std::int32_t> v;
    for (const double d : values(name)) v.push_back(static_cast<std::int32_t>(d));
    return v;
  }

 private:
  template <class V>
  static V read(std::istream& in) {
    V v{};
    in.read(reinterpret_cast<char*>(&v), sizeof v);
    return v;
  }
  std::map<std::string, record> records_;
};

}  // namespace model_test
