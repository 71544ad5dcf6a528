#include "catch.hpp"
#include "gemms.hpp"
#include "support.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

using namespace compute_test;

namespace {

using ids = std::vector<std::int32_t>;

/// The chosen experts of one row by sorting all of them.
template <class T>
ids sorted_choice(const T* row, int64_t experts, int64_t k) {
  ids all(static_cast<std::size_t>(experts));
  std::iota(all.begin(), all.end(), 0);
  std::stable_sort(all.begin(), all.end(), [row](std::int32_t a, std::int32_t b) { return row[a] > row[b]; });
  all.resize(static_cast<std::size_t>(k));
  return all;
}

template <class Rule>
std::vector<long double> slow_weights(const double* row, int64_t experts, const ids& chosen) {
  long double sum = 0;
  if constexpr (std::is_same_v<Rule, hc::softmax_of_all>)
    for (int64_t e = 0; e < experts; ++e) sum += std::exp(static_cast<long double>(row[e]));
  else
    for (const std::int32_t e : chosen) sum += std::exp(static_cast<long double>(row[e]));
  std::vector<long double> w;
  for (const std::int32_t e : chosen) w.push_back(std::exp(static_cast<long double>(row[e])) / sum);
  return w;
}

struct routed {
  std::vector<int64_t> offsets;
  ids sources, places;
  routed(const ids& chosen, int64_t tokens, int64_t k, int64_t experts, int64_t first = 0)
      : offsets(static_cast<std::size_t>(experts + 1), -7), sources(chosen.size(), -7), places(chosen.size(), -7) {
    hc::host<> alone;
    hc::run<hc::ops::route>(alone, matrix(chosen, tokens, k), first, vec(offsets), vec(sources),
                            matrix(places, tokens, k));
  }
};

/// k different experts for each token.
ids different_experts(int64_t tokens, int64_t k, int64_t experts, std::uint64_t stream) {
  const auto noise = normal<double>(tokens * experts, stream);
  ids all;
  for (int64_t t = 0; t < tokens; ++t)
    for (const std::int32_t e : sorted_choice(noise.data() + t * experts, experts, k)) all.push_back(e);
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("top_k chooses as a stable sort does, weighs as its rule says, and differentiates",
                   "[compute][experts]", hc::softmax_of_chosen, hc::softmax_of_all) {
  struct size {
    int64_t tokens, experts, k;
  };
  for (const auto [tokens, experts, k] :
       {size{0, 4, 2}, size{1, 1, 1}, size{7, 5, 2}, size{33, 64, 6}, size{3, 4, 4}, size{5, 8, 0}, size{700, 60, 4}}) {
    CAPTURE(tokens, experts, k);
    hc::host<> backend(3);
    auto logits = normal<double>(tokens * experts, 11, 2.0);
    ids chosen(static_cast<std::size_t>(tokens * k));
    std::vector<double> weights(chosen.size()), dlogits(logits.size(), NAN);
    const auto forward = [&] {
      hc::run<hc::ops::top_k<TestType>>(backend, matrix(std::as_const(logits), tokens, experts),
                                        matrix(chosen, tokens, k), matrix(weights, tokens, k));
    };
    forward();
    std::vector<long double> want;
    ids want_chosen;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto best = sorted_choice(logits.data() + t * experts, experts, k);
      want_chosen.insert(want_chosen.end(), best.begin(), best.end());
      for (const long double w : slow_weights<TestType>(logits.data() + t * experts, experts, best)) want.push_back(w);
    }
    CHECK(chosen == want_chosen);
    CHECK(distance(weights, want) <= 1e-14);
    const auto dweights = normal<double>(tokens * k, 12);
    hc::run<hc::ops::top_k_backward<TestType>>(
        backend, matrix(std::as_const(logits), tokens, experts), matrix(std::as_const(chosen), tokens, k),
        matrix(std::as_const(weights), tokens, k), matrix(dweights, tokens, k), matrix(dlogits, tokens, experts));
    if (tokens <= 33) {
      const auto value = [&] {
        forward();
        return dot(weights, dweights);
      };
      CHECK(distance(dlogits, finite_differences(logits, value)) <= 1e-8);
    }
    const std::vector<float> narrow(logits.begin(), logits.end());
    ids chosen_in_float(chosen.size());
    std::vector<float> w(chosen.size());
    hc::run<hc::ops::top_k<TestType>>(backend, matrix(narrow, tokens, experts), matrix(chosen_in_float, tokens, k),
                                      matrix(w, tokens, k));
    forward();
    CHECK(distance(w, weights) <= 2e-6);
  }
}

TEST_CASE("top_k breaks ties by the lower id and shows NaN", "[compute][experts]") {
  hc::host<> backend;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits{1, 3, 3, 2, 3, 0, 0, 0, 0, 0, 1, nan, 5, nan, 2};
  ids chosen(9);
  std::vector<float> weights(9);
  hc::run<hc::ops::top_k<hc::softmax_of_chosen>>(backend, matrix(logits, 3, 5), matrix(chosen, 3, 3),
                                                 matrix(weights, 3, 3));
  CHECK(chosen == ids{1, 2, 4, 0, 1, 2, 1, 3, 2});
  CHECK(weights[4] == Approx(1.0 / 3));
  CHECK(std::isnan(weights[6]));
  ids too_many(18);
  std::vector<float> w(18);
  CHECK_THROWS_WITH(hc::run<hc::ops::top_k<hc::softmax_of_all>>(backend, matrix(logits, 3, 5), matrix(too_many, 3, 6),
                                                                matrix(w, 3, 6)),
                    "heddle: top_k: at most all of the 5 experts can be chosen, got ids of 6 columns");
}

TEMPLATE_TEST_CASE("experts keep the choices that fewer than so many others come before", "[compute][experts]",
                   hc::keep_heaviest, hc::keep_first) {
  hc::host<> alone;
  const int64_t tokens = 23, experts = 5, k = 3;
  const ids chosen = different_experts(tokens, k, experts, 21);
  auto weights = normal<double>(tokens * k, 22);
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (i % 3 == 0) weights[i] = 0.25;  // ties, which go to the lower token
  for (const int64_t most : {0, 1, 4, 9, 23}) {
    CAPTURE(most);
    ids kept(chosen.size(), -7);
    hc::run<hc::ops::limit_choices<TestType>>(alone, matrix(std::as_const(chosen), tokens, k),
                                              matrix(std::as_const(weights), tokens, k), experts, most,
                                              matrix(kept, tokens, k));
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      int64_t before = 0;
      for (std::size_t j = 0; j < chosen.size(); ++j) {
        if (i == j || chosen[i] != chosen[j]) continue;
        const bool heavier = std::is_same_v<TestType, hc::keep_heaviest> && weights[j] != weights[i];
        before += heavier ? weights[j] > weights[i] : j < i;
      }
      CHECK(kept[i] == (before < most ? chosen[i] : -1));
    }
  }
  // Choices that are none stay so, and take no place; ids outside are refused.
  ids few{0, -1, 0, 0}, left(4, -7);
  const std::vector<double> alike(4, 1.0);
  hc::run<hc::ops::limit_choices<TestType>>(alone, matrix(std::as_const(few), 4, 1), matrix(alike, 4, 1), 1, 2,
                                            matrix(left, 4, 1));
  CHECK(left == ids{0, -1, 0, -1});
  CHECK_THROWS_AS(hc::run<hc::ops::limit_choices<TestType>>(alone, matrix(std::as_const(few), 4, 1),
                                                            matrix(alike, 2, 2), 1, 2, matrix(left, 4, 1)),
                  hd::layout_error);
  few[0] = 1;
  CHECK_THROWS_AS(hc::run<hc::ops::limit_choices<TestType>>(alone, matrix(std::as_const(few), 4, 1),
                                                            matrix(alike, 4, 1), 1, 2, matrix(left, 4, 1)),
                  hd::layout_error);
}

