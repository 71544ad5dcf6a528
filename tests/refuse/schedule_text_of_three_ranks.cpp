// refuse: heddle: written<"...">: the text has lists for another number of pipeline ranks than the mesh has; `finding` names the mesh's, then the text's; write one list for each rank, separated by |
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/text/parse.hpp>

using mesh = heddle::mesh<heddle::axis<heddle::pp, 2>>;
using hand = heddle::schedule::written<"F0 B0 | F0 B0 | F0 B0">;
static_assert(heddle::schedule::require<hand, mesh>());
