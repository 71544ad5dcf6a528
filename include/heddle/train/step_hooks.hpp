// heddle/train/step_hooks.hpp: calls by which an executor tells a trainer of finished forwards, gradients and optimizer steps.
#pragma once

#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/train/step_sums.hpp>
#include <heddle/train/training_axes.hpp>

namespace heddle::inline v0::train::detail {

// The part of a trainer in a run of its table.
template <class Trainer, bool StepsFirst>
struct step_hooks {
  Trainer& self;
  void forward_done(int stage, int microbatch, int slot) {
    auto& h = self.held_.at(stage);
    if (h.part + 1 == self.parts_.parts()) self.losses_.take(h.stage, microbatch, slot);
  }
  void reduce_gradient(int stage) { self.gradients_.complete(stage, self.observing()); }
  void recompute(int stage, int /*microbatch*/, int slot) {
    model::of_stage::recompute(self.held_.at(stage).stage, slot);
  }
  void reload(int stage, int /*microbatch*/, int slot) { model::of_stage::reload(self.held_.at(stage).stage, slot); }
  // Where a table has OPTIM, for stages that nobody has to wait for.
  void optimizer_step(int stage) {
    if constexpr (StepsFirst) {
      auto& h = self.held_.at(stage);
      const bool summed = h.reduced || self.gradient_ranks_.size() == 1;
      if (!self.ahead_.optimistic || !self.held_.complete_alone(stage) || !summed) return;
      self.gradients_.complete(stage, self.observing());
      const double squares =
          sum_over_replicas(self.steps_.squares_of(h), control_along(self.world_, typename Trainer::axes::gradients{}),
                            control_along(self.world_, typename Trainer::axes::inside{}));
      if (!self.steps_.is_unclipped(squares)) return;
      self.ahead_.stepped = true;
      self.steps_.update(h, 1.0, self.step_);
    }
  }
  // The forwards that begin a step may run before the norm of the step before is known.
  bool validate()
    requires(StepsFirst)
  {
    if (!self.norm_agrees()) return false;
    self.begin_gradients();
    return true;
  }
  void redo()
    requires(StepsFirst)
  {
    self.put_right();
    self.begin_gradients();
    self.held_.for_each([&](auto& h) {
      for (int slot = 0; slot < self.plan_.view().storage.slots(h.index); ++slot)
        model::of_stage::release(h.stage, slot);
    });
  }
};

}  // namespace heddle::inline v0::train::detail
