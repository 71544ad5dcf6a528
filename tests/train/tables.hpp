// tests/train/tables.hpp: the action tables that runs are made with, by name: the schedules of the library and some of a
// user's own, on every kind of map.
#pragma once

#include "schedule/schedules.hpp"

#include <heddle/schedule/named.hpp>
#include <heddle/schedule/stage_map.hpp>
#include <heddle/schedule/table.hpp>

#include <string>
#include <string_view>

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

/// The table of a schedule on so many pipeline ranks. Errors: `schedule_error` for another name.
inline sc::action_table table_named(std::string_view name, int ranks, int m) {
  using any = heddle::microbatches<>;
  if (name == "zb_h1") return sc::make_table(schedules::zb_h1<any>{m}, ranks);
  if (name == "interleaved v=2") return sc::make_table(schedules::interleaved<2, any>{m}, ranks);
  if (name == "interleaved v=3") return sc::make_table(schedules::interleaved<3, any>{m}, ranks);
  if (name == "zb_v") return sc::make_table(schedules::zb_v<any>{m}, ranks);
  if (name == "v shape") return sc::make_table(all_forward_first<sc::v_shape, false>{m}, ranks);
  if (name == "two waves") return sc::make_table(all_forward_first<sc::wave<2>, true>{m}, ranks);
  if (name == "bidirectional") return sc::make_table(all_forward_first<sc::bidirectional, false>{m}, ranks);
  if (name == "bidirectional, split") return sc::make_table(all_forward_first<sc::bidirectional, true>{m}, ranks);
  return sc::make_table(sc::named(name, m), ranks);
}

}  // namespace train_test
