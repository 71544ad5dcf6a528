// refuse: the operator declares associative = false; use algo::dyadic, which always folds the same tree, or for reduce_scatter algo::reduce_then_scatter
#include <heddle/collective/collectives.hpp>
#include <heddle/comm/threads.hpp>

#include <vector>

struct mean {
  static constexpr bool commutative = true;
  static constexpr bool associative = false;
  float operator()(float a, float b) const { return (a + b) / 2; }
};

void program(heddle::threads_communicator& c, std::vector<float>& x, std::vector<float>& y) {
  heddle::reduce_scatter<heddle::algo::ring>(c, x, y, mean{});
}
