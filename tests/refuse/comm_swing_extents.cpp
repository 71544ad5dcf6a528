// refuse: heddle: swing needs a torus whose extents are even, or 1
#include <heddle/collective/algorithm/swing.hpp>

namespace hd = heddle;

int program() {
  return hd::algo::swing_torus<4, 5>::rounds<hd::comm_operation::all_reduce>(20, 0).view().rounds();
}
