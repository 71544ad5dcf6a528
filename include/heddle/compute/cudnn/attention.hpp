// heddle/compute/cudnn/attention.hpp: attention by cuDNN 9 on a stream (not run on a GPU).
#pragma once

#include <heddle/compute/cudnn/attention_graphs.hpp>
#include <heddle/compute/cudnn/graph.hpp>
#include <heddle/compute/group/attention_rows.hpp>
#include <heddle/compute/group/threads.hpp>
#include <heddle/compute/growing_room.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/cuda/memory.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::compute::detail::on_cudnn {

/// Where the tensors of an `attention_problem` begin, on the device.
struct attention_addresses {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  const void* dout = nullptr;  ///< this and the following with `backward`; out and lse are read then
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

/// Log-sum-exps [heads, batch, rows] as [batch, heads, rows], element by element.
struct packed_lse {
  const float* from;
  float* to;
  std::int64_t batch, heads, rows;
  HEDDLE_HD void operator()(std::int64_t i) const {
    const std::int64_t row = i % rows, head = i / rows % heads, b = i / rows / heads;
    to[i] = from[(head * batch + b) * rows + row];
  }
};

/// cuDNN's handle, the plans that it made, by problem, and the memory that they work in. It serves one queue and one thread. A plan is made, and memory taken,
/// when a problem comes for the first time; later runs of the problem only queue the kernels, and may be captured into a graph, which must not
/// outlive this object.
class attention_library {
 public:
  /// Errors: `config_error` if the cuDNN that is loaded is older than 9.16; `cuda_error` if it refuses a handle.
  explicit attention_library(cuda_memory::queue& queue) : device_(queue.device()) {
    if (const std::size_t version = cudnnGetVersion(); version < 91600)
      throw config_error("heddle: attention by cuDNN needs cuDNN 9.16 or later (91600), this program has loaded " +
                         std::to_string(version));
    const heddle::v0::detail::on_cuda_device here(device_);
    require(cudnnCreate(&handle_), "cudnnCreate", device_);
  }
  attention_library(const attention_library&) = delete;
  attention_library& operator=(const attention_library&) = delete;
  ~attention_library() {
    const heddle::v0::detail::on_cuda_device here(device_, std::nothrow);
    static_cast<void>(cudnnDestroy(handle_));
  }

  /// Problems that came so far, those that cuDNN has nothing for among them.
  std::size_t problems() const noexcept { return plans_.size(); }

  /// Whether cuDNN computes this. If not, nothing is done. `On` launches on the queue (compute/cuda/launcher.hpp).
  /// Errors: `cuda_capture_error` if a problem comes for the first time while the queue is captured; `cuda_error` for what cuDNN refuses.
  template <class On>
  bool run(const On& on, const attention_problem& p, float scale, const attention_addresses& x) {
    if (!is_taken(p, x)) return false;
    const heddle::v0::detail::on_cuda_device here(device_);
    known_problem& known = plan_for(on.queue, p);
    if (!known.plan) return false;
    if (stream_ != on.queue.stream() || !has_stream_) {
      require(cudnnSetStream(handle_, on.queue.stream()), "cudnnSetStream", device_);
      stream_ = on.queue.stream();
      has_stream_ = true;
    }
    const workspace needs(p, *known.plan);
    std::byte* const memory = memory_.of(on.queue, needs.bytes, "the workspace of attention");
    const auto floats = [memory](std::int64_t at) { return reinterpret_cast<float*>(memory + at); };
    const float* lse = x.lse;
    if (p.backward && p.lse.all() != lse_in_order(p).all()) {
      lse = floats(needs.lse);
      on.each(p.floats_of_sums(), packed_lse{x.lse, floats(needs.lse), p.batch, p.heads, p.queries});
    }
    const float lowest = -(std::numeric_limits<float>::infinity)(), one = 1.0f;
    std::vector<std::pair<std::int64_t, const void*>> all{{id_q, x.q},     {id_k, x.k},   {id_v, x.v},
                                                          {id_out, x.out}, {id_lse, lse}, {id_scale, &scale}};
    if (p.causal) all.emplace_back(id_lowest, &lowest);
    if (p.backward)
      all.insert(all.end(), {{id_dout, x.dout},
                             {id_dq, x.dq},
                             {id_dk, x.dk},
                             {id_dv, x.dv},
                             {id_sums, floats(needs.sums)},
                             {id_dq_sum, floats(needs.dq_sum)},
                             {id_one, &one}});
    execute(*known.plan, all, memory);
    known.has_run = true;
    return true;
  }

