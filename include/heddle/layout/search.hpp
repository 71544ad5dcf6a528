// heddle/layout/search.hpp: the search for the cheapest steps between two layouts, on small numbers.
#pragma once

#include <heddle/core/static_vector.hpp>
#include <heddle/layout/objective.hpp>
#include <heddle/layout/step_kind.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace heddle::inline v0 {

namespace detail {

inline constexpr std::size_t planned_axes = 8;  // axes that may change in one redistribution
inline constexpr std::size_t planned_dims = 16;
inline constexpr std::size_t planned_nodes = 512;
inline constexpr std::size_t planned_steps = 3 * planned_axes + 2;

// What the axes do, 16 bits each: role, dimension, level, split policy. Only axes that change, numbered 0..; dimensions
// are numbered in order; levels count from those that change.
enum : unsigned { planned_replicated = 0, planned_sharded = 1, planned_partial = 2, planned_other_partial = 3 };
struct planned_use {
  unsigned role = planned_replicated, dim = 0, level = 0, split = 0;
};
struct planned_state {
  std::uint64_t word[2]{0, 0};

  constexpr unsigned code(unsigned a) const { return static_cast<unsigned>(word[a / 4] >> (16 * (a % 4))) & 0xffffu; }
  constexpr unsigned role(unsigned a) const { return code(a) & 3u; }
  constexpr unsigned dim(unsigned a) const { return code(a) >> 2 & 15u; }
  constexpr unsigned level(unsigned a) const { return code(a) >> 6 & 15u; }
  constexpr unsigned split(unsigned a) const { return code(a) >> 10; }
  constexpr void set(unsigned a, const planned_use& u) {
    const std::uint64_t bits = u.role | u.dim << 2 | u.level << 6 | u.split << 10;
    word[a / 4] = (word[a / 4] & ~(std::uint64_t{0xffff} << (16 * (a % 4)))) | bits << (16 * (a % 4));
  }
  friend constexpr bool operator==(const planned_state& a, const planned_state& b) {
    return a.word[0] == b.word[0] && a.word[1] == b.word[1];
  }
};

struct plan_problem {
  unsigned axes = 0, dims = 0;
  int extents[planned_axes]{};
  planned_state from{}, to{};
  std::uint64_t intervals = ~std::uint64_t{0};  // bit s: split policy s gives intervals
  objective_mode mode = objective_mode::bytes;
  double tensor_bytes = 0;
  double seconds_per_message[planned_axes]{};
  double bytes_per_second[planned_axes]{};
};

struct planned_step {
  step_kind kind = step_kind::none;
  unsigned axes = 0;  // a bit per axis
  int from_dim = -1, to_dim = -1;
  bool other_op = false;
  planned_state after{};
};
struct planned_path {
  static_vector<planned_step, planned_steps> steps{};
  double bytes = 0;    // sent by all ranks together, in tensors
  double seconds = 0;  // alpha_beta only
  double peak = 0;     // most that one rank holds before and after a step together, in tensors
  bool proven = true;  // whether the search came to its end within its bounds
};

class plan_search {
 public:
  constexpr explicit plan_search(const plan_problem& p) : p_(p) {
    for (unsigned a = 0; a < p.axes; ++a) world_ *= p.extents[a];
    whole_ = world_ * world_ * world_;  // so that nearly all shares of it are whole numbers
    for (unsigned a = 0; a < p.axes; ++a)
      if (p.bytes_per_second[a] > fastest_) fastest_ = p.bytes_per_second[a];
  }

  constexpr planned_path run() {
    if (p_.mode == objective_mode::peak) {
      const int goal = solve();
      if (goal < 0) return path(goal);
      limit_ = nodes_[goal].cost[0];
      p_.mode = objective_mode::bytes;
    }
    return path(solve());
  }

 private:
  struct node {
    planned_state state;
    double cost[3];
    double bytes, seconds, peak;
    double left;       // a lower bound of what is still to come
    int parent, next;  // the node before it on the way, and the next one of its bucket
    step_kind kind;
    unsigned axes;
    int from_dim, to_dim;
    bool done;
  };
  struct lists {
    unsigned length[planned_dims]{};
    unsigned axis[planned_dims][planned_axes]{};
  };
  struct move {
    step_kind kind = step_kind::none;
    unsigned axes = 0;
    int from_dim = -1, to_dim = -1;
  };

