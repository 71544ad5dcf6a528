// refuse: heddle: privacy::pixelize: the budget of scores is a type here: scored<Budget>
#include <heddle/compute/pixelize.hpp>

namespace pv = heddle::privacy;
constexpr bool yes = pv::pixelize<pv::epsilon<1>, pv::pixels<16>, pv::sides<8>, pv::scored_for>::is_private;
