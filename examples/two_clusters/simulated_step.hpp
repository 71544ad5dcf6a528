// examples/two_clusters/simulated_step.hpp: seconds of a training step on clusters, from a schedule, rings and a topology.
#pragma once

#include <heddle/collective/rounds.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/mesh/rank_order.hpp>
#include <heddle/mesh/topologies.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/sim/action_table.hpp>
#include <heddle/sim/mfu.hpp>
#include <heddle/sim/network.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace two_clusters {
namespace hd = heddle;

/// What is trained: GPT of 7.5 billion parameters in bf16, gradients summed in float, 512 samples a step in microbatches of 4.
struct job {
  hd::sim::transformer_shape model{36, 4096, 2048, 51200};
  double parameters = 7.5e9, flops = 150e12;  // FLOP/s that a device reaches
  int samples = 512, microbatch = 4;
};

/// Two clusters of nodes of 8, with network cards of 200 Gb/s among themselves; each node also has a card of `between` bytes per second to
/// all others. One cluster of them if `kinds` are equal.
inline hd::topology clusters(int nodes_each, double fast, double between, hd::link_kind first, hd::link_kind second) {
  const hd::link_class inside{2e-6, 300e9, hd::link_kind::nvlink}, rdma{5e-6, fast, first};
  hd::topology t = first == second ? hd::topologies::fat_tree(1, 2 * nodes_each, 8, inside, rdma, rdma)
                                   : hd::topologies::fat_tree(2, nodes_each, 8, inside, rdma, {1, 1});
  const int ethernet = t.add_vertex();
  for (int node = 0; node < t.ranks() / 8; ++node) {
    const int out = t.add_vertex(hd::vertex_kind::nic), in = t.add_vertex(hd::vertex_kind::nic);
    for (int r = 8 * node; r < 8 * (node + 1); ++r) {
      t.add_link(r, out, inside);
      t.add_link(in, r, inside);
      auto place = t.place(r);
      place.nic = node < nodes_each ? first : second;
      t.place(r, place);
    }
    t.add_link(out, ethernet, {25e-6, between, hd::link_kind::ethernet});
    t.add_link(ethernet, in, {25e-6, between, hd::link_kind::ethernet});
  }
  return t;
}

/// Seconds of `bytes` from each rank to the next along `Tag` (or around, `rounds` times), all groups at once.
template <class Tag, class Mesh>
double seconds_along(const Mesh& mesh, const hd::topology& t, std::span<const int> order, std::int64_t bytes,
                     int rounds, bool around) {
  hd::round_builder all(hd::comm_operation::broadcast, mesh.size(), 0, 1, 1);
  const int n = mesh.template group_size<Tag>();
  for (int round = 0; round < rounds; ++round)
    for (int r = 0; r < mesh.size(); ++r) {
      const int i = mesh.template group_index<Tag>(r);
      if (n == 1 || (!around && i + 1 == n)) continue;
      const auto of = [&](int rank) { return order[static_cast<std::size_t>(rank)]; };
      all.send(round, of(r), of(mesh.template group_member<Tag>(r, (i + 1) % n))).block(0);
    }
  return hd::sim::simulate(all.take(), t, bytes, 1).seconds;
}

/// Seconds of a step: the pipeline, whose messages are split over tp, then rings along dp that reduce and scatter gradients and gather weights.
template <class Mesh>
double step_seconds(const Mesh& mesh, const hd::topology& t, std::span<const int> order, const job& j) {
  const int stages = mesh.template extent<hd::pp>(), replicas = mesh.template extent<hd::dp>(),
            parts = mesh.template extent<hd::tp>();
  const double tokens = j.microbatch * j.model.sequence;
  const double forward = tokens * hd::sim::flops_per_token(j.model) / 3 / (stages * parts * j.flops);
  const double message =
      seconds_along<hd::pp>(mesh, t, order, static_cast<std::int64_t>(tokens * j.model.hidden * 2 / parts), 1, false);
  const auto table = hd::schedule::make_table(hd::schedule::named("1f1b", j.samples / j.microbatch / replicas), stages);
  const double pipeline =
      hd::sim::simulate(table, hd::sim::stage_times{forward, forward, forward}, hd::sim::link_time{message}).makespan;
  const double held = j.parameters / stages / parts / replicas;  // parameters of a rank's share
  double sums = 0;
  for (const double bytes : {4.0, 2.0})
    sums += seconds_along<hd::dp>(mesh, t, order, static_cast<std::int64_t>(held * bytes), replicas - 1, true);
  return pipeline + sums;
}

}  // namespace two_clusters