  constexpr double extent(unsigned a) const { return p_.extents[a]; }
  constexpr double local(const planned_state& s) const {
    double l = whole_;
    for (unsigned a = 0; a < p_.axes; ++a)
      if (s.role(a) == planned_sharded) l /= extent(a);
    return l;
  }
  constexpr lists lists_of(const planned_state& s) const {
    lists l;
    for (unsigned a = 0; a < p_.axes; ++a) {
      if (s.role(a) != planned_sharded) continue;
      l.axis[s.dim(a)][s.level(a)] = a;
      ++l.length[s.dim(a)];
    }
    return l;
  }
  constexpr bool is_partial(const planned_state& s, unsigned a) const { return s.role(a) >= planned_partial; }
  // Contributions that are still to be combined, and axes that are still to become partial.
  constexpr bool to_reduce(const planned_state& s, unsigned a) const {
    return is_partial(s, a) && p_.to.role(a) != s.role(a);
  }
  constexpr bool to_spread(const planned_state& s, unsigned a) const {
    return is_partial(p_.to, a) && p_.to.role(a) != s.role(a);
  }
  constexpr bool less(double a, double b) const {
    const double tolerance = (a > 0 ? a : -a) * 1e-9;
    return a < b - tolerance;
  }

  // What a rank holds of `s` and of `t` both, on average over the ranks.
  constexpr double kept(const planned_state& s, const planned_state& t) const {
    const lists ls = lists_of(s), lt = lists_of(t);
    double share = whole_;
    unsigned joint = 0, dims[planned_dims]{}, first[planned_dims]{}, count = 0;
    double cells_s[planned_dims]{}, cells_t[planned_dims]{};
    for (unsigned d = 0; d < p_.dims; ++d) {
      unsigned i = 0;
      for (; i < ls.length[d] && i < lt.length[d]; ++i) {
        const unsigned a = ls.axis[d][i];
        if (a != lt.axis[d][i] || s.split(a) != t.split(a)) break;
        share /= extent(a);
      }
      double rest_s = 1, rest_t = 1;
      bool intervals = true;
      unsigned axes = 0;
      for (unsigned k = i; k < ls.length[d]; ++k) {
        const unsigned a = ls.axis[d][k];
        rest_s *= extent(a);
        axes |= 1u << a;
        intervals = intervals && (p_.intervals >> s.split(a) & 1u) != 0;
      }
      for (unsigned k = i; k < lt.length[d]; ++k) {
        const unsigned a = lt.axis[d][k];
        rest_t *= extent(a);
        axes |= 1u << a;
        intervals = intervals && (p_.intervals >> t.split(a) & 1u) != 0;
      }
      if (i == ls.length[d] || i == lt.length[d] || !intervals) {
        share /= rest_s * rest_t;
        continue;
      }
      joint |= axes;
      dims[count] = d;
      first[count] = i;
      cells_s[count] = rest_s;
      cells_t[count] = rest_t;
      ++count;
    }
    if (count == 0) return share;
    double places = 1;
    for (unsigned a = 0; a < p_.axes; ++a)
      if (joint >> a & 1u) places *= extent(a);
    for (unsigned c = 0; c < count; ++c) share /= cells_s[c] * cells_t[c];
    if (places > 256) return share;  // as if the cuts had nothing to do with each other
    int at[planned_axes]{};
    double sum = 0;
    for (;;) {
      double overlap = 1;
      for (unsigned c = 0; c < count && overlap > 0; ++c) {
        const unsigned d = dims[c];
        double i = 0, j = 0;
        for (unsigned k = first[c]; k < ls.length[d]; ++k) i = i * extent(ls.axis[d][k]) + at[ls.axis[d][k]];
        for (unsigned k = first[c]; k < lt.length[d]; ++k) j = j * extent(lt.axis[d][k]) + at[lt.axis[d][k]];
        const double begin_s = i * cells_t[c], begin_t = j * cells_s[c];
        const double end_s = begin_s + cells_t[c], end_t = begin_t + cells_s[c];
        const double begin = begin_s > begin_t ? begin_s : begin_t, end = end_s < end_t ? end_s : end_t;
        overlap *= end > begin ? end - begin : 0;
      }
      sum += overlap;
      unsigned a = 0;
      for (; a < p_.axes; ++a) {
        if ((joint >> a & 1u) == 0) continue;
        if (++at[a] < p_.extents[a]) break;
        at[a] = 0;
      }
      if (a == p_.axes) break;
    }
    return share * sum / places;
  }

