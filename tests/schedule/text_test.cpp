#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/lower/lower.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/text/print.hpp>
#include <heddle/schedule/routed.hpp>
#include <heddle/schedule/table_schedule.hpp>

#include "catch.hpp"
#include "schedules.hpp"

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

namespace sc = heddle::schedule;
using kind = sc::action_kind;

TEST_CASE("actions have the text form of the field", "[schedule]") {
  CHECK(sc::to_text(sc::action{kind::forward, 2, 0, -1}) == "2F0");
  CHECK(sc::to_text(sc::action{kind::backward_input, 1, 3, -1}) == "1I3");
  CHECK(sc::to_text(sc::action{kind::send_forward, 0, 2, 1}) == "0SEND_F2");
  CHECK(sc::to_text(sc::action{kind::recv_backward, 10, 123, 11}) == "10RECV_B123");
  CHECK(sc::to_text(sc::action{kind::reduce_gradient, 3, -1, -1}) == "3REDUCE_GRAD");
  CHECK(sc::to_text(sc::action{kind::optimizer_step, 3, -1, -1}) == "3OPTIM");
}

TEST_CASE("text round-trips", "[schedule][property]") {
  for (const int p : {1, 2, 3, 4, 6, 8})
    for (const int m : {1, 2, 12, 16})
      for (const auto& [name, table] : schedules::all_tables(p, m)) {
        CAPTURE(name, p, m);
        REQUIRE(sc::parse(sc::to_text(table)).view() == table.view());
        const auto lowered = sc::lower(table);
        REQUIRE(sc::parse(sc::to_text(lowered)).view() == lowered.view());
      }
}

TEST_CASE("text is read with blanks, commas, blank lines, bars, and without stage numbers", "[schedule]") {
  const auto t = sc::parse("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n");
  CHECK(sc::parse("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1").view() == t.view());
  CHECK(sc::parse("\n  0F0 , 0F1\t0B0 0B1 \r\n\n|1F0 1B0 1F1 1B1\n\n").view() == t.view());
  CHECK(sc::parse("F0 F1 B0 B1 | F0 B0 F1 B1").view() == t.view());
  CHECK(t.microbatches == 2);
  CHECK(t.rank_of_stage == std::vector<int>{0, 1});
  // Peers follow from where the stages are.
  const auto v = sc::parse("0F0 0SEND_F0 3RECV_F0 3F0 | 1RECV_F0 1F0 2F0 2SEND_F0");
  CHECK(v.rank_of_stage == std::vector<int>{0, 1, 1, 0});
  CHECK(v.actions[1].peer == 1);
  CHECK(v.actions[2].peer == 1);
  CHECK(v.actions[4].peer == 0);
  using hand = sc::written<"F0 F1 B0 B1 | F0 B0 F1 B1">;
  STATIC_REQUIRE(sc::table_of<hand, 2>.view() == sc::table_of<sc::one_f_one_b<heddle::microbatches<2>>, 2>.view());
  const char* const other = "heddle: the schedule has lists for 2 pipeline ranks, but there are 3; write one list for each";
  CHECK_THROWS_WITH(sc::make_table(hand{}, 3), Catch::Matchers::Contains(other));
  CHECK_THROWS_WITH(sc::make_table(sc::tabled(sc::parse("F0 F1 B0 B1 | F0 B0 F1 B1")), 3),
                    Catch::Matchers::Contains(other));
}

