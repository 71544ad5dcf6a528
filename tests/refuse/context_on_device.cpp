// refuse: heddle: context_executor: this backend computes in a device's memory; context tables run in the host's
// and: device
#include <heddle/comm/threads.hpp>
#include <heddle/context/execute.hpp>
#include <heddle/testing/checked_memory.hpp>

struct device {
  using space = heddle::testing::checked_memory;
};
void make(device& backend, heddle::threads_communicator& ranks) {
  heddle::context_executor<float, device, heddle::threads_communicator> executor(backend, ranks);
}