  // A lower bound of the bytes that are still to be sent, per rank on average. Nothing partial: each rank must get what it
  // lacks. Contributions of u ranks: each element needs u - 1 messages to become one, and one more per further holder.
  constexpr double bytes_left(const planned_state& s) const {
    double contributions = 1, spread = 1, spread_and_split = 1;
    bool stays_partial = false;
    for (unsigned a = 0; a < p_.axes; ++a) {
      if (to_reduce(s, a)) contributions *= extent(a);
      if (to_spread(s, a)) {
        spread *= extent(a);
        if (s.role(a) == planned_sharded) spread_and_split *= extent(a);
      }
      stays_partial = stays_partial || (is_partial(s, a) && s.role(a) == p_.to.role(a));
    }
    const double target = local(p_.to);
    double left = 0;
    if (contributions > 1) {
      if (!stays_partial) left = (contributions - 2) * whole_ / world_ + target / spread;
    } else {
      left = (target - kept(s, p_.to) * spread_and_split) / spread;
    }
    return left > whole_ * 1e-9 ? left : 0;
  }

  static constexpr unsigned bucket_of(const planned_state& s) {
    const std::uint64_t mixed = (s.word[0] ^ s.word[1] * 31) * 0x9e3779b97f4a7c15u;
    return static_cast<unsigned>(mixed >> 58);
  }
  constexpr int find(const planned_state& s) const {
    int i = buckets_[bucket_of(s)];
    while (i >= 0 && !(nodes_[i].state == s)) i = nodes_[i].next;
    return i;
  }
  constexpr int add(node n) {
    int& first = buckets_[bucket_of(n.state)];
    n.next = first;
    nodes_[first = count_] = n;
    return count_++;
  }
  constexpr double estimate(const node& n) const {
    if (p_.mode == objective_mode::bytes) return n.cost[0] + n.left;
    if (p_.mode == objective_mode::seconds) return n.cost[0] + n.left / whole_ * p_.tensor_bytes / fastest_;
    return n.cost[0];
  }

  // Bytes a rank sends along several axes in one all_reduce: reduce-scatter over the first, the rest on what is left, all-gather.
  constexpr double reduce_seconds(unsigned axes, double bytes) const {
    double seconds = 0, held = bytes;
    for (unsigned a = 0; a < p_.axes; ++a) {
      if ((axes >> a & 1u) == 0) continue;
      seconds +=
          2 * ((extent(a) - 1) * p_.seconds_per_message[a] + held * (1 - 1 / extent(a)) / p_.bytes_per_second[a]);
      held /= extent(a);
    }
    return seconds;
  }
  constexpr double exchange_seconds(unsigned axes, double bytes) const {
    double peers = 1, latency = 0, slowest = fastest_;
    for (unsigned a = 0; a < p_.axes; ++a) {
      if ((axes >> a & 1u) == 0) continue;
      peers *= extent(a);
      if (p_.seconds_per_message[a] > latency) latency = p_.seconds_per_message[a];
      if (p_.bytes_per_second[a] < slowest) slowest = p_.bytes_per_second[a];
    }
    return (peers - 1) * latency + bytes / slowest;
  }

