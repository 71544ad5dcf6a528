// heddle/train/trainer.hpp: trains a model on a mesh: a schedule's table meets a model's stages.
#pragma once

#include <heddle/comm/threads.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/layout/gradient.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/pipeline/executor.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/tensor/watched_queue.hpp>
#include <heddle/train/activations/stage_for.hpp>
#include <heddle/train/activations/bytes.hpp>
#include <heddle/train/periodic_work.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/captured_step.hpp>
#include <heddle/train/gradient_sums.hpp>
#include <heddle/train/held_stages.hpp>
#include <heddle/train/layer_assignment.hpp>
#include <heddle/train/memory_forecast.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/observed_world.hpp>
#include <heddle/train/optimizer_steps.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/pass_through.hpp>
#include <heddle/train/progress.hpp>
#include <heddle/train/report.hpp>
#include <heddle/train/sharded_optimizer.hpp>
#include <heddle/train/sharded_stages.hpp>
#include <heddle/train/stage_parts.hpp>
#include <heddle/train/step_ahead.hpp>
#include <heddle/train/step_batches.hpp>
#include <heddle/train/step_hooks.hpp>
#include <heddle/train/step_memory.hpp>
#include <heddle/train/step_sums.hpp>
#include <heddle/train/strategy.hpp>
#include <heddle/train/trainable.hpp>
#include <heddle/train/trainer_checks.hpp>
#include <heddle/train/trainer_setup.hpp>
#include <heddle/train/training_axes.hpp>
#include <heddle/train/validation.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

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
  using scalar = typename model_type::scalar;
  using mesh_type = typename Strategy::mesh;
  using backend_type = typename Strategy::backend;
  using schedule_type = typename Strategy::schedule;
  using batch_type = typename model_type::batch;
  using stage_type = detail::stage_of_trainer<model_type, stage_world, Strategy>;
  using pipeline = typename Strategy::pipeline;
  using axes = detail::training_axes<stage_type, mesh_type, pipeline>;
  static_assert(axes::ok && detail::stage_can_be_sharded<stage_type, Strategy::zero::stage>() &&
                detail::steps_in_order<stage_type, Strategy::norm_check::steps_first>() &&
                detail::stage_is_in_memory_of<stage_type, backend_type>());
  using space = space_of<stage_type>;
  static constexpr int zero_stage = Strategy::zero::stage;
  using options_type = typename detail::options_of_model<model_type>::type;
  static constexpr int buckets = detail::served_buckets<stage_type>;
  using optimizer_type = detail::bucketed<detail::optimizer_under<scalar, Strategy, space>, buckets>;
  using held_type = held_stage<stage_type, optimizer_type>;
  using stages_type = held_stages<stage_type, optimizer_type>;
  using activations_type = typename Strategy::activations;
  using step_result = train::step_result;
  using plan_type = decltype(detail::lower_for<Strategy>(std::declval<schedule_type>(), std::declval<mesh_type>()));
  /// Of the groups along some axes; worlds of `by_network` have several types.
  template <class... Axes>
  using communicator_along = std::remove_reference_t<decltype(std::declval<World&>().template along_if<Axes...>())>;
  template <class List>
  using group_type = std::remove_reference_t<decltype(detail::group_along(std::declval<World&>(), List{}))>;
  using gradient_groups = detail::gradient_groups<World, axes, buckets>;
  static constexpr bool steps_captured =
      detail::steps_are_captured<Strategy, stage_type, detail::optimizer_under<scalar, Strategy, space>, World>();

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

  const options_type& options() const noexcept { return options_; }
  /// Another length of the run, with its learning rates (`total_steps` 0: `steps`): the same on all ranks, between steps.
  /// Errors: `config_error` for what options may not have; then nothing has changed.
  void set_steps(std::int64_t steps, const warmup_cosine& rate) { set_steps(steps, any_learning_rate(rate)); }
  void set_steps(std::int64_t steps, const any_learning_rate& rate) {
    options_ = detail::with_steps<Strategy>(options_, steps, rate);
  }
  World& ranks() noexcept { return world_; }
  /// How many stages of the pipeline this rank holds.
  int stages() const noexcept { return held_.size(); }
  /// The k-th of them, in the order of the model, and the optimizer of its parameters.
  stage_type& stage(int k = 0) noexcept { return held_[k].stage; }
  optimizer_type& optimizer_state(int k = 0) noexcept { return held_[k].optimizer; }
  /// Both, with the stage's number in the table, the part of the model it is and its chain.
  held_type& held(int k = 0) noexcept { return held_[k]; }
  backend_type& backend() noexcept { return backend_; }
  /// The lowered table of the schedule and the storage of its actions.
  schedule::plan_view plan() const noexcept { return plan_.view(); }
  const stage_parts& parts() const noexcept { return parts_; }
  const model::executor_counters& counters() const noexcept { return executor_.counters(); }
  int microbatches() const noexcept { return microbatches_; }
  /// With `post_validation`: how many steps of this rank have been taken back so far.
  std::int64_t steps_taken_back() const noexcept { return taken_back_; }
  /// Of one microbatch.
  std::int64_t max_samples() const noexcept { return max_samples_; }
  /// Memory for activations on this rank.
  train::activation_bytes activation_bytes() const {
    return detail::bytes_of_activations(plan_.view(), pipeline_.rank(), held_);
  }
  std::int64_t saved_activation_bytes() const { return activation_bytes().saved; }
  /// Memory for weights, gradients and moments on this rank; with `zero<3>` `with_weights(work)` has them whole.
  auto& parameter_memory() noexcept { return sharded_; }
  /// With `captured_steps`: the next step is done eagerly, the one behind it captured again. Called on all ranks together, since collectives are
  /// in a graph on all of them or on none. For whoever has given memory back that steps use; passes outside of steps, and
  /// `parameter_memory()` where it gives memory back, do it by themselves.
  void capture_again() noexcept { captured_.forget(); }
  /// Memory for tensors between stages, and for the head's share of the tied gradient on the embedding's rank.
  std::int64_t boundary_bytes() const noexcept { return executor_.boundary_bytes() + gradients_.bytes(); }

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
    const std::int64_t first = step_;
    stopped_ = false;
    while (step_ < options_.steps && !stopped_) {
      const bool validates =
          options_.validate_every > 0 && ((step_ + 1) % options_.validate_every == 0 || step_ + 1 == options_.steps);
      bool works = detail::is_due(after_step, step_ + 1, options_.steps);
      step_report report;
      if constexpr (steps_first) {
        std::optional<step_report> before = step_ahead(data);
        if (before) tell(*before);
        if (!validates && !works && step_ < options_.steps && !stopped_) continue;
        report = *finish_step();
      } else {
        report = step(data);
      }
      if (stopped_) works = works || detail::is_due(after_step, step_, step_);
      if (validates) report.validation_loss = validate(data);
      tell(report);
      if (works) after_step(*this);
    }
    if (step_ > first) require_finite_state(*this, "step " + std::to_string(step_) + " cannot be gone on from");
  }

  /// One training step. Errors: `numeric_error`, with the weights of the step before (`post_validation`: up to rounding).
  template <sample_source<batch_type> Data>
  step_report step(const Data& data) {
    if constexpr (steps_first) {
      static_cast<void>(finish_step());
      static_cast<void>(step_ahead(data));
      return *finish_step();
    } else if constexpr (steps_captured) {
      return captured_.step(*this, data);
    } else {
      const std::int64_t start = now_ns();
      const step_report report = new_report();
      const step_result result = compute_gradients_again(data);
      apply_gradients(result);
      return detail::completed(report, result, now_ns() - start);
    }
  }

  /// With `post_validation`: one training step that does not wait for its gradient norm, which arrives behind the
  /// forwards that begin the next step; if it says so, this step is then taken back and done again, and those forwards,
  /// too. Returns the report of the step before, if that was not finished yet. Until `finish_step`, or the next call, weights
  /// and moments may yet change; `steps_done()` counts the step. Called on all ranks together. Errors: as `step`, of that.
  template <sample_source<batch_type> Data>
  std::optional<step_report> step_ahead(const Data& data)
    requires(Strategy::norm_check::steps_first)
  {
    const std::int64_t start = now_ns();
    ahead_.next_begin = start;
    ahead_.done.reset();
    load(data);
    ahead_.optimistically([&] { run_backward(); }, [&] { steps_.take_back(step_); });
    ahead_.step = step_;
    ahead_.report = new_report();
    ahead_.begin = start;
    const step_sums part = sums_.start(my_sums());
    ahead_.pending = true;
    const bool steps = held_.all_who_share(sums_.pipeline(), steps_.is_unclipped(part));
    ahead_.finding = steps ? detail::nonfinite_finding{} : find_nonfinite(held_, backend_);
    if (steps) step_those_left(1.0, step_);
    gather_weights();
    end_step();
    return std::exchange(ahead_.done, {});
  }

  /// With `post_validation`: waits for the gradient norm of the last step, and takes that back and does it again if it
  /// must. Returns its report, or nothing if it was finished already. Called on all ranks together. Errors: as `step`.
  std::optional<step_report> finish_step()
    requires(Strategy::norm_check::steps_first)
  {
    ahead_.next_begin = 0;
    if (!norm_agrees()) put_right();
    return std::exchange(ahead_.done, {});
  }
  /// Whether a step's norm is still on its way: `finish_step` before weights, moments or losses are read or saved.
  bool is_ahead() const noexcept { return ahead_.pending; }

  /// Forward and backward of step `steps_done()`. Afterwards the owned part of each stage's gradients (all of them with
  /// zero<0>; `optimizer_state(k).gradients_of(stage(k))`), times `gradient_scale`, is the gradient of the mean loss, summed
  /// over all ranks that share weights. The scale is 1 unless targets are ignored (negative): how many count is known only when all ranks are done.
  /// Errors: as `step`; `config_error` the second time before the step is ended, by `apply_gradients`: its samples would be the same.
  template <sample_source<batch_type> Data>
  step_result compute_gradients(const Data& data) {
    detail::refuse_gradients_of_same_step(gradients_of_ == step_, step_);
    const step_result result = compute_gradients_again(data);
    gradients_of_ = step_;
    return result;
  }
  /// The same as often as one likes for the samples of one step, such as with other weights.
  template <sample_source<batch_type> Data>
  step_result compute_gradients_again(const Data& data) {
    refuse_ahead();
    load(data);
    run_backward();
    const step_sums mine = my_sums();
    std::array<double, 4> sums{mine.loss, mine.targets, mine.squares, mine.stops};
    const std::span<double> used(sums.data(), options_.stop == nullptr ? 3 : 4);
    collective("all_reduce of loss and norm", used.size_bytes(), [&] { world_.control().all_reduce(used, plus{}); });
    stopped_ = stopped_ || sums[3] > 0;
    const step_result result = result_of({sums[0], sums[1], sums[2]}, targets_of_a_step());
    detail::refuse_no_targets(result, step_);
    if (!result.is_finite())
      stop_nonfinite(world_.control(), find_nonfinite(held_, backend_), step_, result.loss, result.gradient_norm);
    return result;
  }

  /// Clips by the global norm and takes one AdamW step; `steps_done()` then counts it.
  void apply_gradients(const step_result& result) {
    refuse_ahead();
    steps_.begin();
    step_those_left(applied_scale(result), step_);
    gather_weights();
    end_step();
  }
  /// The same with an update of one's own in the place of clipping and AdamW: `update(owned_parameters)` for each stage, or bucket of it.
  template <class Update>
  void apply_gradients(const step_result& result, Update&& update) {
    refuse_ahead();
    steps_.update_by(result.gradient_scale, update);
    gather_weights();
    end_step();
  }

  /// Mean loss over the held-out samples (at most `validation_samples`), split like a step's, without touching gradients.
  /// Errors: `config_error` if the data holds none out, or all their targets are ignored.
  template <sample_source<batch_type> Data>
  double validate(const Data& data) {
    refuse_ahead();
    capture_again();  // also where there are no samples for this rank
    return detail::held_out_loss<detail::runs_together<trainer>>(
        world_.control(), sample_ranks_, batches_, data, options_.validation_samples, max_samples_,
        [&](const batch_type& batch) -> std::array<double, 2> {
          const double loss = forward_through(batch);
          if (!is_last_stage()) return {};
          return {counts_loss_ ? loss : 0.0, beside_.rank() == 0 ? batches_.counted_targets(batch.targets) : 0.0};
        });
  }

  /// One forward pass through the pipeline without saving. Returns the loss sum on the rank of the last stage, 0 elsewhere.
  double forward_through(const batch_type& batch) {
    double loss = 0;
    pass_through(batch, [&](stage_type& stage, auto in, auto out) { loss += stage.forward_only(batch, in, out); });
    return loss;
  }

  /// The same for the head's outputs at each sample's last position: `logits` [samples, outputs] on the last stage's rank.
  void last_logits(const batch_type& batch, std::span<scalar> logits) {
    if (!is_last_stage()) logits = {};
    const auto given = logits_.row(compute::queue_of(backend_), logits);
    pass_through(batch, [&](stage_type& stage, auto in, auto out) {
      detail::checked_last_logits(stage, batch, in, out, given);
    });
    logits_.read(compute::queue_of(backend_), logits);
  }

  /// Whether this rank holds the stage with the embedding, and the one with the loss. Of replicas: the first.
  bool is_first_stage() const noexcept { return pipeline_.rank() == rank_of_part(0); }
  bool is_last_stage() const noexcept { return pipeline_.rank() == last_stage_rank(); }
  /// The rank along the pipeline where `forward_through` and `last_logits` have their results.
  int last_stage_rank() const noexcept { return rank_of_part(parts_.parts() - 1); }
  /// The ranks that add up this rank's gradients, or `bucket_groups`; the pipeline, with messages of its own.
  auto& gradient_group() noexcept { return gradient_ranks_; }
  communicator_along<pipeline>& pipeline_group() noexcept { return pipeline_; }
  communicator_along<pipeline>& pp_group() noexcept { return pipeline_; }
  /// The groups along the axes of these names, of one rank where the mesh has none.
  communicator_along<dp>& dp_group() noexcept { return world_.template along_if<dp>(); }
  communicator_along<tp>& tp_group() noexcept { return world_.template along_if<tp>(); }

 private:
  static constexpr int forward_only_tag = 2;
  static constexpr observer_type* no_observer = nullptr;
  using pipeline_axes = std::conditional_t<mesh_type::template has<pipeline>, type_list<pipeline>, type_list<>>;

  trainer(World& world, options_type options, observer_type* observer, const schedule_type* when)
      : world_(world),
        options_(std::move(options)),
        watched_(world, observer),
        gradient_ranks_(gradient_groups::of(world)),
        sample_ranks_(detail::group_along(world, typename axes::samples{})),
        inside_(detail::group_along(world, typename axes::inside{})),
        beside_(detail::group_along(world, typename axes::beside{})),
        // Messages of its own: whatever the caller sends along this axis cannot meet the pipeline's.
        pipeline_(world.template along_if<pipeline>().split(0, world.template along_if<pipeline>().rank())),
        plan_(detail::lower_for<Strategy>(when != nullptr ? *when : detail::make_schedule<schedule_type>(options_),
                                          world.mesh())),
        parts_(when != nullptr ? stage_parts(*when, plan_.view().table)
                               : stage_parts(detail::make_schedule<schedule_type>(options_), plan_.view().table)),
        microbatches_(detail::checked_microbatches(options_, plan_.view().table.microbatches())),
        max_samples_(
            balanced_split{balanced_split{options_.batch, sample_ranks_.size()}.largest(), microbatches_}.largest()),
        batches_(table(), parts_, pipeline_.rank(), max_samples_, sample_extents_of_model()),
        backend_(detail::backend_for<backend_type>(options_, world.size())),
        held_(
            detail::trained(plan_.view().table), parts_, pipeline_.rank(),
            [&](int stage, stage_type* lender) { return make_stage(stage, lender); }, gradient_ranks_),
        sharded_(held_, gradient_ranks_, table(), pipeline_.rank(), steps_captured),
        gradients_(held_, world.template along_if<pipeline>(), gradient_ranks_, backend_),
        steps_(held_, backend_, options_),
        executor_(plan_, held_.pointers(), pipeline_, max_samples_, watched_.observer(),
                  detail::members_along(world.mesh(), world.rank(), pipeline_axes{})),
        losses_(detail::queue_for<space>(backend_), microbatches_),
        sums_(world),
        captured_(*this) {
    axes::require_known(world.mesh());
    detail::require_options_that_fit(world_.control(), options_, steps_.rates(), table(), held_);
    const std::int64_t between =
        held_.size() == 0 ? 0 : held_[0].stage.boundary_elements(static_cast<int>(max_samples_));
    boundary_.allocate(detail::queue_for<space>(backend_), 2, between);
    held_.for_each([&](held_type& h) {
      sharded_.initialize(h, options_.seed);
      detail::start_optimizer(h, backend_, options_.seed);
      h.gradient_factor = detail::gradient_factor<typename Strategy::gradient_scale>(
          table(), parts_, h.part, options_.batch, sample_ranks_.size());
    });
  }

  schedule::table_view table() const noexcept { return plan_.view().table; }
  int rank_of_part(int part) const noexcept { return table().rank_of(parts_.stages_of(part).front()); }

  stage_type make_stage(int index, stage_type* lender) {
    const schedule::table_view t = table();
    auto layers = detail::assigned_layers<typename Strategy::layers, model_type>(
        options_.model, parts_.part_of(index), parts_.parts(), parts_.parts_with_layers(), options_.layers_per_stage);
    detail::complete_layers<zero_stage>(layers, parts_.replica_of(index));
    const auto list = t.list(pipeline_.rank());
    return detail::make_stage<stage_type>(options_, watched_.world(), backend_of_next_stage(), layers,
                                          plan_.view().storage.slots(index), max_samples_,
                                          detail::most_deferred(list, index), lender, list, index);
  }
  // Stages of overlapped pairs work at the same time if each has a backend of its own and none talks to others.
  backend_type& backend_of_next_stage() {
    const bool alone = std::is_same_v<space, host_memory> && beside_.size() == 1 &&
                       model::companionable_stage<stage_type> && detail::has_pairs(table().list(pipeline_.rank()));
    return !alone || !std::exchange(backend_given_, true)
               ? backend_
               : detail::one_more_backend(more_backends_, options_, world_.size());
  }
  static constexpr bool steps_first = Strategy::norm_check::steps_first;
  friend detail::step_hooks<trainer, steps_first>;
  using captured_step_type = typename detail::captured_step_if<steps_captured, typename optimizer_type::scalars,
                                                               batch_type, space, World>::type;
  friend captured_step_type;

  // The samples of a step.
  template <class Data>
  void load(const Data& data) {
    watched_.set_step(step_);  // what is not part of a step (validation, sampling) has none
    const balanced_split shares{options_.batch, sample_ranks_.size()};
    const int share = sample_ranks_.rank();
    batches_.load(data, consumed_ + shares.offset(share), shares.size(share),
                  1.0 / static_cast<double>(targets_of_a_step()));
  }
  // Forward and backward of all microbatches, and every reduction of gradients.
  void run_backward() {
    if constexpr (!steps_first) begin_gradients();
    const passes_of_step passes(held_);
    losses_.begin();
    executor_.run(batches_.all(), static_cast<int>(step_),
                  sharded_.hooks(detail::step_hooks<trainer, steps_first>{*this}, observing()));
    gradients_.finish(observing());
  }
  step_sums my_sums() {
    step_sums sums;
    if (counts_loss_) sums.loss = losses_.sum();
    if (beside_.rank() == 0) sums.targets = detail::counted_targets(held_, batches_);
    sums.squares = steps_.squares();
    sums.stops = options_.stop != nullptr && *options_.stop ? 1 : 0;
    return sums;
  }
  // With `post_validation` the gradients of the step before are needed until its norm has come.
  void begin_gradients() {
    held_.for_each([](held_type& h) {
      h.stage.zero_gradients();
      h.stepped = false;
    });
    gradients_.begin();
  }
  void refuse_ahead() const {
    if (ahead_.pending)
      throw config_error("heddle: the gradient norm of the last step is still on its way; call finish_step() before");
  }

  double applied_scale(const step_result& r) const { return steps_.coefficient(r.gradient_norm) * r.gradient_scale; }
  model::sample_extents sample_extents_of_model() const noexcept {
    return model::extents_of_model<model_type>(options_.model);
  }
  std::int64_t targets_of_a_step() const noexcept { return options_.batch * sample_extents_of_model().targets; }
  void step_those_left(double gradient_scale, std::int64_t step) {
    if (steps_.all_stepped()) return;
    observed(watched_.observer(), describe(activity::optimizer, "optimizer"),
             [&] { steps_.update_others(gradient_scale, step); });
  }
  // Brings all ranks that share weights up to date.
  void gather_weights() { sharded_.gather_updated(observing()); }
  void end_step() noexcept {
    watched_.set_step(-1);
    ++step_;
    consumed_ += options_.batch;
  }

  // Waits for the norm of a step that is ahead, if there is one. Whether all ranks did what it says, the same on all:
  // each knows from every pipeline rank's sums whether that has stepped.
  bool norm_agrees() {
    if (!ahead_.pending) return true;
    step_sums sums;
    collective("loss and norm", sizeof sums, [&] { sums = sums_.finish(); });
    ahead_.pending = false;
    stopped_ = stopped_ || sums.stops > 0;
    ahead_.result = result_of(sums, targets_of_a_step());
    bool agrees = ahead_.result.is_finite() && applied_scale(ahead_.result) == 1;
    for (int p = 0; p < pipeline_.size(); ++p) agrees = agrees && steps_.is_unclipped(sums_.of(p));
    if (agrees) report_ahead();
    return agrees;
  }
  // Weights and moments as before the step, up to rounding, then the step as it should have been.
  void put_right() {
    taken_back_ += steps_.take_back(ahead_.step) ? 1 : 0;
    const step_result& result = ahead_.result;
    const bool learns = !result.is_of_no_target() && result.is_finite();
    if (learns) step_those_left(applied_scale(result), ahead_.step);
    gather_weights();
    if (!learns) {  // the step was not done
      step_ = ahead_.step;
      consumed_ -= options_.batch;
    }
    detail::refuse_no_targets(result, ahead_.step);
    if (!learns) stop_nonfinite(world_.control(), ahead_.finding, ahead_.step, result.loss, result.gradient_norm);
    report_ahead();
  }
  void report_ahead() {
    ahead_.done = detail::completed(ahead_.report, ahead_.result,
                                    (ahead_.next_begin != 0 ? ahead_.next_begin : now_ns()) - ahead_.begin);
  }

  step_report new_report() const { return detail::new_report(step_, options_, targets_of_a_step()); }
  template <class Forward>
  void pass_through(const batch_type& batch, Forward&& forward) {
    refuse_ahead();
    capture_again();
    train::pass_through(parts_, table(), held_, pipeline_, forward_only_tag, batch, boundary_,
                        sharded_.gathered(forward));
  }

  auto observing() noexcept {
    return [this](const char* name, std::size_t bytes, auto&& work) { this->collective(name, bytes, work); };
  }
  template <class Work>
  void collective(const char* name, std::size_t bytes, Work&& work) {
    event e = describe(activity::collective, name);
    e.bytes = static_cast<std::int64_t>(bytes);
    observed(watched_.observer(), e, std::forward<Work>(work));
  }
  event describe(activity kind, const char* name) const noexcept {
    return detail::event_of(kind, name, world_.rank(), step_);
  }

  World& world_;
  options_type options_;
  detail::watched_ranks<World, observer_type> watched_;
  typename gradient_groups::type gradient_ranks_;
  group_type<typename axes::samples>& sample_ranks_;
  group_type<typename axes::inside>& inside_;
  group_type<typename axes::beside>& beside_;
  communicator_along<pipeline> pipeline_;
  bool counts_loss_ = detail::is_first_along(world_.mesh(), world_.rank(), typename axes::repeats{});
  [[no_unique_address]] plan_type plan_;
  stage_parts parts_;
  int microbatches_;
  std::int64_t max_samples_;
  step_batches<batch_type> batches_;  // ends after the backend, whose queue may copy from it yet
  backend_type backend_;
  [[no_unique_address]] heddle::v0::detail::watched_by_world<World, typename space_of<backend_type>::queue> watch_{
      world_, compute::queue_of(backend_)};
  bool backend_given_ = false;
  std::deque<backend_type> more_backends_;  // references stay valid
  expected_memory expected_{[this] { return detail::text_of_forecast(*this); }};
  stages_type held_;
  using gradient_ranks = typename gradient_groups::group;
  sharded_stages<stages_type, gradient_ranks> sharded_;
  gradient_sums<stages_type, communicator_along<pipeline>, gradient_ranks, backend_type> gradients_;
  optimizer_steps<stages_type, backend_type, Strategy::norm_check::copies> steps_;
  model::executor<stage_type, communicator_along<pipeline>, observer_type> executor_;
  std::int64_t taken_back_ = 0;
  step_losses<stage_type> losses_;
  detail::step_ahead ahead_;
  using sums_ahead = step_sums_on_the_way<World, pipeline_axes, typename axes::gradients, typename axes::inside>;
  std::conditional_t<steps_first, sums_ahead, detail::no_sums_on_the_way> sums_;
  model::boundary_memory<scalar, space> boundary_;
  [[no_unique_address]] detail::logits_on_host<scalar, space> logits_;
  [[no_unique_address]] captured_step_type captured_;  // its graph uses all memory above
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
