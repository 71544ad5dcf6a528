// Attention of 16-bit elements on a backend against the host's attention in double of the same rounded numbers.
#pragma once

#include "compute/backend_trials.hpp"

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/half_precision.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace half_attention_trials {

namespace hd = heddle;
namespace co = heddle::compute;
using co::slice_mask;

struct problem {
  std::string name;
  std::int64_t queries, key_rows, heads, kv_heads, head_dim;
  std::vector<co::attention_slice> slices;
  std::vector<std::int32_t> pages{};
  std::int64_t page_rows = 0;
  std::int64_t begins = 8;     // elements before the heads of a row
  std::int64_t value_dim = 0;  // that of the keys where it is 0
  float range = 2.0f;          // of the queries: larger, and the softmax has few large shares
  std::int64_t most_keys = 0;  // of `key_pages_in`, as the next two
  std::vector<std::int32_t> few_rows{};
  std::int64_t few_slices = 0;
  double cap = 0;  // of scores; 0: none
  std::int64_t values() const { return value_dim == 0 ? head_dim : value_dim; }
};
using numbers = std::vector<double>;
/// What came out: [rows, heads, head_dim] each, and the log-sum-exp.
struct outcome {
  numbers out, lse, dq, dk, dv;
};
/// What goes in, rounded to `Half`.
struct operands {
  numbers q, k, v, dout;
};

template <class Half>
numbers rounded(std::int64_t n, std::uint64_t seed, float range) {
  numbers x;
  for (const float e : backend_trials::numbers<float>(n, seed)) x.push_back(static_cast<float>(Half(e * range)));
  return x;
}
template <class Half>
numbers rounded(const numbers& x) {
  numbers y;
  for (const double e : x) y.push_back(static_cast<float>(Half(static_cast<float>(e))));
  return y;
}
template <class Half>
operands operands_of(const problem& p) {
  return {rounded<Half>(p.queries * p.heads * p.head_dim, 1, p.range),
          rounded<Half>(p.key_rows * p.kv_heads * p.head_dim, 2, 1.0f),
          rounded<Half>(p.key_rows * p.kv_heads * p.values(), 3, 1.0f),
          rounded<Half>(p.queries * p.heads * p.values(), 4, 1.0f)};
}
inline double scale_of(const problem& p) {
  return static_cast<double>(1.0f / std::sqrt(static_cast<float>(p.head_dim)));
}

// Attention of a problem, whose scores may have a cap.
template <class B, class Q, class K, class V, class Slices, class Scale, class Out, class Lse, class Pages>
void attend(const problem& p, B& backend, const Q& q, const K& k, const V& v, const Slices& slices, Scale scale,
            const Out& out, const Lse& lse, const Pages& pages) {
  if (p.cap > 0)
    co::run<co::ops::capped_attention>(backend, q, k, v, slices, scale, static_cast<Scale>(p.cap), out, lse, pages);
  else
    co::run<co::ops::attention>(backend, q, k, v, slices, scale, out, lse, pages);
}
template <class B, class Out, class Q, class K, class V, class Lse, class Slices, class Scale, class Dq, class Dk,
          class Dv, class Pages>
void attend_backward(const problem& p, B& backend, const Out& dout, const Q& q, const K& k, const V& v, const Out& out,
                     const Lse& lse, const Slices& slices, Scale scale, const Dq& dq, const Dk& dk, const Dv& dv,
                     const Pages& pages) {
  if (p.cap > 0)
    co::run<co::ops::capped_attention_backward>(backend, dout, q, k, v, out, lse, slices, scale,
                                                static_cast<Scale>(p.cap), dq, dk, dv, pages);
  else
    co::run<co::ops::attention_backward>(backend, dout, q, k, v, out, lse, slices, scale, dq, dk, dv, pages);
}

/// The host's attention in double. A template, since nvcc 13.0 fails on packs of what is instantiated at once.
template <class Host = co::host<>>
void expected_forward(const problem& p, const operands& x, outcome& y) {
  const auto heads = [](auto& of, std::int64_t rows, std::int64_t count, std::int64_t dim) {
    return co::head_rows<std::remove_pointer_t<decltype(of.data())>>{of.data(), rows, count, dim, count * dim};
  };
  Host backend(1);
  const co::key_pages pages{p.pages, p.page_rows};
  y.out.assign(x.dout.size(), 0), y.lse.assign(static_cast<std::size_t>(p.heads * p.queries), 0);
  attend(p, backend, heads(x.q, p.queries, p.heads, p.head_dim), heads(x.k, p.key_rows, p.kv_heads, p.head_dim),
         heads(x.v, p.key_rows, p.kv_heads, p.values()), p.slices, scale_of(p),
         heads(y.out, p.queries, p.heads, p.values()), std::span(y.lse), pages);
}
/// The gradients, from an output and a log-sum-exp that are given.
template <class Host = co::host<>>
void expected_backward(const problem& p, const operands& x, outcome& y) {
  const auto heads = [](auto& of, std::int64_t rows, std::int64_t count, std::int64_t dim) {
    return co::head_rows<std::remove_pointer_t<decltype(of.data())>>{of.data(), rows, count, dim, count * dim};
  };
  Host backend(1);
  const co::key_pages pages{p.pages, p.page_rows};
  y.dq.assign(x.q.size(), 0), y.dk.assign(x.k.size(), 0), y.dv.assign(x.v.size(), 0);
  const numbers &out = y.out, &lse = y.lse;
  attend_backward(p, backend, heads(x.dout, p.queries, p.heads, p.values()), heads(x.q, p.queries, p.heads, p.head_dim),
                  heads(x.k, p.key_rows, p.kv_heads, p.head_dim), heads(x.v, p.key_rows, p.kv_heads, p.values()),
                  heads(out, p.queries, p.heads, p.values()), lse, p.slices, scale_of(p),
                  heads(y.dq, p.queries, p.heads, p.head_dim), heads(y.dk, p.key_rows, p.kv_heads, p.head_dim),
                  heads(y.dv, p.key_rows, p.kv_heads, p.values()), pages);
}

/// Heads of `Half` in rows that are wider, in the backend's memory.
template <class B, class Half>
class kept_heads {
 public:
  using space = typename B::space;
  kept_heads(backend_trials::trial<B, float>& t, const numbers& x, std::int64_t rows, std::int64_t heads,
             std::int64_t dim, std::int64_t begins)
      : trial_(t),
        rows_(rows),
        width_(heads * dim),
        begins_(begins),
        stride_(begins + width_ + 8),
        heads_{nullptr, rows, heads, dim, stride_} {
    std::vector<Half> wide(static_cast<std::size_t>(rows * stride_), Half(9.0f));
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < width_; ++c)
        wide[static_cast<std::size_t>(r * stride_ + begins + c)] =
            Half(static_cast<float>(x[static_cast<std::size_t>(r * width_ + c)]));
    all_ = t.keep(wide);
    heads_.data = rows == 0 ? all_ : all_ + begins;
  }
  const co::head_rows<Half, space>& heads() const { return heads_; }
  /// What is there, if all around it is as it was.
  numbers values() {
    std::vector<Half> wide(static_cast<std::size_t>(rows_ * stride_));
    trial_.backend.queue().copy(hd::row_at<space>(static_cast<const Half*>(all_), rows_ * stride_), wide);
    trial_.backend.queue().wait();
    numbers x;
    for (std::int64_t i = 0; i < rows_ * stride_; ++i) {
      const std::int64_t c = i % stride_ - begins_;
      const auto value = static_cast<double>(static_cast<float>(wide[static_cast<std::size_t>(i)]));
      if (c >= 0 && c < width_)
        x.push_back(value);
      else if (value != 9.0)
        return {};
    }
    return x;
  }

 private:
  backend_trials::trial<B, float>& trial_;
  std::int64_t rows_, width_, begins_, stride_;
  Half* all_;
  co::head_rows<Half, space> heads_;
};

