// Kernels with barriers among ranks, run on the host: each block is a thread of the system, and its threads take turns there.
#pragma once

#include "cuda/double.hpp"
#include "cuda/group_of_threads.hpp"
#include "double.hpp"

#include <heddle/nccl/device_comm.hpp>

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace nccl_double {

/// Threads of an emulated block, whatever its grid says.
inline constexpr int threads_of_block = 3;

/// What a kernel's body sees of a thread (heddle/nccl/peer_fold.hpp). `meet()` waits for the same block of the other ranks; `address(place, rank)`
/// is where a place lies on a rank.
template <class Meet, class Address>
class emulated_thread {
 public:
  emulated_thread(cuda_double::group_of_threads& group, int rank, int ranks, int block, int blocks, int thread,
                  const Meet& meet, const Address& address)
      : group_(group),
        rank_(rank),
        ranks_(ranks),
        block_(block),
        blocks_(blocks),
        thread_(thread),
        meet_(meet),
        address_(address) {}
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int block() const { return block_; }
  int blocks() const { return blocks_; }
  int thread() const { return thread_; }
  int threads() const { return group_.size(); }
  void sync() {
    group_.sync();
    if (thread_ == 0) meet_(block_);
    group_.sync();
  }
  template <class T, class Place>
  T* at(const Place& place, int rank) const {
    return static_cast<T*>(address_(place, rank));
  }

 private:
  cuda_double::group_of_threads& group_;
  int rank_, ranks_, block_, blocks_, thread_;
  const Meet& meet_;
  const Address& address_;
};

/// body(here) by all threads of all blocks of a rank.
template <class Body, class Meet, class Address>
void run_blocks(int rank, int ranks, int blocks, const Body& body, const Meet& meet, const Address& address) {
  std::vector<std::thread> all;
  for (int block = 0; block < blocks; ++block)
    all.emplace_back([&, block] {
      cuda_double::group_of_threads group(threads_of_block);
      group.run([&](int thread) {
        emulated_thread here(group, rank, ranks, block, blocks, thread, meet, address);
        body(here);
      });
    });
  for (std::thread& block : all) block.join();
}

/// Kernels that were launched, by all ranks together.
inline std::atomic<int>& kernels() {
  static std::atomic<int> count{0};
  return count;
}

}  // namespace nccl_double

namespace heddle::inline v0 {
// Where nvcc compiles, this is in heddle/nccl/device_comm.hpp.
template <int Blocks, int Threads, class Body>
void launch_among_peers(nccl_grid<Blocks, Threads>, const nccl_device_comm<Blocks>& device, cudaStream_t stream,
                        const Body& body) {
  ++nccl_double::kernels();
  cuda_double::enqueue(stream, [key = static_cast<void*>(device.native().resourceWindow), rank = device.rank(),
                                ranks = device.size(), body] {
    nccl_double::run_blocks(
        rank, ranks, Blocks, body, [=](int block) { nccl_double::meet_peers(key, rank, block); },
        [](const auto& place, int r) { return nccl_double::peer_memory(place.window, place.offset, r); });
  });
}
}  // namespace heddle::inline v0
