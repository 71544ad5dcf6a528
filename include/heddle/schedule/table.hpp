// heddle/schedule/table.hpp: action tables: per pipeline rank the list of what it does, and where each stage lives.
#pragma once

#include <heddle/core/policy.hpp>
#include <heddle/schedule/action.hpp>
#include <heddle/schedule/microbatches.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::schedule {

/// An action table, not owned: what validators, passes, printers, simulators and executors take.
/// The actions of all ranks lie one rank after the other; rank r's list is [offsets[r], offsets[r + 1]).
class table_view {
 public:
  constexpr table_view() = default;
  constexpr table_view(std::span<const action> actions, std::span<const int> offsets,
                       std::span<const int> rank_of_stage, int microbatches) noexcept
      : actions_(actions.data()),
        offsets_(offsets.data()),
        rank_of_stage_(rank_of_stage.data()),
        ranks_(offsets.empty() ? 0 : static_cast<int>(offsets.size()) - 1),
        stages_(static_cast<int>(rank_of_stage.size())),
        microbatches_(microbatches) {}

  constexpr int ranks() const noexcept { return ranks_; }
  constexpr int stages() const noexcept { return stages_; }
  constexpr int microbatches() const noexcept { return microbatches_; }

  /// All actions, rank after rank.
  constexpr std::span<const action> actions() const noexcept {
    return {actions_, static_cast<std::size_t>(ranks_ > 0 ? offsets_[ranks_] : 0)};
  }
  /// The k-th of `actions()`.
  constexpr const action& operator[](int k) const noexcept { return actions_[k]; }
  /// Index in `actions()` of the first action of `rank`; for `rank == ranks()` the number of actions.
  constexpr int offset(int rank) const noexcept { return offsets_[rank]; }
  /// What `rank` does, in order.
  constexpr std::span<const action> list(int rank) const noexcept {
    return {actions_ + offsets_[rank], static_cast<std::size_t>(offsets_[rank + 1] - offsets_[rank])};
  }

  constexpr std::span<const int> rank_of_stage() const noexcept {
    return {rank_of_stage_, static_cast<std::size_t>(stages_)};
  }
  constexpr int rank_of(int stage) const noexcept { return rank_of_stage_[stage]; }
  /// The stage that consumes this stage's output, or -1.
  constexpr int next(int stage) const noexcept { return stage + 1 < stages_ ? stage + 1 : -1; }
  /// The stage that produces this stage's input, or -1.
  constexpr int previous(int stage) const noexcept { return stage - 1; }

  /// Whether some action is of this kind.
  constexpr bool has(action_kind kind) const noexcept {
    for (const action *a = actions_, *end = a + actions().size(); a != end; ++a)
      if (a->kind == kind) return true;
    return false;
  }
  /// Whether communication has been placed: some action is a transfer.
  constexpr bool has_transfers() const noexcept {
    for (const action *a = actions_, *end = a + actions().size(); a != end; ++a)
      if (is_transfer(a->kind)) return true;
    return false;
  }

  friend constexpr bool operator==(const table_view& a, const table_view& b) noexcept {
    const auto same = [](auto x, auto y) {
      if (x.size() != y.size()) return false;
      for (std::size_t i = 0; i < x.size(); ++i)
        if (!(x[i] == y[i])) return false;
      return true;
    };
    if (a.ranks_ != b.ranks_ || a.microbatches_ != b.microbatches_) return false;
    for (int r = 0; r < a.ranks_; ++r)
      if (!same(a.list(r), b.list(r))) return false;
    return same(a.rank_of_stage(), b.rank_of_stage());
  }

 private:
  const action* actions_ = nullptr;
  const int* offsets_ = nullptr;
  const int* rank_of_stage_ = nullptr;
  int ranks_ = 0;
  int stages_ = 0;
  int microbatches_ = 0;
};

/// An action table of exactly known size: a constexpr object is read-only data.
template <std::size_t Actions, std::size_t Ranks, std::size_t Stages>
struct static_action_table {
  std::array<action, Actions> actions{};
  std::array<int, Ranks + 1> offsets{};
  std::array<int, Stages> rank_of_stage{};
  int microbatches = 0;

