// refuse: heddle: privacy::pixelize: the numerator of a budget must stay below 2^32
#include <heddle/compute/pixelize.hpp>

namespace pv = heddle::privacy;
constexpr auto scale = pv::pixelize<pv::epsilon<4294967296>, pv::pixels<1>, pv::sides<8>>::sum_scale;
