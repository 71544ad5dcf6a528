// heddle/tensor/cuda/peers.hpp: devices that use each other's memory (not run on a GPU).
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/tensor/cuda/stream.hpp>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace heddle::inline v0::detail {

// Whether kernels of `device` read and write memory of `peer`: that of `cudaMalloc`, and that of the pool that `cudaMallocAsync` takes it from at the
// first call for the pair, which enables both for the rest of the process (`cudaDeviceEnablePeerAccess`, `cudaMemPoolSetAccess`).
// From any thread. Errors: `cuda_error`.
inline bool reaches_cuda_peer(int device, int peer) {
  if (device == peer) return true;
  static std::mutex mutex;
  static std::vector<std::pair<int, int>> enabled;
  const std::lock_guard lock(mutex);
  if (std::find(enabled.begin(), enabled.end(), std::pair(device, peer)) != enabled.end()) return true;
  int can = 0;
  require_cuda(cudaDeviceCanAccessPeer(&can, device, peer), "cudaDeviceCanAccessPeer", device);
  if (can == 0) return false;
  const on_cuda_device here(device);
  if (const cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0); result == cudaErrorPeerAccessAlreadyEnabled)
    ignore_cuda(result);  // by somebody else
  else
    require_cuda(result, "cudaDeviceEnablePeerAccess", device);
  cudaMemPool_t pool = nullptr;
  require_cuda(cudaDeviceGetMemPool(&pool, peer), "cudaDeviceGetMemPool", peer);
  cudaMemAccessDesc access{};
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = device;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  require_cuda(cudaMemPoolSetAccess(pool, &access, 1), "cudaMemPoolSetAccess", peer);
  enabled.emplace_back(device, peer);
  return true;
}

}  // namespace heddle::inline v0::detail
