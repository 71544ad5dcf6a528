// heddle/train/trainer.hpp: trains a model on a mesh: a schedule's table meets a model's stages.
#pragma once

#include <heddle/comm/world.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/pipeline/executor.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/train/activations/bytes.hpp>
#include <heddle/train/eager_step.hpp>
#include <heddle/train/memory_forecast.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/forward_pass.hpp>
#include <heddle/train/periodic_work.hpp>
#include <heddle/train/progress.hpp>
#include <heddle/train/report.hpp>
#include <heddle/train/run_state.hpp>
#include <heddle/train/stage_parts.hpp>
#include <heddle/train/step_batches.hpp>
#include <heddle/train/step_memory.hpp>
#include <heddle/train/step_sums.hpp>
#include <heddle/train/strategy.hpp>
#include <heddle/train/trainable.hpp>
#include <heddle/train/trainer_checks.hpp>
#include <heddle/train/trainer_setup.hpp>
#include <heddle/train/validation.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {
struct threads;  // of comm/threads.hpp, which whoever launches threads includes
}

namespace heddle::inline v0::train {

/// Trains `Model` as `Strategy` says. One object per rank, all made and called together.
///
/// A step: the rank's samples are cut into microbatches; the schedule's table runs over the stages; gradients of the tied embedding and
/// of replicas are added up over the pipeline, all gradients over the axes on which the dual of the weights of their bucket is partial
/// (dp, say); AdamW steps on gradients scaled so that their global norm over all axes, each parameter counted once, is at most
/// `clip_norm`; ZeRO shares are gathered. The loss is the mean over all targets of the step, whatever the mesh and the schedule: all of
/// them train the same model.
///
/// A rank holds as many stages as the schedule's map gives it, each with its optimizer. A stage's gradients are reduced where the table
/// has its REDUCE_GRAD, all but the tied embedding's share, which is added up with the other rank's first (`gradient_sums`), and those
/// of replicas: they follow behind the last action. If one rank has both, the weight is there once.
///
/// `World` is what `launch` passes to its body: `decltype(world)`; it may be left out where that is a world of threads.
/// Tensors go over its data plane, what the host reads (losses, norms, verdicts, names) over its control plane.
/// Weights, gradients, moments and activations lie in the backend's memory (`space`). Where the host may not touch that, reductions go
/// in the order of its queue, messages between stages in that of queues beside it where the communicator can (`sends_in_order_of`),
/// else through copies on the host, as saves and logits do.
///
/// Errors: `config_error` for settings that cannot work; `numeric_error` naming step and layer as soon as loss or
/// gradients are not finite, with the weights still those of the step before. After any error that a step throws the
/// trainer's messages and slots may be half-way through: end the world, or make another trainer.
template <class Model, class Strategy, class World = world<threads, typename Strategy::mesh>>
class trainer : public progress, public detail::takes_only_data<trainer<Model, Strategy, World>> {
 public:
  using strategy = Strategy;
  using stand_in = trainer;
  using observer_type = typename Strategy::observer;
  /// The world the stage is given: with an observer that is on, one that reports collectives.
  using stage_world = typename detail::watched_ranks<World, observer_type>::world_type;
  /// `Model`; where it or its stage lacks something, after an error that names it, one that stands in.
  using model_type = detail::checked_model<Model, stage_world, typename Strategy::backend, typename Strategy::mesh>;
  using state = detail::run_state<model_type, Strategy, World>;
  using scalar = typename state::scalar;
  using mesh_type = typename state::mesh_type;
  using backend_type = typename state::backend_type;
  using schedule_type = typename state::schedule_type;
  using batch_type = typename state::batch_type;
  using stage_type = typename state::stage_type;
  using pipeline = typename Strategy::pipeline;
  using axes = typename state::axes;
  using space = typename state::space;
  static constexpr int zero_stage = Strategy::zero::stage;
  using options_type = typename state::options_type;
  static constexpr int buckets = state::buckets;
  using optimizer_type = typename state::optimizer_type;
  using held_type = typename state::held_type;
  using stages_type = typename state::stages_type;
  using activations_type = typename Strategy::activations;
  using step_result = train::step_result;
  using plan_type = typename state::plan_type;
  /// Of the groups along some axes; worlds of `by_network` have several types.
  template <class... Axes>
  using communicator_along = std::remove_reference_t<decltype(std::declval<World&>().template along_if<Axes...>())>;
  using gradient_groups = typename state::groups_of_gradients;
  static constexpr bool steps_captured = state::steps_captured;