  constexpr int relax(int from, const move& m, const planned_state& next) {
    if (++work_ > max_work) return -1;
    const double before = local(nodes_[from].state), after = local(next);
    double together = 1;
    for (unsigned a = 0; a < p_.axes; ++a)
      if (m.axes >> a & 1u) together *= extent(a);
    double bytes = 0;
    switch (m.kind) {
      case step_kind::all_gather:
        bytes = (together - 1) * before;
        break;
      case step_kind::reduce_scatter:
      case step_kind::all_to_all:
        bytes = before - before / together;
        break;
      case step_kind::all_reduce:
        bytes = 2 * (before - before / together);
        break;
      case step_kind::exchange:
        bytes = after - kept(nodes_[from].state, next);
        break;
      default:
        break;
    }
    const double peak = before + after;
    if (limit_ > 0 && less(limit_, peak)) return -1;
    const double weight = m.kind == step_kind::exchange ? 32 : 1;
    node n{};
    n.state = next;
    n.bytes = nodes_[from].bytes + bytes;
    n.peak = peak > nodes_[from].peak ? peak : nodes_[from].peak;
    n.parent = from;
    n.kind = m.kind;
    n.axes = m.axes;
    n.from_dim = m.from_dim;
    n.to_dim = m.to_dim;
    n.done = false;
    n.seconds = nodes_[from].seconds;
    const double steps = weight + nodes_[from].cost[p_.mode == objective_mode::bytes ? 1 : 2];
    if (p_.mode == objective_mode::bytes) {
      n.cost[0] = n.bytes;
      n.cost[1] = steps;
      n.cost[2] = n.peak;
    } else if (p_.mode == objective_mode::seconds) {
      const double sent = bytes / whole_ * p_.tensor_bytes;
      n.seconds += m.kind == step_kind::all_reduce ? reduce_seconds(m.axes, before / whole_ * p_.tensor_bytes)
                   : bytes > 0                     ? exchange_seconds(m.axes, sent)
                                                   : 0;
      n.cost[0] = n.seconds;
      n.cost[1] = n.bytes;
      n.cost[2] = steps;
    } else {
      n.cost[0] = n.peak;
      n.cost[1] = n.bytes;
      n.cost[2] = steps;
    }
    const int old = find(next);
    if (old >= 0) {
      if (!cheaper(n, nodes_[old])) return old;
      n.left = nodes_[old].left;
      n.next = nodes_[old].next;
      nodes_[old] = n;
      return old;
    }
    if (count_ == static_cast<int>(planned_nodes)) return -1;
    n.left = bytes_left(next);
    if (is_hopeless(n)) return -1;
    if (next == p_.to) goal_ = count_;
    return add(n);
  }
  // Whether no way over the node can be better than the one that is known.
  constexpr bool is_hopeless(const node& n) const {
    if (goal_ < 0) return false;
    const node& goal = nodes_[goal_];
    const double least = estimate(n);
    return less(goal.cost[0], least) || (!less(least, goal.cost[0]) && !less(n.cost[1], goal.cost[1]));
  }
  constexpr bool cheaper(const node& a, const node& b) const {
    for (int i = 0; i < 3; ++i) {
      if (less(a.cost[i], b.cost[i])) return true;
      if (less(b.cost[i], a.cost[i])) return false;
    }
    return false;
  }

