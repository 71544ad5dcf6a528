// heddle/schedule/table.hpp: action tables: a list for each pipeline rank, and stages.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/policy.hpp>
#include <heddle/schedule/action.hpp>
#include <heddle/schedule/microbatches.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::schedule {

/// What a table is beyond its lists: how many copies of the model run through it, and whether it trains.
/// With `chains` = c the stages form c pipelines of S / c stages, the stages of the first before those of the second;
/// each is a replica of the whole model and runs its part of the microbatches: chain k those from k m / c on to
/// (k + 1) m / c (Chimera, DualPipe: c = 2). Forward-only tables (inference) have no backwards.
struct table_form {
  int chains = 1;
  bool forward_only = false;
  friend constexpr bool operator==(const table_form&, const table_form&) = default;
};

/// Where a stage does not take part in a microbatch's way; see `action_table::next`.
inline constexpr int not_on_path = -2;

/// An action table, not owned: what validators, passes, printers, simulators and executors take.
/// The actions of all ranks lie one rank after the other; rank r's list is [offsets[r], offsets[r + 1]).
class table_view {
 public:
  constexpr table_view() = default;
  constexpr table_view(std::span<const action> actions, std::span<const int> offsets,
                       std::span<const int> rank_of_stage, int microbatches, table_form form = {},
                       std::span<const int> next = {}, std::span<const int> previous = {}) noexcept
      : actions_(actions.data()),
        offsets_(offsets.data()),
        rank_of_stage_(rank_of_stage.data()),
        next_(next.empty() ? nullptr : next.data()),
        previous_(previous.empty() ? nullptr : previous.data()),
        ranks_(offsets.empty() ? 0 : static_cast<int>(offsets.size()) - 1),
        stages_(static_cast<int>(rank_of_stage.size())),
        microbatches_(microbatches),
        form_(form),
        has_next_(!next.empty()),
        has_previous_(!previous.empty()),
        chain_stages_(form.chains == 1                           ? stages_
                      : form.chains > 0 && stages_ > form.chains ? stages_ / form.chains
                                                                 : 1),
        lists_fit_(offsets.empty() ? actions.empty() : offsets.back() == static_cast<std::int64_t>(actions.size())),
        paths_fit_((next.empty() && previous.empty()) || (next.size() == cells() && previous.size() == cells())) {}

