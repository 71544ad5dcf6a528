// heddle/train/run_state.hpp: the state of a training run on one rank, and parts of a step.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/pipeline/executor.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/tensor/expected_memory.hpp>
#include <heddle/tensor/watched_queue.hpp>
#include <heddle/train/activations/stage_for.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/eager_step.hpp>
#include <heddle/train/gradient_sums.hpp>
#include <heddle/train/local_stages.hpp>
#include <heddle/train/layer_assignment.hpp>
#include <heddle/train/memory_forecast.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/observed_world.hpp>
#include <heddle/train/optimizer_of_strategy.hpp>
#include <heddle/train/optimizer_steps.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/progress.hpp>
#include <heddle/train/report.hpp>
#include <heddle/train/sharded_stages.hpp>
#include <heddle/train/stage_parts.hpp>
#include <heddle/train/step_batches.hpp>
#include <heddle/train/step_memory.hpp>
#include <heddle/train/step_sums.hpp>
#include <heddle/train/strategy.hpp>
#include <heddle/train/trainable.hpp>
#include <heddle/train/trainer_checks.hpp>
#include <heddle/train/trainer_setup.hpp>
#include <heddle/train/training_axes.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::train::detail {

template <bool Ok, class Strategy>
inline constexpr bool documents_are_loaded_once = Ok;

/// Everything that a trainer has but its step (`step_of`), which gets this. `Model` and its stage have been checked.
template <class Model, class Strategy, class World>
struct run_state {
  using strategy = Strategy;
  using world_type = World;
  using observer_type = typename Strategy::observer;
  using stage_world = typename watched_ranks<World, observer_type>::world_type;
  using model_type = Model;
  using scalar = typename model_type::scalar;
  using mesh_type = typename Strategy::mesh;
  using backend_type = typename Strategy::backend;
  using schedule_type = typename Strategy::schedule;
  using batch_type = typename model_type::batch;
  using stage_type = stage_of_trainer<model_type, stage_world, Strategy>;
  using pipeline_axis = typename Strategy::pipeline;
  using pipeline_axes =
      std::conditional_t<mesh_type::template has<pipeline_axis>, type_list<pipeline_axis>, type_list<>>;
  using axes = training_axes<stage_type, mesh_type, pipeline_axis>;
  static_assert(axes::ok && stage_can_be_sharded<stage_type, Strategy::zero::stage>() &&
                steps_in_order<stage_type, Strategy::norm_check::steps_first>() &&
                stage_is_in_memory_of<stage_type, backend_type>() &&
                axes::template rule_fits<typename Strategy::optimizer,
                                         acts_on_whole_tensors<typename Strategy::optimizer>>());
  using space = space_of<stage_type>;
  using options_type = typename options_of_model<model_type>::type;
  static constexpr int buckets = served_buckets<stage_type>;
  using determined = detail::determined<typename Strategy::determinism>;
  using optimizer_of_bucket = optimizer_under<scalar, Strategy, space>;
  using optimizer_type = bucketed<optimizer_of_bucket, buckets>;
  using held_type = held_stage<stage_type, optimizer_type>;
  using stages_type = local_stages<stage_type, optimizer_type>;
  using plan_type = decltype(lower_for<Strategy>(std::declval<schedule_type>(), std::declval<mesh_type>()));
  template <class... Axes>
  using communicator_along = std::remove_reference_t<decltype(std::declval<World&>().template along_if<Axes...>())>;
  template <class List>
  using group_type = std::remove_reference_t<decltype(group_along(std::declval<World&>(), List{}))>;
  using groups_of_gradients = gradient_groups<World, axes, buckets>;
  // Whether samples are documents of any length, which several ranks may share.
  static constexpr bool of_documents = takes_documents<batch_type>;
  static_assert(documents_are_loaded_once<!of_documents || !Strategy::norm_check::steps_first, Strategy>,
                "heddle: with post_validation a step may be done again behind the documents of the next one, which are "
                "loaded by then: leave post_validation or the context split out");
  static constexpr bool steps_captured = [] {
    if constexpr (Strategy::steps::captured)
      return Strategy::steps::template are_captured<Strategy, stage_type, optimizer_of_bucket, World>();
    else
      return false;
  }();

