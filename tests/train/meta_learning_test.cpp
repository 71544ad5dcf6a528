// MAML as three functions: meta-gradients through inner steps against PyTorch's, on several meshes; what it learns.
#include "catch.hpp"

#include "meta_learning/maml.hpp"
#include "train/golden_lines.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

namespace {

// The four tasks of redco_golden.py.
std::vector<maml::task> golden_tasks() {
  const auto amplitudes = golden_lines::numbers(5, 4), phases = golden_lines::numbers(6, 4),
             support = golden_lines::numbers(7, 40), query = golden_lines::numbers(8, 40);
  std::vector<maml::task> all(4);
  for (std::size_t t = 0; t < 4; ++t) {
    all[t] = {static_cast<std::int64_t>(t), 2 + amplitudes[t], 1 + phases[t], {}, {}};
    for (std::size_t i = 0; i < 10; ++i)
      all[t].support[i] = 5 * support[10 * t + i], all[t].query[i] = 5 * query[10 * t + i];
  }
  return all;
}
struct meta_outcome {
  double loss = 0;
  std::vector<double> gradient;  // of all weights in their order
};
meta_outcome meta_gradient(int ranks, const maml::settings& how) {
  meta_outcome o;
  std::mutex lock;
  heddle::launch<heddle::threads>(heddle::mesh<heddle::axis<heddle::dp>>(ranks), [&](auto& world) {
    auto p = maml::pipeline(world, how, &how, 1, 4);
    int which = 9;
    p.all().for_each([&](auto& parameter, const heddle::named_shape& d) {
      const auto whole = golden_lines::numbers(which++, parameter.weight.shape().size());
      for (std::size_t i = 0; i < whole.size(); ++i)
        parameter.weight.elements()[i] = whole[i] / std::sqrt(static_cast<double>(d.extents[0]));
    });
    const auto step = p.loss_and_gradients(golden_tasks(), {0, 1, 2, 3});
    const std::lock_guard hold(lock);
    o.loss = step.loss * static_cast<double>(step.tokens);
    std::size_t at = 0;
    o.gradient.resize(p.all().gradients().size());
    p.all().for_each([&](auto& parameter, const heddle::named_shape&) {
      for (const double g : parameter.gradient.elements()) o.gradient[at++] += g;
    });
    o.gradient.resize(at);
  });
  return o;
}

}  // namespace

TEST_CASE("meta_learning: gradients through inner steps equal PyTorch's on every mesh", "[train][ranks][golden]") {
  const golden_lines::lines golden(HEDDLE_SOURCE_DIR "/tests/golden/redco_golden.txt");
  for (const int order : {1, 2})
    for (const int steps : {1, 2, 5}) {
      INFO("order " << order << ", " << steps << " inner steps");
      const maml::settings how{.order = order, .inner_steps = steps, .inner_rate = 0.01};
      const meta_outcome one = meta_gradient(1, how);
      const std::string name = "maml." + std::to_string(order) + "." + std::to_string(steps);
      CHECK(one.loss == Approx(golden.at(name)[0]).epsilon(1e-10));
      std::vector<double> kept;
      for (std::size_t i = 0; i < one.gradient.size(); i += 43) kept.push_back(one.gradient[i]);
      const auto by = golden_lines::numbers(12, static_cast<std::int64_t>(one.gradient.size()));
      kept.push_back(std::inner_product(by.begin(), by.end(), one.gradient.begin(), 0.0));
      CHECK(golden_lines::distance(kept, golden.at(name + ".gradient")) < (order == 1 ? 1e-10 : 1e-6));
      for (const int ranks : {2, 4}) {
        const meta_outcome other = meta_gradient(ranks, how);
        CHECK(other.loss == Approx(one.loss).epsilon(1e-12));
        CHECK(golden_lines::distance(other.gradient, one.gradient) < 1e-9);
      }
    }
}

TEST_CASE("meta_learning: an inner step that is not finite names task and step", "[train][ranks]") {
  for (const int ranks : {1, 2})
    CHECK_THROWS_WITH(meta_gradient(ranks, {.order = 1, .inner_steps = 3, .inner_rate = 1e200}),
                      Catch::Contains("the gradient of task ") && Catch::Contains("not finite in inner step 1 of 3"));
}

TEST_CASE("meta_learning: ranks that do not divide the tasks of a step are refused", "[train][ranks]") {
  for (const int ranks : {3, 5})
    CHECK_THROWS_WITH(
        meta_gradient(ranks, {}),
        Catch::Contains(
            "meta_learning: the 4 tasks of a step must be a multiple of the ranks that learn from them, got " +
            std::to_string(ranks) + " ranks"));
}

TEST_CASE("meta_learning: one inner step from MAML's weights halves what it does from joint training's",
          "[train][ranks][slow]") {
  for (const std::uint64_t seed : {1u, 2u, 3u, 4u, 5u}) {
    INFO("seed " << seed);
    const double maml = maml::train(1, 20'000, seed, {})[1],
                 joint = maml::train(1, 20'000, seed, {.inner_steps = 0})[1];
    WARN("seed " << seed << ": " << maml << " and " << joint);
    CHECK(maml < joint / 2);
  }
}
