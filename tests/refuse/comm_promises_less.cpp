// refuse: heddle: this communicator promises less determinism than is asked (determinism::promised); ask for not_guaranteed, or take a transport of the host's memory
#include <heddle/collective/determined.hpp>
#include <heddle/comm/threads.hpp>

#include <vector>

namespace hd = heddle;
struct unordered : hd::threads_communicator {
  using hd::threads_communicator::threads_communicator;
  unordered split(int color, int key);
  static constexpr auto promises = hd::determinism::level::not_guaranteed;
};
void sum(unordered& all, std::vector<float>& x) { hd::all_reduce(all, x, hd::plus{}, hd::determinism::run_to_run{}); }
