// heddle/mesh/topology.hpp: ranks, switches and the links between them, and the routes of messages.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0 {

/// What a link is made of. `infiniband` and `roce` move data without the receiving processor (RDMA), but not to each
/// other.
enum class link_kind : std::uint8_t { memory, nvlink, pcie, infiniband, roce, ethernet, optical, other };

/// All kinds, in the order of their numbers.
inline constexpr std::array<std::string_view, 8> link_kind_names{"memory", "nvlink",   "pcie",    "infiniband",
                                                                 "roce",   "ethernet", "optical", "other"};

/// The name of a kind of link: `"infiniband"`.
constexpr std::string_view to_string(link_kind kind) noexcept {
  return link_kind_names[static_cast<std::size_t>(kind)];
}

/// What links of one sort have in common. Units: `seconds` of latency; bytes per second in one direction.
struct link_class {
  double seconds = 0;
  double bytes_per_second = 1;
  link_kind kind = link_kind::other;
  friend constexpr bool operator==(const link_class&, const link_class&) = default;
};

/// A way from one vertex to another, in this direction only. Links of both directions do not disturb each other.
struct link {
  int from = 0, to = 0;
  double seconds = 0;
  double bytes_per_second = 1;
  link_kind kind = link_kind::other;
  friend constexpr bool operator==(const link&, const link&) = default;
};

/// What stands at a vertex.
enum class vertex_kind : std::uint8_t { rank, nic, network_switch, cpu };

/// The names of the kinds of vertices, in the order of `vertex_kind`.
inline constexpr std::array<std::string_view, 4> vertex_kind_names{"rank", "nic", "switch", "cpu"};

constexpr std::string_view to_string(vertex_kind kind) noexcept {
  return vertex_kind_names[static_cast<std::size_t>(kind)];
}

/// The parts of a cluster that hold ranks, small to large; rails cut across nodes.
enum class cluster_level : std::uint8_t { rank, gpu, node, rail, pod };

/// Where a rank is: numbers that are the same for ranks of the same GPU, node, rail or pod, all counted over the whole
/// cluster; and the kind of network card through which it leaves its node.
struct rank_place {
  int gpu = 0;
  int node = 0;
  int rail = 0;
  int pod = 0;
  link_kind nic = link_kind::other;
  friend constexpr bool operator==(const rank_place&, const rank_place&) = default;
};

/// Which of several equally short ways a message takes.
enum class routing : std::uint8_t {
  single,  ///< one: at every vertex the link with the lowest number
  split,   ///< all, in equal shares
};

/// A link that a message crosses, and the share of its bytes that does.
struct route_step {
  int link = 0;
  double share = 1;
  friend constexpr bool operator==(const route_step&, const route_step&) = default;
};

/// The way from one vertex to another: what crosses which link. Links nearer to the start come first.
struct route_table {
  std::vector<route_step> steps;
  int hops = 0;        ///< links that a byte crosses
  double seconds = 0;  ///< latency of the way (of the slowest, where it splits)
  double bytes_per_second =
      0;  ///< what the narrowest link lets through, when nothing else is on the way; 0 for no links

  constexpr std::size_t size() const noexcept { return steps.size(); }
  constexpr bool empty() const noexcept { return steps.empty(); }
  constexpr const route_step& operator[](std::size_t i) const noexcept { return steps[i]; }
  constexpr const route_step* begin() const noexcept { return steps.data(); }
  constexpr const route_step* end() const noexcept { return steps.data() + steps.size(); }
};

/// Ranks and switches joined by directed links. Vertices `0 .. ranks() - 1` are the ranks; network cards, switches and
/// the like follow. A value: copied, compared, built in constant expressions.
///
/// A message takes a way with the fewest links; among these, one whose narrowest link is widest; `routing` chooses
/// among those that are left. Ways lead through other ranks (as in a torus) unless `ranks_forward(false)`.
///
/// Errors: `mesh_error` for vertices that are not there, a link to itself, a negative or infinite latency, a bandwidth
/// that is not positive, and where no way leads.
class topology {
 public:
  topology() = default;
  constexpr explicit topology(int ranks) {
    if (ranks < 0) throw mesh_error(with_number("heddle: a topology cannot have ", ranks, " ranks"));
    ranks_ = ranks;
    for (int r = 0; r < ranks; ++r) {
      add(vertex_kind::rank);
      places_.push_back({r, r, 0, 0, link_kind::other});
    }
  }