TEST_CASE("route is the stable sort of the choices by expert", "[compute][experts]") {
  struct size {
    int64_t tokens, k, experts, first, all;
  };
  for (const auto [tokens, k, experts, first, all] :
       {size{0, 2, 3, 0, 3}, size{1, 1, 1, 0, 1}, size{13, 2, 5, 0, 5}, size{13, 2, 5, 2, 9}, size{50, 3, 40, 0, 40},
        size{9, 1, 0, 0, 4}, size{20, 2, 3, 6, 6}}) {
    CAPTURE(tokens, k, experts, first, all);
    const ids chosen = different_experts(tokens, k, all, 21);
    const routed r(chosen, tokens, k, experts, first);
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < chosen.size(); ++i)
      if (chosen[i] >= first && chosen[i] < first + experts) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return chosen[a] < chosen[b]; });
    ids sources(chosen.size(), -1), places(chosen.size(), -1);
    std::vector<int64_t> offsets(static_cast<std::size_t>(experts + 1));
    for (std::size_t row = 0; row < order.size(); ++row) {
      sources[row] = static_cast<std::int32_t>(static_cast<int64_t>(order[row]) / k);
      places[order[row]] = static_cast<std::int32_t>(row);
    }
    for (int64_t e = 0; e <= experts; ++e)
      offsets[static_cast<std::size_t>(e)] = std::count_if(
          order.begin(), order.end(), [&, e = e, first = first](auto i) { return chosen[i] < first + e; });
    CHECK(r.offsets == offsets);
    CHECK(r.sources == sources);
    CHECK(r.places == places);
  }
}

