#include <heddle/schedule/generate/inference.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/lower/plan.hpp>

#include "catch.hpp"
#include "emulator.hpp"
#include "pairs.hpp"
#include "schedules.hpp"

#include <random>
#include <string>
#include <vector>

namespace sc = heddle::schedule;
using heddle::microbatches;
using kind = sc::action_kind;
using sc::problem;

namespace {

std::string complaint(std::string_view text, sc::table_form form = {}) {
  return sc::to_string(sc::check_table(sc::parse(text, form)));
}
constexpr sc::transfers modes[] = {sc::transfers::asynchronous, sc::transfers::buffered, sc::transfers::grouped,
                                   sc::transfers::rendezvous};

}  // namespace

TEST_CASE("pairs are two computations that do not need each other", "[schedule]") {
  CHECK(complaint("F0 F1 B0 B1 | F0 (1F1;1B0)OVERLAP_F_B B1") == "the schedule is valid");
  CHECK(complaint("(0F0;0B0)OVERLAP_F_B") ==
        "heddle: rank 0, position 1 (0B0): it overlaps 0F0, whose result it needs; put one behind the other");
  CHECK(complaint("0F0 (0I0;0W0)OVERLAP_I_W") ==
        "heddle: rank 0, position 2 (0W0): it overlaps 0I0, whose result it needs; put one behind the other");
  CHECK(complaint("(0F0;1F0)OVERLAP_F_F 1B0 0B0") ==
        "heddle: rank 0, position 1 (1F0): it overlaps 0F0, whose result it needs; put one behind the other");
  CHECK(complaint("0F0 1F0 (1B0;0I0)OVERLAP_B_I 0W0") ==
        "heddle: rank 0, position 3 (0I0): it overlaps 1B0, whose result it needs; put one behind the other");
  CHECK(complaint("0F0 0F1 (0B0;0B1)OVERLAP_B_B") ==
        "heddle: rank 0, position 3 (0B1): it overlaps 0B0, and both add to one weight gradient; put one behind the "
        "other");
  CHECK(complaint("0F0 0F1 (0I0;0I1)OVERLAP_I_I 0W0 0W1") == "the schedule is valid");
  CHECK(complaint("0F0 0F1 0I0 (0W0;0I1)OVERLAP_W_I 0W1") == "the schedule is valid");
  // Through another rank: the second part waits for what the first will have computed.
  CHECK(complaint("(0F0;2F0)OVERLAP_F_F 2B0 0B0 | 1F0 1B0") ==
        "heddle: rank 0, position 1 (2F0): deadlock: it waits for 1F0 of rank 1, which stands at position 0 (1F0)");
  // A pair has two parts, both of them computations.
  auto t = sc::parse("0F0 0F1 0F2 0B0 0B1 0B2");
  t.actions[0].overlaps_next = t.actions[1].overlaps_next = true;
  CHECK(sc::to_string(sc::check_table(t)) ==
        "heddle: rank 0, position 0 (0F0): it overlaps the next action, but a pair is two computations, side by side");
  t = sc::parse("0F0 0B0");
  t.actions[1].overlaps_next = true;
  CHECK(sc::check_table(t).what == problem::not_a_pair);
  CHECK(sc::check_table(t).position == 1);
  t = sc::parse("0F0 0B0 0REDUCE_GRAD");
  t.actions[1].overlaps_next = true;
  CHECK(sc::check_table(t).what == problem::not_a_pair);
  t = sc::parse("0F0 0B0 0REDUCE_GRAD 0OPTIM");
  t.actions[2].overlaps_next = true;
  CHECK(sc::check_table(t).position == 2);
  CHECK(sc::check_table(t).what == problem::not_a_pair);
  t = sc::parse("0F0 0B0 | 1F0 1B0");
  t.actions[1].overlaps_next = true;  // the next one is another rank's
  CHECK(sc::check_table(t).what == problem::not_a_pair);
  CHECK(sc::check_table(t).rank == 0);
  STATIC_REQUIRE_FALSE(sc::valid<sc::written<"0F0 (0I0;0W0)OVERLAP_I_W">, heddle::mesh<heddle::axis<heddle::dp, 2>>>);
}

