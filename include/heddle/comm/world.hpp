// heddle/comm/world.hpp: one rank's view of all ranks: its place and its communicators.
#pragma once

#include <heddle/comm/call_mark.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/mesh/inverse_order.hpp>
#include <heddle/mesh/mesh.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

namespace detail {
inline std::string joined_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text.empty() ? "self" : text;
}
template <class... Tags>
std::string joined_names(type_list<Tags...> tags) {
  return joined_names(axis_names(tags));
}

// Where `rank` is in a list of `wanted` different ranks of a world of `size`; -1 if nowhere.
inline int place_among(std::span<const int> ranks, int wanted, int size, int rank) {
  std::string problem;
  if (static_cast<int>(ranks.size()) != wanted)
    problem = "names " + std::to_string(ranks.size()) + " ranks, but the mesh has " + std::to_string(wanted);
  int place = -1;
  std::vector<int> named(static_cast<std::size_t>(size));
  for (std::size_t i = 0; problem.empty() && i < ranks.size(); ++i) {
    const int r = ranks[i];
    if (r < 0 || r >= size)
      problem = "names rank " + std::to_string(r) + ", but the world has ranks 0 to " + std::to_string(size - 1);
    else if (named[static_cast<std::size_t>(r)]++ != 0)
      problem = "names rank " + std::to_string(r) + " twice";
    if (r == rank) place = static_cast<int>(i);
  }
  if (!problem.empty()) throw config_error("heddle: `ranks` of world.on(mesh, ranks) " + problem);
  return place;
}

// The type of a transport's control plane: its own communicators, unless those name memory that the host cannot use.
template <class Transport>
using control_communicator_member = typename Transport::control_communicator;
template <class Transport>
using control_of = member_or<typename Transport::communicator, control_communicator_member, Transport>;

// Communicators by a number, in the order in which they were made: references to them stay valid.
template <class Communicator>
class kept_groups {
 public:
  kept_groups() = default;
  kept_groups(kept_groups&& other) noexcept : first_(other.first_) { other.first_ = nullptr; }
  kept_groups& operator=(kept_groups&& other) noexcept {
    entry* const theirs = other.first_;
    other.first_ = first_;
    first_ = theirs;
    return *this;
  }
  ~kept_groups() {
    while (first_ != nullptr) {
      entry* const next = first_->next;
      delete first_;
      first_ = next;
    }
  }
  Communicator* found(std::uint64_t key) const noexcept {
    for (entry* e = first_; e != nullptr; e = e->next)
      if (e->key == key) return &e->value;
    return nullptr;
  }
  template <class Make>
  Communicator& add(std::uint64_t key, const Make& make) {
    entry* const made = new entry{key, make(), nullptr};
    entry** end = &first_;
    while (*end != nullptr) end = &(*end)->next;
    *end = made;
    return made->value;
  }

 private:
  struct entry {
    std::uint64_t key;
    Communicator value;
    entry* next;
  };
  entry* first_ = nullptr;
};

// What a world has whatever its mesh is: worlds of several meshes share its code.
template <class Transport>
class groups_of_world {
 public:
  using communicator = typename Transport::communicator;
  using control_communicator = typename control_of<Transport>::type;
  using context = typename Transport::context;

  explicit groups_of_world(context where) : where_(std::move(where)) {}
  const context& where() const noexcept { return where_; }
  void mark(std::int64_t step) noexcept { mark_.set(step); }

  communicator* found(std::uint64_t key) const noexcept { return made_.found(key); }
  // Of these launch ranks, the own one at place `index`.
  communicator& make(std::uint64_t key, const std::string& name, const std::vector<int>& ranks, int index) {
    return marked(made_.add(key, [&] { return where_.group(name, ranks, index); }));
  }
  control_communicator* found_control(std::uint64_t key) const noexcept { return controls_.found(key); }
  control_communicator& make_control(std::uint64_t key, const std::string& name, const std::vector<int>& ranks,
                                     int index) {
    return marked(controls_.add(key, [&]() -> control_communicator {
      if constexpr (requires { where_.control(name, ranks, index); })
        return where_.control(name, ranks, index);
      else
        return where_.group(name, ranks, index);
    }));
  }

 private:
  template <class Communicator>
  Communicator& marked(Communicator& made) const {
    if constexpr (requires { made.marked_by(mark_); }) made.marked_by(mark_);
    return made;
  }

  context where_;
  kept_groups<communicator> made_;
  kept_groups<control_communicator> controls_;
  call_mark mark_ = call_mark::of_new_world();
};
}  // namespace detail

/// One rank's view of the ranks of a mesh. `launch` makes one per rank and passes it to the body; it is used by that
/// rank's thread only. Communicators are made when first asked for, without communication, and stay valid as long as
/// the world does.
///
/// A world has two planes. `along` and `all` move tensors, in the memory and in the order of the transport: NCCL's in the
/// GPU's, on a stream. `control` and `control_along` move what the host reads (scalars, strings, verdicts), in the host's
/// memory whatever the transport. Calls on the two never meet: each plane has an order of its own.
template <class Transport, mesh_like Mesh>
class world {
 public:
  using transport = Transport;
  using mesh_type = Mesh;
  using communicator = typename Transport::communicator;
  using control_communicator = typename detail::control_of<Transport>::type;
  using context = typename Transport::context;

