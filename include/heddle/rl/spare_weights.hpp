// heddle/rl/spare_weights.hpp: a second memory for weights that wait for their turn.
#pragma once

#include <heddle/model/parameter_route.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/buckets.hpp>

#include <cstdint>

namespace heddle::inline v0::rl::detail {

// As large as the trained weights of the stage, which must outlive it.
template <class Stage>
class spare_weights {
  using space = space_of<Stage>;
  using T = typename Stage::scalar;

 public:
  explicit spare_weights(Stage& stage) : stage_(&stage), memory_(queue(), elements(), "weights that wait") {
    queue().zero(memory_);  // between parameters they are zeros
  }
  // Of a route to it.
  model::stage_weights<Stage> target() { return {stage_, row()}; }
  // The stage has them.
  void take() {
    queue().copy(row(), stage_->weights());
    queue().wait();
    model::of_stage::weights_written(*stage_);
  }

 private:
  auto& queue() { return train::detail::queue_of_stage(*stage_); }
  std::int64_t elements() const { return static_cast<std::int64_t>(element_count(stage_->weights())); }
  auto row() { return row_at<space>(memory_.address(), elements()); }

  Stage* stage_;
  buffer<T, space> memory_;
};

}  // namespace heddle::inline v0::rl::detail