  constexpr int ranks() const noexcept { return ranks_; }
  constexpr int stages() const noexcept { return stages_; }
  constexpr int microbatches() const noexcept { return microbatches_; }
  constexpr table_form form() const noexcept { return form_; }
  constexpr int chains() const noexcept { return form_.chains; }
  constexpr bool forward_only() const noexcept { return form_.forward_only; }
  /// Whether microbatches have ways of their own through the stages; see `action_table::next`.
  constexpr bool has_paths() const noexcept { return has_next_; }
  /// Whether the lists of all ranks together are all the actions; no others may be read.
  constexpr bool lists_fit() const noexcept { return lists_fit_; }
  /// Whether `next` and `previous` are both absent or both of stages times microbatches; no others may be read.
  constexpr bool paths_fit() const noexcept { return paths_fit_; }
  constexpr std::span<const int> next_table() const noexcept { return {next_, has_next_ ? cells() : 0}; }
  constexpr std::span<const int> previous_table() const noexcept { return {previous_, has_previous_ ? cells() : 0}; }

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
  /// The chain a stage belongs to.
  constexpr int chain_of(int stage) const noexcept { return form_.chains == 1 ? 0 : stage / chain_stages_; }
  /// The part of the model a stage is: stages of different chains with the same part are replicas of each other.
  constexpr int part_of(int stage) const noexcept { return form_.chains == 1 ? stage : stage % chain_stages_; }
  /// Parts of the model: stages of one chain.
  constexpr int parts() const noexcept { return chain_stages_; }
  /// The first microbatch of a chain; `first_microbatch(chains())` is m.
  constexpr int first_microbatch(int chain) const noexcept {
    return static_cast<int>(std::int64_t{chain} * microbatches_ / form_.chains);
  }
  /// Whether this stage has work for this microbatch.
  constexpr bool handles(int stage, int microbatch) const noexcept {
    if (has_next_) return next_[stage * microbatches_ + microbatch] != not_on_path;
    if (form_.chains == 1) return true;
    const int chain = chain_of(stage);
    return microbatch >= first_microbatch(chain) && microbatch < first_microbatch(chain + 1);
  }
  /// How many microbatches a stage has work for.
  constexpr int microbatches_of(int stage) const noexcept {
    if (!has_next_) {
      const int chain = chain_of(stage);
      return form_.chains == 1 ? microbatches_ : first_microbatch(chain + 1) - first_microbatch(chain);
    }
    int n = 0;
    for (int i = 0; i < microbatches_; ++i) n += handles(stage, i) ? 1 : 0;
    return n;
  }
  /// The stage that consumes this stage's output of a microbatch, or -1. Both must be in range.
  constexpr int next(int stage, int microbatch) const noexcept {
    if (has_next_) return next_[stage * microbatches_ + microbatch];
    return part_of(stage) + 1 < chain_stages_ ? stage + 1 : -1;
  }
  /// The stage that produces this stage's input of a microbatch, or -1.
  constexpr int previous(int stage, int microbatch) const noexcept {
    if (has_previous_) return previous_[stage * microbatches_ + microbatch];
    return part_of(stage) > 0 ? stage - 1 : -1;
  }

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
    if (a.ranks_ != b.ranks_ || a.microbatches_ != b.microbatches_ || !(a.form_ == b.form_)) return false;
    if (!same(a.next_table(), b.next_table()) || !same(a.previous_table(), b.previous_table())) return false;
    for (int r = 0; r < a.ranks_; ++r)
      if (!same(a.list(r), b.list(r))) return false;
    return same(a.rank_of_stage(), b.rank_of_stage());
  }

 private:
  constexpr std::size_t cells() const noexcept {
    return static_cast<std::size_t>(stages_) * static_cast<std::size_t>(microbatches_);
  }

  const action* actions_ = nullptr;
  const int* offsets_ = nullptr;
  const int* rank_of_stage_ = nullptr;
  const int* next_ = nullptr;
  const int* previous_ = nullptr;
  int ranks_ = 0;
  int stages_ = 0;
  int microbatches_ = 0;
  table_form form_{};
  // Not told by null pointers: g++ with -fsanitize=undefined takes no comparison of an address with null for a constant.
  bool has_next_ = false;
  bool has_previous_ = false;
  int chain_stages_ = 0;
  bool lists_fit_ = true;
  bool paths_fit_ = true;
};

namespace detail {
// `next` and `previous` of a static table, nothing where it has none.
template <std::size_t Cells>
struct static_ways {
  std::array<int, Cells> next{};
  std::array<int, Cells> previous{};
};
template <>
struct static_ways<0> {};
}  // namespace detail

/// An action table of exactly known size: a constexpr object is read-only data. `Cells`: 0, or stages times microbatches
/// where microbatches have ways of their own.
template <std::size_t Actions, std::size_t Ranks, std::size_t Stages, std::size_t Cells = 0>
struct static_action_table {
  std::array<action, Actions> actions{};
  std::array<int, Ranks + 1> offsets{};
  std::array<int, Stages> rank_of_stage{};
  int microbatches = 0;
  table_form form{};
  [[no_unique_address]] detail::static_ways<Cells> ways{};

  /// A table of as many actions as given, none yet, and all else as here.
  template <std::size_t N>
  constexpr static_action_table<N, Ranks, Stages, Cells> with_actions() const noexcept {
    static_action_table<N, Ranks, Stages, Cells> out{};
    out.rank_of_stage = rank_of_stage;
    out.microbatches = microbatches;
    out.form = form;
    out.ways = ways;
    return out;
  }
  constexpr table_view view() const noexcept {
    if constexpr (Cells > 0)
      return {actions, offsets, rank_of_stage, microbatches, form, ways.next, ways.previous};
    else
      return {actions, offsets, rank_of_stage, microbatches, form};
  }
  constexpr operator table_view() const noexcept { return view(); }
};

