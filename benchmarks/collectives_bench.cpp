// Collective algorithms over messages between threads: which one is chosen, which one is best, in one run.
//
//   collectives_bench [largest bytes = 1048576] [repetitions = 5] [most ranks = 8]
//
// Each line is one collective of floats among so many ranks: the fastest algorithm of messages and its time (median, the
// slowest rank's), then over that time the time of what was chosen: by the thresholds of comm/decision.hpp, by the least
// cost of Hockney's model with alpha, beta and gamma measured here, and by `tune` at neighbouring sizes; then the
// communicator's own call, which threads take where no algorithm is named. 1.00 is the best possible choice.
#include <heddle/comm/collectives.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/comm/tune.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hd = heddle;

namespace {

double time_of(std::span<const hd::algorithm_time> times, hd::algorithm_name name) {
  for (const hd::algorithm_time& t : times)
    if (t.name == name) return t.seconds;
  return 0;
}

struct ratios {
  double product = 1, worst = 0;
  int count = 0, within = 0;
  void add(double r) {
    product *= r;
    worst = r > worst ? r : worst;
    ++count;
    if (r <= 1.15) ++within;
  }
  void print(const char* what) const {
    std::printf("%-12s geometric mean %.2f, worst %.2f, within 15 %% of the best: %d of %d\n", what,
                count > 0 ? std::pow(product, 1.0 / count) : 0.0, worst, within, count);
  }
};

struct summary {
  ratios thresholds, model, tuned;
};

template <hd::comm_operation What, class C>
void measure(C& c, const hd::hockney& net, const hd::measured_decisions& tuned, std::int64_t bytes, int repetitions,
             hd::collective_plans& plans, summary& all) {
  const auto times = hd::measure_algorithms<What>(c, bytes, repetitions, plans);
  if (c.rank() != 0 || times.size() < 3) return;  // between one algorithm and the own call there is nothing to choose
  const std::span<const hd::algorithm_time> messages = std::span(times).subspan(1);
  hd::algorithm_time best = messages[0];
  for (const hd::algorithm_time& t : messages)
    if (t.seconds < best.seconds) best = t;
  const hd::collective_question q{What, c.size(), bytes, true, true, true, {}};
  const auto ratio = [&](hd::algorithm_name name) { return time_of(times, name) / best.seconds; };
  const hd::algorithm_name by_size = hd::choose(q);
  const hd::algorithm_name by_model = hd::cheapest(hd::known_algorithms{}, q, net).name;
  const hd::algorithm_name by_tuning = tuned.choose(q);
  const double least = (std::min)(best.seconds, times[0].seconds);
  all.thresholds.add(ratio(by_size));
  all.model.add(ratio(by_model));
  all.tuned.add(time_of(times, by_tuning) / least);
  const auto column = [](std::string_view name, double r) {
    std::printf("  %-38.*s %5.2f", static_cast<int>(name.size()), name.data(), r);
  };
  std::printf("%-14.*s %8lld %3d %9.1f us", static_cast<int>(to_string(What).size()), to_string(What).data(),
              static_cast<long long>(bytes), c.size(), best.seconds * 1e6);
  column(to_string(best.name), 1);
  column(to_string(by_size), ratio(by_size));
  column(to_string(by_model), ratio(by_model));
  std::printf("  %5.2f  %5.2f\n", time_of(times, by_tuning) / least, times[0].seconds / best.seconds);
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t largest = argc > 1 ? std::atoll(argv[1]) : 1 << 20;
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 5;
  const int most = argc > 3 ? std::atoi(argv[3]) : 8;
  summary all;
  std::printf("%-14s %8s %3s %12s  %-44s  %-44s  %-44s  %5s  %5s\n", "collective", "bytes", "p", "best",
              "best algorithm", "by thresholds", "by the model", "tuned", "own");
  for (int p = 2; p <= most; p = p < 4 ? p + 1 : 2 * p) {
    hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{p}, [&](auto& world) {
      auto& c = world.all();
      const hd::hockney net = hd::measure_links(c);
      if (c.rank() == 0)
        std::printf("# %d ranks: alpha %.2f us, beta %.3f ns/byte, gamma %.3f ns/byte\n", p, net.alpha * 1e6,
                    net.beta * 1e9, net.gamma * 1e9);
      std::vector<std::int64_t> sizes;
      for (std::int64_t bytes = 64; bytes <= largest; bytes *= 8) sizes.push_back(bytes);
      const hd::measured_decisions tuned = hd::tune(c, sizes, repetitions);
      hd::collective_plans plans;
      for (const std::int64_t bytes : sizes) {
        using enum hd::comm_operation;
        measure<all_reduce>(c, net, tuned, bytes, repetitions, plans, all);
        measure<reduce>(c, net, tuned, bytes, repetitions, plans, all);
        measure<broadcast>(c, net, tuned, bytes, repetitions, plans, all);
        measure<reduce_scatter>(c, net, tuned, bytes, repetitions, plans, all);
        measure<all_gather>(c, net, tuned, bytes, repetitions, plans, all);
        measure<all_to_all>(c, net, tuned, bytes, repetitions, plans, all);
      }
    });
  }
  all.thresholds.print("thresholds:");
  all.model.print("model:");
  all.tuned.print("tuned:");
}
