// refuse: heddle: the schedule cannot run this number of microbatches on this number of pipeline ranks
// and: at::ranks<4>,
// and: at::microbatches<6>
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/generate/gpipe.hpp>

// A schedule of a user that wants a multiple of the ranks.
template <class Microbatches>
struct in_rounds : heddle::schedule::gpipe<Microbatches> {
  constexpr bool fits(int ranks) const { return this->microbatch_count() % ranks == 0; }
};
using mesh = heddle::mesh<heddle::axis<heddle::pp, 4>>;
static_assert(heddle::schedule::require<in_rounds<heddle::microbatches<8>>, mesh>());
static_assert(heddle::schedule::require<in_rounds<heddle::microbatches<6>>, mesh>());