  // Whether the cuts below level `level` of dimension `d` are the target's: then a policy of the target fits there.
  constexpr bool as_in_target(const planned_state& s, unsigned d, unsigned level) const {
    for (unsigned a = 0; a < p_.axes; ++a) {
      const bool here = s.role(a) == planned_sharded && s.dim(a) == d && s.level(a) < level;
      const bool there = p_.to.role(a) == planned_sharded && p_.to.dim(a) == d && p_.to.level(a) < level;
      if (here != there || (here && s.code(a) != p_.to.code(a))) return false;
    }
    return true;
  }
  constexpr planned_state pushed(planned_state s, unsigned a, unsigned d, unsigned level) const {
    s.set(a, {});
    const planned_use to{planned_sharded, p_.to.dim(a), p_.to.level(a), p_.to.split(a)};
    const bool final_place =
        p_.to.role(a) == planned_sharded && to.dim == d && to.level == level && as_in_target(s, d, level);
    s.set(a, {planned_sharded, d, level, final_place ? to.split : 0});
    return s;
  }
  constexpr bool may_become_partial(const planned_state& s, unsigned a) const {
    if (!to_spread(s, a) || is_partial(s, a)) return false;
    for (unsigned b = 0; b < p_.axes; ++b)
      if (is_partial(s, b) && s.role(b) != p_.to.role(a)) return false;
    return true;
  }
  // Where an exchange leads: the target, but axes that are still to become partial are the last cuts: each of the dimension
  // it cuts now (`cut` is the number of dimensions), or all of dimension `cut`; those that cut nothing stay replicated then.
  constexpr planned_state exchanged(const planned_state& s, const lists& ls, unsigned cut) const {
    planned_state t = p_.to;
    lists lt = lists_of(p_.to);
    for (unsigned a = 0; a < p_.axes; ++a)
      if (to_spread(s, a)) t.set(a, {});
    for (unsigned d = 0; d < p_.dims; ++d)
      for (unsigned i = 0; i < ls.length[d]; ++i) {
        const unsigned a = ls.axis[d][i], to = cut < p_.dims ? cut : d;
        if (to_spread(s, a)) t.set(a, {planned_sharded, to, lt.length[to]++, 0});
      }
    if (cut < p_.dims)
      for (unsigned a = 0; a < p_.axes; ++a)
        if (to_spread(s, a) && s.role(a) == planned_replicated) t.set(a, {planned_sharded, cut, lt.length[cut]++, 0});
    return t;
  }
  constexpr int exchange_from(int at, unsigned cut) {
    const planned_state s = nodes_[at].state;
    const lists ls = lists_of(s);
    unsigned axes = 0;
    for (unsigned a = 0; a < p_.axes; ++a) {
      if (to_reduce(s, a)) return -1;
      if (s.role(a) == planned_sharded) axes |= 1u << a;
    }
    const planned_state t = exchanged(s, ls, cut);
    if (s == t) return at;
    const lists lt = lists_of(t);
    for (unsigned d = 0; d < p_.dims; ++d)  // nobody gets anything over cuts that stay
      for (unsigned i = 0; i < ls.length[d] && i < lt.length[d]; ++i) {
        const unsigned a = ls.axis[d][i];
        if (a != lt.axis[d][i] || s.code(a) != t.code(a)) break;
        axes &= ~(1u << a);
      }
    return relax(at, {step_kind::exchange, axes, -1, -1}, t);
  }
  constexpr int reduce_from(int at) {
    planned_state s = nodes_[at].state;
    unsigned axes = 0;
    for (unsigned a = 0; a < p_.axes; ++a)
      if (to_reduce(s, a)) {
        axes |= 1u << a;
        s.set(a, {});
      }
    if (axes == 0) return at;
    return relax(at, {step_kind::all_reduce, axes, -1, -1}, s);
  }
  constexpr int spread_from(int at, unsigned a, const lists& l) {
    planned_state s = nodes_[at].state;
    if (!may_become_partial(s, a)) return -1;
    const unsigned d = s.dim(a);
    const bool split = s.role(a) == planned_sharded;
    if (split && l.axis[d][l.length[d] - 1] != a) return -1;
    s.set(a, {p_.to.role(a), 0, 0, 0});
    return relax(at,
                 {split ? step_kind::pad_with_identity : step_kind::keep_on_owner, 1u << a,
                  split ? static_cast<int>(d) : -1, -1},
                 s);
  }

  constexpr void expand(int at) {
    const planned_state s = nodes_[at].state;
    const lists l = lists_of(s);
    for (const step_kind kind : {step_kind::slice, step_kind::reduce_scatter, step_kind::all_to_all})
      for (unsigned a = 0; a < p_.axes; ++a) {
        const unsigned role = s.role(a);
        const bool split = role == planned_sharded;
        if (kind == step_kind::slice        ? role != planned_replicated
            : kind == step_kind::all_to_all ? !split
                                            : role < planned_partial)
          continue;
        const unsigned from = s.dim(a);
        if (split && l.axis[from][l.length[from] - 1] != a) continue;
        for (unsigned d = 0; d < p_.dims; ++d)
          if (!split || d != from)
            relax(at, {kind, 1u << a, split ? static_cast<int>(from) : -1, static_cast<int>(d)},
                  pushed(s, a, d, l.length[d]));
      }
    reduce_from(at);
    for (unsigned a = 0; a < p_.axes; ++a)
      if (s.role(a) == planned_replicated) spread_from(at, a, l);
    for (unsigned d = 0; d < p_.dims; ++d) {
      if (l.length[d] == 0) continue;
      const unsigned a = l.axis[d][l.length[d] - 1];
      planned_state next = s;
      next.set(a, {});
      relax(at, {step_kind::all_gather, 1u << a, static_cast<int>(d), -1}, next);
    }
    for (unsigned a = 0; a < p_.axes; ++a)
      if (s.role(a) == planned_sharded) spread_from(at, a, l);
    bool may_cut = false;
    for (unsigned a = 0; a < p_.axes; ++a) may_cut = may_cut || to_spread(s, a);
    for (unsigned d = may_cut ? 0 : p_.dims; d <= p_.dims; ++d) exchange_from(at, d);
  }

