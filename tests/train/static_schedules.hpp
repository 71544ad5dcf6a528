// tests/train/static_schedules.hpp: a small GPT-2 trained under a schedule that is a type, and beside it on one rank.
#pragma once

#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/random.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/generate/gpipe.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

namespace static_schedules {

namespace hd = heddle;

using tensors = std::map<std::string, std::vector<double>>;

struct outcome {
  std::vector<double> losses, norms;
  tensors gradients;  // of the last step, by name
  tensors weights;    // after it
};

/// Two steps of five layers (uneven over two and four stages) in double.
template <class Mesh, class When>
outcome train() {
  std::vector<std::uint8_t> tokens(6 * 30 + 1);
  const hd::counter_random random(4, 9);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint8_t>(random.integer(i) % 23);
  const hd::io::dataset data(tokens, {.context = 6, .batch = 8, .validation = 0.0, .seed = 3});
  hd::train::options<hd::model::gpt2_config> options;
  options.model = {.layers = 5, .heads = 2, .width = 8, .context = 6, .vocabulary = 23};
  options.batch = 8;
  options.steps = 2;
  options.clip_norm = 0.5;
  options.threads_per_rank = 1;
  outcome result;
  std::mutex guard;
  hd::launch<hd::threads, Mesh>([&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    hd::train::trainer<hd::model::gpt2<double>, hd::strategy<Mesh, When>, world_type> trainer(world, options);
    static_assert(std::is_empty_v<decltype(hd::schedule::plan_for(When{}, Mesh{}))>);
    const auto collect = [&](int k, auto values, double scale, tensors& into) {
      for (const auto& p : trainer.stage(k).parameters()) {
        if (p.tied_copy) continue;
        auto& to = into[p.name];
        for (std::int64_t i = 0; i < p.count; ++i) to.push_back(values[static_cast<std::size_t>(p.offset + i)] * scale);
      }
    };
    for (std::int64_t step = 1; step <= options.steps; ++step) {
      const auto found = trainer.compute_gradients(data);
      const std::lock_guard lock(guard);
      if (world.rank() == 0) {
        result.losses.push_back(found.loss);
        result.norms.push_back(found.gradient_norm);
      }
      for (int k = 0; step == options.steps && k < trainer.stages(); ++k)
        if (trainer.held(k).index < trainer.plan().table.parts())  // a replica has the same
          collect(k, trainer.stage(k).gradients(), found.gradient_scale, result.gradients);
      trainer.apply_gradients(found);
    }
    const std::lock_guard lock(guard);
    for (int k = 0; k < trainer.stages(); ++k)
      if (trainer.held(k).index < trainer.plan().table.parts())
        collect(k, trainer.stage(k).weights(), 1.0, result.weights);
  });
  return result;
}

inline double largest_error(const tensors& got, const tensors& reference) {
  if (got.size() != reference.size()) return 1e300;
  double worst = 0;
  for (const auto& [name, values] : reference) {
    const auto found = got.find(name);
    if (found == got.end() || found->second.size() != values.size()) return 1e300;
    double most = 0, error = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      most = (std::max)(most, std::abs(values[i]));
      error = (std::max)(error, std::isnan(found->second[i]) ? 1e300 : std::abs(found->second[i] - values[i]));
    }
    worst = (std::max)(worst, error / most);
  }
  return worst;
}

/// On two pipeline ranks, of which the compiler knows everything, against the same steps on one rank in one piece.
template <class... Schedules>
void check_all() {
  const outcome serial = train<hd::mesh<hd::axis<hd::pp, 1>>, hd::schedule::gpipe<hd::microbatches<1>>>();
  REQUIRE(serial.losses.size() == 2);
  REQUIRE(serial.gradients.size() > 20);
  int which = 0;
  const auto check = [&](const outcome& got) {
    INFO("schedule " << which++ << " of the list");
    REQUIRE(got.losses.size() == 2);
    for (std::size_t k = 0; k < 2; ++k) {
      CHECK(std::abs(got.losses[k] / serial.losses[k] - 1) <= 1e-10);
      CHECK(std::abs(got.norms[k] / serial.norms[k] - 1) <= 1e-10);
    }
    CHECK(largest_error(got.gradients, serial.gradients) <= 1e-10);
    CHECK(largest_error(got.weights, serial.weights) <= 1e-10);
  };
  (check(train<hd::mesh<hd::axis<hd::pp, 2>>, Schedules>()), ...);
}

}  // namespace static_schedules
