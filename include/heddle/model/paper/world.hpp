// heddle/model/paper/world.hpp: one rank without the others; calls and bytes are counted.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/paper/memory.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// A communicator of one rank whose group is on paper: calls are counted as those of other transports are
/// (`comm_counters`: what the rank gives to a call, of a message that it receives what it gets) and nothing is sent. With
/// the queue of a backend in front, calls do not touch memory; on the host every other rank gives what this one gives, so
/// that outputs are numbers as good as the inputs; an all_reduce leaves the rank's own.
template <class Queue = paper_memory::queue>
class paper_communicator {
 public:
  using queue = Queue;
  /// A message that was counted when it started.
  struct request {
    request() = default;
    request(request&&) = default;
    request& operator=(request&&) = default;
    void wait() noexcept {}
    bool test() noexcept { return true; }
  };

  paper_communicator(std::string name, int rank, int size) : name_(std::move(name)), rank_(rank), size_(size) {}
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// The axes it runs along: `"dp,tp"`.
  const std::string& name() const noexcept { return name_; }
  const comm_counters& counters() const noexcept { return *counters_; }
  void clear() noexcept { *counters_ = {}; }
  /// One of its own, which counts apart.
  paper_communicator split(int, int) const { return {name_, rank_, size_}; }
  /// Another one for messages of a queue beside, which are counted here too.
  paper_communicator beside() const { return *this; }

  void barrier() noexcept { ++(*counters_)[comm_operation::barrier].calls; }
  /// Each takes what the transports' call of the same name takes, on the host, or a queue and rows of its memory.
#define HEDDLE_PAPER_CALL(NAME)           \
  template <class... Args>                \
  void NAME(Args&&... args) {             \
    count<comm_operation::NAME>(args...); \
  }
  HEDDLE_PAPER_CALL(broadcast)
  HEDDLE_PAPER_CALL(all_reduce)
  HEDDLE_PAPER_CALL(reduce)
  HEDDLE_PAPER_CALL(reduce_scatter)
  HEDDLE_PAPER_CALL(reduce_scatter_v)
  HEDDLE_PAPER_CALL(all_gather)
  HEDDLE_PAPER_CALL(all_gather_v)
  HEDDLE_PAPER_CALL(all_to_all)
  HEDDLE_PAPER_CALL(all_to_all_v)
  HEDDLE_PAPER_CALL(gather)
  HEDDLE_PAPER_CALL(gather_v)
  HEDDLE_PAPER_CALL(scatter)
  HEDDLE_PAPER_CALL(scatter_v)
  HEDDLE_PAPER_CALL(send)
  HEDDLE_PAPER_CALL(recv)
#undef HEDDLE_PAPER_CALL
  template <class... Args>
  [[nodiscard]] request isend(Args&&... args) {
    count<comm_operation::send>(args...);
    return {};
  }
  template <class... Args>
  [[nodiscard]] request irecv(Args&&... args) {
    count<comm_operation::recv>(args...);
    return {};
  }

 private:
  template <comm_operation What, class First, class... Rest>
  void count(First&& first, Rest&&... rest) {
    if constexpr (std::is_same_v<std::remove_cvref_t<First>, Queue>) {
      add(What, rest...);
    } else {
      add(What, first);
      if constexpr (What != comm_operation::send && What != comm_operation::recv)
        repeat<What == comm_operation::all_to_all_v || What == comm_operation::scatter_v>(first, rest...);
    }
  }
  template <class Row, class... Rest>
  void add(comm_operation what, const Row& row, const Rest&...) noexcept {
    using element = element_of<const Row>;
    ++(*counters_)[what].calls;
    (*counters_)[what].bytes += static_cast<std::int64_t>(element_count(row) * sizeof(element));
  }
  // Fills the output, if there is one, with copies of the input. `Counts`: numbers of elements lie between the two.
  template <bool Counts, class In, class Next, class... Rest>
  static void repeat(const In& in, [[maybe_unused]] Next&& next, [[maybe_unused]] Rest&&... rest) {
    if constexpr (Counts) {
      repeat<false>(in, rest...);
    } else if constexpr (requires { next[0] = in[0], std::size(next); }) {
      const std::size_t n = std::size(in);
      if (n == 0 || std::data(in) == std::data(next)) return;
      for (std::size_t at = 0; at < std::size(next); at += n)
        std::copy_n(std::data(in), (std::min)(n, std::size(next) - at), std::data(next) + at);
    }
  }