  // First ways, so that there always is one: reduce everything, exchange, spread; and the same after all the slices that
  // can be, with sums split as soon as they are made.
  constexpr void finish(int at) {
    at = at < 0 ? at : exchange_from(at, p_.dims);
    for (bool moved = true; moved && at >= 0 && !(nodes_[at].state == p_.to);) {
      moved = false;
      const lists l = lists_of(nodes_[at].state);
      for (unsigned a = p_.axes; a-- > 0 && !moved;)
        if (const int next = spread_from(at, a, l); next >= 0 && next != at) {
          at = next;
          moved = true;
        }
    }
  }
  constexpr void dive() {
    finish(reduce_from(0));
    if (p_.dims == 0) return;
    int at = 0;
    for (const bool sums : {false, true})
      for (unsigned level = 0; level <= p_.axes && at >= 0;
           ++level)  // in the target's order, then what it does not split
        for (unsigned a = 0; a < p_.axes && at >= 0; ++a) {
          const planned_state s = nodes_[at].state;
          const bool split = p_.to.role(a) == planned_sharded;
          if (sums ? !to_reduce(s, a) : s.role(a) != planned_replicated || !(split || to_spread(s, a))) continue;
          if (split ? p_.to.level(a) != level : level != p_.axes) continue;
          const unsigned d = split ? p_.to.dim(a) : 0;
          at = relax(at, {sums ? step_kind::reduce_scatter : step_kind::slice, 1u << a, -1, static_cast<int>(d)},
                     pushed(s, a, d, lists_of(s).length[d]));
        }
    finish(at);
  }

  constexpr int solve() {
    count_ = 0;
    work_ = 0;
    goal_ = -1;
    for (int& first : buckets_) first = -1;
    node start{};
    start.state = p_.from;
    start.left = bytes_left(p_.from);
    start.parent = -1;
    add(start);
    if (p_.from == p_.to) return goal_ = 0;
    dive();
    for (;;) {
      int best = -1;
      for (int i = 0; i < count_; ++i) {
        if (nodes_[i].done || i == goal_) continue;
        if (best < 0) {
          best = i;
          continue;
        }
        const double a = estimate(nodes_[i]), b = estimate(nodes_[best]);
        if (less(a, b) || (!less(b, a) && less(nodes_[i].cost[1], nodes_[best].cost[1]))) best = i;
      }
      if (best < 0 || work_ > max_work) return goal_;
      if (is_hopeless(nodes_[best])) return goal_;
      nodes_[best].done = true;
      expand(best);
    }
  }

  constexpr planned_path path(int goal) const {
    planned_path out;
    out.proven = goal >= 0 && work_ <= max_work && count_ < static_cast<int>(planned_nodes);
    if (goal < 0) return out;
    out.bytes = nodes_[goal].bytes / whole_ * world_;
    out.seconds = nodes_[goal].seconds;
    out.peak = nodes_[goal].peak / whole_;
    int chain[planned_nodes]{};
    int length = 0;
    for (int i = goal; i > 0; i = nodes_[i].parent) chain[length++] = i;
    while (length > 0) {
      const node& n = nodes_[chain[--length]];
      planned_step step{n.kind, n.axes, n.from_dim, n.to_dim, false, n.state};
      for (unsigned a = 0; a < p_.axes; ++a)
        if (n.axes >> a & 1u)
          step.other_op =
              (is_partial(n.state, a) ? n.state.role(a) : nodes_[n.parent].state.role(a)) == planned_other_partial;
      out.steps.push_back(step);
    }
    return out;
  }

  static constexpr int max_work = 600;  // keeps the compilers' limits of constant evaluation far away
  plan_problem p_;
  double world_ = 1, whole_ = 1, fastest_ = 1, limit_ = 0;
  node nodes_[planned_nodes];
  int buckets_[64]{};
  int count_ = 0, work_ = 0, goal_ = -1;
};

constexpr planned_path cheapest_path(const plan_problem& p) {
  plan_search search(p);
  return search.run();
}

// One search per problem, however many pairs of layouts come down to it.
template <plan_problem Problem>
inline constexpr planned_path solved_path = cheapest_path(Problem);

}  // namespace detail
}  // namespace heddle::inline v0