  /// Makes the schedule itself, from `options.microbatches` and, for `schedule::named`, `options.schedule`.
  /// Errors: `config_error`, `schedule_error`.
  trainer(World& world, options_type options)
    requires(!observer_type::enabled)
      : trainer(world, detail::checked_options<Strategy>(std::move(options)), no_observer, nullptr) {}

  /// With an observer that is on, it is passed and must outlive the trainer.
  trainer(World& world, options_type options, observer_type& observer)
      : trainer(world, detail::checked_options<Strategy>(std::move(options)), &observer, nullptr) {}

  /// With this schedule, such as a `schedule::tabled`; `options.microbatches` is its number or 0.
  trainer(World& world, options_type options, const schedule_type& when)
    requires(!observer_type::enabled)
      : trainer(world, detail::checked_options<Strategy>(std::move(options)), no_observer, &when) {}
  trainer(World& world, options_type options, const schedule_type& when, observer_type& observer)
      : trainer(world, detail::checked_options<Strategy>(std::move(options)), &observer, &when) {}

  template <class Other, class... More>
    requires(!std::is_convertible_v<Other&, World&> && requires { typename Other::mesh_type; })
  explicit trainer(Other&, const More&...)
      : trainer(detail::world_of_trainer<World, Other>(), options_type{}, no_observer, nullptr) {}
  template <class Other, class... More>
    requires(!std::is_convertible_v<const Other&, options_type>)
  trainer(World& world, const Other&, const More&...)
      : trainer(world, detail::options_of_trainer<options_type, Other>(), no_observer, nullptr) {}

  trainer(const trainer&) = delete;
  trainer& operator=(const trainer&) = delete;

  const options_type& options() const noexcept { return state_.options; }
  /// Another length of the run, with its learning rates (`total_steps` 0: `steps`): the same on all ranks, between steps.
  /// Errors: `config_error` for what options may not have; then nothing has changed.
  void set_steps(std::int64_t steps, const warmup_cosine& rate) { set_steps(steps, any_learning_rate(rate)); }
  void set_steps(std::int64_t steps, const any_learning_rate& rate) {
    state_.options = detail::with_steps<Strategy>(state_.options, steps, rate);
  }
  World& ranks() noexcept { return state_.world; }
  /// The samples of the step that was loaded last, on this rank.
  const step_batches<batch_type>& batches() const noexcept { return state_.batches; }
  /// How many stages of the pipeline this rank holds.
  int stages() const noexcept { return state_.held.size(); }
  /// The k-th of them, in the order of the model, and the optimizer of its parameters.
  stage_type& stage(int k = 0) noexcept { return state_.held[k].stage; }
  optimizer_type& optimizer_state(int k = 0) noexcept { return state_.held[k].optimizer; }
  /// Both, with the stage's number in the table, the part of the model it is and its chain.
  held_type& held(int k = 0) noexcept { return state_.held[k]; }
  backend_type& backend() noexcept { return state_.backend; }
  /// The lowered table of the schedule and the storage of its actions.
  schedule::plan_view plan() const noexcept { return state_.plan.view(); }
  const stage_parts& parts() const noexcept { return state_.parts; }
  const model::executor_counters& counters() const noexcept { return state_.executor.counters(); }
  int microbatches() const noexcept { return state_.microbatches; }
  /// With `post_validation`: how many steps of this rank have been taken back so far.
  std::int64_t steps_taken_back() const noexcept { return step_.taken_back(); }
  /// Of one microbatch.
  std::int64_t max_samples() const noexcept { return state_.max_samples; }
  /// Memory for activations on this rank.
  train::activation_bytes activation_bytes() const {
    return detail::bytes_of_activations(state_.plan.view(), state_.pipeline.rank(), state_.held);
  }
  std::int64_t saved_activation_bytes() const { return activation_bytes().saved; }
  /// Memory for weights, gradients and moments on this rank; with `zero<3>` `with_weights(work)` has them whole.
  auto& parameter_memory() noexcept { return state_.sharded; }
  /// With `captured_steps`: the next step is done eagerly, the one behind it captured again. Called on all ranks together, since collectives are
  /// in a graph on all of them or on none. For whoever has given memory back that steps use; passes outside of steps, and
  /// `parameter_memory()` where it gives memory back, do it by themselves.
  void capture_again() noexcept { step_.forget(); }
  /// Memory for tensors between stages, and for the head's share of the tied gradient on the embedding's rank.
  std::int64_t boundary_bytes() const noexcept { return state_.executor.boundary_bytes() + state_.gradients.bytes(); }

