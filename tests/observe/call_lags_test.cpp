#include <heddle/observe/call_lags.hpp>
#include <heddle/observe/conditions.hpp>
#include <heddle/observe/linux_counters.hpp>

#include "catch.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace hd = heddle;
namespace observe = heddle::observe;
namespace fs = std::filesystem;

namespace {

// Ranks of a grid of rows and columns compute, then reduce in their row, compute, and reduce in their column. `slow` takes longer.
std::vector<hd::event> lag_run(int rows, int columns, int slow, double excess, int steps, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> noise(0, 0.01);
  std::vector<hd::event> events;
  const int ranks = rows * columns;
  std::vector<double> now(static_cast<std::size_t>(ranks), 0);
  std::uint64_t flow = 1;
  const auto at = [&](int r) -> double& { return now[static_cast<std::size_t>(r)]; };
  const auto together = [&](const std::vector<int>& members, int step) {
    double last = 0;
    for (const int r : members) last = std::max(last, at(r));
    for (const int r : members) {
      events.push_back({.kind = hd::activity::collective,
                        .name = "all_reduce",
                        .rank = r,
                        .step = step,
                        .flow = flow,
                        .begin_ns = std::llround(at(r)),
                        .end_ns = std::llround(last + 1e5)});
      at(r) = last + 1e5;
    }
    ++flow;
  };
  for (int step = 0; step < steps; ++step)
    for (const bool by_row : {true, false}) {
      for (int r = 0; r < ranks; ++r) at(r) += 5e6 * (1 + noise(random)) * (r == slow && by_row ? 1 + excess : 1);
      for (int k = 0; k < (by_row ? rows : columns); ++k) {
        std::vector<int> members;
        for (int j = 0; j < (by_row ? columns : rows); ++j)
          members.push_back(by_row ? k * columns + j : j * columns + k);
        together(members, step);
      }
    }
  return events;
}

void lag_write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

}  // namespace

