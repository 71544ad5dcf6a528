// refuse: heddle: post_validation takes steps back by the optimizer's formulas, and what precision<...> rounds is not brought back by them; use post_validation_with_copy
#include <heddle/train/post_validation.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
hd::strategy<mesh, hd::post_validation, hd::precision<hd::weights_in<hd::bf16>>> odd;