TEST_CASE("text says where stages without actions are, and the ways of microbatches", "[schedule]") {
  const char* const text =
      "0F0 0F1 0B0 0B1\n"
      "1F0 1B0\n"
      "-\n"
      "3F0 3F1 3B0 3B1\n"
      "STAGES 0 1 2 3\n"
      "WAYS 0:0>1>3 1:0>3\n";
  const auto t = sc::parse(text);
  CHECK(sc::to_text(t) == text);
  CHECK(t.rank_of_stage == std::vector<int>{0, 1, 2, 3});
  CHECK(t.view().next(0, 0) == 1);
  CHECK(t.view().next(0, 1) == 3);
  CHECK(t.view().previous(3, 1) == 0);
  CHECK(t.view().next(3, 1) == -1);
  CHECK(t.view().next(1, 1) == sc::not_on_path);
  CHECK_FALSE(t.view().handles(2, 0));
  CHECK(sc::check_table(t).ok());
  const auto lowered = sc::lower(t);
  CHECK(sc::check_table(lowered).ok());
  CHECK(sc::parse(sc::to_text(lowered)).view() == lowered.view());
  CHECK(sc::sends(lowered) == 2 * (2 + 1));
  // As a type, with bars; ways in any order.
  using hand = sc::written<"F0 F1 B0 B1 | F0 B0 | - | F0 F1 B0 B1 | WAYS 1:0>3 0:0>1>3 | STAGES 0, 1, 2, 3">;
  STATIC_REQUIRE(sc::schedule_policy<hand>);
  STATIC_REQUIRE(sc::deadlock_free<hand, heddle::mesh<heddle::axis<heddle::pp, 4>>>);
  CHECK(sc::table_of<hand, 4>.view() == t.view());
  CHECK(sc::lowered_of<hand, 4>.view() == lowered.view());
  CHECK(sc::make_table(sc::tabled{t}, 4).view() == t.view());
  // Swapped stages.
  const auto swapped = sc::parse("0F0 0F1 0B1 0B0 | 1F0 1F1 1B1 1B0 | 2F1 2F0 2B0 2B1 | WAYS 0:0>1>2 1:0>2>1");
  CHECK(swapped.view().next(2, 1) == 1);
  CHECK(sc::parse(sc::to_text(swapped)).view() == swapped.view());
  // A broken way is printed as far as it goes.
  auto broken = t;
  broken.next[3 * 2] = 0;
  CHECK(sc::to_text(broken).find("WAYS 0:0>1>3>0 1:0>3") != std::string::npos);
}

TEST_CASE("random tables with ways round-trip as text", "[schedule][property]") {
  const auto seed = GENERATE(11u, Catch::Generators::take(2, Catch::Generators::random(0u, 4000000000u)));
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    sc::path_table paths;
    paths.stages = 2 + static_cast<int>(random() % 5);
    paths.length = 1 + static_cast<int>(random() % static_cast<unsigned>(paths.stages));
    for (int s = 0; s < paths.stages; ++s)
      for (auto copies = 1 + random() % 3; copies > 0; --copies) paths.stage_of_node.push_back(s);
    std::shuffle(paths.stage_of_node.begin(), paths.stage_of_node.end(), random);
    const auto some_node = [&](int stage) {
      for (;;) {
        const int n = static_cast<int>(random() % paths.stage_of_node.size());
        if (paths.stage_of_node[static_cast<std::size_t>(n)] == stage) return n;
      }
    };
    for (auto i = 1 + random() % 6; i > 0; --i) {
      std::vector<int> others;
      for (int s = 1; s < paths.stages; ++s) others.push_back(s);
      std::shuffle(others.begin(), others.end(), random);
      paths.way.push_back(some_node(0));
      for (int k = 0; k + 1 < paths.length; ++k) paths.way.push_back(some_node(others[static_cast<std::size_t>(k)]));
    }
    const auto table = sc::make_table(sc::routed{paths}, paths.nodes());
    const std::string text = sc::to_text(table);
    CAPTURE(text);
    REQUIRE(sc::parse(text).view() == table.view());
    const auto lowered = sc::lower(table);
    REQUIRE(sc::parse(sc::to_text(lowered)).view() == lowered.view());
    REQUIRE(sc::check_table(sc::parse(sc::to_text(lowered))).ok());
  }
}

