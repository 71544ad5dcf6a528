// refuse: heddle: the schedule deadlocks: ranks wait for each other
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/text/parse.hpp>

// Rank 0 wants the gradient of microbatch 0 first, rank 1 the activation of microbatch 1.
using contrary = heddle::schedule::written<"F0 B0 F1 B1 | F0 F1 B0 B1">;
static_assert(heddle::schedule::require<contrary, heddle::mesh<heddle::axis<heddle::pp, 2>>>());