/// An action table whose size is known at run time. `next` and `previous` are empty where every microbatch of a chain
/// goes through all its stages in order. Otherwise `next[s * m + i]` is the stage that microbatch i goes to after stage
/// s: -1 behind its last one, `not_on_path` where it does not come to stage s; `previous` is the way back.
struct action_table {
  std::vector<action> actions;
  std::vector<int> offsets;
  std::vector<int> rank_of_stage;
  int microbatches = 0;
  table_form form{};
  std::vector<int> next{};
  std::vector<int> previous{};

  constexpr table_view view() const noexcept {
    return {actions, offsets, rank_of_stage, microbatches, form, next, previous};
  }
  constexpr operator table_view() const noexcept { return view(); }
};

/// The lists of all ranks, one rank after the other; rank r's is [offsets[r], offsets[r + 1]). Peers may be left out.
struct rank_lists {
  std::vector<action> actions;
  std::vector<int> offsets;
};

namespace detail {
// By pointers: a container's own iterators would instantiate all of its members for them.
template <class T>
constexpr void assign(std::vector<T>& to, std::span<const T> from) {
  to.assign(from.data(), from.data() + from.size());
}
}  // namespace detail

/// An empty table (no actions, offsets zero) of the same ranks, stages, microbatches, form and paths.
constexpr action_table like(table_view t) {
  action_table out;
  out.offsets.assign(static_cast<std::size_t>(t.ranks()) + 1, 0);
  detail::assign(out.rank_of_stage, t.rank_of_stage());
  out.microbatches = t.microbatches();
  out.form = t.form();
  detail::assign(out.next, t.next_table());
  detail::assign(out.previous, t.previous_table());
  return out;
}

/// A table of one's own, of what is not owned.
constexpr action_table copy(table_view t) {
  action_table out = like(t);
  detail::assign(out.actions, t.actions());
  for (int r = 0; r <= t.ranks(); ++r) out.offsets[static_cast<std::size_t>(r)] = t.offset(r);
  return out;
}

namespace detail {

// Pairs of a stage and a microbatch, and ranks, beyond which a table is refused: long before numbers of actions leave
// int.
inline constexpr std::int64_t most_cells = std::int64_t{1} << 24;
inline constexpr int most_ranks = 1 << 16;

// Stages of a map, or the largest int: more are refused before anything is counted with them.
constexpr int stage_count(std::int64_t per_rank, int ranks) noexcept {
  const std::int64_t n = per_rank * ranks;
  constexpr int most = (std::numeric_limits<int>::max)();
  return n < most ? static_cast<int>(n) : most;
}

// Generators write into a sink, so that counting, filling an array and growing a vector are one piece of code.
struct counting_sink {
  std::size_t count = 0;
  constexpr void operator()(action_kind, int, int, bool = false) noexcept { ++count; }
};
struct array_sink {
  action* next;
  constexpr void operator()(action_kind kind, int stage, int microbatch, bool overlaps_next = false) noexcept {
    next->kind = kind;
    next->stage = stage;
    next->microbatch = microbatch;
    next->overlaps_next = overlaps_next;
    ++next;
  }
};

// Writes no further than there is room, and counts what would have been written.
struct bounded_sink {
  array_sink to;
  std::size_t room;
  std::size_t count = 0;
  constexpr void operator()(action_kind kind, int stage, int microbatch, bool overlaps_next = false) noexcept {
    if (count++ < room) to(kind, stage, microbatch, overlaps_next);
  }
};

template <class When>
concept finds_all_lists = requires(const When when, int ranks) {
  { when.lists(ranks) } -> std::same_as<rank_lists>;
};

template <class When>
constexpr table_form form_of(const When& when) {
  if constexpr (requires { when.form(); })
    return when.form();
  else
    return {};
}

template <class When>
constexpr bool fits(const When& when, int ranks) {
  if constexpr (requires { when.fits(ranks); })
    return when.fits(ranks);
  else
    return true;
}

// The ranks that a schedule has lists for, where it has them for no other number; else 0.
template <class When>
constexpr int ranks_with_lists(const When& when) {
  if constexpr (requires { When::ranks_of_text; })
    return When::ranks_of_text;
  else if constexpr (requires { when.table().ranks(); })
    return when.table().ranks();
  else
    return 0;
}

// The message for a schedule that does not fit. `could(when, microbatches, ranks)`, or none: what other numbers it can run.
HEDDLE_INLINE std::string misfit_text(const std::string& name, int microbatches, int ranks, const void* when,
                                      bool (*could)(const void*, int, int));

template <class When>
[[noreturn]] void throw_misfit(const When& when, int ranks) {
  std::string name;
  if constexpr (requires { name += when.name(); }) name += when.name();
  bool (*could)(const void*, int, int) = nullptr;
  if constexpr (requires { when.fits_with(1, 1); })
    could = [](const void* w, int m, int r) { return static_cast<const When*>(w)->fits_with(m, r); };
  throw schedule_error(misfit_text(name, when.microbatch_count(), ranks, &when, could));
}

// A base of schedules whose number of microbatches only the run knows.
struct run_time_schedule {
  using kind = schedule_kind;
  static constexpr bool is_static = false;
};

}  // namespace detail

