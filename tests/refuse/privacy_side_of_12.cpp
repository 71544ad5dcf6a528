// refuse: heddle: privacy::sides<...>: each side must divide 64, the side of a tile
#include <heddle/compute/pixelize.hpp>

constexpr auto sides = heddle::privacy::sides<8, 12>::list;
