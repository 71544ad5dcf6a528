// refuse: exclusive_scan gives rank 0 the operator's identity: template <class T> T identity()
#include <heddle/collective/collectives.hpp>
#include <heddle/comm/threads.hpp>

#include <vector>

void program(heddle::threads_communicator& c, std::vector<int>& x, std::vector<int>& y) {
  heddle::exclusive_scan(c, x, y, [](int a, int b) { return a + b; });
}
