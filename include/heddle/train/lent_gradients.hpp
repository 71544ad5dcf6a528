// heddle/train/lent_gradients.hpp: whole gradients that exist only while they are summed.
#pragma once

#include <heddle/core/half_precision.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/buffer_pool.hpp>

#include <cstdint>
#include <utility>

namespace heddle::inline v0::train {

/// The whole gradients of a stage of `zero<2>` or `zero<3>`: there from `need` to `give_back`, in lent memory, or in the rank's
/// share where one rank has all of it and the stage one bucket. Nothing under `zero<0>` and `zero<1>`, where the stage keeps
/// them. They are of `sum_of_type<scalar>`. Elsewhere than on the host memory comes and goes in the order of the stage's queue.
template <class Stage, class Optimizer>
class lent_gradients {
 public:
  using space = space_of<Stage>;
  using sum = sum_of_type<typename Stage::scalar>;
  using row = row_view<sum, space>;
  using memory_type = buffer_pool<sum, space>;
  static constexpr bool one_bucket = detail::buckets_of_optimizer<Optimizer> == 1;
  static constexpr bool lends = Optimizer::zero_stage >= 2 && model::of_stage::can_lend_gradients<Stage>;

  lent_gradients(Stage& stage, Optimizer& optimizer, int ranks, memory_type& memory)
      : stage_(stage), optimizer_(optimizer), memory_(memory), alone_(one_bucket && ranks == 1) {
    if constexpr (lends) stage_.lend_gradients({});
  }
  lent_gradients(const lent_gradients&) = delete;
  lent_gradients& operator=(const lent_gradients&) = delete;

  /// Zeros, if they are not there yet. Errors: `memory_error`.
  void need() {
    if constexpr (lends) {
      if (std::exchange(here_, true)) return;
      if constexpr (one_bucket)
        if (alone_) {
          const row all = optimizer_.gradients_of(stage_);
          detail::queue_of_stage(stage_).zero(all);  // the stage itself was told so when the step began
          stage_.lend_gradients(all);
          return;
        }
      whole_ = memory_.take(detail::queue_of_stage(stage_), stage_.flat_elements(), memory_type::contents::zeros,
                            "the gradients of a stage");
      stage_.lend_gradients(row_at<space>(whole_.address(), static_cast<std::int64_t>(whole_.size())));
    }
  }
  void give_back() {
    if constexpr (lends) {
      if (!std::exchange(here_, false)) return;
      stage_.lend_gradients({});
      memory_.give_back(std::move(whole_));
    }
  }

 private:
  Stage& stage_;
  Optimizer& optimizer_;
  memory_type& memory_;
  bool alone_;
  bool here_ = false;
  buffer<sum, space> whole_{};
};

}  // namespace heddle::inline v0::train
