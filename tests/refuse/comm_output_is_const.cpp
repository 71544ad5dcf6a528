// refuse: heddle: a call writes its result here; pass a span of non-const elements
#include <heddle/comm/threads.hpp>

#include <vector>

void program(heddle::threads_communicator& c, const std::vector<int>& x) {
  c.recv(x, 0);
}