TEMPLATE_TEST_CASE("rows go to their experts and come back weighted, with gradients", "[compute][experts]", float,
                   double) {
  using T = TestType;
  struct size {
    int64_t tokens, k, experts, width, here;
  };
  for (const auto [tokens, k, experts, width, here] :
       {size{0, 2, 3, 5, 3}, size{1, 1, 1, 1, 1}, size{11, 2, 5, 7, 5}, size{9, 3, 6, 3, 2}, size{4, 2, 4, 0, 4}}) {
    CAPTURE(tokens, k, experts, width, here);
    const int64_t n = tokens * k;
    const ids chosen = different_experts(tokens, k, experts, 31);
    const routed r(chosen, tokens, k, here);
    auto wide_x = normal<double>(tokens * width, 32), wide_w = normal<double>(n, 33);
    const std::vector<double> scale = normal<double>(n * width, 35), dout = normal<double>(tokens * width, 34);
    // y[row] = scale[row] * x[source], and back with weights; in slow formulas, in double.
    const auto value = [&](std::vector<double>* out) {
      std::vector<double> sum(static_cast<std::size_t>(tokens * width));
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t j = 0; j < k; ++j) {
          const auto row = r.places[static_cast<std::size_t>(t * k + j)];
          if (row < 0) continue;
          for (int64_t c = 0; c < width; ++c)
            sum[static_cast<std::size_t>(t * width + c)] += wide_w[static_cast<std::size_t>(t * k + j)] *
                                                            scale[static_cast<std::size_t>(row * width + c)] *
                                                            wide_x[static_cast<std::size_t>(t * width + c)];
        }
      if (out != nullptr) *out = sum;
      return dot(sum, dout);
    };
    std::vector<double> want;
    value(&want);
    const auto narrow = [](const std::vector<double>& from) { return std::vector<T>(from.begin(), from.end()); };
    const auto x = narrow(wide_x), w = narrow(wide_w), s = narrow(scale), d = narrow(dout);
    hc::host<> backend(2);
    std::vector<T> y(s.size(), T(NAN)), out(x.size(), T(NAN)), dy(s.size(), T(NAN)), dw(w.size(), T(NAN)),
        dx(x.size(), T(NAN));
    const auto places = matrix(r.places, tokens, k);
    hc::run<hc::ops::permute>(backend, matrix(x, tokens, width), r.sources, matrix(y, n, width));
    for (int64_t i = r.offsets.back(); i < n; ++i)
      for (int64_t c = 0; c < width; ++c) CHECK(y[static_cast<std::size_t>(i * width + c)] == T(0));
    for (std::size_t i = 0; i < y.size(); ++i) y[i] *= s[i];
    hc::run<hc::ops::unpermute>(backend, matrix(std::as_const(y), n, width), places, matrix(w, tokens, k),
                                matrix(out, tokens, width));
    CHECK(distance(out, want) <= tolerance<T>);
    hc::run<hc::ops::unpermute_backward>(backend, matrix(d, tokens, width), matrix(std::as_const(y), n, width), places,
                                         matrix(w, tokens, k), matrix(dy, n, width), matrix(dw, tokens, k));
    for (std::size_t i = 0; i < dy.size(); ++i) dy[i] *= s[i];
    hc::run<hc::ops::permute_backward>(backend, matrix(std::as_const(dy), n, width), places, matrix(dx, tokens, width));
    const double bound = std::is_same_v<T, float> ? 4e-6 : 1e-8;
    CHECK(distance(dx, finite_differences(wide_x, [&] { return value(nullptr); })) <= bound);
    CHECK(distance(dw, finite_differences(wide_w, [&] { return value(nullptr); })) <= bound);
    // In the place of y.
    auto same = y;
    std::vector<T> dw2(dw.size());
    hc::run<hc::ops::unpermute_backward>(backend, matrix(d, tokens, width), matrix(std::as_const(same), n, width),
                                         places, matrix(w, tokens, k), matrix(same, n, width), matrix(dw2, tokens, k));
    for (std::size_t i = 0; i < same.size(); ++i) same[i] *= s[i];
    CHECK(same_bits(same, dy));
    CHECK(same_bits(dw2, dw));
  }
}

