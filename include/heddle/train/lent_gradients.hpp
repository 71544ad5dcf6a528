// heddle/train/lent_gradients.hpp: whole gradients of a stage that are there only while microbatches add to them.
#pragma once

#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/buckets.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace heddle::inline v0::train {

/// Counts memory that comes and goes. Units: bytes.
struct byte_meter {
  std::int64_t now = 0;
  std::int64_t peak = 0;
  bool gave = false;  ///< some was given back, and elsewhere than on the host may still be used by what is queued
  void take(std::int64_t bytes) noexcept { peak = (std::max)(peak, now += bytes); }
  void give(std::int64_t bytes) noexcept {
    now -= bytes;
    gave = gave || bytes > 0;
  }
  /// Before memory is allocated: waits until what was given back is free, so that a host that is ahead of its queue takes no more
  /// than one that is not.
  template <class Queue>
  void reclaim(Queue& queue) {
    if (std::exchange(gave, false)) queue.wait();
  }
};

/// The whole gradients of a stage of `zero<2>` or `zero<3>`: there from `need` to `give_back`, in memory of their own, or in
/// the rank's share where one rank has all of it and the stage one bucket. Nothing under `zero<0>` and `zero<1>`, where the
/// stage keeps them. Elsewhere than on the host memory comes and goes in the order of the stage's queue.
template <class Stage, class Optimizer>
class lent_gradients {
 public:
  using scalar = typename Stage::scalar;
  using space = space_of<Stage>;
  using row = row_view<scalar, space>;
  static constexpr bool one_bucket = detail::buckets_of_optimizer<Optimizer> == 1;
  static constexpr bool lends = Optimizer::zero_stage >= 2 && model::of_stage::can_lend_gradients<Stage>;

  lent_gradients(Stage& stage, Optimizer& optimizer, int ranks, byte_meter& meter)
      : stage_(stage), optimizer_(optimizer), meter_(meter), alone_(one_bucket && ranks == 1) {
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
      meter_.reclaim(detail::queue_of_stage(stage_));
      whole_ =
          buffer<scalar, space>(detail::queue_of_stage(stage_), stage_.flat_elements(), "the gradients of a stage");
      meter_.take(bytes());
      stage_.lend_gradients(
          heddle::v0::detail::row_at<space>(whole_.address(), static_cast<std::int64_t>(whole_.size())));
    }
  }
  void give_back() {
    if constexpr (lends) {
      if (!std::exchange(here_, false)) return;
      stage_.lend_gradients({});
      meter_.give(bytes());
      whole_ = {};
    }
  }

 private:
  std::int64_t bytes() const noexcept { return static_cast<std::int64_t>(whole_.size() * sizeof(scalar)); }

  Stage& stage_;
  Optimizer& optimizer_;
  byte_meter& meter_;
  bool alone_;
  bool here_ = false;
  buffer<scalar, space> whole_{};
};

}  // namespace heddle::inline v0::train
