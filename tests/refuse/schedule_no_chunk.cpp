// refuse: heddle: a rank of a pipeline holds at least one stage; give a number of chunks of at least 1
#include <heddle/schedule/generate/zb_h1.hpp>

heddle::schedule::zb_h1<heddle::microbatches<8>, 0> no_stages;
