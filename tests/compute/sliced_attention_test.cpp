#include "catch.hpp"
#include "gemms.hpp"
#include "support.hpp"

#include <heddle/compute/attention_slices.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

using namespace compute_test;
using hc::attention_slice;
using hc::slice_mask;

namespace {
/// Whether the pair counts, by the rules that attention_slices.hpp states.
bool counts(const attention_slice& s, int64_t q, int64_t k) {
  if (q < s.q_begin || q >= s.q_end || k < s.k_begin || k >= s.k_end) return false;
  const int64_t i = q - s.q_begin, j = k - s.k_begin, gap = (s.k_end - s.k_begin) - (s.q_end - s.q_begin);
  switch (s.mask) {
    case slice_mask::full:
      return true;
    case slice_mask::causal:
      return j - i <= gap;
    case slice_mask::inverse_causal:
      return j >= i;
    case slice_mask::bi_causal:
      return j - i <= gap && j >= i;
  }
  return false;
}
constexpr slice_mask all_masks[] = {slice_mask::full, slice_mask::causal, slice_mask::inverse_causal,
                                    slice_mask::bi_causal};

struct problem {
  const char* name;
  int64_t queries, keys, q_heads, kv_heads, head_dim, v_dim;
  std::vector<attention_slice> slices;
};

/// softmax(scale q k^T) v in long double, pair by pair; rows that see nothing are 0 and -inf. `sinks`: a score of each head more, without a value.
template <class T>
void define(const problem& p, const std::vector<T>& q, const std::vector<T>& k, const std::vector<T>& v, T scale,
            std::vector<long double>& out, std::vector<long double>& lse, const std::vector<T>& sinks = {}) {
  out.assign(static_cast<std::size_t>(p.queries * p.q_heads * p.v_dim), 0);
  lse.assign(static_cast<std::size_t>(p.queries * p.q_heads), -std::numeric_limits<long double>::infinity());
  const auto at = [](const std::vector<T>& x, int64_t row, int64_t heads, int64_t head, int64_t d, int64_t j) {
    return static_cast<long double>(x[static_cast<std::size_t>((row * heads + head) * d + j)]);
  };
  for (int64_t h = 0; h < p.q_heads; ++h)
    for (int64_t r = 0; r < p.queries; ++r) {
      const int64_t kv = h / (p.q_heads / p.kv_heads);
      long double sum = 0;
      if (!sinks.empty()) sum = std::exp(static_cast<long double>(sinks[static_cast<std::size_t>(h)]));
      std::vector<std::pair<int64_t, long double>> seen;
      for (int64_t c = 0; c < p.keys; ++c) {
        bool any = false;
        for (const attention_slice& s : p.slices) any = any || counts(s, r, c);
        if (!any) continue;
        long double score = 0;
        for (int64_t j = 0; j < p.head_dim; ++j)
          score += at(q, r, p.q_heads, h, p.head_dim, j) * at(k, c, p.kv_heads, kv, p.head_dim, j);
        seen.emplace_back(c, std::exp(static_cast<long double>(scale) * score));
        sum += seen.back().second;
      }
      if (seen.empty() && sinks.empty()) continue;
      lse[static_cast<std::size_t>(h * p.queries + r)] = std::log(sum);
      for (const auto& [c, weight] : seen)
        for (int64_t j = 0; j < p.v_dim; ++j)
          out[static_cast<std::size_t>((r * p.q_heads + h) * p.v_dim + j)] +=
              weight / sum * at(v, c, p.kv_heads, kv, p.v_dim, j);
    }
}

const std::vector<problem>& problems() {
  static const std::vector<problem> all = {
      {"one causal sequence, grouped heads", 70, 70, 4, 2, 8, 8, {{0, 70, 0, 70, slice_mask::causal}}},
      {"heads of v wider than those of q", 9, 9, 2, 2, 3, 5, {{0, 9, 0, 9, slice_mask::causal}}},
      {"all query heads share one key head", 12, 12, 6, 1, 4, 4, {{0, 12, 0, 12, slice_mask::full}}},
      {"documents, one of them empty", 80, 80, 2, 1, 4, 4, hc::causal_sequences(std::vector<int64_t>{0, 3, 3, 70, 80})},
      {"new tokens to a cache", 3, 40, 4, 2, 8, 8, {{0, 3, 0, 40, slice_mask::causal}}},
      {"one token", 1, 17, 2, 2, 4, 4, {{0, 1, 0, 17, slice_mask::full}}},
      {"a token each of three sequences, one without keys, five heads to a key head",
       4,
       70,
       10,
       2,
       5,
       3,
       {{0, 1, 0, 33, slice_mask::full}, {1, 2, 33, 33, slice_mask::full}, {2, 3, 40, 70, slice_mask::causal}}},
      {"one token and two slices of keys, shared heads",
       1,
       40,
       6,
       2,
       4,
       4,
       {{0, 1, 20, 40, slice_mask::full}, {0, 1, 3, 9, slice_mask::causal}}},
      {"sliding window", 90, 90, 2, 2, 4, 4, {{0, 8, 0, 8, slice_mask::causal}, {8, 90, 0, 90, slice_mask::bi_causal}}},
      {"shared question, then documents",
       30,
       30,
       2,
       1,
       4,
       4,
       {{0, 10, 0, 10, slice_mask::causal},
        {10, 30, 0, 4, slice_mask::full},
        {10, 18, 10, 18, slice_mask::causal},
        {18, 30, 18, 30, slice_mask::causal}}},
      {"inverse causal beside full, given out of order",
       20,
       30,
       2,
       2,
       4,
       4,
       {{5, 20, 20, 30, slice_mask::full}, {0, 20, 0, 20, slice_mask::inverse_causal}}},
      {"rows that see nothing",
       12,
       6,
       2,
       2,
       4,
       4,
       {{0, 9, 0, 6, slice_mask::causal}, {10, 11, 2, 3, slice_mask::full}}},
      {"no slice", 4, 4, 2, 2, 4, 4, {}},
      {"no query", 0, 4, 2, 2, 4, 4, {{0, 0, 0, 4, slice_mask::full}}},
      {"keys shared by queries apart from each other",
       20,
       10,
       2,
       1,
       4,
       4,
       {{0, 5, 0, 6, slice_mask::full}, {5, 12, 6, 10, slice_mask::full}, {12, 20, 0, 6, slice_mask::causal}}}};
  return all;
}

template <class T>
hc::head_rows<const T> rows_of(const std::vector<T>& x, int64_t rows, int64_t heads, int64_t d) {
  return {x.data(), rows, heads, d, heads * d};
}
template <class T>
hc::head_rows<T> rows_of(std::vector<T>& x, int64_t rows, int64_t heads, int64_t d) {
  return {x.data(), rows, heads, d, heads * d};
}

template <class Backend, class T>
void forward(Backend& backend, const problem& p, const std::vector<T>& q, const std::vector<T>& k,
             const std::vector<T>& v, T scale, std::vector<T>& out, std::vector<T>& lse, hc::key_pages pages = {},
             int64_t key_rows = -1) {
  if (key_rows < 0) key_rows = p.keys;
  hc::run<hc::ops::attention>(backend, rows_of(q, p.queries, p.q_heads, p.head_dim),
                              rows_of(k, key_rows, p.kv_heads, p.head_dim), rows_of(v, key_rows, p.kv_heads, p.v_dim),
                              p.slices, scale, rows_of(out, p.queries, p.q_heads, p.v_dim), vec(lse), pages);
}
}  // namespace

