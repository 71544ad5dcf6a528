// refuse: heddle: each block of the kernel waits at a barrier of its own, and the device communicator has another number of them: name nccl_grid<N> and nccl_device_comm<N> with one N
// and: a_barrier_for_each_block<32, 16>
#include <heddle/nccl/device_comm.hpp>

struct meets_peers {
  template <class Here>
  HEDDLE_HD void operator()(Here& here) const {
    here.sync();
  }
};

void f(const heddle::nccl_device_comm<16>& device, cudaStream_t stream) {
  heddle::launch_with_barriers(heddle::nccl_grid<32>{}, device, stream, meets_peers{});
}
