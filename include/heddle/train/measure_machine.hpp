// heddle/train/measure_machine.hpp: measures this machine and a model's kernels.
#pragma once

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/gemm_peak.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/compute/ops/optimizer.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/paper/profile.hpp>
#include <heddle/model/paper/timed.hpp>
#include <heddle/model/paper/world.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/train/cluster.hpp>
#include <heddle/train/measure_layers.hpp>
#include <heddle/train/optimizers/by_default.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {

// The median of so many runs. Units: seconds.
template <class F>
double median_seconds(int runs, F&& run) {
  std::vector<double> all;
  for (int i = 0; i < runs; ++i) {
    const std::int64_t begin = now_ns();
    run();
    all.push_back(1e-9 * static_cast<double>(now_ns() - begin));
  }
  return model::detail::median_of_times(std::move(all));
}

// Sums of so many numbers over all ranks of a machine.
inline double all_reduce_seconds(int ranks, std::int64_t numbers, int runs) {
  double seconds = 0;
  heddle::v0::launch<threads>(mesh<axis<tp>>(ranks), [&](auto& world) {
    std::vector<float> row(static_cast<std::size_t>(numbers), 1.0F);
    auto& all = world.template along<tp>();
    all.all_reduce(std::span(row), plus{});
    const double mine = median_seconds(runs, [&] { all.all_reduce(std::span(row), plus{}); });
    if (world.rank() == 0) seconds = mine;
  });
  return seconds;
}

}  // namespace detail

/// This machine as a cluster of `devices` ranks with a core each, that are threads of one process: rates of the backend
/// `Backend` on one thread, and one level, from sums over all ranks of few and of many numbers. `memory`: bytes of a rank.
/// Nothing else should run meanwhile. Errors: `config_error` for fewer than one device.
template <class Backend>
cluster measure_machine(int devices, std::int64_t memory) {
  if (devices < 1) throw config_error("heddle: a machine has at least one device, got " + std::to_string(devices));
  using space = space_of<Backend>;
  Backend kernels(1);
  auto& queue = compute::queue_of(kernels);
  cluster here{
      .devices = devices, .memory = memory, .device = {}, .levels = {{"machine", devices, 1e9, 0}}};
  here.device.flops = compute::measure_gemm_peak<float>(kernels, 512, 0.2);
  constexpr std::int64_t numbers = 1 << 23;
  buffer<float, space> from(queue, numbers), to(queue, numbers);
  queue.zero(from);
  here.device.bytes_per_second = 2.0 * numbers * sizeof(float) / detail::median_seconds(5, [&] {
                                   queue.copy(from, to);
                                   queue.wait();
                                 });
  if (devices > 1) {
    constexpr std::int64_t many = 1 << 20;
    const double n = devices, few = detail::all_reduce_seconds(devices, 1, 51);
    const double all = detail::all_reduce_seconds(devices, many, 11);
    cluster_level& level = here.levels.front();
    level.latency_seconds = few / (2 * (n - 1));
    // As `seconds_of` says: 2 (n-1) rounds of the n-th part.
    level.bytes_per_second = many * sizeof(float) / n / (std::max)(1e-9, all / (2 * (n - 1)) - level.latency_seconds);
  }
  return here;
}

/// Measures the kernels of the embedding, a block of each kind and the head of a model, on one rank of `tp` for each of `tp` and on
/// microbatches of so many samples, and those of the optimizer, and adds them to `here.kernels`. A rank runs on a
/// `paper_world`: what the others would send is not waited for. What does not divide is left out.
/// Errors: `config_error` if none divides.
template <class Model, class Backend>
void measure_kernels(cluster& here, const typename Model::config& config, std::span<const int> tp_ranks,
                     std::span<const int> samples, int repeats = 5) {
  using mesh_type = mesh<axis<tp>>;
  using timed = model::timed_backend<Backend>;
  using scalar = typename Model::scalar;
  timed kernels(1);
  auto& queue = compute::queue_of(kernels);
  std::string refused = "no ranks";
  bool any = false;
  for (const int n : tp_ranks)
    for (const int of : samples) {
      try {
        model::paper_world<mesh_type, std::remove_cvref_t<decltype(queue)>> world(mesh_type(n), 0);
        detail::measure_parts<2, Model>(world, config, kernels, of, repeats, true);
        detail::measure_parts<3, Model>(world, config, kernels, of, repeats, true);
        any = true;
      } catch (const config_error& e) {
        refused = e.what();
      }
    }
  if (!any) throw config_error("heddle: no kernels of the model could be measured: " + refused);
  // The optimizer, with the bytes that a rank on paper notes of it.
  for (std::int64_t n = 1 << 10; n <= 1 << 22; n *= 16) {
    buffer<scalar, space_of<Backend>> p(queue, n), g(queue, n), m(queue, n), v(queue, n);
    for (auto* const x : {&p, &g, &m, &v}) queue.zero(*x);
    const auto row = [&](auto& x) { return row_at<space_of<Backend>>(x.address(), n); };
    for (int i = 0; i < repeats; ++i) {
      const std::int64_t begin = now_ns();
      detail::rule_kernels<optimizers::by_default>::update<scalar>(kernels, row(p), row(g), std::array{row(m), row(v)},
                                                                   compute::adamw_step{});
      queue.wait();
      kernels.times().note("optimizer", 0, 7 * n * static_cast<std::int64_t>(sizeof(scalar)),
                           1e-9 * static_cast<double>(now_ns() - begin));
    }
  }
  kernels.times().add_to(here.kernels);
}

}  // namespace heddle::inline v0::train
