// refuse: heddle: microbatches<N>: a step needs at least one microbatch; leave N out if it is known only at start-up
#include <heddle/schedule/generate/one_f_one_b.hpp>

constexpr int n = heddle::schedule::one_f_one_b<heddle::microbatches<0>>{}.microbatch_count();
