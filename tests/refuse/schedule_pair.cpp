// refuse: heddle: the schedule is not valid: an overlapped pair is two computations that do not need each other
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/text/parse.hpp>

// W waits for I of the same microbatch.
using impatient = heddle::schedule::written<"F0 F1 B0 B1 | F0 F1 (1I0;1W0)OVERLAP_I_W B1">;
static_assert(heddle::schedule::require<impatient, heddle::mesh<heddle::axis<heddle::pp, 2>>>());
