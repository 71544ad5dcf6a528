#include "double.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

// Of a graph: what is done, after which nodes; bytes that it reads and writes, where that is known.
struct CUgraphNode_st {
  cudaGraphNodeType type = cudaGraphNodeTypeKernel;
  std::function<void()> job = {};
  std::set<std::size_t> after = {};
  const char* reads = nullptr;
  char* writes = nullptr;
  std::size_t bytes = 0;
  bool waits = false;  // for other devices
};

namespace {
// The nodes of a graph, in the order in which they were captured, and the memory that it takes.
struct graph_nodes {
  ~graph_nodes();
  std::deque<CUgraphNode_st> nodes;
  std::vector<void*> memory;
  // Every node after those that it waits for, and of several that may be next the last captured: an edge that is missing shows.
  // Those that wait for other devices have a thread each, so that all that need not wait for them goes on.
  void run() {
    enum class state { left, running, done };
    std::vector<state> of(nodes.size(), state::left);
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::condition_variable changed;
    const auto next = [&](bool waits) {
      for (std::size_t i = nodes.size(); i-- > 0;)
        if (of[i] == state::left && nodes[i].waits == waits &&
            std::all_of(nodes[i].after.begin(), nodes[i].after.end(),
                        [&](std::size_t j) { return of[j] == state::done; }))
          return i;
      return nodes.size();
    };
    std::unique_lock lock(mutex);
    for (;;) {
      for (std::size_t i = next(true); i < nodes.size(); i = next(true)) {
        of[i] = state::running;
        threads.emplace_back([&, i] {
          nodes[i].job();
          const std::lock_guard end(mutex);
          of[i] = state::done;
          changed.notify_all();
        });
      }
      if (const std::size_t i = next(false); i < nodes.size()) {
        of[i] = state::running;
        lock.unlock();
        nodes[i].job();
        lock.lock();
        of[i] = state::done;
      } else if (std::find(of.begin(), of.end(), state::running) != of.end()) {
        changed.wait(lock);
      } else {
        break;
      }
    }
    lock.unlock();
    for (std::thread& t : threads) t.join();
  }
  // Two nodes of which neither waits for the other, and one writes what the other uses.
  bool has_unordered() const {
    std::vector<std::set<std::size_t>> before(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i)
      for (const std::size_t j : nodes[i].after) {
        before[i].insert(j);
        before[i].insert(before[j].begin(), before[j].end());
      }
    const auto meet = [](const char* a, std::size_t n, const char* b, std::size_t m) {
      return a != nullptr && b != nullptr && a < b + m && b < a + n;
    };
    for (std::size_t i = 0; i < nodes.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        const auto &a = nodes[i], &b = nodes[j];
        if (!before[i].contains(j) &&
            (meet(a.writes, a.bytes, b.writes, b.bytes) || meet(a.writes, a.bytes, b.reads, b.bytes) ||
             meet(a.reads, a.bytes, b.writes, b.bytes)))
          return true;
      }
    return false;
  }
};
struct capture {
  CUstream_st* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread = std::this_thread::get_id();  // that began it
  unsigned long long id = next_id();
  std::shared_ptr<graph_nodes> graph = std::make_shared<graph_nodes>();
  std::set<CUstream_st*> streams;
  std::atomic<bool> invalid = false;
  std::atomic<bool> in_use = false, in_use_twice = false;
  static unsigned long long next_id() {
    static std::atomic<unsigned long long> last = 0;
    return ++last;
  }
};
// A call that adds to the graph of a capture, or reads of it. CUDA does not synchronize such calls: two at the same time are found at the end of the
// capture. Nothing here orders them either, so that the thread sanitizer sees those that come after each other by chance.
class use_of {
 public:
  explicit use_of(capture& of) : of_(of), mine_(!of.in_use.exchange(true, std::memory_order_relaxed)) {
    if (!mine_) of_.in_use_twice = true;
  }
  use_of(const use_of&) = delete;
  use_of& operator=(const use_of&) = delete;
  ~use_of() {
    if (mine_) of_.in_use.store(false, std::memory_order_relaxed);
  }
  explicit operator bool() const { return mine_; }