  constexpr table_view view() const noexcept { return {actions, offsets, rank_of_stage, microbatches}; }
  constexpr operator table_view() const noexcept { return view(); }
};

/// An action table whose size is known at run time.
struct action_table {
  std::vector<action> actions;
  std::vector<int> offsets;
  std::vector<int> rank_of_stage;
  int microbatches = 0;

  constexpr table_view view() const noexcept { return {actions, offsets, rank_of_stage, microbatches}; }
  constexpr operator table_view() const noexcept { return view(); }
};

namespace detail {

// Pairs of a stage and a microbatch beyond which a table is refused: long before numbers of actions leave int.
inline constexpr std::int64_t most_cells = std::int64_t{1} << 24;

// Generators write into a sink, so that counting, filling an array and growing a vector are one piece of code.
struct counting_sink {
  std::size_t count = 0;
  constexpr void operator()(action_kind, int, int) noexcept { ++count; }
};
struct array_sink {
  action* next;
  constexpr void operator()(action_kind kind, int stage, int microbatch) noexcept {
    next->kind = kind;
    next->stage = stage;
    next->microbatch = microbatch;
    ++next;
  }
};

template <class When>
constexpr bool fits(const When& when, int ranks) {
  if constexpr (requires { when.fits(ranks); })
    return when.fits(ranks);
  else
    return true;
}

}  // namespace detail

/// A schedule: a policy that writes each pipeline rank's list of computations. It has
/// - `is_static`: whether its number of microbatches is known to the compiler (it is then default-constructible);
/// - `microbatch_count()`, `stages(ranks)`, `rank_of(stage, ranks)`;
/// - `generate(rank, ranks, sink)`: calls `sink(kind, stage, microbatch)` for each action of `rank`, in order;
/// - optionally `fits(ranks)`: whether it can run this number of microbatches on this number of ranks.
template <class S>
concept schedule_policy = policy<S> && std::same_as<typename S::kind, schedule_kind> &&
                          requires(const S s, int n, detail::counting_sink& sink) {
                            { S::is_static } -> std::convertible_to<bool>;
                            { s.microbatch_count() } -> std::same_as<int>;
                            { s.stages(n) } -> std::same_as<int>;
                            { s.rank_of(n, n) } -> std::same_as<int>;
                            s.generate(n, n, sink);
                          };

namespace detail {

template <class When>
constexpr std::size_t count_actions(const When& when, int rank, int ranks) {
  counting_sink sink;
  when.generate(rank, ranks, sink);
  return sink.count;
}

template <class When>
constexpr std::size_t count_actions(const When& when, int ranks) {
  std::size_t n = 0;
  for (int r = 0; r < ranks; ++r) n += count_actions(when, r, ranks);
  return n;
}

// The peer of a transfer follows from the stage map; -1 where there is none.
constexpr int peer_of(action_kind kind, int stage, std::span<const int> rank_of_stage) noexcept {
  if (!is_transfer(kind)) return -1;
  const bool up = kind == action_kind::send_forward || kind == action_kind::recv_backward;
  const int other = up ? stage + 1 : stage - 1;
  if (other < 0 || other >= static_cast<int>(rank_of_stage.size())) return -1;
  return rank_of_stage[static_cast<std::size_t>(other)];
}

template <class When, class Table>
constexpr void fill_table(const When& when, int ranks, Table& table) {
  table.microbatches = when.microbatch_count();
  for (std::size_t s = 0; s < table.rank_of_stage.size(); ++s)
    table.rank_of_stage[s] = when.rank_of(static_cast<int>(s), ranks);
  action* const begin = table.actions.data();
  array_sink sink{begin};
  for (int r = 0; r < ranks; ++r) {
    when.generate(r, ranks, sink);
    table.offsets[static_cast<std::size_t>(r) + 1] = static_cast<int>(sink.next - begin);
  }
  for (action* a = begin; a != sink.next; ++a) a->peer = peer_of(a->kind, a->stage, table.rank_of_stage);
}

template <class When, int Ranks>
constexpr auto static_table() {
  constexpr When when{};
  static_action_table<count_actions(when, Ranks), static_cast<std::size_t>(Ranks),
                      static_cast<std::size_t>(when.stages(Ranks))>
      table{};
  fill_table(when, Ranks, table);
  return table;
}

}  // namespace detail