  std::string name_;
  int rank_ = 0, size_ = 1;
  std::shared_ptr<comm_counters> counters_ = std::make_shared<comm_counters>();
};

/// Calls and bytes of one rank along some axes, since its world was made or cleared.
struct axis_traffic {
  std::string axes{};  ///< `"tp"`, `"dp,tp"`; `"self"` of no axis that the mesh has
  int ranks = 1;       ///< of the group
  comm_counters counters{};
};

/// Adds calls and bytes, `times` over, to those of the same axes.
inline void add_traffic(std::vector<axis_traffic>& to, const std::vector<axis_traffic>& more, std::int64_t times = 1) {
  for (const axis_traffic& m : more) {
    auto at = std::find_if(to.begin(), to.end(), [&](const axis_traffic& t) { return t.axes == m.axes; });
    if (at == to.end()) at = to.insert(to.end(), {m.axes, m.ranks, {}});
    for (std::size_t i = 0; i < comm_operations; ++i) {
      at->counters.by_operation[i].calls += times * m.counters.by_operation[i].calls;
      at->counters.by_operation[i].bytes += times * m.counters.by_operation[i].bytes;
    }
  }
}

/// A rank of a mesh without the others: what a stage needs of a world, for any rank of any mesh. With a `paper_backend` a
/// stage runs in no time and says what it would send, compute and hold; with a backend that computes (`Queue`: that of its
/// memory) it runs the share of this one rank, to be measured on one device (`train::measure_layer_costs`).
template <mesh_like Mesh, class Queue = paper_memory::queue>
class paper_world {
 public:
  using mesh_type = Mesh;
  using communicator = paper_communicator<Queue>;

  /// Errors: `mesh_error` for a rank that the mesh does not have.
  paper_world(const Mesh& mesh, int rank) : mesh_(mesh), rank_(rank) {
    if (rank < 0 || rank >= mesh.size())
      throw mesh_error("heddle: a paper world is one rank of " + to_string(mesh) + ", 0 to " +
                       std::to_string(mesh.size() - 1) + "; got " + std::to_string(rank));
  }
  const Mesh& mesh() const noexcept { return mesh_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return mesh_.size(); }
  template <class Tag>
  int coordinate() const noexcept {
    return mesh_.template coordinate<Tag>(rank_);
  }

  template <class... Tags>
    requires(Mesh::template has<Tags> && ...)
  communicator& along() {
    return group_along(groups_, type_list<Tags...>{});
  }
  /// Without the axes that the mesh does not have; this rank alone if none is left.
  template <class... Tags>
  communicator& along_if() {
    return group_along(groups_, typename Mesh::template tags_among<Tags...>{});
  }
  communicator& all() { return group_along(groups_, typename Mesh::tags{}); }
  /// What the host reads is not in `traffic`.
  communicator& control() { return group_along(control_, typename Mesh::tags{}); }
  template <class... Tags>
  communicator& control_along_if() {
    return group_along(control_, typename Mesh::template tags_among<Tags...>{});
  }

  /// Along each list of axes that was asked for, in the order in which it was.
  std::vector<axis_traffic> traffic() const {
    std::vector<axis_traffic> all;
    for (const group& g : groups_) all.push_back({g.ranks.name(), g.ranks.size(), g.ranks.counters()});
    return all;
  }
  /// Counts from zero again.
  void clear() noexcept {
    for (group& g : groups_) g.ranks.clear();
  }

 private:
  struct group {
    const void* key;
    communicator ranks;
  };
  template <class Tags>
  static constexpr char key_of = 0;  // its address is the key

  template <class... Tags>
  communicator& group_along(std::deque<group>& made, type_list<Tags...> tags) {
    const void* const key = &key_of<type_list<Tags...>>;
    for (group& g : made)
      if (g.key == key) return g.ranks;
    return made
        .emplace_back(group{key, communicator(heddle::detail::joined_names(tags), index(tags), size_along(tags))})
        .ranks;
  }
  template <class... Tags>
  int index(type_list<Tags...>) const {
    if constexpr (sizeof...(Tags) == 0)
      return 0;
    else
      return mesh_.template group_index<Tags...>(rank_);
  }
  template <class... Tags>
  int size_along(type_list<Tags...>) const {
    if constexpr (sizeof...(Tags) == 0)
      return 1;
    else
      return mesh_.template group_size<Tags...>();
  }

  Mesh mesh_;
  int rank_;
  std::deque<group> groups_, control_;  // references stay valid
};

}  // namespace heddle::inline v0::model