TEST_CASE("a slice's rules: rows, area and cuts equal counting pairs", "[compute][attention]") {
  for (const slice_mask mask : all_masks)
    for (int64_t nq = 0; nq <= 7; ++nq)
      for (int64_t nk = 0; nk <= 7; ++nk) {
        const attention_slice s{2, 2 + nq, 3, 3 + nk, mask};
        int64_t area = 0;
        bool rows = true;
        for (int64_t q = s.q_begin; q < s.q_end; ++q)
          for (int64_t k = s.k_begin; k < s.k_end; ++k) {
            area += counts(s, q, k) ? 1 : 0;
            rows = rows && counts(s, q, k) == (k >= s.first_key(q) && k < s.last_key(q));
          }
        CAPTURE(to_string(s));
        CHECK(s.area() == area);
        CHECK(rows);
        for (int64_t from = 0; from <= 10; ++from)
          for (int64_t to = from; to <= 10; ++to) {
            const attention_slice cut = s.of_queries(from, to);
            bool same = true;
            for (int64_t q = 0; q <= 12; ++q)
              for (int64_t k = 0; k <= 12; ++k)
                same = same && counts(cut, q, k) == (counts(s, q, k) && q >= from && q < to);
            CAPTURE(from, to, to_string(cut));
            CHECK(same);
          }
      }
}

