// refuse: a dyadic fold needs an operator that can be copied and called as
#include <heddle/collective/dyadic_fold.hpp>
#include <heddle/comm/threads.hpp>

#include <span>
#include <vector>

struct whole_elements {  // forgets to say that it is not elementwise
  static constexpr bool associative = false;
  void operator()(std::span<const float>, std::span<const float>, std::span<float>) const {}
};

void program(heddle::threads_communicator& group, const std::vector<float>& leaves) {
  (void)heddle::dyadic_reduce(group, leaves, 4, whole_elements{});
}
