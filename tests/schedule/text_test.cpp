#include <heddle/schedule/lower.hpp>
#include <heddle/schedule/parse.hpp>
#include <heddle/schedule/print.hpp>

#include "catch.hpp"
#include "schedules.hpp"

#include <string>

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
}

TEST_CASE("text that is not a table is refused with the piece that is wrong", "[schedule]") {
  CHECK_THROWS_AS(sc::parse("F0 B0 | X1"), heddle::schedule_error);
  CHECK_THROWS_WITH(sc::parse("0F0 0X1 0B0"),
                    Catch::Matchers::Contains("unknown action") && Catch::Matchers::Contains("\"0X1\""));
  CHECK_THROWS_WITH(sc::parse("0F0 0F"), Catch::Matchers::Contains("the number of the microbatch is missing: \"0F\""));
  CHECK_THROWS_WITH(sc::parse("0F0 0OPTIM1"), Catch::Matchers::Contains("this action has no microbatch: \"0OPTIM1\""));
  CHECK_THROWS_WITH(sc::parse("0F0;0B0"), Catch::Matchers::Contains("expected a blank"));
  CHECK_THROWS_WITH(sc::parse("0F0 7"), Catch::Matchers::Contains("unknown action"));
  CHECK_THROWS_WITH(sc::parse("0F99999999999999999999"), Catch::Matchers::Contains("too large"));
  CHECK_THROWS_WITH(sc::parse("99999999999F0"), Catch::Matchers::Contains("too large"));
  CHECK_THROWS_WITH(sc::parse("0F0 2F0"),
                    Catch::Matchers::Contains("a stage with a smaller number than another has no action"));
  CHECK_THROWS_WITH(sc::parse(" \n"), Catch::Matchers::Contains("there is no action"));
  CHECK_THROWS_WITH(sc::parse("0OPTIM"), Catch::Matchers::Contains("there is no microbatch"));
}
