// refuse: heddle: the schedule deadlocks: ranks wait for each other
// and: problem::deadlock,
// and: at::rank<0>,
// and: at::position<3>,
// and: action_kind::send_forward>
// and: at::microbatch<1>
// and: at::needs<
// and: action_kind::recv_forward>
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/text/parse.hpp>

// Both ranks send at the same moment.
using crossed = heddle::schedule::written<
    "F0 SEND_F0 F1 SEND_F1 RECV_B0 B0 RECV_B1 B1 | RECV_F0 F0 B0 SEND_B0 RECV_F1 F1 B1 SEND_B1">;
static_assert(heddle::schedule::require<crossed, heddle::mesh<heddle::axis<heddle::pp, 2>>>());
