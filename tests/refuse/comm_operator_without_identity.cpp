// refuse: heddle: a reduction needs an associative operator with its identity on the element type
#include <heddle/comm/threads.hpp>

#include <vector>

// Half the sum: has no identity, and is not associative either.
struct average {
  template <class T>
  T operator()(const T& a, const T& b) const {
    return (a + b) / 2;
  }
};

void program(heddle::threads_communicator& c, std::vector<float>& x) {
  c.all_reduce(x, average{});
}
