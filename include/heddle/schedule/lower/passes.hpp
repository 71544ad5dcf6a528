// heddle/schedule/lower/passes.hpp: lowering passes, each from a table to a table.
#pragma once

#include <heddle/schedule/lower/lower.hpp>
#include <heddle/schedule/constexpr_scratch.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/core/text.hpp>

#include <concepts>
#include <cstddef>
#include <string>
#include <vector>

namespace heddle::inline v0::schedule {

/// A pass: callable with a table, returns another. A value; a default-constructible one also works for static tables.
template <class P>
concept lowering_pass = requires(const P pass, table_view table) {
  { pass(table) } -> std::same_as<action_table>;
};

/// For passes that leave some activations as they are: callable with stage and microbatch.
template <class W>
concept activation_choice = requires(const W which, int n) {
  { which(n, n) } -> std::same_as<bool>;
};

/// Chooses all activations.
struct all_activations {
  constexpr bool operator()(int, int) const noexcept { return true; }
};

namespace detail {

// How many entries stand together: two where a pair does.
constexpr int entries_at(const table_view& t, int k, int end) noexcept {
  return t[k].overlaps_next && k + 1 < end ? 2 : 1;
}

// Copies a table and lets `visit(out, k, entries)` append to each group of entries [k, k + entries) what belongs before
// it, itself, and what belongs behind it; `finish(out, rank)` closes a rank's list.
template <class Visit, class Finish>
constexpr action_table rewritten(const table_view& t, Visit&& visit, Finish&& finish) {
  action_table out = like(t);
  out.actions.reserve(2 * t.actions().size());  // compilers count the steps of growing
  for (int r = 0; r < t.ranks(); ++r) {
    const int end = t.offset(r + 1);
    for (int k = t.offset(r); k < end;) {
      const int entries = entries_at(t, k, end);
      visit(out.actions, k, entries);
      k += entries;
    }
    finish(out.actions, r);
    out.offsets[static_cast<std::size_t>(r) + 1] = static_cast<int>(out.actions.size());
  }
  return out;
}
constexpr void copy_entries(std::vector<action>& out, const table_view& t, int k, int entries) {
  for (int i = k; i < k + entries; ++i) out.push_back(t[i]);
}

// The lists and the stage map of a table in one of exactly known size.
template <class Static>
constexpr Static filled(Static out, const action_table& from) {
  const action* source = from.actions.data();
  for (action *to = out.actions.data(), *end = to + out.actions.size(); to != end; ++to, ++source) *to = *source;
  for (std::size_t r = 0; r < out.offsets.size(); ++r) out.offsets[r] = from.offsets[r];
  for (std::size_t s = 0; s < out.rank_of_stage.size(); ++s) out.rank_of_stage[s] = from.rank_of_stage.data()[s];
  return out;
}

constexpr void refuse_twice(const table_view& t, action_kind kind) {
  if (!t.has(kind)) return;
  throw schedule_error(text_of({"heddle: the table to lower has ", name(kind), " already"}));
}

}  // namespace detail

namespace passes {

/// I directly followed by W of the same stage and microbatch becomes B. Where the input gradient goes to another rank
/// it stays as it is, as that rank need not wait for W, unless `across_ranks`.
struct merge_backward {
  bool across_ranks = false;