TEST_CASE("random pairs are valid exactly if they can be executed and use different gradients",
          "[schedule][law][property]") {
  const auto seed = GENERATE(11u, Catch::Generators::take(2, Catch::Generators::random(0u, 4000000000u)));
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const int p : {1, 2, 4})
    for (const int m : {2, 2 * p - 1, 2 * p})
      for (const auto& [name, plain] : schedules::all_tables(p, m)) {
        const auto table = schedules::with_pairs(plain, random);
        CAPTURE(name, p, m, sc::to_text(table), sc::to_string(sc::check_table(table)));
        REQUIRE(sc::check_table(table).ok());
        REQUIRE(emulator::run(table, sc::transfers::buffered) == emulator::serial(table));
        const auto lowered = sc::lower(table);
        for (const auto mode : modes) {
          CAPTURE(static_cast<int>(mode), sc::to_text(lowered), sc::to_string(sc::check_table(lowered, mode)));
          REQUIRE(sc::check_table(lowered, mode).ok());
          REQUIRE(emulator::run(lowered, mode) == emulator::serial(lowered));
        }
      }
}

TEST_CASE("offload, reload and recompute stand between the forward and the backward", "[schedule]") {
  CHECK(complaint("0F0 0OFFLOAD0 0RELOAD0 0RECOMPUTE0 0B0") == "the schedule is valid");
  CHECK(complaint("0OFFLOAD0 0F0 0B0") ==
        "heddle: rank 0, position 0 (0OFFLOAD0): it needs 0F0 earlier in the list of this rank");
  CHECK(complaint("0F0 0OFFLOAD0 0B0") ==
        "heddle: rank 0, position 2 (0B0): it needs 0RELOAD0 earlier in the list of this rank");
  CHECK(complaint("0F0 0OFFLOAD0 0RECOMPUTE0 0RELOAD0 0B0") ==
        "heddle: rank 0, position 2 (0RECOMPUTE0): it needs 0RELOAD0 earlier in the list of this rank");
  CHECK(complaint("0F0 0RELOAD0 0B0") ==
        "heddle: rank 0, position 1 (0RELOAD0): it needs 0OFFLOAD0 earlier in the list of this rank");
  CHECK(complaint("0F0 0B0 0RECOMPUTE0") ==
        "heddle: rank 0, position 2 (0RECOMPUTE0): it must stand before 0B0, which comes earlier in the list");
  CHECK(complaint("0F0 0I0 0RECOMPUTE0 0W0") ==
        "heddle: rank 0, position 2 (0RECOMPUTE0): it must stand before 0I0, which comes earlier in the list");
  CHECK(complaint("0F0 0RECOMPUTE0 0OFFLOAD0 0RELOAD0 0B0") ==
        "heddle: rank 0, position 2 (0OFFLOAD0): it must stand before 0RECOMPUTE0, which comes earlier in the list");
  CHECK(complaint("0F0 0RECOMPUTE0 0RECOMPUTE0 0B0") ==
        "heddle: rank 0, position 2 (0RECOMPUTE0): 0RECOMPUTE0 was listed before; a part of a step runs once");
}

