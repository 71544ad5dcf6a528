// refuse: heddle: written<"...">: the text has lists for another number of pipeline ranks than the mesh has; `finding` names the mesh's, then the text's; write one list for each rank, separated by |
// and: at::ranks<2>
// and: at::ranks<1>
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/text/parse.hpp>

using mesh = heddle::mesh<heddle::axis<heddle::pp, 2>>;
using hand = heddle::schedule::written<"F0 F1 B0 B1">;
static_assert(heddle::schedule::require<hand, mesh>());
