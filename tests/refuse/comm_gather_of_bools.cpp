// refuse: heddle: the elements of a std::vector<bool> are bits without an address; use a std::vector<char> or std::vector<unsigned char>
#include <heddle/collective/collectives.hpp>
#include <heddle/comm/threads.hpp>

#include <vector>

void program(heddle::threads_communicator& c, const std::vector<bool>& mine, std::vector<char>& all) {
  heddle::all_gather<heddle::algo::ring>(c, mine, all);
}
