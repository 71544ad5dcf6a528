// Tokens drawn where the logits are, over the stand-in for the CUDA runtime: those of the host's sampler.
#include "emulated_launcher.hpp"

#include "catch.hpp"

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/random.hpp>
#include <heddle/infer/sampling.hpp>
#include <heddle/tensor/buffer.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace {
namespace hd = heddle;
namespace inf = heddle::infer;
template <int Threads>
using emulated = hd::compute::basic_cuda<cuda_double::emulated_launcher<Threads>>;

template <class T, class Backend>
std::vector<hd::compute::token_drawn> drawn_on_device(Backend& b, const std::vector<T>& logits, std::int64_t vocabulary,
                                                      const std::vector<hd::compute::token_draw>& draws) {
  using hd::row_at;
  using space = hd::cuda_memory;
  const auto rows = static_cast<std::int64_t>(logits.size()) / vocabulary;
  const auto n = static_cast<std::int64_t>(draws.size());
  hd::buffer<T, space> x(b.queue(), rows * vocabulary);
  hd::buffer<hd::compute::token_draw, space> how(b.queue(), n);
  hd::buffer<hd::compute::token_drawn, space> there(b.queue(), n);
  std::vector<hd::compute::token_drawn> drawn(draws.size());
  b.queue().copy(std::span<const T>(logits), row_at<space>(x.address(), rows * vocabulary));
  b.queue().copy(std::span<const hd::compute::token_draw>(draws), row_at<space>(how.address(), n));
  static_assert(hd::compute::token_drawing_kernels<Backend, T>);
  b.draw_tokens(hd::matrix_view<const T, space>(x.address(), hd::dynamic_shape<2>(rows, vocabulary)),
                row_at<space>(static_cast<const hd::compute::token_draw*>(how.address()), n),
                row_at<space>(there.address(), n));
  b.queue().copy(row_at<space>(static_cast<const hd::compute::token_drawn*>(there.address()), n),
                 std::span<hd::compute::token_drawn>(drawn));
  b.queue().wait();
  return drawn;
}

// Rows with equal logits, with few values, with minus infinity, spread widely; by the host's sampler and on the device.
template <class T, class Backend>
void check_draws(std::uint64_t seed, std::int64_t vocabulary, std::int64_t rows) {
  CAPTURE(seed, vocabulary);
  const hd::counter_random random(seed, 0);
  std::uint64_t at = 0;
  const auto one_of = [&](std::vector<double> of) { return of[random.integer(at++) % of.size()]; };
  std::vector<T> logits;
  std::vector<hd::compute::token_draw> draws;
  std::vector<inf::sampling_options> options;
  const auto of_drawn = [](const inf::sampling_options& s, std::int64_t r) {
    return r % 2 == 1 && s.temperature > 0 && s.top_k == 0 && s.top_p == 1 && s.min_p == 0;
  };
  for (std::int64_t r = 0; r < rows; ++r) {
    const double spread = one_of({0, 1, 3, 30, 1e4}), step = one_of({0, 0, 0.5, 2});
    for (std::int64_t j = 0; j < vocabulary; ++j) {
      double l = spread * random.normal(at++);
      if (step > 0) l = std::round(l / step) * step;
      if (r % 5 == 4 && random.uniform(at++) < 0.7 && j != r % vocabulary) l = -std::numeric_limits<double>::infinity();
      logits.push_back(hd::converted<T>(l));
    }
    inf::sampling_options s;
    s.temperature = one_of({0, 0.01, 0.7, 1, 1, 5, 1e3});
    const double count = one_of({0, 0, 1, 2, 40, static_cast<double>(vocabulary)});
    s.top_k = static_cast<std::int64_t>(count);
    s.top_p = one_of({1, 1, 1e-9, 0.3, 0.9, 0.999999});
    s.min_p = one_of({0, 0, 1e-6, 0.2, 1});
    options.push_back(s);
    draws.push_back({.temperature = s.temperature,
                     .top_p = s.top_p,
                     .min_p = s.min_p,
                     .uniform = inf::drawing_number(7 + seed, r),
                     .top_k = s.top_k,
                     .row = r,
                     .log_probability = true,
                     .log_probability_temperature = of_drawn(s, r) ? s.temperature : 1});
  }
  Backend b;
  const auto got = drawn_on_device(b, logits, vocabulary, draws);
  inf::token_sampler sampler;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<std::size_t>(r);
    const inf::sampling_options& s = options[i];
    CAPTURE(r, s.temperature, s.top_k, s.top_p, s.min_p);
    using of = inf::log_probability_of;
    const inf::request asked{
        .sampling = s, .log_probabilities = 0, .log_probabilities_of = of_drawn(s, r) ? of::drawn : of::model};
    const auto row = std::span<const T>(logits).subspan(i * static_cast<std::size_t>(vocabulary),
                                                        static_cast<std::size_t>(vocabulary));
    const inf::drawn_token want = sampler.draw(row, asked, 7 + seed, r, {}, {});
    REQUIRE(got[i].flaw == hd::compute::token_flaw::none);
    REQUIRE(got[i].token == want.token);
    REQUIRE(std::abs(got[i].log_probability - *want.log_probability) <= 1e-10 * (1 + std::abs(*want.log_probability)));
  }
}
}  // namespace

TEST_CASE("a device draws the tokens of the host's sampler", "[cuda][infer]") {
  for (const std::int64_t vocabulary : {1, 2, 7, 16, 257, 1000}) {
    check_draws<float, emulated<1>>(1, vocabulary, 200);
    check_draws<double, emulated<3>>(2, vocabulary, 40);
    check_draws<hd::bf16, emulated<1>>(4, vocabulary, 200);
    check_draws<hd::f16, emulated<3>>(5, vocabulary, 40);
  }
  check_draws<float, emulated<4>>(3, 20'011, 6);
  check_draws<hd::bf16, emulated<2>>(6, 20'011, 12);
}

TEST_CASE("a device says which logit keeps a row from a token", "[cuda][infer]") {
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  emulated<3> b;
  const auto got = drawn_on_device<float>(
      b,
      {1, 2, nan, 4, infinity, /**/ 5, infinity, 2, 3, 1, /**/ -infinity, -infinity, -infinity, -infinity, -infinity},
      5, {{.temperature = 1, .row = 2}, {.row = 1}, {.temperature = 1, .row = 0}});
  CHECK(got[0].flaw == hd::compute::token_flaw::nothing_left);
  CHECK((got[1].flaw == hd::compute::token_flaw::not_a_number && got[1].token == 1));
  CHECK(got[1].log_probability == infinity);
  CHECK((got[2].flaw == hd::compute::token_flaw::not_a_number && got[2].token == 2));
  CHECK(std::isnan(got[2].log_probability));
  std::vector<hd::bf16> halves;
  for (const float x : {1.0F, nan, 2.0F, /**/ 5.0F, 2.0F, infinity, /**/ -infinity, -infinity, -infinity})
    halves.emplace_back(x);
  const auto of_halves =
      drawn_on_device<hd::bf16>(b, halves, 3, {{.row = 0}, {.temperature = 1, .row = 1}, {.row = 2}});
  CHECK((of_halves[0].flaw == hd::compute::token_flaw::not_a_number && of_halves[0].token == 1));
  CHECK((of_halves[1].flaw == hd::compute::token_flaw::not_a_number && of_halves[1].token == 2));
  CHECK(of_halves[1].log_probability == infinity);
  CHECK(of_halves[2].flaw == hd::compute::token_flaw::nothing_left);
}
