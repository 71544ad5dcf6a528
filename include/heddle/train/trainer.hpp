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
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/plan.hpp>
#include <heddle/train/activations/bound.hpp>
#include <heddle/train/activations/bytes.hpp>
#include <heddle/train/executor.hpp>
#include <heddle/train/held_stages.hpp>
#include <heddle/train/layer_assignment.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/observed_world.hpp>
#include <heddle/train/optimizer.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/pass_through.hpp>
#include <heddle/train/report.hpp>
#include <heddle/train/same_options.hpp>
#include <heddle/train/stage_parts.hpp>
#include <heddle/train/step_batches.hpp>
#include <heddle/train/strategy.hpp>
#include <heddle/train/trainer_checks.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace heddle::inline v0::train {

/// Trains `Model` as `Strategy` says. One object per rank, all made and called together.
///
/// A step: the rank's samples are cut into microbatches; the schedule's table runs over the stages; gradients of the
/// tied embedding and of replicas are added up over pp, all gradients over dp; AdamW steps on gradients that are scaled
/// so that their global norm over all axes, each parameter counted once, is at most `clip_norm`; ZeRO shares are
/// gathered. The loss is the mean over all targets of the step, whatever the mesh and the schedule: all of them train
/// the same model.
///
/// A rank holds as many stages as the schedule's map gives it, each with its optimizer. A stage's gradients are reduced
/// over dp where the table has its REDUCE_GRAD; where other ranks hold a share of them (the tied embedding, the
/// replicas of a schedule with two chains), behind the last action. If embedding and head are on one rank, its weight
/// is there once.
///
/// `World` is what `launch` passes to its body; name it for another transport than threads.
///
/// Errors: `config_error` for settings that cannot work; `numeric_error` naming step and layer as soon as loss or
/// gradients are not finite, with the weights still those of the step before. After any error that a step throws the
/// trainer's messages and slots may be half-way through: end the world, or make another trainer.
template <class Model, class Strategy, class World = world<threads, typename Strategy::mesh>>
class trainer {
 public:
  static_assert(
      detail::trains_along_dp_pp_tp<typename Strategy::mesh>::value,
      "heddle: a trainer knows the axes dp, pp and tp; give it the world.sub<dp, pp, tp>() of a mesh with more");
  using scalar = typename Model::scalar;
  using mesh_type = typename Strategy::mesh;
  using backend_type = typename Strategy::backend;
  using observer_type = typename Strategy::observer;
  using schedule_type = typename Strategy::schedule;
  /// The world the stage is given: with an observer that is on, one that reports collectives.
  using stage_world = std::conditional_t<observer_type::enabled, observed_world<World, observer_type>, World>;
  using stage_type = detail::stage_for<Model, stage_world, backend_type, typename Strategy::activations>;
  static_assert(detail::learns_from_sums_over_dp<stage_type>::gradients,
                "heddle: a trainer sums gradients over dp, once; the stage's flat_weights must be replicated over dp and, where tp does "
                "not split them, identical or varying over tp");
  static_assert(detail::learns_from_sums_over_dp<stage_type>::loss,
                "heddle: a trainer's loss must be a sum over dp (partial<plus>), and along tp a sum or one computation (identical): "
                "copies would be counted once each, in the loss and in every gradient");
  static constexpr int zero_stage = Strategy::zero::stage;
  using batch_type = typename Model::batch;
  using options_type = train::options<typename Model::config>;
  using optimizer_type = optimizer<scalar, typename Strategy::zero>;
  using held_type = held_stage<stage_type, optimizer_type>;
  using activations_type = typename Strategy::activations;
  using plan_type =
      decltype(detail::plan_for<activations_type>(std::declval<schedule_type>(), std::declval<mesh_type>()));
  /// Of the groups along an axis; worlds of `by_network` have several types.
  template <class Axis>
  using communicator_along = std::remove_reference_t<decltype(std::declval<World&>().template along_if<Axis>())>;