  constexpr action_table operator()(table_view t) const {
    int skip = -1;
    return detail::rewritten(
        t,
        [&](std::vector<action>& out, int k, int entries) {
          if (k == skip) return;
          const bool last = k + 1 >= static_cast<int>(t.actions().size());
          if (entries == 1 && !last && t[k].kind == action_kind::backward_input && !t[k + 1].overlaps_next &&
              t[k + 1] == action{action_kind::backward_weight, t[k].stage, t[k].microbatch} &&
              (across_ranks || detail::send_after(t[k], t).stage < 0)) {
            out.push_back({action_kind::backward, t[k].stage, t[k].microbatch});
            skip = k + 1;
          } else {
            detail::copy_entries(out, t, k, entries);
          }
        },
        [](auto&, int) {});
  }
};

/// Sends and receives between stages on different ranks, as `lower` places them.
struct place_transfers {
  constexpr action_table operator()(table_view t) const {
    return lower(t, lowering{.merge_backward = false, .place_transfers = true, .reduce_gradients = false});
  }
};

/// REDUCE_GRAD of a stage behind its last B or W and the sends that follow it.
struct reduce_gradients {
  constexpr action_table operator()(table_view t) const {
    detail::refuse_twice(t, action_kind::reduce_gradient);
    const detail::scratch<int> left(t.stages());
    const detail::scratch<int> due(t.stages() + 1);
    int waiting = 0;  // reductions that wait until the sends are behind them
    for (int s = 0; s < t.stages(); ++s) left[s] = t.forward_only() ? -1 : t.microbatches_of(s);
    const auto place_due = [&](std::vector<action>& out) {
      for (int i = 0; i < waiting; ++i) out.push_back({action_kind::reduce_gradient, due[i], -1});
      waiting = 0;
    };
    // Its gradient of zeros is reduced at the end, or before its step.
    const auto has_none = [&](int s) { return left[s] == 0 && t.microbatches_of(s) == 0; };
    return detail::rewritten(
        t,
        [&](std::vector<action>& out, int k, int entries) {
          if (!is_send(t[k].kind)) place_due(out);
          if (t[k].kind == action_kind::optimizer_step && has_none(t[k].stage)) {
            out.push_back({action_kind::reduce_gradient, t[k].stage, -1});
            left[t[k].stage] = -1;
          }
          detail::copy_entries(out, t, k, entries);
          for (int i = k; i < k + entries; ++i)
            if ((t[i].kind == action_kind::backward || t[i].kind == action_kind::backward_weight) &&
                --left[t[i].stage] == 0)
              due[waiting++] = t[i].stage;
        },
        [&](std::vector<action>& out, int rank) {
          place_due(out);
          for (int s = 0; s < t.stages(); ++s)
            if (t.rank_of(s) == rank && has_none(s)) out.push_back({action_kind::reduce_gradient, s, -1});
        });
  }
};

/// RECOMPUTE before the first backward part (B or I) of the chosen activations: once also where the backward is split;
/// W uses what I has kept.
template <activation_choice Which = all_activations>
struct recompute {
  Which which{};

  constexpr action_table operator()(table_view t) const {
    detail::refuse_twice(t, action_kind::recompute);
    return detail::rewritten(
        t,
        [&](std::vector<action>& out, int k, int entries) {
          for (int i = k; i < k + entries; ++i)
            if ((t[i].kind == action_kind::backward || t[i].kind == action_kind::backward_input) &&
                which(t[i].stage, t[i].microbatch))
              out.push_back({action_kind::recompute, t[i].stage, t[i].microbatch});
          detail::copy_entries(out, t, k, entries);
        },
        [](auto&, int) {});
  }
};

/// OFFLOAD of the chosen activations behind their forward and its sends, RELOAD `ahead` computations before they are
/// needed, in the order in which they are. Activations stay where nothing would be computed between the two.
/// Errors: `schedule_error` if `ahead` is less than 1.
template <activation_choice Which = all_activations>
struct offload {
  int ahead = 2;
  Which which{};

  constexpr action_table operator()(table_view t) const {
    detail::refuse_twice(t, action_kind::offload);
    if (ahead < 1)
      throw schedule_error("heddle: passes::offload: activations are reloaded at least one computation ahead, not " +
                           std::to_string(ahead));
    const int m = t.microbatches();
    const int n = static_cast<int>(t.actions().size());
    const detail::scratch<int> forward(t.stages() * m);  // number among the rank's computations, from 1
    const detail::scratch<int> computed(n + 1);          // entry of the k-th computation of this rank
    const detail::scratch<bool> stored(t.stages() * m);
    const detail::scratch<int> first(n + 1);  // entries before which a cell is reloaded: a list of cells for each
    const detail::scratch<int> next(t.stages() * m);
    const detail::scratch<bool> needed(t.stages() * m);
    for (int r = 0; r < t.ranks(); ++r) {
      int count = 0;
      for (int k = t.offset(r); k < t.offset(r + 1); ++k) {
        const action& a = t[k];
        if (is_per_stage(a.kind)) continue;
        const int cell = a.stage * m + a.microbatch;
        if (is_compute(a.kind)) computed[++count] = k;
        if (a.kind == action_kind::forward) {
          forward[cell] = count;
          continue;
        }
        const bool reads = a.kind == action_kind::recompute || a.kind == action_kind::backward ||
                           a.kind == action_kind::backward_input;
        if (!reads || needed[cell] || !which(a.stage, a.microbatch)) continue;
        needed[cell] = true;
        const int at = is_compute(a.kind) ? count : count + 1;  // RECOMPUTE belongs to what follows
        const int behind = forward[cell] + (t[computed[forward[cell]]].overlaps_next ? 2 : 1);
        if (at - ahead <= behind) continue;
        int entry = computed[at - ahead];
        if (t[entry - 1].overlaps_next) --entry;
        if (entry <= computed[behind]) continue;
        stored[cell] = true;
        // Behind those that are needed before.
        int* link = &first[entry];
        while (*link != 0) link = &next[*link - 1];
        *link = cell + 1;
      }
    }
    const detail::scratch<int> due(t.stages() * m + 1);
    int waiting = 0;
    const auto place_due = [&](std::vector<action>& out) {
      for (int i = 0; i < waiting; ++i) out.push_back({action_kind::offload, due[i] / m, due[i] % m});
      waiting = 0;
    };
    return detail::rewritten(
        t,
        [&](std::vector<action>& out, int k, int entries) {
          if (!is_send(t[k].kind)) place_due(out);
          for (int cell = first[k]; cell != 0; cell = next[cell - 1])
            out.push_back({action_kind::reload, (cell - 1) / m, (cell - 1) % m});
          detail::copy_entries(out, t, k, entries);
          for (int i = k; i < k + entries; ++i)
            if (t[i].kind == action_kind::forward && stored[t[i].stage * m + t[i].microbatch])
              due[waiting++] = t[i].stage * m + t[i].microbatch;
        },
        [&](std::vector<action>& out, int) { place_due(out); });
  }
};

/// UNSHARD and RESHARD around the computations that use a stage's weights: the `resident` stages that a rank uses next
/// are gathered, before the first of them is used; others are dropped, and each as soon as it is not used any more.
/// Errors: `schedule_error` if `resident` is less than 1, or less than the two stages of an overlapped pair.
struct unshard {
  int resident = 3;

