#include "double.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

struct CUstream_st {
  explicit CUstream_st(int of) : device(of), worker([this] { work(); }) {}
  ~CUstream_st() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    worker.join();
  }
  void add(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex);
      jobs.push_back(std::move(job));
    }
    changed.notify_all();
  }
  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stop || !jobs.empty(); });
      if (jobs.empty()) return;
      auto job = std::move(jobs.front());
      jobs.pop_front();
      busy = true;
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
  bool done() {
    const std::lock_guard lock(mutex);
    return jobs.empty() && !busy;
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return jobs.empty() && !busy; });
  }

  const int device;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> jobs;
  bool busy = false, stop = false;
  std::thread worker;
};

namespace {
// Of one recording; a stream that waits keeps it, whatever becomes of the event.
struct recording {
  std::mutex mutex;
  std::condition_variable changed;
  bool happened = false;
};
}  // namespace

struct CUevent_st {
  std::shared_ptr<recording> last;
};

namespace {

std::mutex big;
std::map<std::string, int> call_counts;
std::map<void*, std::pair<std::size_t, int>> blocks;  // bytes and device of what is taken; device -1: the host
std::map<int, std::size_t> used;
int device_count = 8, others = 0;
std::size_t bytes_of_each = std::size_t{1} << 40;
thread_local int device_of_thread = 0;
thread_local std::map<std::string, cudaError_t> planned_failures;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t failed(cudaError_t result) {
  if (result != cudaSuccess) last_error = result;
  return result;
}
cudaError_t count(const char* function) {
  const auto planned = planned_failures.find(function);
  const cudaError_t result = planned == planned_failures.end() ? cudaSuccess : planned->second;
  if (planned != planned_failures.end()) planned_failures.erase(planned);
  const std::lock_guard lock(big);
  ++call_counts[function];
  return failed(result);
}

cudaError_t take(void** memory, std::size_t bytes, int device) {
  const std::lock_guard lock(big);
  if (bytes > bytes_of_each - (std::min)(bytes_of_each, used[device]))  // the host has as many
    return failed(cudaErrorMemoryAllocation);
  *memory = ::operator new(bytes, std::align_val_t{256}, std::nothrow);
  if (*memory == nullptr) return failed(cudaErrorMemoryAllocation);
  std::memset(*memory, 0xff, bytes);  // no value
  blocks[*memory] = {bytes, device};
  used[device] += bytes;
  return cudaSuccess;
}
cudaError_t give_back(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  const std::lock_guard lock(big);
  const auto at = blocks.find(memory);
  if (at == blocks.end()) return failed(cudaErrorInvalidValue);
  used[at->second.second] -= at->second.first;
  std::memset(memory, 0xff, at->second.first);
  blocks.erase(at);
  ::operator delete(memory, std::align_val_t{256});
  return cudaSuccess;
}
void add_other(int n) {
  const std::lock_guard lock(big);
  others += n;
}
bool is_pinned(const void* memory) {
  const std::lock_guard lock(big);
  auto at = blocks.upper_bound(const_cast<void*>(memory));
  if (at == blocks.begin()) return false;
  --at;
  return static_cast<const char*>(memory) < static_cast<char*>(at->first) + at->second.first;
}

}  // namespace

namespace cuda_double {
std::map<std::string, int> calls() {
  const std::lock_guard lock(big);
  return call_counts;
}
int open_resources() {
  const std::lock_guard lock(big);
  return static_cast<int>(blocks.size()) + others;
}
void reset() {
  planned_failures.clear();
  const std::lock_guard lock(big);
  call_counts.clear();
  device_count = 8;
  bytes_of_each = std::size_t{1} << 40;
}
void devices(int count, std::size_t bytes_each) {
  const std::lock_guard lock(big);
  device_count = count;
  bytes_of_each = bytes_each;
}
void fail_next(const std::string& function, cudaError_t result) {
  planned_failures[function] = result;
}
void enqueue(cudaStream_t stream, std::function<void()> job) {
  stream->add(std::move(job));
}
int current_device() {
  return device_of_thread;
}
}  // namespace cuda_double

