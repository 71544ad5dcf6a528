// A trainer of models, over two ranks and without data; each file changes the model or the strategy.
#pragma once

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/portable.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/sampling.hpp>
#include <heddle/train/trainer.hpp>

#include <cstdint>
#include <span>

namespace trainer_parts {

namespace hd = heddle;

using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using options = hd::train::options<hd::model::gpt2_config>;

struct samples {
  std::int64_t first, count;
};
struct no_data {
  std::int64_t context() const { return 4; }
  std::int64_t validation_samples() const { return 0; }
  void fill_train(samples, std::span<std::int32_t>, std::span<std::int32_t>) const {}
  void fill_validation(samples, std::span<std::int32_t>, std::span<std::int32_t>) const {}
};

/// Steps of a trainer.
template <class Model, class... Policies>
void train(const options& o) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    hd::train::trainer<Model, hd::strategy<mesh, Policies...>> trainer(world, o);
    trainer.run(no_data{});
  });
}

}  // namespace trainer_parts
