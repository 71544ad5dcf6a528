#include "catch.hpp"
#include "support.hpp"

#include <heddle/compute/host/rotary.hpp>
#include <heddle/compute/yarn_scaling.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

using namespace compute_test;

namespace {
template <class T>
hc::head_rows<T> heads(std::vector<T>& x, int64_t rows, int64_t heads, int64_t d) {
  return {x.data(), rows, heads, d, heads * d};
}
template <class T>
hc::head_rows<const T> heads(const std::vector<T>& x, int64_t rows, int64_t heads, int64_t d) {
  return {x.data(), rows, heads, d, heads * d};
}
struct problem {
  int64_t rows, columns;
};
}  // namespace

TEMPLATE_TEST_CASE("rms norm equals its definition", "[compute][rms_norm]", float, double) {
  using T = TestType;
  for (const int threads : {1, 3})
    for (const problem s : {problem{0, 8}, {1, 1}, {5, 7}, {16, 64}, {33, 130}}) {
      hc::host<> backend(threads);
      const auto x = normal<T>(s.rows * s.columns, 1, 3.0), w = normal<T>(s.columns, 2);
      std::vector<T> y(x.size()), rstd(static_cast<std::size_t>(s.rows));
      hc::run<hc::ops::rms_norm>(backend, matrix(x, s.rows, s.columns), vec(w), T(1e-5), matrix(y, s.rows, s.columns),
                                 vec(rstd));
      std::vector<long double> want(x.size());
      for (int64_t i = 0; i < s.rows; ++i) {
        const auto at = [&](int64_t j) { return static_cast<std::size_t>(i * s.columns + j); };
        long double mean = 0;
        for (int64_t j = 0; j < s.columns; ++j)
          mean += static_cast<long double>(x[at(j)]) * x[at(j)] / static_cast<long double>(s.columns);
        const long double r = 1 / std::sqrt(mean + static_cast<long double>(T(1e-5)));
        for (int64_t j = 0; j < s.columns; ++j) want[at(j)] = x[at(j)] * r * w[static_cast<std::size_t>(j)];
        CHECK(static_cast<double>(rstd[static_cast<std::size_t>(i)]) == Approx(static_cast<double>(r)).epsilon(1e-6));
      }
      CHECK(distance(y, want) <= tolerance<T> * 2);
    }
  // (1, 2, 3, 4), eps 1e-5: numbers of the definition in double.
  hc::host<> backend;
  const std::vector<T> x{1, 2, 3, 4}, w(4, T(1));
  std::vector<T> y(4), rstd(1);
  hc::run<hc::ops::rms_norm>(backend, matrix(x, 1, 4), vec(w), T(1e-5), matrix(y, 1, 4), vec(rstd));
  CHECK(distance(y, std::vector<double>{.3651481282, .7302962565, 1.0954443847, 1.4605925130}) <=
        (std::is_same_v<T, float> ? 1e-6 : 1e-9));
}

TEST_CASE("rms norm's backward equals finite differences and adds", "[compute][rms_norm]") {
  for (const problem s : {problem{3, 5}, {2, 33}, {7, 4}}) {
    hc::host<> backend(2);
    auto x = normal<double>(s.rows * s.columns, 1), w = normal<double>(s.columns, 2);
    const auto dy = normal<double>(s.rows * s.columns, 4);
    std::vector<double> y(x.size()), rstd(static_cast<std::size_t>(s.rows));
    const auto value = [&] {
      hc::run<hc::ops::rms_norm>(backend, matrix(std::as_const(x), s.rows, s.columns), vec(std::as_const(w)), 1e-5,
                                 matrix(y, s.rows, s.columns), vec(rstd));
      return dot(y, dy);
    };
    value();
    std::vector<double> dx(x.size(), 0.5), dw(w.size(), -0.25);
    hc::run<hc::ops::rms_norm_backward_input>(backend, matrix(dy, s.rows, s.columns),
                                              matrix(std::as_const(x), s.rows, s.columns), vec(std::as_const(w)),
                                              vec(std::as_const(rstd)), matrix(dx, s.rows, s.columns));
    hc::run<hc::ops::rms_norm_backward_weight>(backend, matrix(dy, s.rows, s.columns),
                                               matrix(std::as_const(x), s.rows, s.columns), vec(std::as_const(rstd)),
                                               vec(dw));
    for (double& d : dx) d -= 0.5;
    for (double& d : dw) d += 0.25;
    CHECK(distance(dx, finite_differences(x, value)) <= 1e-8);
    CHECK(distance(dw, finite_differences(w, value)) <= 1e-8);
  }
}

