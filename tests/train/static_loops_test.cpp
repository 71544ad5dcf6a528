// tests/train/static_loops_test.cpp: strategies with every schedule on a loop of stages, all of it known to the compiler.
#include "catch.hpp"
#include "static_schedules.hpp"

#include <heddle/schedule/generate/breadth_first.hpp>
#include <heddle/schedule/generate/gpipe.hpp>
#include <heddle/schedule/generate/interleaved.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/schedule/generate/zb_h1.hpp>
#include <heddle/schedule/generate/zb_h2.hpp>

using four = heddle::microbatches<4>;
namespace sc = heddle::schedule;

TEST_CASE("a GPT-2 trains under every static schedule on a loop as on one rank", "[train][schedules]") {
  static_schedules::check_all<sc::gpipe<four>, sc::one_f_one_b<four>, sc::interleaved<four>, sc::breadth_first<four>,
                              sc::zb_h1<four>, sc::zb_h1<four, 2>, sc::zb_h2<four>>();
}