/// A schedule: a policy that writes each pipeline rank's list of computations. It has
/// - `is_static`: whether its number of microbatches is known to the compiler (it is then default-constructible);
/// - `microbatch_count()`, `stages(ranks)`, `rank_of(stage, ranks)`;
/// - `generate(rank, ranks, sink)`: calls `sink(kind, stage, microbatch)` for each action of `rank`, in order, with a
///   fourth argument `true` for one that overlaps the next; or `lists(ranks)`: `rank_lists`, for a schedule that finds the
///   lists of all ranks together, which is asked where there are both;
/// - optionally `form()`: a `table_form`, for a schedule with several chains or without backwards;
/// - optionally `next(stage, microbatch)` and `previous`, where microbatches have ways of their own, see `action_table`;
///   with `has_paths()` false they are not asked;
/// - optionally `name()`, for messages;
/// - optionally `fits(ranks)`: whether it can run this number of microbatches on this number of ranks, and
///   `fits_with(microbatches, ranks)`: whether it could run others, for messages that name them;
/// - optionally `action_count(ranks)`, where it is known how many actions all ranks have.
template <class S>
concept schedule_policy = policy<S> && std::same_as<typename S::kind, schedule_kind> &&
                          requires(const S s, int n, detail::counting_sink& sink) {
                            { S::is_static } -> std::convertible_to<bool>;
                            { s.microbatch_count() } -> std::same_as<int>;
                            { s.stages(n) } -> std::same_as<int>;
                            { s.rank_of(n, n) } -> std::same_as<int>;
                            requires detail::finds_all_lists<S> || requires { s.generate(n, n, sink); };
                          };