TEST_CASE("rotary frequencies, plain and scaled as Llama 3.1 does, have the reference's values", "[compute][rotary]") {
  const auto plain = hc::rotary_frequencies(128, 5e5);
  const auto scaled = hc::rotary_frequencies(128, 5e5, {.factor = 8, .low = 1, .high = 4, .original = 8192});
  REQUIRE(scaled.size() == 64);
  for (std::size_t i = 0; i < 64; ++i) {
    CHECK(plain[i] == Approx(std::exp(-static_cast<double>(i) / 64 * std::log(5e5))).epsilon(1e-12));
    if (i <= 28) CHECK(scaled[i] == plain[i]);
    if (i >= 35) CHECK(scaled[i] == Approx(plain[i] / 8).epsilon(1e-15));
  }
  CHECK(scaled[29] == Approx(.00216657076350).epsilon(1e-9));
  CHECK(scaled[31] == Approx(.00085675141291).epsilon(1e-9));
  CHECK(scaled[34] == Approx(.00017850781277).epsilon(1e-9));
  CHECK(scaled[63] == Approx(3.06892598891e-7).epsilon(1e-9));
  // A factor of 1 leaves every bit, whatever would be blended.
  CHECK(same_bits(plain, hc::rotary_frequencies(128, 5e5, {.factor = 1, .low = 1e-9, .high = 1e9})));
  CHECK_THROWS_WITH(hc::rotary_frequencies(7, 1e4), Catch::Contains("should be an even number, got 7"));
  CHECK_THROWS_WITH(hc::rotary_frequencies(8, -1),
                    Catch::Contains("theta, factor, low and original should be positive"));
  CHECK_THROWS_AS((hc::rotary_table<float>(-1, plain)), hd::config_error);
}

// Values of transformers 5.23, `ROPE_INIT_FUNCTIONS["yarn"]`, in float32.
TEST_CASE("rotary frequencies scaled by YaRN have the reference's values", "[compute][rotary]") {
  const hc::yarn_scaling published{.factor = 40, .original = 4096, .mscale = 1, .mscale_all = 1};
  const auto of_deepseek = hc::rotary_frequencies(64, 1e4, published), plain = hc::rotary_frequencies(64, 1e4);
  REQUIRE(of_deepseek.size() == 32);
  for (std::size_t i = 0; i <= 10; ++i) CHECK(of_deepseek[i] == Approx(plain[i]).epsilon(1e-15));
  for (std::size_t i = 23; i < 32; ++i) CHECK(of_deepseek[i] == Approx(plain[i] / 40).epsilon(1e-15));
  CHECK(of_deepseek[11] == Approx(0.0390069261).epsilon(2e-7));
  CHECK(of_deepseek[16] == Approx(0.00550000044).epsilon(2e-7));
  CHECK(of_deepseek[22] == Approx(0.00017782794).epsilon(2e-6));
  CHECK(published.table_factor() == 1);
  CHECK(published.score_factor() == Approx(1.3688879454 * 1.3688879454).epsilon(1e-9));
  const hc::yarn_scaling other{.factor = 3, .fast = 6, .slow = 0.5, .original = 100, .whole = false};
  const std::vector<double> expected{1, 0.349217594, 0.0889450684, 0.0191440955, 0.00529133622, 0.00187817973};
  const auto found = hc::rotary_frequencies(12, 500, other);
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected[i]).epsilon(1e-6));
  CHECK(other.table_factor() == Approx(1.109861228866811).epsilon(1e-12));
  CHECK(other.score_factor() == 1);
  CHECK(hc::yarn_scaling{.factor = 3, .attention_factor = 0.5}.table_factor() == 0.5);
  CHECK(hc::yarn_scaling{.attention_factor = 0.5}.table_factor() == 0.5);
  CHECK(same_bits(plain, hc::rotary_frequencies(64, 1e4, hc::yarn_scaling{})));
  const hc::rotary_table<double> table(5, found, 1.25);
  CHECK(table.cosines()(3, 1) == Approx(1.25 * std::cos(3 * found[1])).epsilon(1e-15));
  CHECK(table.sines()(3, 1) == Approx(1.25 * std::sin(3 * found[1])).epsilon(1e-15));
  CHECK_THROWS_WITH(hc::rotary_frequencies(8, 1e4, hc::yarn_scaling{.factor = 2, .fast = 1, .slow = 2}),
                    Catch::Contains("fast at least slow"));
}

