// tests/train/language_training.hpp: three steps of a trainer of a language model on a mesh, and comparison of two such runs.
#pragma once

#include "catch.hpp"
#include "difference.hpp"
#include "random_tokens.hpp"
#include "tables.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace language_training {

using train_test::random_tokens, train_test::relative_difference, train_test::table_named;

namespace hd = heddle;
namespace md = heddle::model;
namespace sc = heddle::schedule;
using hd::dp, hd::pp, hd::tp;

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using recompute = hd::activations::recompute<>;
template <class World, class Model, class Mesh = mesh_type, class... Policies>
using trainer_of =
    hd::train::trainer<Model, hd::strategy<Mesh, sc::tabled, hd::zero<3>, recompute, Policies...>, World>;

struct outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> weights;
};

/// `o.steps` steps and a validation on a mesh, by a strategy of these policies.
template <class Mesh, class Model, class... Policies, class Data>
outcome train_on(const hd::train::options<typename Model::config>& o, const std::string& mesh_text,
                 const std::string& schedule, int microbatches, const Data& data) {
  const auto mesh = hd::parse_mesh<Mesh>(mesh_text);
  const sc::tabled when(table_named(schedule, mesh.template extent<pp>(), microbatches));
  outcome all;
  std::mutex mutex;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    hd::train::trainer<Model, hd::strategy<Mesh, sc::tabled, Policies...>, std::remove_reference_t<decltype(world)>>
        trainer(world, o, when);
    std::vector<double> losses, norms;
    while (trainer.steps_done() < o.steps) {
      const auto report = trainer.step(data);
      losses.push_back(report.loss);
      norms.push_back(report.gradient_norm);
    }
    losses.push_back(trainer.validate(data));
    const std::lock_guard lock(mutex);
    all.losses = losses;
    all.norms = norms;
    for (int k = 0; k < trainer.stages(); ++k)
      hd::train::detail::for_each_bucket(
          trainer.stage(k), trainer.optimizer_state(k), [&](auto& part, auto& state, auto) {
            const auto there = state.weights_of(part);
            std::vector<typename Model::scalar> share(static_cast<std::size_t>(there.size()));
            auto& queue = hd::compute::queue_of(trainer.backend());
            queue.copy(there, std::span(share));
            queue.wait();
            for (const md::parameter& p : part.parameters()) {
              auto& whole = all.weights[p.name];
              whole.resize(static_cast<std::size_t>(p.global_count()), 0.0);
              md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
                for (std::int64_t i = 0; i < length; ++i)
                  if (const std::int64_t at = p.offset + local + i; at >= state.owned_begin() && at < state.owned_end())
                    whole[static_cast<std::size_t>(global + i)] =
                        share[static_cast<std::size_t>(at - state.weights_begin())];
              });
            }
          });
  });
  return all;
}

/// `Tokens`: where batches come from, 7 samples for each of three steps with clipped gradients. `Policies`: more of the strategy.
template <class Model, class Tokens, class Mesh = mesh_type, class... Policies>
outcome train(const typename Model::config& settings, const std::string& mesh_text, const std::string& schedule,
              int microbatches, const std::string& again = "", const hd::train::any_optimizer_options& optimizer = {}) {
  hd::train::options<typename Model::config> o;
  o.model = settings;
  o.batch = 7;
  o.steps = 3;
  o.clip_norm = 0.05;
  o.threads_per_rank = 1;
  o.recompute = again;
  o.optimizer = optimizer;
  return train_on<Mesh, Model, hd::zero<3>, recompute, Policies...>(o, mesh_text, schedule, microbatches, Tokens{});
}

inline void check_same(const outcome& got, const outcome& serial) {
  CHECK(relative_difference(got.losses, serial.losses) <= 1e-10);
  CHECK(relative_difference(got.norms, serial.norms) <= 1e-10);
  CHECK(relative_difference(got.weights, serial.weights) <= 1e-10);
}

}  // namespace language_training
