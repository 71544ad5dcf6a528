// refuse: heddle: the schedule is not valid: an action is missing, repeated, out of order or on the wrong rank
// and: problem::missing,
// and: at::rank<1>,
// and: at::needs<
// and: action_kind::backward>
// and: at::stage<1>,
// and: at::microbatch<1>
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/text/parse.hpp>

using forgets = heddle::schedule::written<"F0 F1 B0 B1 | F0 B0 F1">;
static_assert(heddle::schedule::require<forgets, heddle::mesh<heddle::axis<heddle::pp, 2>>>());
