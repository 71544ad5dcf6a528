// heddle/rl/colocated_weights.hpp: trainer and generator weights on the same ranks.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/parameter_route.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/trainer_weights.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace heddle::inline v0::rl {

namespace detail {

// Memory for the weights of a stage whose own has been given back.
template <class Stage>
class returning_weights {
  using space = space_of<Stage>;
  using T = typename Stage::scalar;

 public:
  void take(Stage& stage) {
    auto& queue = train::detail::queue_of_stage(stage);
    const std::int64_t n = model::of_stage::flat_elements(stage);
    memory_ = buffer<T, space>(queue, n, "weights that come back");
    queue.zero(memory_);  // between parameters they are zeros
    stage.lend_weights(row_at<space>(memory_.address(), n));
  }
  void give_back(Stage& stage) {
    stage.lend_weights({});
    memory_ = {};
  }

 private:
  buffer<T, space> memory_{};
};

}  // namespace detail

/// The weights of a trainer and of a stage for generation on the same ranks. In training the stage's have no memory, while it generates the trainer's have
/// none: they come back out of the stage, bit for bit, so both must hold the same element type. Weights go first, then a cache may be taken; a cache is released
/// before weights come back. At each change both are there for a moment, with two buckets of the route.
///
/// With `zero<3>` each rank's share stays in the optimizer, and nothing comes back; a stage without `lend_weights` keeps its memory. Gradients, masters and moments
/// stay where they are. It must live as long as the trainer and the stage are used, whose memory it is after the first change; a step of the trainer
/// while the stage generates has no weights to compute with. With `captured_steps` the next step is captured again. Not for communicators that register the memory
/// of parameters.
/// Errors: `config_error` for a change to where the weights are; what `parameter_route` throws.
/// Source: Sheng et al. 2024, arXiv:2409.19256, section 5.
template <class Trainer, class Stage>
class colocated_weights {
  using trained_stage = typename Trainer::stage_type;
  static constexpr bool lends_trainer = Trainer::zero_stage < 3;
  static constexpr bool lends_stage = model::of_stage::can_lend_weights<Stage>;
  static_assert(!lends_trainer || model::of_stage::can_lend_weights<trained_stage>,
                "heddle: colocated_weights gives a trainer's weights back while others generate: its stage needs "
                "lend_weights(row) and flat_elements()");

 public:
  /// Called on all ranks of `world` together, in training; a rank that has no trainer, or no stage, gives a null pointer. The stage's memory is given back.
  template <class World>
  colocated_weights(World& world, Trainer* trainer, Stage* stage,
                    std::int64_t bucket_bytes = model::usual_bucket_bytes<space_of<Stage>>)
      : trainer_(trainer),
        stage_(stage),
        there_(world, source(), target(), bucket_bytes),
        back_(world, target(), source(), bucket_bytes) {
    if (trainer != nullptr) of_trainer_.resize(static_cast<std::size_t>(trainer->stages()));
    if constexpr (lends_stage)
      if (stage != nullptr) of_stage_.give_back(*stage);
  }
  colocated_weights(const colocated_weights&) = delete;
  colocated_weights& operator=(const colocated_weights&) = delete;

  /// The stage gets the trainer's weights, whose memory is given back. On all ranks together.
  template <class World, class Backend>
  void to_generation(World& world, Backend& backend) {
    change(true);
    if constexpr (lends_stage)
      if (stage_ != nullptr) of_stage_.take(*stage_);
    there_.run(world, backend, source(), target());
    each_trained([](auto& memory, auto& stage) { memory.give_back(stage); });
  }
  /// The trainer gets its weights back, and the stage's memory is given back. On all ranks together.
  template <class World, class Backend>
  void to_training(World& world, Backend& backend) {
    change(false);
    each_trained([](auto& memory, auto& stage) { memory.take(stage); });
    if constexpr (lends_trainer) {
      back_.run(world, backend, target(), source());
      if (trainer_ != nullptr) trainer_->capture_again();
    }
    if constexpr (lends_stage)
      if (stage_ != nullptr) of_stage_.give_back(*stage_);
  }
  bool generating() const noexcept { return generating_; }
  /// The routes of both changes, with their counts.
  const model::parameter_route& there() const noexcept { return there_; }
  const model::parameter_route& back() const noexcept { return back_; }

 private:
  train::trainer_weights<Trainer> source() const { return train::trainer_weights<Trainer>(trainer_); }
  model::stage_weights<Stage> target() const { return model::stage_weights<Stage>(stage_); }
  void change(bool to_generation) {
    if (generating_ == to_generation)
      throw config_error(to_generation
                             ? "heddle: colocated_weights: the stage for generation has the weights already; call "
                               "to_training before the next to_generation"
                             : "heddle: colocated_weights: the trainer has the weights already; call "
                               "to_generation before to_training");
    generating_ = to_generation;
  }
  template <class F>
  void each_trained(F&& f) {
    if constexpr (lends_trainer)
      for (std::size_t k = 0; k < of_trainer_.size(); ++k) f(of_trainer_[k], trainer_->stage(static_cast<int>(k)));
  }

  Trainer* trainer_;
  Stage* stage_;
  bool generating_ = false;
  model::parameter_route there_, back_;
  std::vector<detail::returning_weights<trained_stage>> of_trainer_;
  detail::returning_weights<Stage> of_stage_;
};

}  // namespace heddle::inline v0::rl
