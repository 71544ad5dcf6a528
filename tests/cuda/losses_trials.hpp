// Losses of fifty steps of a small GPT-2 that repeats its samples, by any backend, and how far two runs are from each other.
#pragma once

#include "catch.hpp"
#include "train/random_tokens.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace losses_trials {

namespace hd = heddle;
using mesh_type = hd::mesh<hd::axis<hd::dp>>;
inline constexpr int length = 32, words = 67, steps = 50;

// Samples come again after five steps, so that there is something to learn.
struct repeated_tokens : train_test::random_tokens<length, words> {
  using all = train_test::random_tokens<length, words>;
  void fill_train(hd::io::sample_block block, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
    all::fill_train({block.first % 40, block.count}, tokens, targets);
  }
};

template <class Backend, class Policy = hd::precision<>, class T = float>
std::vector<double> losses() {
  hd::train::options<hd::model::gpt2_config> o;
  o.model = {.layers = 4, .heads = 4, .width = 64, .context = length, .vocabulary = words};
  o.batch = 8;
  o.steps = steps;
  o.learning_rate = {.peak = 3e-3, .minimum = 3e-4, .warmup_steps = 5, .total_steps = steps};
  std::vector<double> all;
  hd::launch<hd::threads>(mesh_type{1}, [&](auto& world) {
    using strategy = hd::strategy<mesh_type, Backend, Policy>;
    hd::train::trainer<hd::model::gpt2<T>, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o);
    trainer.run(repeated_tokens{}, [&](const hd::train::step_report& report) { all.push_back(report.loss); });
  });
  return all;
}

inline double furthest(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == steps);
  REQUIRE(b.size() == steps);
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = (std::max)(most, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return most;
}

}  // namespace losses_trials
