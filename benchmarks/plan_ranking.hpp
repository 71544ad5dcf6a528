// benchmarks/plan_ranking.hpp: the strategies that one and two ranks allow for three small models, as a plan ranks them
// and as they run. The profile is measured in the same run; each rank has a thread of its own.
#pragma once

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/plan/kendall_tau.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/explain.hpp>
#include <heddle/train/measure_machine.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <span>
#include <type_traits>
#include <vector>

namespace plan_ranking {

namespace hd = heddle;
using mesh_type = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>, hd::axis<hd::tp>>;
using backend = hd::compute::host<>;
using strategy = hd::strategy<mesh_type, hd::schedule::named, hd::zero<1>, backend, hd::activations::recompute<>>;

struct candidate {
  const char *mesh, *schedule, *recompute;
};
constexpr std::array<candidate, 12> candidates{{{"dp=1", "1f1b", "none"},
                                                {"dp=1", "1f1b", "full"},
                                                {"dp=2", "1f1b", "none"},
                                                {"dp=2", "1f1b", "full"},
                                                {"tp=2", "1f1b", "none"},
                                                {"tp=2", "1f1b", "full"},
                                                {"pp=2", "1f1b", "none"},
                                                {"pp=2", "1f1b", "full"},
                                                {"pp=2", "interleaved:2", "none"},
                                                {"pp=2", "interleaved:2", "full"},
                                                {"pp=2", "zb-h1", "none"},
                                                {"pp=2", "zb-h1", "full"}}};

// Random words: the time of a step does not depend on what they say.
struct random_words {
  int words, length;
  std::int64_t context() const { return length; }
  static std::int64_t validation_samples() { return 0; }
  void fill_train(hd::io::sample_block block, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
    const hd::counter_random random(1, 2);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto at = static_cast<std::uint64_t>(block.first * length) + i;
      tokens[i] = static_cast<std::int32_t>(random.integer(at) % static_cast<std::uint64_t>(words));
      targets[i] = static_cast<std::int32_t>(random.integer(at + 1) % static_cast<std::uint64_t>(words));
    }
  }
  static void fill_validation(hd::io::sample_block, std::span<std::int32_t>, std::span<std::int32_t>) {}
};

// The medians of five measurements of each candidate, one a round: what other programs take from the machine meets all
// candidates and the profile alike.
constexpr int rounds = 5;
inline double median(std::array<double, rounds> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Seconds, and the processors' seconds of all ranks, which other programs change less.
struct cost {
  double seconds = 0, processor = 0;
};

// The faster of two steps behind a first one.
template <class Model>
cost measured(const hd::train::options<typename Model::config>& o, const mesh_type& mesh) {
  cost least;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    hd::train::trainer<Model, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o);
    for (int i = 0; i < 3; ++i) {
      world.all().barrier();
      const std::clock_t before = std::clock();
      const std::int64_t begin = hd::now_ns();
      trainer.step(random_words{o.model.vocabulary, o.model.context});
      world.all().barrier();
      if (world.rank() != 0 || i == 0) continue;
      const cost step{1e-9 * static_cast<double>(hd::now_ns() - begin),
                      static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC};
      if (i == 1 || step.seconds < least.seconds) least = step;
    }
  });
  return least;
}

