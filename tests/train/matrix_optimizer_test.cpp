// tests/train/matrix_optimizer_test.cpp: rules of optimizers that act on whole matrices: PyTorch's numbers, shares cut between tensors, saves, state.
#include "catch.hpp"
#include "folder.hpp"
#include "optimizer_runs.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/train/optimizers/muon.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/sharded_optimizer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace tr = hd::train;
using Catch::Matchers::Contains;
using hd::dp, hd::pp, hd::tp;
using hd::optimizers::muon;

namespace {

using train_test::difference, train_test::outcome, train_test::setup, train_test::train;

hd::model::parameter tensor(std::string name, std::vector<std::int64_t> shape, std::int64_t offset) {
  hd::model::parameter p;
  p.name = std::move(name);
  p.shape = p.logical = p.local = shape;
  p.start.resize(shape.size());
  p.offset = offset;
  p.count = p.global_count();
  p.decay = shape.size() >= 2;
  return p;
}
const std::vector<hd::model::parameter> tensors{tensor("wide", {3, 4}, 0), tensor("tall", {6, 2}, 12),
                                                tensor("square", {4, 4}, 24), tensor("b", {5}, 40)};

// The largest difference over all steps from the golden weights.
template <class Rule>
double golden_error(const std::string& name, const typename Rule::options& options) {
  const train_test::golden data =
      train_test::read_golden(HEDDLE_SOURCE_DIR "/tests/golden/matrix_optimizers_golden.txt");
  REQUIRE(data.weights.contains(name));
  REQUIRE(data.weights.at(name).size() == 20);
  hd::compute::host<> backend(1);
  tr::sharded_optimizer<double, Rule, hd::precision<>, hd::zero<0>> optimizer(tensors, 45, 0, 1);
  std::vector<double> w = data.start;
  double most = 0;
  for (std::size_t s = 0; s < 20; ++s) {
    std::vector<double> g = data.gradients[s];
    for (double& x : g) x *= 4;
    optimizer.update(backend, w, g, options, data.rates[s], static_cast<std::int64_t>(s) + 1, 0.25);
    for (std::size_t i = 0; i < w.size(); ++i) most = (std::max)(most, std::abs(w[i] - data.weights.at(name)[s][i]));
  }
  return most;
}

}  // namespace

TEST_CASE("Muon takes PyTorch's steps, and AdamW's where a tensor is no matrix", "[train][optimizer][golden]") {
  CHECK(golden_error<muon>("muon", {}) < 1e-10);
  CHECK(golden_error<muon>("muon_plain", {.momentum = 0.8, .nesterov = false, .iterations = 3}) < 1e-10);
  CHECK(golden_error<muon>("muon_match_rms", {.scale = muon::scaled::match_rms_adamw}) < 1e-10);
  CHECK(golden_error<muon>("muon_by_adamw", {.by_adamw = {"squ"}, .adamw_rate = 0.5}) < 1e-10);
  CHECK(golden_error<muon>("muon_plain", {}) > 1e-3);
}
