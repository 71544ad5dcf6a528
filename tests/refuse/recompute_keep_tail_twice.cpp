// refuse: heddle: activations::recompute<...> got two of keep_tail<Part, Of>; keep one of them
#include <heddle/train/activations/recompute.hpp>

using namespace heddle::activations;
constexpr bool any = recompute<full, keep_tail<1, 2>, keep_tail<1, 3>>::again.any();
