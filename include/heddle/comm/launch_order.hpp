// heddle/comm/launch_order.hpp: one order of calls on several communicators against deadlock.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// A call of a rank on one of its groups: the `number`-th call of that group, from 0.
struct launch_call {
  int group = 0;
  int number = 0;
  comm_operation what = comm_operation::barrier;
  int priority = 0;             ///< when an order is planned, higher comes first
  bool after_previous = false;  ///< it needs the result of the rank's call before it
  friend constexpr bool operator==(const launch_call&, const launch_call&) = default;
};

namespace detail {
[[noreturn]] HEDDLE_INLINE void refuse_launch(const char* what, int got, const char* why, int number);
constexpr void expect_launch(const char* what, int got, int below) {
  if (got < 0 || got >= below) refuse_launch(what, got, ": there are ", below);
}
}  // namespace detail

/// Which groups there are, and which calls each rank makes on them, in the order in which it makes them.
/// Errors: `comm_error` for ranks and groups that there are not, and for a rank that is twice in a group.
///
///     hd::launch_program program(4);
///     const int rows = program.group("rows", {0, 1});
///     program.call(0, rows, hd::comm_operation::all_reduce);
class launch_program {
 public:
  constexpr explicit launch_program(int ranks) : by_rank_(static_cast<std::size_t>(ranks < 0 ? 0 : ranks)) {}

  /// A group of ranks; its number. `name` is for messages and must outlive the program.
  constexpr int group(std::string_view name, std::span<const int> members) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      detail::expect_launch("rank", members[i], ranks());
      for (std::size_t k = 0; k < i; ++k)
        if (members[k] == members[i]) detail::refuse_launch("rank", members[i], " is twice in group ", groups());
    }
    groups_.push_back({name, {members.begin(), members.end()}});
    return groups() - 1;
  }
  constexpr int group(std::string_view name, std::initializer_list<int> members) {
    return group(name, std::span<const int>(members.begin(), members.size()));
  }
  /// The next call of a rank.
  constexpr launch_program& call(int rank, int group, comm_operation what, int priority = 0,
                                 bool after_previous = false) {
    detail::expect_launch("rank", rank, ranks());
    detail::expect_launch("group", group, groups());
    auto& calls = by_rank_[static_cast<std::size_t>(rank)];
    int number = 0;
    for (const launch_call& c : calls) number += c.group == group;
    calls.push_back({group, number, what, priority, after_previous});
    return *this;
  }
  /// The next call of every member of a group.
  constexpr launch_program& call_all(int group, comm_operation what, int priority = 0, bool after_previous = false) {
    detail::expect_launch("group", group, groups());
    for (const int r : members(group)) call(r, group, what, priority, after_previous);
    return *this;
  }

  constexpr int ranks() const noexcept { return static_cast<int>(by_rank_.size()); }
  constexpr int groups() const noexcept { return static_cast<int>(groups_.size()); }
  constexpr std::string_view name(int group) const { return groups_[static_cast<std::size_t>(group)].name; }
  constexpr std::span<const int> members(int group) const { return groups_[static_cast<std::size_t>(group)].members; }
  constexpr const std::vector<launch_call>& calls(int rank) const { return by_rank_[static_cast<std::size_t>(rank)]; }

 private:
  struct entry {
    std::string_view name;
    std::vector<int> members;
  };
  std::vector<entry> groups_;
  std::vector<std::vector<launch_call>> by_rank_;
};

/// What is wrong with a program's orders; `ok()` where nothing is. Its names are those of the program.
struct launch_fault {
  enum class kind : unsigned char { none, stranger, count, operation, circle };
  /// Rank `rank` makes one call before another.
  struct crossing {
    int rank = -1;
    launch_call first;
    launch_call then;
    std::string_view first_name{}, then_name{};  ///< their groups
  };
  static constexpr int most = 8;

  kind what = kind::none;
  int group = -1;                  ///< of strangers, counts and operations
  std::string_view name{};         ///< of this group
  int rank = -1, other = -1;       ///< who differs from whom
  int calls = 0, other_calls = 0;  ///< how many calls they make (count); the number of the call (operation)
  std::array<crossing, most>
      crossings;   ///< the circle: each `then` is the next one's `first`; the beginning of long ones
  int length = 0;  ///< of the circle