/// The table of a schedule on `ranks` pipeline ranks, computations only (see `lower` for the transfers).
/// Errors: `schedule_error` if there is no rank, the schedule does not fit this number of ranks, or the table would be
/// absurdly large.
template <schedule_policy When>
constexpr action_table make_table(const When& when, int ranks) {
  if (ranks < 1)
    throw schedule_error("heddle: a schedule needs at least one pipeline rank, got " + std::to_string(ranks));
  if (!detail::fits(when, ranks))
    throw schedule_error("heddle: the schedule cannot run " + std::to_string(when.microbatch_count()) +
                         " microbatches on " + std::to_string(ranks) + " pipeline ranks; change one of the numbers");
  if (std::int64_t{when.stages(ranks)} * when.microbatch_count() > detail::most_cells)
    throw schedule_error("heddle: a schedule of " + std::to_string(when.stages(ranks)) + " stages and " +
                         std::to_string(when.microbatch_count()) + " microbatches is too large");
  action_table table;
  table.actions.assign(detail::count_actions(when, ranks), action{});
  table.offsets.assign(static_cast<std::size_t>(ranks) + 1, 0);
  table.rank_of_stage.assign(static_cast<std::size_t>(when.stages(ranks)), 0);
  detail::fill_table(when, ranks, table);
  return table;
}

template <schedule_policy When>
  requires(When::is_static)
constexpr action_table make_table(int ranks) {
  return make_table(When{}, ranks);
}

/// The same table as a constexpr object of exact size.
template <schedule_policy When, int Ranks>
  requires(When::is_static && Ranks > 0)
inline constexpr auto table_of = detail::static_table<When, Ranks>();

namespace detail {
// The stage on the other side of a transfer, or -1.
constexpr int other_stage(const action& a, const table_view& table) noexcept {
  return a.kind == action_kind::send_forward || a.kind == action_kind::recv_backward ? table.next(a.stage)
                                                                                     : table.previous(a.stage);
}
}  // namespace detail

/// The transfer that meets a transfer: the receive of a send, the send of a receive.
constexpr action counterpart(const action& a, const table_view& table) noexcept {
  const action_kind kind = a.kind == action_kind::send_forward    ? action_kind::recv_forward
                           : a.kind == action_kind::recv_forward  ? action_kind::send_forward
                           : a.kind == action_kind::send_backward ? action_kind::recv_backward
                                                                  : action_kind::send_backward;
  return {kind, detail::other_stage(a, table), a.microbatch, table.rank_of(a.stage)};
}

/// The largest number of microbatches whose activations `rank` holds at the same time. Counted from the table: a
/// forward takes a place, a backward (or the W of a split one) frees it. With `stage`, only those of that stage.
/// Units: activations of one stage and one microbatch.
constexpr int peak_live(table_view table, int rank, int stage = -1) {
  int live = 0;
  int peak = 0;
  for (const action& a : table.list(rank)) {
    if (stage >= 0 && a.stage != stage) continue;
    if (a.kind == action_kind::forward) peak = ++live > peak ? live : peak;
    if (a.kind == action_kind::backward || a.kind == action_kind::backward_weight) --live;
  }
  return peak;
}

/// How many messages the whole pipeline sends per step: counted where transfers are placed, derived where they are not.
constexpr std::int64_t sends(table_view table) {
  const bool placed = table.has_transfers();
  std::int64_t n = 0;
  for (const action& a : table.actions()) {
    if (placed) {
      n += is_send(a.kind) ? 1 : 0;
    } else {
      const int other = a.kind == action_kind::forward ? table.next(a.stage)
                        : a.kind == action_kind::backward || a.kind == action_kind::backward_input
                            ? table.previous(a.stage)
                            : -1;
      n += other >= 0 && table.rank_of(other) != table.rank_of(a.stage) ? 1 : 0;
    }
  }
  return n;
}

}  // namespace heddle::inline v0::schedule
