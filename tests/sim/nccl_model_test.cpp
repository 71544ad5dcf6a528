#include <heddle/sim/nccl_model.hpp>

#include "catch.hpp"

#include <cmath>
#include <string>
#include <vector>

namespace hd = heddle;
namespace sim = heddle::sim;
using hd::comm_operation;
using sim::nccl_algorithm, sim::nccl_protocol, sim::nccl_cluster;

namespace {

// The choices from 8 bytes to 16 GiB, each once, in order.
std::vector<sim::nccl_estimate> choices(const nccl_cluster& c, comm_operation what = comm_operation::all_reduce) {
  std::vector<sim::nccl_estimate> order;
  for (double bytes = 8; bytes <= 16.0 * (1u << 30); bytes *= 1.25) {
    const auto best = sim::nccl_choice(c, what, bytes);
    if (order.empty() || best.algorithm != order.back().algorithm || best.protocol != order.back().protocol)
      order.push_back(best);
  }
  return order;
}

double seconds_of(const nccl_cluster& c, comm_operation what, double bytes, nccl_algorithm a, nccl_protocol p) {
  for (const auto& e : sim::nccl_estimates(c, what, bytes))
    if (e.algorithm == a && e.protocol == p) return e.seconds;
  return -1;
}

}  // namespace

TEST_CASE("NCCL's model: latencies and bandwidths by hand", "[sim][nccl]") {
  const nccl_cluster node;
  const auto us = [&](const nccl_cluster& c, nccl_algorithm a, nccl_protocol p) {
    return 1e6 * seconds_of(c, comm_operation::all_reduce, 0, a, p);
  };
  CHECK(us(node, nccl_algorithm::ring, nccl_protocol::ll) == Approx(6.6 + 14 * 0.6));
  CHECK(us(node, nccl_algorithm::ring, nccl_protocol::ll128) == Approx(14 + 14 * 1.9));
  CHECK(us(node, nccl_algorithm::ring, nccl_protocol::simple) == Approx(8.4 + 14 * 3.4));
  CHECK(us(node, nccl_algorithm::tree, nccl_protocol::ll) == Approx(6.8 + 2 * 7 * 0.6));
  nccl_cluster four;
  four.nodes = 4;
  CHECK(us(four, nccl_algorithm::tree, nccl_protocol::simple) == Approx(8.4 + 2 * (7 * 4 + 2 * 14)));
  CHECK(us(four, nccl_algorithm::ring, nccl_protocol::ll) == Approx(6.6 + 56 * 1.0 + 6 * 2.7));  // the host posts
  CHECK(us(four, nccl_algorithm::ring, nccl_protocol::simple) == Approx(8.4 + 56 * 3.4 + 6 * 14));
  nccl_cluster slow_host = four;
  slow_host.post_seconds = 2e-6;
  CHECK(us(slow_host, nccl_algorithm::ring, nccl_protocol::simple) == Approx(8.4 + 56 * 6 + 6 * 14));
  nccl_cluster single;
  single.nodes = 16;
  single.gpus_per_node = 1;
  CHECK(1e6 * seconds_of(single, comm_operation::all_gather, 0, nccl_algorithm::pat, nccl_protocol::simple) ==
        Approx(8 + 4 * 14 / 3.5 + 2.8 * 16));

  // A long all_reduce by the ring: every byte crosses a link 2 (p - 1) / p times.
  const double bytes = 1e12;
  CHECK(seconds_of(node, comm_operation::all_reduce, bytes, nccl_algorithm::ring, nccl_protocol::simple) ==
        Approx(bytes * 14 / 8 / 360e9).epsilon(1e-3));
  CHECK(seconds_of(node, comm_operation::broadcast, bytes, nccl_algorithm::ring, nccl_protocol::simple) ==
        Approx(bytes / 360e9).epsilon(1e-3));
  CHECK(seconds_of(four, comm_operation::all_reduce, bytes, nccl_algorithm::ring, nccl_protocol::simple) ==
        Approx(bytes * 62 / 32 / 100e9).epsilon(1e-3));
  CHECK(sim::nccl_bus_bandwidth(comm_operation::all_reduce, 8, bytes, bytes * 14 / 8 / 360e9) == Approx(360));
  CHECK(sim::detail::log2_of(3) == Approx(std::log2(3.0)).epsilon(1e-14));
  CHECK(sim::detail::log2_of(1e9) == Approx(std::log2(1e9)).epsilon(1e-14));
  STATIC_REQUIRE(sim::nccl_choice(nccl_cluster{}, comm_operation::all_reduce, 1e9).protocol == nccl_protocol::simple);
}

