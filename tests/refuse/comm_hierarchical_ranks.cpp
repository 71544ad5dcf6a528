// refuse: heddle: hierarchical<G>: G is the number of ranks of a node, 1 or more
#include <heddle/collective/algorithm/hierarchical.hpp>

namespace hd = heddle;

int program() {
  return hd::algo::hierarchical<0>::rounds<hd::comm_operation::all_reduce>(4, 0).view().rounds();
}
