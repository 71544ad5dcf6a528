// refuse: heddle: activations::keep_tail<Part, Of> keeps rows of attn.out where it is dropped: add full, every<K> or named<"attn.out">
#include <heddle/train/activations/recompute.hpp>

using namespace heddle::activations;
constexpr bool any = recompute<keep_tail<1, 2>, named<"mid">>::again.any();
