// Plans from text (nano-batches and their tables of shares, placements of experts): what is accepted, printed and read again is the same plan.
#include <heddle/plan/co_clustering.hpp>
#include <heddle/plan/nano_batches.hpp>
#include <heddle/sim/lanes.hpp>

#include "fuzz.hpp"

#include <string_view>

HEDDLE_FUZZ_TARGET(plans) {
  namespace plan = heddle::plan;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::accepted([&] {
    const plan::nano_plan p = plan::parse_nano_plan(text);
    fuzz::require(plan::parse_nano_plan(to_text(p)) == p, "a nano plan reads back");
  });
  fuzz::accepted([&] {
    const heddle::sim::share_table t = heddle::sim::parse_share_table(text);
    fuzz::require(heddle::sim::parse_share_table(to_text(t)) == t, "a table of shares reads back");
  });
  fuzz::accepted([&] {
    const plan::expert_placement p = plan::parse_expert_placement(text);
    fuzz::require(plan::parse_expert_placement(to_text(p)) == p, "a placement reads back");
    fuzz::require(p.order(0).size() == static_cast<std::size_t>(p.experts), "an order has all experts");
  });
}