TEMPLATE_TEST_CASE("grouped products equal a product for each row, also for experts without rows", "[compute][experts]",
                   HEDDLE_TEST_GEMMS) {
  const auto check = [&]<class T>(T) {
    for (const std::vector<int64_t>& counts :
         {std::vector<int64_t>{}, {0}, {5}, {0, 0, 3}, {4, 0, 1, 9, 0}, {1, 2, 3, 4, 5, 6, 7}}) {
      const auto experts = static_cast<int64_t>(counts.size());
      std::vector<int64_t> offsets{0};
      for (const int64_t c : counts) offsets.push_back(offsets.back() + c);
      const int64_t rows = offsets.back() + 2, in = 7, wide = 5;  // the last two are no expert's
      const auto x = normal<T>(rows * in, 41), w = normal<T>(experts * in * wide, 42), dy = normal<T>(rows * wide, 43),
                 dw0 = normal<T>(experts * in * wide, 44);
      const auto stack = [&](auto& v, int64_t a, int64_t b) {
        using E = std::remove_reference_t<decltype(v[0])>;
        return hc::stack_view<E>(v.data(), hd::dynamic_shape<3>(experts, a, b));
      };
      std::vector<T> y(dy.size(), T(3)), dx(x.size(), T(3)), dw = dw0, turned(w.size());
      std::vector<long double> want_y(y.size(), 3), want_dx(dx.size(), 3), want_dw(dw0.begin(), dw0.end());
      for (int64_t e = 0; e < experts; ++e)
        for (int64_t i = 0; i < in; ++i)
          for (int64_t o = 0; o < wide; ++o)
            turned[static_cast<std::size_t>((e * wide + o) * in + i)] =
                w[static_cast<std::size_t>((e * in + i) * wide + o)];
      for (int64_t e = 0; e < experts; ++e)
        for (int64_t r = offsets[static_cast<std::size_t>(e)]; r < offsets[static_cast<std::size_t>(e) + 1]; ++r) {
          for (int64_t o = 0; o < wide; ++o) want_y[static_cast<std::size_t>(r * wide + o)] = 0;
          for (int64_t i = 0; i < in; ++i) want_dx[static_cast<std::size_t>(r * in + i)] = 0;
          for (int64_t i = 0; i < in; ++i)
            for (int64_t o = 0; o < wide; ++o) {
              const auto at = static_cast<std::size_t>((e * in + i) * wide + o);
              const auto ri = static_cast<std::size_t>(r * in + i), ro = static_cast<std::size_t>(r * wide + o);
              want_y[ro] += static_cast<long double>(x[ri]) * static_cast<long double>(w[at]);
              want_dx[ri] += static_cast<long double>(dy[ro]) * static_cast<long double>(w[at]);
              want_dw[at] += static_cast<long double>(x[ri]) * static_cast<long double>(dy[ro]);
            }
        }
      hc::host<TestType> backend(2);
      const auto no = hc::transpose::no, yes = hc::transpose::yes;
      hc::grouped_matmul<no>(backend, matrix(x, rows, in), vec(std::as_const(offsets)), stack(w, in, wide),
                             matrix(y, rows, wide));
      CHECK(distance(y, want_y) <= tolerance<T>);
      hc::grouped_matmul<yes>(backend, matrix(x, rows, in), vec(std::as_const(offsets)), stack(turned, wide, in),
                              matrix(y, rows, wide));
      CHECK(distance(y, want_y) <= tolerance<T>);
      hc::grouped_matmul<yes>(backend, matrix(dy, rows, wide), vec(std::as_const(offsets)), stack(w, in, wide),
                              matrix(dx, rows, in));
      CHECK(distance(dx, want_dx) <= tolerance<T>);
      hc::run<hc::ops::grouped_matmul_backward_weight>(backend, matrix(x, rows, in), matrix(dy, rows, wide),
                                                       vec(std::as_const(offsets)), stack(dw, in, wide), T(1));
      CHECK(distance(dw, want_dw) <= tolerance<T>);
    }
  };
  check(float{});
  check(double{});
  hc::host<TestType> backend;
  std::vector<float> x(6), w(8), y(6);
  const std::vector<int64_t> offsets{0, 4, 2};
  CHECK_THROWS_WITH(hc::grouped_matmul(backend, matrix(x, 3, 2), vec(offsets),
                                       hc::stack_view<float>(w.data(), hd::dynamic_shape<3>(2, 2, 2)), matrix(y, 3, 2)),
                    "heddle: grouped_matmul: offsets should not descend and be from 0 to 3, the rows of x, got 4 at 1");
}