TEST_CASE("causal slices at offsets equal comparing positions", "[compute][attention]") {
  for (int64_t nq = 0; nq <= 5; ++nq)
    for (int64_t nk = 0; nk <= 5; ++nk)
      for (int64_t position = -8; position <= 8; ++position) {
        const auto slices = hc::causal_at(1, 1 + nq, 10 + position, 2, 2 + nk, 10);
        bool same = true;
        for (int64_t q = 0; q <= 8; ++q)
          for (int64_t k = 0; k <= 8; ++k) {
            int times = 0;
            for (const attention_slice& s : slices) times += counts(s, q, k) ? 1 : 0;
            const bool inside = q >= 1 && q < 1 + nq && k >= 2 && k < 2 + nk;
            same = same && times == (inside && 10 + (k - 2) <= 10 + position + (q - 1) ? 1 : 0);
          }
        CAPTURE(nq, nk, position);
        CHECK(same);
      }
  CHECK_THROWS_WITH(hc::causal_sequences(std::vector<int64_t>{0, 5, 3}), Catch::Contains("got 5 before 3"));
}

TEMPLATE_TEST_CASE("attention over slices equals its definition", "[compute][attention]", HEDDLE_TEST_GEMMS) {
  const auto check = [&]<class T>(T) {
    for (const int threads : {1, 3})
      for (const problem& p : problems()) {
        hc::host<TestType> backend(threads);
        const auto q = normal<T>(p.queries * p.q_heads * p.head_dim, 1),
                   k = normal<T>(p.keys * p.kv_heads * p.head_dim, 2), v = normal<T>(p.keys * p.kv_heads * p.v_dim, 3);
        const T scale = T(0.4), bad = std::numeric_limits<T>::quiet_NaN();
        std::vector<T> out(static_cast<std::size_t>(p.queries * p.q_heads * p.v_dim), bad),
            lse(static_cast<std::size_t>(p.queries * p.q_heads), bad);
        forward(backend, p, q, k, v, scale, out, lse);
        std::vector<long double> want, want_lse;
        define(p, q, k, v, scale, want, want_lse);
        CAPTURE(p.name, threads);
        CHECK(distance(out, want) <= tolerance<T> * 4);
        for (std::size_t i = 0; i < lse.size(); ++i)
          if (std::isinf(static_cast<double>(want_lse[i]))) {
            CHECK(lse[i] == -std::numeric_limits<T>::infinity());
            lse[i] = T(0), want_lse[i] = 0;
          }
        CHECK(distance(lse, want_lse) <= tolerance<T> * 4);
      }
  };
  check(float{});
  check(double{});
}

