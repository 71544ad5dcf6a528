// tests/schedule/schedules.hpp: tables of every schedule, one as a user would write it, and a naive lowering.
#pragma once

#include <heddle/schedule/generate/breadth_first.hpp>
#include <heddle/schedule/generate/gpipe.hpp>
#include <heddle/schedule/generate/inference.hpp>
#include <heddle/schedule/generate/interleaved.hpp>
#include <heddle/schedule/lower/lower.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/schedule/generate/zb_h1.hpp>
#include <heddle/schedule/generate/zb_h2.hpp>
#include <heddle/schedule/generate/zb_v.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace schedules {

namespace hd = heddle;
namespace sc = heddle::schedule;
using kind = sc::action_kind;

template <hd::microbatches_like M>
using zb_h1 = sc::zb_h1<M>;
template <hd::microbatches_like M>
using zb_v = sc::zb_v<M>;

/// Interleaved 1F1B as a user would write it, from arXiv:2104.04473: stage s lives on rank s mod p. Runs only where p
/// divides m.
template <int Chunks, hd::microbatches_like M>
struct interleaved : sc::one_stage_per_rank<M> {
  using sc::one_stage_per_rank<M>::one_stage_per_rank;
  static constexpr int stages(int ranks) { return Chunks * ranks; }
  static constexpr int rank_of(int stage, int ranks) { return stage % ranks; }
  constexpr bool fits(int ranks) const { return this->microbatch_count() % ranks == 0; }
  template <class Sink>
  constexpr void generate(int rank, int ranks, Sink& emit) const {
    const int total = this->microbatch_count() * Chunks;
    std::array<int, Chunks> forwards{}, backwards{};
    const auto forward = [&](int k) {
      const int c = k / ranks % Chunks;
      emit(kind::forward, c * ranks + rank, forwards[static_cast<std::size_t>(c)]++);
    };
    const auto backward = [&](int k) {
      const int c = Chunks - 1 - k / ranks % Chunks;
      emit(kind::backward, c * ranks + rank, backwards[static_cast<std::size_t>(c)]++);
    };
    const int warm_up = (std::min)((Chunks - 1) * ranks + 2 * (ranks - 1 - rank), total);
    int f = 0, b = 0;
    while (f < warm_up) forward(f++);
    while (f < total) {
      forward(f++);
      backward(b++);
    }
    while (b < total) backward(b++);
  }
};

/// Sends right behind their producer, receives right before their consumer: what one would write by hand.
inline sc::action_table naive(sc::table_view t) {
  sc::action_table out;
  out.rank_of_stage.assign(t.rank_of_stage().begin(), t.rank_of_stage().end());
  out.microbatches = t.microbatches();
  out.offsets = {0};
  for (int r = 0; r < t.ranks(); ++r) {
    for (const sc::action& a : t.list(r)) {
      const bool up = a.kind == kind::forward;
      const bool down = a.kind == kind::backward || a.kind == kind::backward_input;
      const int from = up ? t.previous(a.stage, a.microbatch) : down ? t.next(a.stage, a.microbatch) : -1;
      const int to = up ? t.next(a.stage, a.microbatch) : down ? t.previous(a.stage, a.microbatch) : -1;
      if (from >= 0 && t.rank_of(from) != r)
        out.actions.push_back({up ? kind::recv_forward : kind::recv_backward, a.stage, a.microbatch, t.rank_of(from)});
      out.actions.push_back(a);
      if (to >= 0 && t.rank_of(to) != r)
        out.actions.push_back({up ? kind::send_forward : kind::send_backward, a.stage, a.microbatch, t.rank_of(to)});
    }
    out.offsets.push_back(static_cast<int>(out.actions.size()));
  }
  return out;
}

/// Every kind of schedule these tests know, on `ranks` ranks with `m` microbatches, with its name.
struct named_table {
  std::string name;
  sc::action_table table;
};
inline std::vector<named_table> all_tables(int ranks, int m) {
  using any = hd::microbatches<>;
  std::vector<named_table> tables;
  const auto add = [&](std::string name, const auto& when) {
    if (sc::detail::fits(when, ranks)) tables.push_back({name, sc::make_table(when, ranks)});
  };
  add("gpipe", sc::gpipe<>{m});
  add("1f1b", sc::one_f_one_b<>{m});
  add("zb_h1", sc::zb_h1<>{m});
  add("zb_h1 v=2", sc::zb_h1<any, 2>{m});
  add("zb_h2", sc::zb_h2<>{m});
  add("interleaved v=2", sc::interleaved<>{m});
  add("interleaved v=3", sc::interleaved<any, 3>{m});
  add("breadth_first v=2", sc::breadth_first<>{m});
  add("zb_v", sc::zb_v<>{m});
  return tables;
}

}  // namespace schedules