  /// Whether sizes, strides and addresses are such that cuDNN is asked: heads of a multiple of 8 elements, 128 at most; more than one key in
  /// gradients; rows and addresses of multiples of 16 bytes, which cuDNN does not check itself.
  static bool is_taken(const attention_problem& p, const attention_addresses& x) {
    const auto width = [](std::int64_t n) { return n > 0 && n <= 128 && n % 8 == 0; };
    if (p.batch <= 0 || p.heads <= 0 || p.kv_heads <= 0 || p.heads % p.kv_heads != 0 || p.queries <= 0 || p.keys <= 0 ||
        !width(p.width) || !width(p.value_width) || (p.backward && p.keys == 1))
      return false;
    const auto in_steps = [](const void* at, const attention_strides& s) {
      return reinterpret_cast<std::uintptr_t>(at) % 16 == 0 && s.batch % 8 == 0 && s.head % 8 == 0 && s.row % 8 == 0;
    };
    return reinterpret_cast<std::uintptr_t>(x.lse) % 16 == 0 && in_steps(x.q, p.q) && in_steps(x.k, p.k) &&
           in_steps(x.v, p.v) && in_steps(x.out, p.out) &&
           (!p.backward ||
            (in_steps(x.dout, p.dout) && in_steps(x.dq, p.dq) && in_steps(x.dk, p.dk) && in_steps(x.dv, p.dv)));
  }

 private:
  struct known_problem {
    std::optional<execution_plan> plan;
    bool has_run = false;
  };

  // Gradients read log-sum-exps in this order alone: until 9.26 cuDNN reads others as if they lay so.
  static attention_strides lse_in_order(const attention_problem& p) {
    return {p.batch == 1 ? p.lse.batch : p.heads * p.queries, p.queries, 1};
  }
  // Where what a run works in lies, in bytes: the plan's own, and with gradients their sums, sums of dout out, and log-sum-exps in order.
  struct workspace {
    std::int64_t dq_sum, sums, lse, bytes;
    workspace(const attention_problem& p, const execution_plan& plan)
        : dq_sum(aligned(plan.workspace)),
          sums(dq_sum + (p.backward ? floats(p.floats_of_gradients()) : 0)),
          lse(sums + (p.backward ? floats(p.floats_of_sums()) : 0)),
          bytes(lse + (p.backward ? floats(p.floats_of_sums()) : 0)) {}
    static std::int64_t aligned(std::int64_t n) { return (n + 255) / 256 * 256; }
    static std::int64_t floats(std::int64_t n) { return aligned(n * static_cast<std::int64_t>(sizeof(float))); }
  };

  known_problem& plan_for(cuda_memory::queue& queue, const attention_problem& p) {
    const auto at = plans_.find(p.key());
    if (at != plans_.end() && (at->second.has_run || !at->second.plan)) [[likely]]
      return at->second;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    heddle::v0::detail::require_cuda(cudaStreamIsCapturing(queue.stream(), &status), "cudaStreamIsCapturing", device_);
    if (status != cudaStreamCaptureStatusNone)
      throw cuda_capture_error("heddle: attention by cuDNN on CUDA device " + std::to_string(device_) +
                               ": may not be part of a graph before it has run once outside of one: a plan is made and "
                               "memory taken then; do the same work once before the capture");
    if (at != plans_.end()) return at->second;
    attention_problem asked = p;
    if (p.backward) asked.lse = {p.heads * p.queries, p.queries, 1};
    const operation_graph graph =
        p.backward ? attention_backward_graph(asked, device_) : attention_forward_graph(asked, device_);
    return plans_.emplace(p.key(), known_problem{graph.plan(handle_)}).first->second;
  }
  void execute(const execution_plan& plan, const std::vector<std::pair<std::int64_t, const void*>>& all,
               std::byte* memory) {
    std::vector<std::int64_t> ids;
    std::vector<void*> addresses;
    for (const auto& [id, address] : all) {
      ids.push_back(id);
      addresses.push_back(const_cast<void*>(address));
    }
    descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, device_);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, std::span<const std::int64_t>(ids));
    pack.set<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, addresses);
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, static_cast<void*>(memory));
    const descriptor given = std::move(pack).finalize("addresses");
    require(cudnnBackendExecute(handle_, plan.it.get(), given.get()), "cudnnBackendExecute", device_);
  }

  int device_;
  cudnnHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
  bool has_stream_ = false;
  std::map<decltype(attention_problem{}.key()), known_problem> plans_;
  growing_room<std::byte, cuda_memory> memory_;
};