  /// Makes the schedule itself, from `options.microbatches` and, for `schedule::named`, `options.schedule`.
  /// Errors: `config_error`, `schedule_error`.
  trainer(World& world, options_type options)
    requires(!observer_type::enabled)
      : trainer(world, checked(std::move(options)), static_cast<observer_type*>(nullptr), nullptr) {}

  /// With an observer that is on, it is passed and must outlive the trainer.
  trainer(World& world, options_type options, observer_type& observer)
      : trainer(world, checked(std::move(options)), &observer, nullptr) {}

  /// With this schedule, such as `schedule::tabled` of a table that was computed; `options.microbatches` is its number
  /// or 0.
  trainer(World& world, options_type options, const schedule_type& when)
    requires(!observer_type::enabled)
      : trainer(world, checked(std::move(options)), static_cast<observer_type*>(nullptr), &when) {}
  trainer(World& world, options_type options, const schedule_type& when, observer_type& observer)
      : trainer(world, checked(std::move(options)), &observer, &when) {}

  trainer(const trainer&) = delete;
  trainer& operator=(const trainer&) = delete;

  const options_type& options() const noexcept { return options_; }
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
  const executor_counters& counters() const noexcept { return executor_.counters(); }
  int microbatches() const noexcept { return microbatches_; }
  /// With `post_validation`: how many steps of this rank have been taken back so far.
  std::int64_t steps_taken_back() const noexcept { return taken_back_; }
  std::int64_t max_samples() const noexcept { return max_samples_; }
  /// Steps done so far, those before a save included.
  std::int64_t steps_done() const noexcept { return step_; }
  /// Position in the data: training samples consumed, over all ranks.
  std::int64_t samples_consumed() const noexcept { return consumed_; }
  /// Where a save left off. The rest of the state (weights, moments) is the caller's to bring.
  void set_position(std::int64_t steps_done, std::int64_t samples_consumed) noexcept {
    step_ = steps_done;
    consumed_ = samples_consumed;
  }
  /// Memory for activations on this rank.
  train::activation_bytes activation_bytes() const {
    return detail::bytes_of_activations(plan_.view(), pp_.rank(), held_);
  }
  std::int64_t saved_activation_bytes() const { return activation_bytes().saved; }

  /// Trains up to `options().steps`; `listener(const step_report&)` is called on every rank after each step.
  template <sample_source Data, class Listener = quiet>
  void run(const Data& data, Listener&& listener = {}) {
    run(data, std::forward<Listener>(listener), [](trainer&) {});
  }

  /// `after_step(trainer)` is called on every rank after each step's report: the place to save.
  template <sample_source Data, class Listener, class AfterStep>
  void run(const Data& data, Listener&& listener, AfterStep&& after_step) {
    const std::int64_t first = step_;
    const std::int64_t start = now_ns();
    double training = 0;
    while (step_ < options_.steps) {
      step_report report = step(data);
      training += report.seconds;
      if (options_.validate_every > 0 && (step_ % options_.validate_every == 0 || step_ == options_.steps))
        report.validation_loss = validate(data);
      const double seconds = static_cast<double>(now_ns() - start) * 1e-9;
      const auto done = static_cast<double>(step_ - first);
      report.tokens_per_second = static_cast<double>(report.tokens) * done / training;
      report.seconds_left = seconds / done * static_cast<double>(options_.steps - step_);
      listener(static_cast<const step_report&>(report));
      after_step(*this);
    }
  }

