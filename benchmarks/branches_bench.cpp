// benchmarks/branches_bench.cpp: what branches cost, and draws of noise, as ratios of works that take turns in one run.
// - an exchange of two branches of one rank: an all-reduce of the same bytes and three passes over them
// - a step of two branches of two ranks with its exchange: a step of four ranks with one network and the same work, and an exchange
// - a draw of the discrete Laplace distribution: one by a logarithm in floating point, of the same scale and generator
// Ranks are threads of one thread each. Of each work the median of its rounds, and the least.
//   branches_bench [rounds]
#include "random_tokens.hpp"
#include "read_bandwidth.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/discrete_laplace.hpp>
#include <heddle/core/random.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/branches.hpp>
#include <heddle/train/make_trainer.hpp>
#include <heddle/train/options.hpp>
#include HEDDLE_GEMM_HEADER

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

namespace {

namespace hd = heddle;
struct branch {};
using branched = hd::mesh<hd::axis<branch>, hd::axis<hd::dp>>;
using strategy = hd::strategy<hd::mesh<hd::axis<hd::dp>>, hd::zero<1>, hd::compute::host<HEDDLE_GEMM>>;
using network = hd::model::gpt2<float>;

hd::train::options<network::config> settings(std::int64_t batch) {
  hd::train::options<network::config> o;
  o.model = {.layers = 4, .heads = 8, .width = 512, .context = 128, .vocabulary = 4096};
  o.batch = batch;
  o.steps = 1'000'000;
  o.threads_per_rank = 1;
  return o;
}

struct times {
  std::vector<double> ms{};
  void add(double seconds) { ms.push_back(1e3 * seconds); }
  double least() const { return *std::min_element(ms.begin(), ms.end()); }
  double middle() const { return median(ms); }
};

// The seconds between two barriers of all ranks, the same on all of them but for the way back.
template <class World, class Work>
double together(World& world, Work&& work) {
  world.control().barrier();
  return time_of([&] {
           work();
           world.control().barrier();
         })
      .wall;
}

void exchanges(int rounds) {
  times exchanged, summed;
  std::int64_t bytes = 0;
  hd::launch<hd::threads>(branched{2, 1}, [&](auto& world) {
    auto own = world.template sub<hd::dp>();
    auto trainer = hd::train::make_trainer<strategy>(network{}, own, settings(1));
    auto exchange = hd::train::branches<branch>(trainer, world, {.keep = 0.999});
    std::vector<float> mine(trainer.stage().weights().size(), 1.0f), sum(mine.size());
    const auto by_hand = [&] {
      std::copy(mine.begin(), mine.end(), sum.begin());
      world.template along<branch>().all_reduce(std::span<float>(sum), hd::plus{});
      for (float& s : sum) s *= 0.5f;
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = sum[i] + 0.998f * (mine[i] - sum[i]);
    };
    for (int r = -1; r < rounds; ++r) {
      const double a = together(world, [&] { exchange(trainer); }), b = together(world, by_hand);
      if (world.rank() != 0 || r < 0) continue;
      exchanged.add(a);
      summed.add(b);
    }
    if (world.rank() == 0) bytes = static_cast<std::int64_t>(4 * mine.size());
  });
  std::printf(
      "exchange of %.0f MB: %.1f ms (least %.1f); all-reduce and three passes: %.1f (%.1f); ratio %.2f (%.2f)\n",
      1e-6 * static_cast<double>(bytes), exchanged.middle(), exchanged.least(), summed.middle(), summed.least(),
      exchanged.middle() / summed.middle(), exchanged.least() / summed.least());
}

void steps(int rounds) {
  constexpr int each = 3;
  times apart, exchanged, one;
  for (int r = 0; r < rounds; ++r) {
    hd::launch<hd::threads>(branched{2, 2}, [&](auto& world) {
      auto own = world.template sub<hd::dp>();
      const random_tokens data{128, 4096};
      auto trainer = hd::train::make_trainer<strategy>(network{}, own, settings(2));
      auto exchange = hd::train::branches<branch>(trainer, world, {.keep = 0.999});
      for (int k = -1; k < each; ++k) {
        const double a = together(world, [&] {
          trainer.step(data);
          exchange(trainer);
        });
        const double b = together(world, [&] { exchange(trainer); });
        if (world.rank() != 0 || k < 0) continue;
        apart.add(a);
        exchanged.add(b);
      }
    });
    hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{4}, [&](auto& world) {
      const random_tokens data{128, 4096};
      auto trainer = hd::train::make_trainer<strategy>(network{}, world, settings(4));
      for (int k = -1; k < each; ++k) {
        const double a = together(world, [&] { trainer.step(data); });
        if (world.rank() == 0 && k >= 0) one.add(a);
      }
    });
  }
  const double middle = one.middle() + exchanged.middle(), least = one.least() + exchanged.least();
  std::printf(
      "step of 2 + 2 ranks with its exchange: %.1f ms (least %.1f); of 4 ranks with one network: %.1f (%.1f), an "
      "exchange: %.1f (%.1f); ratio %.2f (%.2f)\n",
      apart.middle(), apart.least(), one.middle(), one.least(), exchanged.middle(), exchanged.least(),
      apart.middle() / middle, apart.least() / least);
}

void draws(int rounds) {
  constexpr std::uint32_t count = 200'000;
  for (const hd::laplace_scale t : {hd::laplace_scale{3, 2}, {4080, 1}, {40800, 1}}) {
    const double scale = static_cast<double>(t.numerator) / t.denominator;
    times exact, floating;
    double sum = 0;  // is printed, so that draws are wanted
    for (int r = -1; r < rounds; ++r) {
      const spent a = time_of([&] {
        for (std::uint32_t i = 0; i < count; ++i) {
          hd::counter_words words(48, i, 0, 0);
          sum += static_cast<double>(hd::discrete_laplace(words, t));
        }
      });
      const hd::counter_random random(48, 1);
      const spent b = time_of([&] {
        for (std::uint32_t i = 0; i < count; ++i) {
          const double u = 2 * random.uniform(i) - 1;
          sum += std::copysign(scale * std::log1p(-std::abs(u)), u);
        }
      });
      if (r < 0) continue;
      exact.add(a.processor);
      floating.add(b.processor);
    }
    const double ns = 1e6 / count;
    std::printf(
        "draw of scale %.1f: %.0f ns (least %.0f); in floating point: %.0f (%.0f); ratio %.1f (%.1f); sum %.3g\n",
        scale, ns * exact.middle(), ns * exact.least(), ns * floating.middle(), ns * floating.least(),
        exact.middle() / floating.middle(), exact.least() / floating.least(), sum);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  exchanges(10 * rounds);
  steps(rounds);
  draws(rounds);
}