TEST_CASE("grouped products of bf16 add up in float", "[compute][experts]") {
  const std::vector<int64_t> offsets{0, 3, 3, 7};
  const int64_t rows = 7, in = 5, wide = 6;
  const auto random = [](int64_t n, std::uint64_t stream) {
    std::vector<hd::bf16> x;
    for (const float v : normal<float>(n, stream)) x.push_back(hd::bf16(v));
    return x;
  };
  const auto x = random(rows * in, 51), w = random(3 * in * wide, 52), dy = random(rows * wide, 53);
  std::vector<float> y(dy.size()), dw(w.size(), 1.0f);
  std::vector<double> want_y(y.size()), want_dw(dw.size(), 1.0);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < in; ++i)
      for (int64_t o = 0; o < wide; ++o) {
        const auto at = static_cast<std::size_t>(((r < 3 ? 0 : 2) * in + i) * wide + o);
        const auto ri = static_cast<std::size_t>(r * in + i), ro = static_cast<std::size_t>(r * wide + o);
        want_y[ro] += static_cast<double>(x[ri]) * static_cast<double>(w[at]);
        want_dw[at] += static_cast<double>(x[ri]) * static_cast<double>(dy[ro]);
      }
  hc::host<> backend;
  const hd::dynamic_shape<3> shape(3, in, wide);
  hc::grouped_matmul(backend, matrix(x, rows, in), offsets, hc::stack_view<const hd::bf16>(w.data(), shape),
                     matrix(y, rows, wide));
  CHECK(distance(y, want_y) <= tolerance<float>);
  hc::run<hc::ops::grouped_matmul_backward_weight>(backend, matrix(x, rows, in), matrix(dy, rows, wide), offsets,
                                                   hc::stack_view<float>(dw.data(), shape), 1.0f);
  CHECK(distance(dw, want_dw) <= tolerance<float>);
  std::vector<hd::bf16> moved(x.size());
  const ids back{6, 5, 4, 3, 2, 1, 0};
  hc::run<hc::ops::permute>(backend, matrix(x, rows, in), back, matrix(moved, rows, in));  // rows of any element type
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < in; ++i)
      CHECK(moved[static_cast<std::size_t>(r * in + i)].bits == x[static_cast<std::size_t>((6 - r) * in + i)].bits);
}