  /// One training step. Errors: `numeric_error`, with the weights of the step before; with `post_validation`, up to
  /// rounding.
  template <sample_source Data>
  step_report step(const Data& data) {
    const std::int64_t start = now_ns();
    step_report report;
    report.step = step_;
    report.steps = options_.steps;
    report.tokens = options_.batch * options_.model.context;
    report.learning_rate = options_.learning_rate(step_);
    step_result result;
    if constexpr (steps_first) {
      optimistic_ = true;
      run_backward(data);
      const step_sums mine = my_sums();
      step_if_unclipped(mine);
      result = combine(mine);
      if (!finite(result) || applied_scale(result) != 1) take_back();
      stop_unless_finite(result);
      optimistic_ = false;
      finish_step(result);
    } else {
      result = compute_gradients(data);
      apply_gradients(result);
    }
    report.loss = result.loss;
    report.gradient_norm = result.gradient_norm;
    report.seconds = static_cast<double>(now_ns() - start) * 1e-9;
    return report;
  }

  struct step_result {
    double loss = 0;            ///< mean over the step's targets
    double gradient_norm = 0;   ///< of the gradient of that mean, over all axes
    double gradient_scale = 1;  ///< what `stage().gradients()` must be multiplied by to be that gradient
  };

  /// Forward and backward of step `steps_done()`. Afterwards the owned part of each stage's `gradients()` (all of it
  /// with zero<0>), times `gradient_scale`, is the gradient of the mean loss, summed over dp and over replicas. The
  /// scale is 1 unless targets are ignored (negative): how many count is known only when all ranks are done.
  template <sample_source Data>
  step_result compute_gradients(const Data& data) {
    run_backward(data);
    const step_result result = combine(my_sums());
    stop_unless_finite(result);
    return result;
  }

  /// Clips by the global norm and takes one AdamW step; `steps_done()` then counts it.
  void apply_gradients(const step_result& result) {
    held_.for_each([](held_type& h) { h.stepped = false; });
    finish_step(result);
  }

  /// Mean loss over the held-out samples (at most `validation_samples`), split over dp, without touching gradients.
  /// Errors: `config_error` if the data holds none out, or all their targets are ignored.
  template <sample_source Data>
  double validate(const Data& data) {
    const std::int64_t samples = options_.validation_samples > 0
                                     ? (std::min)(options_.validation_samples, std::int64_t{data.validation_samples()})
                                     : std::int64_t{data.validation_samples()};
    batches_.check_context(data);
    if (samples < 1) throw config_error("heddle: validation needs held-out samples; the data has none");
    const balanced_split cut{samples, dp_.size()};
    std::int64_t first = cut.offset(dp_.rank());
    const std::int64_t end = first + cut.size(dp_.rank());
    std::array<double, 2> sums{};  // loss, targets
    for (; first < end; first += max_samples_) {
      const batch_type batch = batches_.held_out(data, first, (std::min)(max_samples_, end - first));
      const double loss = forward_through(batch);
      if (is_last_stage() && counts_loss_along_tp()) sums[0] += loss;
      if (is_last_stage() && tp_.rank() == 0) sums[1] += batches_.counted_targets(batch.targets);
    }
    world_.all().all_reduce(std::span<double>(sums), plus{});
    if (sums[1] == 0) throw config_error("heddle: every target of the held-out samples is ignored");
    return sums[0] / sums[1];
  }

  /// One forward pass through the pipeline without saving. Returns the loss sum on the rank of the last stage, 0
  /// elsewhere.
  double forward_through(const batch_type& batch) {
    double loss = 0;
    pass_through(batch, [&](stage_type& stage, std::span<const scalar> in, std::span<scalar> out) {
      loss += stage.forward_only(batch, in, out);
    });
    return loss;
  }

  /// The same for the logits of each sample's last position. Shapes: `logits` [samples, vocabulary] on the rank of the
  /// last stage.
  void last_logits(const batch_type& batch, std::span<scalar> logits) {
    pass_through(batch, [&](stage_type& stage, std::span<const scalar> in, std::span<scalar> out) {
      stage.last_logits(batch, in, out, logits);
    });
  }

