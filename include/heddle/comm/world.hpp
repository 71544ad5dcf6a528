// heddle/comm/world.hpp: one rank's view of all ranks: its place on the mesh and the communicators along its axes.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/mesh/inverse_order.hpp>
#include <heddle/mesh/mesh.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

namespace detail {
template <class... Tags>
std::string joined_names(type_list<Tags...> tags) {
  std::string text;
  for (const std::string& name : axis_names(tags)) text += (text.empty() ? "" : ",") + name;
  return text.empty() ? "self" : text;
}
}  // namespace detail

/// One rank's view of the ranks of a mesh. `launch` makes one per rank and passes it to the body; it is used by that
/// rank's thread only. Communicators are made when first asked for, without communication, and stay valid as long as
/// the world does.
template <class Transport, mesh_like Mesh>
class world {
 public:
  using transport = Transport;
  using mesh_type = Mesh;
  using communicator = typename Transport::communicator;
  using context = typename Transport::context;

  /// The world of all launched ranks.
  world(const Mesh& mesh, int rank, context where) : world(mesh, rank, std::move(where), all_ranks(mesh)) {}
  /// The world of some of them: `members[r]` is the launch rank of mesh rank r.
  world(const Mesh& mesh, int rank, context where, std::vector<int> members)
      : mesh_(mesh), rank_(rank), context_(std::move(where)), members_(std::move(members)) {}
  world(const world&) = delete;
  world& operator=(const world&) = delete;
  world(world&&) = default;
  world& operator=(world&&) = default;

  /// This rank, in `[0, size())`.
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return mesh_.size(); }
  const Mesh& mesh() const noexcept { return mesh_; }
  /// This rank's place along the axis.
  template <class Tag>
  int coordinate() const {
    return mesh_.template coordinate<Tag>(rank_);
  }

  /// All ranks, in mesh order.
  communicator& all() { return all_of(typename Mesh::tags{}); }

  /// The ranks that differ from this one only along these axes; the first axis is major.
  template <class... Tags>
  communicator& along() {
    constexpr bool known = (Mesh::template has<Tags> && ...);
    constexpr bool distinct = all_distinct<Tags...>;
    static_assert(known,
                  "heddle: world.along<Tags...>: the mesh has no axis with one of these tags; "
                  "name the mesh's own axes, or use along_if");
    static_assert(distinct, "heddle: world.along<Tags...> names one axis twice");
    if constexpr (known && distinct)
      return group_along<Tags...>();
    else
      return all();
  }

  /// As `along`, without the axes that the mesh does not have; this rank alone if none is left.
  template <class... Tags>
  communicator& along_if() {
    return filtered(type_list<>{}, type_list<Tags...>{});
  }

  /// The world of the ranks that differ from this one only along these axes, on the sub-mesh along them.
  template <class... Tags>
  world<Transport, sub_mesh<Mesh, Tags...>> sub() const {
    return {mesh_.template sub<Tags...>(), mesh_.template group_index<Tags...>(rank_), context_, members<Tags...>()};
  }

  /// The world of the same ranks on the same mesh in another order: mesh rank r of the result is rank `order[r]` of this
  /// world. All ranks give the same order, such as `sorted_ranks(topology)`.
  /// Errors: `mesh_error` if the order does not name every rank once.
  world renumbered(std::span<const int> order) const {
    if (order.size() != members_.size())
      throw mesh_error("heddle: an order of " + std::to_string(order.size()) + " ranks for a world of " +
                       std::to_string(size()) + "; name each rank once");
    const std::vector<int> inverse = inverse_order(order);
    std::vector<int> members(order.size());
    for (std::size_t r = 0; r < order.size(); ++r) members[r] = members_[static_cast<std::size_t>(order[r])];
    return {mesh_, inverse[static_cast<std::size_t>(rank_)], context_, std::move(members)};
  }

 private:
  struct entry {
    std::uint64_t key;
    communicator value;
  };

  static std::vector<int> all_ranks(const Mesh& mesh) {
    std::vector<int> ranks(static_cast<std::size_t>(mesh.size()));
    for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
    return ranks;
  }

  template <class... Tags>
  std::vector<int> members() const {
    std::vector<int> ranks = group<Tags...>(mesh_, rank_);
    for (int& r : ranks) r = members_[static_cast<std::size_t>(r)];
    return ranks;
  }

  template <class... Tags>
  communicator& all_of(type_list<Tags...>) {
    return group_along<Tags...>();
  }

  template <class... Kept>
  communicator& filtered(type_list<Kept...>, type_list<>) {
    return along<Kept...>();
  }
  template <class... Kept, class Tag, class... Rest>
  communicator& filtered(type_list<Kept...>, type_list<Tag, Rest...>) {
    if constexpr (Mesh::template has<Tag>)
      return filtered(type_list<Kept..., Tag>{}, type_list<Rest...>{});
    else
      return filtered(type_list<Kept...>{}, type_list<Rest...>{});
  }

  template <class... Tags>
  communicator& group_along() {
    static_assert(Mesh::rank < 16, "heddle: a world knows meshes of at most 15 axes");
    // The axes' positions as one number, first axis first.
    constexpr std::uint64_t key = [] {
      std::uint64_t k = 1;
      ((k = k * 16 + Mesh::template position<Tags>), ...);
      return k;
    }();
    for (entry& e : made_)
      if (e.key == key) return e.value;
    made_.push_back({key, context_.group(detail::joined_names(type_list<Tags...>{}), members<Tags...>(),
                                         mesh_.template group_index<Tags...>(rank_))});
    return made_.back().value;
  }

  Mesh mesh_;
  int rank_;
  context context_;
  std::vector<int> members_;
  std::deque<entry> made_;  // references into it stay valid
};

}  // namespace heddle::inline v0