 private:
  capture& of_;
  bool mine_;
};
}  // namespace

struct CUgraph_st {
  std::shared_ptr<graph_nodes> graph;
};
struct CUgraphExec_st {
  std::shared_ptr<graph_nodes> graph;
};

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
  void add(std::function<void()> job, CUgraphNode_st node = {}) {
    if (taking_part != nullptr) {
      const use_of graph(*taking_part);
      if (!graph) return;
      node.job = std::move(job);
      node.after = last;
      taking_part->graph->nodes.push_back(std::move(node));
      last = {taking_part->graph->nodes.size() - 1};
      return;
    }
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
  // While it is captured: into what, and the nodes that the next one waits for. One thread at a time gives it work then.
  std::shared_ptr<capture> taking_part;
  std::set<std::size_t> last;
  std::thread worker;
};

namespace {
// Of one recording; a stream that waits keeps it, whatever becomes of the event.
struct recording {
  std::mutex mutex;
  std::condition_variable changed;
  bool happened = false;
  std::chrono::steady_clock::time_point at{};
};
}  // namespace

struct CUevent_st {
  std::shared_ptr<recording> last;
  std::shared_ptr<capture> of;  // of a captured recording, and the nodes that it waits for
  std::set<std::size_t> nodes;
  bool timed = false;
  int device = 0;
};

