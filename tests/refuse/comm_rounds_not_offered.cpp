// refuse: heddle: this algorithm has no rounds for this collective on this number of ranks; name another one
#include <heddle/collective/algorithm/swing.hpp>

namespace hd = heddle;

int program() {
  return hd::static_rounds<hd::algo::swing, hd::comm_operation::all_reduce, 5>::view().rounds();
}
