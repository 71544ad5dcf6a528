// refuse: heddle: bounded_pat<Most>: Most is a number of blocks, a power of two
#include <heddle/collective/algorithm/pat.hpp>
#include <heddle/collective/rounds_check.hpp>

namespace hd = heddle;

bool program() {
  return hd::check_rounds<hd::algo::bounded_pat<3>, hd::comm_operation::all_reduce>(8).ok();
}