  constexpr int ranks() const noexcept { return ranks_; }
  constexpr int vertices() const noexcept { return static_cast<int>(kinds_.size()); }
  constexpr const std::vector<link>& links() const noexcept { return links_; }
  constexpr vertex_kind kind(int vertex) const { return kinds_[checked(vertex)]; }

  /// A network card, switch or the like. Returns its number.
  constexpr int add_vertex(vertex_kind kind = vertex_kind::network_switch) {
    if (kind == vertex_kind::rank)
      throw mesh_error("heddle: the ranks of a topology are given to its constructor; add_vertex adds what joins them");
    return add(kind);
  }

  /// Returns the link's number. Several links may join the same two vertices.
  constexpr int add_link(const link& l) {
    const std::size_t from = checked(l.from), to = checked(l.to);
    if (from == to) throw mesh_error(with_number("heddle: a link leads from vertex ", l.from, " to itself"));
    if (!(l.seconds >= 0) || !(l.seconds < std::numeric_limits<double>::infinity()) || !(l.bytes_per_second > 0))
      throw mesh_error(
          between("heddle: the link ", l.from, l.to,
                  " needs a finite latency of at least 0 seconds and a bandwidth above 0 bytes per second"));
    const int number = static_cast<int>(links_.size());
    links_.push_back(l);
    append(out_[from], next_out_, number);
    append(in_[to], next_in_, number);
    return number;
  }
  constexpr int add_link(int from, int to, const link_class& c) {
    return add_link(link{from, to, c.seconds, c.bytes_per_second, c.kind});
  }
  /// A link in each direction. Returns the number of the one from `a` to `b`; the next number is the other's.
  constexpr int add_both(int a, int b, const link_class& c) {
    const int number = add_link(a, b, c);
    add_link(b, a, c);
    return number;
  }
  constexpr int add_both(const link& l) { return add_both(l.from, l.to, {l.seconds, l.bytes_per_second, l.kind}); }

  /// Whether ways may lead through ranks that are neither the sender nor the receiver.
  constexpr bool ranks_forward() const noexcept { return ranks_forward_; }
  constexpr void ranks_forward(bool forward) noexcept { ranks_forward_ = forward; }

  /// Where a rank is. Unless something else was said each rank is a GPU and a node of its own, in one rail and one pod.
  constexpr const rank_place& place(int rank) const { return places_[checked_rank(rank)]; }
  constexpr void place(int rank, const rank_place& where) { places_[checked_rank(rank)] = where; }
  /// The number of the part that holds the rank: `part(cluster_level::node, 5)`.
  constexpr int part(cluster_level level, int rank) const {
    const rank_place& p = place(rank);
    switch (level) {
      case cluster_level::gpu:
        return p.gpu;
      case cluster_level::node:
        return p.node;
      case cluster_level::rail:
        return p.rail;
      case cluster_level::pod:
        return p.pod;
      case cluster_level::rank:
        break;
    }
    return rank;
  }
  /// How many different parts of that level hold ranks.
  constexpr int parts(cluster_level level) const {
    std::vector<int> seen;
    for (int r = 0; r < ranks_; ++r) {
      const int mine = part(level, r);
      bool found = false;
      for (std::size_t i = seen.size(); i-- > 0 && !found;) found = seen[i] == mine;
      if (!found) seen.push_back(mine);
    }
    return static_cast<int>(seen.size());
  }

  /// The links that leave a vertex, lowest number first.
  constexpr std::vector<int> links_from(int vertex) const {
    std::vector<int> result;
    for (int l = out_[checked(vertex)].first; l >= 0; l = next_out_[index(l)]) result.push_back(l);
    return result;
  }