  /// Whether this rank holds the stage with the embedding, and the one with the loss. With replicas: the
  /// first of them.
  bool is_first_stage() const noexcept { return pp_.rank() == rank_of_part(0); }
  bool is_last_stage() const noexcept { return pp_.rank() == last_stage_rank(); }
  /// The rank along pp where `forward_through` and `last_logits` have their results.
  int last_stage_rank() const noexcept { return rank_of_part(parts_.parts() - 1); }
  communicator_along<dp>& dp_group() noexcept { return dp_; }
  communicator_along<pp>& pp_group() noexcept { return pp_; }
  communicator_along<tp>& tp_group() noexcept { return tp_; }

 private:
  static constexpr int forward_only_tag = 2;

  trainer(World& world, options_type options, observer_type* observer, const schedule_type* when)
      : world_(world),
        options_(std::move(options)),
        observer_(own_or(observer)),
        dp_(world.template along_if<dp>()),
        // Messages of its own: whatever the caller sends along pp cannot meet the pipeline's.
        pp_(world.template along_if<pp>().split(0, world.template along_if<pp>().rank())),
        tp_(world.template along_if<tp>()),
        plan_(when != nullptr ? detail::plan_for<activations_type>(*when, world.mesh())
                              : detail::plan_for<activations_type>(make_schedule(options_), world.mesh())),
        parts_(when != nullptr ? stage_parts(*when, plan_.view().table) : stage_parts(plan_.view().table)),
        microbatches_(checked_microbatches(plan_.view().table.microbatches())),
        max_samples_(balanced_split{balanced_split{options_.batch, dp_.size()}.largest(), microbatches_}.largest()),
        backend_(threads_for(options_, world.size())),
        watched_(watch()),
        held_(
            detail::trained(plan_.view().table), parts_, pp_.rank(),
            [&](int stage, stage_type* lender) { return make_stage(stage, lender); }, dp_.rank(), dp_.size()),
        executor_(plan_, held_.pointers(), pp_, max_samples_, *observer_, pipeline_world_ranks()),
        batches_(table(), parts_, pp_.rank(), max_samples_, options_.model.context) {
    now_ = describe(activity::collective, "");
    now_.step = -1;
    require_same_options(world_.all(), to_string(options_) + " table=" + std::to_string(fingerprint(table())));
    losses_.resize(static_cast<std::size_t>(microbatches_));
    for (buffer<scalar>& b : boundary_) b = buffer<scalar>(boundary_elements());
    held_.for_each([&](held_type& h) {
      h.stage.initialize(options_.seed);
      h.gradient_factor = detail::gradient_factor<typename Strategy::gradient_scale>(table(), parts_, h.part,
                                                                                     options_.batch, dp_.size());
    });
  }

  auto watch() noexcept {
    if constexpr (observer_type::enabled)
      return stage_world(world_, *observer_, now_);
    else
      return std::monostate{};
  }
  stage_world& stage_ranks() noexcept {
    if constexpr (observer_type::enabled)
      return watched_;
    else
      return world_;
  }
  observer_type* own_or(observer_type* given) noexcept {
    if constexpr (observer_type::enabled)
      return given;
    else
      return given == nullptr ? &off_ : given;
  }
  static options_type checked(options_type o) {
    o.validate();
    if (steps_first && o.learning_rate.peak * o.adamw.weight_decay >= 1)
      throw config_error(
          "heddle: post_validation takes steps back, which cannot be done where learning rate times weight "
          "decay is 1 or more");
    if (o.learning_rate.total_steps == 0) o.learning_rate.total_steps = o.steps;
    if constexpr (!std::is_same_v<schedule_type, schedule::named>) {
      if (!o.schedule.empty())
        throw config_error(
            "heddle: options.schedule is \"" + o.schedule +
            "\", but this strategy has a schedule of its own; use schedule::named to choose at start-up");
    }
    return o;
  }
  int checked_microbatches(int of_schedule) const {
    if (const int wanted = options_.microbatches; wanted != 0 && wanted != of_schedule)
      throw config_error("heddle: the schedule has " + std::to_string(of_schedule) +
                         " microbatches; microbatches must be that or 0, got " + std::to_string(wanted));
    return of_schedule;
  }
  static int threads_for(const options_type& o, int ranks) {
    if (o.threads_per_rank > 0) return o.threads_per_rank;
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    return (std::max)(1, cores / ranks);
  }
  static schedule_type make_schedule(const options_type& o) {
    const int microbatches = o.microbatches == 0 ? 1 : o.microbatches;
    if constexpr (schedule_type::is_static)
      return schedule_type{};
    else if constexpr (std::is_same_v<schedule_type, schedule::named>)
      return schedule_type{o.schedule.empty() ? std::string_view("1f1b") : std::string_view(o.schedule), microbatches};
    else if constexpr (std::is_constructible_v<schedule_type, int>)
      return schedule_type{microbatches};
    else
      throw config_error("heddle: this schedule is not made from a number of microbatches; pass it to the trainer");
  }

