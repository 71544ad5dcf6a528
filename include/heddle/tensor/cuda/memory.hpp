// heddle/tensor/cuda/memory.hpp: device memory, and pinned memory of the host (not run on a GPU).
#pragma once

#include <heddle/core/device_runtime.hpp>
#include <heddle/core/error.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/cuda/peers.hpp>
#include <heddle/tensor/cuda/stream.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#endif

namespace heddle::inline v0 {

struct cuda_memory;
struct cuda_pinned_memory;
class cuda_graph;

namespace detail {

// Memory of a device, from its pool, and of the host with locked pages: how each is had, and given back in a stream's order.
struct device_blocks {
  // The capture that the stream is in, 0 outside of captures. Memory that one capture took is no other's.
  static unsigned long long period(const cuda_stream& stream) noexcept {
    constexpr unsigned long long invalidated = ~0ull;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    const cudaError_t asked = cudaStreamGetCaptureInfo(stream.get(), &status, &id);
    ignore_cuda(asked);
    if (asked == cudaErrorStreamCaptureInvalidated || status == cudaStreamCaptureStatusInvalidated) return invalidated;
    return asked == cudaSuccess && status == cudaStreamCaptureStatusActive ? id : 0;
  }
  static void* take(const cuda_stream& stream, std::size_t bytes) {
    const on_cuda_device here(stream.device());
    void* memory = nullptr;
    const cudaError_t result = cudaMallocAsync(&memory, bytes, stream.get());
    if (result == cudaErrorMemoryAllocation) {
      ignore_cuda(result);  // whoever asked says for what
      return nullptr;
    }
    stream.require(result, "cudaMallocAsync");
    return memory;
  }
  // While a stream is captured CUDA takes back what that capture took, and a call with other memory may end the capture. Outside it refuses what a graph took that never ran.
  static void give_back(const cuda_stream& stream, void* memory, unsigned long long taken) noexcept {
    const on_cuda_device here(stream.device(), std::nothrow);
    if (const unsigned long long now = period(stream); now != 0 && now != taken) [[unlikely]]
      return stream.keep(memory);
    ignore_cuda(cudaFreeAsync(memory, stream.get()));
  }
};
struct pinned_blocks {
  static unsigned long long period(const cuda_stream&) noexcept { return 0; }
  static void* take(const cuda_stream& stream, std::size_t bytes) {
    const on_cuda_device here(stream.device());
    void* memory = nullptr;
    const cudaError_t result = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (result == cudaErrorMemoryAllocation) {
      ignore_cuda(result);
      return nullptr;
    }
    stream.require(result, "cudaHostAlloc");
    return memory;
  }
  // While an exception is on its way nothing waits: what the stream has yet to do may wait for another rank, which this exception has to
  // reach first. The memory is then the process's.
  static void give_back(const cuda_stream& stream, void* memory, unsigned long long) noexcept {
    const on_cuda_device here(stream.device(), std::nothrow);
    if (std::uncaught_exceptions() > 0) {
      const cudaError_t done = cudaStreamQuery(stream.get());
      ignore_cuda(done);
      if (done != cudaSuccess) return;
    }
    ignore_cuda(cudaStreamSynchronize(stream.get()));
    ignore_cuda(cudaFreeHost(memory));
  }
};

template <class Blocks, std::size_t Alignment>
class cuda_allocation {
 public:
  cuda_allocation() = default;
  // CUDA aligns to 256 bytes; for more there is room.
  cuda_allocation(std::shared_ptr<cuda_stream> stream, std::size_t bytes)
      : stream_(std::move(stream)),
        memory_(Blocks::take(*stream_, bytes + (Alignment > 256 ? Alignment : 0))),
        taken_(Blocks::period(*stream_)) {}
  cuda_allocation(cuda_allocation&& other) noexcept
      : stream_(std::move(other.stream_)), memory_(std::exchange(other.memory_, nullptr)), taken_(other.taken_) {}
  cuda_allocation& operator=(cuda_allocation&& other) noexcept {
    if (this == &other) return *this;
    release();
    stream_ = std::move(other.stream_);
    memory_ = std::exchange(other.memory_, nullptr);
    taken_ = other.taken_;
    return *this;
  }
  ~cuda_allocation() { release(); }
  // Memory of somebody else, aligned to `Alignment`.
  static cuda_allocation borrowed(void* memory) noexcept {
    cuda_allocation lent;
    lent.memory_ = memory;
    return lent;
  }

  void* address() const noexcept {
    if constexpr (Alignment > 256) {
      const auto at = reinterpret_cast<std::uintptr_t>(memory_);
      return static_cast<std::byte*>(memory_) + ((at + Alignment - 1) / Alignment * Alignment - at);
    } else {
      return memory_;
    }
  }

