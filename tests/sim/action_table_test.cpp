#include <heddle/schedule/check/formulas.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/check/validate.hpp>
#include <heddle/sim/action_table.hpp>

#include "../schedule/schedules.hpp"
#include "catch.hpp"

#include <string>

namespace sc = heddle::schedule;
namespace sim = heddle::sim;
using heddle::microbatches;
using any = microbatches<>;

namespace {

// F, I, W of a whole rank, spread over `chunks` stages.
sim::stage_times times(double f, double i, double w, int chunks = 1) {
  return {f / chunks, i / chunks, w / chunks};
}

// The makespan is that of the formula, and no rank's idle time is more.
template <class When>
void check_bubble(const When& when, int p, const sc::formula::times& t, int chunks = 1) {
  const auto table = sc::make_table(when, p);
  const auto line = sim::simulate(table, times(t.f, t.i, t.w, chunks));
  CHECK(line.makespan == Approx(sc::formula::makespan(when, p, t)).epsilon(1e-12));
  CHECK(line.bubble_ratio() == Approx(sc::formula::bubble_ratio(when, p, t)).margin(1e-12));
  for (int r = 0; r < p; ++r) CHECK(line.idle(r) == Approx(sc::formula::bubble(when, p, t)).margin(1e-9));
  // Lowering changes nothing where transfers are started early and waited for late.
  CHECK(sim::simulate(sc::lower(table), times(t.f, t.i, t.w, chunks)).makespan == Approx(line.makespan).epsilon(1e-12));
}

}  // namespace

TEST_CASE("schedules of one stage per rank take as long as their formulas say", "[sim][law]") {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 4 * p; ++m) {
      CAPTURE(p, m);
      for (const sc::formula::times& t : {sc::formula::times{1, 1, 1}, sc::formula::times{2, 3, 1.5},
                                          sc::formula::times{1, 0.25, 0.125}, sc::formula::times{0.5, 3, 2}}) {
        check_bubble(sc::gpipe<>{m}, p, t);
        check_bubble(sc::one_f_one_b<>{m}, p, t);
        check_bubble(sc::prefill<>{m}, p, t);
        if (m >= p) check_bubble(sc::zb_h1<>{m}, p, t);
      }
      if (m >= 2 * p - 1) check_bubble(sc::zb_h2<>{m}, p, {1, 1, 1});
    }
}

namespace {

void check_bubbles_of_chunks(const sc::formula::times& t) {
  constexpr int dynamic = heddle::dynamic;
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 4 * p; ++m)
      for (int v = 2; v <= 4; ++v) {
        CAPTURE(p, m, v);
        const sc::interleaved<any, dynamic> interleaved{m, v};
        if (interleaved.fits(p)) check_bubble(interleaved, p, t, v);
        const sc::zb_h1<any, dynamic> h1{m, v};
        if (h1.fits(p) && m >= p) check_bubble(h1, p, t, v);
        check_bubble(sc::breadth_first<any, dynamic>{m, v}, p, t, v);
        check_bubble(sc::prefill<any, dynamic>{m, v}, p, t, v);
        check_bubble(sc::decode<>{m, v}, p, t);
      }
}

}  // namespace

TEST_CASE("schedules of several stages per rank take as long as their formulas say", "[sim][law]") {
  check_bubbles_of_chunks({1, 1, 1});
}

TEST_CASE("and with times that are not equal", "[sim][law]") {
  check_bubbles_of_chunks({2, 3, 1.5});
}

TEST_CASE("ZB-V takes as long as its formula says", "[sim][law]") {
  for (int p = 1; p <= 8; ++p)
    for (int m = 2 * p - 1; m <= 4 * p; ++m) check_bubble(sc::zb_v<>{m}, p, {1, 1, 1}, 2);
}

namespace {

// Breadth-first with its backwards in the other order of microbatches: the newest is freed first.
struct newest_first : sc::breadth_first<any, heddle::dynamic> {
  using sc::breadth_first<any, heddle::dynamic>::breadth_first;
  template <class Sink>
  void generate(int rank, int ranks, Sink& emit) const {
    const int m = microbatch_count();
    for (int c = 0; c < chunks(); ++c)
      for (int i = 0; i < m; ++i) emit(sc::action_kind::forward, c * ranks + rank, i);
    for (int c = chunks() - 1; c >= 0; --c)
      for (int i = m - 1; i >= 0; --i) emit(sc::action_kind::backward, c * ranks + rank, i);
  }
};

}  // namespace

TEST_CASE("GPipe and breadth-first take as long with their backwards in the other order", "[sim][law]") {
  for (int p = 2; p <= 8; ++p)
    for (int m = p; m <= 4 * p; ++m)
      for (int v = 1; v <= 4; ++v)
        for (const sc::formula::times& t : {sc::formula::times{1, 1, 1}, sc::formula::times{2, 3, 1.5}}) {
          CAPTURE(p, m, v);
          check_bubble(newest_first{m, v}, p, t, v);
        }
}