namespace detail {

template <class When>
constexpr std::size_t count_actions(const When& when, int ranks) {
  if constexpr (requires { when.action_count(ranks); }) {
    return static_cast<std::size_t>(when.action_count(ranks));
  } else if constexpr (finds_all_lists<When>) {
    return when.lists(ranks).actions.size();
  } else {
    counting_sink sink;
    for (int r = 0; r < ranks; ++r) when.generate(r, ranks, sink);
    return sink.count;
  }
}

// The stage on the other side of a transfer, or -1.
constexpr int other_stage(const action& a, const table_view& table) noexcept {
  return a.kind == action_kind::send_forward || a.kind == action_kind::recv_backward
             ? table.next(a.stage, a.microbatch)
             : table.previous(a.stage, a.microbatch);
}

// The peer of a transfer follows from the stage map; -1 where there is none.
constexpr int peer_of(const action& a, const table_view& table) noexcept {
  if (!is_transfer(a.kind) || a.stage < 0 || a.stage >= table.stages() || a.microbatch < 0 ||
      a.microbatch >= table.microbatches())
    return -1;
  const int other = other_stage(a, table);
  return other < 0 || other >= table.stages() ? -1 : table.rank_of(other);
}

// The lists of all ranks, of a schedule of either sort.
template <class When>
constexpr rank_lists lists_of(const When& when, int ranks) {
  if constexpr (finds_all_lists<When>) {
    return when.lists(ranks);
  } else {
    rank_lists all;
    all.actions.assign(count_actions(when, ranks), action{});
    all.offsets.assign(static_cast<std::size_t>(ranks) + 1, 0);
    bounded_sink sink{{all.actions.data()}, all.actions.size()};
    for (int r = 0; r < ranks; ++r) {
      when.generate(r, ranks, sink);
      all.offsets[static_cast<std::size_t>(r) + 1] = static_cast<int>(sink.count);
    }
    if (sink.count != sink.room)
      throw schedule_error("heddle: a schedule writes " + std::to_string(sink.count) +
                           " actions, but its action_count says " + std::to_string(sink.room));
    return all;
  }
}

template <class When>
concept may_have_paths = requires(const When when) { when.next(0, 0), when.previous(0, 0); };

// Entries of `next`: none where all microbatches go one way.
template <class When>
constexpr std::size_t path_cells(const When& when, int stages) {
  if constexpr (!may_have_paths<When>)
    return 0;
  else if constexpr (requires { when.has_paths(); })
    return when.has_paths() ? static_cast<std::size_t>(stages) * static_cast<std::size_t>(when.microbatch_count()) : 0;
  else
    return static_cast<std::size_t>(stages) * static_cast<std::size_t>(when.microbatch_count());
}

// What a table has besides its lists; and, once it has those, the peers of its transfers.
template <class When, class Table>
constexpr void describe_table(const When& when, int ranks, Table& table) {
  table.microbatches = when.microbatch_count();
  table.form = form_of(when);
  for (std::size_t s = 0; s < table.rank_of_stage.size(); ++s)
    table.rank_of_stage[s] = when.rank_of(static_cast<int>(s), ranks);
  if constexpr (may_have_paths<When>) {
    const std::size_t cells = path_cells(when, static_cast<int>(table.rank_of_stage.size()));
    const auto fill = [&](auto& next, auto& previous) {
      const auto m = static_cast<std::size_t>(table.microbatches);
      for (std::size_t k = 0; k < cells; ++k) {
        next[k] = when.next(static_cast<int>(k / m), static_cast<int>(k % m));
        previous[k] = when.previous(static_cast<int>(k / m), static_cast<int>(k % m));
      }
    };
    if constexpr (requires { table.ways.next; }) {
      fill(table.ways.next, table.ways.previous);
    } else if constexpr (requires { table.next.assign(cells, 0); }) {
      table.next.assign(cells, 0);
      table.previous.assign(cells, 0);
      fill(table.next, table.previous);
    }
  }
  const table_view view = table.view();
  action* const begin = table.actions.data();
  for (action *a = begin, *end = begin + table.actions.size(); a != end; ++a) a->peer = peer_of(*a, view);
}

template <class When, int Ranks>
constexpr auto static_table() {
  constexpr When when{};
  static_action_table<count_actions(when, Ranks), static_cast<std::size_t>(Ranks),
                      static_cast<std::size_t>(when.stages(Ranks)), path_cells(when, when.stages(Ranks))>
      table{};
  if constexpr (finds_all_lists<When>) {
    const rank_lists all = when.lists(Ranks);
    const action* from = all.actions.data();
    for (action *to = table.actions.data(), *end = to + all.actions.size(); to != end; ++to, ++from) *to = *from;
    for (int r = 0; r <= Ranks; ++r) table.offsets[static_cast<std::size_t>(r)] = all.offsets.data()[r];
  } else {
    array_sink sink{table.actions.data()};
    for (int r = 0; r < Ranks; ++r) {
      when.generate(r, Ranks, sink);
      table.offsets[static_cast<std::size_t>(r) + 1] = static_cast<int>(sink.next - table.actions.data());
    }
  }
  describe_table(when, Ranks, table);
  return table;
}

}  // namespace detail

