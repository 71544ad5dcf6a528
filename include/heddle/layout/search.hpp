// heddle/layout/search.hpp: the search for the cheapest steps between two layouts.
#pragma once

#include <heddle/layout/plan_sizes.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace heddle::inline v0 {

namespace detail {

// The limits of a search: how many layouts it looks at, and its work, counted in steps of clang's constant evaluation,
// roughly. clang allows 1048576 of them for one constant, g++ some three million; a running program has time.
inline constexpr std::size_t planned_nodes = 512, planned_nodes_at_run_time = 16384;
#if defined(__GNUC__) && !defined(__clang__) && !defined(__EDG__)
inline constexpr std::int64_t planned_work = 2'000'000;
#else
inline constexpr std::int64_t planned_work = 800'000;
#endif
inline constexpr std::int64_t planned_work_at_run_time = std::int64_t{1} << 31;

template <std::size_t Nodes>
class plan_search : plan_sizes {
 public:
  // Without bounds it is Dijkstra's search: slower, and the same plans; tests compare.
  constexpr plan_search(const plan_problem& p, std::int64_t most_work, bool with_bounds = true)
      : plan_sizes(p), max_work_(most_work), with_bounds_(with_bounds) {
    for (unsigned a = 0; a < p.axes; ++a)
      if (p.bytes_per_second[a] > fastest_) fastest_ = p.bytes_per_second[a];
  }

  constexpr planned_path run() {
    if (p_.mode == objective_mode::peak) {
      max_work_ /= 2;
      const int goal = solve();
      if (goal < 0) return path(goal);
      const planned_path smallest = path(goal);
      limit_ = nodes_[goal].cost[0];
      p_.mode = objective_mode::bytes;
      const int cheapest = solve();
      return cheapest < 0 && !(p_.from == p_.to) ? smallest_unproven(smallest) : path(cheapest);
    }
    return path(solve());
  }

 private:
  // The search for fewer bytes within the smallest peak came to its end without any way.
  static constexpr planned_path smallest_unproven(planned_path found) {
    found.proven = false;
    return found;
  }

  struct node {
    planned_state state;
    double cost[3];
    double held, bytes, seconds, peak;
    double left;  // lower bounds of the bytes, of the steps and of the latency still to come, and both with what was
    double steps_left, latency_left;
    double least[2];
    int parent, next;  // the node before it on the way, and the next one of its bucket
    step_kind kind;
    unsigned axes;
    int from_dim, to_dim;
    bool done;
  };
  struct move {
    step_kind kind = step_kind::none;
    unsigned axes = 0;
    int from_dim = -1, to_dim = -1;
    unsigned first = 0;  // the axis, if it is one
  };

  constexpr bool is_partial(const planned_state& s, unsigned a) const { return s.role(a) >= planned_partial; }
  // Contributions that are still to be combined, and axes that are still to become partial.
  constexpr bool to_reduce(const planned_state& s, unsigned a) const {
    return is_partial(s, a) && p_.to.role(a) != s.role(a);
  }
  constexpr bool to_spread(const planned_state& s, unsigned a) const {
    return is_partial(p_.to, a) && p_.to.role(a) != s.role(a);
  }
  // A lower bound of the bytes that are still to be sent, per rank on average. Nothing to combine: each rank must get what it
  // lacks. Contributions of u ranks: each element needs u - 1 messages to become one, and one more per further holder; along
  // axes that stay partial each group does so for itself, or several together, which may spare bytes even where nothing else is
  // to be combined.
  constexpr double bytes_left(const planned_state& s) {
    double contributions = 1, spread = 1, spread_and_split = 1, groups = 1, smallest = world_;
    for (unsigned a = 0; a < p_.axes; ++a) {
      if (is_partial(s, a)) {
        const bool stays = s.role(a) == p_.to.role(a);
        (stays ? groups : contributions) *= extent(a);
        if (stays && extent(a) < smallest) smallest = extent(a);
      }
      if (to_spread(s, a)) {
        spread *= extent(a);
        if (s.role(a) == planned_sharded) spread_and_split *= extent(a);
      }
    }
    const double target = local(p_.to), message = whole_ / world_;
    const double further = target / (spread * groups) - 2 * message;
    const double combined = contributions * groups * message + further * (further >= 0        ? 1
                                                                          : contributions > 1 ? groups
                                                                                              : groups / smallest);
    double left = combined;
    if (contributions == 1) {
      left = (target - kept(s, p_.to, true) * spread_and_split) / spread;
      if (groups > 1 && combined < left) left = combined;
    }
    return left > whole_ * 1e-9 ? left : 0;
  }
  // And of the steps: an axis needs one of its own, except that one sum makes several axes replicated. (Or there is an
  // exchange, which counts for more than one step per axis.)
  constexpr double steps_left(const planned_state& s) const {
    double left = 0;
    bool sums = false;
    for (unsigned a = 0; a < p_.axes; ++a) {
      if (s.code(a) == p_.to.code(a)) continue;
      if (is_partial(s, a) && p_.to.role(a) == planned_replicated)
        sums = true;
      else
        left += 1;
    }
    return left + (sums ? 1 : 0);
  }