  using no_data = detail::takes_only_data<trainer>;
  using no_data::run, no_data::step, no_data::step_ahead, no_data::compute_gradients, no_data::validate;

  /// Trains up to `options().steps`, or until `options().stop` (then `stopped()`); `listener(const step_report&)` is
  /// called on every rank after each step; with `post_validation` when the step's norm is known, while the next step's
  /// forwards run. `after_step(trainer)` is called on every rank behind the report: the place to save. It may say after
  /// which steps (`train::every`): behind those, and those with a validation, `post_validation` waits for the norm.
  /// Errors: as `step`; `numeric_error` naming tensor and element if the last step leaves weights or moments that are not finite.
  template <sample_source<batch_type> Data, class Listener = quiet, class AfterStep = detail::nothing_after_a_step>
  void run(const Data& data, Listener&& listener = {}, AfterStep&& after_step = {}) {
    detail::pace pace(now_ns());
    const auto tell = [&](step_report& report) {
      pace.note(report, now_ns());
      listener(static_cast<const step_report&>(report));
    };
    const std::int64_t first = at_.step;
    at_.stopped = false;
    while (at_.step < state_.options.steps && !at_.stopped) {
      const bool validates =
          state_.options.validate_every > 0 && ((at_.step + 1) % state_.options.validate_every == 0 || at_.step + 1 == state_.options.steps);
      bool works = detail::is_due(after_step, at_.step + 1, state_.options.steps);
      step_report report;
      if constexpr (steps_first) {
        std::optional<step_report> before = step_ahead(data);
        if (before) tell(*before);
        if (!validates && !works && at_.step < state_.options.steps && !at_.stopped) continue;
        report = *finish_step();
      } else {
        report = step(data);
      }
      if (at_.stopped) works = works || detail::is_due(after_step, at_.step, at_.step);
      if (validates) report.validation_loss = validate(data);
      tell(report);
      if (works) after_step(*this);
    }
    if (at_.step > first) require_finite_state(*this, "step " + std::to_string(at_.step) + " cannot be gone on from");
  }

  /// One training step. Errors: `numeric_error`, with the weights of the step before (`post_validation`: up to rounding).
  template <sample_source<batch_type> Data>
  step_report step(const Data& data) {
    return step_.step(state_, data);
  }

