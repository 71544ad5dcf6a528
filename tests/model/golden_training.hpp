// tests/model/golden_training.hpp: two training steps of a stage on one rank, against a golden file.
#pragma once

#include "catch.hpp"
#include "support.hpp"

#include <heddle/model/parameters.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace model_test {

template <class T>
std::span<T> part(std::span<T> all, const md::parameter& p) {
  return all.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
}

template <class Stage>
void load_initial(Stage& s, const golden_file& golden) {
  const auto load = [&](const md::parameter& p, auto weights) {
    CAPTURE(p.name);
    const auto& record = golden.at("initial." + p.name);
    REQUIRE(record.shape == p.shape);
    const auto w = part(weights, p);
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<typename Stage::scalar>(record.values[i]);
  };
  for (const md::parameter& p : s.parameters()) load(p, s.weights());
  for (const md::parameter& p : s.frozen_parameters()) load(p, s.frozen_weights());
}

/// A step's data; samples [first, first + count) of it.
template <class T>
struct golden_batch {
  golden_batch(const golden_file& golden, int step, int length)
      : tokens(golden.ids("step" + std::to_string(step) + ".tokens")),
        targets(golden.ids("step" + std::to_string(step) + ".targets")),
        context(static_cast<std::size_t>(length)) {
    for (const std::int32_t t : targets) valid += t >= 0;
  }
  md::batch<T> samples(int first, int count) const {
    const auto begin = static_cast<std::size_t>(first) * context, n = static_cast<std::size_t>(count) * context;
    return {std::span(tokens).subspan(begin, n), std::span(targets).subspan(begin, n), count,
            static_cast<T>(1.0 / valid)};
  }
  std::vector<std::int32_t> tokens, targets;
  std::size_t context;
  int valid = 0;
};

/// The greatest error over all gradients, relative to the greatest element of each tensor. The gradient of GPT-2's key
/// biases is zero but for rounding; it is compared with the whole bias.
template <class Stage>
double gradient_error(Stage& s, const golden_file& golden, const std::string& prefix) {
  double worst = 0;
  for (const md::parameter& p : s.parameters()) {
    const double error = relative_error(part(s.gradients(), p), golden.values(prefix + "gradient." + p.name));
    if (std::isnan(error) || error > worst) worst = error;  // a NaN stays
  }
  return worst;
}

template <class T>
struct adam_state {
  explicit adam_state(std::size_t n) : m(n), v(n) {}
  std::vector<T> m, v;
};

/// Clips by the global norm and steps; returns the norm before clipping.
template <class Backend, class Stage>
double clip_and_step(Backend& b, Stage& s, const golden_file& golden, adam_state<typename Stage::scalar>& state,
                     int step) {
  const auto& o = golden.values("optimizer");
  const double norm = std::sqrt(hd::compute::sum_of<hd::compute::ops::sum_of_squares>(b, s.gradients()));
  for (const md::parameter& p : s.parameters()) {
    const hd::compute::adamw_step how{.lr = o[0],
                                      .beta1 = o[1],
                                      .beta2 = o[2],
                                      .eps = o[3],
                                      .weight_decay = p.decay ? o[4] : 0.0,
                                      .step = step,
                                      .grad_scale = (std::min)(1.0, o[5] / (norm + 1e-6))};
    hd::compute::run<hd::compute::ops::adamw>(b, part(s.weights(), p), part(s.gradients(), p),
                                              part(std::span(state.m), p), part(std::span(state.v), p), how);
  }
  return norm;
}

