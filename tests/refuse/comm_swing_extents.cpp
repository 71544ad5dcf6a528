// refuse: heddle: swing needs a torus whose extents are powers of two
#include <heddle/comm/algorithm/swing.hpp>

namespace hd = heddle;

int program() {
  return hd::algo::swing_torus<4, 6>::rounds<hd::comm_operation::all_reduce>(24, 0).view().rounds();
}