  /// The world of all launched ranks.
  world(const Mesh& mesh, int rank, context where) : world(mesh, rank, std::move(where), all_ranks(mesh)) {}
  /// The world of some of them: `members[r]` is the launch rank of mesh rank r.
  world(const Mesh& mesh, int rank, context where, std::vector<int> members)
      : mesh_(mesh), rank_(rank), members_(std::move(members)), groups_(std::move(where)) {}
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
    return along_all_of(typename Mesh::template tags_among<Tags...>{});
  }

  /// The control plane of all ranks, in mesh order: for what the host reads.
  control_communicator& control() { return control_group(0, typename Mesh::tags{}); }
  /// The control plane of the ranks that differ from this one only along these axes.
  template <class... Tags>
  control_communicator& control_along() {
    constexpr bool known = (Mesh::template has<Tags> && ...) && all_distinct<Tags...>;
    static_assert(known,
                  "heddle: world.control_along<Tags...>: name axes of the mesh, each once, or use control_along_if");
    if constexpr (known)
      return control_group(key_of<Tags...>(), type_list<Tags...>{});
    else
      return control();
  }
  /// As `control_along`, without the axes that the mesh does not have; this rank alone if none is left.
  template <class... Tags>
  control_communicator& control_along_if() {
    return control_along_all_of(typename Mesh::template tags_among<Tags...>{});
  }

  /// The step that this rank is at: a number that the ranks of each checked collective must agree on, so that a rank which has
  /// left out one of several equal calls is found at the latest at the first call of the next step, and errors say "in step 13".
  /// It holds for the calls of this world's communicators, and of those that they are split into, from now on; -1: none. Worlds
  /// made of this one have marks of their own. Trainers mark their steps.
  void mark(std::int64_t step) noexcept { groups_.mark(step); }

  /// The world of the ranks that differ from this one only along these axes, on the sub-mesh along them.
  template <class... Tags>
  world<Transport, sub_mesh<Mesh, Tags...>> sub() const {
    return {mesh_.template sub<Tags...>(), mesh_.template group_index<Tags...>(rank_), groups_.where(),
            members<Tags...>()};
  }

  /// The world of some ranks of this world, or of all in any order, on a mesh of their own: mesh rank r of it is rank `ranks[r]` of this
  /// one. All ranks of this world call this together, with the same arguments; those that are not in `ranks` get nothing.
  /// Errors: `config_error` for a list of another length than the mesh, a rank that this world does not have, or one that is named twice.
  template <mesh_like Other>
  std::optional<world<Transport, Other>> on(const Other& mesh, std::span<const int> ranks) const {
    const int place = detail::place_among(ranks, mesh.size(), size(), rank_);
    if (place < 0) return std::nullopt;
    std::vector<int> members(ranks.size());
    for (std::size_t r = 0; r < members.size(); ++r) members[r] = members_[static_cast<std::size_t>(ranks[r])];
    return std::optional<world<Transport, Other>>(std::in_place, mesh, place, groups_.where(), std::move(members));
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
    return {mesh_, inverse[static_cast<std::size_t>(rank_)], groups_.where(), std::move(members)};
  }

 private:
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
  communicator& along_all_of(type_list<Kept...>) {
    return along<Kept...>();
  }

  // The axes' positions as one number, first axis first.
  template <class... Tags>
  static constexpr std::uint64_t key_of() {
    static_assert(Mesh::rank < 16, "heddle: a world knows meshes of at most 15 axes");
    std::uint64_t k = 1;
    ((k = k * 16 + Mesh::template position<Tags>), ...);
    return k;
  }

  template <class... Kept>
  control_communicator& control_along_all_of(type_list<Kept...>) {
    return control_along<Kept...>();
  }
  template <class... Tags>
  control_communicator& control_group(std::uint64_t key, type_list<Tags...> tags) {
    static_assert(
        detail::has_host_memory<control_communicator>,
        "heddle: the control plane is in the host's memory: a transport whose communicators are not has a type "
        "control_communicator, and its context makes them: control(name, members, index)");
    if (control_communicator* const made = groups_.found_control(key)) return *made;
    const std::string name = key == 0 ? "control" : "control " + detail::joined_names(tags);
    return groups_.make_control(key, name, members<Tags...>(), mesh_.template group_index<Tags...>(rank_));
  }

  template <class... Tags>
  communicator& group_along() {
    constexpr std::uint64_t key = key_of<Tags...>();
    if (communicator* const made = groups_.found(key)) return *made;
    return groups_.make(key, detail::joined_names(type_list<Tags...>{}), members<Tags...>(),
                        mesh_.template group_index<Tags...>(rank_));
  }

  Mesh mesh_;
  int rank_;
  std::vector<int> members_;
  detail::groups_of_world<Transport> groups_;
};

}  // namespace heddle::inline v0
