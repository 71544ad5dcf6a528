#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/lower/plan.hpp>

#include "catch.hpp"
#include "schedules.hpp"

#include <string>

namespace sc = heddle::schedule;
using heddle::microbatches;
using kind = sc::action_kind;
using sc::problem;

namespace {

std::string complaint(std::string_view text, sc::transfers mode = sc::transfers::rendezvous) {
  return sc::to_string(sc::check_table(sc::parse(text), mode));
}
problem found(std::string_view text, sc::transfers mode = sc::transfers::rendezvous) {
  return sc::check_table(sc::parse(text), mode).what;
}

}  // namespace

TEST_CASE("a report names rank, position, action and microbatch", "[schedule]") {
  CHECK(complaint("0F0 0B0 | 1F0 1B0") == "the schedule is valid");
  CHECK(complaint("0F0 0B0 | 1B0 1F0") ==
        "heddle: rank 1, position 0 (1B0): it needs 1F0 earlier in the list of this rank");
  CHECK(complaint("0F0 0I0 0W0 0F1 0W1 0I1") ==
        "heddle: rank 0, position 4 (0W1): it needs 0I1 earlier in the list of this rank");
  CHECK(complaint("0F0 0F0 0B0") ==
        "heddle: rank 0, position 1 (0F0): 0F0 was listed before; a part of a step runs once");
  CHECK(complaint("0F0 0B0 0W0") ==
        "heddle: rank 0, position 2 (0W0): 0B0 was listed before; a part of a step runs once");
  CHECK(complaint("0F0 0I0 0B0") ==
        "heddle: rank 0, position 2 (0B0): 0I0 was listed before; a part of a step runs once");
  CHECK(complaint("0F0 0B0 0F1 | 1F0 1B0 1F1 1B1") == "heddle: rank 0: 0B1 never occurs");
  CHECK(complaint("0F0 0I0") == "heddle: rank 0: 0W0 never occurs");
  CHECK(complaint("0F0 1F0 | 1B0 0B0") == "heddle: rank 1, position 0 (1B0): stage 1 lives on rank 0");
  CHECK(complaint("0F0 0REDUCE_GRAD 0B0") ==
        "heddle: rank 0, position 1 (0REDUCE_GRAD): it needs 0B0 earlier in the list of this rank");
  CHECK(complaint("0F0 0I0 0REDUCE_GRAD 0W0") ==
        "heddle: rank 0, position 2 (0REDUCE_GRAD): it needs 0W0 earlier in the list of this rank");
  CHECK(complaint("0F0 0B0 0OPTIM 0REDUCE_GRAD") ==
        "heddle: rank 0, position 2 (0OPTIM): it needs 0REDUCE_GRAD earlier in the list of this rank");
  CHECK(complaint("0F0 0B0 0REDUCE_GRAD | 1F0 1B0") == "heddle: rank 1: 1REDUCE_GRAD never occurs");
  CHECK(complaint("0F0 0B0 0SEND_F0") ==
        "heddle: rank 0, position 2 (0SEND_F0): there is no stage on another rank to transfer with; remove it");
  CHECK(complaint("0F0 0SEND_F0 0RECV_B0 0B0 | 1RECV_F0 1F0 1B0") == "heddle: rank 1: 1SEND_B0 never occurs");
  CHECK(complaint("0F0 0SEND_F0 0RECV_B0 0B0 | 1F0 1RECV_F0 1B0 1SEND_B0") ==
        "heddle: rank 1, position 0 (1F0): it needs 1RECV_F0 earlier in the list of this rank");
  CHECK(complaint("0F1 0F0 0B0 0B1 | 1F0 1F1 1B1 1B0") == "the schedule is valid");
  CHECK(
      complaint("0F1 0SEND_F1 0F0 0SEND_F0 0RECV_B0 0B0 0RECV_B1 0B1 | "
                "1RECV_F0 1RECV_F1 1F0 1F1 1B0 1SEND_B0 1B1 1SEND_B1") ==
      "heddle: rank 1, position 0 (1RECV_F0): rank 0 sends 0SEND_F1 at this place; both sides must list their messages "
      "in one order");
  // Computations whose orders contradict each other deadlock before any transfer is placed.
  CHECK(complaint("0F0 0B0 0F1 0B1 | 1F0 1F1 1B0 1B1") ==
        "heddle: rank 0, position 1 (0B0): deadlock: it waits for 1B0 of rank 1, which stands at position 1 (1F1)");
  const auto naive = schedules::naive(sc::make_table<sc::one_f_one_b<microbatches<2>>>(2));
  CHECK(sc::to_string(sc::check_table(naive)) ==
        "heddle: rank 0, position 3 (0SEND_F1): deadlock: it waits for 1RECV_F1 of rank 1, which stands at position 3 "
        "(1SEND_B0)");
}

TEST_CASE("tables that make no sense are refused before they are read", "[schedule]") {
  auto t = sc::make_table<sc::gpipe<microbatches<2>>>(2);
  CHECK(sc::check_table(sc::table_view{}).what == problem::malformed);
  t.microbatches = 2000000000;
  CHECK(sc::check_table(t).what == problem::too_large);
  t = sc::make_table<sc::gpipe<microbatches<2>>>(2);
  t.rank_of_stage[1] = 5;
  CHECK(sc::to_string(sc::check_table(t)) == "heddle: stage 1 lives on a rank that does not exist");
  t = sc::make_table<sc::gpipe<microbatches<2>>>(2);
  t.actions[0].stage = 9;
  CHECK(sc::check_table(t).what == problem::unknown_stage);
  t.actions[0] = {kind::forward, 0, 2, -1};
  CHECK(sc::to_string(sc::check_table(t)) ==
        "heddle: rank 0, position 0 (0F2): there is no microbatch 2 for this action");
  t.actions[0] = {kind::forward, 0, -1, -1};
  CHECK(sc::check_table(t).what == problem::unknown_microbatch);
  auto lowered = sc::lower(sc::make_table<sc::gpipe<microbatches<2>>>(3));
  lowered.actions[1].peer = 2;
  CHECK(sc::to_string(sc::check_table(lowered)) ==
        "heddle: rank 0, position 1 (0SEND_F0): the transfer names rank 2, but the other stage lives on rank 1");
  CHECK_THROWS_AS(sc::require_table(lowered), heddle::schedule_error);
  lowered = sc::lower(sc::make_table<sc::gpipe<microbatches<2>>>(3));
  lowered.actions[0].peer = 1;
  CHECK(sc::to_string(sc::check_table(lowered)) ==
        "heddle: rank 0, position 0 (0F0): only sends and receives have a peer, this action names rank 1");
  CHECK_NOTHROW(sc::require_table(sc::make_table<sc::gpipe<microbatches<2>>>(3)));
}

TEST_CASE("backwards may be whole or split, also within one table", "[schedule]") {
  CHECK(found("0F0 0F1 0B0 0I1 0W1") == problem::none);
  CHECK(found("0F0 0F1 0I1 0I0 0W0 0W1 0REDUCE_GRAD 0OPTIM") == problem::none);
  CHECK(found("0F0 1F0 1B0 0B0") == problem::none);                            // two stages on one rank
  CHECK(found("1F0 0F0 1B0 0B0") == problem::out_of_order);                    // ... in the wrong order
  CHECK(found("0F0 3F0 3I0 3W0 0B0 | 1F0 2F0 2I0 1B0 2W0") == problem::none);  // a V
  CHECK(found("0F0 3F0 3W0 3I0 0B0 | 1F0 2F0 2I0 1B0 2W0") == problem::out_of_order);
}
