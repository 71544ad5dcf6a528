#include <heddle/schedule/check/formulas_bidirectional.hpp>
#include <heddle/schedule/lower/lower.hpp>
#include <heddle/sim/action_table.hpp>

#include "catch.hpp"

namespace sc = heddle::schedule;
namespace sim = heddle::sim;
namespace formula = heddle::schedule::formula;
using any = heddle::microbatches<>;
using waves = sc::hanayo<any, heddle::dynamic>;

namespace {

// Times of a rank, spread over its stages.
sim::stage_times per_stage(const formula::times& t, int chunks) {
  return {t.f / chunks, t.i / chunks, t.w / chunks, t.pair < 0 ? -1 : t.pair / chunks};
}

template <class When>
double makespan(const When& when, int p, const formula::times& t, int chunks) {
  const auto table = sc::make_table(when, p);
  const double seconds = sim::simulate(table, per_stage(t, chunks)).makespan;
  CHECK(sim::simulate(sc::lower(table), per_stage(t, chunks)).makespan == Approx(seconds).epsilon(1e-12));
  return seconds;
}

template <class When>
void check_makespan(const When& when, int p, const formula::times& t, int chunks) {
  CAPTURE(p, when.microbatch_count(), chunks, t.f, t.i, t.w, t.pair);
  CHECK(makespan(when, p, t, chunks) == Approx(formula::makespan(when, p, t)).epsilon(1e-12));
}

constexpr formula::times unit{1, 1, 1};
constexpr formula::times unequal{2, 3, 1.5};
constexpr formula::times even{2, 1, 1};  // F = B
constexpr formula::times gain{1, 1, 1, 2.4};

}  // namespace

TEST_CASE("DualPipeV and DualPipe take as long as their formulas say, with and without gain", "[sim][law]") {
  for (int p = 1; p <= 8; ++p)
    for (int m = 2 * p; m <= 4 * p; ++m) {
      check_makespan(sc::dual_pipe_v<>{m}, p, unit, 2);
      check_makespan(sc::dual_pipe_v<>{m}, p, gain, 2);
    }
  for (int p = 2; p <= 12; p += 2)
    for (int m = 2 * p; m <= 4 * p; m += 2) {
      check_makespan(sc::dual_pipe<>{m}, p, unit, 1);
      check_makespan(sc::dual_pipe<>{m}, p, gain, 1);
    }
}

TEST_CASE("Chimera takes as long as its formulas say", "[sim][law]") {
  for (int p = 2; p <= 8; p += 2) {
    for (int m = 2; m <= 4 * p; m += 2) check_makespan(sc::chimera<>{m}, p, even, 1);
    for (const double b : {0.5, 1.5, 2.0, 3.0}) check_makespan(sc::chimera<>{p}, p, {1, b / 2, b / 2}, 1);
    CHECK(formula::bubble_ratio(sc::chimera<>{p}, p, unit) == Approx((p - 2) / (1.5 * p + p - 2)));
  }
}

TEST_CASE("Hanayo takes as long as its formula says", "[sim][law]") {
  for (int w = 1; w <= 2; ++w)
    for (int p = 1; p <= 8; ++p)
      for (int m = 1; m <= 4 * p; ++m) check_makespan(waves{m, w}, p, even, 2 * w);
  for (int p = 2; p <= 8; p += 2)
    for (int m = p; m <= 4 * p; m += 3) check_makespan(waves{m, 3}, p, even, 6);
}

TEST_CASE("V-Half and V-Min take as long as their formulas say", "[sim][law]") {
  for (int p = 1; p <= 8; ++p)
    for (int m = p + 1; m <= 4 * p; ++m) {
      check_makespan(sc::v_half<>{m}, p, unit, 2);
      check_makespan(sc::v_min<>{m}, p, unit, 2);
    }
  for (const int p : {9, 10, 11, 12, 13, 16}) {
    check_makespan(sc::v_half<>{2 * p}, p, unit, 2);
    check_makespan(sc::v_min<>{2 * p}, p, unit, 2);
  }
}

TEST_CASE("published bubbles of V-Half and V-Min, packed again", "[sim]") {
  const double published[][3] = {{4, 2.5, 5.5}, {6, 5.5, 8.5}, {8, 8.5, 13.5}, {12, 14.5, 20.5}, {16, 20.5, 29.5}};
  for (const auto& row : published) {
    const int p = static_cast<int>(row[0]);
    CAPTURE(p);
    for (const int m : {2 * p, 3 * p}) {
      CHECK(makespan(sc::v_half<>{m}, p, unit, 2) - 3 * m == Approx(row[1]));
      CHECK(makespan(sc::v_min<>{m}, p, unit, 2) - 3 * m == Approx(row[2]));
    }
  }
}

TEST_CASE("published times of schedules that turn or meet", "[sim]") {
  CHECK(makespan(sc::dual_pipe_v<>{8}, 4, unit, 2) == Approx(27));
  CHECK(makespan(sc::dual_pipe<>{8}, 4, unit, 1) == Approx(26));
  CHECK(makespan(sc::v_half<>{8}, 4, unit, 2) == Approx(26.5));
  CHECK(makespan(sc::v_min<>{8}, 4, unit, 2) == Approx(29.5));
  CHECK(makespan(sc::dual_pipe_v<>{8}, 4, unequal, 2) == Approx(60.75));
  CHECK(makespan(sc::v_half<>{8}, 4, unequal, 2) == Approx(63.5));
  CHECK(makespan(sc::v_min<>{8}, 4, unequal, 2) == Approx(83.75));
  CHECK(makespan(sc::v_min<>{16}, 4, unequal, 2) - 16 * 6.5 == Approx(51.75));
  // What overlap gains: pairs of 2.4 instead of 3.
  CHECK(makespan(sc::dual_pipe<>{8}, 4, gain, 1) == Approx(23.6));
  CHECK(makespan(sc::dual_pipe<>{16}, 8, unit, 1) == Approx(54));
  CHECK(makespan(sc::dual_pipe<>{16}, 8, gain, 1) == Approx(48));
  CHECK(makespan(sc::dual_pipe<>{32}, 8, unit, 1) == Approx(102));
  CHECK(makespan(sc::dual_pipe<>{32}, 8, gain, 1) == Approx(86.4));
}
