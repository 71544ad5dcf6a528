#include "catch.hpp"
#include "gemms.hpp"
#include "support.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

using namespace compute_test;

namespace {
/// The definition: softmax(q k^T / sqrt(d)) v over the keys up to the query's own.
template <class T>
void define(const std::vector<T>& qkv, const hc::attention_shape& s, std::vector<long double>& out,
            std::vector<long double>& lse) {
  const int64_t width = s.width(), n = s.sequence, d = s.head_dim;
  out.assign(static_cast<std::size_t>(s.rows() * width), 0);
  lse.assign(static_cast<std::size_t>(s.rows() * s.heads), 0);
  const auto at = [&](int64_t b, int64_t t, int64_t part, int64_t h, int64_t j) {
    return static_cast<long double>(qkv[static_cast<std::size_t>((b * n + t) * 3 * width + part * width + h * d + j)]);
  };
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t t = 0; t < n; ++t) {
        std::vector<long double> score(static_cast<std::size_t>(t) + 1);
        long double top = -INFINITY, sum = 0;
        for (int64_t u = 0; u <= t; ++u) {
          long double x = 0;
          for (int64_t j = 0; j < d; ++j) x += at(b, t, 0, h, j) * at(b, u, 1, h, j);
          score[static_cast<std::size_t>(u)] = x / std::sqrt(static_cast<long double>(d));
          top = (std::max)(top, score[static_cast<std::size_t>(u)]);
        }
        for (long double& x : score) sum += std::exp(x - top);
        for (int64_t u = 0; u <= t; ++u)
          for (int64_t j = 0; j < d; ++j)
            out[static_cast<std::size_t>((b * n + t) * width + h * d + j)] +=
                std::exp(score[static_cast<std::size_t>(u)] - top) / sum * at(b, u, 2, h, j);
        lse[static_cast<std::size_t>((h * s.batch + b) * n + t)] = top + std::log(sum);
      }
}
}  // namespace

TEMPLATE_TEST_CASE("attention equals its definition", "[compute][attention]", HEDDLE_TEST_GEMMS) {
  const auto check = [&]<class T>(T) {
    for (const int threads : {1, 3})
      for (const hc::attention_shape s : {hc::attention_shape{1, 1, 1, 1},
                                          {2, 5, 3, 4},
                                          {1, 64, 2, 16},
                                          {2, 65, 1, 8},
                                          {1, 130, 2, 5},
                                          {0, 4, 2, 2},
                                          {2, 0, 2, 2},
                                          {2, 3, 0, 4}}) {
        hc::host<TestType> backend(threads);
        const auto qkv = normal<T>(s.rows() * 3 * s.width(), 1);
        std::vector<T> out(static_cast<std::size_t>(s.rows() * s.width())),
            lse(static_cast<std::size_t>(s.rows() * s.heads));
        std::vector<long double> want, want_lse;
        hc::run<hc::ops::causal_attention>(backend, matrix(qkv, s.rows(), 3 * s.width()), s,
                                           matrix(out, s.rows(), s.width()), vec(lse));
        define(qkv, s, want, want_lse);
        CAPTURE(threads, s.batch, s.sequence, s.heads, s.head_dim);
        CHECK(distance(out, want) <= tolerance<T> * 4);
        CHECK(distance(lse, want_lse) <= tolerance<T> * 4);
      }
  };
  check(float{});
  check(double{});
}

TEMPLATE_TEST_CASE("attention's backward equals finite differences and overwrites", "[compute][attention]",
                   HEDDLE_TEST_GEMMS) {
  for (const hc::attention_shape s : {hc::attention_shape{1, 1, 1, 2}, {2, 5, 3, 4}, {1, 9, 2, 3}, {1, 67, 1, 2}}) {
    hc::host<TestType> backend(2);
    auto qkv = normal<double>(s.rows() * 3 * s.width(), 1);
    const auto dout = normal<double>(s.rows() * s.width(), 2);
    std::vector<double> out(dout.size()), lse(static_cast<std::size_t>(s.rows() * s.heads));
    const auto value = [&] {
      hc::run<hc::ops::causal_attention>(backend, matrix(std::as_const(qkv), s.rows(), 3 * s.width()), s,
                                         matrix(out, s.rows(), s.width()), vec(lse));
      return dot(out, dout);
    };
    value();
    std::vector<double> dqkv(qkv.size(), std::numeric_limits<double>::quiet_NaN());
    hc::run<hc::ops::causal_attention_backward>(backend, matrix(dout, s.rows(), s.width()),
                                                matrix(std::as_const(qkv), s.rows(), 3 * s.width()),
                                                matrix(std::as_const(out), s.rows(), s.width()),
                                                vec(std::as_const(lse)), s, matrix(dqkv, s.rows(), 3 * s.width()));
    CAPTURE(s.batch, s.sequence, s.heads, s.head_dim);
    CHECK(distance(dqkv, finite_differences(qkv, value)) <= 1e-7);
  }
}

TEST_CASE("a token does not see the ones after it", "[compute][attention]") {
  const hc::attention_shape s{1, 70, 2, 8};
  hc::host<> backend;
  auto qkv = normal<float>(s.rows() * 3 * s.width(), 1);
  std::vector<float> before(static_cast<std::size_t>(s.rows() * s.width())),
      lse(static_cast<std::size_t>(s.rows() * s.heads));
  auto after = before;
  hc::run<hc::ops::causal_attention>(backend, matrix(std::as_const(qkv), s.rows(), 3 * s.width()), s,
                                     matrix(before, s.rows(), s.width()), vec(lse));
  for (int64_t j = 0; j < 3 * s.width(); ++j) qkv[static_cast<std::size_t>(40 * 3 * s.width() + j)] += 3.0f;
  hc::run<hc::ops::causal_attention>(backend, matrix(std::as_const(qkv), s.rows(), 3 * s.width()), s,
                                     matrix(after, s.rows(), s.width()), vec(lse));
  const auto split = static_cast<std::ptrdiff_t>(40 * s.width());
  CHECK(std::equal(before.begin(), before.begin() + split, after.begin()));
  CHECK(std::mismatch(before.begin() + split, before.end(), after.begin() + split).first == before.begin() + split);
}

TEST_CASE("large scores do not overflow the softmax", "[compute][attention]") {
  const hc::attention_shape s{1, 20, 1, 4};
  hc::host<> backend;
  const auto qkv = normal<float>(s.rows() * 3 * s.width(), 1, 60.0);
  std::vector<float> out(static_cast<std::size_t>(s.rows() * s.width())), lse(20), dqkv(qkv.size());
  hc::run<hc::ops::causal_attention>(backend, matrix(qkv, 20, 12), s, matrix(out, 20, 4), vec(lse));
  CHECK(hc::all_finite(backend, vec(out)));
  CHECK(hc::all_finite(backend, vec(lse)));
  hc::run<hc::ops::causal_attention_backward>(backend, matrix(std::as_const(out), 20, 4), matrix(qkv, 20, 12),
                                              matrix(std::as_const(out), 20, 4), vec(std::as_const(lse)), s,
                                              matrix(dqkv, 20, 12));
  CHECK(hc::all_finite(backend, vec(dqkv)));
}
