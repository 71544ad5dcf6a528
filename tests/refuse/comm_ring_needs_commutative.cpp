// refuse: changes the order of the ranks, and the operator does not declare commutative = true; declare it, or use
#include <heddle/collective/collectives.hpp>
#include <heddle/comm/threads.hpp>

#include <vector>

struct last {
  int operator()(int, int b) const { return b; }
};

void program(heddle::threads_communicator& c, std::vector<int>& x) {
  heddle::all_reduce<heddle::algo::ring>(c, x, last{});
}