TEST_CASE("sharded weights are gathered where they are used and dropped at the end", "[schedule]") {
  CHECK(complaint("0UNSHARD 0F0 0RESHARD 0UNSHARD 0B0 0RESHARD 0REDUCE_GRAD 0OPTIM") == "the schedule is valid");
  CHECK(complaint("0UNSHARD 0F0 0I0 0RESHARD 0W0") == "the schedule is valid");  // W needs no weights
  CHECK(complaint("0F0 0UNSHARD 0B0 0RESHARD") ==
        "heddle: rank 0, position 0 (0F0): it needs 0UNSHARD earlier in the list of this rank");
  CHECK(complaint("0UNSHARD 0F0 0RESHARD 0B0") ==
        "heddle: rank 0, position 3 (0B0): it needs 0UNSHARD earlier in the list of this rank");
  CHECK(complaint("0UNSHARD 0F0 0RESHARD 0RECOMPUTE0 0UNSHARD 0B0 0RESHARD") ==
        "heddle: rank 0, position 3 (0RECOMPUTE0): it needs 0UNSHARD earlier in the list of this rank");
  CHECK(complaint("0UNSHARD 0UNSHARD 0F0 0B0 0RESHARD") ==
        "heddle: rank 0, position 1 (0UNSHARD): 0UNSHARD was listed before; put RESHARD of the stage between the "
        "two");
  CHECK(complaint("0UNSHARD 0F0 0B0 0RESHARD 0RESHARD") ==
        "heddle: rank 0, position 4 (0RESHARD): it needs 0UNSHARD earlier in the list of this rank");
  for (const char* text : {"0UNSHARD 0F0 0B0", "0UNSHARD 0F0 0RESHARD 0UNSHARD 0B0"})
    CHECK(complaint(text) == "heddle: rank 0: 0RESHARD does not occur behind the last UNSHARD");
  CHECK(complaint("0UNSHARD 0F0 0B0 0OPTIM 0RESHARD") ==
        "heddle: rank 0, position 3 (0OPTIM): it needs 0RESHARD earlier in the list of this rank");
  // Weights of other stages may lie whole on their ranks.
  CHECK(complaint("0F0 0B0 | 1UNSHARD 1F0 1B0 1RESHARD") == "the schedule is valid");
  CHECK(complaint("0UNSHARD 0F0 0F1 0RESHARD", {.forward_only = true}) == "the schedule is valid");
  CHECK(complaint("0F0 0F1 0OPTIM", {.forward_only = true}) ==
        "heddle: rank 0, position 2 (0OPTIM): the table is forward-only; only F, SEND_F, RECV_F, UNSHARD and "
        "RESHARD belong in it");
}

TEST_CASE("two chains run each their own microbatches", "[schedule]") {
  const sc::table_form two{.chains = 2};
  CHECK(complaint("0F0 3F1 3B1 0B0 | 1F0 1B0 2F1 2B1", two) == "the schedule is valid");
  CHECK(complaint("0F0 3F1 3B1 0B0 | 1F0 1B0 2F0 2B1", two) ==
        "heddle: rank 1, position 2 (2F0): microbatch 0 does not come to stage 2");
  CHECK(complaint("0F0 3F1 3B1 0B0 | 1F0 1B0 2F1", two) == "heddle: rank 1: 2B1 never occurs");
}