namespace {

std::mutex big;
std::map<std::string, int> call_counts;
enum class from { device, pool, graphs };
struct block {
  std::size_t bytes = 0;
  int device = 0;  // -1: the host
  from source = from::device;
};
std::map<void*, block> blocks;                                          // what is taken
std::set<std::pair<int, int>> cut_pairs, enabled_peers, enabled_pools;  // (device, whose memory)
int unreachable = 0;
std::map<int, std::size_t> used;
// What each device's pool has of its memory: it keeps what is given back to it as its threshold says.
std::map<int, std::size_t> kept_by_pool;
// What each device has for graphs: that of graphs that are there, and all until it is trimmed. CUDA takes it when a graph is made, this here in its capture.
struct memory_of_graphs {
  std::size_t used = 0, reserved = 0;
};
std::map<int, memory_of_graphs> of_graphs;
std::map<int, std::uint64_t> threshold_of_pool;
int device_count = 8, others = 0;
std::size_t bytes_of_each = std::size_t{1} << 40;
thread_local int device_of_thread = 0;
thread_local std::map<std::string, cudaError_t> planned_failures;
thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;
thread_local std::vector<std::shared_ptr<capture>> captures_of_thread;  // that it has begun, but for relaxed ones

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

cudaError_t take(void** memory, std::size_t bytes, int device, from source = from::device) {
  const std::lock_guard lock(big);
  memory_of_graphs& graphs = of_graphs[device];
  const std::size_t reserved =
      source == from::graphs ? (std::max)(graphs.reserved, graphs.used + bytes) : graphs.reserved;
  const std::size_t taken = used[device] + (source == from::graphs ? 0 : bytes);
  if (taken + reserved > bytes_of_each)  // the host has as many
    return failed(cudaErrorMemoryAllocation);
  *memory = ::operator new(bytes, std::align_val_t{256}, std::nothrow);
  if (*memory == nullptr) return failed(cudaErrorMemoryAllocation);
  std::memset(*memory, 0xff, bytes);  // no value
  blocks[*memory] = {bytes, device, source};
  if (source == from::graphs) graphs.used += bytes;
  graphs.reserved = reserved;
  used[device] = taken;
  kept_by_pool[device] = (std::min)((std::max)(kept_by_pool[device], taken), bytes_of_each - reserved);
  return cudaSuccess;
}
cudaError_t give_back(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  const std::lock_guard lock(big);
  const auto at = blocks.find(memory);
  if (at == blocks.end()) return failed(cudaErrorInvalidValue);
  const int of = at->second.device;
  (at->second.source == from::graphs ? of_graphs[of].used : used[of]) -= at->second.bytes;
  if (kept_by_pool[of] > threshold_of_pool[of])
    kept_by_pool[of] = (std::max)(used[of], std::size_t{threshold_of_pool[of]});
  std::memset(memory, 0xff, at->second.bytes);
  blocks.erase(at);
  ::operator delete(memory, std::align_val_t{256});
  return cudaSuccess;
}
// What may not be done while a stream is captured ends the capture.
cudaError_t not_captured(CUstream_st* stream) {
  if (stream->taking_part == nullptr) return cudaSuccess;
  stream->taking_part->invalid = true;
  return failed(cudaErrorStreamCaptureUnsupported);
}
// What a capture would not see, what makes the host wait, or asks what has happened: not by a thread that has begun one, unless that or the thread is
// relaxed. It ends the capture.
cudaError_t unsafe_in_capture() {
  if (captures_of_thread.empty() || mode_of_thread == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  for (const auto& c : captures_of_thread) c->invalid = true;
  return failed(cudaErrorStreamCaptureUnsupported);
}
void add_other(int n) {
  const std::lock_guard lock(big);
  others += n;
}
// Under the lock: the block that it lies in, or null.
const block* block_of(const void* memory) {
  auto at = blocks.upper_bound(const_cast<void*>(memory));
  if (at == blocks.begin()) return nullptr;
  --at;
  return static_cast<const char*>(memory) < static_cast<char*>(at->first) + at->second.bytes ? &at->second : nullptr;
}
bool is_pinned(const void* memory) {
  const std::lock_guard lock(big);
  return block_of(memory) != nullptr;
}

graph_nodes::~graph_nodes() {
  for (void* const m : memory) static_cast<void>(give_back(m));
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
  cut_pairs.clear();
}
void devices(int count, std::size_t bytes_each) {
  const std::lock_guard lock(big);
  device_count = count;
  bytes_of_each = bytes_each;
  kept_by_pool = used;
  for (auto& [device, graphs] : of_graphs) graphs.reserved = graphs.used;
}
void fail_next(const std::string& function, cudaError_t result) {
  planned_failures[function] = result;
}
void enqueue(cudaStream_t stream, std::function<void()> job) {
  stream->add(std::move(job));
}
void enqueue_waiting(cudaStream_t stream, std::function<void()> job) {
  stream->add(std::move(job), {.waits = true});
}
bool is_captured(cudaStream_t stream) {
  return stream->taking_part != nullptr;
}
void cut(int device, int other) {
  const std::lock_guard lock(big);
  cut_pairs.insert({{device, other}, {other, device}});
}
void give_arguments(cudaStream_t stream, const void* arguments, std::size_t bytes) {
  const std::lock_guard lock(big);
  for (std::size_t i = 0; i + sizeof(void*) <= bytes; i += sizeof(void*)) {
    const void* word = nullptr;
    std::memcpy(&word, static_cast<const char*>(arguments) + i, sizeof word);
    const block* const in = block_of(word);
    if (in == nullptr || in->device < 0 || in->device == stream->device) continue;
    if (!(in->source == from::device ? enabled_peers : enabled_pools).contains({stream->device, in->device}))
      ++unreachable;
  }
}
int unreachable_arguments() {
  const std::lock_guard lock(big);
  return unreachable;
}
bool captures_here() {
  return !captures_of_thread.empty();
}
std::shared_ptr<void> call_in_capture(cudaStream_t stream) {
  return std::make_shared<use_of>(*stream->taking_part);
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
// Of a Hopper; what else it has is not said.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int) {
  *value = what == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
  return failed(what == cudaDevAttrComputeCapabilityMajor || what == cudaDevAttrComputeCapabilityMinor
                    ? cudaSuccess
                    : cudaErrorInvalidValue);
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
  if (const auto of = stream->taking_part; of != nullptr) {
    of->invalid = true;
    of->streams.erase(stream);
  }
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
  if (const auto refused = not_captured(stream); refused != cudaSuccess) return refused;
  if (const auto refused = unsafe_in_capture(); refused != cudaSuccess) return refused;
  return stream->done() ? cudaSuccess : failed(cudaErrorNotReady);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const auto planned = count("cudaStreamSynchronize"); planned != cudaSuccess) return planned;
  if (const auto refused = not_captured(stream); refused != cudaSuccess) return refused;
  if (const auto refused = unsafe_in_capture(); refused != cudaSuccess) return refused;
  stream->wait();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const auto planned = count("cudaStreamWaitEvent"); planned != cudaSuccess) return planned;
  if (event->of != nullptr) {
    const use_of graph(*event->of);
    if (!graph) return cudaSuccess;
    if (stream->taking_part == nullptr) {
      if (event->of->origin == nullptr) return failed(cudaErrorCapturedEvent);
      stream->taking_part = event->of;
      event->of->streams.insert(stream);
    } else if (stream->taking_part != event->of) {
      stream->taking_part->invalid = true;
      return failed(cudaErrorStreamCaptureMerge);
    }
    stream->last.insert(event->nodes.begin(), event->nodes.end());
    return cudaSuccess;
  }
  if (stream->taking_part != nullptr) {
    stream->taking_part->invalid = true;
    return failed(cudaErrorStreamCaptureIsolation);
  }
  stream->add([last = event->last] {
    if (last == nullptr) return;
    std::unique_lock lock(last->mutex);
    last->changed.wait(lock, [&] { return last->happened; });
  });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (const auto planned = count("cudaEventCreateWithFlags"); planned != cudaSuccess) return planned;
  *event = new CUevent_st;
  (*event)->device = device_of_thread;
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  add_other(1);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const auto planned = count("cudaEventRecord"); planned != cudaSuccess) return planned;
  if (stream->device != device_of_thread || stream->device != event->device)
    return failed(cudaErrorInvalidResourceHandle);
  event->of = stream->taking_part;
  if (event->of != nullptr) {
    if (const use_of graph(*event->of); graph) event->nodes = stream->last;
    return cudaSuccess;
  }
  event->last = std::make_shared<recording>();
  stream->add([last = event->last] {
    {
      const std::lock_guard lock(last->mutex);
      last->happened = true;
      last->at = std::chrono::steady_clock::now();
    }
    last->changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const auto planned = count("cudaEventQuery"); planned != cudaSuccess) return planned;
  if (event->of != nullptr) return failed(cudaErrorCapturedEvent);
  if (const auto refused = unsafe_in_capture(); refused != cudaSuccess) return refused;
  if (event->last == nullptr) return cudaSuccess;
  const std::lock_guard lock(event->last->mutex);
  return event->last->happened ? cudaSuccess : failed(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const auto planned = count("cudaEventSynchronize"); planned != cudaSuccess) return planned;
  if (event->of != nullptr) return failed(cudaErrorCapturedEvent);
  if (const auto refused = unsafe_in_capture(); refused != cudaSuccess) return refused;
  if (event->last == nullptr) return cudaSuccess;
  std::unique_lock lock(event->last->mutex);
  event->last->changed.wait(lock, [&] { return event->last->happened; });
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  if (const auto planned = count("cudaEventElapsedTime"); planned != cudaSuccess) return planned;
  for (const cudaEvent_t e : {begin, end}) {
    if (!e->timed || e->of != nullptr || e->last == nullptr) return failed(cudaErrorInvalidResourceHandle);
    const std::lock_guard lock(e->last->mutex);
    if (!e->last->happened) return failed(cudaErrorNotReady);
  }
  *ms = std::chrono::duration<float, std::milli>(end->last->at - begin->last->at).count();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  add_other(-1);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, std::size_t n) {
  if (const auto planned = count("cudaMalloc"); planned != cudaSuccess) return planned;
  if (const auto refused = unsafe_in_capture(); refused != cudaSuccess) return refused;
  return take(memory, n, device_of_thread);
}
cudaError_t cudaFree(void* memory) {
  if (const auto refused = unsafe_in_capture(); refused != cudaSuccess) return refused;
  return give_back(memory);
}
cudaError_t cudaMallocAsync(void** memory, std::size_t n, cudaStream_t stream) {
  if (const auto planned = count("cudaMallocAsync"); planned != cudaSuccess) return planned;
  const cudaError_t taken = take(memory, n, stream->device, stream->taking_part == nullptr ? from::pool : from::graphs);
  if (taken == cudaSuccess && stream->taking_part != nullptr) {
    if (const use_of graph(*stream->taking_part); graph) stream->taking_part->graph->memory.push_back(*memory);
    stream->add([] {}, {.type = cudaGraphNodeTypeMemAlloc});
  }
  return taken;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  count("cudaFreeAsync");
  if (stream->taking_part != nullptr) {
    {
      const use_of graph(*stream->taking_part);
      const auto& own = stream->taking_part->graph->memory;
      if (!graph || std::find(own.begin(), own.end(), memory) == own.end()) {
        stream->taking_part->invalid = true;
        return failed(cudaErrorInvalidValue);
      }
    }
    std::size_t bytes = 0;
    {
      const std::lock_guard lock(big);
      bytes = blocks.at(memory).bytes;
    }
    stream->add([=] { std::memset(memory, 0xff, bytes); },
                {.type = cudaGraphNodeTypeMemFree, .writes = static_cast<char*>(memory), .bytes = bytes});
    return cudaSuccess;
  }
  if (!is_pinned(memory)) return failed(cudaErrorInvalidValue);  // of a graph that is gone, for example
  stream->add([=] { static_cast<void>(give_back(memory)); });
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t n, unsigned) {
  if (const auto planned = count("cudaHostAlloc"); planned != cudaSuccess) return planned;
  if (const auto refused = unsafe_in_capture(); refused != cudaSuccess) return refused;
  return take(memory, n, -1);
}
cudaError_t cudaFreeHost(void* memory) {
  count("cudaFreeHost");
  if (const auto refused = unsafe_in_capture(); refused != cudaSuccess) return refused;
  return give_back(memory);
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (const auto planned = count("cudaDeviceCanAccessPeer"); planned != cudaSuccess) return planned;
  const std::lock_guard lock(big);
  if (device < 0 || device >= device_count || peer < 0 || peer >= device_count) return failed(cudaErrorInvalidDevice);
  *can = device != peer && !cut_pairs.contains({device, peer}) ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  if (const auto planned = count("cudaDeviceEnablePeerAccess"); planned != cudaSuccess) return planned;
  const std::lock_guard lock(big);
  if (peer == device_of_thread || cut_pairs.contains({device_of_thread, peer})) return failed(cudaErrorInvalidDevice);
  return failed(enabled_peers.insert({device_of_thread, peer}).second ? cudaSuccess
                                                                      : cudaErrorPeerAccessAlreadyEnabled);
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  if (const auto planned = count("cudaDeviceGetMemPool"); planned != cudaSuccess) return planned;
  *pool = reinterpret_cast<cudaMemPool_t>(static_cast<std::uintptr_t>(device + 1));  // nobody looks inside
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access, std::size_t n) {
  if (const auto planned = count("cudaMemPoolSetAccess"); planned != cudaSuccess) return planned;
  const std::lock_guard lock(big);
  const int owner = static_cast<int>(reinterpret_cast<std::uintptr_t>(pool)) - 1;
  for (std::size_t i = 0; i < n; ++i) {
    if (access[i].location.type != cudaMemLocationTypeDevice || cut_pairs.contains({access[i].location.id, owner}))
      return failed(cudaErrorInvalidDevice);
    if (access[i].flags == cudaMemAccessFlagsProtReadWrite) enabled_pools.insert({access[i].location.id, owner});
  }
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* all) {
  if (const auto planned = count("cudaMemGetInfo"); planned != cudaSuccess) return planned;
  const std::lock_guard lock(big);
  *all = bytes_of_each;
  *free = bytes_of_each - kept_by_pool[device_of_thread] - of_graphs[device_of_thread].reserved;
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr what, void* value) {
  if (const auto planned = count("cudaMemPoolGetAttribute"); planned != cudaSuccess) return planned;
  const int device = static_cast<int>(reinterpret_cast<std::intptr_t>(pool)) - 1;
  const std::lock_guard lock(big);
  if (what == cudaMemPoolAttrReleaseThreshold)
    *static_cast<std::uint64_t*>(value) = threshold_of_pool[device];
  else if (what == cudaMemPoolAttrReservedMemCurrent)
    *static_cast<std::uint64_t*>(value) = kept_by_pool[device];
  else if (what == cudaMemPoolAttrUsedMemCurrent)
    *static_cast<std::uint64_t*>(value) = used[device];
  else
    return failed(cudaErrorInvalidValue);
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr what, void* value) {
  if (const auto planned = count("cudaMemPoolSetAttribute"); planned != cudaSuccess) return planned;
  if (what != cudaMemPoolAttrReleaseThreshold) return failed(cudaErrorInvalidValue);
  const std::lock_guard lock(big);
  threshold_of_pool[static_cast<int>(reinterpret_cast<std::intptr_t>(pool)) - 1] = *static_cast<std::uint64_t*>(value);
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t bytes) {
  if (const auto planned = count("cudaMemPoolTrimTo"); planned != cudaSuccess) return planned;
  const int device = static_cast<int>(reinterpret_cast<std::intptr_t>(pool)) - 1;
  const std::lock_guard lock(big);
  kept_by_pool[device] = (std::min)(kept_by_pool[device], (std::max)(bytes, used[device]));
  return cudaSuccess;
}
cudaError_t cudaDeviceGetGraphMemAttribute(int device, cudaGraphMemAttributeType what, void* value) {
  if (const auto planned = count("cudaDeviceGetGraphMemAttribute"); planned != cudaSuccess) return planned;
  const std::lock_guard lock(big);
  if (what == cudaGraphMemAttrUsedMemCurrent)
    *static_cast<std::uint64_t*>(value) = of_graphs[device].used;
  else if (what == cudaGraphMemAttrReservedMemCurrent)
    *static_cast<std::uint64_t*>(value) = of_graphs[device].reserved;
  else
    return failed(cudaErrorInvalidValue);
  return cudaSuccess;
}
cudaError_t cudaDeviceGraphMemTrim(int device) {
  if (const auto planned = count("cudaDeviceGraphMemTrim"); planned != cudaSuccess) return planned;
  const std::lock_guard lock(big);
  of_graphs[device].reserved = of_graphs[device].used;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  if (const auto planned = count("cudaPointerGetAttributes"); planned != cudaSuccess) return planned;
  *attributes = {};
  const std::lock_guard lock(big);
  const block* const in = block_of(memory);
  if (in == nullptr) return cudaSuccess;
  attributes->type = in->device < 0 ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  attributes->device = in->device;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* at, int value, std::size_t n, cudaStream_t stream) {
  if (const auto planned = count("cudaMemsetAsync"); planned != cudaSuccess) return planned;
  stream->add([=] { std::memset(at, value, n); },
              {.type = cudaGraphNodeTypeMemset, .writes = static_cast<char*>(at), .bytes = n});
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t n, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const auto planned = count("cudaMemcpyAsync"); planned != cudaSuccess) return planned;
  const auto is_on_host = [&](const void* memory, bool says_so) { return says_so && !is_pinned(memory); };
  const bool waits = is_on_host(from, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost) ||
                     is_on_host(to, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost);
  if (waits &&
      stream->taking_part == nullptr) {  // memory of the host that is not pinned: CUDA copies before it returns
    stream->wait();
    std::memcpy(to, from, n);
    return cudaSuccess;
  }
  stream->add([=] { std::memcpy(to, from, n); }, {.type = cudaGraphNodeTypeMemcpy,
                                                  .reads = static_cast<const char*>(from),
                                                  .writes = static_cast<char*>(to),
                                                  .bytes = n});
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream->taking_part == nullptr ? cudaStreamCaptureStatusNone
            : stream->taking_part->invalid ? cudaStreamCaptureStatusInvalidated
                                           : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, std::size_t*) {
  if (stream->taking_part != nullptr) *id = stream->taking_part->id;
  return cudaStreamIsCapturing(stream, status);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (const auto planned = count("cudaStreamBeginCapture"); planned != cudaSuccess) return planned;
  if (stream->taking_part != nullptr) return failed(cudaErrorIllegalState);
  stream->taking_part = std::make_shared<capture>();
  stream->taking_part->origin = stream;
  stream->taking_part->mode = mode;
  stream->taking_part->streams = {stream};
  if (mode != cudaStreamCaptureModeRelaxed) captures_of_thread.push_back(stream->taking_part);
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (const auto planned = count("cudaThreadExchangeStreamCaptureMode"); planned != cudaSuccess) return planned;
  std::swap(*mode, mode_of_thread);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (const auto planned = count("cudaStreamEndCapture"); planned != cudaSuccess) return planned;
  *graph = nullptr;
  const auto of = stream->taking_part;
  if (of == nullptr) return failed(cudaErrorIllegalState);
  if (of->origin != stream) return failed(cudaErrorStreamCaptureUnmatched);
  if (of->mode != cudaStreamCaptureModeRelaxed && of->thread != std::this_thread::get_id())
    return failed(cudaErrorStreamCaptureWrongThread);
  std::erase(captures_of_thread, of);
  const use_of graph_of_all(*of);
  std::set<std::size_t> reached = stream->last;  // what the origin waits for at its end, one by the other
  for (std::size_t i = of->graph->nodes.size(); i-- > 0;)
    if (reached.contains(i)) reached.insert(of->graph->nodes[i].after.begin(), of->graph->nodes[i].after.end());
  of->origin = nullptr;
  for (CUstream_st* const s : of->streams) {
    s->taking_part = nullptr;
    s->last.clear();
  }
  if (of->in_use_twice) return failed(cudaErrorAssert);  // CUDA does not see that
  if (of->invalid) return failed(cudaErrorStreamCaptureInvalidated);
  if (reached.size() != of->graph->nodes.size()) return failed(cudaErrorStreamCaptureUnjoined);
  if (of->graph->has_unordered()) return failed(cudaErrorAssert);  // CUDA does not see that
  *graph = new CUgraph_st{of->graph};
  add_other(1);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* n) {
  if (nodes != nullptr)
    for (std::size_t i = 0; i < *n; ++i) nodes[i] = &graph->graph->nodes.at(i);
  *n = graph->graph->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  *type = node->type;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  if (const auto planned = count("cudaGraphInstantiate"); planned != cudaSuccess) return planned;
  *made = new CUgraphExec_st{graph->graph};
  add_other(1);
  return cudaSuccess;
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t made, cudaGraph_t graph, cudaGraphExecUpdateResultInfo*) {
  if (const auto planned = count("cudaGraphExecUpdate"); planned != cudaSuccess) return planned;
  const auto &a = made->graph->nodes, &b = graph->graph->nodes;
  const auto alike = [](const CUgraphNode_st& x, const CUgraphNode_st& y) {
    return x.type == y.type && x.after == y.after;
  };
  if (!std::equal(a.begin(), a.end(), b.begin(), b.end(), alike)) return failed(cudaErrorGraphExecUpdateFailure);
  made->graph = graph->graph;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t made, cudaStream_t stream) {
  if (const auto planned = count("cudaGraphLaunch"); planned != cudaSuccess) return planned;
  stream->add([graph = made->graph] { graph->run(); });
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  add_other(-1);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t made) {
  count("cudaGraphExecDestroy");
  delete made;
  add_other(-1);
  return cudaSuccess;
}
}