  /// The way of a message. Empty if `from` is `to`. Work: one walk over the links nearer to `to` than `from` is.
  constexpr route_table route(int from, int to, routing how = routing::single) const {
    checked(from), checked(to);
    route_table result;
    if (from == to) return result;
    const search found = walk_back(from, to);
    const double width = found.width[index(from)];
    result.hops = found.distance[index(from)];
    if (how == routing::single)
      take_first(found, from, to, width, result);
    else
      take_all(found, from, to, width, result);
    return result;
  }

  /// Links on the shortest way. Errors: as `route`.
  constexpr int hops(int from, int to) const {
    checked(from), checked(to);
    return from == to ? 0 : walk_back(from, to).distance[index(from)];
  }

  /// The same from every vertex; -1 where no way leads. One walk over all links.
  constexpr std::vector<int> hops_to(int to) const {
    checked(to);
    return walk_back(-1, to).distance;
  }

  /// The same cluster with its ranks renumbered: rank `r` of the result stands where rank `physical[r]` stood.
  /// Errors: `mesh_error` if `physical` does not name every rank once.
  constexpr topology renumbered(std::span<const int> physical) const {
    if (physical.size() != places_.size())
      throw mesh_error(with_number("heddle: a renumbering of a topology must name all ", ranks_, " ranks"));
    std::vector<int> logical(kinds_.size(), -1);
    topology result(ranks_);
    for (int r = 0; r < ranks_; ++r) {
      const int old = physical[index(r)];
      if (logical[checked_rank(old)] >= 0)
        throw mesh_error(with_number("heddle: a renumbering of a topology names rank ", old, " twice"));
      logical[index(old)] = r;
      result.places_[index(r)] = places_[index(old)];
    }
    for (int v = ranks_; v < vertices(); ++v) logical[index(v)] = result.add_vertex(kinds_[index(v)]);
    for (link l : links_) {
      l.from = logical[index(l.from)];
      l.to = logical[index(l.to)];
      result.add_link(l);
    }
    result.ranks_forward_ = ranks_forward_;
    return result;
  }

  friend constexpr bool operator==(const topology& a, const topology& b) {
    return a.ranks_ == b.ranks_ && a.kinds_ == b.kinds_ && a.links_ == b.links_ && a.places_ == b.places_ &&
           a.ranks_forward_ == b.ranks_forward_;
  }

 private:
  // The links of a vertex: a list through `next_out_` (`next_in_`), in the order in which they were added.
  struct list {
    int first = -1;
    int last = -1;
  };
  // What a walk from the target backwards finds: links left to go, the narrowest link of the widest shortest way, and
  // the vertices in order of their distance.
  struct search {
    std::vector<int> distance;
    std::vector<double> width;
    std::vector<int> order;
  };

  static constexpr std::size_t index(int i) noexcept { return static_cast<std::size_t>(i); }

  // The messages, outside of constant expressions.
  static std::string not_there(std::string_view what, int number, int count) {
    return text_of({"heddle: a topology has no ", what, ' ', number, "; it has ", count, ", counted from 0"});
  }
  static std::string with_number(std::string_view before, int number, std::string_view after) {
    return text_of({before, number, after});
  }
  static std::string between(std::string_view before, int from, int to, std::string_view after) {
    return text_of({before, "from vertex ", from, " to vertex ", to, after});
  }

  constexpr std::size_t checked(int vertex) const {
    if (vertex < 0 || vertex >= vertices()) throw mesh_error(not_there("vertex", vertex, vertices()));
    return index(vertex);
  }
  constexpr std::size_t checked_rank(int rank) const {
    if (rank < 0 || rank >= ranks_) throw mesh_error(not_there("rank", rank, ranks_));
    return index(rank);
  }

  constexpr int add(vertex_kind kind) {
    kinds_.push_back(kind);
    out_.push_back({});
    in_.push_back({});
    return vertices() - 1;
  }
  static constexpr void append(list& of, std::vector<int>& next, int number) {
    next.push_back(-1);
    if (of.first < 0)
      of.first = number;
    else
      next[index(of.last)] = number;
    of.last = number;
  }