TEST_CASE("rotary embeddings have the reference's values in both layouts, and backward turns back",
          "[compute][rotary]") {
  hc::host<> backend(2);
  const hc::rotary_table<double> table(6, hc::rotary_frequencies(4, 1e4));
  const std::vector<double> x{1, 2, 3, 4};
  const std::vector<std::int32_t> one{1};
  std::vector<double> y(4);
  hc::run<hc::ops::rotary<hc::rotary_pairs::halves>>(backend, heads(x, 1, 1, 4), one, table.cosines(), table.sines(),
                                                     heads(y, 1, 1, 4));
  CHECK(distance(y, std::vector<double>{-1.9841106486, 1.9599006675, 2.4623779024, 4.0197996683}) <= 1e-10);
  hc::run<hc::ops::rotary<hc::rotary_pairs::neighbours>>(backend, heads(x, 1, 1, 4), one, table.cosines(),
                                                         table.sines(), heads(y, 1, 1, 4));
  CHECK(distance(y, std::vector<double>{-1.1426396637, 1.9220755965, 2.9598506679, 4.0297995017}) <= 1e-10);

  // Heads of 7 elements of which 4 turn; positions repeat and go back; in place and not.
  const auto in = normal<double>(5 * 3 * 7, 1), dy = normal<double>(5 * 3 * 7, 2);
  const std::vector<std::int32_t> at{5, 0, 2, 2, 4};
  const auto check = [&]<hc::rotary_pairs Pairs>() {
    auto moved = in;
    std::vector<double> out(in.size()), back(in.size());
    hc::run<hc::ops::rotary<Pairs>>(backend, heads(in, 5, 3, 7), at, table.cosines(), table.sines(),
                                    heads(out, 5, 3, 7));
    hc::run<hc::ops::rotary<Pairs>>(backend, heads(std::as_const(moved), 5, 3, 7), at, table.cosines(), table.sines(),
                                    heads(moved, 5, 3, 7));
    CHECK(same_bits(moved, out));
    hc::run<hc::ops::rotary_backward<Pairs>>(backend, heads(std::as_const(out), 5, 3, 7), at, table.cosines(),
                                             table.sines(), heads(back, 5, 3, 7));
    CHECK(distance(back, in) <= 1e-14);
    auto source = in;
    const auto value = [&] {
      hc::run<hc::ops::rotary<Pairs>>(backend, heads(std::as_const(source), 5, 3, 7), at, table.cosines(),
                                      table.sines(), heads(out, 5, 3, 7));
      return dot(out, dy);
    };
    hc::run<hc::ops::rotary_backward<Pairs>>(backend, heads(dy, 5, 3, 7), at, table.cosines(), table.sines(),
                                             heads(back, 5, 3, 7));
    CHECK(distance(back, finite_differences(source, value)) <= 1e-8);
  };
  check.operator()<hc::rotary_pairs::halves>();
  check.operator()<hc::rotary_pairs::neighbours>();

  const std::vector<std::int32_t> outside{6};
  CHECK_THROWS_WITH(hc::run<hc::ops::rotary<hc::rotary_pairs::halves>>(
                        backend, heads(x, 1, 1, 4), outside, table.cosines(), table.sines(), heads(y, 1, 1, 4)),
                    Catch::Contains("positions should be from 0 to 5, as the tables are, got 6"));
  CHECK_THROWS_WITH(
      hc::run<hc::ops::rotary<hc::rotary_pairs::halves>>(backend, heads(x, 2, 1, 2), std::vector<std::int32_t>{0, 1},
                                                         table.cosines(), table.sines(), heads(y, 2, 1, 2)),
      Catch::Contains("turn 4 elements, but a head has 2"));
}

TEST_CASE("scores of rotated queries and keys depend on the distance of their positions alone", "[compute][rotary]") {
  hc::host<> backend;
  const hc::rotary_table<double> table(64, hc::rotary_frequencies(16, 1e4));
  const auto q = normal<double>(16, 1), k = normal<double>(16, 2);
  const auto score = [&](std::int32_t qp, std::int32_t kp) {
    std::vector<double> a(16), b(16);
    hc::run<hc::ops::rotary<hc::rotary_pairs::halves>>(backend, heads(q, 1, 1, 16), std::vector<std::int32_t>{qp},
                                                       table.cosines(), table.sines(), heads(a, 1, 1, 16));
    hc::run<hc::ops::rotary<hc::rotary_pairs::halves>>(backend, heads(k, 1, 1, 16), std::vector<std::int32_t>{kp},
                                                       table.cosines(), table.sines(), heads(b, 1, 1, 16));
    return dot(a, b);
  };
  for (std::int32_t gap = 0; gap < 20; ++gap) CHECK(score(40 + gap, 40) == Approx(score(gap, 0)).epsilon(1e-11));
}

