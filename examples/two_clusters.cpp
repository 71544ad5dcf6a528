// Trains over two clusters whose network cards differ (Holmes): which axis crosses, layers by speed, and what a step then takes.
// run:
// prints: tp: RDMA, dp: RDMA, pp: sockets
// prints: 36 layers for speeds 1.23 and 1: 19 and 17
// prints: pipeline across        6.81 s   91 %
// prints: data across           10.93 s   57 %
// prints: Ethernet              11.54 s   54 %
// prints: stage 0 adds up ranks 0 to 3: 6
// cuda
#if defined(HEDDLE_EXAMPLE_CUDA)
#include <heddle/comm/transport_by_network.hpp>
#include <heddle/nccl/nccl.hpp>
#endif
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/mesh/axis_network.hpp>
#include <heddle/plan/shares_by_speed.hpp>

#include "two_clusters/simulated_step.hpp"

#include <cstdio>
#include <span>
#include <type_traits>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp, hd::link_kind;

// Eight ranks, four on machines with InfiniBand, four on machines with RoCE: the axis that may cross them comes first in the mesh.
using machines = hd::cluster<hd::ranks_with<4, link_kind::infiniband>, hd::ranks_with<4, link_kind::roce>>;
using mesh = hd::mesh<hd::axis<pp, 2>, hd::axis<dp, 2>, hd::axis<tp, 2>>;
static_assert(hd::require_one_kind<machines, mesh, dp, tp>());
#if defined(HEDDLE_EXAMPLE_CUDA)
// NCCL on each axis, over the RDMA cards where a group's ranks have one kind, over sockets where not.
using transport = hd::by_network<machines, hd::nccl_rdma, hd::nccl_sockets, hd::threads>;
#else
using transport = hd::threads;
#endif

template <class Tag>
constexpr const char* network = std::is_same_v<hd::transport_along<machines, mesh, Tag>, hd::tcp> ? "sockets" : "RDMA";

int main(int argc, char** argv) {
  std::printf("tp: %s, dp: %s, pp: %s\n", network<tp>, network<dp>, network<pp>);
  const std::vector<int> floors = hd::plan::shares_by_speed(36, {{1.23}, {1.0}});
  std::printf("36 layers for speeds 1.23 and 1: %d and %d\n", floors[0], floors[1]);
  // 7.5 billion parameters on eight nodes of eight: cards of 200 Gb/s inside of a cluster, 25 Gb/s between them.
  const hd::mesh<hd::axis<pp, 2>, hd::axis<dp, 4>, hd::axis<tp, 8>> pipeline;
  const hd::mesh<hd::axis<dp, 4>, hd::axis<pp, 2>, hd::axis<tp, 8>> data;
  constexpr double rdma = 200e9 / 8, ethernet = 25e9 / 8;
  const auto one = two_clusters::clusters(4, rdma, ethernet, link_kind::infiniband, link_kind::infiniband);
  const auto two = two_clusters::clusters(4, rdma, ethernet, link_kind::infiniband, link_kind::roce);
  const auto slow = two_clusters::clusters(4, ethernet / 2, ethernet / 2, link_kind::ethernet, link_kind::ethernet);
  const double fastest = two_clusters::step_seconds(pipeline, one, hd::sorted_ranks(one), {});
  const auto print = [&](const char* name, double s) {
    std::printf("%-20s %6.2f s %4.0f %%\n", name, s, 100 * fastest / s);
  };
  print("one fast network", fastest);
  print("pipeline across", two_clusters::step_seconds(pipeline, two, hd::sorted_ranks(two), {}));
  print("data across", two_clusters::step_seconds(data, two, hd::sorted_ranks(two), {}));
  print("Ethernet", two_clusters::step_seconds(pipeline, slow, hd::sorted_ranks(slow), {}));

  return hd::launch<transport, mesh>(argc, argv, [](auto& world) {
    int sum =
        world.rank();  // over the control plane; world.template along<dp>() is an NCCL communicator with by_network
    world.template control_along<dp, tp>().all_reduce(std::span(&sum, 1), hd::plus{});
    if (world.rank() == 0) std::printf("stage 0 adds up ranks 0 to 3: %d\n", sum);
  });
}
