// refuse: heddle: counts of elements are std::int64_t, next to each other in memory: pass a std::vector<std::int64_t>, an array or a span of them
#include <heddle/comm/threads.hpp>

#include <cstdint>
#include <vector>

void program(heddle::threads_communicator& c, std::vector<float>& x, std::vector<float>& y) {
  const std::vector<int> sent{1, 2};
  const std::vector<std::int64_t> received{2, 1};
  c.all_to_all_v(x, sent, y, received);
}