  /// With `post_validation`: one training step that does not wait for its gradient norm, which arrives behind the
  /// forwards that begin the next step; if it says so, this step is then taken back and done again, and those forwards,
  /// too. Returns the report of the step before, if that was not finished yet. Until `finish_step`, or the next call, weights
  /// and moments may yet change; `steps_done()` counts the step. Called on all ranks together. Errors: as `step`, of that.
  template <sample_source<batch_type> Data>
  std::optional<step_report> step_ahead(const Data& data)
    requires(Strategy::norm_check::steps_first)
  {
    return step_.begin(state_, data);
  }

  /// With `post_validation`: waits for the gradient norm of the last step, and takes that back and does it again if it
  /// must. Returns its report, or nothing if it was finished already. Called on all ranks together. Errors: as `step`.
  std::optional<step_report> finish_step()
    requires(Strategy::norm_check::steps_first)
  {
    return step_.finish(state_);
  }
  /// Whether a step's norm is still on its way: `finish_step` before weights, moments or losses are read or saved.
  bool is_ahead() const noexcept { return step_.pending(); }

  /// Forward and backward of step `steps_done()`. Afterwards the owned part of each stage's gradients (all of them with
  /// zero<0>; `optimizer_state(k).gradients_of(stage(k))`), times `gradient_scale`, is the gradient of the mean loss, summed
  /// over all ranks that share weights. The scale is 1 unless targets are ignored (negative): how many count is known only when all ranks are done.
  /// Errors: as `step`; `config_error` the second time before the step is ended, by `apply_gradients`: its samples would be the same.
  template <sample_source<batch_type> Data>
  step_result compute_gradients(const Data& data) {
    detail::refuse_gradients_of_same_step(at_.gradients_of == at_.step, at_.step);
    const step_result result = compute_gradients_again(data);
    at_.gradients_of = at_.step;
    return result;
  }
  /// The same as often as one likes for the samples of one step, such as with other weights.
  template <sample_source<batch_type> Data>
  step_result compute_gradients_again(const Data& data) {
    refuse_ahead();
    return state_.compute_gradients(data, step_.hooks(state_));
  }

  /// Clips by the global norm and takes one AdamW step; `steps_done()` then counts it.
  void apply_gradients(const step_result& result) {
    refuse_ahead();
    state_.apply(result);
  }
  /// The same with an update of one's own in the place of clipping and AdamW: `update(owned_parameters)` for each stage, or bucket of it.
  template <class Update>
  void apply_gradients(const step_result& result, Update&& update) {
    refuse_ahead();
    state_.steps.update_by(result.gradient_scale, update);
    state_.gather_weights();
    state_.end_step();
  }

  /// Changes weights between steps: `work(row)` writes the part of each stage, or bucket of it, that this rank's optimizer owns, in the
  /// precision that is kept (master weights where there are some); weights are then rounded to the nearest and brought to the ranks that
  /// share them. Moments stay. Called on all ranks together. Errors: `config_error` while a step's norm is on its way.
  template <class Work>
  void change_weights(Work&& work) {
    refuse_ahead();
    state_.steps.change(work);
    state_.gather_weights();
  }

  /// Mean loss over the held-out samples (at most `validation_samples`), split like a step's, without touching gradients.
  /// Errors: `config_error` if the data holds none out, or all their targets are ignored.
  template <sample_source<batch_type> Data>
  double validate(const Data& data) {
    refuse_ahead();
    capture_again();  // also where there are no samples for this rank
    const auto loss_of = [this](const batch_type& batch) -> std::array<double, 2> {
      const double loss = forward_through(batch);
      if (!is_last_stage()) return {};
      return {state_.counts_loss ? loss : 0.0,
              state_.beside.rank() == 0 ? state_.batches.counted_targets(batch.targets) : 0.0};
    };
    return detail::held_out_loss(detail::runs_together<trainer>, state_.world.control(), state_.sample_ranks,
                                 state_.batches, data, state_.options.validation_samples,
                                 step_batches<batch_type>::held_out_at_once(state_.max_samples),
                                 detail::loss_of_batch<batch_type>(loss_of));
  }

