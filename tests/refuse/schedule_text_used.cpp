// refuse: heddle: written<"...">: the text is not a schedule
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/lower/plan.hpp>

// No errors of checks behind it.
using mesh = heddle::mesh<heddle::axis<heddle::pp, 2>>;
using hand = heddle::schedule::written<"F0 X1 B0 B1 | F0 B0 F1 B1">;
constexpr int m = hand{}.microbatch_count();
static_assert(heddle::schedule::require<hand, mesh>());
static_assert(heddle::schedule::valid<hand, mesh> && heddle::schedule::deadlock_free<hand, mesh>);
auto plan = heddle::schedule::plan_for(hand{}, mesh{});
