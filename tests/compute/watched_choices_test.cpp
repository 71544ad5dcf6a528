// tests/compute/watched_choices_test.cpp: a watched backend tells the experts that it chooses, and computes as it did.
#include "catch.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/compute/watched_choices.hpp>
#include <heddle/core/random.hpp>

#include "support.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace hd = heddle;

TEST_CASE("a watched backend tells each choice of experts", "[compute][experts]") {
  using plain = hd::compute::host<>;
  plain alone{1};
  hd::compute::watched_choices<plain> watched{1};
  std::vector<std::vector<std::int32_t>> told;
  const hd::counter_random random(20261129, 0);
  std::vector<double> logits(6 * 8), w(6 * 2), v(6 * 2);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = random.normal(i);
  std::vector<std::int32_t> a(6 * 2), b(6 * 2);
  const auto in = compute_test::matrix(std::as_const(logits), 6, 8);
  const auto ids = [](std::vector<std::int32_t>& x) { return compute_test::matrix(x, 6, 2); };
  const auto weights = [](std::vector<double>& x) { return compute_test::matrix(x, 6, 2); };
  hd::compute::run<hd::compute::ops::top_k<hd::compute::softmax_of_chosen>>(watched, in, ids(b),
                                                                            weights(v));  // nobody listens
  watched.chosen = [&](hd::matrix_view<const std::int32_t> chosen) {
    told.emplace_back(chosen.data(), chosen.data() + chosen.extent(0) * chosen.extent(1));
  };
  hd::compute::run<hd::compute::ops::top_k<hd::compute::softmax_of_chosen>>(alone, in, ids(a), weights(w));
  hd::compute::run<hd::compute::ops::top_k<hd::compute::softmax_of_chosen>>(watched, in, ids(b), weights(v));
  CHECK(a == b);
  CHECK(w == v);
  hd::compute::run<hd::compute::ops::choose_experts<hd::compute::sigmoid_scores>>(
      alone, in, std::span<const double>(), hd::compute::grouped_choice{}, ids(a), weights(w));
  hd::compute::run<hd::compute::ops::choose_experts<hd::compute::sigmoid_scores>>(
      watched, in, std::span<const double>(), hd::compute::grouped_choice{}, ids(b), weights(v));
  CHECK(a == b);
  CHECK(w == v);
  REQUIRE(told.size() == 2);
  CHECK(told[1] == a);
}