template <class Model>
bool compare(const char* name, const typename Model::config& config, const hd::train::cluster& here) {
  hd::train::options<typename Model::config> o;
  o.model = config;
  o.batch = 8;
  o.microbatches = 4;
  o.steps = 6;
  o.learning_rate = {.peak = 1e-4, .minimum = 1e-5, .warmup_steps = 1, .total_steps = 10};
  o.threads_per_rank = 1;
  struct medians {
    std::array<double, rounds> predicted, seconds, computing, processor;
    bool extrapolated = false;
  };
  std::array<medians, candidates.size()> each{};
  for (std::size_t round = 0; round < rounds; ++round) {
    hd::train::cluster now = here;
    hd::train::measure_kernels<Model, backend>(now, config, std::array{1, 2}, std::array{1, 2});
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      o.schedule = candidates[i].schedule;
      o.recompute = candidates[i].recompute;
      const auto mesh = hd::parse_mesh<mesh_type>(candidates[i].mesh);
      const auto e = hd::train::explain<Model, strategy>(o, mesh, now);
      const cost ran = measured<Model>(o, mesh);
      each[i].predicted[round] = e.seconds;
      each[i].seconds[round] = ran.seconds;
      for (const hd::train::rank_class& k : e.classes)
        each[i].computing[round] += static_cast<double>(k.ranks) * k.compute_seconds;
      each[i].processor[round] = ran.processor;
      each[i].extrapolated = each[i].extrapolated || e.extrapolated;
    }
  }
  std::vector<double> predicted, seconds, computing, processor;
  std::printf("%s: %-6s %-14s %-8s %10s %10s %7s | of processors %10s %7s\n", name, "mesh", "schedule", "recomp.",
              "predicted", "measured", "ratio", "measured", "ratio");
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    predicted.push_back(median(each[i].predicted));
    seconds.push_back(median(each[i].seconds));
    computing.push_back(median(each[i].computing));
    processor.push_back(median(each[i].processor));
    std::printf("%s: %-6s %-14s %-8s %7.2f ms %7.2f ms %7.3f | %10.2f ms %7.2f ms %7.3f%s\n", name, candidates[i].mesh,
                candidates[i].schedule, candidates[i].recompute, 1e3 * predicted.back(), 1e3 * seconds.back(),
                predicted.back() / seconds.back(), 1e3 * computing.back(), 1e3 * processor.back(),
                computing.back() / processor.back(), each[i].extrapolated ? "  extrapolated" : "");
  }
  const auto first = static_cast<std::size_t>(std::min_element(predicted.begin(), predicted.end()) - predicted.begin());
  const double best = *std::min_element(seconds.begin(), seconds.end()),
               tau = hd::plan::kendall_tau(predicted, seconds);
  const double behind = seconds[first] / best - 1, off = predicted[first] / seconds[first] - 1;
  std::printf("%s: Kendall's tau %.3f; the plan's first is %.1f %% behind the best; its seconds are off by %.1f %%\n",
              name, tau, 100 * behind, 100 * off);
  std::printf("%s: tau of the processors' seconds %.3f\n\n", name, hd::plan::kendall_tau(computing, processor));
  return tau >= 0.8 && behind <= 0.1 && std::abs(off) <= 0.2;
}

inline int run() {
#if defined(__linux__) || defined(__APPLE__)
  double load = 0;
  if (::getloadavg(&load, 1) == 1) std::printf("load of the machine at the beginning: %.2f\n", load);
#endif
  const hd::train::cluster here = hd::train::measure_machine<backend>(2, std::int64_t{4} << 30);
  std::printf("a core: %.1f GFLOP/s, %.1f GB/s; between two: %.2f us, %.1f GB/s\n\n", 1e-9 * here.device.flops,
              1e-9 * here.device.bytes_per_second, 1e6 * here.levels.front().latency_seconds,
              1e-9 * here.levels.front().bytes_per_second);
  bool all = compare<hd::model::gpt2<float>>(
      "gpt2", {.layers = 4, .heads = 4, .width = 192, .context = 128, .vocabulary = 1024}, here);
  const hd::model::llama_config wide{
      .layers = 4, .heads = 4, .kv_heads = 4, .width = 192, .ffn = 512, .context = 128, .vocabulary = 1024};
  all = compare<hd::model::llama<float>>("llama", wide, here) && all;
  const hd::model::llama_config deep{
      .layers = 8, .heads = 4, .kv_heads = 2, .width = 128, .ffn = 344, .context = 96, .vocabulary = 512};
  all = compare<hd::model::llama<float>>("deep", deep, here) && all;
  std::printf("%s\n", all ? "all within their bounds" : "not all within their bounds");
  return all ? 0 : 1;
}

}  // namespace plan_ranking
