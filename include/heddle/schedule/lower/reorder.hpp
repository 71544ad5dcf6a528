// heddle/schedule/lower/reorder.hpp: passes that reorder computations of schedules.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/schedule/check/validate.hpp>
#include <heddle/schedule/constexpr_scratch.hpp>
#include <heddle/schedule/lower/lower.hpp>
#include <heddle/schedule/lower/passes.hpp>
#include <heddle/schedule/stage_map.hpp>
#include <heddle/schedule/table.hpp>

#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace heddle::inline v0::schedule {

/// An amount that may differ between ranks: callable with a rank and the table.
template <class A>
concept rank_amount = requires(const A amount, int rank, table_view table) {
  { amount(rank, table) } -> std::same_as<int>;
};

/// The same amount on every rank.
struct same_amount {
  int amount = 1;
  constexpr same_amount() = default;
  constexpr same_amount(int n) noexcept : amount(n) {}
  constexpr int operator()(int, const table_view&) const noexcept { return amount; }
};

namespace detail {

[[noreturn]] HEDDLE_INLINE void throw_not_reordered(std::string_view pass, std::string_view why,
                                                    std::string_view found = {});

// These passes come before those that place something, and all but two before computations are paired.
constexpr void require_computations(const table_view& t, std::string_view pass, bool pairs) {
  for (const action *a = t.actions().data(), *end = a + t.actions().size(); a != end; ++a) {
    if (!is_compute(a->kind))
      throw_not_reordered(pass, "the table has " + std::string(name(a->kind)) +
                                    " already; orders are rewritten before anything is placed between computations");
    if (a->overlaps_next && !pairs)
      throw_not_reordered(pass, "the table has the overlapped pair " + to_text(*a) + ", " + to_text(a[1]) +
                                    " already; computations are paired last");
  }
}

constexpr action_table checked_order(action_table t, std::string_view pass) {
  const report found = check_table(t.view(), transfers::asynchronous);
  if (!found.ok()) throw_not_reordered(pass, "what it makes cannot run: ", to_string(found));
  return t;
}

constexpr void close_list(action_table& out, int rank) {
  out.offsets[static_cast<std::size_t>(rank) + 1] = static_cast<int>(out.actions.size());
}

// The first entry from `k` on that is of a kind, or, with `is` false, of another; `end` if there is none.
constexpr int next_of_kind(const table_view& t, int k, int end, action_kind kind, bool is = true) noexcept {
  while (k < end && (t[k].kind == kind) != is) ++k;
  return k;
}

// Executes a table in steps, in each of which a rank runs the head of its list if all that it needs was done before the
// step. Calls `visit(k, entries, ready)` with what runs, for how many entries that covers: `entries`, or more that are
// ready as well.
template <class Visit>
constexpr void in_unit_steps(const table_view& t, std::string_view pass, Visit&& visit) {
  computed state(t);
  const scratch<int> head(t.ranks());
  const scratch<int> taken(t.ranks());
  for (int r = 0; r < t.ranks(); ++r) head[r] = t.offset(r);
  const auto ready = [&](int k) { return state.ready(t[k]); };
  int left = static_cast<int>(t.actions().size());
  while (left > 0) {
    const int before = left;
    for (int r = 0; r < t.ranks(); ++r) {
      const int k = head[r];
      taken[r] = 0;
      if (k == t.offset(r + 1)) continue;
      const int entries = entries_at(t, k, t.offset(r + 1));
      if (ready(k) && (entries == 1 || ready(k + 1))) left -= taken[r] = visit(k, entries, ready);
    }
    if (left == before) throw_not_reordered(pass, "the table cannot run: ", to_string(check_table(t)));
    for (int r = 0; r < t.ranks(); ++r)
      for (int n = taken[r]; n > 0; --n) (void)state.note(t[head[r]++]);
  }
}

}  // namespace detail

