// tests/context/context_cases.hpp: documents with random rows, attended on one rank and by context tables.
#pragma once

#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/context/carriers.hpp>
#include <heddle/context/cost.hpp>
#include <heddle/context/execute.hpp>
#include <heddle/context/masks.hpp>
#include <heddle/context/program.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

namespace context_cases {

namespace hd = heddle;
namespace hc = heddle::compute;

struct sizes {
  std::int64_t query_heads, key_heads, head_dim, value_dim;
};

template <class T>
hd::context_shape shape_of(const sizes& z) {
  return {z.query_heads, z.key_heads, z.head_dim, z.value_dim, sizeof(T), sizeof(hd::sum_of_type<T>)};
}

// Rows of all tensors.
template <class T>
struct rows {
  std::int64_t count = 0;
  sizes z{};
  std::vector<T> q, k, v, dout, out, dq, dk, dv;
  std::vector<hd::sum_of_type<T>> lse;

  rows(std::int64_t n, const sizes& s) : count(n), z(s) {
    const auto make = [&](std::int64_t width) { return std::vector<T>(static_cast<std::size_t>(n * width)); };
    q = dq = make(s.query_heads * s.head_dim);
    k = dk = make(s.key_heads * s.head_dim);
    v = dv = make(s.key_heads * s.value_dim);
    out = dout = make(s.query_heads * s.value_dim);
    lse.resize(static_cast<std::size_t>(n * s.query_heads));
  }
  template <class U>
  static hc::head_rows<U> heads(U* data, std::int64_t count, std::int64_t heads, std::int64_t d) {
    return {data, count, heads, d, heads * d};
  }
  hc::head_rows<T> queries(std::vector<T>& x) { return heads(x.data(), count, z.query_heads, z.head_dim); }
  hc::head_rows<T> outputs(std::vector<T>& x) { return heads(x.data(), count, z.query_heads, z.value_dim); }
  hc::head_rows<T> keys(std::vector<T>& x) { return heads(x.data(), count, z.key_heads, z.head_dim); }
  hc::head_rows<T> values(std::vector<T>& x) { return heads(x.data(), count, z.key_heads, z.value_dim); }
  hd::sum_of_type<T> scale() const { return 1 / std::sqrt(static_cast<hd::sum_of_type<T>>(z.head_dim)); }

