// heddle/tensor/cuda/graph.hpp: CUDA graphs of queues, launched often (not run on a GPU).
#pragma once

#include <heddle/core/observer.hpp>
#include <heddle/tensor/cuda/memory.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// Operations of a queue, and of queues beside it, as one graph: captured once, launched as often as wanted with one call of the host each.
/// The graph has the addresses and the values that the operations were given: what changes from launch to launch is read from memory
/// (of the device, or pinned), or comes by `update`. All memory that it uses must live as long as it is launched; the one that it takes, it also gives back.
class cuda_graph {
 public:
  /// Nothing to launch.
  cuda_graph() = default;

  /// What `body()` gives to `queue`, and to the side queues: none of it is done now. Side queues begin with what the queue begins with, and the graph ends
  /// when all are done; between them events order (`record`, `after`). Errors: `cuda_capture_error` naming what may not be part of a graph (waiting on
  /// the host, copies of memory that is not pinned, events from outside, release of memory from outside, memory that is taken and kept); what the body
  /// throws; `cuda_error`. The queues are as before then, and what was captured is forgotten.
  template <class Body, std::same_as<cuda_memory::queue>... Side>
    requires std::invocable<Body&>
  static cuda_graph capture(cuda_memory::queue& queue, Body&& body, Side&... side) {
    cuda_graph out;
    out.instantiate(queue, captured(queue, body, side...));
    return out;
  }
  /// A capture of queues of several threads: one graph of what all of them are given. See below.
  class joint_capture;

  /// The same operations with other values or addresses: the graph that is there takes them over, where CUDA can do so, else it is made anew.
  /// Whether it could. The graph is as before if this throws. Errors: those of `capture`.
  template <class Body, std::same_as<cuda_memory::queue>... Side>
    requires std::invocable<Body&>
  bool update(cuda_memory::queue& queue, Body&& body, Side&... side) {
    const owned graph = captured(queue, body, side...);
    if (launchable_ != nullptr && device_ == queue.device()) {
      const detail::on_cuda_device here(device_);
      cudaGraphExecUpdateResultInfo info{};
      const cudaError_t result = cudaGraphExecUpdate(launchable_.get(), graph.get(), &info);
      if (result == cudaSuccess) return true;
      detail::ignore_cuda(result);
      if (result != cudaErrorGraphExecUpdateFailure) detail::require_cuda(result, "cudaGraphExecUpdate", device_);
    }
    instantiate(queue, graph);
    return false;
  }

  /// All of it, after what the queue was given before; the host goes on. One graph runs once at a time: a second launch waits for the first.
  /// Errors: `config_error` if there is nothing to launch or the queue is another device's; `cuda_error`.
  void launch(cuda_memory::queue& queue) {
    if (launchable_ == nullptr) throw config_error("heddle: a CUDA graph is launched that was not captured");
    if (queue.device() != device_)
      throw config_error("heddle: a CUDA graph of device " + std::to_string(device_) +
                         " is launched on a queue of device " + std::to_string(queue.device()));
    const detail::on_cuda_device here(device_);
    require_memory(cudaGraphLaunch(launchable_.get(), queue.stream()), "cudaGraphLaunch", queue);
  }

  /// The same as one action of the rank, "graph": observers that measure on the device (`cuda_device_times`) have it from the first operation to
  /// the end of the last, those of the host the time of the call.
  template <observer Observer>
  void launch(cuda_memory::queue& queue, Observer& watch, int rank, int step = -1) {
    event e;
    e.name = "graph";
    e.rank = rank;
    e.step = step;
    observed(watch, e, [&] { launch(queue); });
  }

  /// Operations that it has; 0 if it was not captured.
  std::size_t operations() const noexcept { return operations_; }
  explicit operator bool() const noexcept { return launchable_ != nullptr; }

 private:
  using owned = std::shared_ptr<CUgraph_st>;

  // A capture between its begin and its end; what was captured is forgotten where nobody takes it.
  class scope {
   public:
    explicit scope(cuda_memory::queue& queue) : queue_(queue) {
      const detail::on_cuda_device here(queue.device());
      // Other threads, which may be ranks, go on with calls that would end a capture of the whole process.
      detail::require_cuda(cudaStreamBeginCapture(queue.stream(), cudaStreamCaptureModeThreadLocal),
                           "cudaStreamBeginCapture", queue.device());
      open_ = true;
    }
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() {
      if (!open_) return;
      const detail::on_cuda_device here(queue_.device(), std::nothrow);
      cudaGraph_t graph = nullptr;
      detail::ignore_cuda(cudaStreamEndCapture(queue_.stream(), &graph));
      if (graph != nullptr) detail::ignore_cuda(cudaGraphDestroy(graph));
    }
    owned end() {
      const detail::on_cuda_device here(queue_.device());
      cudaGraph_t graph = nullptr;
      const cudaError_t result = cudaStreamEndCapture(queue_.stream(), &graph);
      open_ = result == cudaErrorStreamCaptureWrongThread;
      owned out;
      if (graph != nullptr) out.reset(graph, [](cudaGraph_t g) { detail::ignore_cuda(cudaGraphDestroy(g)); });
      detail::require_cuda(result, "the end of a capture (cudaStreamEndCapture)", queue_.device());
      return out;
    }

   private:
    cuda_memory::queue& queue_;
    bool open_ = false;
  };

