// refuse: heddle: privacy::channels<N>: a pixel has 1 to 4 channels
#include <heddle/compute/pixelize.hpp>

constexpr int spectrum = heddle::privacy::channels<5>::count;
