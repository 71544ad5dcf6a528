// refuse: heddle: this backend computes in another memory than the host's, so it has to say in whose order: give it a member queue()
// and: device
#include <heddle/compute/kernels.hpp>
#include <heddle/testing/checked_memory.hpp>

struct device {
  using space = heddle::testing::checked_memory;
};
void wait_for(device& backend) {
  heddle::compute::queue_of(backend).wait();
}