TEST_CASE("attention with sinks equals its definition, whatever the sinks are", "[compute][attention]") {
  hc::host<> backend(2);
  for (const problem& p : problems())
    for (const double size : {1.0, 40.0}) {
      CAPTURE(p.name, size);
      const auto q = normal<double>(p.queries * p.q_heads * p.head_dim, 1),
                 k = normal<double>(p.keys * p.kv_heads * p.head_dim, 2),
                 v = normal<double>(p.keys * p.kv_heads * p.v_dim, 3);
      auto sinks = normal<double>(p.q_heads, 4);
      for (double& s : sinks) s *= size;
      std::vector<double> plain(static_cast<std::size_t>(p.queries * p.q_heads * p.v_dim)), out(plain.size()),
          lse(static_cast<std::size_t>(p.queries * p.q_heads));
      forward(backend, p, q, k, v, 0.3, plain, lse);
      hc::run<hc::ops::attention_sinks>(backend, rows_of(plain, p.queries, p.q_heads, p.v_dim), vec(sinks), vec(lse),
                                        rows_of(out, p.queries, p.q_heads, p.v_dim));
      std::vector<long double> want, want_lse;
      define(p, q, k, v, 0.3, want, want_lse, sinks);
      for (std::size_t i = 0; i < out.size(); ++i) CHECK(std::abs(out[i] - static_cast<double>(want[i])) < 1e-12);
      for (std::size_t i = 0; i < lse.size(); ++i)
        CHECK(lse[i] == Approx(static_cast<double>(want_lse[i])).epsilon(1e-12).margin(1e-12));
    }
  std::vector<double> x(24), sinks(3), lse(8);
  CHECK_THROWS_WITH(
      hc::run<hc::ops::attention_sinks>(backend, rows_of(x, 2, 4, 3), vec(sinks), vec(lse), rows_of(x, 2, 4, 3)),
      Catch::Contains("elements of sinks (heads) should be 4, got 3"));
}

TEST_CASE("attention over slices: backward equals finite differences and overwrites", "[compute][attention]") {
  for (const problem& p : problems()) {
    if (p.queries > 40) continue;
    hc::host<> backend(2);
    auto q = normal<double>(p.queries * p.q_heads * p.head_dim, 1),
         k = normal<double>(p.keys * p.kv_heads * p.head_dim, 2), v = normal<double>(p.keys * p.kv_heads * p.v_dim, 3);
    const auto dout = normal<double>(p.queries * p.q_heads * p.v_dim, 4);
    std::vector<double> out(dout.size()), lse(static_cast<std::size_t>(p.queries * p.q_heads));
    const auto value = [&] {
      forward(backend, p, q, k, v, 0.4, out, lse);
      return dot(out, dout);
    };
    value();
    const double bad = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> dq(q.size(), bad), dk(k.size(), bad), dv(v.size(), bad);
    hc::run<hc::ops::attention_backward>(
        backend, rows_of(dout, p.queries, p.q_heads, p.v_dim),
        rows_of(std::as_const(q), p.queries, p.q_heads, p.head_dim),
        rows_of(std::as_const(k), p.keys, p.kv_heads, p.head_dim),
        rows_of(std::as_const(v), p.keys, p.kv_heads, p.v_dim),
        rows_of(std::as_const(out), p.queries, p.q_heads, p.v_dim), vec(std::as_const(lse)), p.slices, 0.4,
        rows_of(dq, p.queries, p.q_heads, p.head_dim), rows_of(dk, p.keys, p.kv_heads, p.head_dim),
        rows_of(dv, p.keys, p.kv_heads, p.v_dim), hc::key_pages{});
    CAPTURE(p.name);
    CHECK(distance(dq, finite_differences(q, value)) <= 1e-8);
    CHECK(distance(dk, finite_differences(k, value)) <= 1e-8);
    CHECK(distance(dv, finite_differences(v, value)) <= 1e-8);
  }
}

TEST_CASE("a query that sees no key is 0 beside values that are no numbers", "[compute][attention]") {
  const problem p{"", 3, 1, 1, 1, 2, 2, {{0, 3, 0, 1, slice_mask::causal}}};
  hc::host<> backend;
  const auto q = normal<double>(6, 1), k = normal<double>(2, 2);
  const std::vector<double> v(2, std::numeric_limits<double>::quiet_NaN());
  std::vector<double> out(6, 7.0), lse(3);
  forward(backend, p, q, k, v, 0.4, out, lse);
  for (std::size_t i = 0; i < 4; ++i) CHECK(out[i] == 0.0);
  CHECK(std::isnan(out[4]));
  CHECK(lse[1] == -std::numeric_limits<double>::infinity());
}

