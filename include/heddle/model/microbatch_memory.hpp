// heddle/model/microbatch_memory.hpp: inputs, targets, losses in a backend's memory.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/model/layer.hpp>
#include <heddle/model/pair_batch.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0::model {

/// What the layers of a stage read of a `Batch`, which lies on the host, and where its loss is added up: one place for each
/// microbatch on its way. `take` copies a microbatch in the order of the queue; the batch must stay as it is until somebody
/// waits for the queue. Nothing is copied, or allocated, where `Space` is the host's.
template <class Batch, memory_space Space>
class microbatch_memory {
 public:
  using input = typename batch_contents<Batch>::input;
  using target = typename batch_contents<Batch>::target;
  using queue = typename Space::queue;

  /// Of samples like `one`. `inputs` and `targets`: whether they are read.
  microbatch_memory(queue& q, sample_extents one, std::int64_t max_samples, int places, bool inputs, bool targets)
      : losses_(q, places, "the losses of microbatches") {
    if (inputs) stride_.inputs = max_samples * one.inputs;
    if (targets) stride_.targets = max_samples * one.targets;
    inputs_ = buffer<input, Space>(q, places * stride_.inputs, "the inputs of microbatches");
    targets_ = buffer<target, Space>(q, places * stride_.targets, "the targets of microbatches");
  }

  template <class Config>
  void take(queue& q, int place, const Config& config, const Batch& b, extent_of_batch e) {
    if (stride_.inputs > 0) q.copy(inputs_of(config, b, e), all_inputs(place, inputs_of(config, b, e).size()));
    if (stride_.targets > 0) q.copy(b.targets, targets_of(place, b));
  }
  /// What `inputs_of` gives, of the microbatch in this place.
  template <class Config>
  auto inputs(int place, const Config& config, const Batch& b, extent_of_batch e) noexcept {
    const auto given = inputs_of(config, b, e);
    const auto here = all_inputs(place, given.size());
    if constexpr (requires { given.shape(); })
      return matrix_view<const input, Space>(here.address(), given.shape());
    else
      return row_view<const input, Space>(here);
  }
  row_view<const target, Space> targets(int place, const Batch& b) noexcept { return targets_of(place, b); }

  /// The loss of this place, zero from here on.
  scalar_view<double, Space> new_loss(queue& q, int place) {
    q.zero(loss(place));
    return loss(place);
  }
  void copy_loss(queue& q, int place, scalar_view<double, Space> to) { q.copy(loss(place), to); }
  /// Waits for the queue.
  double read_loss(queue& q, int place) {
    double sum = 0;
    q.copy(loss(place), std::span<double>(&sum, 1));
    q.wait();
    return sum;
  }

 private:
  template <class Size>
  vector_view<input, Space> all_inputs(int place, Size count) noexcept {
    return {inputs_.address() + place * stride_.inputs, dynamic_shape<1>(static_cast<std::int64_t>(count))};
  }
  vector_view<target, Space> targets_of(int place, const Batch& b) noexcept {
    return {targets_.address() + place * stride_.targets,
            dynamic_shape<1>(static_cast<std::int64_t>(b.targets.size()))};
  }
  scalar_view<double, Space> loss(int place) noexcept { return {losses_.address() + place, {}}; }

  sample_extents stride_{};
  buffer<input, Space> inputs_{};
  buffer<target, Space> targets_{};
  buffer<double, Space> losses_;
};

template <class Batch>
class microbatch_memory<Batch, host_memory> {
 public:
  microbatch_memory(host_memory::queue&, sample_extents, std::int64_t, int, bool, bool) noexcept {}
  template <class Config>
  static void take(host_memory::queue&, int, const Config&, const Batch&, extent_of_batch) noexcept {}
  template <class Config>
  static auto inputs(int, const Config& config, const Batch& b, extent_of_batch e) noexcept {
    return inputs_of(config, b, e);
  }
  static auto targets(int, const Batch& b) noexcept { return b.targets; }
};

}  // namespace heddle::inline v0::model