  constexpr action_table operator()(table_view t) const {
    detail::refuse_twice(t, action_kind::unshard);
    if (resident < 1)
      throw schedule_error("heddle: passes::unshard: at least one stage is resident, not " + std::to_string(resident));
    const int n = static_cast<int>(t.actions().size());
    const int never = n;
    const detail::scratch<int> next_use(n + 1);  // entry that uses the same stage's weights next
    const detail::scratch<int> use(t.stages());  // next use of each stage
    const detail::scratch<bool> gathered(t.stages());
    const detail::scratch<int> own(t.stages());  // stages rank by rank
    const detail::scratch<int> first(t.ranks() + 1);
    for (int r = 0, count = 0; r < t.ranks(); ++r) {
      for (int s = 0; s < t.stages(); ++s)
        if (t.rank_of(s) == r) own[count++] = s;
      first[r + 1] = count;
    }
    // The stage of a rank that is used next behind entry `from`, -1 if there is none.
    const auto next_used = [&](int rank, int from) {
      int next = -1;
      for (int k = first[rank]; k < first[rank + 1]; ++k) {
        const int s = own[k];
        if (use[s] > from && use[s] != never && (next < 0 || use[s] < use[next])) next = s;
      }
      return next;
    };
    for (int s = 0; s < t.stages(); ++s) use[s] = never;
    for (int k = n - 1; k >= 0; --k) {
      if (!uses_weights(t[k])) continue;
      next_use[k] = use[t[k].stage];
      use[t[k].stage] = k;
    }
    return detail::rewritten(
        t,
        [&](std::vector<action>& out, int k, int entries) {
          bool used = false;
          for (int i = k; i < k + entries; ++i) used = used || uses_weights(t[i]);
          if (used) {
            const int rank = t.rank_of(t[k].stage);
            if (entries == 2 && resident < 2 && t[k].stage != t[k + 1].stage && uses_weights(t[k]) &&
                uses_weights(t[k + 1]))
              throw schedule_error(
                  "heddle: passes::unshard: the two stages of an overlapped pair are used at once, but only one is "
                  "to be resident; let `resident` be 2 or more");
            int last = -1;  // the use of the last that is to be resident
            for (int kept = 0, s = 0; kept < resident && (s = next_used(rank, last)) >= 0; ++kept) last = use[s];
            for (int i = first[rank]; i < first[rank + 1]; ++i)
              if (gathered[own[i]] && use[own[i]] > last) {
                out.push_back({action_kind::reshard, own[i], -1});
                gathered[own[i]] = false;
              }
            // In the order of their use.
            for (int from = -1; from < last;) {
              const int s = next_used(rank, from);
              from = use[s];
              if (!gathered[s]) out.push_back({action_kind::unshard, s, -1});
              gathered[s] = true;
            }
          }
          detail::copy_entries(out, t, k, entries);
          for (int i = k; i < k + entries; ++i)
            if (uses_weights(t[i])) use[t[i].stage] = next_use[i];
          for (int i = k; i < k + entries; ++i)
            if (uses_weights(t[i]) && use[t[i].stage] == never && gathered[t[i].stage]) {
              out.push_back({action_kind::reshard, t[i].stage, -1});
              gathered[t[i].stage] = false;
            }
        },
        [](auto&, int) {});
  }