 private:
  void release() noexcept {
    void* const memory = std::exchange(memory_, nullptr);
    if (memory != nullptr && stream_ != nullptr) Blocks::give_back(*stream_, memory, taken_);
  }
  std::shared_ptr<cuda_stream> stream_{};
  void* memory_ = nullptr;
  unsigned long long taken_ = 0;
};

template <class X>
concept elements_for_cuda =
    elements_in<X, cuda_memory> || elements_in<X, cuda_pinned_memory> || elements_in<X, host_memory>;

// What queues of both spaces do.
template <class Space>
class cuda_queue {
 public:
  cudaStream_t stream() const noexcept { return stream_->get(); }
  int device() const noexcept { return stream_->device(); }

  template <std::size_t Alignment>
  auto allocate(std::size_t bytes) {
    return typename Space::template allocation<Alignment>(stream_, bytes);
  }
  template <class X>
    requires elements_in<X, Space>
  void zero(X&& x) {
    const std::size_t bytes = bytes_of(x);
    if (bytes == 0) return;
    const on_cuda_device here(device());
    stream_->require(cudaMemsetAsync(first_element(x), 0, bytes, stream()), "cudaMemsetAsync");
  }
  template <class From, class To>
    requires elements_for_cuda<From> && elements_for_cuda<To> && std::same_as<element_of<From>, element_of<To>>
  void copy(const From& from, To&& to) {
    constexpr bool out = elements_in<From, cuda_memory>, in = elements_in<To, cuda_memory>;
    const std::size_t n = element_count(from), room = element_count(to);
    if (n != room) throw_copy_of(n, room);
    if (n == 0) return;
    constexpr cudaMemcpyKind kind = out ? (in ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost)
                                        : (in ? cudaMemcpyHostToDevice : cudaMemcpyHostToHost);
    const on_cuda_device here(device());
    if constexpr (elements_in<From, host_memory>) before_copy_with_host(first_element(from));
    if constexpr (elements_in<To, host_memory>) before_copy_with_host(first_element(to));
    stream_->require(cudaMemcpyAsync(first_element(to), first_element(from), bytes_of(from), kind, stream()),
                     "cudaMemcpyAsync");
  }
  /// Synchronizes with this stream and no other. Errors: `cuda_error` with what the work has met.
  void wait() {
    const on_cuda_device here(device());
    if (stream_->watches()->asked_here() && !is_captured() && wait_watched()) return;
    stream_->require(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  }
  /// Who looks out for failures of other ranks while the host waits for this queue or for one beside it (`heddle/tensor/watched_queue.hpp`).
  std::shared_ptr<cuda_watches> watches() const noexcept { return stream_->watches(); }
  cuda_event record() { return cuda_event(*stream_); }
  void after(const cuda_event& e) {
    const on_cuda_device here(device());
    stream_->require(cudaStreamWaitEvent(stream(), e.get(), 0), "cudaStreamWaitEvent");
  }

 protected:
  explicit cuda_queue(std::shared_ptr<cuda_stream> stream) : stream_(std::move(stream)) {}
  // Another one of the same device, with the same watches.
  std::shared_ptr<cuda_stream> stream_beside() const {
    auto made = std::make_shared<cuda_stream>(device());
    made->share_watches(*stream_);
    return made;
  }

 private:
  template <class>
  friend class cuda_queue;
  bool is_captured() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    stream_->require(cudaStreamIsCapturing(stream(), &status), "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
  }
  bool wait_watched() const { return stream_->watches()->wait(stream()); }
  friend struct heddle::v0::cuda_pinned_memory;
  friend class heddle::v0::cuda_graph;
  // A graph would use that memory when it runs, whatever lies there then. Errors: `cuda_capture_error`.
  // Outside of a capture CUDA may wait for the stream before a copy of memory that is not pinned, and looks out for nobody.
  void before_copy_with_host(const void* memory) const {
    const bool captured = is_captured();
    if (!captured && !stream_->watches()->asked_here()) [[likely]]
      return;
    cudaPointerAttributes attributes{};
    stream_->require(cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");
    if (attributes.type == cudaMemoryTypeHost) return;
    if (!captured)
      wait_watched();
    else
      throw cuda_capture_error("heddle: a copy from or to the host's memory on CUDA device " +
                               std::to_string(device()) +
                               ": may not be part of a graph, which would use that memory whenever it runs: use pinned "
                               "memory (cuda_pinned_memory) that is kept as long as the graph");
  }
  template <class X>
  static std::size_t bytes_of(const X& x) {
    return element_count(x) * sizeof(*first_element(x));
  }
  std::shared_ptr<cuda_stream> stream_;
};

}  // namespace detail

/// The memory of a CUDA device. Its queue is a stream of that device; memory comes from the device's pool in the order of
/// the stream (`cudaMallocAsync`) and goes back in it. Host code may not touch the elements: a queue copies them.
struct cuda_memory {
  static constexpr bool host_accessible = false;
  static constexpr device_runtime runtime = device_runtime::cuda;
  template <std::size_t Alignment>
  using allocation = detail::cuda_allocation<detail::device_blocks, Alignment>;

