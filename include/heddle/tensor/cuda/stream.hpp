// heddle/tensor/cuda/stream.hpp: a CUDA stream, its errors and events (not run on a GPU).
#pragma once

#include <heddle/core/error.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if !__has_include(<cuda_runtime_api.h>)
#error \
    "heddle/tensor/cuda needs the CUDA Toolkit: link the CMake target heddle::cuda, or add the folder of cuda_runtime_api.h to the include path"
#endif
#include <cuda_runtime_api.h>

namespace heddle::inline v0 {

/// A call of the CUDA runtime failed, or work that a stream was given: `what()` names the call, the device and CUDA's own words.
struct cuda_error : error {
  using error::error;
};

/// An operation that may not be part of a graph was given to a stream that is captured, or the graph cannot be made of what was captured:
/// `what()` names the operation, the device and what to do instead.
struct cuda_capture_error : cuda_error {
  using cuda_error::cuda_error;
};

namespace detail {

// What to do about CUDA's errors of captures; null for all others.
inline const char* words_of_capture(cudaError_t result) noexcept {
  switch (result) {
    case cudaErrorStreamCaptureUnsupported:
      return "may not be part of a graph: nothing that is captured waits on the host; do it before the capture or "
             "after it";
    case cudaErrorStreamCaptureInvalidated:
      return "an operation before this one ended the capture: it may not be part of a graph";
    case cudaErrorStreamCaptureMerge:
      return "the event is of another capture; capture both queues as one graph";
    case cudaErrorStreamCaptureUnmatched:
      return "this queue is not the one whose capture began";
    case cudaErrorStreamCaptureUnjoined:
      return "a queue took part in the capture that the captured one does not wait for at its end: name it as a side "
             "queue, or "
             "let the captured queue wait for its last event (after(side.record()))";
    case cudaErrorStreamCaptureIsolation:
      return "what is captured cannot wait for an event from outside the capture: wait for it before the capture";
    case cudaErrorStreamCaptureImplicit:
      return "CUDA's own stream waits for all others, so that it cannot be captured: give the queue a stream of its "
             "own";
    case cudaErrorCapturedEvent:
      return "the event was captured: it happens when the graph runs, and nothing else can wait for it";
    case cudaErrorStreamCaptureWrongThread:
      return "a capture ends on the thread on which it began";
    default:
      return nullptr;
  }
}

// Errors: `cuda_error`. CUDA's record of the error is cleared, where it can be: the next call says what happened to it.
inline void require_cuda(cudaError_t result, const char* call, int device) {
  if (result == cudaSuccess) [[likely]]
    return;
  static_cast<void>(cudaGetLastError());
  std::string text = "heddle: ";
  text += call;
  text += " on CUDA device ";
  text += std::to_string(device);
  text += ": ";
  if (const char* const words = words_of_capture(result)) {
    text += words;
    throw cuda_capture_error(text);
  }
  text += cudaGetErrorString(result);
  throw cuda_error(text);
}

// What nobody can be told: CUDA's record of it is cleared, so that no later call takes it for its own.
inline void ignore_cuda(cudaError_t result) noexcept {
  if (result != cudaSuccess) static_cast<void>(cudaGetLastError());
}

// Errors: `config_error` where there is none.
inline int cuda_device_of_thread() {
  int device = 0;
  if (const cudaError_t asked = cudaGetDevice(&device); asked != cudaSuccess) {
    ignore_cuda(asked);
    throw config_error(std::string("heddle: there is no CUDA device: ") + cudaGetErrorString(asked));
  }
  return device;
}

// The thread's device is this one until the end of the scope.
class on_cuda_device {
 public:
  // Errors: `cuda_error`.
  explicit on_cuda_device(int device) : on_cuda_device(device, std::nothrow) {
    require_cuda(failed_, "cudaSetDevice", device);
  }
  on_cuda_device(int device, std::nothrow_t) noexcept {
    failed_ = cudaGetDevice(&before_);
    if (failed_ == cudaSuccess && before_ != device) {
      failed_ = cudaSetDevice(device);
      changed_ = failed_ == cudaSuccess;
    }
    if (failed_ != cudaSuccess) ignore_cuda(failed_);
  }
  on_cuda_device(const on_cuda_device&) = delete;
  on_cuda_device& operator=(const on_cuda_device&) = delete;
  ~on_cuda_device() {
    if (changed_) ignore_cuda(cudaSetDevice(before_));
  }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t failed_ = cudaSuccess;
};

// While it lives this thread may ask for what has happened, though it captures another stream: CUDA ends a capture (cudaErrorStreamCaptureUnsupported) where
// its thread calls cudaEventQuery, cudaEventSynchronize or the like of any event, unless the thread is relaxed.
class relaxed_in_capture {
 public:
  relaxed_in_capture() noexcept { ignore_cuda(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  relaxed_in_capture(const relaxed_in_capture&) = delete;
  relaxed_in_capture& operator=(const relaxed_in_capture&) = delete;
  ~relaxed_in_capture() { ignore_cuda(cudaThreadExchangeStreamCaptureMode(&mode_)); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// The pool of a device keeps what is given back to it: otherwise CUDA gives it to the system whenever a stream is waited for, once in each step, and
// the next allocations map memory anew. A threshold that somebody has set stays. Once for each device of the process.
inline void keep_pool_of(int device) {
  static std::mutex mutex;
  static std::vector<bool> seen;
  const auto at = static_cast<std::size_t>(device);
  const std::lock_guard lock(mutex);
  if (seen.size() <= at) seen.resize(at + 1);
  if (seen[at]) return;
  seen[at] = true;
  cudaMemPool_t pool = nullptr;
  std::uint64_t threshold = 0;
  cudaError_t asked = cudaDeviceGetMemPool(&pool, device);
  if (asked == cudaSuccess) asked = cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold);
  if (asked == cudaSuccess && threshold == 0) {
    threshold = (std::numeric_limits<std::uint64_t>::max)();
    asked = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold);
  }
  ignore_cuda(asked);  // a device without pools says so at the first allocation
}

// Who looks out while the host waits for a stream: a transport whose calls on it never end when another rank has failed.
class cuda_watch {
 public:
  cuda_watch() = default;
  cuda_watch(const cuda_watch&) = delete;
  cuda_watch& operator=(const cuda_watch&) = delete;
  virtual ~cuda_watch() = default;
  // Returns when the stream has done everything, or false at once where it cannot look out now. Errors: its own.
  virtual bool wait(cudaStream_t stream) = 0;
  // What it looks out by, such as a communicator's channel; null when that is gone.
  virtual const void* looks_out_by() const noexcept = 0;
};

// Those of a queue and of the queues beside it, the last one first, and those that are kept behind them. They are asked on the thread that has set
// the last of them, and no other.
class cuda_watches {
 public:
  using watch = cuda_watch;
  void add(cuda_watch& watch) {
    all_.push_back(&watch);
    thread_ = std::this_thread::get_id();
  }
  void remove(const cuda_watch& watch) noexcept {
    std::erase(all_, &watch);
    forget_thread();
  }
  // Until what it looks out by is gone; nothing where one does so already.
  void keep(std::unique_ptr<cuda_watch> watch) {
    std::erase_if(kept_, [](const auto& w) { return w->looks_out_by() == nullptr; });
    const void* const by = watch->looks_out_by();
    const auto does = [by](const auto& w) { return w->looks_out_by() == by; };
    if (!std::any_of(kept_.begin(), kept_.end(), does)) kept_.push_back(std::move(watch));
    thread_ = std::this_thread::get_id();
  }
  bool asked_here() const noexcept { return thread_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  bool wait(cudaStream_t stream) {
    if (!asked_here()) return false;
    for (auto w = all_.rbegin(); w != all_.rend(); ++w)
      if ((*w)->wait(stream)) return true;
    for (auto w = kept_.rbegin(); w != kept_.rend(); ++w)
      if ((*w)->wait(stream)) return true;
    std::erase_if(kept_, [](const auto& w) { return w->looks_out_by() == nullptr; });
    forget_thread();
    return false;
  }

 private:
  void forget_thread() noexcept {
    if (all_.empty() && kept_.empty()) thread_ = std::thread::id();
  }
  std::vector<cuda_watch*> all_;
  std::vector<std::unique_ptr<cuda_watch>> kept_;
  std::atomic<std::thread::id> thread_{};
};

// A stream, of its own or of somebody else, kept by all memory that was taken in its order.
class cuda_stream {
 public:
  explicit cuda_stream(int device) : device_(device), owned_(true) {
    int count = 0;
    const cudaError_t asked = cudaGetDeviceCount(&count);
    if (asked != cudaSuccess || device < 0 || device >= count) {
      ignore_cuda(asked);
      std::string text = "heddle: there is no CUDA device ";
      text += std::to_string(device);
      text += ": this process has ";
      text += std::to_string(asked == cudaSuccess ? count : 0);
      if (asked != cudaSuccess) {
        text += " (";
        text += cudaGetErrorString(asked);
        text += ')';
      }
      throw config_error(text);
    }
    keep_pool_of(device);
    const on_cuda_device here(device);
    require_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", device);
  }
  // Errors: `config_error` if the stream is one of another device. CUDA's own streams are those of any device.
  cuda_stream(int device, cudaStream_t borrowed) : device_(device), stream_(borrowed) {
    if (device >= 0) keep_pool_of(device);
    if (borrowed == nullptr || borrowed == cudaStreamLegacy || borrowed == cudaStreamPerThread) return;
    int of = 0;
    require(cudaStreamGetDevice(borrowed, &of), "cudaStreamGetDevice");
    if (of != device)
      throw config_error("heddle: a queue of CUDA device " + std::to_string(device) + " got a stream of device " +
                         std::to_string(of));
  }
  cuda_stream(const cuda_stream&) = delete;
  cuda_stream& operator=(const cuda_stream&) = delete;
  ~cuda_stream() {
    static_cast<void>(give_back_kept());
    if (owned_) ignore_cuda(cudaStreamDestroy(stream_));
  }

  int device() const noexcept { return device_; }
  cudaStream_t get() const noexcept { return stream_; }
  void require(cudaError_t result, const char* call) const { require_cuda(result, call, device_); }
  const std::shared_ptr<cuda_watches>& watches() const noexcept { return watches_; }
  void share_watches(const cuda_stream& other) noexcept { watches_ = other.watches_; }
  // Memory of a device from before the capture of this stream, until that is over.
  void keep(void* memory) const noexcept {
    const std::lock_guard lock(mutex_);
    try {
      kept_.push_back(memory);
    } catch (const std::bad_alloc&) {  // it is lost
    }
  }
  // Gives that back, after the capture; whether there was any.
  bool give_back_kept() const noexcept {
    const std::lock_guard lock(mutex_);
    if (kept_.empty()) return false;
    const on_cuda_device here(device_, std::nothrow);
    for (void* const memory : kept_) ignore_cuda(cudaFreeAsync(memory, stream_));
    kept_.clear();
    return true;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::vector<void*> kept_;
  std::shared_ptr<cuda_watches> watches_ = std::make_shared<cuda_watches>();
  int device_;
  bool owned_ = false;
  cudaStream_t stream_ = nullptr;
};

// What happens when a stream has done all that it was given so far. Copies are the same event.
class cuda_event {
 public:
  explicit cuda_event(const cuda_stream& stream) : device_(stream.device()) {
    const on_cuda_device here(device_);
    cudaEvent_t made = nullptr;
    stream.require(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    event_.reset(made, [](cudaEvent_t e) { ignore_cuda(cudaEventDestroy(e)); });
    stream.require(cudaEventRecord(made, stream.get()), "cudaEventRecord");
  }
  cudaEvent_t get() const noexcept { return event_.get(); }

 private:
  int device_;
  std::shared_ptr<CUevent_st> event_;
};

}  // namespace detail

}  // namespace heddle::inline v0