/// The output and the gradients of B; the gradients from the output and log-sum-exp of `given`.
template <class B, class Half>
outcome computed(const problem& p, const operands& x, const outcome& given, bool backward = true) {
  backend_trials::trial<B, float> t;
  using space = typename B::space;
  const auto kept = [&](const numbers& of, std::int64_t rows, std::int64_t heads, std::int64_t dim) {
    return kept_heads<B, Half>(t, of, rows, heads, dim, p.begins);
  };
  const auto slices = hd::row_at<space>(static_cast<const co::attention_slice*>(t.keep(p.slices)),
                                        static_cast<std::int64_t>(p.slices.size()));
  const auto count = static_cast<std::int64_t>(p.pages.size());
  const auto* const listed = static_cast<const std::int32_t*>(t.keep(p.pages));
  co::key_pages_in<space> pages;
  if constexpr (std::is_same_v<space, hd::host_memory>)
    pages = {{listed, p.pages.size()}, p.page_rows};
  else
    pages = {hd::row_at<space>(listed, count), p.page_rows, p.most_keys,
             hd::row_at<space>(static_cast<const std::int32_t*>(t.keep(p.few_rows)),
                               static_cast<std::int64_t>(p.few_rows.size())),
             p.few_slices};
  auto q = kept(x.q, p.queries, p.heads, p.head_dim), k = kept(x.k, p.key_rows, p.kv_heads, p.head_dim),
       v = kept(x.v, p.key_rows, p.kv_heads, p.values()), dout = kept(x.dout, p.queries, p.heads, p.values()),
       out = kept(x.dout, p.queries, p.heads, p.values());
  std::vector<float> level(static_cast<std::size_t>(p.heads * p.queries), -7.0f);
  const auto lse = hd::row_at<space>(t.keep(level), p.heads * p.queries);
  const auto scale = static_cast<float>(scale_of(p));
  attend(p, t.backend, q.heads(), k.heads(), v.heads(), slices, scale, out.heads(), lse, pages);
  outcome y;
  y.out = out.values();
  t.backend.queue().copy(lse, level);
  t.backend.queue().wait();
  for (const float e : level) y.lse.push_back(static_cast<double>(e));
  if (!backward) return y;
  for (std::size_t i = 0; i < level.size(); ++i) level[i] = static_cast<float>(given.lse[i]);
  const auto given_lse = hd::row_at<space>(static_cast<const float*>(t.keep(level)), p.heads * p.queries);
  auto given_out = kept(given.out, p.queries, p.heads, p.values()), dq = kept(x.q, p.queries, p.heads, p.head_dim),
       dk = kept(x.k, p.key_rows, p.kv_heads, p.head_dim), dv = kept(x.v, p.key_rows, p.kv_heads, p.values());
  attend_backward(p, t.backend, dout.heads(), q.heads(), k.heads(), v.heads(), given_out.heads(), given_lse, slices,
                  scale, dq.heads(), dk.heads(), dv.heads(), pages);
  y.dq = dq.values(), y.dk = dk.values(), y.dv = dv.values();
  return y;
}

