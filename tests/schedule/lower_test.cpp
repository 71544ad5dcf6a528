#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/lower/plan.hpp>

#include "catch.hpp"
#include "emulator.hpp"
#include "pairs.hpp"
#include "schedules.hpp"

#include <string>
#include <vector>

namespace sc = heddle::schedule;
using heddle::microbatches;
using kind = sc::action_kind;

TEST_CASE("lowered tables finish with blocking transfers and compute what a serial run does", "[schedule][law]") {
  for (const int p : {1, 2, 3, 4, 6, 8})
    for (const int m : {1, 2, 5, p, 2 * p - 1, 2 * p, 4 * p})
      for (const auto& [name, table] : schedules::all_tables(p, m)) {
        CAPTURE(name, p, m);
        const auto lowered = sc::lower(table);
        for (const auto mode : {sc::transfers::buffered, sc::transfers::rendezvous}) {
          CAPTURE(sc::to_string(sc::check_table(lowered, mode)));
          REQUIRE(sc::check_table(lowered, mode).ok());
          const auto result = emulator::run(lowered, mode);
          REQUIRE(result.has_value());
          REQUIRE(*result == emulator::serial(lowered.view().stages(), m));
        }
        // Both sides of a pair of ranks list all their transfers, up and down, in one order.
        for (int a = 0; a < p; ++a)
          for (int b = a + 1; b < p; ++b) {
            std::vector<sc::action> left, right;
            for (const sc::action& x : lowered.view().list(a))
              if (x.peer == b) left.push_back(x);
            for (const sc::action& x : lowered.view().list(b))
              if (x.peer == a) right.push_back(sc::counterpart(x, lowered));
            REQUIRE(left == right);
          }
      }
}

TEST_CASE("transfers placed by hand, next to their computations, deadlock except in GPipe", "[schedule]") {
  for (int p = 2; p <= 8; ++p)
    for (int m = 2; m <= 4 * p; ++m)
      for (const auto& [name, table] : schedules::all_tables(p, m)) {
        CAPTURE(name, p, m);
        const auto naive = schedules::naive(table);
        const auto report = sc::check_table(naive, sc::transfers::rendezvous);
        // Breadth-first with fewer microbatches than ranks is one GPipe behind the other: the ring never fills.
        REQUIRE(report.ok() == (name == "gpipe" || (name == "breadth_first v=2" && m < p)));
        if (naive.view().stages() == p) {
          REQUIRE(sc::check_table(naive, sc::transfers::buffered).ok());
          REQUIRE((report.ok() || report.what == sc::problem::deadlock));
        }
        REQUIRE(emulator::run(naive, sc::transfers::rendezvous).has_value() == report.ok());
      }
}

TEST_CASE("gradients are reduced right after the last backward of a stage", "[schedule]") {
  for (const auto& [name, table] : schedules::all_tables(4, 8)) {
    CAPTURE(name);
    const auto lowered = sc::lower(table);
    for (int s = 0; s < lowered.view().stages(); ++s) {
      const auto list = lowered.view().list(lowered.view().rank_of(s));
      std::size_t last = 0, reduction = 0;
      for (std::size_t k = 0; k < list.size(); ++k) {
        if (list[k].stage != s) continue;
        if (list[k].kind == kind::backward || list[k].kind == kind::backward_weight) last = k;
        if (list[k].kind == kind::reduce_gradient) reduction = k;
      }
      // Only the gradient that a neighbour waits for goes first.
      const bool sends = list[last + 1].kind == kind::send_backward;
      CHECK(reduction == last + (sends ? 2 : 1));
    }
    CHECK_FALSE(sc::lower(table, {.reduce_gradients = false}).view().has(kind::reduce_gradient));
  }
}

