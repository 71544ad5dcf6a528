// refuse: heddle: privacy::pixels<M>: neighbouring frames differ in at least one pixel
#include <heddle/compute/pixelize.hpp>

constexpr auto nobody = heddle::privacy::pixels<0>::count;
