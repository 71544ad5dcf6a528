// refuse: heddle: all_reduce writes its result where its input is; pass a variable that is not const
#include <heddle/comm/threads.hpp>

double loss();

void program(heddle::threads_communicator& c) {
  c.all_reduce(loss(), heddle::plus{});
}
