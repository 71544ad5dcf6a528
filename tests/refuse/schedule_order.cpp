// refuse: heddle: the schedule is not valid: an action is missing, repeated, out of order or on the wrong rank
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/text/parse.hpp>

// Offloaded and never brought back.
using forgets = heddle::schedule::written<"F0 OFFLOAD0 B0 | F0 B0">;
static_assert(heddle::schedule::require<forgets, heddle::mesh<heddle::axis<heddle::pp, 2>>>());
