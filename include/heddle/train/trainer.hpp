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
#include <heddle/train/executor.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/observed_world.hpp>
#include <heddle/train/optimizer.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/report.hpp>
#include <heddle/train/strategy.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace heddle::inline v0::train {

/// What a trainer reads: an endless order of training samples addressed by global index, and held-out samples.
/// `fill_train({first, count}, tokens, targets)` writes consecutive samples; `io::basic_dataset` is one.
template <class D>
concept sample_source = requires(const D& data, std::span<std::int32_t> ids) {
  { data.context() } -> std::convertible_to<std::int64_t>;
  { data.validation_samples() } -> std::convertible_to<std::int64_t>;
  data.fill_train({std::int64_t{}, std::int64_t{}}, ids, ids);
  data.fill_validation({std::int64_t{}, std::int64_t{}}, ids, ids);
};

namespace detail {
// Losses and norms are summed over the world: ranks along any other axis would count the same samples again.
template <class Mesh>
struct trains_along_dp_pp_tp {
  template <class... Tags>
  static constexpr bool known(type_list<Tags...>) {
    return ((std::is_same_v<Tags, dp> || std::is_same_v<Tags, pp> || std::is_same_v<Tags, tp>) && ...);
  }
  static constexpr bool value = known(typename Mesh::tags{});
};

// What a stage says of its flat buffers and its loss must be what a step does: one reduction of all gradients over dp, and a
// loss that is added up over dp and counted once along tp.
template <class Stage>
struct learns_from_sums_over_dp {
  using weights = typename Stage::flat_weights;
  static constexpr bool gradients = [] {
    if constexpr (dual<weights>::template is_partial_on<dp>)
      return std::is_same_v<reduced<dual<weights>, dp>, weights>;
    else
      return false;
  }();
  static constexpr bool loss = loss_layout<typename Stage::loss> && !Stage::loss::template is_identical_on<dp>;
};
}  // namespace detail