 private:
  static constexpr bool uses_weights(const action& a) noexcept {
    return a.kind == action_kind::forward || a.kind == action_kind::backward || a.kind == action_kind::backward_input ||
           a.kind == action_kind::recompute;
  }
};

/// OPTIM of each stage: at the end of the list, where the gradient norm of all stages can be known; or, with
/// `post_validation`, behind the stage's REDUCE_GRAD (its last B or W, where the table has no reductions): each stage
/// steps without waiting for the norm, and the step is taken back if it should have been clipped.
/// Source: Qi et al. 2023, arXiv:2401.10241, section 4.
struct optimizer {
  bool post_validation = false;

  constexpr action_table operator()(table_view t) const {
    detail::refuse_twice(t, action_kind::optimizer_step);
    const bool reduced = t.has(action_kind::reduce_gradient);
    const detail::scratch<int> left(t.stages());  // microbatches whose gradients are to come
    const detail::scratch<bool> due(t.stages());
    const detail::scratch<bool> gathered(t.stages());  // then the step waits for RESHARD
    for (int s = 0; s < t.stages(); ++s) left[s] = t.microbatches_of(s);
    const auto place_due = [&](std::vector<action>& out, int rank) {
      for (int s = 0; s < t.stages(); ++s)
        if (due[s] && !gathered[s] && t.rank_of(s) == rank) {
          out.push_back({action_kind::optimizer_step, s, -1});
          due[s] = false;
        }
    };
    return detail::rewritten(
        t,
        [&](std::vector<action>& out, int k, int entries) {
          if (post_validation && !is_send(t[k].kind)) place_due(out, t.rank_of(t[k].stage));
          detail::copy_entries(out, t, k, entries);
          for (int i = k; i < k + entries; ++i) {
            const action& a = t[i];
            if (a.kind == action_kind::unshard || a.kind == action_kind::reshard)
              gathered[a.stage] = a.kind == action_kind::unshard;
            const bool adds = a.kind == action_kind::backward || a.kind == action_kind::backward_weight;
            if (reduced ? a.kind == action_kind::reduce_gradient : adds && --left[a.stage] == 0) due[a.stage] = true;
          }
        },
        [&](std::vector<action>& out, int rank) {
          for (int s = 0; s < t.stages() && !t.forward_only(); ++s)
            if (!reduced && t.rank_of(s) == rank && t.microbatches_of(s) == 0) due[s] = true;
          place_due(out, rank);
        });
  }
};

}  // namespace passes

/// Runs passes one after the other: `lower(table, passes::recompute{}, passes::place_transfers{}, ...)`. The usual
/// order: merge_backward, recompute, offload, unshard, place_transfers, reduce_gradients, optimizer.
/// Errors: `schedule_error` if the table lists what does not exist, cannot be executed in order, or has already what a
/// pass places.
template <lowering_pass First, lowering_pass... Rest>
constexpr action_table lower(table_view table, const First& first, const Rest&... rest) {
  detail::refuse_unknown(table);
  if constexpr (sizeof...(Rest) == 0)
    return first(table);
  else
    return lower(first(table).view(), rest...);
}

/// The table of a static schedule after these passes, as a constexpr object of exact size.
template <schedule_policy When, int Ranks, lowering_pass... Passes>
  requires(When::is_static && Ranks > 0)
inline constexpr auto lowered_by = [] {
  const auto make = [] { return lower(table_of<When, Ranks>.view(), Passes{}...); };
  constexpr std::size_t size = make().actions.size();
  return detail::filled(table_of<When, Ranks>.template with_actions<size>(), make());
}();

/// A table with transfers as it is, any other lowered: what an executor runs.
constexpr action_table lowered_to_run(table_view table) {
  if (table.has_transfers()) return copy(table);
  return lower(table);
}

/// What runs of a static schedule: the table after these passes, and lowered if none of them has placed transfers; with
/// no passes `lowered_of`.
template <schedule_policy When, int Ranks, lowering_pass... Passes>
  requires(When::is_static && Ranks > 0)
inline constexpr auto lowered_to_run_of = [] {
  const auto make = [] {
    const action_table passed = lower(table_of<When, Ranks>.view(), Passes{}...);
    return lowered_to_run(passed);
  };
  constexpr std::size_t size = make().actions.size();
  return detail::filled(table_of<When, Ranks>.template with_actions<size>(), make());
}();
template <schedule_policy When, int Ranks>
inline constexpr const auto& lowered_to_run_of<When, Ranks> = lowered_of<When, Ranks>;

}  // namespace heddle::inline v0::schedule