  constexpr bool ok() const noexcept { return what == kind::none; }
};

namespace detail {

// The calls of all groups as numbers: call n of group g is first[g] + n.
struct launch_nodes {
  std::vector<int> first;
  std::vector<int> priority;
  int count = 0;

  constexpr explicit launch_nodes(const launch_program& program) {
    for (int g = 0; g < program.groups(); ++g) {
      int calls = 0;
      for (const int r : program.members(g)) {
        int mine = 0;
        for (const launch_call& c : program.calls(r)) mine += c.group == g;
        calls = mine > calls ? mine : calls;
      }
      first.push_back(count);
      count += calls;
    }
    priority.assign(static_cast<std::size_t>(count), -2147483647);
    for (int r = 0; r < program.ranks(); ++r)
      for (const launch_call& c : program.calls(r)) {
        int& p = priority[static_cast<std::size_t>(of(c))];
        p = c.priority > p ? c.priority : p;
      }
  }
  constexpr int of(const launch_call& c) const { return first[static_cast<std::size_t>(c.group)] + c.number; }
};

struct launch_edge {
  int to;
  launch_fault::crossing why;
};

// A circle among the calls, as crossings, one per rank that takes part in a row; empty if there is none.
constexpr std::vector<launch_fault::crossing> launch_circle(const std::vector<std::vector<launch_edge>>& edges) {
  const std::size_t n = edges.size();
  std::vector<char> state(n, 0);  // 0 new, 1 on the path, 2 done
  std::vector<std::size_t> next(n, 0);
  std::vector<int> path;
  std::vector<const launch_edge*> taken;
  for (std::size_t start = 0; start < n; ++start) {
    if (state[start] != 0) continue;
    path.assign(1, static_cast<int>(start));
    taken.clear();
    state[start] = 1;
    while (!path.empty()) {
      const auto at = static_cast<std::size_t>(path.back());
      if (next[at] == edges[at].size()) {
        state[at] = 2;
        path.pop_back();
        if (!taken.empty()) taken.pop_back();
        continue;
      }
      const launch_edge& e = edges[at][next[at]++];
      const auto to = static_cast<std::size_t>(e.to);
      if (state[to] == 0) {
        state[to] = 1;
        path.push_back(e.to);
        taken.push_back(&e);
      } else if (state[to] == 1) {
        std::size_t begin = 0;
        while (path[begin] != e.to) ++begin;
        std::vector<launch_fault::crossing> circle;
        for (std::size_t i = begin; i <= taken.size(); ++i) {
          const launch_fault::crossing& c = i < taken.size() ? taken[i]->why : e.why;
          if (!circle.empty() && circle.back().rank == c.rank)
            circle.back().then = c.then;
          else
            circle.push_back(c);
        }
        if (circle.size() > 1 && circle.front().rank == circle.back().rank) {
          circle.front().first = circle.back().first;
          circle.pop_back();
        }
        return circle;
      }
    }
  }
  return {};
}

constexpr launch_fault circle_fault(const std::vector<launch_fault::crossing>& circle, const launch_program& program) {
  launch_fault fault;
  if (circle.empty()) return fault;
  fault.what = launch_fault::kind::circle;
  fault.length = static_cast<int>(circle.size());
  for (std::size_t i = 0; i < circle.size() && i < fault.crossings.size(); ++i) {
    launch_fault::crossing& c = fault.crossings[i];
    c = circle[i];
    c.first_name = program.name(c.first.group);
    c.then_name = program.name(c.then.group);
  }
  return fault;
}

// Who calls groups of others, and members that do not make the same calls.
constexpr launch_fault check_launch_groups(const launch_program& program) {
  launch_fault fault;
  for (int r = 0; r < program.ranks(); ++r)
    for (const launch_call& c : program.calls(r)) {
      bool member = false;
      for (const int m : program.members(c.group)) member = member || m == r;
      if (member) continue;
      fault.what = launch_fault::kind::stranger;
      fault.group = c.group;
      fault.name = program.name(c.group);
      fault.rank = r;
      return fault;
    }
  for (int g = 0; g < program.groups(); ++g) {
    fault.group = g;
    fault.name = program.name(g);
    const auto calls_of = [&](int r) {
      std::vector<comm_operation> calls;
      for (const launch_call& c : program.calls(r))
        if (c.group == g) calls.push_back(c.what);
      return calls;
    };
    const std::span<const int> members = program.members(g);
    if (members.empty()) continue;
    const auto expected = calls_of(members[0]);
    for (const int r : members) {
      const auto got = calls_of(r);
      fault.rank = members[0];
      fault.other = r;
      if (got.size() != expected.size()) {
        fault.what = launch_fault::kind::count;
        fault.calls = static_cast<int>(expected.size());
        fault.other_calls = static_cast<int>(got.size());
        return fault;
      }
      for (std::size_t i = 0; i < got.size(); ++i)
        if (got[i] != expected[i]) {
          fault.what = launch_fault::kind::operation;
          fault.calls = static_cast<int>(i);
          return fault;
        }
    }
  }
  return {};
}

}  // namespace detail

