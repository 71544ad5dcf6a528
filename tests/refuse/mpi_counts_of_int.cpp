// refuse: heddle: counts of elements are std::int64_t, next to each other in memory: pass a std::vector<std::int64_t>, an array or a span of them
#include <heddle/comm/mpi.hpp>

#include <vector>

void program(heddle::mpi_communicator& c, const std::vector<float>& x, std::vector<float>& all) {
  c.all_gather_v(x, all, std::vector<int>{1, 2});
}