TEST_CASE("text that is not a table is refused with the place and the piece that is wrong", "[schedule]") {
  const std::string start = "heddle: the text of a schedule: ";
  const auto refuses = [&](const char* text, const std::string& message) {
    CAPTURE(text);
    CHECK_THROWS_AS(sc::parse(text), heddle::schedule_error);
    CHECK_THROWS_WITH(sc::parse(text), start + message);
  };
  refuses("F0 B0 | X1",
          "rank 1, position 0: unknown action; expected [stage]KIND[microbatch], as in 2F0 or 0SEND_F2: \"X1\"");
  refuses("0F0 0X1 0B0",
          "rank 0, position 1: unknown action; expected [stage]KIND[microbatch], as in 2F0 or 0SEND_F2: \"0X1\"");
  refuses("0F0 7",
          "rank 0, position 1: unknown action; expected [stage]KIND[microbatch], as in 2F0 or 0SEND_F2: \"7\"");
  refuses("0F0 | - | 0F", "rank 2, position 0: the number of the microbatch is missing: \"0F\"");
  refuses("0F0 0OPTIM1", "rank 0, position 1: this action has no microbatch: \"0OPTIM1\"");
  refuses("0F0;0B0", "rank 0, position 0: expected a blank, a comma or the end of the rank's list: \";0B0\"");
  refuses("0F99999999999999999999", "rank 0, position 0: the number is too large: \"0F99999999999999999999\"");
  refuses("99999999999F0", "rank 0, position 0: the number is too large: \"99999999999F0\"");
  refuses("0F0 (0F1;0B0)",
          "rank 0, position 1: expected (ACTION;ACTION)OVERLAP_F_B with the kinds of the two actions: \"(0F1;0B0)\"");
  refuses("0F0 (0F1;0X1)OVERLAP_F_X",
          "rank 0, position 2: unknown action; expected [stage]KIND[microbatch], as in 2F0 or 0SEND_F2: "
          "\"0X1)OVERLAP_F_X\"");
  refuses("0F0 (0F1;0SEND_F0)OVERLAP_F_SEND_F",
          "rank 0, position 1: only computations (F, B, I, W) can overlap: \"(0F1;0SEND_F0)OVERLAP_F_SEND_F\"");
  refuses("0F0 -", "rank 0, position 1: \"-\" stands alone, for a rank that does nothing: \"-\"");
  refuses("- 0F0", "rank 0, position 0: \"-\" stands alone, for a rank that does nothing: \"0F0\"");
  refuses("0F0 2F0", "stage 1 has no action, but a later one has; STAGES says where such a stage is");
  refuses(" \n", "there is no action");
  refuses("0OPTIM", "there is no microbatch");
  refuses("0F0 | STAGES 1", "stage 0 is on a rank that has no list");
  refuses("0F0 1F0 | STAGES 0", "stage 1 has actions, but STAGES does not say on which rank it is");
  refuses("0F0 | STAGES x", "expected the rank of each stage behind STAGES, as in STAGES 0 1 1 0: \"x\"");
  refuses("0F0 | WAYSO 0:0", "rank 1, position 0: expected a blank behind STAGES or WAYS: \"WAYSO\"");
  refuses("0F0 | WAYS 0", "expected microbatch:stage>stage>.., as in 0:0>1>3: \"0\"");
  refuses("0F0 | WAYS 0:0>", "expected microbatch:stage>stage>.., as in 0:0>1>3: \"0:0>\"");
  refuses("0F0 | WAYS 0:0 0:1", "there is no such stage in the lists: \"0:1\"");
  refuses("0F0 1F0 | WAYS 0:0>1>0", "a microbatch comes to one stage twice: \"0:0>1>0\"");
  refuses("0F0 | WAYS 99999999:0", "the number is too large: \"99999999:0\"");
  refuses("0F0 99F0 | STAGES 0 0", "stage 2 has actions, but STAGES does not say on which rank it is");
}
