// refuse: heddle: with post_validation a stage steps when its gradients are summed, which reduce_beside leaves to the end of the backward; leave one of the two out
#include <heddle/train/post_validation.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
hd::strategy<mesh, hd::post_validation, hd::reduce_beside> odd;
