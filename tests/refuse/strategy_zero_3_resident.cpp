// refuse: heddle: zero<3, Resident>: at least 1 stage of a rank is whole at a time; 2 fetches the next one ahead
#include <heddle/train/zero.hpp>

namespace hd = heddle;
hd::zero<3, 0> nothing;
