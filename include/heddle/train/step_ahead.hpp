// heddle/train/step_ahead.hpp: a step that does not wait for its norm, and is taken back.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/train/eager_step.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/report.hpp>
#include <heddle/train/step_sums.hpp>
#include <heddle/train/sums_on_the_way.hpp>
#include <heddle/train/training_axes.hpp>

#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::train::detail {

/// The steps of a trainer whose strategy has `post_validation`.
template <class Run>
class step_ahead {
  using axes = typename Run::axes;
  using pipeline_axes = typename Run::pipeline_axes;

 public:
  explicit step_ahead(Run& run) : sums_(run.world) {}

  // What an executor calls: a stage that nobody has to wait for steps where the table has OPTIM, and the forwards that begin a step
  // may run before the norm of the step before is known.
  struct step_ahead_hooks : step_hooks<Run> {
    step_ahead& self;
    void optimizer_step(int stage) { self.step_alone(this->run, stage); }
    bool validate() {
      if (!self.norm_agrees(this->run)) return false;
      this->run.begin_gradients();
      return true;
    }
    void redo() {
      Run& run = this->run;
      self.redo_step(run);
      run.begin_gradients();
      run.held.for_each([&](auto& h) {
        for (int slot = 0; slot < run.plan.view().storage.slots(h.index); ++slot)
          model::of_stage::release(h.stage, slot);
      });
    }
  };
  step_ahead_hooks hooks(Run& run) noexcept { return {{run}, *this}; }

  template <class Data>
  step_report step(Run& run, const Data& data) {
    static_cast<void>(finish(run));
    static_cast<void>(begin(run, data));
    return *finish(run);
  }
  /// A step up to its optimizer's. Returns the report of the one before, if that was not finished yet.
  template <class Data>
  std::optional<step_report> begin(Run& run, const Data& data) {
    const std::int64_t start = now_ns();
    next_begin_ = start;
    done_.reset();
    run.load(data);
    optimistically(run, [&] { run.run_backward(hooks(run)); });
    step_ = run.at.step;
    report_ = run.new_report();
    begin_ = start;
    const step_sums part = sums_.start(run.my_sums());
    pending_ = true;
    const bool steps = run.held.all_who_share(sums_.pipeline(), run.steps.is_unclipped(part));
    finding_ = steps ? nonfinite_finding{} : find_nonfinite(run.held, run.backend);
    if (steps) run.step_those_left(1.0, step_);
    run.gather_weights();
    run.end_step();
    return std::exchange(done_, {});
  }
  /// Waits for the norm of the last one. Returns its report, or nothing if it was finished already.
  std::optional<step_report> finish(Run& run) {
    next_begin_ = 0;
    if (!norm_agrees(run)) redo_step(run);
    return std::exchange(done_, {});
  }
  bool pending() const noexcept { return pending_; }
  std::int64_t taken_back() const noexcept { return taken_back_; }
  static void forget() noexcept {}

 private:
  // Runs `work`, in which stages may step before the norm is known; if that throws, those that have are taken back.
  template <class Work>
  void optimistically(Run& run, Work&& work) {
    optimistic_ = true;
    stepped_ = false;
    try {
      work();
    } catch (...) {
      optimistic_ = false;
      if (stepped_) run.steps.take_back(run.at.step);
      throw;
    }
    optimistic_ = false;
  }
  void step_alone(Run& run, int stage) {
    auto& h = run.held.at(stage);
    const bool summed = h.reduced || run.gradient_ranks.size() == 1;
    if (!optimistic_ || !run.held.complete_alone(stage) || !summed) return;
    run.gradients.complete(stage, run.observing());
    const double squares =
        sum_over_replicas(run.steps.squares_of(h), control_along(run.world, typename axes::gradients{}),
                          control_along(run.world, typename axes::inside{}));
    if (!run.steps.is_unclipped(squares)) return;
    stepped_ = true;
    run.steps.update(h, 1.0, run.at.step);
  }
  // Waits for the norm of a step that is ahead, if there is one. Whether all ranks did what it says, the same on all:
  // each knows from every pipeline rank's sums whether that has stepped.
  bool norm_agrees(Run& run) {
    if (!pending_) return true;
    step_sums sums;
    run.collective("loss and norm", sizeof sums, [&] { sums = sums_.finish(); });
    pending_ = false;
    run.at.stopped = run.at.stopped || sums.stops > 0;
    result_ = result_of(sums, run.targets_of_a_step());
    bool agrees = result_.is_finite() && run.applied_scale(result_) == 1;
    for (int p = 0; p < run.pipeline.size(); ++p) agrees = agrees && run.steps.is_unclipped(sums_.of(p));
    if (agrees) report();
    return agrees;
  }
  // Weights and moments as before the step, up to rounding, then the step as it should have been.
  void redo_step(Run& run) {
    taken_back_ += run.steps.take_back(step_) ? 1 : 0;
    const bool learns = !result_.is_of_no_target() && result_.is_finite();
    if (learns) run.step_those_left(run.applied_scale(result_), step_);
    run.gather_weights();
    if (!learns) {  // the step was not done
      run.at.step = step_;
      run.at.consumed -= run.options.batch;
    }
    refuse_no_targets(result_, step_);
    if (!learns) stop_nonfinite(run.world.control(), finding_, step_, result_.loss, result_.gradient_norm);
    report();
  }
  void report() { done_ = completed(report_, result_, (next_begin_ != 0 ? next_begin_ : now_ns()) - begin_); }

  bool pending_ = false;
  std::int64_t step_ = 0;
  std::int64_t begin_ = 0, next_begin_ = 0;  // nanoseconds; 0: no other step has begun
  step_result result_{};
  step_report report_{};
  nonfinite_finding finding_{};        // of this rank, before the next step's forwards
  std::optional<step_report> done_{};  // finished, and not told yet
  bool optimistic_ = false;            // stages may step before the norm is known,
  bool stepped_ = false;               // and one has
  std::int64_t taken_back_ = 0;
  step_sums_on_the_way<typename Run::world_type, pipeline_axes, typename axes::gradients, typename axes::inside> sums_;
};

}  // namespace heddle::inline v0::train::detail
