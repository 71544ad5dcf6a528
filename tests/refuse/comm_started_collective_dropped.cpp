// refuse: heddle: a collective that was started must be waited for
#include <heddle/comm/threads.hpp>

#include <vector>

#pragma GCC diagnostic error "-Wunused-result"

void program(heddle::threads_communicator& c, std::vector<int>& x) {
  c.start_all_reduce(x, heddle::plus{});
}
