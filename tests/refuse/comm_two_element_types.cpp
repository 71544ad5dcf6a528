// refuse: heddle: input and output of a collective must have the same element type
#include <heddle/comm/threads.hpp>

#include <vector>

void program(heddle::threads_communicator& c, std::vector<int>& in, std::vector<long>& out) {
  c.all_gather(in, out);
}