/// The largest difference in a row of a head, in parts of the largest number that is expected there; of rows of zeros, the largest number.
/// Infinite where one of both is not a number or infinite, and the other is not the same.
inline double difference(const numbers& got, const numbers& expected, std::int64_t dim, double least = 0) {
  if (got.size() != expected.size()) return HUGE_VAL;
  double most = 0;
  const auto width = static_cast<std::size_t>(dim);
  for (std::size_t begin = 0; begin + width <= got.size(); begin += width) {
    double error = 0, size = least;
    for (std::size_t i = begin; i < begin + width; ++i) {
      if (got[i] == expected[i]) {
        size = std::isfinite(got[i]) ? (std::max)(size, std::abs(expected[i])) : size;
        continue;
      }
      if (!std::isfinite(got[i]) || !std::isfinite(expected[i])) return HUGE_VAL;
      error = (std::max)(error, std::abs(got[i] - expected[i]));
      size = (std::max)(size, std::abs(expected[i]));
    }
    most = (std::max)(most, size == 0 ? error : error / size);
  }
  return most;
}
inline double largest_of(const numbers& x) {
  double most = 0;
  for (const double e : x) most = (std::max)(most, std::abs(e));
  return most;
}

/// Sizes that end inside of tiles, grouped heads, every mask, several slices for a query, queries and keys in none, pages.
inline std::vector<problem> problems(std::int64_t head_dim) {
  std::vector<problem> all;
  for (const std::int64_t n : {1, 17, 63, 64, 65, 130})
    all.push_back({"causal " + std::to_string(n), n, n, 2, 2, head_dim, co::causal_sequences(1, n)});
  all.push_back({"full", 65, 130, 2, 1, head_dim, {{0, 65, 0, 130, slice_mask::full}}});
  all.push_back({"four heads of one", 70, 70, 4, 1, head_dim, co::causal_sequences(1, 70)});
  const std::vector<std::int64_t> starts{0, 3, 70, 71, 140};
  all.push_back({"lengths of their own", 140, 140, 2, 2, head_dim, co::causal_sequences(starts)});
  const auto later = co::causal_at(0, 40, 30, 0, 100, 0);  // queries behind keys of a cache
  all.push_back({"an offset", 40, 100, 2, 1, head_dim, {later.begin(), later.end()}});
  all.push_back({"slices",
                 100,
                 120,
                 2,
                 1,
                 head_dim,
                 {{0, 50, 0, 40, slice_mask::causal},
                  {0, 50, 40, 80, slice_mask::inverse_causal},
                  {50, 70, 10, 90, slice_mask::full},
                  {70, 90, 0, 60, slice_mask::bi_causal},
                  {90, 95, 30, 30, slice_mask::full}}});
  all.push_back({"pages", 20, 96, 2, 1, head_dim, co::causal_sequences(1, 20), {3, 0, 5}, 16});
  all.push_back({"a page twice", 40, 64, 2, 1, head_dim, {{0, 40, 0, 48, slice_mask::causal}}, {3, 1, 3}, 16});
  all.push_back({"few large shares", 65, 65, 1, 1, head_dim, co::causal_sequences(1, 65), {}, 0, 8, 0, 40.0f});
  return all;
}
/// Those that tensor cores do not take: their heads, or where they begin; where values have a width of their own, of the gradients alone.
inline std::vector<problem> odd_problems() {
  return {{"heads of 3", 20, 20, 4, 2, 3, co::causal_sequences(1, 20)},
          {"not aligned", 20, 20, 2, 2, 64, co::causal_sequences(1, 20), {}, 0, 5},
          {"values of another width", 20, 20, 2, 2, 64, co::causal_sequences(1, 20), {}, 0, 8, 32},
          {"no query", 0, 5, 2, 2, 64, {}},
          {"no key", 5, 0, 2, 2, 64, {}}};
}