/// Whether the orders in which the ranks make their calls are parts of one order: then no rank waits in a circle, even if
/// every call waits for all members of its group. Otherwise which ranks and groups cross. Works in constant evaluation.
constexpr launch_fault check_launch_order(const launch_program& program) {
  if (const launch_fault fault = detail::check_launch_groups(program); !fault.ok()) return fault;
  const detail::launch_nodes nodes(program);
  std::vector<std::vector<detail::launch_edge>> edges(static_cast<std::size_t>(nodes.count));
  for (int r = 0; r < program.ranks(); ++r) {
    const auto& calls = program.calls(r);
    for (std::size_t i = 1; i < calls.size(); ++i)
      edges[static_cast<std::size_t>(nodes.of(calls[i - 1]))].push_back(
          {nodes.of(calls[i]), {r, calls[i - 1], calls[i]}});
  }
  return detail::circle_fault(detail::launch_circle(edges), program);
}

/// "rank 0 calls tp (call 0) before dp (call 1), ...": what is wrong, for people.
HEDDLE_INLINE std::string to_string(const launch_fault& fault);

/// One order of all calls; each rank's calls in that order are its launch order.
struct launch_plan {
  std::vector<std::vector<launch_call>> by_rank;  ///< as the rank's program has them
  std::vector<launch_call> all;                   ///< with the highest priority that a member gives
  launch_fault fault;                             ///< why there is none

  constexpr bool ok() const noexcept { return fault.ok(); }
  constexpr const std::vector<launch_call>& calls(int rank) const { return by_rank[static_cast<std::size_t>(rank)]; }
};
/// Whether there is an order, and if not, what is wrong.
inline std::string to_string(const launch_plan& plan) {
  return to_string(plan.fault);
}