  schedule::table_view table() const noexcept { return plan_.view().table; }
  int rank_of_part(int part) const noexcept { return table().rank_of(parts_.stages_of(part).front()); }

  stage_type make_stage(int index, stage_type* lender) {
    const schedule::table_view t = table();
    auto layers = detail::assigned_layers<typename Strategy::layers, Model>(
        options_.model, parts_.part_of(index), parts_.parts(), parts_.parts_with_layers(), options_.layers_per_stage);
    if constexpr (requires { layers.replica; }) layers.replica = parts_.replica_of(index);
    const auto list = t.list(pp_.rank());
    return detail::make_stage<stage_type>(options_, stage_ranks(), backend_of_next_stage(), layers,
                                          plan_.view().storage.slots(index), max_samples_,
                                          detail::most_deferred(list, index), lender, list, index);
  }
  // Stages of overlapped pairs work at the same time if each has a backend of its own and none talks to others.
  backend_type& backend_of_next_stage() {
    const bool alone =
        tp_.size() == 1 && companionable_stage<stage_type> && detail::has_pairs(table().list(pp_.rank()));
    if (!alone || !std::exchange(backend_given_, true)) return backend_;
    more_backends_.push_back(std::make_unique<backend_type>(threads_for(options_, world_.size())));
    return *more_backends_.back();
  }
  // A loss that is identical along tp counts once.
  bool counts_loss_along_tp() const noexcept {
    return !stage_type::loss::template is_identical_on<tp> || tp_.rank() == 0;
  }
  std::vector<int> pipeline_world_ranks() const {
    if constexpr (mesh_type::template has<pp>)
      return group<pp>(world_.mesh(), world_.rank());
    else
      return {world_.rank()};
  }
  std::int64_t boundary_elements() const {
    return held_.size() == 0 ? 0 : held_[0].stage.boundary_elements(static_cast<int>(max_samples_));
  }

  static constexpr bool steps_first = Strategy::norm_check::steps_first;
  /// What this rank adds to loss, targets and squared norm of a step. Every part is counted on one rank only.
  struct step_sums {
    double loss = 0, targets = 0, squares = 0;
  };