  // Calls f(tensor here, tensor of the other, numbers in a row) for what attention takes, or for what it makes.
  template <class F>
  void each_input(rows& other, F f) {
    f(q, other.q, z.query_heads * z.head_dim);
    f(k, other.k, z.key_heads * z.head_dim);
    f(v, other.v, z.key_heads * z.value_dim);
    f(dout, other.dout, z.query_heads * z.value_dim);
  }
  template <class F>
  void each_result(rows& other, F f) {
    f(out, other.out, z.query_heads * z.value_dim);
    f(dq, other.dq, z.query_heads * z.head_dim);
    f(dk, other.dk, z.key_heads * z.head_dim);
    f(dv, other.dv, z.key_heads * z.value_dim);
  }
};

template <class T>
void randomise(rows<T>& x, std::mt19937& random) {
  std::normal_distribution<hd::sum_of_type<T>> normal;
  for (auto* t : {&x.q, &x.k, &x.v, &x.dout})
    for (T& number : *t) number = static_cast<T>(normal(random));
}

// Both passes on one rank.
template <class T>
void attend_alone(rows<T>& x, std::span<const hc::attention_slice> mask) {
  if (x.count == 0) return;
  hc::host<> backend(1);
  hc::run<hc::ops::attention>(backend, hc::head_rows<const T>(x.queries(x.q)), x.keys(x.k), x.values(x.v), mask,
                              x.scale(), x.outputs(x.out), std::span(x.lse), hc::key_pages{});
  hc::run<hc::ops::attention_backward>(backend, hc::head_rows<const T>(x.outputs(x.dout)), x.queries(x.q), x.keys(x.k),
                                       x.values(x.v), x.outputs(x.out), std::span<const hd::sum_of_type<T>>(x.lse),
                                       mask, x.scale(), x.queries(x.dq), x.keys(x.dk), x.values(x.dv), hc::key_pages{});
}

// The rows of a rank, with inputs from the documents.
template <class T>
rows<T> rows_of(const hd::context_cut& cut, int rank, std::vector<rows<T>>& documents, const sizes& z) {
  rows<T> own(cut.rows[static_cast<std::size_t>(rank)], z);
  hd::each_row_of(cut, rank, [&](int d, std::int64_t there, std::int64_t here) {
    own.each_input(documents[static_cast<std::size_t>(d)], [&](auto& a, auto& b, std::int64_t width) {
      std::copy_n(b.begin() + there * width, width, a.begin() + here * width);
    });
  });
  return own;
}

// The largest difference of a rank's results to those of the documents, relative to numbers above 1.
template <class T>
double difference(const hd::context_cut& cut, int rank, rows<T>& own, std::vector<rows<T>>& documents) {
  double worst = 0;
  hd::each_row_of(cut, rank, [&](int d, std::int64_t there, std::int64_t here) {
    rows<T>& whole = documents[static_cast<std::size_t>(d)];
    own.each_result(whole, [&](auto& a, auto& b, std::int64_t width) {
      for (std::int64_t i = 0; i < width; ++i) {
        const double x = static_cast<double>(a[static_cast<std::size_t>(here * width + i)]);
        const double y = static_cast<double>(b[static_cast<std::size_t>(there * width + i)]);
        worst = (std::max)(worst, std::isfinite(x) ? std::abs(x - y) / (std::max)(1.0, std::abs(y)) : 1e300);
      }
    });
    for (std::int64_t h = 0; h < own.z.query_heads; ++h) {
      const auto x = own.lse[static_cast<std::size_t>(h * own.count + here)];
      const auto y = whole.lse[static_cast<std::size_t>(h * whole.count + there)];
      if (x != y) worst = (std::max)(worst, static_cast<double>(std::abs(x - y)));  // both -inf where no key is seen
    }
  });
  return worst;
}

// The masks of the matrix, one for each document.
inline std::vector<hc::attention_slice> mask_of(int kind, std::int64_t length, std::mt19937& random) {
  const auto some = [&](std::int64_t most) {
    return 1 + static_cast<std::int64_t>(random()) % (std::max)(most, std::int64_t{1});
  };
  const std::vector<std::int64_t> inner{some(length / 2), some(length / 2), some(length)};
  switch (kind) {
    case 0:
      return hd::masks::full{}.slices(length);
    case 1:
      return hd::masks::causal{}.slices(length);
    case 2:
      return hd::masks::window<>{some(length)}.slices(length);
    case 3:
      return hd::masks::prefix<>{some(length)}.slices(length);
    case 4:
      return hd::masks::documents<>{inner}.slices(length);
    case 5:
      return hd::masks::share_question{inner}.slices(length);
    case 6:
      return hd::masks::block_causal<>{some(length / 2), inner}.slices(length);
    default:  // the late half sees nothing, and is not seen
      return hd::masks::causal{}.slices(length / 2);
  }
}

// Some of the ranks in any order, as many as the carrier offers.
inline std::vector<int> some_ranks(const hd::context_carrier& carrier, int ranks, std::mt19937& random, bool as_many) {
  std::vector<int> list(static_cast<std::size_t>(ranks));
  std::iota(list.begin(), list.end(), 0);
  std::shuffle(list.begin(), list.end(), random);
  int n = as_many ? ranks : 1 + static_cast<int>(random() % static_cast<unsigned>(ranks));
  while (!carrier.offers(n)) --n;
  list.resize(static_cast<std::size_t>(n));
  return list;
}

// A document for each mask, lengths below the ranks among them.
template <class T>
struct batch {
  std::vector<hd::context_document> documents;
  std::vector<rows<T>> whole;
  batch(const sizes& z, std::mt19937& random, int masks = 8) {
    for (int kind = 0; kind < masks; ++kind) {
      const auto length = static_cast<std::int64_t>(kind == static_cast<int>(random() % 14) ? 0 : 1 + random() % 14);
      documents.push_back({length, {}, mask_of(kind, length, random)});
      whole.emplace_back(length, z);
      randomise(whole.back(), random);
      attend_alone(whole.back(), documents.back().mask);
    }
  }
  // On some of the ranks, in any order.
  hd::context_cut cut(const hd::context_carrier& carrier, const hd::context_order& order, int ranks,
                      std::mt19937& random) {
    for (std::size_t d = 0; d < documents.size(); ++d) documents[d].ranks = some_ranks(carrier, ranks, random, d == 1);
    return order.cut(documents, ranks);
  }
};

template <class T, class Backend, class Ranks>
void attend(hd::context_executor<T, Backend, Ranks>& executor, const hd::context_program& program, rows<T>& x) {
  executor.attend(program, x.queries(x.q), x.keys(x.k), x.values(x.v), x.scale(), x.outputs(x.out), x.lse);
}
template <class T, class Backend, class Ranks>
void attend_backward(hd::context_executor<T, Backend, Ranks>& executor, const hd::context_program& program,
                     rows<T>& x) {
  executor.attend_backward(program, x.outputs(x.dout), x.queries(x.q), x.keys(x.k), x.values(x.v), x.outputs(x.out),
                           std::span<const hd::sum_of_type<T>>(x.lse), x.scale(), x.queries(x.dq), x.keys(x.dk),
                           x.values(x.dv));
}

}  // namespace context_cases