/// The strides and sizes of one call of a backend's attention to causal sequences of one length behind each other.
template <class T>
attention_problem problem_of(const in_groups::attention_inputs<T, in_groups::causal_batch>& in,
                             const in_groups::heads_at<T>& out) {
  const std::int64_t sequence = in.mask.sequence;
  const auto strides = [sequence](const auto& x) {
    return attention_strides{sequence * x.stride, x.head_dim, x.stride};
  };
  attention_problem p;
  p.type = std::is_same_v<T, bf16> ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
  p.batch = sequence == 0 ? 0 : in.queries / sequence;
  p.heads = in.heads;
  p.kv_heads = in.heads / in.shared;
  p.queries = p.keys = sequence;
  p.width = in.q.head_dim;
  p.value_width = out.head_dim;
  p.q = strides(in.q);
  p.k = strides(in.k);
  p.v = strides(in.v);
  p.out = strides(out);
  p.lse = {sequence, in.queries, 1};
  return p;
}

/// `Launcher` (compute/cuda/launcher.hpp) that lets cuDNN compute the attention it has.
template <class Launcher>
struct launcher_with_cudnn : Launcher {
  struct products : Launcher::products {
    explicit products(cuda_memory::queue& queue) : Launcher::products(queue), attention(queue) {}
    attention_library attention;
  };
  launcher_with_cudnn(cuda_memory::queue& on, products& by) : Launcher(on, by), attention_(by.attention) {}

  template <class T, class Mask>
  bool attend_by_library(const in_groups::attention_inputs<T, Mask>& in, const in_groups::heads_at<T>& out,
                         float* lse) const {
    if constexpr (is_half_precision<T> && std::is_same_v<Mask, in_groups::causal_batch>)
      return attention_.run(static_cast<const Launcher&>(*this), problem_of(in, out), in.scale,
                            {in.q.data, in.k.data, in.v.data, out.data, lse});
    else
      return false;
  }
  template <class T, class Mask>
  bool attend_backward_by_library(const in_groups::attention_inputs<T, Mask>& in,
                                  const in_groups::heads_at<const T>& dout, const in_groups::heads_at<const T>& out,
                                  const float* lse, const in_groups::heads_at<T>& dq, const in_groups::heads_at<T>& dk,
                                  const in_groups::heads_at<T>& dv) const {
    if constexpr (is_half_precision<T> && std::is_same_v<Mask, in_groups::causal_batch>) {
      const in_groups::heads_at<T> result{const_cast<T*>(out.data), out.stride, out.head_dim};
      attention_problem p = problem_of(in, result);
      const auto strides = [&](const auto& x) { return attention_strides{p.queries * x.stride, x.head_dim, x.stride}; };
      p.backward = true;
      p.dout = strides(dout);
      p.dq = strides(dq);
      p.dk = strides(dk);
      p.dv = strides(dv);
      return attention_.run(static_cast<const Launcher&>(*this), p, in.scale,
                            {in.q.data, in.k.data, in.v.data, result.data, const_cast<float*>(lse), dout.data, dq.data,
                             dk.data, dv.data});
    } else {
      return false;
    }
  }

 private:
  attention_library& attention_;
};

}  // namespace heddle::inline v0::compute::detail::on_cudnn