/// A table of the same stages on the ranks that `rank_of(stage, ranks)` gives them. Each takes its computations in the
/// order in which the given table runs them with one unit of time for each: an order that can be run.
/// Errors: `schedule_error` if a stage comes to a rank that is not there, for a table that cannot run, for overlapped
/// pairs, transfers or the like.
template <class RankOf>
constexpr action_table on_ranks(table_view t, const RankOf& rank_of) {
  constexpr const char* pass = "on_map";
  detail::require_computations(t, pass, false);
  const int n = static_cast<int>(t.actions().size());
  const detail::scratch<int> order(n + 1);
  int count = 0;
  detail::in_unit_steps(t, pass, [&](int k, int entries, const auto&) {
    order[count++] = k;
    return entries;
  });
  action_table out = like(t);
  int* const map = out.rank_of_stage.data();
  for (int s = 0; s < t.stages(); ++s) {
    map[s] = rank_of(s, t.ranks());
    if (map[s] < 0 || map[s] >= t.ranks())
      detail::throw_not_reordered(pass, "stage " + std::to_string(s) + " is to be on rank " + std::to_string(map[s]) +
                                            " of " + std::to_string(t.ranks()));
  }
  out.actions.reserve(t.actions().size());
  for (int r = 0; r < t.ranks(); ++r) {
    for (int i = 0; i < n; ++i)
      if (map[t[order[i]].stage] == r) out.actions.push_back(t[order[i]]);
    detail::close_list(out, r);
  }
  return out;
}

namespace passes {

/// B becomes I and W behind it; of a pair, I stays in the pair and W stands behind that. Nothing else changes.
/// Errors: `schedule_error` if the table has I already, or transfers or the like.
struct split_backward {
  constexpr action_table operator()(table_view t) const {
    detail::refuse_twice(t, action_kind::backward_input);
    detail::require_computations(t, "split_backward", true);
    return detail::rewritten(
        t,
        [&](std::vector<action>& out, int k, int entries) {
          for (int i = k; i < k + entries; ++i) {
            out.push_back(t[i]);
            if (t[i].kind == action_kind::backward) out.back().kind = action_kind::backward_input;
          }
          for (int i = k; i < k + entries; ++i)
            if (t[i].kind == action_kind::backward)
              out.push_back({action_kind::backward_weight, t[i].stage, t[i].microbatch});
        },
        [](auto&, int) {});
  }
};

/// At most `limit(rank, table)` activations alive on a rank, one of a stage and a microbatch each: a forward begins as
/// soon as there is room for it, otherwise the next backward does. Forwards keep their order, and so do backwards.
/// With p - r, GPipe becomes 1F1B. A forward-only table stays as it is.
/// Errors: `schedule_error` for a limit below 1, or below what a rank needs, with its rank; for overlapped pairs,
/// transfers or the like.
template <rank_amount Limit = same_amount>
struct limit_live {
  Limit limit{};

  constexpr action_table operator()(table_view t) const {
    constexpr const char* pass = "limit_live";
    detail::require_computations(t, pass, false);
    if (t.forward_only()) return copy(t);
    action_table out = like(t);
    out.actions.reserve(t.actions().size());
    const detail::scratch<bool> begun(t.stages() * t.microbatches());
    for (int r = 0; r < t.ranks(); ++r) {
      const int most = limit(r, t);
      const int end = t.offset(r + 1);
      const auto seek = [&](int k, bool forward) {
        return detail::next_of_kind(t, k, end, action_kind::forward, forward);
      };
      int live = 0;
      int next = seek(t.offset(r), true);   // the next forward
      int back = seek(t.offset(r), false);  // the next of the others
      while (next < end || back < end) {
        if (next < end && live < most) {
          begun[t[next].stage * t.microbatches() + t[next].microbatch] = true;
          out.actions.push_back(t[next]);
          ++live;
          next = seek(next + 1, true);
          continue;
        }
        if (back == end || !begun[t[back].stage * t.microbatches() + t[back].microbatch])
          detail::throw_not_reordered(
              pass, "rank " + std::to_string(r) + " cannot run with " + std::to_string(most) + " activations alive: " +
                        (back == end ? "nothing frees one before " + to_text(t[next])
                                     : to_text(t[back]) + " is next, but its forward finds no room"));
        out.actions.push_back(t[back]);
        if (t[back].kind != action_kind::backward_input) --live;
        back = seek(back + 1, false);
      }
      detail::close_list(out, r);
    }
    return detail::checked_order(std::move(out), pass);
  }
};
limit_live(int) -> limit_live<same_amount>;

/// The k-th W of a rank stands behind its I number k + `by(rank, table)`, the last ones at the end: they fill gaps where
/// a rank waits. W keep their order, and none stands before its own I. Activations live until their W, so that a rank
/// holds up to `by` more. With r, 1F1B with split backwards becomes ZB-H1.
/// Errors: `schedule_error` for a negative delay, with its rank; if no backward is split; for overlapped pairs,
/// transfers or the like.
template <rank_amount By = same_amount>
struct delay_weights {
  By by{};

