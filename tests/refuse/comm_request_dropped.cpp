// refuse: heddle: a message that was started must be waited for
#include <heddle/comm/threads.hpp>

#include <vector>

#pragma GCC diagnostic error "-Wunused-result"

void program(heddle::threads_communicator& c, std::vector<int>& x) {
  c.isend(x, 1);
}
