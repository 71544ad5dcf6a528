// refuse: heddle: only trivially copyable elements can travel between ranks
#include <heddle/comm/threads.hpp>

#include <string>
#include <vector>

void program(heddle::threads_communicator& c, std::vector<std::string>& x) {
  c.isend(x, 0).wait();
}
