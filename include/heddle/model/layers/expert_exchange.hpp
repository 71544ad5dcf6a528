// heddle/model/layers/expert_exchange.hpp: sends rows to ranks of experts, and back.
#pragma once

#include <heddle/core/monoid.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/layers/call.hpp>
#include <heddle/model/layers/exchange_routes.hpp>
#include <heddle/model/layers/routing_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::model::layers {

/// The experts of one rank.
struct expert_range {
  std::int64_t first = 0, count = 0;
};

namespace detail {

template <class T, class Space>
constexpr matrix_view<T, Space> first_rows(matrix_view<T, Space> m, std::int64_t rows) noexcept {
  return {m.address(), dynamic_shape<2>(rows, m.extent(1))};
}

template <class Layouts>
expert_range experts_of(const typename Layouts::mesh_type& mesh, int rank, std::int64_t experts) {
  const typename Layouts::template parameter<dims<dim::experts>> split{mesh};
  const auto all = dynamic_shape<1>(experts);
  return {split.local_offset(all, rank)[0], split.local_shape(all, rank).extent(0)};
}
template <class Layouts, class World>
expert_range own_experts(World& world, std::int64_t experts) {
  using mesh_type = typename Layouts::mesh_type;
  return experts_of<Layouts>(make_stage_mesh<mesh_type>(world.mesh()),
                             rank_in_stage_mesh<mesh_type>(world.mesh(), world.rank()), experts);
}

// Whether this rank is the first along all axes `Tags` of the mesh of layers.
template <class Layouts, class World, class... Tags>
bool is_first_along(World& world, type_list<Tags...>) {
  using mesh_type = typename Layouts::mesh_type;
  [[maybe_unused]] const mesh_type mesh = make_stage_mesh<mesh_type>(world.mesh());
  [[maybe_unused]] const int rank = rank_in_stage_mesh<mesh_type>(world.mesh(), world.rank());
  return (... && (mesh.template coordinate<Tags>(rank) == 0));
}

// How many ranks of a group hold parts of one expert: those along the axes `Tags`.
template <class Mesh, class... Tags>
constexpr std::int64_t copies_of_rows(const Mesh& mesh, type_list<Tags...>) {
  return (std::int64_t{1} * ... * std::int64_t{mesh.template extent_or_one<Tags>()});
}

// How many ranks may send rows to one rank's experts; 0 where none are sent, or they are gathered.
template <class Laid, class Dispatch, class Mesh>
constexpr std::int64_t senders_of_rows(const Mesh& mesh) {
  return Laid::exchanges && !Dispatch::gathers ? copies_of_rows(mesh, typename Laid::exchange{}) : 0;
}

// Fills in who holds which experts along the axes `Tags`, unless it is known: as it follows from the layouts, these axes and the number of
// experts, on the mesh that all layers of a stage have. The last of these axes split what is in an expert: `copies` consecutive members hold
// the same experts.
template <class Layouts, class World, class... Tags>
void find_members(exchange_tables& t, World& world, std::int64_t experts, std::int64_t copies, type_list<Tags...>) {
  // One for each instance of this function: its address says which.
  static constexpr type_list<Layouts, Tags...> found{};
  if (t.of == &found && static_cast<std::int64_t>(t.reached.size()) == experts * copies) return;
  t.of = nullptr;  // until all is filled in
  using mesh_type = typename Layouts::mesh_type;
  const mesh_type mesh = make_stage_mesh<mesh_type>(world.mesh());
  const int rank = rank_in_stage_mesh<mesh_type>(world.mesh(), world.rank());
  t.copies = copies;
  t.reached.assign(static_cast<std::size_t>(experts * copies), -1);
  t.first.clear();
  t.held.clear();
  std::int64_t number = 0;
  for (const int member : heddle::v0::group<Tags...>(mesh, rank)) {
    const expert_range theirs = experts_of<Layouts>(mesh, member, experts);
    const std::int64_t copy = static_cast<std::int64_t>(t.first.size()) % copies;
    t.first.push_back(number);
    t.held.push_back(theirs.count);
    for (std::int64_t e = 0; e < theirs.count; ++e)
      t.reached[static_cast<std::size_t>((theirs.first + e) * copies + copy)] = static_cast<std::int32_t>(number++);
  }
  t.wanted.assign(static_cast<std::size_t>(number), 0);
  t.of = &found;
}

// Rows of `width` elements, `out[m]` of them to and `in[m]` from member m, in the order of the queue.
template <class T, class Space, class Queue, class Group>
void send_rows(Queue&& queue, Group& group, exchange_tables& t, matrix_view<const T, Space> from,
               const std::vector<std::int64_t>& out, matrix_view<T, Space> to, const std::vector<std::int64_t>& in) {
  const std::int64_t width = from.extent(1);
  t.out.resize(out.size());
  t.in.resize(in.size());
  std::transform(out.begin(), out.end(), t.out.begin(), [&](std::int64_t n) { return n * width; });
  std::transform(in.begin(), in.end(), t.in.begin(), [&](std::int64_t n) { return n * width; });
  send_blocks<T, Space>(queue, group, elements_of(from), t.out, elements_of(to), t.in);
}
template <class Group, class T>
void send_rows(Group& group, exchange_tables& t, std::type_identity_t<matrix_view<const T>> from,
               const std::vector<std::int64_t>& out, matrix_view<T> to, const std::vector<std::int64_t>& in) {
  send_rows<T, host_memory>(host_memory::queue(), group, t, from, out, to, in);
}
// Each number `copies` times, and the sums of so many.
template <class T, class Space, class Queue>
void copy_each(Queue&& queue, matrix_view<const T, Space> from, std::int64_t copies, matrix_view<T, Space> to) {
  run_each(queue, to.size(), copied_number<T>{copies, from.address(), to.address()}, from, to);
}
template <class T, class Space, class Queue>
void sum_each(Queue&& queue, matrix_view<const T, Space> from, std::int64_t copies, matrix_view<T, Space> to) {
  run_each(queue, to.size(), summed_copies<T>{copies, from.address(), to.address()}, from, to);
}

// The elements that each member has of rows of this width.
inline std::span<const std::int64_t> received_elements(exchange_tables& t, std::int64_t width) {
  t.in.resize(t.received.size());
  std::transform(t.received.begin(), t.received.end(), t.in.begin(), [&](std::int64_t n) { return n * width; });
  return t.in;
}

// Rows of `width` elements of all members, one member after the other: `t.received[m]` of member m.
template <class Group, class T>
void gather_rows(Group& group, exchange_tables& t, std::type_identity_t<std::span<const T>> from, std::span<T> to,
                 std::int64_t width) {
  if (group.size() > 1)
    group.all_gather_v(from, to, received_elements(t, width));
  else
    std::copy(from.begin(), from.end(), to.begin());
}
// The sums over members of what each has for all rows, each row where it comes from.
template <class Group, class T>
void sum_rows(Group& group, exchange_tables& t, std::type_identity_t<std::span<const T>> from, std::span<T> to,
              std::int64_t width) {
  if (group.size() > 1)
    group.reduce_scatter_v(from, to, received_elements(t, width), plus{});
  else
    std::copy(from.begin(), from.end(), to.begin());
}
// The choices of all members' rows, and how many rows each has; `rows` are this rank's.
template <class Group>
void gather_choices(Group& group, exchange_tables& t, std::span<const std::int32_t> own, std::int64_t rows,
                    std::int64_t chosen) {
  t.received.assign(static_cast<std::size_t>(group.size()), rows);
  if (group.size() > 1) group.all_gather(std::span<const std::int64_t>(&rows, 1), std::span(t.received));
  t.choices.resize(static_cast<std::size_t>(t.rows_received() * chosen));
  gather_rows<Group, std::int32_t>(group, t, own, t.choices, chosen);
}
// Both as bytes of a tensor of other numbers, and back; `members` and `chosen` are known.
template <class T>
void keep_choices(const exchange_tables& t, matrix_view<T> to) {
  auto* const bytes = reinterpret_cast<std::byte*>(to.address());
  std::memcpy(bytes, t.received.data(), t.received.size() * sizeof(std::int64_t));
  if (!t.choices.empty())
    std::memcpy(bytes + t.received.size() * sizeof(std::int64_t), t.choices.data(),
                t.choices.size() * sizeof(std::int32_t));
}
template <class T>
void read_choices(exchange_tables& t, matrix_view<const T> from, int members, std::int64_t chosen) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(from.address());
  t.received.resize(static_cast<std::size_t>(members));
  std::memcpy(t.received.data(), bytes, t.received.size() * sizeof(std::int64_t));
  t.choices.resize(static_cast<std::size_t>(t.rows_received() * chosen));
  if (!t.choices.empty())
    std::memcpy(t.choices.data(), bytes + t.received.size() * sizeof(std::int64_t),
                t.choices.size() * sizeof(std::int32_t));
}

}  // namespace detail

/// How many elements of type T the count of rows of one expert from one rank takes.
inline constexpr std::int64_t elements_per_count = 4;  // of two bytes at least

}  // namespace heddle::inline v0::model::layers
