// Settings of recomputation: what is accepted, printed and read again is the same plan.
#include <heddle/model/recompute_plan.hpp>

#include "fuzz.hpp"

HEDDLE_FUZZ_TARGET(recompute) {
  namespace md = heddle::model;
  fuzz::accepted([&] {
    const md::recompute_plan plan = md::parse_recompute({reinterpret_cast<const char*>(data), size});
    fuzz::require(md::parse_recompute(md::to_string(plan)) == plan, "a plan reads back");
    static_cast<void>(plan.of_block(0)), static_cast<void>(plan.of_block(65535)), static_cast<void>(plan.of_end());
  });
}