  template <class Body, class... Side>
  static owned captured(cuda_memory::queue& queue, Body& body, Side&... side);

  void instantiate(const cuda_memory::queue& queue, const owned& graph) {
    const int device = queue.device();
    const detail::on_cuda_device here(device);
    const std::size_t operations = require_memory_goes_back(graph.get(), device);
    cudaGraphExec_t made = nullptr;
    require_memory(cudaGraphInstantiate(&made, graph.get(), 0), "cudaGraphInstantiate", queue);
    launchable_.reset(made, [](cudaGraphExec_t g) { detail::ignore_cuda(cudaGraphExecDestroy(g)); });
    operations_ = operations;
    device_ = device;
  }
  // Memory that is taken while a queue is captured has addresses then, and is mapped by these calls.
  static void require_memory(cudaError_t result, const char* call, const cuda_memory::queue& queue) {
    if (result == cudaErrorMemoryAllocation) {
      detail::ignore_cuda(result);
      throw memory_error(
          "heddle: CUDA device " + std::to_string(queue.device()) + " has no memory left for what a graph takes (" +
          call + "): " + std::to_string(queue.free_bytes()) + " bytes are free" + detail::text_of_expected_memory());
    }
    detail::require_cuda(result, call, queue.device());
  }
  // The number of its operations. CUDA would refuse the second launch of a graph that keeps memory.
  static std::size_t require_memory_goes_back(cudaGraph_t graph, int device) {
    std::size_t count = 0;
    detail::require_cuda(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes", device);
    std::vector<cudaGraphNode_t> nodes(count);
    if (count != 0) detail::require_cuda(cudaGraphGetNodes(graph, nodes.data(), &count), "cudaGraphGetNodes", device);
    std::size_t taken = 0, given_back = 0;
    for (const cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
      detail::require_cuda(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType", device);
      taken += type == cudaGraphNodeTypeMemAlloc ? 1 : 0;
      given_back += type == cudaGraphNodeTypeMemFree ? 1 : 0;
    }
    if (taken != given_back)
      throw cuda_capture_error("heddle: the capture of a graph on CUDA device " + std::to_string(device) +
                               ": it takes memory " + std::to_string(taken) + " times and gives it back " +
                               std::to_string(given_back) +
                               " times: take what is used after the graph before its capture");
    return count;
  }

  std::shared_ptr<CUgraphExec_st> launchable_{};
  std::size_t operations_ = 0;
  int device_ = 0;
};

/// One graph of what the queues of several threads are given, one of which begins and ends the capture. CUDA does not synchronize calls that
/// add to one graph: no two threads may be in a call with a queue of the capture at the same time, and each sees what those before it
/// did (a mutex that they hold in turn). Events order the queues among each other, as outside of captures.
/// CUDA looks out for calls that no capture may have (`cudaMalloc`) on the thread that began alone (`cudaStreamCaptureModeThreadLocal`); a `cudaDeviceSynchronize`
/// of any thread, also one that a library makes when it ends, spoils the capture whatever the mode (NVIDIA/TensorRT issue 2888).
/// Errors: those of `cuda_graph::capture`. A capture that is destroyed before its end is forgotten, on the thread that began it.
class cuda_graph::joint_capture {
 public:
  /// Begins. The queue, and those that join, must live until the end.
  explicit joint_capture(cuda_memory::queue& queue)
      : queue_(queue), capture_(std::in_place, queue), begin_(queue.record()) {}
  joint_capture(const joint_capture&) = delete;
  joint_capture& operator=(const joint_capture&) = delete;
  ~joint_capture() {
    capture_.reset();
    static_cast<void>(give_back_kept());
  }

  /// The queue takes part, by its thread: it begins with what the captured queue begins with, and the graph ends when it is done, too.
  void join(cuda_memory::queue& other) {
    others_.reserve(others_.size() + 1);
    other.after(begin_);
    others_.push_back(&other);
  }
  /// By the thread that began it, when all threads have given what they give: all queues are as before.
  cuda_graph end() {
    cuda_graph out;
    out.instantiate(queue_, finish());
    return out;
  }

 private:
  friend class cuda_graph;

  // Memory that was to be released while its stream was captured goes back after the capture; whether there was any.
  bool give_back_kept() const noexcept {
    bool any = queue_.stream_->give_back_kept();
    for (const cuda_memory::queue* const q : others_) any = q->stream_->give_back_kept() || any;
    return any;
  }
  owned finish() {
    for (cuda_memory::queue* const q : others_) queue_.after(q->record());
    owned graph = capture_->end();
    capture_.reset();
    if (give_back_kept())
      throw cuda_capture_error(
          "heddle: the capture of a graph on CUDA device " + std::to_string(queue_.device()) +
          ": memory was released that was taken before the capture, and the graph may use it: keep it "
          "as long as the graph");
    return graph;
  }

  cuda_memory::queue& queue_;
  std::optional<scope> capture_;
  detail::cuda_event begin_;
  std::vector<cuda_memory::queue*> others_{};
};

template <class Body, class... Side>
cuda_graph::owned cuda_graph::captured(cuda_memory::queue& queue, Body& body, Side&... side) {
  joint_capture all(queue);
  (all.join(side), ...);
  body();
  return all.finish();
}

}  // namespace heddle::inline v0