  constexpr action_table operator()(table_view t) const {
    constexpr const char* pass = "delay_weights";
    detail::require_computations(t, pass, false);
    if (!t.forward_only() && !t.has(action_kind::backward_weight))
      detail::throw_not_reordered(pass, "the table has no W; split_backward comes before");
    action_table out = like(t);
    out.actions.reserve(t.actions().size());
    const detail::scratch<bool> has_input(t.stages() * t.microbatches());
    const auto cell = [&](int k) { return t[k].stage * t.microbatches() + t[k].microbatch; };
    for (int r = 0; r < t.ranks(); ++r) {
      const int delay = by(r, t);
      if (delay < 0)
        detail::throw_not_reordered(
            pass, "W are delayed by 0 or more, not by " + std::to_string(delay) + " on rank " + std::to_string(r));
      const int end = t.offset(r + 1);
      const auto seek = [&](int k) { return detail::next_of_kind(t, k, end, action_kind::backward_weight); };
      int weight = seek(t.offset(r));
      int due = -delay;
      for (int k = t.offset(r); k < end; ++k) {
        if (t[k].kind == action_kind::backward_weight) continue;
        out.actions.push_back(t[k]);
        if (t[k].kind != action_kind::backward_input) continue;
        has_input[cell(k)] = true;
        for (++due; due > 0 && weight < end && has_input[cell(weight)]; --due, weight = seek(weight + 1))
          out.actions.push_back(t[weight]);
      }
      for (; weight < end; weight = seek(weight + 1)) out.actions.push_back(t[weight]);
      detail::close_list(out, r);
    }
    return out;
  }
};
delay_weights(int) -> delay_weights<same_amount>;

/// Microbatches go in rounds of `microbatches`, as many as ranks if it is 0: a rank runs its forwards of the first round,
/// of all its stages in the order of before, in the places of its first forwards, and so on; its backwards likewise.
/// Breadth-first becomes GPipe over several stages per rank, in the order of interleaved schedules.
/// Errors: `schedule_error` for a negative number, an order that cannot run, overlapped pairs, transfers or the like.
struct in_rounds {
  int microbatches = 0;

  constexpr action_table operator()(table_view t) const {
    constexpr const char* pass = "in_rounds";
    detail::require_computations(t, pass, false);
    if (microbatches < 0)
      detail::throw_not_reordered(pass,
                                  "a round has 1 or more microbatches, or 0 for as many as there are ranks; not " +
                                      std::to_string(microbatches));
    const int size = microbatches == 0 ? t.ranks() : microbatches;
    action_table out = copy(t);
    for (int r = 0; r < t.ranks(); ++r) {
      const int begin = t.offset(r);
      const int end = t.offset(r + 1);
      for (const bool forward : {true, false}) {
        const auto seek = [&](int k) { return detail::next_of_kind(t, k, end, action_kind::forward, forward); };
        int place = seek(begin);
        for (int round = 0; place < end; ++round)
          for (int k = seek(begin); k < end; k = seek(k + 1)) {
            if ((t[k].microbatch - t.first_microbatch(t.chain_of(t[k].stage))) / size != round) continue;
            out.actions.data()[place] = t[k];
            place = seek(place + 1);
          }
      }
    }
    return detail::checked_order(std::move(out), pass);
  }
};

/// The same stages on the ranks that a stage map gives them, in the order of `on_ranks`.
/// Errors: `schedule_error` if the map has another number of stages or of chains, and those of `on_ranks`.
template <stage_map Map>
struct on_map {
  using map = Map;

