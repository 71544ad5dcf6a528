// tests/plan/mig_study.hpp: a simulated cluster of cut GPUs with jobs at random, for the tests and the benchmark.
#pragma once

#include <heddle/core/random.hpp>
#include <heddle/plan/atomization/dispatch.hpp>
#include <heddle/plan/atomization/mig.hpp>
#include <heddle/sim/clairvoyant.hpp>
#include <heddle/sim/slice_cluster.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace mig_study {

namespace hd = heddle;
namespace sim = heddle::sim;
namespace sja = heddle::plan::sja;

struct study {
  sim::slice_cluster cluster;
  std::vector<sim::cluster_job> jobs;
};

// Eight GPUs: every other one 4g + 2g + 1g, the rest 2g + 2g + 2g + 1g. Each slice is somebody else's again and again for
// 400 to 1200 s, with gaps of 800 to 3000 s. Jobs come at random; their work is log-normal, at most 2400 s.
inline study make_study(std::uint64_t seed, double load, int count, double repartition_seconds = 0) {
  study s;
  s.cluster.repartition_seconds = repartition_seconds;
  const hd::counter_random random(seed, 1);
  std::uint64_t next = 0;
  const auto uniform = [&](double low, double high) { return low + (high - low) * random.uniform(next++); };
  for (int g = 0; g < 8; ++g) {
    sja::mig_gpu gpu;
    if (g % 2 == 1) {
      gpu.make("4g", 0);
    } else {
      gpu.make("2g", 0);
      gpu.make("2g", 2);
    }
    gpu.make("2g", 4);
    gpu.make("1g", 6);
    for (const auto& i : gpu.instances()) s.cluster.bytes.push_back(gpu.bytes(i));
  }
  double mean = 0;
  for (int j = 0; j < count; ++j) {
    const double work = std::round(std::clamp(std::exp(std::log(400.0) + 0.9 * random.normal(next++)), 30.0, 2400.0));
    const double size = uniform(0, 1);
    s.jobs.push_back({0, work, size < 0.5 ? 9e9 : size < 0.85 ? 18e9 : 35e9});
    mean += work / count;
  }
  const auto slices = static_cast<double>(s.cluster.bytes.size());
  double now = 0;
  for (sim::cluster_job& j : s.jobs) j.arrival = now -= std::log(1 - uniform(0, 1)) * mean / (load * 0.7 * slices);
  for (int k = 0; k < static_cast<int>(slices); ++k)
    for (double at = uniform(0, 2500); at < 1.3 * now;) {
      const double length = uniform(400, 1200);
      s.cluster.reservations.push_back({k, at, at + length});
      at += length + uniform(800, 3000);
    }
  return s;
}

inline sim::cluster_outcome easy(const study& s, double overhead) {
  sim::easy_backfilling rigid;
  rigid.set_up = rigid.finish = overhead / 2;
  return sim::simulate_cluster(s.cluster, s.jobs, rigid);
}
template <class... Policies>
sim::cluster_outcome atomized(const study& s, double overhead, Policies... policies) {
  sja::broker<Policies...> broker{policies...};
  broker.keep_log(false);
  return sim::simulate_cluster(
      s.cluster, s.jobs,
      sja::atomizing_dispatcher(sja::cut_terms{.set_up = overhead / 2, .finish = overhead / 2}, std::move(broker)));
}

// By one who knows all jobs beforehand, and begins with what was done without knowing them; cuts cost the same.
inline sim::cluster_outcome foreseen(const study& s, double overhead, const sim::cluster_outcome& start,
                                     int tries = 1000) {
  return sim::simulate_cluster(
      s.cluster, s.jobs,
      sim::planned_dispatcher(sim::plan_clairvoyantly(
          s.cluster, s.jobs, {.set_up = overhead / 2, .finish = overhead / 2, .tries = tries}, start.ran)));
}

}  // namespace mig_study
