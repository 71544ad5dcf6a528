// refuse: heddle: privacy::sides<...>: sides must ascend
#include <heddle/compute/pixelize.hpp>

constexpr auto sides = heddle::privacy::sides<16, 8>::list;
