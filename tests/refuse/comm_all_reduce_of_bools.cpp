// refuse: heddle: the elements of a std::vector<bool> are bits without an address; use a std::vector<char> or std::vector<unsigned char>
#include <heddle/comm/threads.hpp>

#include <vector>

void program(heddle::threads_communicator& c, std::vector<bool>& flags) {
  c.all_reduce(flags, heddle::maximum{});
}
