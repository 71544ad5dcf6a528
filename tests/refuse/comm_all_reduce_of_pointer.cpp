// refuse: heddle: all_reduce takes a span, a vector, an array or one variable, of a trivially copyable type
#include <heddle/comm/threads.hpp>

void program(heddle::threads_communicator& c, float* elements) {
  c.all_reduce(elements, heddle::plus{});
}
