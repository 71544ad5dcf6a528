// refuse: heddle: name the extent of every dimension of the torus, each positive
#include <heddle/collective/algorithm/torus.hpp>

namespace hd = heddle;

int program() {
  return hd::algo::torus<>::rounds<hd::comm_operation::all_reduce>(1, 0).view().rounds();
}
