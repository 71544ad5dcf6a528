// heddle/plan/level_bytes.hpp: bytes along a mesh axis inside nodes, in pods, between pods.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/mesh/topology.hpp>

#include <cstddef>
#include <span>

namespace heddle::inline v0::plan {

/// Bytes by the smallest part of the cluster that holds both ends of a message.
struct level_bytes {
  double in_node = 0;
  double in_pod = 0;
  double between_pods = 0;

  double all() const noexcept { return in_node + in_pod + between_pods; }
  friend constexpr bool operator==(const level_bytes&, const level_bytes&) = default;
};

/// What is sent when each rank sends `bytes` to the next along `Tag`, and the last one to the first if it goes `around`: a pipeline's
/// activations, or the steps of a ring (2 (n - 1) / n of the gradients for an all_reduce). `order[r]` is the physical rank that plays
/// mesh rank r; there may be more physical ranks.
/// Errors: `config_error` if the order is not as long as the mesh; as `topology::place`.
template <class Tag, mesh_like Mesh>
level_bytes bytes_along(const Mesh& mesh, const topology& cluster, std::span<const int> order, double bytes,
                        bool around) {
  if (order.size() != static_cast<std::size_t>(mesh.size()))
    throw config_error(
        text_of({"heddle: an order of ", order.size(), " ranks does not place a mesh of ", mesh.size()}));
  level_bytes sent;
  const int n = mesh.template group_size<Tag>();
  for (int r = 0; r < mesh.size(); ++r) {
    const int next = mesh.template group_index<Tag>(r) + 1;
    if (n == 1 || (next == n && !around)) continue;
    const rank_place& a = cluster.place(order[static_cast<std::size_t>(r)]);
    const int to = mesh.template group_member<Tag>(r, next % n);
    const rank_place& b = cluster.place(order[static_cast<std::size_t>(to)]);
    (a.pod != b.pod ? sent.between_pods : a.node != b.node ? sent.in_pod : sent.in_node) += bytes;
  }
  return sent;
}

}  // namespace heddle::inline v0::plan
