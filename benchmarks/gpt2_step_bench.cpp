// One training step of GPT-2 124M (4 x 64 tokens, float): one rank with two threads, two data-parallel ranks and two
// tensor-parallel ranks with one thread each. A step is zeroed gradients, forward, backward, reduction (with ZeRO-1's
// reduce-scatter and all-gather over dp), global norm and AdamW. Compared with the same machine's GEMM peak, measured in
// the same run before and after, with the same library and two threads. Usage: gpt2_step_bench [steps = 8]
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/gemm_peak.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/model/gpt2.hpp>
#include HEDDLE_GEMM_HEADER

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

namespace {

namespace hd = heddle;
using hd::dp, hd::tp;
using backend = hd::compute::host<HEDDLE_GEMM>;
using seconds = std::chrono::duration<double>;
using clock_type = std::chrono::steady_clock;

constexpr int samples = 4, sequence = 64;

hd::model::gpt2_config config() {
  auto c = hd::model::gpt2_124m();
  c.context = sequence;
  return c;
}

std::vector<std::int32_t> words(std::uint64_t stream) {
  const hd::counter_random random(1, stream);
  std::vector<std::int32_t> v(samples * sequence);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<std::int32_t>(random.integer(i) % 50257);
  return v;
}

struct measurement {
  double forward = 0, backward = 0, update = 0, total = 0;
};

// The steps of one mesh, fastest first; the first step of all (cold caches, new pages) is left out.
template <class Mesh>
std::vector<measurement> run(int threads, int steps) {
  std::vector<measurement> result;
  hd::launch<hd::threads, Mesh>([&](auto& world) {
    backend kernels(threads);
    auto& replicas = world.template along_if<dp>();
    const int here = samples / replicas.size();
    hd::model::gpt2_stage<float, std::remove_cvref_t<decltype(world)>, backend> stage(
        config(), world, kernels, hd::model::split_layers(12, 0, 1), 1, here, 0);
    // Cheap numbers of the right size: the step's time does not depend on them.
    for (std::size_t i = 0; i < stage.weights().size(); ++i)
      stage.weights()[i] = 4e-5f * static_cast<float>(static_cast<int>(i * 2654435761u % 1000) - 500);
    const auto tokens = words(1), targets = words(2);
    const auto first = static_cast<std::size_t>(replicas.rank() * here * sequence);
    const auto n = static_cast<std::size_t>(here * sequence);
    const hd::model::batch<float> batch{std::span(tokens).subspan(first, n), std::span(targets).subspan(first, n), here,
                                        1.0f / (samples * sequence)};

    const std::span<float> weights = stage.weights(), gradients = stage.gradients();
    const hd::balanced_split cut{static_cast<std::int64_t>(weights.size()), replicas.size()};
    std::vector<std::int64_t> counts;
    for (int r = 0; r < replicas.size(); ++r) counts.push_back(cut.size(r));
    const auto mine = [&](std::span<float> all) {
      return all.subspan(static_cast<std::size_t>(cut.offset(replicas.rank())),
                         static_cast<std::size_t>(cut.size(replicas.rank())));
    };
    hd::buffer<float> m(cut.size(replicas.rank())), v(cut.size(replicas.rank()));

    for (int step = 0; step <= steps; ++step) {
      world.all().barrier();
      const auto start = clock_type::now();
      stage.zero_gradients();
      stage.forward(0, batch, {}, {});
      const auto forward_done = clock_type::now();
      stage.backward(0, batch, {}, {});
      const auto backward_done = clock_type::now();
      if (replicas.size() > 1)
        replicas.reduce_scatter_v(std::span<const float>(gradients), mine(gradients),
                                  std::span<const std::int64_t>(counts), hd::plus{});
      double squares[1] = {kernels.sum_of_squares(mine(gradients))};
      if (world.size() > 1) world.all().all_reduce(std::span<double>(squares), hd::plus{});
      const hd::compute::adamw_step how{.lr = 1e-4,
                                        .beta2 = 0.95,
                                        .weight_decay = 0.1,
                                        .step = step + 1,
                                        .grad_scale = 1 / (std::sqrt(squares[0]) + 1e-6)};
      kernels.adamw(mine(weights), mine(gradients), std::span<float>(m.data(), m.size()),
                    std::span<float>(v.data(), v.size()), how);
      if (replicas.size() > 1)
        replicas.all_gather_v(std::span<const float>(mine(weights)), weights, std::span<const std::int64_t>(counts));
      world.all().barrier();
      const auto end = clock_type::now();
      if (world.rank() == 0 && step > 0)
        result.push_back({seconds(forward_done - start).count(), seconds(backward_done - forward_done).count(),
                          seconds(end - backward_done).count(), seconds(end - start).count()});
    }
  });
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.total < b.total; });
  return result;
}

double peak() {
  backend kernels(2);
  return hd::compute::measure_gemm_peak<float>(kernels, 1024, 0.5);
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? (std::max)(1, std::atoi(argv[1])) : 8;
  const double operations = config().flops_per_token(sequence) * samples * sequence;
  double best_peak = peak();
  const auto one = run<hd::mesh<>>(2, steps);
  const auto data = run<hd::mesh<hd::axis<dp, 2>>>(1, steps);
  const auto tensor = run<hd::mesh<hd::axis<tp, 2>>>(1, steps);
  best_peak = (std::max)(best_peak, peak());

  std::printf("GPT-2 124M, %d x %d tokens, float, %s, %d steps; GEMM peak %.0f GFLOP/s\n", samples, sequence,
              backend(1).gemm_name(), steps, best_peak / 1e9);
  std::printf("%-22s %10s %10s %8s %8s   %s\n", "", "tokens/s", "median", "MFU", "ratio", "forward, backward, update [ms]");
  const auto line = [&](const char* name, const std::vector<measurement>& runs) {
    const measurement& best = runs.front();
    std::printf("%-22s %10.0f %10.0f %7.1f%% %8.2f   %.0f, %.0f, %.0f\n", name, samples * sequence / best.total,
                samples * sequence / runs[runs.size() / 2].total, 100 * operations / best.total / best_peak,
                one.front().total / best.total, 1e3 * best.forward, 1e3 * best.backward, 1e3 * best.update);
  };
  line("one rank, two threads", one);
  line("dp=2, one thread each", data);
  line("tp=2, one thread each", tensor);
}
