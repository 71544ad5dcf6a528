// tests/train/tables.hpp: the action tables that runs are made with, by name: those of the library and some of a user's.
#pragma once

#include <heddle/plan/improve_schedule.hpp>
#include <heddle/schedule/generate/automatic.hpp>
#include <heddle/schedule/lower/lower.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/lower/passes.hpp>
#include <heddle/schedule/stage_map.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/schedule/text/derive.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace train_test {

namespace sc = heddle::schedule;

/// All forwards, then all backwards, on any map: stage by stage in the order of the model, so every map can run it.
/// `Split`: the backwards of the input first, then those of the weights, in the order of the microbatches.
template <class Map, bool Split>
struct all_forward_first : sc::staged<heddle::microbatches<>, Map> {
  using sc::staged<heddle::microbatches<>, Map>::staged;
  template <class Sink>
  constexpr void generate(int rank, int ranks, Sink& emit) const {
    const int parts = Map::stages(ranks) / Map::chains, m = this->microbatch_count();
    const auto each = [&](int part, auto&& f) {
      for (int chain = 0; chain < Map::chains; ++chain)
        if (const int s = chain * parts + part; Map::rank_of(s, ranks) == rank)
          for (int i = chain * m / Map::chains; i < (chain + 1) * m / Map::chains; ++i) f(s, i);
    };
    for (int x = 0; x < parts; ++x) each(x, [&](int s, int i) { emit(sc::action_kind::forward, s, i); });
    for (int x = parts; x-- > 0;)
      each(x, [&](int s, int i) { emit(Split ? sc::action_kind::backward_input : sc::action_kind::backward, s, i); });
    if (Split)
      for (int x = 0; x < parts; ++x) each(x, [&](int s, int i) { emit(sc::action_kind::backward_weight, s, i); });
  }
};

/// Two replicas one rank apart: the head is on a rank with an embedding in one of them, and alone in the other.
struct one_rank_apart {
  static constexpr int chains = 2;
  static constexpr int stages(int ranks) noexcept { return 2 * ranks; }
  static constexpr int rank_of(int stage, int ranks) noexcept { return stage < ranks ? stage : (stage + 1) % ranks; }
};

/// Planned for times that are not equal, with room for three quarters of what ZB-V keeps.
struct planned_on_v : sc::staged<heddle::microbatches<>, sc::v_shape> {
  using sc::staged<heddle::microbatches<>, sc::v_shape>::staged;
  sc::rank_lists lists(int ranks) const {
    const std::vector<sc::stage_cost> costs(2 * static_cast<std::size_t>(ranks), {1, 1.5, 0.75});
    return sc::automatic{microbatch_count(), sc::v_shape{}, costs, 0.1, 1.5 * ranks + 1}.lists(ranks);
  }
};

/// What a search makes of one microbatch after the other, derived by passes.
struct searched_on_v : sc::staged<heddle::microbatches<>, sc::v_shape> {
  using sc::staged<heddle::microbatches<>, sc::v_shape>::staged;
  sc::rank_lists lists(int ranks) const {
    const std::vector<sc::stage_cost> costs(2 * static_cast<std::size_t>(ranks), {1, 1.5, 0.75});
    const auto start =
        sc::derive("breadth-first | on_map v | in_rounds 1 | split_backward | limit_live 2", ranks, microbatch_count());
    auto found = heddle::plan::improve_schedule(start, costs, 0.1, 2 * ranks, {.seconds = 1e9, .trials = 20000});
    return {std::move(found.table.actions), std::move(found.table.offsets)};
  }
};

/// Calls `f` with the schedule of a name. Errors: `schedule_error` for another name.
template <class F>
void with_schedule(std::string_view name, int m, F&& f) {
  if (name == "v shape") return f(all_forward_first<sc::v_shape, false>{m});
  if (name == "two waves") return f(all_forward_first<sc::wave<2>, true>{m});
  if (name == "bidirectional") return f(all_forward_first<sc::bidirectional, false>{m});
  if (name == "bidirectional, split") return f(all_forward_first<sc::bidirectional, true>{m});
  if (name == "one rank apart") return f(all_forward_first<one_rank_apart, false>{m});
  if (name == "planned V") return f(planned_on_v{m});
  if (name == "searched V") return f(searched_on_v{m});
  f(sc::named(name, m));
}

/// Whether the schedule can run so many microbatches on so many pipeline ranks.
inline bool has_table(std::string_view name, int ranks, int m) {
  bool yes = false;
  with_schedule(name, m, [&](const auto& when) { yes = sc::detail::fits(when, ranks); });
  return yes;
}

/// The schedule's table; with ", OPTIM" behind the name lowered, each stage's step behind its last weight gradient.
/// Errors: `schedule_error`.
inline sc::action_table table_named(std::string_view name, int ranks, int m) {
  constexpr std::string_view stepping = ", OPTIM";
  const bool steps = name.size() > stepping.size() && name.substr(name.size() - stepping.size()) == stepping;
  if (steps) name.remove_suffix(stepping.size());
  sc::action_table table;
  with_schedule(name, m, [&](const auto& when) { table = sc::make_table(when, ranks); });
  return steps ? sc::passes::optimizer{.post_validation = true}(sc::lower(table)) : table;
}

}  // namespace train_test