/// Two steps in float: loss, every gradient, the last logits, the norm and the weights behind AdamW, to 1e-5.
template <class Model, class Backend>
void two_steps_in_float(const golden_file& golden, const typename Model::config& config) {
  Backend b{1};
  alone_world world;
  typename Model::template stage<alone_world, Backend> s(config, world, b, md::split_layers(config.layers, 0, 1), 1, 4);
  load_initial(s, golden);
  adam_state<float> state(s.weights().size());
  for (int step = 1; step <= 2; ++step) {
    CAPTURE(step);
    const std::string at = "f32.step" + std::to_string(step) + ".";
    const golden_batch<float> data(golden, step, config.context);
    const auto batch = data.samples(0, 4);
    if (step == 1) {
      std::vector<float> logits(static_cast<std::size_t>(4 * config.vocabulary));
      s.last_logits(batch, {}, {}, logits);
      CHECK(relative_error(logits, golden.values(at + "last_logits")) < 1e-5);
    }
    s.zero_gradients();
    s.forward(0, batch, {}, {});
    CHECK(s.loss_sum(0) / data.valid == Approx(golden.values(at + "loss")[0]).epsilon(1e-5));
    CHECK(s.forward_only(batch, {}, {}) / data.valid == Approx(golden.values(at + "loss")[0]).epsilon(1e-5));
    s.backward(0, batch, {}, {});
    CHECK(gradient_error(s, golden, at) < 1e-5);
    const double norm = clip_and_step(b, s, golden, state, step);
    CHECK(norm == Approx(golden.values(at + "gradient_norm")[0]).epsilon(1e-5));
    // Weights whose gradient is rounding noise move by noise of the size of lr (see the README); all others agree.
    for (const md::parameter& p : s.parameters()) {
      CAPTURE(p.name);
      const auto w = part(s.weights(), p);
      const auto& expected = golden.values(at + "weight." + p.name);
      std::int64_t off = 0;
      for (std::size_t i = 0; i < w.size(); ++i) off += std::abs(w[i] - static_cast<float>(expected[i])) > 1e-5;
      const bool noise = p.name.find("c_attn.bias") != std::string::npos;
      CHECK(off <= (noise ? static_cast<std::int64_t>(w.size()) / 3 : 0));
    }
  }
}

/// Two steps in double to 1e-10, in this many unequal microbatches; `apart`: with backward_input and backward_weight apart,
/// in another order.
template <class Model, class Backend>
void two_steps_in_double(const golden_file& golden, const typename Model::config& config, int microbatches,
                         bool apart) {
  CAPTURE(microbatches, apart);
  Backend b{2};
  alone_world world;
  typename Model::template stage<alone_world, Backend> s(config, world, b, md::split_layers(config.layers, 0, 1), 3, 4,
                                                         3);
  load_initial(s, golden);
  adam_state<double> state(s.weights().size());
  const std::vector<std::array<int, 2>> cuts = microbatches == 1
                                                   ? std::vector<std::array<int, 2>>{{0, 4}}
                                                   : std::vector<std::array<int, 2>>{{0, 3}, {3, 0}, {3, 1}};
  for (int step = 1; step <= 2; ++step) {
    CAPTURE(step);
    const std::string at = "f64.step" + std::to_string(step) + ".";
    const golden_batch<double> data(golden, step, config.context);
    s.zero_gradients();
    double loss = 0;
    for (int k = 0; k < microbatches; ++k) {
      const auto& cut = cuts[static_cast<std::size_t>(k)];
      s.forward(k, data.samples(cut[0], cut[1]), {}, {});
      loss += s.loss_sum(k);
    }
    for (int k = 0; k < microbatches; ++k) {
      const auto batch = data.samples(cuts[static_cast<std::size_t>(k)][0], cuts[static_cast<std::size_t>(k)][1]);
      if (apart)
        s.backward_input(k, batch, {}, {});
      else
        s.backward(k, batch, {}, {});
    }
    if (apart)
      for (int k = microbatches; k-- > 0;)
        s.backward_weight(k, data.samples(cuts[static_cast<std::size_t>(k)][0], cuts[static_cast<std::size_t>(k)][1]));
    CHECK(loss / data.valid == Approx(golden.values(at + "loss")[0]).epsilon(1e-12));
    CHECK(gradient_error(s, golden, at) < 1e-10);
    const double norm = clip_and_step(b, s, golden, state, step);
    CHECK(norm == Approx(golden.values(at + "gradient_norm")[0]).epsilon(1e-10));
    for (const md::parameter& p : s.parameters()) {
      CAPTURE(p.name);
      CHECK(relative_error(part(s.weights(), p), golden.values(at + "weight." + p.name)) < 1e-10);
    }
  }
}

}  // namespace model_test
