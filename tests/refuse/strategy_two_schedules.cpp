// refuse: heddle: strategy<...> got two policies of one kind; keep one of them
#include <heddle/schedule/generate/gpipe.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::pp, 2>>;
using twice = hd::strategy<mesh, hd::schedule::gpipe<hd::microbatches<4>>, hd::zero<1>, hd::schedule::one_f_one_b<hd::microbatches<4>>>;
twice::schedule when;