TEST_CASE("NCCL's model: short calls go by LL, long ones by ring and Simple, and nothing goes back", "[sim][nccl]") {
  for (int nodes = 1; nodes <= 64; nodes *= 2) {
    nccl_cluster c;
    c.nodes = nodes;
    const auto order = choices(c);
    std::string text;
    for (const auto& e : order) {
      text += to_string(e.algorithm);
      text += "/";
      text += to_string(e.protocol);
      text += " ";
    }
    INFO(nodes << " nodes: " << text);
    REQUIRE(order.size() >= 3);
    CHECK(order.front().protocol == nccl_protocol::ll);
    // On one node the ring's first hop is 0.2 us faster; from two nodes on the tree begins.
    CHECK(order.front().algorithm == (nodes == 1 ? nccl_algorithm::ring : nccl_algorithm::tree));
    CHECK(order.back().algorithm == nccl_algorithm::ring);
    CHECK(order.back().protocol == nccl_protocol::simple);
    for (std::size_t i = 1; i < order.size(); ++i)
      if (order[i].algorithm == order[i - 1].algorithm) CHECK(order[i].protocol > order[i - 1].protocol);
  }
}

TEST_CASE("NCCL's model: never negative, never less for more bytes", "[sim][nccl][law]") {
  for (const int nodes : {1, 2, 3, 8, 64})
    for (const int gpus : {1, 2, 8})
      for (const bool nvlink : {true, false})
        for (const auto what : {comm_operation::all_reduce, comm_operation::reduce_scatter, comm_operation::all_gather,
                                comm_operation::broadcast, comm_operation::reduce}) {
          if (nodes * gpus == 1) continue;
          nccl_cluster c;
          c.nodes = nodes;
          c.gpus_per_node = gpus;
          c.nvlink = nvlink;
          c.nvls = nvlink && gpus == 8;
          CAPTURE(nodes, gpus, nvlink, to_string(what));
          auto before = sim::nccl_estimates(c, what, 0);
          for (double bytes = 1; bytes < 4e10; bytes *= 1.13) {
            const auto now = sim::nccl_estimates(c, what, bytes);
            REQUIRE(now.size() == before.size());
            bool ok = true;
            for (std::size_t i = 0; i < now.size(); ++i)
              ok = ok && now[i].seconds > 0 && now[i].seconds >= before[i].seconds;
            REQUIRE(ok);
            before = now;
          }
        }
}

TEST_CASE("NCCL's model: PAT for one GPU per node, the switch where it adds, LL128 on NVLink only", "[sim][nccl]") {
  nccl_cluster c;
  c.nodes = 64;
  c.gpus_per_node = 1;
  CHECK(seconds_of(c, comm_operation::all_gather, 1024, nccl_algorithm::pat, nccl_protocol::simple) > 0);
  CHECK(seconds_of(c, comm_operation::all_reduce, 1024, nccl_algorithm::pat, nccl_protocol::simple) < 0);
  c.gpus_per_node = 8;
  CHECK(seconds_of(c, comm_operation::all_gather, 1024, nccl_algorithm::pat, nccl_protocol::simple) < 0);
  c.nvlink = false;
  CHECK(seconds_of(c, comm_operation::all_reduce, 1024, nccl_algorithm::ring, nccl_protocol::ll128) < 0);
  nccl_cluster node;
  node.nvls = true;
  CHECK(sim::nccl_choice(node, comm_operation::all_reduce, 1 << 22).algorithm == nccl_algorithm::nvls);
  CHECK_THROWS_AS(sim::nccl_estimates(node, comm_operation::all_to_all, 8), hd::config_error);
  CHECK_THROWS_AS(sim::nccl_estimates({.nodes = 0}, comm_operation::all_reduce, 8), hd::config_error);
  CHECK_THROWS_AS(sim::nccl_estimates(node, comm_operation::all_reduce, -1), hd::config_error);
  CHECK(sim::nccl_estimates({.nodes = 1, .gpus_per_node = 1}, comm_operation::all_reduce, 8).front().seconds == 0);
}
