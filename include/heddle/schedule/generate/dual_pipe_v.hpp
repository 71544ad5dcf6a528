// heddle/schedule/generate/dual_pipe_v.hpp: DualPipe-V: DualPipe folded into a V of stages.
#pragma once

#include <heddle/schedule/stage_map.hpp>

namespace heddle::inline v0::schedule {
namespace detail {

// One of the two ways through a rank: its stage there, and its next forward, backward and W.
struct dual_lane {
  int stage = 0;
  int forward = 0;
  int backward = 0;
  int weight = 0;

  constexpr dual_lane(int of_stage, int first_microbatch)
      : stage(of_stage), forward(first_microbatch), backward(first_microbatch) {}
};

// One rank's list: what DualPipeV and DualPipe have in common. `first` is the lane that comes from the entrance,
// `second` the one that comes back from the fold (DualPipeV) or from the other entrance (DualPipe); each has `count`
// microbatches. `depth` ranks lie between entrance and fold, this one in place `position`.
template <class Sink>
class dual_list {
 public:
  constexpr dual_list(dual_lane first, dual_lane second, Sink& emit) : first_(first), second_(second), emit_(emit) {}

  constexpr void write(int position, int depth, int count) {
    const int behind = depth - 1 - position;
    for (int k = 0; k < 2 * behind; ++k) forward(first_);
    for (int k = 0; k <= position; ++k) {
      forward(first_);
      forward(second_);
    }
    for (int k = 0; k < behind; ++k) {
      second_.weight = second_.backward;
      input(second_);
      weight(second_);
      forward(second_);
    }
    for (int k = 0; k < count - 2 * depth + position + 1; ++k) {
      forward(first_, behind > 0 || k > 0);  // at the fold the very first backward follows from the forward before it
      backward(second_);
      forward(second_, true);
      backward(first_);
    }
    for (int k = 0; k < behind; ++k) {
      backward(second_);
      forward(second_, true);
      backward(first_);
    }
    // From half-way on only input gradients, which other ranks wait for. Their number is position + 1, the lanes take
    // turns, and the last is of the first lane.
    for (int k = 2 * position + 1; k >= 0; --k) {
      dual_lane& lane = k % 2 == 1 ? second_ : first_;
      if (k == position) {
        first_.weight = first_.backward;
        second_.weight = second_.backward;
      }
      k <= position ? input(lane) : backward(lane);
    }
    // W in the order of these input gradients.
    for (int k = position; k >= -behind; --k) {
      weight(k > 0 && k % 2 == 1 ? second_ : first_);
      if (k > position - behind) input(first_);
    }
  }

 private:
  constexpr void forward(dual_lane& lane, bool beside_next = false) {
    emit_(action_kind::forward, lane.stage, lane.forward++, beside_next);
  }
  constexpr void backward(dual_lane& lane) { emit_(action_kind::backward, lane.stage, lane.backward++); }
  constexpr void input(dual_lane& lane) { emit_(action_kind::backward_input, lane.stage, lane.backward++); }
  constexpr void weight(dual_lane& lane) { emit_(action_kind::backward_weight, lane.stage, lane.weight++); }

  dual_lane first_, second_;
  Sink& emit_;
};

}  // namespace detail

/// DualPipeV: rank r holds stages r and 2p - 1 - r of a model folded into a V. In the middle of the step a forward of
/// one and a backward of the other are a pair that may run side by side, so that the communication inside the one
/// hides behind the computation of the other. Bubble (p - 1)(pair + B - 3W) in times of a stage; every rank holds up
/// to 2p + 1 activations of one stage. Runs only with m >= 2p.
/// Source: DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1 (DualPipe), cut in half at the fold.
template <microbatches_like Microbatches = microbatches<>>
struct dual_pipe_v : staged<Microbatches, v_shape> {
  using staged<Microbatches, v_shape>::staged;

  constexpr bool fits(int ranks) const noexcept { return fits_with(this->microbatch_count(), ranks); }
  static constexpr bool fits_with(int microbatches, int ranks) noexcept { return microbatches / 2 >= ranks; }

  constexpr void generate(int rank, int ranks, auto& emit) const {
    detail::dual_list({rank, 0}, {2 * ranks - 1 - rank, 0}, emit).write(rank, ranks, this->microbatch_count());
  }
};

}  // namespace heddle::inline v0::schedule
