// tests/train/static_turns_test.cpp: the same with every schedule whose microbatches turn or meet, and one from text.
#include "catch.hpp"
#include "static_schedules.hpp"

#include <heddle/schedule/generate/chimera.hpp>
#include <heddle/schedule/generate/dual_pipe.hpp>
#include <heddle/schedule/generate/dual_pipe_v.hpp>
#include <heddle/schedule/generate/hanayo.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/generate/v_half.hpp>
#include <heddle/schedule/generate/v_min.hpp>
#include <heddle/schedule/generate/zb_v.hpp>

using four = heddle::microbatches<4>;
namespace sc = heddle::schedule;

TEST_CASE("a GPT-2 trains under every static schedule that turns as on one rank", "[train][schedules]") {
  using hand = sc::written<"F0 F1 B0 B1 F2 F3 B2 B3 | F0 (1F1;1B0)OVERLAP_F_B B1 F2 B2 F3 B3">;
  static_schedules::check_all<sc::zb_v<four>, sc::v_half<four>, sc::v_min<four>, sc::dual_pipe_v<four>,
                              sc::dual_pipe<four>, sc::chimera<four>, sc::hanayo<four>, hand>();
}