  /// One forward pass through the pipeline without saving. Returns the loss sum on the rank of the last stage, 0 elsewhere.
  double forward_through(const batch_type& batch) {
    double loss = 0;
    forward_pass(batch, [&](stage_type& stage, auto in, auto out) { loss += stage.forward_only(batch, in, out); });
    return loss;
  }

  /// The same for the head's outputs at each sample's last position: `logits` [samples, outputs] on the last stage's rank.
  void last_logits(const batch_type& batch, std::span<scalar> logits) {
    if (!is_last_stage()) logits = {};
    const auto given = logits_.row(compute::queue_of(state_.backend), logits);
    forward_pass(batch, [&](stage_type& stage, auto in, auto out) {
      detail::checked_last_logits(stage, batch, in, out, given);
    });
    logits_.read(compute::queue_of(state_.backend), logits);
  }

  /// The same for the log-probability of each target, 0 where it is ignored: `to` [samples, sequence] on the last stage's rank.
  void target_log_probabilities(const batch_type& batch, std::span<double> to) {
    forward_pass(batch, [&](stage_type& stage, auto in, auto out) {
      stage.target_log_probabilities(batch, in, out, is_last_stage() ? to : std::span<double>());
    });
  }

  /// Whether this rank holds the stage with the embedding, and the one with the loss. Of replicas: the first.
  bool is_first_stage() const noexcept { return state_.pipeline.rank() == state_.rank_of_part(0); }
  bool is_last_stage() const noexcept { return state_.pipeline.rank() == last_stage_rank(); }
  /// The rank along the pipeline where `forward_through` and `last_logits` have their results.
  int last_stage_rank() const noexcept { return state_.rank_of_part(state_.parts.parts() - 1); }
  /// The ranks that add up this rank's gradients, or `bucket_groups`; the pipeline, with messages of its own.
  auto& gradient_group() noexcept { return state_.gradient_ranks; }
  communicator_along<pipeline>& pipeline_group() noexcept { return state_.pipeline; }

 private:
  static constexpr int forward_only_tag = 2;
  static constexpr observer_type* no_observer = nullptr;

  trainer(World& world, options_type options, observer_type* observer, const schedule_type* when)
      : state_(at_, world, std::move(options), observer, when, detail::text_of_forecast(this)),
        step_(state_) {}

  static constexpr bool steps_first = Strategy::norm_check::steps_first;

  void refuse_ahead() const {
    if (step_.pending())
      throw config_error("heddle: the gradient norm of the last step is still on its way; call finish_step() before");
  }
  template <class Forward>
  void forward_pass(const batch_type& batch, Forward&& forward) {
    refuse_ahead();
    capture_again();
    train::forward_pass(state_.parts, state_.table(), state_.held, state_.pipeline, forward_only_tag, batch,
                        state_.boundary, state_.sharded.gathered(forward));
  }

  state state_;
  [[no_unique_address]] detail::logits_on_host<scalar, space> logits_;
  [[no_unique_address]] detail::step_of<state> step_;  // a graph of it uses all memory above
};

/// With the type of a body's `auto& world`, a reference.
template <class Model, class Strategy, class World>
class trainer<Model, Strategy, World&> : public trainer<Model, Strategy, World> {
  using trainer<Model, Strategy, World>::trainer;
};

/// Stands in for the trainer of a strategy that was refused, so that its uses add no errors of their own.
template <class Model, class Strategy, class World>
  requires(v0::detail::is_refused_strategy<Strategy> && !std::is_reference_v<World>)
class trainer<Model, Strategy, World>
    : public trainer<detail::refused_model<typename World::mesh_type>, v0::strategy<typename World::mesh_type>, World> {
 public:
  template <class Other, class... More>
  explicit trainer(Other&, const More&...)
      : trainer::stand_in(*static_cast<World*>(nullptr), detail::refused_options{}) {}
};

}  // namespace heddle::inline v0::train