TEST_CASE("the number of threads changes no bit of attention over slices", "[compute][attention]") {
  for (const problem& p : problems()) {
    const auto q = normal<float>(p.queries * p.q_heads * p.head_dim, 1),
               k = normal<float>(p.keys * p.kv_heads * p.head_dim, 2),
               v = normal<float>(p.keys * p.kv_heads * p.v_dim, 3),
               dout = normal<float>(p.queries * p.q_heads * p.v_dim, 4);
    std::vector<std::vector<float>> first;
    for (const int threads : {1, 2, 5}) {
      hc::host<> backend(threads);
      std::vector<float> out(dout.size()), lse(static_cast<std::size_t>(p.queries * p.q_heads)), dq(q.size()),
          dk(k.size()), dv(v.size());
      forward(backend, p, q, k, v, 0.4f, out, lse);
      hc::run<hc::ops::attention_backward>(
          backend, rows_of(dout, p.queries, p.q_heads, p.v_dim), rows_of(q, p.queries, p.q_heads, p.head_dim),
          rows_of(k, p.keys, p.kv_heads, p.head_dim), rows_of(v, p.keys, p.kv_heads, p.v_dim),
          rows_of(std::as_const(out), p.queries, p.q_heads, p.v_dim), vec(std::as_const(lse)), p.slices, 0.4f,
          rows_of(dq, p.queries, p.q_heads, p.head_dim), rows_of(dk, p.keys, p.kv_heads, p.head_dim),
          rows_of(dv, p.keys, p.kv_heads, p.v_dim), hc::key_pages{});
      const std::vector<std::vector<float>> now = {out, lse, dq, dk, dv};
      if (first.empty()) first = now;
      CAPTURE(p.name, threads);
      for (std::size_t i = 0; i < now.size(); ++i) CHECK(same_bits(now[i], first[i]));
    }
  }
}

TEST_CASE("a token has the bits of its row among others, whatever heads share its keys", "[compute][attention]") {
  const auto check = [](int64_t q_heads, int64_t kv_heads, int64_t head_dim, int64_t rows) {
    const problem all{"", rows, rows, q_heads, kv_heads, head_dim, head_dim, {{0, rows, 0, rows, slice_mask::causal}}};
    const auto q = normal<float>(rows * q_heads * head_dim, 1), k = normal<float>(rows * kv_heads * head_dim, 2),
               v = normal<float>(rows * kv_heads * head_dim, 3);
    hc::host<hc::portable> backend(2);
    std::vector<float> out(q.size()), lse(static_cast<std::size_t>(rows * q_heads));
    forward(backend, all, q, k, v, 0.4f, out, lse);
    const auto width = static_cast<std::ptrdiff_t>(q_heads * head_dim);
    for (int64_t r = 0; r < rows; ++r) {
      problem one = all;
      one.queries = 1;
      one.slices = {{0, 1, 0, r + 1, slice_mask::full}};
      const auto from = static_cast<std::ptrdiff_t>(r) * width;
      const std::vector<float> q_row(q.begin() + from, q.begin() + from + width);
      std::vector<float> out_row(q_row.size()), lse_row(static_cast<std::size_t>(q_heads));
      forward(backend, one, q_row, k, v, 0.4f, out_row, lse_row);
      CAPTURE(q_heads, kv_heads, head_dim, r);
      CHECK(same_bits(out_row, std::vector<float>(out.begin() + from, out.begin() + from + width)));
      for (int64_t h = 0; h < q_heads; ++h)
        CHECK(lse_row[static_cast<std::size_t>(h)] == lse[static_cast<std::size_t>(h * rows + r)]);
    }
  };
  check(6, 2, 64, 40);
  check(14, 1, 5, 35);
  check(3, 3, 16, 9);
}