/// Sequences that decode: rows of queries and keys of each. Pages of eight rows lie in an order of their own.
struct decoding_sequence {
  std::int64_t rows, keys;
};
/// A problem of such; sequences of up to `most_few` rows are in parts of their keys.
inline problem decoding(std::string name, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                        const std::vector<decoding_sequence>& sequences, std::int64_t most_few = 8) {
  problem p{std::move(name), 0, 0, heads, kv_heads, head_dim, {}};
  p.page_rows = 8;
  std::vector<co::attention_slice> rest;
  std::int64_t keys = 0;
  for (const auto& [rows, seen] : sequences) {
    const co::attention_slice slice{p.queries, p.queries + rows, keys, keys + seen, slice_mask::causal};
    (rows <= most_few ? p.slices : rest).push_back(slice);
    for (std::int64_t r = 0; r < rows && rows <= most_few; ++r)
      p.few_rows.push_back(static_cast<std::int32_t>(p.queries + r));
    if (rows <= most_few) p.most_keys = (std::max)(p.most_keys, seen);
    p.queries += rows;
    keys += (seen + p.page_rows - 1) / p.page_rows * p.page_rows;
  }
  p.few_slices = static_cast<std::int64_t>(p.slices.size());
  if (rest.empty()) p.few_rows.clear();
  p.slices.insert(p.slices.end(), rest.begin(), rest.end());
  const std::int64_t pages = keys / p.page_rows;
  std::int64_t step = 7;  // has no divisor with the number of pages
  while (std::gcd(step, pages) > 1) ++step;
  for (std::int64_t i = 0; i < pages; ++i) p.pages.push_back(static_cast<std::int32_t>((i * step + 3) % pages));
  p.key_rows = keys;
  return p;
}
/// One row of each, several, groups of all sizes, more keys than was said, trees, and few beside many.
inline std::vector<problem> decoding_problems(std::int64_t head_dim) {
  std::vector<problem> all{
      decoding("one of each", 4, 2, head_dim, {{1, 1}, {1, 64}, {1, 65}, {1, 0}, {1, 200}, {1, 700}}),
      decoding("every query head has keys", 3, 3, head_dim, {{1, 90}, {2, 131}, {1, 513}}),
      decoding("a group of eight", 8, 1, head_dim, {{3, 40}, {1, 129}, {8, 300}}),
      decoding("a group of twenty", 20, 1, head_dim, {{1, 77}}),
      decoding("beside a prompt", 4, 2, head_dim, {{1, 33}, {20, 20}, {2, 150}, {9, 70}})};
  all.push_back(all[0]);
  all.back().name = "more keys than said";
  all.back().most_keys = 130;
  problem tree = decoding("a tree", 4, 2, head_dim, {{1, 12}, {1, 100}});
  tree.slices = {{0, 2, 0, 70, slice_mask::full}, {0, 1, 71, 72, slice_mask::full}, {1, 2, 73, 75, slice_mask::full}};
  all.push_back(tree);
  return all;
}