/// An order in which the ranks can launch their calls as soon as those are submitted, in whatever order that happens. The
/// calls of one group keep their order, a call `after_previous` comes after the call before it in its rank's program;
/// otherwise calls of higher priority come first, then those that the programs have earlier. Works in constant evaluation.
constexpr launch_plan plan_launch_order(const launch_program& program) {
  launch_plan plan;
  plan.fault = detail::check_launch_groups(program);
  if (!plan.ok()) return plan;
  const detail::launch_nodes nodes(program);
  const auto n = static_cast<std::size_t>(nodes.count);
  std::vector<std::vector<detail::launch_edge>> edges(n);
  std::vector<int> waits(n, 0), place(n, 0);
  std::vector<launch_call> call_of(n);
  for (int r = 0; r < program.ranks(); ++r) {
    const auto& calls = program.calls(r);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const auto to = static_cast<std::size_t>(nodes.of(calls[i]));
      call_of[to] = calls[i];
      call_of[to].priority = nodes.priority[to];
      place[to] = static_cast<int>(i) > place[to] ? static_cast<int>(i) : place[to];
      const auto add = [&](const launch_call& before) {
        edges[static_cast<std::size_t>(nodes.of(before))].push_back({static_cast<int>(to), {r, before, calls[i]}});
        ++waits[to];
      };
      if (i > 0 && calls[i].after_previous) add(calls[i - 1]);
      for (std::size_t k = i; k-- > 0;)
        if (calls[k].group == calls[i].group) {
          add(calls[k]);
          break;
        }
    }
  }
  plan.fault = detail::circle_fault(detail::launch_circle(edges), program);
  if (!plan.ok()) return plan;
  std::vector<char> ready(n, 0);
  for (std::size_t i = 0; i < n; ++i) ready[i] = waits[i] == 0;
  for (std::size_t turn = 0; turn < n; ++turn) {
    std::size_t best = n;
    for (std::size_t i = 0; i < n; ++i)
      if (ready[i] && (best == n || nodes.priority[i] > nodes.priority[best] ||
                       (nodes.priority[i] == nodes.priority[best] && place[i] < place[best])))
        best = i;
    ready[best] = 0;
    plan.all.push_back(call_of[best]);
    for (const detail::launch_edge& e : edges[best])
      if (--waits[static_cast<std::size_t>(e.to)] == 0) ready[static_cast<std::size_t>(e.to)] = 1;
  }
  plan.by_rank.resize(static_cast<std::size_t>(program.ranks()));
  for (const launch_call& c : plan.all)
    for (const int r : program.members(c.group))
      for (const launch_call& own : program.calls(r))
        if (own.group == c.group && own.number == c.number) plan.by_rank[static_cast<std::size_t>(r)].push_back(own);
  return plan;
}

/// One rank's launches in the order of a plan: calls are submitted when they are ready and made when their turn has come.
/// Used by the rank's thread only. Errors: `comm_error` when a plan was not possible, when a group is called more often
/// than the plan says, and from `finish` when calls that others wait for were not submitted.
class launch_queue {
 public:
  launch_queue(const launch_program& program, const launch_plan& plan, int rank);

  /// Submits the next call of a group: `call()` is made now, with everything that waited for it, or when its turn comes.
  /// What a call throws comes out of here; the call counts as made, and those that waited for it are made by the next submit
  /// or by `finish`.
  template <class Call>
  void submit(int group, Call call) {
    detail::expect_launch("group", group, static_cast<int>(submitted_.size()));
    const int number = submitted_[static_cast<std::size_t>(group)]++;
    std::size_t at = next_;
    while (at < turns_.size() && (turns_[at].what.group != group || turns_[at].what.number != number)) ++at;
    if (at == turns_.size()) {
      throw comm_error(text_of({"heddle: rank ", rank_, " calls ", names_[static_cast<std::size_t>(group)],
                                " more often than the plan says: call ", number}));
    }
    if (at > next_ || running_) {
      turns_[at].waiting = std::make_unique<stored<Call>>(std::move(call));
    } else {
      running_ = true;  // calls that are submitted by a call wait for the end of it
      const stop guard{*this};
      ++next_;
      call();
    }
    make_waiting();
  }

  /// How many calls have been made.
  int made() const noexcept { return static_cast<int>(next_); }
  /// How many calls have been submitted and wait for their turn.
  int waiting() const noexcept {
    int n = 0;
    for (const turn& t : turns_) n += t.waiting != nullptr;
    return n;
  }
  bool done() const noexcept { return next_ == turns_.size(); }
  /// Checks that all calls have been made.
  void finish();

 private:
  struct job {
    virtual ~job() = default;
    virtual void run() = 0;
  };
  template <class Call>
  struct stored final : job {
    explicit stored(Call call) : call_(std::move(call)) {}
    void run() override { call_(); }
    Call call_;
  };
  struct turn {
    launch_call what;
    std::unique_ptr<job> waiting;
  };
  struct stop {
    launch_queue& queue;
    ~stop() { queue.running_ = false; }
  };

  // What was submitted and whose turn it is.
  void make_waiting();

  int rank_;
  std::vector<turn> turns_;
  std::vector<std::string> names_;
  std::vector<int> submitted_;
  std::size_t next_ = 0;
  bool running_ = false;
};

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/comm/impl/launch_order.hpp>
#endif
