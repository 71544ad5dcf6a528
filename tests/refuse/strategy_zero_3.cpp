// refuse: heddle: zero<Stage>: Stage is 0 (replicated optimizer state) or 1 (state sharded over dp)
#include <heddle/train/zero.hpp>

namespace hd = heddle;
hd::zero<3> everything;
