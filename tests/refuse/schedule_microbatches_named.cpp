// refuse: heddle: microbatches<N>: a step needs at least one microbatch; leave N out if it is known only at start-up
#include <heddle/schedule/generate/one_f_one_b.hpp>

// Only named and constructed, as in a strategy.
auto when = heddle::schedule::one_f_one_b<heddle::microbatches<0>>{};
