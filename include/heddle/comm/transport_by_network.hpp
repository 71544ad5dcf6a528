// heddle/comm/transport_by_network.hpp: one transport for groups with RDMA, one for others.
#pragma once

#include <heddle/comm/launch.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/mesh/axis_network.hpp>

#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {

/// What the body of a `by_network` launch gets: a `world` whose `along<...>()` is the communicator of one of two
/// transports, chosen by `transport_along` for the whole mesh: `Sockets` where that is `tcp`, else `Rdma`. The type of
/// `along<tp>()` says which. Used by its rank's thread only.
template <class Cluster, mesh_like Whole, mesh_like Mesh, class Rdma, class Sockets>
class network_world {
 public:
  using mesh_type = Mesh;
  /// The transport of the groups along these axes.
  template <class... Tags>
  using transport_for =
      std::conditional_t<std::is_same_v<transport_along<Cluster, Whole, Tags...>, tcp>, Sockets, Rdma>;

  /// Both worlds are of the same ranks in the same order.
  network_world(world<Rdma, Mesh> rdma, world<Sockets, Mesh> sockets)
      : rdma_(std::move(rdma)), sockets_(std::move(sockets)) {}

  int rank() const noexcept { return sockets_.rank(); }
  int size() const noexcept { return sockets_.size(); }
  const Mesh& mesh() const noexcept { return sockets_.mesh(); }
  template <class Tag>
  int coordinate() const {
    return sockets_.template coordinate<Tag>();
  }

  /// All ranks, in mesh order.
  auto& all() { return along_all_of(typename Mesh::tags{}); }
  /// The ranks that differ from this one only along these axes; the first axis is major.
  template <class... Tags>
  auto& along() {
    constexpr bool known = (Mesh::template has<Tags> && ...) && all_distinct<Tags...>;
    if constexpr (!known)
      return sockets_.template along<Tags...>();  // which says what is wrong
    else if constexpr (std::is_same_v<transport_for<Tags...>, Rdma>)
      return rdma_.template along<Tags...>();
    else
      return sockets_.template along<Tags...>();
  }
  /// As `along`, without the axes that the mesh does not have; this rank alone if none is left.
  template <class... Tags>
  auto& along_if() {
    return along_all_of(typename Mesh::template tags_among<Tags...>{});
  }

  /// The control planes, for what the host reads: those of `Sockets`.
  auto& control() { return sockets_.control(); }
  template <class... Tags>
  auto& control_along() {
    return sockets_.template control_along<Tags...>();
  }
  template <class... Tags>
  auto& control_along_if() {
    return sockets_.template control_along_if<Tags...>();
  }

  /// The world of the ranks that differ from this one only along these axes. Its groups keep their transports.
  template <class... Tags>
  auto sub() const {
    return network_world<Cluster, Whole, sub_mesh<Mesh, Tags...>, Rdma, Sockets>(rdma_.template sub<Tags...>(),
                                                                                 sockets_.template sub<Tags...>());
  }
  /// The world of the same ranks in another order, such as `sorted_ranks(topology)`. `Cluster` describes the order in
  /// use: where the launch's is another one, groups belong together only after this. Errors: as `world::renumbered`.
  network_world renumbered(std::span<const int> order) const {
    return {rdma_.renumbered(order), sockets_.renumbered(order)};
  }

  /// The worlds of both transports, with all groups each: for an axis that is to be an exception.
  world<Rdma, Mesh>& rdma() noexcept { return rdma_; }
  world<Sockets, Mesh>& sockets() noexcept { return sockets_; }

 private:
  template <class... Kept>
  auto& along_all_of(type_list<Kept...>) {
    return along<Kept...>();
  }

  world<Rdma, Mesh> rdma_;
  world<Sockets, Mesh> sockets_;
};

/// A transport for `launch` on machines whose network cards differ: groups along axes that have RDMA among themselves
/// talk over `Rdma`, those that would mix cards over `Sockets`. `Cluster` is a `cluster<ranks_with<...>...>` in the
/// mesh's numbering; the mesh must be static.
///
///     using machines = hd::cluster<ranks_with<8, link_kind::infiniband>, ranks_with<8, link_kind::roce>>;
///     hd::launch<hd::by_network<machines, hd::nccl, hd::mpi>, mesh>(argc, argv, [](auto& world) {
///       world.template along<tp>();   // an hd::nccl_communicator
///       world.template along<pp>();   // an hd::mpi_communicator: stages lie in different clusters
///     });
///
/// `Meeting` starts the ranks. `Rdma`, and `Sockets` if it is another, start from a communicator of it
/// (`run_over(communicator, mesh, options, body)`, which `nccl` has): `by_network<machines, hd::nccl_rdma,
/// hd::nccl_sockets, hd::mpi>` has NCCL on every axis. What a communicator can read is its transport's affair: NCCL's
/// spans are of the GPU, MPI's are if it was built for that; calls of two transports are ordered by the caller.
/// Failures are told by `Meeting`: a rank that waits in another transport notices at its timeout.
/// Source: Yang et al. 2024, arXiv:2312.03549 (Holmes), automatic selection of network cards per group.
template <class Cluster, class Rdma, class Sockets, class Meeting = Sockets>
struct by_network {
  using communicator = typename Sockets::communicator;
  using context = typename Sockets::context;

  /// Runs `body(world)` on every rank of `mesh`. What `launch` calls.
  template <mesh_like Mesh, class Body>
  static void run(const Mesh& mesh, const launch_options& options, int argc, char** argv, Body& body) {
    static_assert(Mesh::is_static,
                  "heddle: by_network chooses transports by type: it needs a mesh whose extents are all known");
    if constexpr (Mesh::is_static) start(mesh, options, argc, argv, body);
  }

  static bool prints_error(const std::string& error) {
    if constexpr (requires { Meeting::prints_error(error); })
      return Meeting::prints_error(error);
    else
      return true;
  }

 private:
  template <class Mesh, class Body>
  static void start(const Mesh& mesh, const launch_options& options, int argc, char** argv, Body& body) {
    const auto with_both = [&](auto& rdma, auto& sockets) {
      network_world<Cluster, Mesh, Mesh, Rdma, Sockets> here(whole(rdma, typename Mesh::tags{}),
                                                             whole(sockets, typename Mesh::tags{}));
      body(here);
    };
    const auto begin = [&](auto& meeting) {
      auto for_rdma = meeting.all().split(0, meeting.rank());
      const auto with_rdma = [&](auto& rdma) {
        if constexpr (std::is_same_v<Meeting, Sockets>) {
          with_both(rdma, meeting);
        } else {
          auto for_sockets = meeting.all().split(0, meeting.rank());
          const auto with_sockets = [&](auto& sockets) { with_both(rdma, sockets); };
          Sockets::run_over(for_sockets, mesh, options, with_sockets);
        }
      };
      Rdma::run_over(for_rdma, mesh, options, with_rdma);
    };
    Meeting::run(mesh, options, argc, argv, begin);
  }
  template <class World, class... Tags>
  static auto whole(World& of, type_list<Tags...>) {
    return of.template sub<Tags...>();
  }
};

}  // namespace heddle::inline v0
