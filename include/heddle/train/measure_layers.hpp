// heddle/train/measure_layers.hpp: measures the time of each layer, for partitions.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/plan/layer_partition.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {

// Which of its model's kinds each block is of (`layers::other_layers`), in a model of at least `least` blocks. `leading`: so many are of the second kind
// whatever the number of blocks is.
struct block_kinds {
  std::vector<int> of{};
  int leading = 0;
  // The first block from `from` on that is of a kind; -1: none.
  int find(int kind, int from = 0) const noexcept {
    for (auto l = static_cast<std::size_t>(from); l < of.size(); ++l)
      if (of[l] == kind) return static_cast<int>(l);
    return -1;
  }
};
template <class Model>
block_kinds kinds_of_blocks(const typename Model::config& config, int least = 0) {
  block_kinds kinds{std::vector<int>(static_cast<std::size_t>((std::max)(least, config.layers)), 0), 0};
  if constexpr (requires { Model::describe(config).others.has(0); }) {
    const auto others = Model::describe(config).others;
    for (std::size_t l = 0; l < kinds.of.size(); ++l) kinds.of[l] = others.has(static_cast<std::int64_t>(l)) ? 1 : 0;
    kinds.leading = static_cast<int>(others.leading);
  }
  return kinds;
}

// The least times of forward, and of backward or of its two parts: of the embedding, of a block of each kind, of the head.
// `cold`: between two verbs, memory as large as the weights of the whole model is written, as other layers do in a step;
// more than `most` bytes leave no cache warm.
template <int Verbs>
struct measured_parts {
  using times = std::array<double, Verbs>;
  times first{}, last{};
  std::array<times, 2> kinds{};
  block_kinds blocks{};
  // cost(times) of each.
  template <class F>
  plan::layer_costs costs(const F& cost) const {
    plan::layer_costs all{{}, cost(first), cost(last)};
    for (const int kind : blocks.of) all.layers.push_back(cost(kinds[static_cast<std::size_t>(kind)]));
    return all;
  }
};
template <int Verbs, class Model, class World, class Backend>
measured_parts<Verbs> measure_parts(World& world, const typename Model::config& config, Backend& backend,
                                    std::int64_t samples, int repeats, bool cold = false) {
  static_assert(Verbs == 2 || Verbs == 3);
  using scalar = typename Model::scalar;
  using space = space_of<Backend>;
  using stage_type = typename Model::template stage<World, Backend>;
  using times = std::array<double, Verbs>;
  constexpr std::int64_t most = std::int64_t{1} << 27;
  const auto ids = static_cast<std::size_t>(samples * config.context);
  const std::vector<std::int32_t> tokens(ids, 0);
  typename Model::batch batch;
  batch.tokens = tokens;
  batch.targets = tokens;
  batch.samples = static_cast<int>(samples);
  const auto seconds_of = [&](int part, const std::array<int, 3>& counts) {
    stage_type stage(config, world, backend, Model::layers_of(config, part, std::span<const int>(counts)), 1, samples,
                     Verbs - 2);
    stage.initialize(1);
    const std::int64_t n = stage.boundary_elements(samples);
    auto& queue = compute::queue_of(backend);
    buffer<scalar, space> in(queue, n), out(queue, n), dout(queue, n), din(queue, n);
    std::vector<scalar> numbers(in.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<scalar>(i % 7) - scalar(3);
    queue.copy(numbers, in);
    queue.copy(numbers, dout);
    queue.wait();
    const auto row = [&](buffer<scalar, space>& of) { return row_at<space>(of.address(), n); };
    std::int64_t weights = 0;
    for (const auto& p : stage.parameters()) weights += p.count;
    buffer<scalar, space> others(queue,
                                 cold ? (std::min)(weights * config.layers, most / std::int64_t{sizeof(scalar)}) : 0);
    times least;
    least.fill(std::numeric_limits<double>::infinity());
    for (int k = 0; k < (std::max)(1, repeats); ++k) {
      std::size_t verb = 0;
      const auto time = [&](auto&& run) {
        if (others.size() > 0) queue.zero(others);
        queue.wait();
        const std::int64_t start = now_ns();
        run();
        queue.wait();
        least[verb] = (std::min)(least[verb], static_cast<double>(now_ns() - start) * 1e-9);
        ++verb;
      };
      time([&] { stage.forward(0, batch, row(in), row(out)); });
      if constexpr (Verbs == 2) {
        time([&] { stage.backward(0, batch, row(dout), row(din)); });
      } else {
        time([&] { stage.backward_input(0, batch, row(dout), row(din)); });
        time([&] { stage.backward_weight(0, batch); });
      }
    }
    return least;
  };
  const int layers = config.layers;
  measured_parts<Verbs> measured;
  measured.blocks = kinds_of_blocks<Model>(config);
  measured.first = seconds_of(0, {0, layers, 0});
  measured.last = seconds_of(2, {0, layers, 0});
  for (const int kind : {0, 1})
    if (const int l = measured.blocks.find(kind); l >= 0)
      measured.kinds[static_cast<std::size_t>(kind)] = seconds_of(1, {l, 1, layers - l - 1});
  for (times* const of : {&measured.first, &measured.last, &measured.kinds[0], &measured.kinds[1]})
    world.control().broadcast(std::span<double>(of->data(), Verbs), 0);
  return measured;
}

}  // namespace detail

/// Times forward and backward of the embedding, of one block of each kind and of the head on `samples` samples of a whole
/// context: the least of `repeats` runs each, all blocks of a kind alike. Called on all ranks of `world` together; everyone gets what rank 0
/// measured, so that all ranks make the same partition:
/// `options.layers_per_stage = plan::partition_layers(measure_layer_costs<Model>(world, config, kernels, 4), stages).counts`.
/// On a `model::paper_world` it measures one rank's share of any mesh, without what is sent.
/// Units: seconds. Errors: `config_error` for a configuration that does not fit.
template <class Model, class World, class Backend>
plan::layer_costs measure_layer_costs(World& world, const typename Model::config& config, Backend& backend,
                                      std::int64_t samples, int repeats = 3) {
  return detail::measure_parts<2, Model>(world, config, backend, samples, repeats).costs([](const auto& of) {
    return of[0] + of[1];
  });
}

/// The same by verb, as schedules that put `backward_weight` elsewhere need it.
struct verb_costs {
  plan::layer_costs forward, backward_input, backward_weight;
};
/// As `measure_layer_costs`, each verb by itself. The two parts of a backward take a little more than the whole, which
/// `measure_layer_costs` times.
template <class Model, class World, class Backend>
verb_costs measure_verb_costs(World& world, const typename Model::config& config, Backend& backend,
                              std::int64_t samples, int repeats = 3) {
  const auto of = detail::measure_parts<3, Model>(world, config, backend, samples, repeats);
  const auto verb = [&](std::size_t v) { return of.costs([&](const auto& times) { return times[v]; }); };
  return {verb(0), verb(1), verb(2)};
}

}  // namespace heddle::inline v0::train
