// heddle/train/step_memory.hpp: losses and head outputs of a step, brought to the host.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/model/pipeline/stage.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::train {

/// The losses of a step's microbatches on a rank, added up in the order of the microbatches, whatever the schedule. Where a stage has
/// them in memory that the host may not touch, and copies them there (`model::of_stage::copies_loss`), they are read once a step.
template <class Stage>
class step_losses {
 public:
  using space = space_of<Stage>;
  static constexpr bool are_copied = model::of_stage::copies_loss<Stage>;

  /// `queue` may be null where the host may touch the stages' memory.
  step_losses([[maybe_unused]] typename space::queue* queue, int microbatches)
      : queue_(queue), on_host_(static_cast<std::size_t>(microbatches)) {
    if constexpr (are_copied) here_ = buffer<double, space>(*queue, microbatches, "the losses of a step");
  }
  /// A step begins.
  void begin() {
    std::fill(on_host_.begin(), on_host_.end(), 0.0);
    if constexpr (are_copied) queue_->zero(here_);
  }
  /// The loss of a microbatch that has just gone forward through the last stage.
  void take(Stage& stage, int microbatch, int slot) {
    if constexpr (are_copied)
      stage.copy_loss(slot, scalar_view<double, space>(here_.address() + microbatch, {}));
    else
      on_host_[static_cast<std::size_t>(microbatch)] = stage.loss_sum(slot);
  }
  /// Those of a step in the stages' memory, where they are copied.
  row_view<const double, space> there() const noexcept
    requires are_copied
  {
    return row_at<space>(here_.address(), static_cast<std::int64_t>(here_.size()));
  }
  /// Waits for the queue, where they are copied.
  double sum() {
    if constexpr (are_copied) {
      queue_->copy(here_, on_host_);
      queue_->wait();
    }
    return std::accumulate(on_host_.begin(), on_host_.end(), 0.0);
  }

 private:
  typename space::queue* queue_;
  std::vector<double> on_host_;
  buffer<double, space> here_{};
};

}  // namespace heddle::inline v0::train

namespace heddle::inline v0::train::detail {

template <class Stage, class Backend>
consteval bool stage_is_in_memory_of() {
  if constexpr (!requires { Stage::is_refused; }) {
    constexpr bool same = std::is_same_v<space_of<Stage>, space_of<Backend>>;
    static_assert(
        model::detail::stage_has_it<same, Stage>::value,
        "heddle: this stage keeps its tensors in another memory than the backend computes in: a stage says where "
        "they are by `using space = ...`, without it in the host's memory; take a backend of that memory");
  }
  return true;
}

// The queue of a backend whose memory is `Space`; none on the host.
template <class Space, class Backend>
typename Space::queue* queue_for([[maybe_unused]] Backend& backend) noexcept {
  if constexpr (std::is_same_v<Space, host_memory>)
    return nullptr;
  else
    return &backend.queue();
}

// Memory of the stages for as many outputs of the head as the host has room for, kept for the next call.
template <class T, memory_space Space>
class logits_on_host {
 public:
  row_view<T, Space> row(typename Space::queue& queue, std::span<T> to) {
    const auto n = static_cast<std::int64_t>(to.size());
    if (static_cast<std::int64_t>(here_.size()) < n) here_ = buffer<T, Space>(queue, n, "the head's outputs");
    return row_at<Space>(here_.address(), n);
  }
  void read(typename Space::queue& queue, std::span<T> to) {
    queue.copy(row(queue, to), to);
    queue.wait();
  }

 private:
  buffer<T, Space> here_;
};
template <class T>
class logits_on_host<T, host_memory> {
 public:
  template <class Queue>
  static std::span<T> row(Queue&, std::span<T> to) noexcept {
    return to;
  }
  template <class Queue>
  static void read(Queue&, std::span<T>) noexcept {}
};

}  // namespace heddle::inline v0::train::detail
