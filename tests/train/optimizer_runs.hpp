// Runs of a small network by the rule of an optimizer, and golden data of rules, for tests of optimizers.
#pragma once

#include "small_network.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/random.hpp>
#include <heddle/io/pairs.hpp>
#include <heddle/train/make_trainer.hpp>
#include <heddle/train/save.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <mutex>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace optimizer_runs {

namespace hd = heddle;
namespace tr = hd::train;
using train_test::small_network;

// ---- golden data ----

struct golden {
  std::vector<double> start;
  std::vector<double> rates;
  std::vector<std::vector<double>> gradients;
  std::map<std::string, std::vector<std::vector<double>>> weights;  // of a case, behind each step
};
inline golden read_golden(const std::string& file) {
  std::ifstream in(file);
  golden all;
  std::string line, name;
  const auto numbers = [](const std::string& text) {
    std::istringstream words(text);
    std::vector<double> values;
    for (double x = 0; words >> x;) values.push_back(x);
    return values;
  };
  while (std::getline(in, line)) {
    if (line.starts_with("case "))
      name = line.substr(5);
    else if (!name.empty())
      all.weights[name].push_back(numbers(line));
    else if (all.start.empty())
      all.start = numbers(line);
    else {
      std::vector<double> values = numbers(line);
      all.rates.push_back(values.front());
      all.gradients.emplace_back(values.begin() + 1, values.end());
    }
  }
  return all;
}

// ---- training ----

template <class T>
struct points {
  std::vector<T> x, y;
  points() {
    const hd::counter_random random(3, 0);
    for (std::uint64_t i = 0; i < 128; i += 2) {
      const double a = 2 * random.uniform(i) - 1, b = 2 * random.uniform(i + 1) - 1;
      x.insert(x.end(), {static_cast<T>(a), static_cast<T>(b)});
      y.push_back(static_cast<T>(std::sin(2 * a) * b));
    }
  }
};

struct setup {
  std::int64_t steps = 6, save_at = 0;
  std::string folder{};
  bool resumes = false;
  tr::any_optimizer_options optimizer{};
  double clip = 0.5, adamw_beta1 = 0.9;
};
struct outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> weights;
  std::int64_t first_step = 0, taken_back = 0;
  std::string error{};
};

template <class T, class Mesh, class... Policies>
outcome train(const setup& s) {
  const points<T> all_points;
  const hd::io::pairs data(all_points.x, all_points.y, {.inputs = 2, .targets = 1, .validation = 0.1});
  tr::options<hd::model::network_config> o;
  o.model = {.inputs = 2, .outputs = 1};
  o.batch = 8;
  o.steps = s.steps;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 2, .total_steps = 10};
  o.clip_norm = s.clip;
  o.adamw.beta1 = s.adamw_beta1;
  o.optimizer = s.optimizer;
  o.threads_per_rank = 1;
  outcome all;
  std::mutex guard;
  try {
    hd::launch<hd::threads>(Mesh{}, [&](auto& world) {
      using strategy = hd::strategy<Mesh, hd::schedule::one_f_one_b<hd::microbatches<4>>, Policies...>;
      auto trainer = tr::make_trainer<strategy>(small_network<T>{}, world, o);
      if (s.resumes) {
        const auto result = tr::resume(trainer, s.folder);
        if (world.rank() == 0) all.first_step = result.step;
      }
      trainer.run(
          data,
          [&](const tr::step_report& r) {
            const std::lock_guard lock(guard);
            if (world.rank() != 0) return;
            all.losses.push_back(r.loss);
            all.norms.push_back(r.gradient_norm);
          },
          tr::every(s.save_at == 0 ? 1000 : s.save_at, [&](auto& t) {
            if (s.save_at > 0 && t.steps_done() == s.save_at) tr::save(t, s.folder);
          }));
      const std::lock_guard lock(guard);
      all.taken_back += trainer.steps_taken_back();
      for (int k = 0; k < trainer.stages(); ++k) {
        auto& optimizer = trainer.optimizer_state(k);
        const auto kept = optimizer.weights_of(trainer.stage(k));
        for (const auto& p : trainer.stage(k).parameters()) {
          auto& whole = all.weights[std::string(p.name)];
          whole.resize(static_cast<std::size_t>(p.global_count()), std::nan(""));
          hd::model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t n) {
            for (std::int64_t j = 0; j < n; ++j)
              if (const std::int64_t at = p.offset + local + j - optimizer.weights_begin();
                  at >= 0 && at < static_cast<std::int64_t>(kept.size()))
                whole[static_cast<std::size_t>(global + j)] = static_cast<double>(kept[static_cast<std::size_t>(at)]);
          });
        }
      }
    });
  } catch (const hd::error& e) {
    all.error = e.what();
  }
  return all;
}
// The largest difference of losses, norms and weights, relative to the largest number of each.
inline double difference(const outcome& got, const outcome& expected) {
  if (!got.error.empty() || !expected.error.empty() || got.weights.size() != expected.weights.size()) return 1e300;
  double most = 0;
  const auto compare = [&](const std::vector<double>& a, std::span<const double> b) {
    if (a.size() != b.size()) return void(most = 1e300);
    double greatest = 0;
    for (const double x : b) greatest = (std::max)(greatest, std::abs(x));
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (std::isnan(a[i]) || std::isnan(b[i])) return void(most = 1e300);
      most = (std::max)(most, std::abs(a[i] - b[i]) / (std::max)(greatest, 1e-6));
    }
  };
  const auto last = [&](const std::vector<double>& x) {
    return std::span<const double>(x).last((std::min)(x.size(), got.losses.size()));
  };
  compare(got.losses, last(expected.losses));
  compare(got.norms, last(expected.norms));
  for (const auto& [name, values] : expected.weights) compare(got.weights.at(name), values);
  return most;
}

}  // namespace optimizer_runs