TEST_CASE("lowering makes no schedule slower, split backwards too", "[sim][law]") {
  for (const int p : {2, 4, 8})
    for (const auto& [name, table] : schedules::all_tables(p, 2 * p))
      for (const auto& t : {times(1, 1, 1), times(2, 3, 1.5)}) {
        INFO(name << ", p = " << p);
        CHECK(sim::simulate(sc::lower(table), t).makespan == Approx(sim::simulate(table, t).makespan).epsilon(1e-12));
      }
}

TEST_CASE("published times, p=4, m=8", "[sim]") {
  const auto time = [](const auto& when, sim::stage_times t) {
    return sim::simulate(sc::make_table(when, 4), t).makespan;
  };
  CHECK(time(sc::gpipe<>{8}, times(1, 1, 1)) == Approx(33));
  CHECK(time(sc::one_f_one_b<>{8}, times(1, 1, 1)) == Approx(33));
  CHECK(time(sc::interleaved<>{8}, times(1, 1, 1, 2)) == Approx(28.5));
  CHECK(time(sc::breadth_first<>{8}, times(1, 1, 1, 2)) == Approx(28.5));
  CHECK(time(sc::zb_h1<>{8}, times(1, 1, 1)) == Approx(27));
  CHECK(time(sc::zb_h2<>{8}, times(1, 1, 1)) == Approx(27));
  CHECK(time(sc::zb_v<>{8}, times(1, 1, 1, 2)) == Approx(25.5));
  CHECK(time(sc::gpipe<>{8}, times(2, 3, 1.5)) == Approx(71.5));
  CHECK(time(sc::one_f_one_b<>{8}, times(2, 3, 1.5)) == Approx(71.5));
  CHECK(time(sc::zb_h1<>{8}, times(2, 3, 1.5)) == Approx(62.5));
  CHECK(time(sc::zb_h2<>{8}, times(2, 3, 1.5)) == Approx(58.0));
  CHECK(time(sc::zb_v<>{8}, times(2, 3, 1.5, 2)) == Approx(56.5));
  STATIC_REQUIRE(sim::simulate(sc::table_of<sc::one_f_one_b<microbatches<8>>, 4>).makespan == 33);
}

TEST_CASE("ZB-H2 and ZB-V idle only until their first action", "[sim][law]") {
  for (int p = 2; p <= 8; ++p)
    for (int m = 2 * p - 1; m <= 4 * p; ++m) {
      CAPTURE(p, m);
      const auto check = [&](const auto& when, int chunks) {
        const auto table = sc::make_table(when, p);
        const auto line = sim::simulate(table, times(1, 1, 1, chunks));
        for (int r = 0; r < p; ++r) {
          const auto first = static_cast<std::size_t>(table.view().offset(r));
          const auto last = static_cast<std::size_t>(table.view().offset(r + 1) - 1);
          CHECK(line.end[last] - line.start[first] == Approx(line.busy[static_cast<std::size_t>(r)]));
        }
      };
      check(sc::zb_h2<>{m}, 1);
      check(sc::zb_v<>{m}, 2);
    }
}

TEST_CASE("a small pipeline, by hand", "[sim]") {
  // Two ranks, two microbatches; link 0.5. F takes 1, B takes 2.
  //   rank 0: F0 [0,1] F1 [1,2]            B0 [5,7]       B1 [8,10]
  //   rank 1:          F0 [1.5,2.5] B0 [2.5,4.5] F1 [4.5,5.5] B1 [5.5,7.5]
  const auto table = sc::make_table<sc::one_f_one_b<microbatches<2>>>(2);
  const auto line = sim::simulate(table, sim::stage_times{}, sim::link_time{0.5});
  CHECK(line.start == std::vector<double>{0, 1, 5, 8, 1.5, 2.5, 4.5, 5.5});
  CHECK(line.end == std::vector<double>{1, 2, 7, 10, 2.5, 4.5, 5.5, 7.5});
  CHECK(line.makespan == 10);
  CHECK(line.busy == std::vector<double>{6, 6});
  CHECK(line.idle(0) == 4);
  CHECK(line.bubble_ratio() == Approx(0.4));

  // Lowered, the rank's list is 0F0 SEND 0F1 SEND RECV 0B0 RECV 0B1 REDUCE.
  const auto lowered = sc::lower(table);
  const auto early = sim::simulate(lowered, sim::stage_times{}, sim::link_time{0.5});
  CHECK(early.makespan == 10);
  CHECK(early.start == std::vector<double>{0, 1, 1, 2, 2, 5, 7, 8, 10, 0, 1.5, 2.5, 2.5, 4.5, 4.5, 5.5, 7.5, 7.5});
  // Where sends wait for their receives, rank 1 cannot start B0 before it has taken F1 over.
  const auto meeting = sim::simulate(lowered, sim::stage_times{}, sim::link_time{0.5}, sc::transfers::rendezvous);
  const auto buffered = sim::simulate(lowered, sim::stage_times{}, sim::link_time{0.5}, sc::transfers::buffered);
  CHECK(buffered.makespan >= early.makespan);
  CHECK(meeting.makespan >= buffered.makespan);
}

