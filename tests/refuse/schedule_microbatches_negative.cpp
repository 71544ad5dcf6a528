// refuse: heddle: microbatches<N>: a step needs at least one microbatch; leave N out if it is known only at start-up
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/generate/gpipe.hpp>

using mesh = heddle::mesh<heddle::axis<heddle::pp, 4>>;
static_assert(heddle::schedule::require<heddle::schedule::gpipe<heddle::microbatches<-1>>, mesh>());