  // With `from` -1 as far as links lead.
  constexpr search walk_back(int from, int to) const {
    search s{std::vector<int>(kinds_.size(), -1), std::vector<double>(kinds_.size(), 0), {to}};
    s.distance[index(to)] = 0;
    for (std::size_t next = 0; next < s.order.size(); ++next) {
      const int v = s.order[next];
      const int reached = from < 0 ? -1 : s.distance[index(from)];
      if (reached >= 0 && s.distance[index(v)] >= reached) break;  // what follows is farther away than `from`
      if (v != to && v < ranks_ && !ranks_forward_) continue;
      for (int l = in_[index(v)].first; l >= 0; l = next_in_[index(l)]) {
        const link& in = links_[index(l)];
        const double narrowest =
            v == to || in.bytes_per_second < s.width[index(v)] ? in.bytes_per_second : s.width[index(v)];
        int& distance = s.distance[index(in.from)];
        double& width = s.width[index(in.from)];
        if (distance < 0) {
          distance = s.distance[index(v)] + 1;
          width = narrowest;
          s.order.push_back(in.from);
        } else if (distance == s.distance[index(v)] + 1 && width < narrowest) {
          width = narrowest;
        }
      }
    }
    if (from >= 0 && s.distance[index(from)] < 0)
      throw mesh_error(between("heddle: no links lead ", from, to, " of the topology"));
    return s;
  }

  // Whether the link lies on a shortest way to `to` whose narrowest link is at least `width` wide.
  constexpr bool on_the_way(const search& s, const link& l, int to, double width) const {
    return s.distance[index(l.to)] >= 0 && s.distance[index(l.to)] + 1 == s.distance[index(l.from)] &&
           (l.to == to || l.to >= ranks_ || ranks_forward_) && l.bytes_per_second >= width &&
           (l.to == to || s.width[index(l.to)] >= width);
  }

  constexpr void take_first(const search& s, int from, int to, double width, route_table& result) const {
    result.bytes_per_second = width;
    for (int v = from; v != to;) {
      int l = out_[index(v)].first;
      while (!on_the_way(s, links_[index(l)], to, width)) l = next_out_[index(l)];
      result.steps.push_back({l, 1});
      result.seconds += links_[index(l)].seconds;
      v = links_[index(l)].to;
    }
  }

  // A link's share is the number of ways through it over the number of all ways.
  constexpr void take_all(const search& s, int from, int to, double width, route_table& result) const {
    std::vector<double> ways_to(kinds_.size(), 0), ways_from(kinds_.size(), 0), latest(kinds_.size(), 0);
    ways_to[index(from)] = 1;
    ways_from[index(to)] = 1;
    for (const int v : s.order)  // near `to` first
      if (s.distance[index(v)] > 0)
        for (int l = out_[index(v)].first; l >= 0; l = next_out_[index(l)])
          if (on_the_way(s, links_[index(l)], to, width)) ways_from[index(v)] += ways_from[index(links_[index(l)].to)];
    for (std::size_t i = s.order.size(); i-- > 0;) {  // near `from` first
      const int v = s.order[i];
      if (ways_to[index(v)] <= 0) continue;
      for (int l = out_[index(v)].first; l >= 0; l = next_out_[index(l)]) {
        const link& out = links_[index(l)];
        if (!on_the_way(s, out, to, width)) continue;
        const double share = ways_to[index(v)] * ways_from[index(out.to)] / ways_from[index(from)];
        result.steps.push_back({l, share});
        ways_to[index(out.to)] += ways_to[index(v)];
        const double arrival = latest[index(v)] + out.seconds;
        if (latest[index(out.to)] < arrival) latest[index(out.to)] = arrival;
        const double through = out.bytes_per_second / share;
        if (result.bytes_per_second <= 0 || through < result.bytes_per_second) result.bytes_per_second = through;
      }
    }
    result.seconds = latest[index(to)];
  }

  int ranks_ = 0;
  bool ranks_forward_ = true;
  std::vector<vertex_kind> kinds_;
  std::vector<link> links_;
  std::vector<rank_place> places_;
  std::vector<list> out_;
  std::vector<list> in_;
  std::vector<int> next_out_;
  std::vector<int> next_in_;
};

}  // namespace heddle::inline v0
