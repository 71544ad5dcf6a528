// refuse: heddle: local_offset: this layout deals out several intervals of a dimension, so there is no one offset
#include <heddle/layout/layout.hpp>

using namespace heddle;
using L = layout<mesh<axis<cp, 2>>, shard<0, split::zigzag, cp>>;
int main() { return static_cast<int>(L::local_offset(shape{8}, 0)[0]); }
