// refuse: heddle: a reduction needs an associative operator with its identity on the element type
#include <heddle/comm/threads.hpp>

#include <vector>

void program(heddle::threads_communicator& c, std::vector<int>& in, std::vector<int>& out) {
  c.reduce(in, out, [](int a, int b) { return a + b; }, 0);
}