  // Forward and backward of all microbatches, and every reduction of gradients.
  template <class Data>
  void run_backward(const Data& data) {
    now_.step = static_cast<int>(step_);  // what is not part of a step (validation, sampling) has none
    const balanced_split over_dp{options_.batch, dp_.size()};
    batches_.load(data, consumed_ + over_dp.offset(dp_.rank()), over_dp.size(dp_.rank()),
                  1.0 / static_cast<double>(options_.batch * options_.model.context));
    held_.for_each([](held_type& h) {
      h.stage.zero_gradients();
      detail::begin_step(h.stage);
      h.reduced = h.stepped = false;
    });
    std::fill(losses_.begin(), losses_.end(), 0.0);
    executor_.run(batches_.all(), static_cast<int>(step_), hooks{*this});

    // What several ranks along pp share comes last: before its last SEND_B a rank could wait here for one that waits for
    // that send.
    if (held_.shares())
      collective("reduce tied gradients", 0, [&] { held_.sum_shared(world_.template along_if<pp>(), backend_); });
    held_.for_each([&](held_type& h) { reduce_over_dp(h); });
  }
  step_sums my_sums() {
    step_sums sums;
    if (counts_loss_along_tp())
      for (const double loss : losses_) sums.loss += loss;  // in the order of the microbatches, whatever the schedule
    if (tp_.rank() == 0) sums.targets = batches_.counted_targets();
    held_.for_each([&](held_type& h) { sums.squares += squares_of(h); });
    return sums;
  }
  double squares_of(held_type& h) {
    return h.optimizer.counted_sum_of_squares(backend_, std::span<const scalar>(h.stage.gradients()));
  }
  // One small all-reduce.
  step_result combine(const step_sums& mine) {
    std::array<double, 3> sums{mine.loss, mine.targets, mine.squares};
    collective("all_reduce of loss and norm", sizeof sums,
               [&] { world_.all().all_reduce(std::span<double>(sums), plus{}); });
    if (sums[1] == 0) {
      take_back();
      throw config_error("heddle: step " + std::to_string(step_ + 1) + " has no target to learn from: all are ignored");
    }
    step_result result;
    result.gradient_scale = static_cast<double>(options_.batch * options_.model.context) / sums[1];
    result.loss = sums[0] / sums[1];
    result.gradient_norm = std::sqrt(sums[2]) * result.gradient_scale;
    return result;
  }
  static bool finite(const step_result& r) noexcept { return std::isfinite(r.loss) && std::isfinite(r.gradient_norm); }
  void stop_unless_finite(const step_result& r) {
    if (!finite(r)) stop_nonfinite(world_.all(), held_, backend_, step_, r.loss, r.gradient_norm);
  }

  // As torch.nn.utils.clip_grad_norm_: the coefficient is applied always, and is 1 below the limit.
  double coefficient(double norm) const { return (std::min)(1.0, options_.clip_norm / (norm + 1e-6)); }
  bool is_unclipped(double squares) const { return std::isfinite(squares) && coefficient(std::sqrt(squares)) == 1; }
  double applied_scale(const step_result& r) const { return coefficient(r.gradient_norm) * r.gradient_scale; }

  void update(held_type& h, double gradient_scale) {
    h.optimizer.update(backend_, h.stage.weights(), std::span<const scalar>(h.stage.gradients()), options_.adamw,
                       options_.learning_rate(step_), step_ + 1, gradient_scale);
    h.stepped = true;
  }
  // Steps all stages that have not stepped, unless this rank's own share of the norm says that it will not do.
  void step_if_unclipped(const step_sums& mine) {
    if (!std::isfinite(mine.loss) || !is_unclipped(mine.squares)) return;
    observed(*observer_, describe(activity::optimizer, "optimizer"), [&] {
      held_.for_each([&](held_type& h) {
        if (!h.stepped) update(h, 1.0);
      });
    });
  }
  // Weights and moments as before the step, up to rounding.
  void take_back() {
    if constexpr (steps_first) {
      bool any = false;
      held_.for_each([&](held_type& h) {
        if (!std::exchange(h.stepped, false)) return;
        any = true;
        h.optimizer.undo(backend_, h.stage.weights(), std::span<const scalar>(h.stage.gradients()), options_.adamw,
                         options_.learning_rate(step_), step_ + 1, 1.0);
      });
      taken_back_ += any ? 1 : 0;
    }
  }
  // Steps the stages that have not, and brings all dp ranks up to date.
  void finish_step(const step_result& result) {
    bool all_stepped = true;
    held_.for_each([&](held_type& h) { all_stepped = all_stepped && h.stepped; });
    if (!all_stepped)
      observed(*observer_, describe(activity::optimizer, "optimizer"), [&] {
        held_.for_each([&](held_type& h) {
          if (!h.stepped) update(h, applied_scale(result));
        });
      });
    held_.for_each([&](held_type& h) {
      collective("gather weights", h.stage.weights().size_bytes(), [&] { h.optimizer.gather(dp_, h.stage.weights()); });
    });
    now_.step = -1;
    ++step_;
    consumed_ += options_.batch;
  }