  // Whether each part of the cut over axis `a` stays where it is, as far as can be told: another policy that gives intervals
  // too has the same ones, and an axis of one rank cuts nothing.
  constexpr bool cut_stays(const planned_state& s, unsigned a) const {
    if (p_.to.role(a) != planned_sharded || p_.to.dim(a) != s.dim(a)) return false;
    if (s.split(a) != p_.to.split(a) && (p_.intervals >> s.split(a) & p_.intervals >> p_.to.split(a) & 1u) == 0)
      return false;
    for (unsigned b = 0; b < p_.axes; ++b) {
      if (b == a || p_.extents[b] == 1) continue;
      const bool here = s.role(b) == planned_sharded && s.dim(b) == s.dim(a) && s.level(b) < s.level(a);
      const bool there =
          p_.to.role(b) == planned_sharded && p_.to.dim(b) == s.dim(a) && p_.to.level(b) < p_.to.level(a);
      if (here != there) return false;
    }
    return true;
  }
  // And of the latency, in seconds. Along an axis whose cut goes or moves some rank needs what only ranks elsewhere on the
  // axis hold, and a sum needs all of them: (extent - 1) messages, whichever step brings them; a sum that all get, twice.
  constexpr double latency_left(const planned_state& s) const {
    double left = 0;
    if (p_.mode != objective_mode::seconds) return left;
    for (unsigned a = 0; a < p_.axes; ++a) {
      if (s.code(a) == p_.to.code(a)) continue;
      const double once = (extent(a) - 1) * p_.seconds_per_message[a];
      if (is_partial(s, a))
        left += p_.to.role(a) == planned_replicated ? 2 * once : once;
      else if (s.role(a) == planned_sharded && !to_spread(s, a) && !cut_stays(s, a))
        left += once;
    }
    return left;
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
    open_[open_count_++] = count_;
    return count_++;
  }
  constexpr void estimate(node& n) const {
    n.least[0] = n.cost[0];
    n.least[1] = n.cost[1];
    if (!with_bounds_) return;
    if (p_.mode == objective_mode::bytes) n.least[0] += n.left;
    if (p_.mode == objective_mode::seconds) n.least[0] += n.latency_left + n.left / whole_ * p_.tensor_bytes / fastest_;
    n.least[1] = n.cost[1] + (p_.mode == objective_mode::bytes ? n.steps_left : n.left);
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

  constexpr int relax(int from, const move& m, const planned_state& next, bool combines = true) {
    work_ += 120 + 20 * static_cast<int>(p_.axes);
    if (work_ > max_work_) return lost(from);
    const double before = nodes_[from].held;
    double together = 1, after = before, bytes = 0;
    if (m.kind != step_kind::all_reduce)
      together = extent(m.first);
    else
      for (unsigned a = 0; a < p_.axes; ++a)
        if (m.axes >> a & 1u) together *= extent(a);
    switch (m.kind) {
      case step_kind::slice:
        after = before / together;
        break;
      case step_kind::pad_with_identity:
        after = before * together;
        break;
      case step_kind::all_gather:
        after = before * together;
        bytes = after - before;
        break;
      case step_kind::reduce_scatter:
        after = before / together;
        bytes = before - after;
        break;
      case step_kind::all_to_all:
        bytes = before - before / together;
        break;
      case step_kind::all_reduce:
        bytes = 2 * (before - before / together);
        break;
      case step_kind::exchange:
        after = local(next);
        bytes =
            next == p_.to && exact_ && !combines ? nodes_[from].left : after - kept(nodes_[from].state, next, false);
        break;
      default:
        break;
    }
    if (goal_ >= 0 && p_.mode == objective_mode::bytes && less(nodes_[goal_].bytes, nodes_[from].bytes + bytes))
      return -1;
    const double peak = before + after;
    if (limit_ > 0 && less(limit_, peak)) return -1;
    const double weight = m.kind == step_kind::exchange ? 32 : 1;
    node n{};
    n.state = next;
    n.held = after;
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
      n.steps_left = nodes_[old].steps_left;
      n.latency_left = nodes_[old].latency_left;
      estimate(n);
      n.next = nodes_[old].next;
      if (nodes_[old].done) open_[open_count_++] = old;
      nodes_[old] = n;
      return old;
    }
    if (count_ == static_cast<int>(Nodes)) return lost(from);
    work_ += 40 + 40 * static_cast<int>(p_.axes);
    n.left = bytes_left(next);
    n.steps_left = steps_left(next);
    n.latency_left = latency_left(next);
    estimate(n);
    if (is_hopeless(n)) return -1;
    if (next == p_.to) goal_ = count_;
    return add(n);
  }
  // Not all ways over the node were followed.
  constexpr int lost(int from) {
    if (nodes_[from].least[0] < lost_) lost_ = nodes_[from].least[0];
    return -1;
  }
  // Whether no way over the node can be better than the one that is known.
  constexpr bool is_hopeless(const node& n) const {
    if (goal_ < 0) return false;
    const node& goal = nodes_[goal_];
    return less(goal.cost[0], n.least[0]) || (!less(n.least[0], goal.cost[0]) && !less(n.least[1], goal.cost[1]));
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
  // Whether there may be further exchanges that are worth it: of three axes and more, one of which becomes partial.
  constexpr bool leaves_out_exchanges() const {
    bool spreads = false;
    for (unsigned a = 0; a < p_.axes; ++a) spreads = spreads || to_spread(p_.from, a);
    return spreads && p_.axes > 2;
  }
  constexpr int exchange_from(int at, unsigned cut) {
    work_ += 20 * static_cast<int>(p_.axes + p_.dims);
    const planned_state s = nodes_[at].state;
    const lists ls = lists_of(s);
    unsigned axes = 0;
    bool combines = false;
    for (unsigned a = 0; a < p_.axes; ++a) {
      if (to_reduce(s, a)) return -1;
      combines = combines || is_partial(s, a);
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
    return relax(at, {step_kind::exchange, axes, -1, -1, 0}, t, combines);
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
    return relax(at, {step_kind::all_reduce, axes, -1, -1, 0}, s);
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
                  split ? static_cast<int>(d) : -1, -1, a},
                 s);
  }

