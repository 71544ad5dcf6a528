// tests/model/support.hpp: random numbers, a group of one rank, central differences and the golden file.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/random.hpp>
#include <heddle/model/gpt2.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace model_test {

namespace hd = heddle;
namespace md = heddle::model;

inline std::vector<double> random_vector(std::int64_t n, std::uint64_t stream, double scale = 1.0, double mean = 0.0) {
  const hd::counter_random random(2024, stream);
  std::vector<double> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = mean + scale * random.normal(i);
  return v;
}

inline std::vector<std::int32_t> random_ids(std::int64_t n, int vocabulary, std::uint64_t stream) {
  const hd::counter_random random(7, stream);
  std::vector<std::int32_t> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<std::int32_t>(random.integer(i) % static_cast<std::uint64_t>(vocabulary));
  return v;
}

/// A group of one rank. Layers ask for its size and then call nothing else.
struct alone {
  int size() const noexcept { return 1; }
  void all_gather_v(std::span<const double>, std::span<double>, std::span<const std::int64_t>) const {}
  void all_gather_v(std::span<const float>, std::span<float>, std::span<const std::int64_t>) const {}
};

/// A world of one rank with no axes.
struct alone_world {
  int rank() const noexcept { return 0; }
  hd::mesh<> mesh() const noexcept { return {}; }
  template <class... Tags>
  alone along_if() const noexcept {
    return {};
  }
};

using alone_mesh = hd::mesh<hd::axis<hd::dp, 1>, hd::axis<hd::tp, 1>>;
using alone_plan = md::tensor_parallel<alone_mesh>;

inline double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// The greatest difference between a gradient and central differences of `f` in the numbers it belongs to, relative to
/// the greatest element of the gradient (or 1e-3, for gradients that vanish).
template <class F>
double difference_error(std::span<double> x, std::span<const double> gradient, F&& f, double step = 1e-5) {
  double worst = 0, greatest = 1e-3;
  for (const double g : gradient) greatest = (std::max)(greatest, std::abs(g));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double kept = x[i];
    x[i] = kept + step;
    const double above = f();
    x[i] = kept - step;
    const double below = f();
    x[i] = kept;
    const double error = std::abs((above - below) / (2 * step) - gradient[i]);
    if (std::isnan(error) || error > worst) worst = error;  // a NaN stays
  }
  return worst / greatest;
}

/// One matrix of weights with a bias and their gradients, and the views a linear layer takes.
struct owned_linear {
  owned_linear(std::int64_t in, std::int64_t out, std::uint64_t stream)
      : rows(in),
        columns(out),
        w(random_vector(in * out, stream, 0.5)),
        b(random_vector(out, stream + 1, 0.5)),
        dw(w.size()),
        db(b.size()) {}
  md::weight_views<double> views() {
    return {md::as_matrix(std::span(w), rows, columns), md::as_matrix(std::span(dw), rows, columns), b, db};
  }
  std::int64_t rows, columns;
  std::vector<double> w, b, dw, db;
};

struct owned_norm {
  owned_norm(std::int64_t width, std::uint64_t stream)
      : w(random_vector(width, stream, 0.3, 1.0)),
        b(random_vector(width, stream + 1, 0.3)),
        dw(w.size()),
        db(b.size()) {}
  md::layer_norm<double> layer() { return {w, dw, b, db, 1e-5}; }
  std::vector<double> w, b, dw, db;
};

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

/// tests/golden/gpt2_golden.bin; its format is in the README beside it.
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
