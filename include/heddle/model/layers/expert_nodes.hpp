// heddle/model/layers/expert_nodes.hpp: sends rows once to each node with their experts.
#pragma once

#include <heddle/model/layers/expert_exchange.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::model::layers::detail {

// Fills in which nodes hold which experts, unless it is known.
template <class Layouts, class World, class... Between, class... Inside>
void find_nodes(node_tables& t, World& world, std::int64_t experts, type_list<Between...>, type_list<Inside...>) {
  using mesh_type = typename Layouts::mesh_type;
  static constexpr type_list<Between...> axes{};
  const auto all = static_cast<std::size_t>(experts);
  if (t.axes == &axes && t.holds.size() == all * t.sent.size()) return;
  t.axes = &axes;
  const mesh_type mesh = make_stage_mesh<mesh_type>(world.mesh());
  const std::vector<int> nodes =
      heddle::v0::group<Between...>(mesh, rank_in_stage_mesh<mesh_type>(world.mesh(), world.rank()));
  t.sent.assign(nodes.size(), 0);
  t.arrived.assign(nodes.size(), 0);
  t.holds.assign(all * nodes.size(), 0);
  for (std::size_t node = 0; node < nodes.size(); ++node)
    for (const int member : heddle::v0::group<Inside...>(mesh, nodes[node])) {
      const expert_range theirs = experts_of<Layouts>(mesh, member, experts);
      for (std::int64_t e = theirs.first; e < theirs.first + theirs.count; ++e)
        t.holds[static_cast<std::size_t>(e) * nodes.size() + node] = 1;
    }
}

// Which rows go to which nodes; `kept` [rows, chosen] are the experts of each row, or -1.
template <class Kernels>
void choose_nodes(Kernels& k, node_tables& t, matrix_view<const std::int32_t> kept) {
  const std::size_t nodes = t.sent.size(), rows = static_cast<std::size_t>(kept.extent(0));
  const auto chosen = static_cast<std::size_t>(kept.extent(1));
  t.ids.assign(rows * nodes, -1);
  for (std::size_t r = 0; r < rows; ++r)
    for (const std::int32_t e : kept.elements().subspan(r * chosen, chosen))
      for (std::size_t node = 0; node < nodes && e >= 0; ++node)
        if (t.holds[static_cast<std::size_t>(e) * nodes + node] != 0)
          t.ids[r * nodes + node] = static_cast<std::int32_t>(node);
  t.sources.resize(t.ids.size());
  t.places.resize(t.ids.size());
  t.offsets.resize(nodes + 1);
  const dynamic_shape<2> shape(kept.extent(0), static_cast<std::int64_t>(nodes));
  compute::run<compute::ops::route>(k, matrix_view<const std::int32_t>(t.ids.data(), shape), 0, std::span(t.offsets),
                                    std::span(t.sources), matrix_view<std::int32_t>(t.places.data(), shape));
  for (std::size_t node = 0; node < nodes; ++node) t.sent[node] = t.offsets[node + 1] - t.offsets[node];
}

// Rows on their way, in memory for as many to each node: those that leave this rank, and behind these those that arrive at it.
template <class T>
struct rows_between_nodes {
  matrix_view<T> leaving, arriving;
  rows_between_nodes(const node_tables& t, T* room, std::int64_t width)
      : leaving(room, dynamic_shape<2>(t.rows_sent(), width)),
        arriving(room + t.rows_sent() * width, dynamic_shape<2>(t.rows_arrived(), width)) {}
};

// Rows of this rank to all ranks of each node that they go to.
template <class Kernels, class Between, class Inside, class T>
void to_nodes(Kernels& k, Between& between, Inside& inside, exchange_tables& t, T* room,
              std::type_identity_t<matrix_view<const T>> from, matrix_view<T> to) {
  const rows_between_nodes<T> on_way(t.nodes, room, to.extent(1));
  compute::run<compute::ops::permute>(
      k, from, std::span(t.nodes.sources).first(static_cast<std::size_t>(t.nodes.rows_sent())), on_way.leaving);
  send_rows(between, t, on_way.leaving, t.nodes.sent, on_way.arriving, t.nodes.arrived);
  gather_rows<Inside, T>(inside, t, elements_of(on_way.arriving), elements_of(to), to.extent(1));
}
// The sums over all these ranks of what each has for the rows that came to it, back to where rows come from.
template <class Kernels, class Between, class Inside, class T>
void sums_from_nodes(Kernels& k, Between& between, Inside& inside, exchange_tables& t, T* room,
                     std::type_identity_t<matrix_view<const T>> from, matrix_view<T> to) {
  const rows_between_nodes<T> on_way(t.nodes, room, to.extent(1));
  sum_rows<Inside, T>(inside, t, elements_of(from), elements_of(on_way.arriving), to.extent(1));
  send_rows(between, t, on_way.arriving, t.nodes.arrived, on_way.leaving, t.nodes.sent);
  const dynamic_shape<2> shape(to.extent(0), static_cast<std::int64_t>(t.nodes.sent.size()));
  compute::run<compute::ops::permute_backward>(k, on_way.leaving,
                                               matrix_view<const std::int32_t>(t.nodes.places.data(), shape), to);
}
// The choices of all rows that come to this node, and how many rows come by each of its ranks.
template <class Between, class Inside>
void choices_to_nodes(Between& between, Inside& inside, exchange_tables& t, matrix_view<const std::int32_t> kept) {
  node_tables& n = t.nodes;
  const std::vector<std::int64_t> one(n.sent.size(), 1);
  send_blocks<std::int64_t, host_memory>(host_memory::queue(), between, n.sent, one, n.arrived, one);
  const auto chosen = static_cast<std::size_t>(kept.extent(1)), leave = static_cast<std::size_t>(n.rows_sent());
  n.leaving.resize(leave * chosen);
  n.arriving.resize(static_cast<std::size_t>(n.rows_arrived()) * chosen);
  for (std::size_t i = 0; i < n.leaving.size(); ++i)
    n.leaving[i] = kept.elements()[static_cast<std::size_t>(n.sources[i / chosen]) * chosen + i % chosen];
  send_rows<Between, std::int32_t>(between, t, {n.leaving.data(), dynamic_shape<2>(n.rows_sent(), kept.extent(1))},
                                   n.sent, {n.arriving.data(), dynamic_shape<2>(n.rows_arrived(), kept.extent(1))},
                                   n.arrived);
  gather_choices<Inside>(inside, t, n.arriving, n.rows_arrived(), kept.extent(1));
}
// How many rows arrived from each node, as bytes behind the choices that `keep_choices` keeps, and back.
template <class T>
auto* behind_choices(const exchange_tables& t, T* kept) {
  using byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return reinterpret_cast<byte*>(kept) + t.received.size() * sizeof(std::int64_t) +
         t.choices.size() * sizeof(std::int32_t);
}
template <class T>
void keep_arrived(const exchange_tables& t, matrix_view<T> to) {
  std::memcpy(behind_choices(t, to.address()), t.nodes.arrived.data(), t.nodes.arrived.size() * sizeof(std::int64_t));
}
template <class T>
void read_arrived(exchange_tables& t, matrix_view<const T> from) {
  std::memcpy(t.nodes.arrived.data(), behind_choices(t, from.address()), t.nodes.arrived.size() * sizeof(std::int64_t));
}

}  // namespace heddle::inline v0::model::layers::detail