TEST_CASE("durations may depend on the action", "[sim]") {
  const auto table = sc::make_table<sc::gpipe<microbatches<4>>>(3);
  const auto line = sim::simulate(
      table, [](const sc::action& a) { return a.stage == 1 ? 3.0 : 1.0; },
      [](const sc::action& send) { return send.stage == 0 ? 1.0 : 0.0; });
  // The slow stage works without a pause once it has started, in each direction.
  CHECK(line.busy == std::vector<double>{8, 24, 8});
  CHECK(line.start[static_cast<std::size_t>(table.view().offset(1))] == 2);
  CHECK(line.makespan == 2 + 12 + 1 + 1 + 12 + 1);
}

TEST_CASE("a blocking transfer can cost more than the bubble", "[sim]") {
  const auto lowered = sc::lower(sc::make_table<sc::one_f_one_b<microbatches<8>>>(4));
  const auto in = [&](sc::transfers mode) {
    return sim::simulate(lowered, times(2, 3, 1.5), sim::link_time{}, mode).makespan;
  };
  CHECK(in(sc::transfers::asynchronous) == Approx(71.5));
  CHECK(in(sc::transfers::buffered) > 71.5);
  CHECK(in(sc::transfers::rendezvous) >= in(sc::transfers::buffered));
}

TEST_CASE("a table that stops is refused", "[sim]") {
  const auto naive = schedules::naive(sc::make_table<sc::one_f_one_b<microbatches<2>>>(2));
  CHECK_NOTHROW(sim::simulate(naive));
  CHECK_THROWS_WITH(sim::simulate(naive, sim::stage_times{}, sim::link_time{}, sc::transfers::rendezvous),
                    "heddle: the simulated schedule stops: rank 0, position 3 (0SEND_F1) waits for ever; "
                    "schedule::check_table says for what");
  CHECK_THROWS_AS(sim::simulate(sc::parse("0B0 0F0 | 1F0 1B0")), heddle::schedule_error);
}

TEST_CASE("actions that overlap start together and end together", "[sim]") {
  // Two replicas in opposite directions; microbatch 0 goes through stages 0, 1, microbatch 1 through stages 2, 3.
  const auto table = sc::parse(
      "0F0 3F1 (3B1;0B0)OVERLAP_B_B\n"
      "2F1 1F0 1B0 2B1\n",
      {.chains = 2});
  // 3B1 could start at 2, but 0B0 needs 1B0, which ends at 4; then 2B1 needs what the pair ended with.
  const auto line = sim::simulate(table);
  CHECK(line.start == std::vector<double>{0, 1, 4, 4, 0, 1, 2, 8});
  CHECK(line.end == std::vector<double>{1, 2, 8, 8, 1, 2, 4, 10});
  CHECK(line.busy == std::vector<double>{6, 6});
  // With transfers, the sends stand behind the pair.
  const auto lowered = sc::parse(
      "0F0 0SEND_F0 3RECV_F1 3F1 0RECV_B0 (3B1;0B0)OVERLAP_B_B 3SEND_B1\n"
      "1RECV_F0 2F1 2SEND_F1 1F0 1B0 1SEND_B0 2RECV_B1 2B1\n",
      {.chains = 2});
  CHECK(sc::to_text(sc::lower(table, {.reduce_gradients = false})) == sc::to_text(lowered));
  for (const double link : {0.0, 0.5})
    CHECK(sim::simulate(lowered, sim::stage_times{}, sim::link_time{link}).makespan ==
          sim::simulate(table, sim::stage_times{}, sim::link_time{link}).makespan);
  // Blocking, rank 1 takes 0F0's output at 1 before it begins, so that all after it is one later.
  CHECK(sim::simulate(lowered, sim::stage_times{}, sim::link_time{}, sc::transfers::rendezvous).makespan == 11);

  const auto mixed = sc::parse(
      "0F0 (3F1;0B0)OVERLAP_F_B 3B1\n"
      "2F1 1F0 1B0 2B1\n",
      {.chains = 2});
  CHECK(sim::simulate(mixed).end == std::vector<double>{1, 7, 7, 9, 1, 2, 4, 11});
  const sim::stage_times gain{1, 1, 1, 2.5};
  CHECK(sim::simulate(mixed, gain).end == std::vector<double>{1, 6.5, 6.5, 8.5, 1, 2, 4, 10.5});
  CHECK(sim::simulate(mixed, gain).busy == std::vector<double>{5.5, 6});
  // A function of one action knows no gain, one of two actions may.
  const auto one = [](const sc::action& a) { return a.kind == sc::action_kind::forward ? 1.0 : 2.0; };
  CHECK(sim::simulate(mixed, one).makespan == 11);
  struct measured : sim::stage_times {
    using sim::stage_times::operator();
    double operator()(const sc::action&, const sc::action&) const { return 2; }
  };
  CHECK(sim::simulate(mixed, measured{}).makespan == 10);
  // Halves of one dependency cannot overlap.
  CHECK_THROWS_WITH(sim::simulate(sc::parse("(0F0;1F0)OVERLAP_F_F 1B0 0B0")),
                    "heddle: the simulated schedule stops: rank 0, position 0 (0F0) waits for ever; "
                    "schedule::check_table says for what");
  STATIC_REQUIRE(sim::simulate(sc::parse("0F0 (0B0;0F1)OVERLAP_B_F 0B1"), sim::stage_times{1, 1, 1, 2}).makespan == 5);
}