/// Heads of more than 128 elements, and values of a width of their own, as MLA's of 192 and 128.
inline std::vector<problem> wide_problems() {
  std::vector<problem> all;
  for (const auto& [head_dim, value_dim] : {std::pair{256, 256}, {192, 128}, {136, 136}, {40, 64}}) {
    for (const std::size_t i : {4u, 7u, 10u, 11u}) all.push_back(problems(head_dim)[i]);
    for (const std::size_t i : {0u, 2u, 4u}) all.push_back(decoding_problems(head_dim)[i]);
    for (problem& p : all)
      if (p.value_dim == 0) p.value_dim = value_dim;
  }
  return all;
}

/// The outputs and gradients of B for such problems are those of double to so much of a row's largest number; gradients to twice that of the largest of all
/// in rows of small numbers.
template <class B, class Half>
void compare(const std::vector<problem>& all, bool backward = true) {
  const double tolerance = std::is_same_v<Half, hd::bf16> ? 1e-2 : 2e-3;
  for (const problem& p : all) {
    CAPTURE(p.name, p.head_dim, tolerance);
    const operands x = operands_of<Half>(p);
    outcome expected;
    expected_forward(p, x, expected);
    outcome given = expected;
    given.out = rounded<Half>(given.out);
    for (double& e : given.lse) e = static_cast<double>(static_cast<float>(e));
    const outcome got = computed<B, Half>(p, x, given, backward);
    CHECK(difference(got.out, expected.out, p.values()) <= tolerance);
    CHECK(difference(got.lse, expected.lse, 1, 1.0) <= 1e-5);
    if (!backward) continue;
    expected_backward(p, x, given);
    const auto close = [&](const numbers& a, const numbers& b, std::int64_t dim) {
      return difference(a, b, dim, largest_of(b) / 16);
    };
    CHECK(close(got.dq, given.dq, p.head_dim) <= tolerance);
    CHECK(close(got.dk, given.dk, p.head_dim) <= tolerance);
    CHECK(close(got.dv, given.dv, p.values()) <= tolerance);
  }
}

/// The fused form, of sequences that are no multiple of a tile, is the same bits as the form by slices.
template <class B, class Half>
void compare_fused(std::int64_t batch, std::int64_t sequence, std::int64_t heads, std::int64_t head_dim) {
  CAPTURE(batch, sequence, heads, head_dim);
  backend_trials::trial<B, float> t;
  using space = typename B::space;
  const co::attention_shape s{batch, sequence, heads, head_dim};
  const auto matrix = [&](std::int64_t columns, std::uint64_t seed) {
    std::vector<Half> x;
    for (const float e : backend_trials::numbers<float>(s.rows() * columns, seed)) x.push_back(Half(e));
    return hd::matrix_view<Half, space>(t.keep(x), hd::dynamic_shape<2>(s.rows(), columns));
  };
  const auto qkv = matrix(3 * s.width(), 1), dout = matrix(s.width(), 2), out = matrix(s.width(), 3),
             dqkv = matrix(3 * s.width(), 4), out2 = matrix(s.width(), 5), dqkv2 = matrix(3 * s.width(), 6);
  auto lse = t.some(heads * s.rows()), lse2 = t.some(heads * s.rows());
  co::run<co::ops::causal_attention>(t.backend, qkv, s, out, lse);
  co::run<co::ops::causal_attention_backward>(t.backend, dout, qkv, out, lse, s, dqkv);
  const auto causal = co::causal_sequences(batch, sequence);
  const auto slices = hd::row_at<space>(static_cast<const co::attention_slice*>(t.keep(causal)), batch);
  const auto third = [&](auto m, std::int64_t i) { return co::heads_of(m, heads, head_dim, i * s.width()); };
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  co::run<co::ops::attention>(t.backend, third(qkv, 0), third(qkv, 1), third(qkv, 2), slices, scale,
                              co::heads_of(out2, heads, head_dim), lse2, co::key_pages_in<typename B::space>{});
  co::run<co::ops::attention_backward>(t.backend, co::heads_of(dout, heads, head_dim), third(qkv, 0), third(qkv, 1),
                                       third(qkv, 2), co::heads_of(out2, heads, head_dim), lse2, slices, scale,
                                       third(dqkv2, 0), third(dqkv2, 1), third(dqkv2, 2),
                                       co::key_pages_in<typename B::space>{});
  const auto note = [&](const char* name, auto m) { t.note(name, hd::row_at<space>(m.address(), m.size())); };
  note("out", out), t.note("lse", lse), note("dqkv", dqkv), note("out", out2), t.note("lse", lse2), note("dqkv", dqkv2);
  for (std::size_t i = 0; i < 3; ++i) CHECK(t.results[i].second == t.results[i + 3].second);
}

}  // namespace half_attention_trials
