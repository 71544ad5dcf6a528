// refuse: heddle: privacy::pixelize: pixels<M> and a budget N / D: 255 M D channels must stay below 2^32; the second number of at_most is the largest M
#include <heddle/compute/pixelize.hpp>

namespace pv = heddle::privacy;
constexpr auto scale = pv::pixelize<pv::epsilon<1, 100>, pv::pixels<168431>, pv::sides<8>>::sum_scale;