/// The table of a schedule on `ranks` pipeline ranks, computations only (see `lower` for the transfers).
/// Errors: `schedule_error` if there is no rank, the schedule does not fit this number of ranks or has another number of
/// actions than its `action_count` says, or the table would be absurdly large.
template <schedule_policy When>
constexpr action_table make_table(const When& when, int ranks) {
  if (ranks < 1)
    throw schedule_error("heddle: a schedule needs at least one pipeline rank, got " + std::to_string(ranks));
  if (ranks > detail::most_ranks)
    throw schedule_error("heddle: a schedule on " + std::to_string(ranks) + " pipeline ranks is too large");
  if (!detail::fits(when, ranks)) {
    if (const int lists = detail::ranks_with_lists(when); lists > 0)
      throw schedule_error("heddle: the schedule has lists for " + std::to_string(lists) +
                           " pipeline ranks, but there are " + std::to_string(ranks) + "; write one list for each rank");
    detail::throw_misfit(when, ranks);
  }
  if (std::int64_t{when.stages(ranks)} * when.microbatch_count() > detail::most_cells)
    throw schedule_error("heddle: a schedule of " + std::to_string(when.stages(ranks)) + " stages and " +
                         std::to_string(when.microbatch_count()) + " microbatches is too large");
  rank_lists all = detail::lists_of(when, ranks);
  action_table table;
  table.actions = std::move(all.actions);
  table.offsets = std::move(all.offsets);
  table.rank_of_stage.assign(static_cast<std::size_t>(when.stages(ranks)), 0);
  detail::describe_table(when, ranks, table);
  return table;
}

template <schedule_policy When>
  requires(When::is_static)
constexpr action_table make_table(int ranks) {
  return make_table(When{}, ranks);
}

/// The table of a static schedule as a constexpr object of exact size.
template <schedule_policy When, int Ranks>
  requires(When::is_static && Ranks > 0)
inline constexpr auto table_of = detail::static_table<When, Ranks>();

/// The transfer that meets a transfer: the receive of a send, the send of a receive.
constexpr action counterpart(const action& a, const table_view& table) noexcept {
  const action_kind kind = a.kind == action_kind::send_forward    ? action_kind::recv_forward
                           : a.kind == action_kind::recv_forward  ? action_kind::send_forward
                           : a.kind == action_kind::send_backward ? action_kind::recv_backward
                                                                  : action_kind::send_backward;
  return {kind, detail::other_stage(a, table), a.microbatch, table.rank_of(a.stage)};
}

/// The largest number of microbatches whose activations `rank` holds at the same time. Counted from the table: a
/// forward takes a place, a backward (or the W of a split one) frees it, in an overlapped pair when both have
/// ended. With `stage`, only those of that stage.
/// Forward-only tables keep none. Units: activations of one stage and one microbatch.
constexpr int peak_live(table_view table, int rank, int stage = -1) {
  if (table.forward_only()) return 0;
  int live = 0;
  int peak = 0;
  int ended = 0;  // frees its place once the pair has ended
  for (const action& a : table.list(rank)) {
    if (stage < 0 || a.stage == stage) {
      if (a.kind == action_kind::forward) peak = ++live > peak ? live : peak;
      if (a.kind == action_kind::backward || a.kind == action_kind::backward_weight) ++ended;
    }
    if (a.overlaps_next) continue;
    live -= ended;
    ended = 0;
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
      const int other = a.kind == action_kind::forward ? table.next(a.stage, a.microbatch)
                        : a.kind == action_kind::backward || a.kind == action_kind::backward_input
                            ? table.previous(a.stage, a.microbatch)
                            : -1;
      n += other >= 0 && table.rank_of(other) != table.rank_of(a.stage) ? 1 : 0;
    }
  }
  return n;
}

}  // namespace heddle::inline v0::schedule

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/schedule/impl/table.hpp>
#endif