  /// `text_of_memory`: what the rank is predicted to hold, once the members up to `backend` are there.
  run_state(run_position& position, World& of_run, options_type o, observer_type* observer, const schedule_type* when,
            text_of_forecast text_of_memory)
      : at(position),
        world(of_run),
        options(std::move(o)),
        watched(of_run, observer),
        gradient_ranks(groups_of_gradients::of(of_run)),
        sample_ranks(group_along(of_run, typename axes::shares{})),
        beside(group_along(of_run, typename axes::beside{})),
        // Messages of its own: whatever the caller sends along this axis cannot meet the pipeline's.
        pipeline(of_run.template along_if<pipeline_axis>().split(0, of_run.template along_if<pipeline_axis>().rank())),
        plan(
            lower_for<Strategy>(when != nullptr ? *when : make_schedule<schedule_type>(options), of_run.mesh(),
                                reloads_with<typename Strategy::activations>(options))),
        parts(when != nullptr ? stage_parts(*when, table())
                              : stage_parts(make_schedule<schedule_type>(options), table())),
        microbatches(checked_microbatches(options, table().microbatches())),
        max_samples(step_batches<batch_type>::most_samples(options, sample_ranks.size(), microbatches,
                                                          size_along(of_run.mesh(), typename axes::context{}))),
        batches(make_batches(of_run)),
        backend(backend_for<backend_type>(options, of_run.size())),
        expected(text_of_memory),
        held(
            trained(table()), parts, pipeline.rank(),
            [&](int stage, stage_type* lender) { return make_stage(stage, lender); }, gradient_ranks),
        sharded(held, gradient_ranks, table(), pipeline.rank(), steps_captured, Strategy::reductions::beside),
        gradients(held, of_run.template along_if<pipeline_axis>(), gradient_ranks, backend),
        steps(held, backend, options),
        executor(plan, held.pointers(), pipeline, max_samples, watched.observer(),
                 members_along(of_run.mesh(), of_run.rank(), pipeline_axes{})),
        losses(queue_for<space>(backend), microbatches) {
    static_cast<void>(determined::template fits<run_state>());
    axes::require_known(world.mesh());
    require_options_that_fit(world.control(), options, steps.rates(), table(), held);
    const bool passes_on = held.size() > 0 && parts.parts() > 1;
    const std::int64_t between = passes_on ? held[0].stage.boundary_elements(static_cast<int>(max_samples)) : 0;
    boundary.allocate(queue_for<space>(backend), 2, between);
    held.for_each([&](held_type& h) {
      sharded.initialize(h, options.seed);
      start_optimizer(h, backend, options.seed);
      h.gradient_factor = gradient_factor<typename Strategy::gradient_scale>(table(), parts, h.part, options.batch,
                                                                             sample_ranks.size());
    });
    if constexpr (determined::in_trees) determined::start(*this);
  }
  run_state(const run_state&) = delete;
  run_state& operator=(const run_state&) = delete;

  schedule::table_view table() const noexcept { return plan.view().table; }
  int rank_of_part(int part) const noexcept { return table().rank_of(parts.stages_of(part).front()); }
  model::sample_extents sample_extents() const noexcept { return model::extents_of_model<model_type>(options.model); }
  std::int64_t targets_of_a_step() const noexcept {
    if constexpr (of_documents)
      return batches.targets_of_step();
    else
      return options.batch * (sample_extents().targets / sample_extents().numbers_of_target);
  }

  // ---- the parts of a step, in their order ----

