// refuse: this algorithm has no rounds for this collective; name another one, or none
#include <heddle/collective/collectives.hpp>
#include <heddle/comm/threads.hpp>

#include <vector>

void program(heddle::threads_communicator& c, std::vector<int>& x, std::vector<int>& y) {
  heddle::all_to_all<heddle::algo::ring>(c, x, y);
}