TEST_CASE("the rank that makes others wait is named, those that it makes late are not", "[observe][lags]") {
  // One group of eight: all leave late, one enters late.
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    const auto lags = observe::call_lags(lag_run(1, 8, 3, 0.2, 40, seed));
    const auto roots = observe::late_roots(lags, {.least_ns = 200'000});
    REQUIRE(roots.size() == 1);
    CHECK(roots[0].rank == 3);
    CHECK(observe::late_roots(observe::call_lags(lag_run(1, 8, -1, 0, 40, seed)), {.least_ns = 200'000}).empty());
  }
  // By hand: rank 3 is 10 late in the call with 2, both are then 10 late in their calls with 0 and 1; rank 2 is a victim.
  const auto call = [](int rank, std::uint64_t flow, std::int64_t begin, std::int64_t end) {
    return hd::event{
        .kind = hd::activity::collective, .name = "x", .rank = rank, .flow = flow, .begin_ns = begin, .end_ns = end};
  };
  const std::vector<hd::event> events{call(0, 1, 100, 101), call(1, 1, 100, 101), call(2, 2, 100, 111),
                                      call(3, 2, 110, 111), call(0, 3, 120, 131), call(2, 3, 130, 131),
                                      call(1, 4, 120, 131), call(3, 4, 130, 131)};
  const auto lags = observe::call_lags(events);
  REQUIRE(lags.size() == 8);
  for (const auto& l : lags) {
    INFO("rank " << l.rank << " flow " << l.flow);
    CHECK(l.own_ns == (l.rank == 3 ? 10 : 0));
    if (l.flow == 3 || l.flow == 4) CHECK(l.lag_ns == (l.rank >= 2 ? 10 : -10));
  }
  CHECK(observe::latest_ranks(lags)[0].rank == 3);
  CHECK(to_string(observe::rank_lateness{3, 40, 1'300'000, 1'200'000}) ==
        "rank 3 enters its collectives 1.2 ms after the others, by itself (40 calls)");
  // Calls of which one member is known, and other events, have no lag.
  CHECK(observe::call_lags(std::vector<hd::event>{call(0, 1, 100, 101), call(1, 0, 100, 101), call(2, 0, 90, 101)})
            .empty());
}

TEST_CASE("counters of Linux become signals, and what a machine does not count is absent", "[observe][conditions]") {
  const fs::path root =
      fs::temp_directory_path() /
      ("heddle_counters_" + std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()));
  const auto snmp = [](int in, int out, int again) {
    return "Ip: Forwarding\nIp: 1\nTcp: InSegs OutSegs RetransSegs\nTcp: " + std::to_string(in) + " " +
           std::to_string(out) + " " + std::to_string(again) + "\n";
  };
  const auto dev = [](long in, long out) {
    return "Inter-| Receive\n face |bytes\n    lo: 9 1 0 0 0 0 0 0 9 1 0\n  eth0: " + std::to_string(in) +
           " 1 0 0 0 0 0 0 " + std::to_string(out) + " 1 0 0 0 0 0 0\n";
  };
  observe::linux_counters nothing(root.string());
  const auto none = nothing.next(1);
  CHECK((!none.in_retransmits && !none.out_retransmits && !none.nic_share && !none.link_retransmits &&
         !none.credit_wait));

  lag_write(root / "proc/net/snmp", snmp(1000, 2000, 5));
  lag_write(root / "proc/net/netstat", "TcpExt: TCPOFOQueue TCPDSACKOldSent\nTcpExt: 7 1\n");
  lag_write(root / "proc/net/dev", dev(1000, 500));
  lag_write(root / "sys/class/net/eth0/speed", "1000\n");
  lag_write(root / "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_packets", "100\n");
  lag_write(root / "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_wait", "40\n");
  lag_write(root / "sys/class/infiniband/mlx5_0/ports/1/hw_counters/packet_seq_err", "3\n");
  observe::linux_counters counters(root.string());
  lag_write(root / "proc/net/snmp", snmp(2000, 2500, 15));
  lag_write(root / "proc/net/netstat", "TcpExt: TCPOFOQueue TCPDSACKOldSent\nTcpExt: 9 2\n");
  lag_write(root / "proc/net/dev", dev(1000 + 240'000'000, 500 + 10));
  lag_write(root / "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_packets", "10100\n");
  lag_write(root / "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_wait", "100\n");
  lag_write(root / "sys/class/infiniband/mlx5_0/ports/1/hw_counters/packet_seq_err", "13\n");
  const auto w = counters.next(2);
  const auto is = [](const std::optional<double>& have, double want) { return have && std::abs(*have - want) < 1e-12; };
  CHECK(is(w.in_retransmits, 3 / 1000.0));
  CHECK(is(w.out_retransmits, 10 / 500.0));
  CHECK(is(w.nic_share, 0.96));
  CHECK(is(w.link_retransmits, 1e-3));
  CHECK(is(w.credit_wait, 30));
  // Counters that start anew, files that say something else: absent, no error.
  lag_write(root / "proc/net/snmp", snmp(10, 10, 0));
  lag_write(root / "proc/net/dev", "nonsense: x\n");
  const auto anew = counters.next(1);
  CHECK((!anew.in_retransmits && !anew.out_retransmits && !anew.nic_share));

  // A runbook that gets them: rows 4 and 7 alarm, the others are not seen here.
  observe::runbook book({}, {.skipped = 0, .learned = 1});
  observe::linux_counters fed(root.string());
  for (int i = 1; i <= 5; ++i) {
    lag_write(root / "proc/net/snmp", snmp(10 + 1000 * i, 10 + 1000 * i, 20 * i));
    lag_write(root / "proc/net/netstat",
              "TcpExt: TCPOFOQueue TCPDSACKOldSent\nTcpExt: " + std::to_string(9 + 5 * i) + " 2\n");
    fed.add_to(book, 1);
    book.end_window();
  }
  std::vector<std::string> names;
  for (const auto& v : book.verdicts()) names.emplace_back(v.name);
  CHECK(names == std::vector<std::string>{"egress_loss", "ingress_loss"});
  CHECK(book.not_seen_here().size() == 28 - 3);  // these two and InfiniBand's waits; no packet was sent there
  // This machine's own files can be read, whatever they say.
  observe::linux_counters here;
  CHECK_NOTHROW(here.next(1));
  fs::remove_all(root);
}
