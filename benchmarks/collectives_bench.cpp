// Collective algorithms over messages between threads: which one is chosen, which one is best, in one run.
//
//   collectives_bench [largest bytes = 1048576] [repetitions = 7] [most ranks = 8]
//
// Each line is one collective of floats among so many ranks: the fastest algorithm of messages and its time (the slowest
// rank's), then over that time the time of what was chosen: by the thresholds of comm/decision.hpp, by the least cost of
// Hockney's model with alpha, beta and gamma measured here, and by an earlier measurement like this one, as `tune` makes
// them. The last columns have the communicator's own call as well, which threads take where no algorithm is named: what
// an earlier measurement chose over the best of all, and the own call over the best algorithm of messages. 1.00 is the
// best possible choice.
//
// Then the ring from its table beside a loop over isend and irecv written by hand.
#include <heddle/collective/collectives.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/collective/tune.hpp>

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
  ratios thresholds, model, tuned, tuned_with_own;
};

template <hd::comm_operation What, class C>
void measure(C& c, const hd::hockney& net, std::int64_t bytes, int repetitions, hd::collective_plans& plans,
             summary& all) {
  const auto before = hd::measure_algorithms<What>(c, bytes, repetitions, plans);
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
  const hd::algorithm_name by_tuning = hd::fastest(std::span(before).subspan(1), true).name;
  const double with_own = time_of(times, hd::fastest(before, true).name) / (std::min)(best.seconds, times[0].seconds);
  all.thresholds.add(ratio(by_size));
  all.model.add(ratio(by_model));
  all.tuned.add(ratio(by_tuning));
  all.tuned_with_own.add(with_own);
  const auto column = [](std::string_view name, double r) {
    std::printf("  %-38.*s %5.2f", static_cast<int>(name.size()), name.data(), r);
  };
  std::printf("%-14.*s %8lld %3d %9.1f us", static_cast<int>(to_string(What).size()), to_string(What).data(),
              static_cast<long long>(bytes), c.size(), best.seconds * 1e6);
  column(to_string(best.name), 1);
  column(to_string(by_size), ratio(by_size));
  column(to_string(by_model), ratio(by_model));
  std::printf("  %5.2f  %5.2f  %5.2f\n", ratio(by_tuning), with_own, times[0].seconds / best.seconds);
}

// The ring for vectors of floats that the ranks divide: what algo::ring's table says, as a loop.
template <class C>
void ring_by_hand(C& c, std::span<float> y, std::span<float> scratch) {
  const int p = c.size(), r = c.rank(), next = (r + 1) % p, previous = (r + p - 1) % p;
  const std::size_t each = scratch.size();
  const auto chunk = [&](int k) { return y.subspan(static_cast<std::size_t>((k + 2 * p) % p) * each, each); };
  for (int k = 0; k < p - 1; ++k) {
    auto in = c.irecv(scratch, previous, 1);
    auto out = c.isend(std::span<const float>(chunk(r - k - 1)), next, 1);
    in.wait();
    float* const own = chunk(r - k - 2).data();
    const float* const came = scratch.data();
    for (std::size_t i = 0; i < each; ++i) own[i] = came[i] + own[i];
    out.wait();
  }
  for (int k = 0; k < p - 1; ++k) {
    auto in = c.irecv(chunk(r - k - 1), previous, 1);
    c.send(std::span<const float>(chunk(r - k)), next, 1);
    in.wait();
  }
}

template <class C>
void compare_ring(C& c, std::int64_t bytes, int turns) {
  const auto each = static_cast<std::size_t>(bytes / 4 / c.size());
  std::vector<float> x(each * static_cast<std::size_t>(c.size()), 0.0f), scratch(each);
  hd::collective_plans plans;
  const auto by_hand = [&] { ring_by_hand(c, std::span(x), std::span(scratch)); };
  const auto by_table = [&] { hd::all_reduce<hd::algo::ring>(c, x, hd::plus{}, plans); };
  const auto time = [&](const auto& work) {
    c.barrier();
    const double start = hd::detail::seconds_now();
    for (int k = 0; k < 4; ++k) work();
    return hd::detail::slowest(c, (hd::detail::seconds_now() - start) / 4);
  };
  time(by_hand);
  time(by_table);
  std::vector<double> hand, table;
  for (int turn = 0; turn < turns; ++turn) {
    hand.push_back(time(by_hand));
    table.push_back(time(by_table));
  }
  const double h = hd::detail::typical_of(hand), t = hd::detail::typical_of(table);
  if (c.rank() == 0)
    std::printf("ring all_reduce of %lld bytes among %d: %.1f us by hand, %.1f us from the table, ratio %.3f\n",
                static_cast<long long>(bytes), c.size(), h * 1e6, t * 1e6, t / h);
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t largest = argc > 1 ? std::atoll(argv[1]) : 1 << 20;
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 7;
  const int most = argc > 3 ? std::atoi(argv[3]) : 8;
  summary all;
  std::printf("%-14s %8s %3s %12s  %-44s  %-44s  %-44s  %5s  %5s  %5s\n", "collective", "bytes", "p", "best",
              "best algorithm", "by thresholds", "by the model", "tuned", "t+own", "own");
  for (int p = 2; p <= most; p = p < 4 ? p + 1 : 2 * p) {
    hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{p}, [&](auto& world) {
      auto& c = world.all();
      const hd::hockney net = hd::measure_links(c);
      if (c.rank() == 0)
        std::printf("# %d ranks: alpha %.2f us, beta %.3f ns/byte, gamma %.3f ns/byte\n", p, net.alpha * 1e6,
                    net.beta * 1e9, net.gamma * 1e9);
      hd::collective_plans plans;
      for (std::int64_t bytes = 64; bytes <= largest;
           bytes = bytes < largest && bytes * 8 > largest ? largest : bytes * 8) {
        using enum hd::comm_operation;
        measure<all_reduce>(c, net, bytes, repetitions, plans, all);
        measure<reduce>(c, net, bytes, repetitions, plans, all);
        measure<broadcast>(c, net, bytes, repetitions, plans, all);
        measure<reduce_scatter>(c, net, bytes, repetitions, plans, all);
        measure<all_gather>(c, net, bytes, repetitions, plans, all);
        measure<all_to_all>(c, net, bytes, repetitions, plans, all);
      }
    });
  }
  all.thresholds.print("thresholds:");
  all.model.print("model:");
  all.tuned.print("tuned:");
  all.tuned_with_own.print("with own:");
  for (int p = 2; p <= most; p *= 2)
    hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{p}, [&](auto& world) {
      for (const std::int64_t bytes : {std::int64_t{1} << 12, std::int64_t{1} << 20})
        compare_ring(world.all(), bytes, 6 * repetitions);
    });
}
