// refuse: heddle: the rounds of an algorithm fold and copy in the host's memory, and the buffers of this communicator
#include <heddle/collective/collectives.hpp>
#include <heddle/comm/threads.hpp>

#include <vector>

// As a communicator between GPUs says it.
struct between_devices : heddle::threads_communicator {
  using heddle::threads_communicator::threads_communicator;
  static constexpr bool host_memory = false;
  between_devices split(int color, int key);
};

void program(between_devices& c, std::vector<float>& x) {
  heddle::all_reduce(c, x, heddle::plus{});
  heddle::all_reduce<heddle::algo::built_in>(c, x, heddle::plus{});
  heddle::all_reduce<heddle::algo::ring>(c, x, heddle::plus{});
}
