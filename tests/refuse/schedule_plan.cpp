// refuse: heddle: the schedule is not valid: an action is missing, repeated, out of order or on the wrong rank
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/lower/plan.hpp>

// Without any static_assert: the plan itself refuses.
using backward_first = heddle::schedule::written<"B0 F0">;
auto plan = heddle::schedule::plan_for(backward_first{}, heddle::mesh<heddle::axis<heddle::dp, 2>>{}).view();