TEST_CASE("ways of microbatches must be ways", "[schedule]") {
  // Microbatch 0 goes over stages 0, 1, 2, microbatch 1 over 2, 0.
  auto good = sc::parse("0F0 0F1 0B1 0B0 | 1F0 1B0 | 2F1 2F0 2B0 2B1");
  good.next = {1, -1, 2, sc::not_on_path, -1, 0};
  good.previous = {-1, 2, 0, sc::not_on_path, 1, -1};
  for (sc::action& a : good.actions) a.peer = -1;
  REQUIRE(sc::to_string(sc::check_table(good)) == "the schedule is valid");
  REQUIRE(emulator::run(good, sc::transfers::buffered) == emulator::serial(good));
  const auto lowered = sc::lower(good);
  for (const auto mode : modes) {
    CHECK(sc::check_table(lowered, mode).ok());
    CHECK(emulator::run(lowered, mode) == emulator::serial(good));
  }
  CHECK(emulator::run(sc::make_plan(good).view()) == emulator::serial(good));
  auto t = good;
  t.next[1] = 2;  // microbatch 1 in a circle
  t.previous[5] = 0;
  CHECK(sc::to_string(sc::check_table(t)) ==
        "heddle: the way of microbatch 1 is broken; `next` must lead from one beginning over all its stages, and "
        "`previous` back");
  t = good;
  t.previous[4] = 0;
  CHECK(
      sc::to_string(sc::check_table(t)) ==
      "heddle: the way of microbatch 0 is broken at stage 1; `next` must lead from one beginning over all its stages, "
      "and `previous` back");
  t = good;
  t.next[0] = 3;  // there is no stage 3
  CHECK(sc::check_table(t).what == problem::broken_path);
  t = good;
  t.next[0] = t.previous[2] = -1;  // two beginnings
  CHECK(sc::check_table(t).what == problem::broken_path);
  t = good;
  t.next[3] = t.previous[3] = -1;
  CHECK(sc::check_table(t).what == problem::broken_path);
  for (const std::size_t cell : {std::size_t{1}, std::size_t{5}}) {
    t = good;  // a way that is nowhere
    t.next[1] = t.next[5] = t.previous[1] = t.previous[5] = sc::not_on_path;
    t.next[cell] = -1;
    CHECK(sc::check_table(t).what == problem::broken_path);
  }
  t = good;
  t.next.pop_back();
  CHECK(sc::check_table(t).what == problem::malformed);
  t = good;
  t.previous.clear();
  CHECK(sc::check_table(t).what == problem::malformed);
  t = good;
  std::swap(t.actions[1], t.actions[4]);
  CHECK_FALSE(sc::check_table(t).ok());
  t = good;
  t.actions[1].microbatch = 0;
  CHECK(sc::check_table(t).what == problem::repeated);
  // What does not come to a stage has no work there.
  t = good;
  t.actions.insert(t.actions.begin() + 6, {kind::forward, 1, 1});
  for (std::size_t r = 2; r < t.offsets.size(); ++r) ++t.offsets[r];
  CHECK(sc::to_string(sc::check_table(t)) == "heddle: rank 1, position 2 (1F1): microbatch 1 does not come to stage 1");
}

TEST_CASE("a stage to which no microbatch comes still takes part in the reduction", "[schedule]") {
  auto t = sc::parse("0F0 0B0 | 1F0 1B0");
  t.next = {-1, sc::not_on_path};
  t.previous = {-1, sc::not_on_path};
  t.actions.resize(2);
  t.offsets = {0, 2, 2};
  REQUIRE(sc::check_table(t).ok());
  CHECK(sc::to_text(sc::lower(t)) == "0F0 0B0 0REDUCE_GRAD\n1REDUCE_GRAD\nWAYS 0:0\n");
  CHECK(sc::check_table(sc::lower(t)).ok());
  // Before its step, where the table has one already.
  namespace passes = sc::passes;
  for (const bool early : {false, true}) {
    const auto stepped = sc::lower(t, passes::optimizer{.post_validation = early});
    REQUIRE(sc::check_table(stepped).ok());
    for (const auto& lowered : {sc::lower(stepped), sc::lower(stepped, passes::reduce_gradients{})}) {
      CHECK(sc::to_text(lowered) == "0F0 0B0 0REDUCE_GRAD 0OPTIM\n1REDUCE_GRAD 1OPTIM\nWAYS 0:0\n");
      CHECK(sc::check_table(lowered).ok());
    }
    CHECK_NOTHROW(sc::make_plan(stepped));
  }
}

