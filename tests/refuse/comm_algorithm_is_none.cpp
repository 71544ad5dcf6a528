// refuse: the algorithm of a collective is a type such as algo::ring, with name, offers, order and rounds
#include <heddle/collective/collectives.hpp>
#include <heddle/comm/threads.hpp>

#include <vector>

void program(heddle::threads_communicator& c, std::vector<int>& x) {
  heddle::all_reduce<heddle::plus>(c, x, heddle::plus{});
}