  step_report new_report() const { return detail::new_report(at.step, options, targets_of_a_step()); }
  /// The samples of a step.
  template <class Data>
  void load(const Data& data) {
    // Where calls run on a thread of a queue, ranks are in other steps when they are made.
    if constexpr (requires { world.mark(at.step); } &&
                  (std::is_same_v<space, host_memory> || !runs_host_code<typename space::queue>))
      world.mark(at.step);
    watched.set_step(at.step);  // what is not part of a step (validation, sampling) has none
    if constexpr (of_documents)
      batches.load(data, {at.consumed, options.batch}, share_from(at.consumed));
    else
      batches.load(data, share_from(at.consumed).first, share_from(at.consumed).count,
                   1.0 / static_cast<double>(targets_of_a_step()));
  }
  // This rank's part of the samples of a step.
  block_of_samples share_from(std::int64_t first) const {
    const balanced_split shares{options.batch, sample_ranks.size()};
    return {first + shares.offset(sample_ranks.rank()), shares.size(sample_ranks.rank())};
  }
  // Does the work of a step while a thread plans for the documents of the next one, where there are some.
  template <class Data, class Work>
  void with_next_planned([[maybe_unused]] const Data& data, Work&& work) {
    if constexpr (of_documents) {
      if (const std::int64_t next = at.consumed + options.batch; options.plan_ahead && at.step + 1 < options.steps)
        return batches.plan_beside(data, {next, options.batch}, share_from(next), work);
    }
    work();
  }
  void begin_gradients() {
    held.for_each([](held_type& h) {
      h.stage.zero_gradients();
      h.stepped = false;
    });
    gradients.begin();
  }
  /// Forward and backward of all microbatches, and every reduction of gradients. Hooks that validate need those of the step before until
  /// then, and begin them.
  template <class Hooks>
  void run_backward(const Hooks& hooks) {
    if constexpr (!requires(Hooks h) { h.validate(); }) begin_gradients();
    const passes_of_step passes(held);
    losses.begin();
    executor.run(batches.all(), static_cast<int>(at.step), sharded.hooks(hooks, observing()));
    gradients.finish(observing());
  }
  step_sums my_sums() {
    step_sums sums;
    if (counts_loss) sums.loss = losses.sum();
    if (beside.rank() == 0) sums.targets = counted_targets(held, batches);
    sums.squares = steps.squares();
    sums.stops = options.stop != nullptr && *options.stop ? 1 : 0;
    return sums;
  }
  /// All of these, and the sums over all ranks. Errors: `config_error` without targets, `numeric_error`.
  template <class Data, class Hooks>
  step_result compute_gradients(const Data& data, const Hooks& hooks) {
    load(data);
    with_next_planned(data, [&] { run_backward(hooks); });
    const step_sums mine = my_sums();
    std::array<double, 4> sums{mine.loss, mine.targets, mine.squares, mine.stops};
    const std::span<double> used(sums.data(), options.stop == nullptr ? 3 : 4);
    collective(
        "all_reduce of loss and norm", used.size_bytes(), [&] { world.control().all_reduce(used, plus{}); },
        world.control());
    at.stopped = at.stopped || sums[3] > 0;
    if constexpr (determined::in_trees) sums[2] = determined::squares(*this);
    const step_result result = result_of({sums[0], sums[1], sums[2]}, targets_of_a_step());
    refuse_no_targets(result, at.step);
    if (!result.is_finite())
      stop_nonfinite(world.control(), find_nonfinite(held, backend), at.step, result.loss, result.gradient_norm);
    return result;
  }
  double applied_scale(const step_result& r) const { return steps.coefficient(r.gradient_norm) * r.gradient_scale; }
  void step_those_left(double gradient_scale, std::int64_t step) {
    if (steps.all_stepped()) return;
    observed(watched.observer(), describe(activity::optimizer, "optimizer"),
             [&] { steps.update_others(gradient_scale, step); });
  }
  /// Brings all ranks that share weights up to date.
  void gather_weights() { sharded.gather_updated(observing()); }
  void end_step() noexcept {
    watched.set_step(-1);
    ++at.step;
    at.consumed += options.batch;
  }
  /// Clips by the global norm and takes the optimizer's step.
  void apply(const step_result& result) {
    steps.begin();
    step_those_left(applied_scale(result), at.step);
    gather_weights();
    end_step();
  }