TEST_CASE("I directly followed by its W becomes B", "[schedule]") {
  const auto split = sc::parse("0F0 0I0 0W0 0F1 0I1 0F2 0W1 0I2 0W2");
  CHECK(sc::to_text(sc::lower(split)) == "0F0 0B0 0F1 0I1 0F2 0W1 0B2 0REDUCE_GRAD\n");
  CHECK(sc::to_text(sc::lower(split, {.merge_backward = false, .reduce_gradients = false})) == sc::to_text(split));
  const auto merged = sc::lower(split, {.place_transfers = false, .reduce_gradients = false});
  CHECK(sc::to_text(merged) == "0F0 0B0 0F1 0I1 0F2 0W1 0B2\n");
  CHECK(sc::to_text(sc::lower(sc::parse("0F0 0F1 0I0 0W0 0I1 0W1 | 1F0 1F1 1I0 1I1 1W0 1W1"))) ==
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD\n"
        "1RECV_F0 1F0 1RECV_F1 1F1 1I0 1SEND_B0 1I1 1SEND_B1 1W0 1W1 1REDUCE_GRAD\n");
  // Rank 0 need not wait for W of rank 1, whoever places the transfers, and when.
  CHECK(sc::to_text(sc::lower(sc::parse("0F0 0I0 0W0 | 1F0 1I0 1W0"), {.place_transfers = false})) ==
        "0F0 0B0 0REDUCE_GRAD\n1F0 1I0 1W0 1REDUCE_GRAD\n");
}

TEST_CASE("no transfers are placed within a rank", "[schedule]") {
  const auto one = sc::lower(sc::parse("0F0 1F0 1B0 0B0"));
  CHECK_FALSE(one.view().has_transfers());
  const auto v = sc::lower(sc::make_table(schedules::zb_v<microbatches<>>{7}, 4));
  for (const sc::action& a : v.actions)
    if (sc::is_transfer(a.kind)) CHECK(a.peer != v.view().rank_of(a.stage));
}

TEST_CASE("what cannot be lowered is refused", "[schedule]") {
  const auto lowered = sc::lower(sc::make_table<sc::gpipe<microbatches<2>>>(2));
  CHECK_THROWS_WITH(sc::lower(lowered), "heddle: the table to lower has sends and receives already");
  CHECK_THROWS_AS(sc::lower(sc::parse("0F0 0B0 0F1 0B1 | 1F0 1F1 1B0 1B1")), heddle::schedule_error);
  CHECK_THROWS_AS(sc::lower(sc::parse("0B0 0F0")), heddle::schedule_error);
}

TEST_CASE("the parts of an overlapped pair stay side by side, between their receives and their sends", "[schedule]") {
  // Rank 1 runs the backward of microbatch 0 beside the forward of microbatch 1.
  const auto table = sc::parse("F0 F1 B0 B1 | F0 (1B0;1F1)OVERLAP_B_F B1");
  CHECK(sc::to_text(sc::lower(table)) ==
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD\n"
        "1RECV_F0 1F0 1RECV_F1 (1B0;1F1)OVERLAP_B_F 1SEND_B0 1B1 1SEND_B1 1REDUCE_GRAD\n");
  // Both parts send: the first part's message first.
  CHECK(sc::to_text(sc::lower(sc::parse("F0 F1 B0 B1 | F0 (1F1;1B0)OVERLAP_F_B B1 | F0 B0 F1 B1"))) ==
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD\n"
        "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1RECV_B0 (1F1;1B0)OVERLAP_F_B 1SEND_F1 1SEND_B0 1RECV_B1 1B1 1SEND_B1 "
        "1REDUCE_GRAD\n"
        "2RECV_F0 2F0 2B0 2SEND_B0 2RECV_F1 2F1 2B1 2SEND_B1 2REDUCE_GRAD\n");
  // I and W merge, but not with one of a pair.
  CHECK(sc::to_text(sc::lower(sc::parse("0F0 0F1 (0I0;0I1)OVERLAP_I_I 0W1 0W0"))) ==
        "0F0 0F1 (0I0;0I1)OVERLAP_I_I 0W1 0W0 0REDUCE_GRAD\n");
  CHECK(sc::to_text(sc::lower(sc::parse("0F0 0I0 (0W0;0F1)OVERLAP_W_F 0I1 0W1"))) ==
        "0F0 0I0 (0W0;0F1)OVERLAP_W_F 0B1 0REDUCE_GRAD\n");
  // A pair whose second part waits for its first never begins.
  CHECK_THROWS_AS(sc::lower(sc::parse("(0F0;0B0)OVERLAP_F_B")), heddle::schedule_error);
  CHECK_THROWS_AS(sc::lower(sc::parse("(0F0;2F0)OVERLAP_F_F 2B0 0B0 | 1F0 1B0")), heddle::schedule_error);
}