TEST_CASE("a recomputation takes a forward", "[sim]") {
  const auto line = sim::simulate(sc::parse("0F0 0F1 0RECOMPUTE0 0B0 0RECOMPUTE1 0B1"), times(2, 3, 1.5));
  CHECK(line.makespan == 4 * 2 + 2 * 4.5);
  CHECK(line.idle(0) == 0);
}

TEST_CASE("tables without backwards, and ranks that do nothing", "[sim]") {
  const auto prefill = sc::parse("0F0 0F1 0F2 | 1F0 1F1 1F2 | 2F0 2F1 2F2", {.forward_only = true});
  CHECK(sim::simulate(prefill).makespan == 5);
  CHECK(sim::simulate(sc::lower(prefill), sim::stage_times{}, sim::link_time{0.5}).makespan == 6);
  const auto idle = sim::simulate(sc::parse("0F0 1F0 | - ", {.forward_only = true}));
  CHECK(idle.makespan == 2);
  CHECK(idle.idle(1) == 2);
}

TEST_CASE("transfers that are grouped begin together and end together", "[sim]") {
  // As written by hand; where transfers block one by one it deadlocks.
  const auto table =
      sc::parse("F0 SEND_F0 F1 SEND_F1 RECV_B0 B0 RECV_B1 B1 | RECV_F0 F0 B0 SEND_B0 RECV_F1 F1 B1 SEND_B1");
  REQUIRE(sc::check_table(table, sc::transfers::grouped).ok());
  REQUIRE(sc::check_table(table, sc::transfers::rendezvous).what == sc::problem::deadlock);
  const auto line = sim::simulate(table, sim::stage_times{1, 1, 1}, sim::link_time{0.5}, sc::transfers::grouped);
  // Rank 0: F0 0-1, send to 1.5, F1 to 2.5; rank 1: F0 1.5-2.5, B0 to 4.5, group to 5; F1 5-6, B1 to 8, send to 8.5.
  const int second = table.view().offset(1);
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  CHECK(line.end[at(1)] == 1.5);
  CHECK(line.start[at(3)] == 2.5);
  CHECK(line.end[at(3)] == 5);
  CHECK(line.end[at(4)] == 5);
  CHECK(line.start[at(5)] == 5);  // B0 of rank 0
  CHECK(line.start[at(second + 3)] == 4.5);
  CHECK(line.end[at(second + 4)] == 5);
  CHECK(line.makespan == 10.5);

  for (int p = 1; p <= 6; ++p)
    for (int m = 1; m <= 2 * p; ++m) {
      const auto lowered = sc::lower(sc::make_table(sc::zb_h1<>{m}, p));
      const auto times = sim::stage_times{1, 1.5, 0.5};
      const auto run = [&](sc::transfers mode) { return sim::simulate(lowered, times, sim::link_time{0.25}, mode); };
      CAPTURE(p, m);
      CHECK(run(sc::transfers::asynchronous).makespan <= run(sc::transfers::grouped).makespan + 1e-12);
      CHECK(run(sc::transfers::grouped).makespan <= run(sc::transfers::rendezvous).makespan + 1e-12);
    }
  CHECK_THROWS_AS(sim::simulate(sc::parse("RECV_B0 F0 SEND_F0 B0 | RECV_F0 F0 B0 SEND_B0"), sim::stage_times{},
                                sim::link_time{}, sc::transfers::grouped),
                  heddle::schedule_error);
}