  /// A stream. It moves, does not copy. Memory is given back when all that the queue that gave it was given to do is done;
  /// who works on it through another queue has that one wait first (`record`, `after`). Where the host's side of a copy is not
  /// pinned, CUDA may make the host wait.
  /// The device's pool keeps what is given back to it for the next allocations (its release threshold is raised, unless the program has set one before its
  /// first queue), and the memory of graphs, which the device has apart, keeps that of graphs that are gone; `release_kept` gives both back to the system, for
  /// other libraries and processes.
  /// Errors: `config_error` naming the device where there is no such device, or the stream is of another; `cuda_error` from each call that CUDA refuses.
  class queue : public detail::cuda_queue<cuda_memory> {
   public:
    /// Bytes of arguments that a kernel takes, from sm_70 on.
    static constexpr std::size_t largest_kernel_argument = 32'764;
    using graph = cuda_graph;           ///< what it can be captured into: `heddle/tensor/cuda/graph.hpp`
    using pinned = cuda_pinned_memory;  ///< memory of the host that it copies without waiting
    /// A stream of its own, that waits for no other, of the thread's device (`cudaSetDevice`).
    queue() : queue(detail::cuda_device_of_thread()) {}
    /// The same of this device.
    explicit queue(int device) : cuda_queue(std::make_shared<detail::cuda_stream>(device)) {}
    /// A stream of somebody else, on this device; it must outlive the queue and all memory that the queue gives.
    queue(int device, cudaStream_t stream) : cuda_queue(std::make_shared<detail::cuda_stream>(device, stream)) {}
    queue(queue&&) noexcept = default;
    queue& operator=(queue&&) noexcept = default;
    /// Another stream of the same device; who watches this one watches that, too.
    queue beside() const { return queue(stream_beside()); }
    /// Whether kernels of this device use memory of the other, also through its pool; enabled for the process where the devices can.
    bool reaches(int other) const { return detail::reaches_cuda_peer(device(), other); }
    /// Pinned memory of the host for copies of messages, one for each of two slots, which is kept and grows: for one user at a time.
    void* staging(std::size_t slot, std::size_t bytes);
    /// Bytes that the device has left, with those that its pool keeps for the next allocation and those that the memory of graphs keeps and no graph
    /// has: the latter are the next graph's, and are to be had for buffers after `release_kept`.
    std::size_t free_bytes() const {
      const detail::on_cuda_device here(device());
      std::size_t free = 0, all = 0;
      detail::require_cuda(cudaMemGetInfo(&free, &all), "cudaMemGetInfo", device());
      std::uint64_t reserved = 0, used = 0;
      const cudaMemPool_t pool = pool_of_device();
      detail::require_cuda(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved),
                           "cudaMemPoolGetAttribute", device());
      detail::require_cuda(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used),
                           "cudaMemPoolGetAttribute", device());
      const std::uint64_t of_graphs = graph_memory(cudaGraphMemAttrReservedMemCurrent);
      const std::uint64_t in_graphs = graph_memory(cudaGraphMemAttrUsedMemCurrent);
      // Between two questions another thread may take memory or give it back.
      const auto kept = [](std::uint64_t all_of, std::uint64_t in_use) {
        return all_of > in_use ? all_of - in_use : 0;
      };
      return free + static_cast<std::size_t>(kept(reserved, used) + kept(of_graphs, in_graphs));
    }
    /// Gives the system what the device's pool and the memory of its graphs keep and nothing uses. What streams have yet to give back stays. CUDA may take
    /// from graphs that do not run, too, and maps their memory anew at their next launch: call it when graphs are gone, or before a capture.
    void release_kept() {
      detail::require_cuda(cudaMemPoolTrimTo(pool_of_device(), 0), "cudaMemPoolTrimTo", device());
      detail::require_cuda(cudaDeviceGraphMemTrim(device()), "cudaDeviceGraphMemTrim", device());
    }

