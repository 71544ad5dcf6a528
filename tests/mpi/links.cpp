// Ranks of two hosts pass messages around a ring; then the network card of the second host becomes slow, or loses packets:
//   links slow|loss      under two_hosts.sh
// Ends with 0 if the runbook names it at its place, alone. Prints each link's bytes per second.
#include <heddle/comm/mpi.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/observe/conditions.hpp>
#include <heddle/observe/linux_counters.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>
#include <vector>

namespace hd = heddle;
namespace observe = heddle::observe;
using line = hd::mesh<hd::axis<hd::dp>>;

namespace {

constexpr int calm_windows = 12, most_windows = 20, messages = 4;

double now() {
  return static_cast<double>(hd::now_ns()) / 1e9;
}

// What one rank saw in a window.
struct seen {
  double seconds_per_byte = 0;  // of the link that ends here, by its fastest message: others wait for cores, too
  double out_retransmits = 0, in_retransmits = 0;
};

bool run(hd::world<hd::mpi, line>& world, bool loss, const std::string& fault) {
  auto& all = world.all();
  const int n = all.size(), r = all.rank();
  const std::size_t bytes = loss ? 1 << 18 : 1 << 16;
  std::vector<std::byte> out(bytes), in(bytes);
  observe::linux_counters counters;
  observe::runbook book({.ranks = n, .links = n}, {.skipped = 3, .learned = 8});
  bool right = false, wrong = false;
  double last = now();
  for (int w = 0; w < most_windows; ++w) {
    world.mark(w);
    if (w == calm_windows && r == n - 1 && std::system(fault.c_str()) != 0)
      throw hd::config_error("heddle: this network card cannot be made slow: " + fault);
    seen mine;
    for (int m = 0; m < messages; ++m) {
      // One link after the other, so that those of a host do not share its card.
      for (int from = 0; from < n; ++from) {
        all.barrier();
        const double begin = now();
        if (r == from) all.send(out, (from + 1) % n);
        if (r == (from + 1) % n) {
          all.recv(in, from);
          const double took = (now() - begin) / static_cast<double>(bytes);
          mine.seconds_per_byte = m == 0 ? took : (std::min)(mine.seconds_per_byte, took);
        }
      }
    }
    const double at = now();
    const observe::linux_window counted = counters.next(at - last);
    last = at;
    mine.out_retransmits = counted.out_retransmits.value_or(0);
    mine.in_retransmits = counted.in_retransmits.value_or(0);
    std::vector<seen> of_all(static_cast<std::size_t>(n));
    all.all_gather(std::span(&mine, 1), of_all);
    std::array<double, 2> lost{};
    for (int q = 0; q < n; ++q) {
      const seen& s = of_all[static_cast<std::size_t>(q)];
      book.add(observe::signal::link, (q + n - 1) % n, s.seconds_per_byte);
      lost = {(std::max)(lost[0], s.out_retransmits), (std::max)(lost[1], s.in_retransmits)};
    }
    book.add(observe::signal::out_retransmits, lost[0]);
    book.add(observe::signal::in_retransmits, lost[1]);
    book.end_window();
    for (const auto& v : book.verdicts()) {
      if (r == 0) std::printf("window %d: %s\n", w, to_string(v).c_str());
      if (w < calm_windows) wrong = true;
      if (!loss && v.name == "congestion") (v.place == n - 1 ? right : wrong) = true;
      if (loss && v.name == "egress_loss") right = true;
    }
    if (r == 0 && (w == calm_windows - 1 || w == most_windows - 1 || right)) {
      for (int q = 0; q < n; ++q)
        std::printf("  %d -> %d: %9.2f MB/s\n", (q + n - 1) % n, q,
                    1e-6 / of_all[static_cast<std::size_t>(q)].seconds_per_byte);
      std::printf("  sent again: %.4f, came twice: %.4f\n", lost[0], lost[1]);
    }
    if (right) break;  // on all ranks: they have the same signals
  }
  return right && !wrong;
}

}  // namespace

int main(int argc, char** argv) try {
  const bool loss = argc > 1 && std::string(argv[1]) == "loss";
  // 20 Mbit/s; a queue of a few packets loses what does not fit.
  const std::string fault = std::string("tc qdisc replace dev eth0 root tbf rate 20mbit burst 16kb ") +
                            (loss ? "limit 24kb" : "latency 500ms");
  bool right = false;
  hd::launch_options options;
  options.timeout = std::chrono::seconds(60);
  int ranks = 1;
  hd::detail::mpi_of_this_process(argc, argv);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  hd::launch<hd::mpi>(line{ranks}, options, [&](auto& world) { right = run(world, loss, fault); });
  return right ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
