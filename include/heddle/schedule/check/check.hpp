// heddle/schedule/check/check.hpp: schedules that are wrong do not compile.
#pragma once

#include <heddle/core/type_list.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/lower/passes.hpp>
#include <heddle/schedule/check/validate.hpp>

#include <type_traits>
#include <utility>

namespace heddle::inline v0::schedule {

/// The pipeline ranks of a mesh type: its extent along `pp`, 1 without that axis, `dynamic` if known only at start-up.
template <mesh_like Mesh>
inline constexpr int pipeline_ranks = [] {
  if constexpr (Mesh::template has<pp>)
    return Mesh::template axis_of<pp>::fixed_size;
  else
    return 1;
}();

namespace detail {
// Compilers limit the steps of one constant expression: a large table is checked in several.
template <class When, int Ranks>
struct table_pieces {
  static constexpr table_view table = table_of<When, Ranks>;
  static constexpr report shape = check_shape(table);
  static constexpr table_uses uses = uses_of(table);
};
template <class When, int Ranks, class... Passes>
struct lowered_pieces {
  static constexpr table_view table = lowered_to_run_of<When, Ranks, Passes...>;
  static constexpr report shape = check_shape(table);
  static constexpr table_uses uses = uses_of(table);
};
template <class Pieces, int Rank>
inline constexpr report list_report = list_check(Pieces::table, Pieces::uses).run(Rank);
template <class Pieces>
inline constexpr report messages_report = check_messages(Pieces::table);

template <class Pieces, int... Rank>
constexpr report lists_report(Pieces, std::integer_sequence<int, Rank...>) {
  if constexpr (!Pieces::shape.ok()) {
    return Pieces::shape;
  } else {
    report first{};
    ((first = graver(first, list_report<Pieces, Rank>)), ...);
    return first;
  }
}

template <class When, int Ranks>
inline constexpr report structure_report_of = [] {
  report found{};
  if constexpr (!fits(When{}, Ranks))
    found.what = problem::microbatch_count;
  else
    found = lists_report(table_pieces<When, Ranks>{}, std::make_integer_sequence<int, Ranks>{});
  return found;
}();
// Messages have one order where a table comes to its end although transfers block: else this tells whether they do.
template <class Pieces>
constexpr report messages_or(const report& execution) {
  if constexpr (Pieces::uses.transfers) {
    constexpr report found = messages_report<Pieces>;
    if (!found.ok()) return found;
  }
  return execution;
}

template <class When, int Ranks, class... Passes>
inline constexpr report lowered_structure_report_of =
    lists_report(lowered_pieces<When, Ranks, Passes...>{}, std::make_integer_sequence<int, Ranks>{});
}  // namespace detail

/// The first problem of a static schedule's table, computations only. A constexpr object.
template <schedule_policy When, int Ranks>
inline constexpr report report_of = [] {
  if constexpr (!detail::structure_report_of<When, Ranks>.ok())
    return detail::structure_report_of<When, Ranks>;
  else if constexpr (!detail::messages_or<detail::table_pieces<When, Ranks>>({}).ok())
    return detail::messages_or<detail::table_pieces<When, Ranks>>({});
  else
    return detail::check_execution(table_of<When, Ranks>, transfers::buffered);
}();

/// The first problem of a static schedule's lowered table where sends and receives block. A constexpr object.
template <schedule_policy When, int Ranks, lowering_pass... Passes>
inline constexpr report lowered_report_of = [] {
  if constexpr (!report_of<When, Ranks>.ok()) {
    return report_of<When, Ranks>;
  } else if constexpr (!detail::lowered_structure_report_of<When, Ranks, Passes...>.ok()) {
    return detail::lowered_structure_report_of<When, Ranks, Passes...>;
  } else {
    constexpr report found = detail::check_execution(lowered_to_run_of<When, Ranks, Passes...>, transfers::rendezvous);
    if constexpr (found.ok())
      return found;
    else
      return detail::messages_or<detail::lowered_pieces<When, Ranks, Passes...>>(found);
  }
}();

namespace detail {
template <class When, class Mesh>
constexpr bool known_to_the_compiler() {
  static_assert(
      When::is_static && pipeline_ranks<Mesh> != dynamic,
      "heddle: a schedule can be checked by the compiler if its microbatches and the pp extent of the mesh are "
      "constants; use schedule::require_table(schedule::make_table(when, ranks)) at run time");
  return When::is_static && pipeline_ranks<Mesh> != dynamic;
}
}  // namespace detail

/// Whether the schedule is complete and in order on this mesh.
template <schedule_policy When, mesh_like Mesh>
inline constexpr bool valid = [] {
  if constexpr (detail::known_to_the_compiler<When, Mesh>())
    return report_of<When, pipeline_ranks<Mesh>>.ok();
  else
    return false;
}();

/// Whether the lowered schedule also finishes on this mesh where every send waits for its receive.
template <schedule_policy When, mesh_like Mesh, lowering_pass... Passes>
inline constexpr bool deadlock_free = [] {
  if constexpr (detail::known_to_the_compiler<When, Mesh>())
    return lowered_report_of<When, pipeline_ranks<Mesh>, Passes...>.ok();
  else
    return false;
}();

/// Carries the first problem of a schedule into the compiler's message, in words: `at::rank<0>, at::position<3>, ...`;
/// `at::needs` has the action that is missing, expected or waited for, and its rank.
template <problem What, class... Where>
struct finding {
  static constexpr bool none = What == problem::none;
};

namespace detail {
// The words for a place: `type_list`s joined, of which those are empty that do not apply.
template <class... Lists>
struct words;
template <class... Ts>
struct words<type_list<Ts...>> {
  using list = type_list<Ts...>;
  using needs = std::conditional_t<sizeof...(Ts) == 0, type_list<>, type_list<at::needs<Ts...>>>;
};
template <class... Ts, class... Us, class... Rest>
struct words<type_list<Ts...>, type_list<Us...>, Rest...> : words<type_list<Ts..., Us...>, Rest...> {};

template <template <int> class Word, int Value>
using word = std::conditional_t<(Value >= 0), type_list<Word<Value>>, type_list<>>;
template <int Rank, int Position, action_kind Kind, int Stage, int Microbatch>
using place_words = words<word<at::rank, Rank>, word<at::position, Position>,
                          std::conditional_t<(Stage >= 0), type_list<at::action<Kind>>, type_list<>>,
                          word<at::stage, Stage>, word<at::microbatch, Microbatch>>;

template <problem What, class List>
struct finding_of;
template <problem What, class... Ts>
struct finding_of<What, type_list<Ts...>> {
  using type = finding<What, Ts...>;
};
template <report R>
using finding_in = typename finding_of<
    R.what,
    typename words<
        typename place_words<R.rank, R.position, R.where.kind, R.where.stage, R.where.microbatch>::list,
        typename place_words<R.other_rank, -1, R.needs.kind, R.needs.stage, R.needs.microbatch>::needs>::list>::type;

// One error per mistake: each check stands only where those before it passed.
template <class When, int Ranks, class... Passes>
consteval bool require_ranks() {
  constexpr report found = report_of<When, Ranks>;
  if constexpr (found.what == problem::microbatch_count && requires { When::ranks_of_text; }) {
    static_assert(finding<found.what, at::ranks<Ranks>, at::ranks<When::ranks_of_text>>::none,
                  "heddle: written<\"...\">: the text has lists for another number of pipeline ranks than the mesh "
                  "has; `finding` names the mesh's, then the text's; write one list for each rank, separated by |");
  } else if constexpr (found.what == problem::microbatch_count) {
    static_assert(
        finding<found.what, at::ranks<Ranks>, at::microbatches<When{}.microbatch_count()>>::none,
        "heddle: the schedule cannot run this number of microbatches on this number of pipeline ranks, which `finding` "
        "names; change one of them");
  } else if constexpr (found.what == problem::not_a_pair || found.what == problem::dependent_pair ||
                       found.what == problem::pair_of_one_gradient) {
    static_assert(
        finding_in<found>::none,
        "heddle: the schedule is not valid: an overlapped pair is two computations that do not need each other and add "
        "to different gradients; `finding` names the problem and where it is; put one behind the other");
  } else if constexpr (!found.ok() && found.what != problem::deadlock) {
    static_assert(
        finding_in<found>::none,
        "heddle: the schedule is not valid: an action is missing, repeated, out of order or on the wrong rank; "
        "`finding` names the problem and where it is");
  } else {
    constexpr report blocked = lowered_report_of<When, Ranks, Passes...>;
    static_assert(finding_in<blocked>::none,
                  "heddle: the schedule deadlocks: ranks wait for each other; `finding` names the first rank that "
                  "waits, at which "
                  "action, and for what; let schedule::lower place the transfers, or reorder");
  }
  return lowered_report_of<When, Ranks, Passes...>.ok();
}
}  // namespace detail

/// Does not compile if the schedule is wrong on this mesh; the message says what, on which rank and at which action.
/// `Passes` are those that lower it, the usual ones if there are none.
template <schedule_policy When, mesh_like Mesh, lowering_pass... Passes>
consteval bool require() {
  // True in any case: a check that fails has said so by itself, once.
  if constexpr (detail::known_to_the_compiler<When, Mesh>())
    (void)detail::require_ranks<When, pipeline_ranks<Mesh>, Passes...>();
  return true;
}

}  // namespace heddle::inline v0::schedule