  auto observing() noexcept {
    return [this](const char* name, std::size_t bytes, auto&& work, auto&... group) {
      this->collective(name, bytes, work, group...);
    };
  }
  // `group`: the one whose members enter a call here; none where they wait for calls that they have entered before.
  template <class Work, class... Group>
  void collective(const char* name, std::size_t bytes, Work&& work, Group&... group) {
    event e = describe(activity::collective, name);
    e.bytes = static_cast<std::int64_t>(bytes);
    if constexpr (observer_type::enabled) ((e.flow = flow_of(group)), ...);
    observed(watched.observer(), e, std::forward<Work>(work));
  }
  event describe(activity kind, const char* name) const noexcept {
    return event_of(kind, name, world.rank(), at.step);
  }

  // ---- making batches and stages ----

  // Whether ranks wait for each other between microbatches.
  auto waves_are_met() const {
    using balance = typename step_batches<batch_type>::balance;
    return Strategy::zero::stage >= 3 || pipeline.size() > 1 ? balance::waves : balance::steps;
  }
  step_batches<batch_type> make_batches(World& of_run) {
    if constexpr (of_documents)
      return step_batches<batch_type>(table(), parts, pipeline.rank(), max_samples,
                                      group_along(of_run, typename axes::context{}), options, waves_are_met(),
                                      model::recompute_plan_of(settings_of<stage_type>(options, {}, 0)).tail);
    else
      return step_batches<batch_type>(table(), parts, pipeline.rank(), max_samples, sample_extents());
  }

  stage_type make_stage(int index, stage_type* lender) {
    auto layers = assigned_layers<typename Strategy::layers, model_type>(
        options.model, parts.part_of(index), parts.parts(), parts.parts_with_layers(), options.layers_per_stage);
    complete_layers<Strategy::zero::stage, determined::in_trees>(layers, parts.replica_of(index));
    const auto list = table().list(pipeline.rank());
    return detail::make_stage<stage_type>(options, watched.world(), backend_of_next_stage(), layers,
                                          plan.view().storage.slots(index), max_samples, most_deferred(list, index),
                                          lender, list, index);
  }
  // Stages of overlapped pairs work at the same time if each has a backend of its own and none talks to others.
  backend_type& backend_of_next_stage() {
    const bool alone = std::is_same_v<space, host_memory> && beside.size() == 1 &&
                       model::companionable_stage<stage_type> && has_pairs(table().list(pipeline.rank()));
    return !alone || !std::exchange(backend_given, true) ? backend
                                                         : one_more_backend(more_backends, options, world.size());
  }

  run_position& at;
  World& world;
  options_type options;
  watched_ranks<World, observer_type> watched;
  typename groups_of_gradients::type gradient_ranks;
  group_type<typename axes::shares>& sample_ranks;  // those with other samples
  group_type<typename axes::beside>& beside;
  communicator_along<pipeline_axis> pipeline;
  bool counts_loss = is_first_along(world.mesh(), world.rank(), typename axes::repeats{});
  [[no_unique_address]] plan_type plan;
  stage_parts parts;
  int microbatches;
  std::int64_t max_samples;  // of one microbatch
  step_batches<batch_type> batches;  // ends after the backend, whose queue may copy from it yet
  backend_type backend;
  [[no_unique_address]] heddle::v0::detail::watched_by_world<World, typename space_of<backend_type>::queue> watch{
      world, compute::queue_of(backend)};
  bool backend_given = false;
  std::deque<backend_type> more_backends;  // references stay valid
  expected_memory expected;
  stages_type held;
  using gradient_group = typename groups_of_gradients::group;
  sharded_stages<stages_type, gradient_group> sharded;
  gradient_sums<stages_type, communicator_along<pipeline_axis>, gradient_group, backend_type,
                typename determined::template reductions<typename Strategy::reductions>>
      gradients;
  optimizer_steps<stages_type, backend_type, Strategy::norm_check::copies> steps;
  model::executor<stage_type, communicator_along<pipeline_axis>, observer_type> executor;
  step_losses<stage_type> losses;
  model::boundary_memory<scalar, space> boundary;
};

}  // namespace heddle::inline v0::train::detail