   private:
    explicit queue(std::shared_ptr<detail::cuda_stream> stream) : cuda_queue(std::move(stream)) {}
    std::uint64_t graph_memory(cudaGraphMemAttributeType which) const {
      std::uint64_t bytes = 0;
      detail::require_cuda(cudaDeviceGetGraphMemAttribute(device(), which, &bytes), "cudaDeviceGetGraphMemAttribute",
                           device());
      return bytes;
    }
    cudaMemPool_t pool_of_device() const {
      cudaMemPool_t pool = nullptr;
      detail::require_cuda(cudaDeviceGetMemPool(&pool, device()), "cudaDeviceGetMemPool", device());
      return pool;
    }
    struct staging_room {
      detail::cuda_allocation<detail::pinned_blocks, 64> memory{};
      std::size_t bytes = 0;
    };
    std::array<staging_room, 2> staging_{};
  };
};

/// Memory of the host whose pages stay where they are, so that devices copy from it and to it beside other work. Host code may
/// use the elements between the operations of queues. It is released when its queue is done. To take it and to release it
/// is slow, and may wait for a device: keep it from step to step, and take it before collectives, not between them.
struct cuda_pinned_memory {
  static constexpr bool host_accessible = true;
  template <std::size_t Alignment>
  using allocation = detail::cuda_allocation<detail::pinned_blocks, Alignment>;

  /// A stream, most often that of a `cuda_memory::queue`.
  class queue : public detail::cuda_queue<cuda_pinned_memory> {
   public:
    queue() : queue(detail::cuda_device_of_thread()) {}
    explicit queue(int device) : cuda_queue(std::make_shared<detail::cuda_stream>(device)) {}
    /// The same stream: what both queues are given is done in the order of the calls.
    explicit queue(const cuda_memory::queue& other) : cuda_queue(stream_of(other)) {}
    queue(queue&&) noexcept = default;
    queue& operator=(queue&&) noexcept = default;
    queue beside() const { return queue(stream_beside()); }
    /// Zeroes, when all that the queue was given before is done: the pages are the host's.
    template <class X>
      requires elements_in<X, cuda_pinned_memory>
    void zero(X&& x) {
      if (element_count(x) == 0) return;
      wait();
      host_memory::queue::zero(view_of(x));
    }
    /// `f` with host views of these, when all that the queue was given before is done.
    template <class F, class... T, class... Shape>
    void run(F&& f, const view<T, Shape, cuda_pinned_memory>&... views) {
      wait();
      std::forward<F>(f)(view<T, Shape>(views.address(), views.shape())...);
    }

   private:
    explicit queue(std::shared_ptr<detail::cuda_stream> stream) : cuda_queue(std::move(stream)) {}
  };

 private:
  static const std::shared_ptr<detail::cuda_stream>& stream_of(const detail::cuda_queue<cuda_memory>& q) {
    return q.stream_;
  }
  template <class X>
  static auto view_of(X& x) {
    auto* const first = first_element(x);
    return vector_view<std::remove_pointer_t<decltype(first)>>(
        first, detail::row_shape(static_cast<std::int64_t>(element_count(x))));
  }
};

inline void* cuda_memory::queue::staging(std::size_t slot, std::size_t bytes) {
  staging_room& room = staging_.at(slot);
  if (room.bytes < bytes) {
    room = {};
    room.memory = cuda_pinned_memory::queue(*this).allocate<64>(bytes);
    if (room.memory.address() == nullptr)
      throw memory_error("heddle: " + std::to_string(bytes) +
                         " bytes of pinned memory for messages: no memory; this process "
                         "can have " +
                         std::to_string(memory_limit()) + " in all");
    room.bytes = bytes;
  }
  return room.memory.address();
}

#if defined(__CUDACC__)
namespace detail {
template <class Body>
__global__ void __launch_bounds__(256) each_of(std::int64_t n, const __grid_constant__ Body body) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) body(i);
}
}  // namespace detail

/// body(i) for each i in [0, n), by threads of the device in the order of the queue (`launches_kernels`): in files that nvcc compiles.
/// The body may have 32 KiB. Errors: `cuda_error` if CUDA refuses the launch.
template <class Body>
void launch_each(cuda_memory::queue& queue, std::int64_t n, const Body& body) {
  static_assert(sizeof(Body) + sizeof(n) <= cuda_memory::queue::largest_kernel_argument,
                "heddle: launch_each: the arguments of a kernel are at most 32764 bytes; let the body point to memory");
  if (n <= 0) return;
  constexpr std::int64_t most = 2147483647;
  const std::int64_t blocks = (n + 255) / 256;
  const detail::on_cuda_device here(queue.device());
  cudaLaunchConfig_t how{};
  how.gridDim = dim3(static_cast<unsigned>(blocks < most ? blocks : most));
  how.blockDim = dim3(256);
  how.stream = queue.stream();
  detail::require_cuda(cudaLaunchKernelEx(&how, detail::each_of<Body>, n, body), "a kernel", queue.device());
}
#endif

}  // namespace heddle::inline v0