  constexpr void expand(int at) {
    work_ += 40 * static_cast<int>(p_.axes);
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
            relax(at, {kind, 1u << a, split ? static_cast<int>(from) : -1, static_cast<int>(d), a},
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
      relax(at, {step_kind::all_gather, 1u << a, static_cast<int>(d), -1, a}, next);
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
          at = relax(at, {sums ? step_kind::reduce_scatter : step_kind::slice, 1u << a, -1, static_cast<int>(d), a},
                     pushed(s, a, d, lists_of(s).length[d]));
        }
    finish(at);
  }

  constexpr int solve() {
    count_ = 0;
    work_ = 0;
    goal_ = -1;
    open_count_ = 0;
    lost_ = 1e300;
    for (int& first : buckets_) first = -1;
    node start{};
    start.state = p_.from;
    start.held = local(p_.from);
    start.left = bytes_left(p_.from);
    start.steps_left = steps_left(p_.from);
    start.latency_left = latency_left(p_.from);
    estimate(start);
    start.parent = -1;
    add(start);
    if (p_.from == p_.to) return goal_ = 0;
    dive();
    while (open_count_ > 0 && work_ <= max_work_) {
      work_ += 5 * open_count_;
      int best = 0;  // the place in the list of the open node from which the least may be had
      for (int i = 1; i < open_count_; ++i) {
        const node &a = nodes_[open_[i]], &b = nodes_[open_[best]];
        if (a.least[0] <= b.least[0] && (a.least[0] < b.least[0] || a.least[1] < b.least[1])) best = i;
      }
      const int at = open_[best];
      if (at != goal_ && is_hopeless(nodes_[at])) break;
      open_[best] = open_[--open_count_];
      nodes_[at].done = true;
      if (at != goal_) expand(at);
    }
    if (work_ > max_work_)
      for (int i = 0; i < open_count_; ++i) lost(open_[i]);
    proven_ = proven_ && goal_ >= 0 && !less(lost_, nodes_[goal_].cost[0]) &&
              (!leaves_out_exchanges() || !less(nodes_[0].least[0], nodes_[goal_].cost[0]));
    return goal_;
  }

  constexpr planned_path path(int goal) const {
    planned_path out;
    out.proven = goal >= 0 && proven_;
    if (goal < 0) return out;
    out.bytes = nodes_[goal].bytes / whole_ * world_;
    out.seconds = nodes_[goal].seconds;
    out.peak = nodes_[goal].peak / whole_;
    int chain[planned_steps]{};
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

  std::int64_t max_work_;
  bool with_bounds_;
  double fastest_ = 1, limit_ = 0;
  node nodes_[Nodes];
  double lost_ = 0;     // the least that a way may cost which was not followed
  bool proven_ = true;  // whether none of them can be cheaper than what was found
  int open_[Nodes];     // the nodes that are not done
  int open_count_ = 0;
  int buckets_[64]{};
  int count_ = 0, goal_ = -1;
};

// For problems too hard for a compiler's limits.
inline planned_path path_at_run_time(const plan_problem& p) {
  std::vector<plan_search<planned_nodes_at_run_time>> search;  // too large for the stack
  return search.emplace_back(p, planned_work_at_run_time).run();
}

constexpr planned_path cheapest_path(const plan_problem& p) {
  {
    plan_search<planned_nodes> search(p, planned_work);
    const planned_path found = search.run();
    if (found.proven || std::is_constant_evaluated()) return found;
  }
  return path_at_run_time(p);
}

// One search per problem, however many pairs of layouts come down to it.
template <plan_problem Problem>
inline constexpr planned_path solved_path = cheapest_path(Problem);

}  // namespace detail
}  // namespace heddle::inline v0