/// Trains `Model` as `Strategy` says. One object per rank, all made and called together.
///
/// A step: the rank's samples are cut into microbatches; the schedule's table runs over the stages; gradients of the
/// tied embedding are added up over pp, all gradients over dp; AdamW steps on gradients that are scaled so that their
/// global norm over all axes, each parameter counted once, is at most `clip_norm`; ZeRO shares are gathered.
/// The loss is the mean over all targets of the step, whatever the mesh: any mesh trains the same model.
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
  using stage_type = typename Model::template stage<stage_world, backend_type>;
  static_assert(detail::learns_from_sums_over_dp<stage_type>::gradients,
                "heddle: a trainer sums gradients over dp, once; the stage's flat_weights must be replicated over dp and, where tp does "
                "not split them, identical or varying over tp");
  static_assert(detail::learns_from_sums_over_dp<stage_type>::loss,
                "heddle: a trainer's loss must be a sum over dp (partial<plus>), and along tp a sum or one computation (identical): "
                "copies would be counted once each, in the loss and in every gradient");
  static constexpr int zero_stage = Strategy::zero::stage;
  using batch_type = typename Model::batch;
  using options_type = train::options<typename Model::config>;
  using plan_type = decltype(schedule::plan_for(std::declval<schedule_type>(), std::declval<mesh_type>()));
  /// Of the groups along an axis; worlds of `by_network` have several types.
  template <class Axis>
  using communicator_along = std::remove_reference_t<decltype(std::declval<World&>().template along_if<Axis>())>;

  /// Errors: `config_error`, `schedule_error`.
  trainer(World& world, options_type options)
    requires(!observer_type::enabled)
      : trainer(world, std::move(options), static_cast<observer_type*>(nullptr)) {}

  /// With an observer that is on, it is passed and must outlive the trainer.
  trainer(World& world, options_type options, observer_type& observer)
      : trainer(world, std::move(options), &observer) {}

  trainer(const trainer&) = delete;
  trainer& operator=(const trainer&) = delete;

  const options_type& options() const noexcept { return options_; }
  World& ranks() noexcept { return world_; }
  stage_type& stage() noexcept { return stage_; }
  backend_type& backend() noexcept { return backend_; }
  optimizer<scalar, typename Strategy::zero>& optimizer_state() noexcept { return optimizer_; }
  /// The lowered table of the schedule and the storage of its actions.
  schedule::plan_view plan() const noexcept { return plan_.view(); }
  const executor_counters& counters() const noexcept { return executor_.counters(); }
  int microbatches() const noexcept { return microbatches_; }
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
  /// Bytes of saved activations on this rank: slots of its stage times bytes of one.
  std::int64_t saved_activation_bytes() const {
    return plan_.view().storage.slots(pp_.rank()) * stage_.saved_bytes_per_slot();
  }

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

  /// One training step.
  template <sample_source Data>
  step_report step(const Data& data) {
    const std::int64_t start = now_ns();
    step_report report;
    report.step = step_;
    report.steps = options_.steps;
    report.tokens = options_.batch * options_.model.context;
    report.learning_rate = options_.learning_rate(step_);
    const step_result result = compute_gradients(data);
    report.loss = result.loss;
    report.gradient_norm = result.gradient_norm;
    apply_gradients(result);
    report.seconds = static_cast<double>(now_ns() - start) * 1e-9;
    return report;
  }

  struct step_result {
    double loss = 0;            ///< mean over the step's targets
    double gradient_norm = 0;   ///< of the gradient of that mean, over all axes
    double gradient_scale = 1;  ///< what `stage().gradients()` must be multiplied by to be that gradient
  };

  /// Forward and backward of step `steps_done()`. Afterwards the owned part of `stage().gradients()` (all of it with
  /// zero<0>), times `gradient_scale`, is the gradient of the mean loss, summed over dp. The scale is 1 unless targets
  /// are ignored (negative): how many count is known only when all ranks are done.
  template <sample_source Data>
  step_result compute_gradients(const Data& data) {
    now_.step = static_cast<int>(step_);  // what is not part of a step (validation, sampling) has none
    load(data);
    stage_.zero_gradients();
    executor_.run(std::span<const batch_type>(batches_), static_cast<int>(step_), hooks{*this});

    // One stage per rank: its gradients are complete when the list is, wherever the table has REDUCE_GRAD. Before the last
    // SEND_B the reduction, which meets the other end of the pipeline, could wait for a rank that waits for that send.
    reduce_gradients();

    // Loss, targets and squared norm in one small all-reduce; every part is counted on one rank only.
    std::array<double, 3> sums{};
    if (counts_loss())
      for (const double loss : losses_) sums[0] += loss;  // in the order of the microbatches, whatever the schedule
    if (is_last_stage() && tp_.rank() == 0) {
      for (const batch_type& b : batches_) sums[1] += counted_targets(b.targets);
    }
    sums[2] = optimizer_.counted_sum_of_squares(backend_, std::span<const scalar>(stage_.gradients()));
    collective("all_reduce of loss and norm", sizeof sums,
               [&] { world_.all().all_reduce(std::span<double>(sums), plus{}); });
    if (sums[1] == 0)
      throw config_error("heddle: step " + std::to_string(step_ + 1) + " has no target to learn from: all are ignored");
    step_result result;
    result.gradient_scale = static_cast<double>(options_.batch * options_.model.context) / sums[1];
    result.loss = sums[0] / sums[1];
    result.gradient_norm = std::sqrt(sums[2]) * result.gradient_scale;
    if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm))
      stop_nonfinite(world_.all(), stage_, backend_, step_, result.loss, result.gradient_norm);
    return result;
  }

  /// Clips by the global norm and takes one AdamW step; `steps_done()` then counts it.
  void apply_gradients(const step_result& result) {
    // As torch.nn.utils.clip_grad_norm_: the coefficient is applied always, and is 1 below the limit.
    const double coefficient = (std::min)(1.0, options_.clip_norm / (result.gradient_norm + 1e-6));
    observed(*observer_, describe(activity::optimizer, "optimizer"), [&] {
      optimizer_.update(backend_, stage_.weights(), std::span<const scalar>(stage_.gradients()), options_.adamw,
                        options_.learning_rate(step_), step_ + 1, coefficient * result.gradient_scale);
    });
    collective("gather weights", stage_.weights().size_bytes(), [&] { optimizer_.gather(dp_, stage_.weights()); });
    now_.step = -1;
    ++step_;
    consumed_ += options_.batch;
  }

  /// Mean loss over the held-out samples (at most `validation_samples`), split over dp, without touching gradients.
  /// Errors: `config_error` if the data holds none out, or all their targets are ignored.
  template <sample_source Data>
  double validate(const Data& data) {
    const std::int64_t samples = options_.validation_samples > 0
                                     ? (std::min)(options_.validation_samples, std::int64_t{data.validation_samples()})
                                     : std::int64_t{data.validation_samples()};
    check_context(data);
    if (samples < 1) throw config_error("heddle: validation needs held-out samples; the data has none");
    const balanced_split cut{samples, dp_.size()};
    std::int64_t first = cut.offset(dp_.rank());
    const std::int64_t end = first + cut.size(dp_.rank());
    std::array<double, 2> sums{};  // loss, targets
    for (; first < end; first += max_samples_) {
      const std::int64_t count = (std::min)(max_samples_, end - first);
      const auto n = static_cast<std::size_t>(count * options_.model.context);
      const std::span<std::int32_t> tokens(tokens_.data(), n), targets(targets_.data(), n);
      data.fill_validation({first, count}, tokens, targets);
      batch_type batch;
      batch.tokens = tokens;
      batch.targets = targets;
      batch.samples = static_cast<int>(count);
      const double loss = forward_through(batch);
      if (counts_loss()) sums[0] += loss;
      if (is_last_stage() && tp_.rank() == 0) sums[1] += counted_targets(batch.targets);
    }
    world_.all().all_reduce(std::span<double>(sums), plus{});
    if (sums[1] == 0) throw config_error("heddle: every target of the held-out samples is ignored");
    return sums[0] / sums[1];
  }

  /// One forward pass through the pipeline without saving. Returns the loss sum on the last stage, 0 elsewhere.
  double forward_through(const batch_type& batch) {
    double loss = 0;
    pass_through(
        batch, [&](std::span<const scalar> in, std::span<scalar> out) { loss = stage_.forward_only(batch, in, out); });
    return loss;
  }

  /// The same for the logits of each sample's last position. Shapes: `logits` [samples, vocabulary] on the last stage.
  void last_logits(const batch_type& batch, std::span<scalar> logits) {
    pass_through(
        batch, [&](std::span<const scalar> in, std::span<scalar> out) { stage_.last_logits(batch, in, out, logits); });
  }

  /// Whether this rank's loss goes into the sum over all ranks: one that is identical along tp counts once.
  bool counts_loss() const noexcept {
    return is_last_stage() && (!stage_type::loss::template is_identical_on<tp> || tp_.rank() == 0);
  }
  bool is_first_stage() const noexcept { return pp_.rank() == 0; }
  bool is_last_stage() const noexcept { return pp_.rank() == pp_.size() - 1; }
  communicator_along<dp>& dp_group() noexcept { return dp_; }
  communicator_along<pp>& pp_group() noexcept { return pp_; }
  communicator_along<tp>& tp_group() noexcept { return tp_; }

 private:
  static constexpr int forward_only_tag = 2;

  trainer(World& world, options_type options, observer_type* observer)
      : world_(world),
        options_(checked(std::move(options))),
        observer_(own_or(observer)),
        dp_(world.template along_if<dp>()),
        // Messages of its own: whatever the caller sends along pp cannot meet the pipeline's.
        pp_(world.template along_if<pp>().split(0, world.template along_if<pp>().rank())),
        tp_(world.template along_if<tp>()),
        microbatches_(microbatch_count(options_)),
        max_samples_(balanced_split{balanced_split{options_.batch, dp_.size()}.largest(), microbatches_}.largest()),
        backend_(threads_for(options_, world.size())),
        plan_(schedule::plan_for(make_schedule(options_), world.mesh())),
        watched_(watch()),
        stage_(options_.model, stage_ranks(), backend_, Model::layers_of(options_.model, pp_.rank(), pp_.size()),
               plan_.view().storage.slots(pp_.rank()), max_samples_, deferred()),
        optimizer_(stage_.parameters(), static_cast<std::int64_t>(stage_.weights().size()), dp_.rank(), dp_.size()),
        executor_(plan_, stages(), pp_, max_samples_, *observer_, pipeline_world_ranks()) {
    const auto tokens = static_cast<std::size_t>(max_samples_ * microbatches_ * options_.model.context);
    now_ = describe(activity::collective, "");
    now_.step = -1;
    compare_options();
    tokens_.resize(tokens);
    targets_.resize(tokens);
    batches_.resize(static_cast<std::size_t>(microbatches_));
    losses_.resize(static_cast<std::size_t>(microbatches_));
    boundary_in_ = buffer<scalar>(boundary_elements());
    boundary_out_ = buffer<scalar>(boundary_elements());
    stage_.initialize(options_.seed);
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
    if (o.learning_rate.total_steps == 0) o.learning_rate.total_steps = o.steps;
    if constexpr (!std::is_same_v<schedule_type, schedule::named>) {
      if (!o.schedule.empty())
        throw config_error(
            "heddle: options.schedule is \"" + o.schedule +
            "\", but this strategy has a schedule of its own; use schedule::named to choose at start-up");
    }
    if constexpr (schedule_type::is_static) {
      const int fixed = schedule_type{}.microbatch_count();
      if (o.microbatches != 0 && o.microbatches != fixed)
        throw config_error("heddle: the schedule has " + std::to_string(fixed) +
                           " microbatches; microbatches must be that or 0, got " + std::to_string(o.microbatches));
    }
    return o;
  }
  static int microbatch_count(const options_type& o) {
    if constexpr (schedule_type::is_static)
      return schedule_type{}.microbatch_count();
    else
      return o.microbatches == 0 ? 1 : o.microbatches;
  }
  static int threads_for(const options_type& o, int ranks) {
    if (o.threads_per_rank > 0) return o.threads_per_rank;
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    return (std::max)(1, cores / ranks);
  }
  static schedule_type make_schedule(const options_type& o) {
    if constexpr (schedule_type::is_static)
      return schedule_type{};
    else if constexpr (std::is_same_v<schedule_type, schedule::named>)
      return schedule_type{o.schedule.empty() ? std::string_view("1f1b") : std::string_view(o.schedule),
                           microbatch_count(o)};
    else
      return schedule_type{microbatch_count(o)};
  }

  // A world in which one rank was told something else would train nonsense, or wait for ever.
  void compare_options() {
    const std::string mine = to_string(options_);
    std::string first = mine;
    auto length = static_cast<std::int64_t>(first.size());
    auto& all = world_.all();
    all.broadcast(std::span<std::int64_t>(&length, 1), 0);
    first.resize(static_cast<std::size_t>(length));
    all.broadcast(std::span<char>(first), 0);
    if (first != mine)
      throw config_error("heddle: rank " + std::to_string(world_.rank()) + " has other options than rank 0: " + mine +
                         "; rank 0: " + first);
  }

  // Microbatches that wait between I and W: none where the table only has B.
  int deferred() const {
    return plan_.view().table.has(schedule::action_kind::backward_input) ? plan_.view().storage.slots(pp_.rank()) : 0;
  }
  std::vector<stage_type*> stages() {
    std::vector<stage_type*> held(static_cast<std::size_t>(pp_.size()), nullptr);
    held[static_cast<std::size_t>(pp_.rank())] = &stage_;
    return held;
  }
  std::vector<int> pipeline_world_ranks() const {
    if constexpr (mesh_type::template has<pp>)
      return group<pp>(world_.mesh(), world_.rank());
    else
      return {world_.rank()};
  }
  std::int64_t boundary_elements() const { return stage_.boundary_elements(static_cast<int>(max_samples_)); }

  template <class Data>
  void check_context(const Data& data) const {
    const std::int64_t context = options_.model.context;
    if (data.context() != context)
      throw config_error("heddle: the data has samples of " + std::to_string(data.context()) +
                         " tokens, the model a context of " + std::to_string(context));
  }

  // The step's samples of this rank, microbatch by microbatch. Only the ends of the pipeline read them.
  template <class Data>
  void load(const Data& data) {
    check_context(data);
    const std::int64_t context = options_.model.context;
    const balanced_split over_dp{options_.batch, dp_.size()};
    const balanced_split over_microbatches{over_dp.size(dp_.rank()), microbatches_};
    const std::int64_t first = consumed_ + over_dp.offset(dp_.rank());
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      const auto part = static_cast<std::int64_t>(i);
      const std::int64_t count = over_microbatches.size(part);
      const auto at = static_cast<std::size_t>(over_microbatches.offset(part) * context);
      const auto n = static_cast<std::size_t>(count * context);
      const std::span<std::int32_t> tokens(tokens_.data() + at, n), targets(targets_.data() + at, n);
      if (is_first_stage() || is_last_stage())
        data.fill_train({first + over_microbatches.offset(part), count}, tokens, targets);
      batches_[i].tokens = tokens;
      batches_[i].targets = targets;
      batches_[i].samples = static_cast<int>(count);
      batches_[i].loss_scale = static_cast<scalar>(1.0 / static_cast<double>(options_.batch * context));
    }
  }

  template <class Forward>
  void pass_through(const batch_type& batch, Forward&& forward) {
    const auto n = static_cast<std::size_t>(stage_.boundary_elements(batch.samples, batch.sequence));
    const std::span<scalar> in = is_first_stage() ? std::span<scalar>{} : std::span<scalar>(boundary_in_.data(), n);
    const std::span<scalar> out = is_last_stage() ? std::span<scalar>{} : std::span<scalar>(boundary_out_.data(), n);
    if (!is_first_stage()) pp_.recv(in, pp_.rank() - 1, forward_only_tag);
    forward(std::span<const scalar>(in), out);
    if (!is_last_stage()) pp_.send(std::span<const scalar>(out), pp_.rank() + 1, forward_only_tag);
  }

  struct hooks {
    trainer& self;
    void forward_done(int, int microbatch, int slot) {
      if (self.is_last_stage()) self.losses_[static_cast<std::size_t>(microbatch)] = self.stage_.loss_sum(slot);
    }
    void reduce_gradient(int) {}  // see compute_gradients
  };

  static double counted_targets(std::span<const std::int32_t> targets) {
    return static_cast<double>(std::count_if(targets.begin(), targets.end(), [](std::int32_t id) { return id >= 0; }));
  }

  void reduce_gradients() {
    if (pp_.size() > 1) collective("reduce tied gradients", 0, [&] { stage_.reduce_tied_gradients(); });
    if (dp_.size() > 1)
      collective("reduce gradients", stage_.gradients().size_bytes(),
                 [&] { optimizer_.reduce(dp_, stage_.gradients()); });
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
  int microbatches_;
  std::int64_t max_samples_;
  backend_type backend_;
  [[no_unique_address]] plan_type plan_;
  event now_{};  // rank and step, for collectives that the stage reports
  [[no_unique_address]] std::conditional_t<observer_type::enabled, stage_world, std::monostate> watched_;
  stage_type stage_;
  optimizer<scalar, typename Strategy::zero> optimizer_;
  executor<stage_type, communicator_along<pp>, observer_type> executor_;
  std::int64_t step_ = 0;
  std::int64_t consumed_ = 0;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> targets_;
  std::vector<batch_type> batches_;
  std::vector<double> losses_;
  buffer<scalar> boundary_in_;
  buffer<scalar> boundary_out_;
};

}  // namespace heddle::inline v0::train
