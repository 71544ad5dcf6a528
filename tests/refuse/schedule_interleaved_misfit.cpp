// refuse: heddle: the schedule cannot run this number of microbatches on this number of pipeline ranks
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/generate/interleaved.hpp>

// Microbatches go in groups of at least p, all of one size: 9 on 4 ranks would be a group of 4 and one of 5.
using mesh = heddle::mesh<heddle::axis<heddle::pp, 4>>;
static_assert(heddle::schedule::require<heddle::schedule::interleaved<heddle::microbatches<8>>, mesh>());
static_assert(heddle::schedule::require<heddle::schedule::interleaved<heddle::microbatches<9>>, mesh>());