  constexpr action_table operator()(table_view t) const {
    if (Map::stages(t.ranks()) != t.stages() || Map::chains != t.chains())
      detail::throw_not_reordered("on_map", "on " + std::to_string(t.ranks()) + " ranks the map has " +
                                                std::to_string(Map::stages(t.ranks())) + " stages in " +
                                                std::to_string(Map::chains) + " chains, the table " +
                                                std::to_string(t.stages()) + " in " + std::to_string(t.chains()));
    return on_ranks(t, [](int stage, int n) { return Map::rank_of(stage, n); });
  }
};

/// A forward next to a B or I becomes an overlapped pair with it where both could begin at once, with one unit of time for
/// each computation: nobody waits longer, and communication of one can hide behind the other. Pairs that are there stay.
/// What a backward in a pair frees is free when both have ended, so that a rank may hold one activation more.
/// Errors: `schedule_error` for a table that cannot run, transfers or the like.
struct pair_neighbours {
  constexpr action_table operator()(table_view t) const {
    constexpr const char* pass = "pair_neighbours";
    detail::require_computations(t, pass, true);
    action_table out = copy(t);
    const detail::scratch<int> end_of(t.stages());  // of the list that runs a stage
    for (int s = 0; s < t.stages(); ++s) end_of[s] = t.offset(t.rank_of(s) + 1);
    const auto goes_back = [](const action& a) {
      return a.kind == action_kind::backward || a.kind == action_kind::backward_input;
    };
    detail::in_unit_steps(t, pass, [&](int k, int entries, const auto& ready) {
      if (entries == 2 || k + 1 == end_of[t[k].stage] || t[k + 1].overlaps_next) return entries;
      const action& a = t[k];
      const action& b = t[k + 1];
      const bool both =
          (a.kind == action_kind::forward && goes_back(b)) || (goes_back(a) && b.kind == action_kind::forward);
      if (!both || !ready(k + 1)) return entries;
      out.actions.data()[k].overlaps_next = true;
      return 2;
    });
    return out;
  }
};

}  // namespace passes

/// A schedule derived from another by passes, one after the other; elsewhere a schedule like any other:
///
///     struct depth { constexpr int operator()(int r, const schedule::table_view& t) const { return t.ranks() - r; } };
///     using mine = schedule::derived<schedule::gpipe<microbatches<8>>, passes::limit_live<depth>>;  // 1F1B
///
/// Errors: those of the schedule and the passes, when its lists are asked for.
template <schedule_policy Base, lowering_pass... Passes>
class derived {
 public:
  using kind = schedule_kind;
  static constexpr bool is_static = Base::is_static;

  constexpr derived()
    requires(is_static)
  = default;
  constexpr explicit derived(Base base, Passes... passes)
    requires(!is_static || sizeof...(Passes) > 0)
      : base_(std::move(base)), passes_(std::move(passes)...) {}

  constexpr int microbatch_count() const { return base_.microbatch_count(); }
  constexpr int stages(int ranks) const { return base_.stages(ranks); }
  constexpr int rank_of(int stage, int ranks) const {
    int rank = base_.rank_of(stage, ranks);
    const auto place = [&]<class Pass>(const Pass&) {
      if constexpr (requires { Pass::map::rank_of(stage, ranks); }) rank = Pass::map::rank_of(stage, ranks);
    };
    std::apply([&](const Passes&... each) { (place(each), ...); }, passes_);
    return rank;
  }
  constexpr table_form form() const { return detail::form_of(base_); }
  constexpr bool fits(int ranks) const { return detail::fits(base_, ranks); }
  constexpr int next(int stage, int microbatch) const
    requires(detail::may_have_paths<Base>)
  {
    return base_.next(stage, microbatch);
  }
  constexpr int previous(int stage, int microbatch) const
    requires(detail::may_have_paths<Base>)
  {
    return base_.previous(stage, microbatch);
  }
  constexpr bool has_paths() const
    requires(requires(const Base base) { base.has_paths(); })
  {
    return base_.has_paths();
  }

  constexpr rank_lists lists(int ranks) const {
    action_table table =
        std::apply([&](const Passes&... each) { return lower(make_table(base_, ranks).view(), each...); }, passes_);
    return {std::move(table.actions), std::move(table.offsets)};
  }

 private:
  Base base_{};
  [[no_unique_address]] std::tuple<Passes...> passes_{};
};

}  // namespace heddle::inline v0::schedule

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/schedule/impl/lower/reorder.hpp>
#endif