  template <class Forward>
  void pass_through(const batch_type& batch, Forward&& forward) {
    train::pass_through(parts_, table(), held_, pp_, forward_only_tag, batch, boundary_, forward);
  }

  struct hooks {
    trainer& self;
    void forward_done(int stage, int microbatch, int slot) {
      held_type& h = self.held_.at(stage);
      if (h.part + 1 == self.parts_.parts())
        self.losses_[static_cast<std::size_t>(microbatch)] = h.stage.loss_sum(slot);
    }
    void reduce_gradient(int stage) {
      if (self.held_.complete_alone(stage)) self.reduce_over_dp(self.held_.at(stage));
    }
    void recompute(int stage, int /*microbatch*/, int slot) { detail::recompute(self.held_.at(stage).stage, slot); }
    void reload(int stage, int /*microbatch*/, int slot) { detail::reload(self.held_.at(stage).stage, slot); }
    // Where a table has OPTIM, for stages that nobody has to wait for.
    void optimizer_step(int stage) {
      if constexpr (steps_first) {
        held_type& h = self.held_.at(stage);
        if (!self.optimistic_ || !self.held_.complete_alone(stage) || (!h.reduced && self.dp_.size() > 1)) return;
        self.reduce_over_dp(h);
        if (self.is_unclipped(self.squares_of(h))) self.update(h, 1.0);
      }
    }
  };

  void reduce_over_dp(held_type& h) {
    if (std::exchange(h.reduced, true)) return;
    if (h.gradient_factor != 1) backend_.scale(h.stage.gradients(), static_cast<scalar>(h.gradient_factor));
    if (dp_.size() == 1) return;
    collective("reduce gradients", h.stage.gradients().size_bytes(),
               [&] { h.optimizer.reduce(dp_, h.stage.gradients()); });
  }

  template <class Work>
  void collective(const char* name, std::size_t bytes, Work&& work) {
    event e = describe(activity::collective, name);
    e.bytes = static_cast<std::int64_t>(bytes);
    observed(*observer_, e, std::forward<Work>(work));
  }
  event describe(activity kind, const char* name) const noexcept {
    event e;
    e.kind = kind;
    e.name = name;
    e.rank = world_.rank();
    e.step = static_cast<int>(step_);
    return e;
  }

  World& world_;
  options_type options_;
  // The observer that is off is nobody else's; one that is on is passed in.
  [[no_unique_address]] std::conditional_t<observer_type::enabled, std::monostate, observer_type> off_;
  observer_type* observer_;
  communicator_along<dp>& dp_;
  communicator_along<pp> pp_;
  communicator_along<tp>& tp_;
  [[no_unique_address]] plan_type plan_;
  stage_parts parts_;
  int microbatches_;
  std::int64_t max_samples_;
  backend_type backend_;
  bool backend_given_ = false;
  std::vector<std::unique_ptr<backend_type>> more_backends_;
  event now_{};  // rank and step, for collectives that the stage reports
  [[no_unique_address]] std::conditional_t<observer_type::enabled, stage_world, std::monostate> watched_;
  held_stages<stage_type, optimizer_type> held_;
  executor<stage_type, communicator_along<pp>, observer_type> executor_;
  std::int64_t step_ = 0;
  std::int64_t consumed_ = 0;
  std::int64_t taken_back_ = 0;
  step_batches<batch_type> batches_;
  std::vector<double> losses_;
  bool optimistic_ = false;  // stages may step before the norm is known
  std::array<buffer<scalar>, 2> boundary_;
};

}  // namespace heddle::inline v0::train
