// refuse: heddle: activations::keep_tail<Part, Of>: a share of the rows: 0 < Part <= Of
#include <heddle/train/activations/recompute.hpp>

using namespace heddle::activations;
constexpr bool any = recompute<full, keep_tail<3, 2>>::again.any();