TEMPLATE_TEST_CASE("gated activations equal their definitions, their backward finite differences", "[compute][gated]",
                   hc::silu, hc::gelu_tanh, hc::relu, hc::clamped_swiglu) {
  constexpr bool clamps = std::is_same_v<TestType, hc::clamped_swiglu>;
  const auto activation = [](long double x) -> long double {
    if constexpr (std::is_same_v<TestType, hc::silu>)
      return x / (1 + std::exp(-x));
    else if constexpr (std::is_same_v<TestType, hc::relu>)
      return x > 0 ? x : 0;
    else if constexpr (clamps)
      return (std::min)(x, 7.0L) / (1 + std::exp(-1.702L * (std::min)(x, 7.0L)));
    else
      return x / 2 * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846L) * (x + 0.044715L * x * x * x)));
  };
  const auto factor = [](long double up) { return clamps ? (std::max)(-7.0L, (std::min)(up, 7.0L)) + 1 : up; };
  for (const int64_t n : {0, 1, 63, 64, 200, 40000}) {
    hc::host<> backend(3);
    auto gate = normal<double>(n, 1, clamps ? 6.0 : 2.0), up = normal<double>(n, 2, clamps ? 6.0 : 1.0);
    const auto dh = normal<double>(n, 3);
    std::vector<double> h(gate.size()), dgate(gate.size()), dup(gate.size());
    std::vector<long double> want(gate.size());
    for (std::size_t i = 0; i < want.size(); ++i) want[i] = activation(gate[i]) * factor(up[i]);
    hc::run<hc::ops::gated<TestType>>(backend, vec(std::as_const(gate)), vec(std::as_const(up)), vec(h));
    CHECK(distance(h, want) <= 1e-14);
    hc::run<hc::ops::gated_backward<TestType>>(backend, vec(std::as_const(gate)), vec(std::as_const(up)), vec(dh),
                                               vec(dgate), vec(dup));
    if (n <= 200) {
      const auto value = [&] {
        hc::run<hc::ops::gated<TestType>>(backend, vec(std::as_const(gate)), vec(std::as_const(up)), vec(h));
        return dot(h, dh);
      };
      CHECK(distance(dgate, finite_differences(gate, value)) <= 1e-8);
      CHECK(distance(dup, finite_differences(up, value)) <= 1e-8);
    }
    // Results in the places of the arguments.
    auto g = gate, u = up;
    hc::run<hc::ops::gated_backward<TestType>>(backend, vec(std::as_const(g)), vec(std::as_const(u)), vec(dh), vec(g),
                                               vec(u));
    CHECK(same_bits(g, dgate));
    CHECK(same_bits(u, dup));
  }
  // Far from zero: no NaN, and the limits.
  hc::host<> backend;
  const std::vector<float> far{-1e10f, -200.0f, 200.0f, 1e4f}, ones(4, 1.0f);
  std::vector<float> dgate(4), dup(4);
  hc::run<hc::ops::gated_backward<TestType>>(backend, vec(far), vec(ones), vec(ones), vec(dgate), vec(dup));
  CHECK(dgate == (clamps ? std::vector<float>{0, 0, 0, 0} : std::vector<float>{0, 0, 1, 1}));
  if constexpr (clamps) {  // at the limits derivatives are those within
    const std::vector<float> at{7.0f, 7.0f, std::nextafter(7.0f, 8.0f), 0.5f},
        beside{7.0f, -7.0f, 7.0f, std::nextafter(-7.0f, -8.0f)};
    hc::run<hc::ops::gated_backward<TestType>>(backend, vec(at), vec(beside), vec(ones), vec(dgate), vec(dup));
    CHECK((dgate[0] > 7.9f && dgate[1] < -5.9f && dgate[2] == 0.0f && dup[0] > 6.9f && dup[1] > 6.9f));
    CHECK((dgate[3] < 0.0f && dup[3] == 0.0f));
  }
}