TEST_CASE("keys in pages give what keys in a row give, also where pages are shared", "[compute][attention]") {
  constexpr int64_t page_rows = 4, physical = 7;
  const std::vector<std::int32_t> pages = {5, 0, 3, 1, 5, 6};  // two sequences whose first pages are one
  const problem paged{"paged", 5, 24, 4,
                      2,       3, 3,  {{0, 2, 0, 11, slice_mask::causal}, {2, 5, 16, 24, slice_mask::causal}}};
  const auto q = normal<double>(5 * 4 * 3, 1), k = normal<double>(physical * page_rows * 2 * 3, 2),
             v = normal<double>(physical * page_rows * 2 * 3, 3), dout = normal<double>(5 * 4 * 3, 4);
  std::vector<double> k_row, v_row;
  for (const std::int32_t page : pages)
    for (int64_t i = 0; i < page_rows * 2 * 3; ++i) {
      k_row.push_back(k[static_cast<std::size_t>(page * page_rows * 2 * 3 + i)]);
      v_row.push_back(v[static_cast<std::size_t>(page * page_rows * 2 * 3 + i)]);
    }
  hc::host<> backend(2);
  std::vector<double> out(q.size()), lse(20), want(q.size()), want_lse(20);
  forward(backend, paged, q, k_row, v_row, 0.4, want, want_lse);
  forward(backend, paged, q, k, v, 0.4, out, lse, {pages, page_rows}, physical * page_rows);
  CHECK(distance(out, want) <= 1e-14);
  CHECK(distance(lse, want_lse) <= 1e-14);

  std::vector<double> dq(q.size()), dk(k.size()), dv(v.size()), want_dq(q.size()), dk_row(k_row.size()),
      dv_row(v_row.size());
  const auto backward = [&](const std::vector<double>& keys, const std::vector<double>& values, int64_t rows,
                            std::vector<double>& a, std::vector<double>& b, std::vector<double>& c,
                            hc::key_pages table) {
    hc::run<hc::ops::attention_backward>(
        backend, rows_of(dout, 5, 4, 3), rows_of(q, 5, 4, 3), rows_of(keys, rows, 2, 3), rows_of(values, rows, 2, 3),
        rows_of(std::as_const(want), 5, 4, 3), vec(std::as_const(want_lse)), paged.slices, 0.4, rows_of(a, 5, 4, 3),
        rows_of(b, rows, 2, 3), rows_of(c, rows, 2, 3), table);
  };
  backward(k_row, v_row, 24, want_dq, dk_row, dv_row, {});
  backward(k, v, physical * page_rows, dq, dk, dv, {pages, page_rows});
  std::vector<double> want_dk(k.size()), want_dv(v.size());
  for (std::size_t i = 0; i < dk_row.size(); ++i) {
    const std::size_t in = page_rows * 2 * 3, at = static_cast<std::size_t>(pages[i / in]) * in + i % in;
    want_dk[at] += dk_row[i];
    want_dv[at] += dv_row[i];
  }
  CHECK(distance(dq, want_dq) <= 1e-13);
  CHECK(distance(dk, want_dk) <= 1e-13);
  CHECK(distance(dv, want_dv) <= 1e-13);
}

