// refuse: heddle: activations::recompute<...> got two of full and every<K>; keep one of them
#include <heddle/train/activations/recompute.hpp>

using namespace heddle::activations;
constexpr bool any = recompute<full, every<2>>::again.any();
