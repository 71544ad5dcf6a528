// refuse: heddle: zero<Stage>: Stage is 0 (all replicated), 1 (optimizer state sharded over dp), 2 (gradients, too) or 3 (weights, too)
#include <heddle/train/zero.hpp>

namespace hd = heddle;
hd::zero<4> everything;
