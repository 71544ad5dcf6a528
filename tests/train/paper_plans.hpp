// tests/train/paper_plans.hpp: what the tests of strategies on paper share: axes, types, and the options of a Llama.
#pragma once

#include <heddle/mesh/parse.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/strategy.hpp>

#include <cstdint>

namespace paper_plans {

namespace hd = heddle;
using mesh_type = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>, hd::axis<hd::tp>>;
using model = hd::model::llama<float>;
template <int Zero>
using strategy = hd::strategy<mesh_type, hd::schedule::named, hd::zero<Zero>, hd::activations::recompute<>>;

inline hd::train::options<hd::model::llama_config> options_of(const hd::model::llama_config& c, std::int64_t batch,
                                                              int microbatches, const char* schedule) {
  hd::train::options<hd::model::llama_config> o;
  o.model = c;
  o.batch = batch;
  o.microbatches = microbatches;
  o.schedule = schedule;
  o.recompute = "none";
  o.learning_rate = {.peak = 1e-3, .minimum = 1e-4, .warmup_steps = 0, .total_steps = 0};
  return o;
}

}  // namespace paper_plans