TEMPLATE_TEST_CASE("keys in blocks by head give the bits of keys in blocks by row", "[compute][attention]", double,
                   float, hd::bf16) {
  using T = TestType;
  using sum = hd::sum_of_type<T>;
  constexpr int64_t block_rows = 4, blocks = 7, heads = 2, size = 3, rows = block_rows * blocks;
  const auto numbers = [](int64_t n, std::uint64_t stream) {
    std::vector<T> x;
    for (const double v : normal<double>(n, stream)) x.push_back(T(static_cast<sum>(v)));
    return x;
  };
  hc::host<> backend{1};
  const auto q = numbers(6 * 4 * size, 1);
  const std::vector<std::int32_t> pages = {5, 0, 3, 1, 6};
  std::vector<std::int32_t> places;  // all rows, scattered
  for (std::int32_t r = 0; r < rows; ++r) places.push_back(r * 5 % static_cast<std::int32_t>(rows));
  std::vector<T> outs[2];
  std::vector<sum> lses[2];
  for (const bool by_head : {false, true}) {
    std::vector<T> cache[2];
    hc::head_rows<T> kept[2];
    for (const int which : {0, 1}) {
      const auto x = numbers(rows * heads * size, 2 + static_cast<std::uint64_t>(which));
      cache[which].resize(x.size());
      kept[which] = {cache[which].data(), rows, heads, size, heads * size};
      if (by_head) kept[which] = {cache[which].data(), rows, heads, size, size, block_rows * size};
      hc::run<hc::ops::store_rows>(backend, hc::head_rows<const T>{x.data(), rows, heads, size, heads * size}, places,
                                   kept[which]);
      // Element by element, as the layout says.
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t h = 0; h < heads; ++h)
          for (int64_t d = 0; d < size; ++d) {
            const int64_t at = places[static_cast<std::size_t>(r)], block = at / block_rows, in = at % block_rows;
            const int64_t there =
                by_head ? ((block * heads + h) * block_rows + in) * size + d : (at * heads + h) * size + d;
            REQUIRE(cache[which][static_cast<std::size_t>(there)] ==
                    x[static_cast<std::size_t>((r * heads + h) * size + d)]);
          }
    }
    outs[by_head].resize(6 * 4 * size);
    lses[by_head].resize(6 * 4);
    // A sequence of one page, one of several, and a query that is alone.
    const std::vector<attention_slice> slices = {
        {0, 2, 0, 3, slice_mask::causal}, {2, 5, 4, 18, slice_mask::causal}, {5, 6, 9, 20, slice_mask::full}};
    hc::run<hc::ops::attention>(backend, hc::head_rows<const T>{q.data(), 6, 4, size, 4 * size}, kept[0], kept[1],
                                slices, sum(0.4), hc::head_rows<T>{outs[by_head].data(), 6, 4, size, 4 * size},
                                std::span(lses[by_head]), hc::key_pages{pages, block_rows});
    if (by_head) {
      auto d = numbers(rows * heads * size, 9);
      const hc::head_rows<T> to{d.data(), rows, heads, size, heads * size};
      const hc::head_rows<T> out{outs[1].data(), 6, 4, size, 4 * size};
      auto dq = q;
      CHECK_THROWS_WITH(hc::run<hc::ops::attention_backward>(
                            backend, out, hc::head_rows<const T>{q.data(), 6, 4, size, 4 * size}, kept[0], kept[1], out,
                            lses[1], slices, sum(0.4), hc::head_rows<T>{dq.data(), 6, 4, size, 4 * size}, to, to,
                            hc::key_pages{pages, block_rows}),
                        Catch::Contains("should lie row by row, got blocks by head"));
      for (const int64_t of_page : {int64_t{0}, 2 * block_rows})
        CHECK_THROWS_WITH(
            hc::run<hc::ops::attention>(
                backend, hc::head_rows<const T>{q.data(), 6, 4, size, 4 * size},
                hc::head_rows<T>{kept[0].data, 2 * block_rows, heads, size, size, block_rows * size},
                hc::head_rows<T>{kept[1].data, 2 * block_rows, heads, size, size, block_rows * size}, slices, sum(0.4),
                hc::head_rows<T>{outs[1].data(), 6, 4, size, 4 * size}, std::span(lses[1]), hc::key_pages{{}, of_page}),
            Catch::Contains("by head should be whole pages"));
    }
  }
  REQUIRE(outs[0] == outs[1]);
  REQUIRE(lses[0] == lses[1]);
}

