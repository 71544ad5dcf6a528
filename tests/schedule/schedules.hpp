// tests/schedule/schedules.hpp: schedules as a user would write them: split backwards, several stages per rank, V maps.
#pragma once

#include <heddle/schedule/gpipe.hpp>
#include <heddle/schedule/lower.hpp>
#include <heddle/schedule/one_f_one_b.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace schedules {

namespace hd = heddle;
namespace sc = heddle::schedule;
using kind = sc::action_kind;

/// ZB-H1 (arXiv:2401.10241): 1F1B with split backwards, W late. Its lists and times are known from the publication.
template <hd::microbatches_like M>
struct zb_h1 : sc::one_stage_per_rank<M> {
  using sc::one_stage_per_rank<M>::one_stage_per_rank;
  template <class Sink>
  constexpr void generate(int rank, int ranks, Sink& emit) const {
    const int m = this->microbatch_count();
    const int warm_up = (std::min)(ranks - 1 - rank, m);
    int forwards = 0, inputs = 0, weights = 0;
    while (forwards < warm_up) emit(kind::forward, rank, forwards++);
    while (inputs < m) {
      if (forwards < m) emit(kind::forward, rank, forwards++);
      emit(kind::backward_input, rank, inputs++);
      if (inputs > rank) emit(kind::backward_weight, rank, weights++);
    }
    while (weights < m) emit(kind::backward_weight, rank, weights++);
  }
};

/// Interleaved 1F1B (arXiv:2104.04473): stage s lives on rank s mod p. Runs only where p divides m.
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

/// ZB-V (arXiv:2405.15362): rank r holds stages r and 2p - 1 - r. Runs only with m >= 2p - 1.
template <hd::microbatches_like M>
struct zb_v : sc::one_stage_per_rank<M> {
  using sc::one_stage_per_rank<M>::one_stage_per_rank;
  static constexpr int stages(int ranks) { return 2 * ranks; }
  static constexpr int rank_of(int stage, int ranks) { return stage < ranks ? stage : 2 * ranks - 1 - stage; }
  constexpr bool fits(int ranks) const { return this->microbatch_count() >= 2 * ranks - 1; }
  template <class Sink>
  constexpr void generate(int rank, int ranks, Sink& emit) const {
    const int m = this->microbatch_count();
    const std::array<int, 2> stage{rank, 2 * ranks - 1 - rank};
    std::array<int, 2> f{}, i{}, w{};
    const auto F = [&](std::size_t c) { emit(kind::forward, stage[c], f[c]++); };
    const auto I = [&](std::size_t c) { emit(kind::backward_input, stage[c], i[c]++); };
    const auto W = [&](std::size_t c) { emit(kind::backward_weight, stage[c], w[c]++); };
    for (int k = 0; k < 2 * (ranks - rank) - 1; ++k) F(0);
    for (int k = 0; k < rank; ++k) F(1), F(0);
    for (int k = 0; k < ranks - rank; ++k) F(1), I(1), W(1);
    while (f[0] < m || f[1] < m) {
      if (f[0] < m) F(0);
      I(0), W(0), F(1), I(1), W(1);
    }
    for (int k = 0; k < rank; ++k) I(0), I(1);
    for (int k = 0; k < ranks - rank; ++k) I(0), W(0);
    while (w[1] < m) W(1);
    while (w[0] < m) W(0);
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
  add("zb_h1", zb_h1<any>{m});
  add("interleaved v=2", interleaved<2, any>{m});
  add("interleaved v=3", interleaved<3, any>{m});
  add("zb_v", zb_v<any>{m});
  return tables;
}

}  // namespace schedules