TEST_CASE("each way of transferring takes what it can finish", "[schedule][law]") {
  const auto allowed = [](sc::table_view t) {
    std::string text;
    for (const auto mode : modes) text += sc::check_table(t, mode).ok() ? '1' : '0';
    return text;
  };
  // In order: asynchronous, buffered, grouped, rendezvous.
  CHECK(allowed(sc::lower(sc::make_table(sc::one_f_one_b<>{8}, 4))) == "1111");
  // A receive that stands before the send which its message follows from: nothing but an early receive saves it.
  CHECK(allowed(sc::parse("RECV_B0 F0 SEND_F0 B0 | RECV_F0 F0 B0 SEND_B0")) == "1000");
  // Both send first.
  CHECK(allowed(sc::parse(
            "F0 SEND_F0 F1 SEND_F1 RECV_B0 B0 RECV_B1 B1 | RECV_F0 F0 B0 SEND_B0 RECV_F1 F1 B1 SEND_B1")) == "1110");
  CHECK(sc::to_string(
            sc::check_table(sc::parse("RECV_B0 F0 SEND_F0 B0 | RECV_F0 F0 B0 SEND_B0"), sc::transfers::grouped)) ==
        "heddle: rank 0, position 0 (0RECV_B0): deadlock: it waits for 1SEND_B0 of rank 1, which stands at position 0 "
        "(1RECV_F0)");
  // A computation that waits although all its rank's messages have been posted.
  const auto crossed = sc::parse("RECV_B0 F0 B0 SEND_F0 | RECV_F0 F0 B0 SEND_B0");
  CHECK(allowed(crossed) == "0000");
  CHECK(
      sc::to_string(sc::check_table(crossed, sc::transfers::asynchronous)) ==
      "heddle: rank 0, position 2 (0B0): deadlock: it waits for 1SEND_B0 of rank 1, which stands at position 1 (1F0)");
}

TEST_CASE("grouping neighbours saves the naive placement of 1F1B and ZB-H1 only", "[schedule][law]") {
  for (int p = 2; p <= 8; ++p)
    for (int m = 2 * p; m <= 4 * p; ++m)
      for (const auto& [name, table] : schedules::all_tables(p, m)) {
        CAPTURE(name, p, m);
        const auto naive = schedules::naive(table);
        if (name == "gpipe" || name == "1f1b" || name == "zb_h1") {
          CHECK(sc::check_table(naive, sc::transfers::rendezvous).ok() == (name == "gpipe"));
          CHECK(sc::check_table(naive, sc::transfers::grouped).ok());
        } else {
          CHECK_FALSE(sc::check_table(naive, sc::transfers::grouped).ok());
        }
      }
}

TEST_CASE("forward-only tables lower, finish and put out what serial ones do", "[schedule][law]") {
  for (const int p : {1, 2, 3, 4})
    for (const int m : {1, 2, 5}) {
      std::string text;
      for (int r = 0; r < p; ++r) {
        for (int i = 0; i < m; ++i) text += std::to_string(r) + "F" + std::to_string(i) + " ";
        text += "| ";
      }
      const auto table = sc::parse(text, {.forward_only = true});
      REQUIRE(sc::check_table(table).ok());
      const auto lowered = sc::lower(table);
      CHECK_FALSE(lowered.view().has(kind::reduce_gradient));
      for (const auto mode : modes) {
        CHECK(sc::check_table(lowered, mode).ok());
        CHECK(emulator::run(lowered, mode) == emulator::serial(table));
      }
      CHECK(emulator::run(sc::make_plan(table).view()) == emulator::serial(table));
    }
  CHECK(complaint("0F0 0F1 | 1F0", {.forward_only = true}) == "heddle: rank 1: 1F1 never occurs");
  CHECK(complaint("0F0 0B0", {.forward_only = true}) ==
        "heddle: rank 0, position 1 (0B0): the table is forward-only; only F, SEND_F, RECV_F, UNSHARD and "
        "RESHARD belong in it");
}

TEST_CASE("tables with idle ranks go to text and back", "[schedule]") {
  for (const char* const text :
       {"0F0 0B0\n-\n", "-\n0F0 0B0\n", "-\n-\n0F0 0F1 0B0 0B1\n-\n", "0F0 0B0\n-\n1F0 1B0\n"}) {
    CAPTURE(text);
    const auto t = sc::parse(text);
    CHECK(sc::to_text(t) == text);
    CHECK(sc::parse(sc::to_text(t)).view() == t.view());
    CHECK(sc::to_string(sc::check_table(t)) == "the schedule is valid");
    const auto lowered = sc::lower(t);
    CHECK(sc::check_table(lowered).ok());
    CHECK(sc::parse(sc::to_text(lowered)).view() == lowered.view());
    CHECK(emulator::run(sc::make_plan(t).view()) == emulator::serial(t));
  }
}