TEST_CASE("shares of the keys, with the whole's lse, add up to the whole's gradients", "[compute][attention]") {
  const problem whole{"whole", 12, 12, 2, 2, 4, 4, {{0, 12, 0, 12, slice_mask::causal}}};
  const auto q = normal<double>(96, 1), k = normal<double>(96, 2), v = normal<double>(96, 3),
             dout = normal<double>(96, 4);
  hc::host<> backend;
  std::vector<double> out(96), lse(24);
  forward(backend, whole, q, k, v, 0.4, out, lse);
  const auto gradients = [&](std::span<const attention_slice> slices) {
    std::vector<double> dq(96), dk(96), dv(96);
    hc::run<hc::ops::attention_backward>(backend, rows_of(dout, 12, 2, 4), rows_of(q, 12, 2, 4), rows_of(k, 12, 2, 4),
                                         rows_of(v, 12, 2, 4), rows_of(std::as_const(out), 12, 2, 4),
                                         vec(std::as_const(lse)), slices, 0.4, rows_of(dq, 12, 2, 4),
                                         rows_of(dk, 12, 2, 4), rows_of(dv, 12, 2, 4), hc::key_pages{});
    dq.insert(dq.end(), dk.begin(), dk.end());
    dq.insert(dq.end(), dv.begin(), dv.end());
    return dq;
  };
  const auto want = gradients(whole.slices);
  std::vector<double> sum(want.size());
  for (int64_t part = 0; part < 3; ++part) {
    const auto share = gradients(hc::causal_at(0, 12, 0, 4 * part, 4 * part + 4, 4 * part));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += share[i];
  }
  CHECK(distance(sum, want) <= 1e-13);
}

TEST_CASE("arguments of attention that do not fit are named", "[compute][attention]") {
  hc::host<> backend;
  std::vector<double> x(1000), lse(8);
  const auto run = [&](hc::head_rows<double> q, hc::head_rows<double> k, hc::head_rows<double> v, attention_slice s,
                       double scale, hc::key_pages pages = {}) {
    const std::vector<attention_slice> slices{s};
    hc::run<hc::ops::attention>(backend, q, k, v, slices, scale, rows_of(x, 2, 4, 5), vec(lse), pages);
  };
  const auto q = rows_of(x, 2, 4, 3), k = rows_of(x, 6, 2, 3), v = rows_of(x, 6, 2, 5);
  const attention_slice fits{0, 2, 0, 6, slice_mask::full};
  run(q, k, v, fits, 1.0);
  CHECK_THROWS_WITH(run(q, rows_of(x, 6, 3, 3), rows_of(x, 6, 3, 5), fits, 1.0),
                    Catch::Contains("heads of q should be a multiple of the 3 heads of k, got 4"));
  CHECK_THROWS_WITH(run(q, rows_of(x, 6, 2, 4), v, fits, 1.0),
                    Catch::Contains("columns of a head of k should be 3, got 4"));
  CHECK_THROWS_WITH(run(q, k, rows_of(x, 5, 2, 5), fits, 1.0), Catch::Contains("rows of v should be 6, got 5"));
  CHECK_THROWS_WITH(
      run(q, k, v, {0, 3, 0, 6, slice_mask::full}, 1.0),
      Catch::Contains("slices should lie in 2 queries by 6 keys, got queries [0, 3) by keys [0, 6), full"));
  CHECK_THROWS_WITH(run(q, k, v, fits, -1.0), Catch::Contains("the scale of scores should be a positive number"));
  CHECK_THROWS_WITH(run(q, k, v, fits, 1.0, {std::vector<std::int32_t>{0, 3}, 2}),
                    Catch::Contains("pages should be from 0 to 2, got 3"));
  CHECK_THROWS_WITH(run(q, k, v, fits, 1.0, {std::vector<std::int32_t>{0}, 4}),
                    Catch::Contains("should be whole pages, got pages of 4 rows"));
  CHECK_THROWS_WITH(run(q, k, v, fits, 1.0, {std::vector<std::int32_t>{0, 1}, 0}),
                    Catch::Contains("a table of 2 pages needs the number of rows in a page, got 0"));
  CHECK_THROWS_WITH(run({x.data(), 2, 4, 3, 11}, k, v, fits, 1.0),
                    Catch::Contains("rows of q should be at least 12 elements apart, got 11"));
  CHECK_THROWS_WITH(hc::heads_of(matrix(x, 10, 100), int64_t{1} << 32, int64_t{1} << 32),
                    Catch::Contains("should lie in a matrix of 100 columns"));
  CHECK_THROWS_WITH(hc::heads_of(matrix(x, 10, 100), 4, 3, 90),
                    Catch::Contains("4 heads of 3 columns from column 90 on should lie in a matrix of 100 columns"));
}
