// refuse: the operator of a reduction takes two elements and returns one: T operator()(const T&, const T&) const; if it declares
#include <heddle/collective/collectives.hpp>
#include <heddle/comm/threads.hpp>

#include <vector>

struct complex_pair {
  float re, im;
};
struct sum {
  static constexpr bool commutative = true;
  float operator()(float a, float b) const { return a + b; }
};

void program(heddle::threads_communicator& c, std::vector<complex_pair>& x) {
  heddle::all_reduce<heddle::algo::ring>(c, x, sum{});
}
