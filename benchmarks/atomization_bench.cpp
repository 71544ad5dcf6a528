// benchmarks/atomization_bench.cpp: jobs that cut themselves against rigid ones on a simulated cluster, in virtual time.
//
//   atomization_bench [seeds]   (20 if not given)
//
// Eight GPUs cut into 28 MIG slices that others have reserved again and again, 300 jobs; see tests/plan/mig_study.hpp. First
// the dispatchers at four loads, then what cuts, and what re-partitioning slices, may cost until rigid jobs are better.
// The same numbers on every machine.
#include "../tests/plan/mig_study.hpp"

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

using namespace mig_study;

namespace {

struct mean {
  double wait = 0, first_wait = 0, used = 0, overhead = 0;
  void add(const sim::cluster_outcome& o, double part) {
    wait += o.wait * part;
    first_wait += o.first_wait * part;
    used += o.utilisation * part;
    overhead += o.overhead * part;
  }
};

sim::cluster_outcome first_come(const study& s, double overhead) {
  return sim::simulate_cluster(s.cluster, s.jobs, sim::first_come{overhead / 2, overhead / 2});
}

}  // namespace

int main(int argc, char** argv) {
  const int seeds = argc > 1 ? std::atoi(argv[1]) : 20;
  if (seeds < 1) return std::fprintf(stderr, "atomization_bench [seeds]\n"), 1;
  const double part = 1.0 / seeds;
  const std::array<const char*, 6> names{"first come, first served",      "EASY backfilling",      "one winner",
                                         "one winner, the paper's score", "clearing by intervals", "knows the future"};
  std::printf(
      "| load | dispatcher | mean wait s | until the first start s | utilisation | of the bound | overhead |\n");
  std::printf("|--:|---|--:|--:|--:|--:|--:|\n");
  for (const double load : {0.5, 0.65, 0.8, 0.95}) {
    constexpr double overhead = 40;
    std::array<mean, 6> by{};
    double bound = 0;
    for (int seed = 0; seed < seeds; ++seed) {
      const study s = make_study(static_cast<std::uint64_t>(seed), load, 300);
      const auto one = atomized(s, overhead);
      by[0].add(first_come(s, overhead), part);
      by[1].add(easy(s, overhead), part);
      by[2].add(one, part);
      by[3].add(atomized(s, overhead, sja::weighted{}), part);
      by[4].add(atomized(s, overhead, sja::response_ratio{.cut = 0.5}, sja::interval_clearing{true}), part);
      by[5].add(foreseen(s, overhead, one, 20000), part);
      bound += sim::most_utilisation(s.cluster, s.jobs) * part;
    }
    for (std::size_t i = 0; i < by.size(); ++i)
      std::printf("| %.2f | %s | %.0f | %.0f | %.3f | %.3f | %.1f %% |\n", load, names[i], by[i].wait, by[i].first_wait,
                  by[i].used, by[i].used / bound, 100 * by[i].overhead);
  }

  std::printf(
      "\nAt a load of 0.95, one winner against EASY backfilling (set-up and finish of the mean gap of 1900 s):\n\n");
  std::printf(
      "| set-up + finish s | of the gap | mean wait s, EASY | cut | utilisation, EASY | cut "
      "|\n|--:|--:|--:|--:|--:|--:|\n");
  struct crossing {
    const char* what;
    double last = 0, gain = 0, at = -1;
    void next(double overhead, double now) {
      if (at < 0 && now < 0) at = overhead > 0 ? last + (overhead - last) * gain / (gain - now) : 0;
      last = overhead;
      gain = now;
    }
  };
  std::array<crossing, 2> crossings{{{"wait"}, {"utilisation"}}};
  for (const double overhead : {0.0, 20.0, 40.0, 95.0, 140.0, 190.0, 285.0, 380.0, 570.0}) {
    mean rigid, cut;
    for (int seed = 0; seed < seeds; ++seed) {
      const study s = make_study(static_cast<std::uint64_t>(seed), 0.95, 300);
      rigid.add(easy(s, overhead), part);
      cut.add(atomized(s, overhead), part);
    }
    std::printf("| %.0f | %.1f %% | %.0f | %.0f | %.3f | %.3f |\n", overhead, overhead / 19, rigid.wait, cut.wait,
                rigid.used, cut.used);
    crossings[0].next(overhead, rigid.wait - cut.wait);
    crossings[1].next(overhead, cut.used - rigid.used);
  }
  for (const crossing& c : crossings)
    if (c.at >= 0)
      std::printf("\nRigid jobs have the better %s from %.0f s on (%.0f %% of the gap).\n", c.what, c.at, c.at / 19);
    else
      std::printf("\nCut jobs have the better %s at all of these.\n", c.what);

  std::printf("\nThe same with 40 s of set-up and finish, when slices that change hands are re-partitioned first:\n\n");
  std::printf("| re-partitioning s | mean wait s, EASY | cut | utilisation, EASY | cut |\n|--:|--:|--:|--:|--:|\n");
  std::array<crossing, 2> delays{{{"wait"}, {"utilisation"}}};
  for (const double seconds : {0.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0}) {
    mean rigid, cut;
    for (int seed = 0; seed < seeds; ++seed) {
      const study s = make_study(static_cast<std::uint64_t>(seed), 0.95, 300, seconds);
      rigid.add(easy(s, 40), part);
      cut.add(atomized(s, 40), part);
    }
    std::printf("| %.0f | %.0f | %.0f | %.3f | %.3f |\n", seconds, rigid.wait, cut.wait, rigid.used, cut.used);
    delays[0].next(seconds, rigid.wait - cut.wait);
    delays[1].next(seconds, cut.used - rigid.used);
  }
  for (const crossing& c : delays)
    if (c.at >= 0)
      std::printf("\nRigid jobs have the better %s from %.0f s of re-partitioning on.\n", c.what, c.at);
    else
      std::printf("\nCut jobs have the better %s at all of these.\n", c.what);
}