extern "C" {

cudaError_t cudaGetDeviceCount(int* n) {
  if (const auto planned = count("cudaGetDeviceCount"); planned != cudaSuccess) return planned;
  const std::lock_guard lock(big);
  *n = device_count;
  return failed(*n > 0 ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  if (const auto planned = count("cudaSetDevice"); planned != cudaSuccess) return planned;
  device_of_thread = device;
  const std::lock_guard lock(big);
  return failed(device < device_count ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "an error of the double";
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (const auto planned = count("cudaStreamCreateWithFlags"); planned != cudaSuccess) return planned;
  *stream = new CUstream_st(device_of_thread);
  add_other(1);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  add_other(-1);
  return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  *device = stream->device;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const auto planned = count("cudaStreamQuery"); planned != cudaSuccess) return planned;
  return stream->done() ? cudaSuccess : failed(cudaErrorNotReady);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const auto planned = count("cudaStreamSynchronize"); planned != cudaSuccess) return planned;
  stream->wait();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const auto planned = count("cudaStreamWaitEvent"); planned != cudaSuccess) return planned;
  stream->add([last = event->last] {
    if (last == nullptr) return;
    std::unique_lock lock(last->mutex);
    last->changed.wait(lock, [&] { return last->happened; });
  });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (const auto planned = count("cudaEventCreateWithFlags"); planned != cudaSuccess) return planned;
  *event = new CUevent_st;
  add_other(1);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const auto planned = count("cudaEventRecord"); planned != cudaSuccess) return planned;
  if (stream->device != device_of_thread) return failed(cudaErrorInvalidResourceHandle);
  event->last = std::make_shared<recording>();
  stream->add([last = event->last] {
    {
      const std::lock_guard lock(last->mutex);
      last->happened = true;
    }
    last->changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  add_other(-1);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, std::size_t n) {
  if (const auto planned = count("cudaMalloc"); planned != cudaSuccess) return planned;
  return take(memory, n, device_of_thread);
}
cudaError_t cudaFree(void* memory) {
  return give_back(memory);
}
cudaError_t cudaMallocAsync(void** memory, std::size_t n, cudaStream_t stream) {
  if (const auto planned = count("cudaMallocAsync"); planned != cudaSuccess) return planned;
  return take(memory, n, stream->device);
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  count("cudaFreeAsync");
  stream->add([=] { static_cast<void>(give_back(memory)); });
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t n, unsigned) {
  if (const auto planned = count("cudaHostAlloc"); planned != cudaSuccess) return planned;
  return take(memory, n, -1);
}
cudaError_t cudaFreeHost(void* memory) {
  count("cudaFreeHost");
  return give_back(memory);
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* all) {
  if (const auto planned = count("cudaMemGetInfo"); planned != cudaSuccess) return planned;
  const std::lock_guard lock(big);
  *all = bytes_of_each;
  *free = bytes_of_each - used[device_of_thread];
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* at, int value, std::size_t n, cudaStream_t stream) {
  if (const auto planned = count("cudaMemsetAsync"); planned != cudaSuccess) return planned;
  stream->add([=] { std::memset(at, value, n); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t n, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const auto planned = count("cudaMemcpyAsync"); planned != cudaSuccess) return planned;
  const auto is_on_host = [&](const void* memory, bool says_so) { return says_so && !is_pinned(memory); };
  const bool waits = is_on_host(from, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost) ||
                     is_on_host(to, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost);
  if (waits) {  // memory of the host that is not pinned: CUDA copies before it returns
    stream->wait();
    std::memcpy(to, from, n);
    return cudaSuccess;
  }
  stream->add([=] { std::memcpy(to, from, n); });
  return cudaSuccess;
}
}
