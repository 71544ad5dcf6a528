// heddle/train/paper_rank.hpp: one rank on paper: memory, traffic, computation of a step.
#pragma once

#include <heddle/compute/rounded_weights.hpp>
#include <heddle/core/determinism.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/split.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/paper/backend.hpp>
#include <heddle/model/paper/memory.hpp>
#include <heddle/model/paper/trace.hpp>
#include <heddle/model/paper/world.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/activations/stage_for.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/gradient_sums.hpp>
#include <heddle/train/local_stages.hpp>
#include <heddle/train/layer_assignment.hpp>
#include <heddle/train/memory_forecast.hpp>
#include <heddle/train/optimizer_of_strategy.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/pipeline_axis.hpp>
#include <heddle/train/sharded_stages.hpp>
#include <heddle/train/stage_parts.hpp>
#include <heddle/train/step_batches.hpp>
#include <heddle/train/strategy.hpp>
#include <heddle/train/trainer_checks.hpp>
#include <heddle/train/trainer_setup.hpp>
#include <heddle/train/training_axes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// One kind of work in a step: an action of the table on one stage with so many samples.
struct paper_work {
  schedule::action_kind kind{};
  int stage = -1;
  std::int64_t samples = 0;
  bool follows = false;  ///< the computation of this microbatch before it was the last of the stage (recomputation)
  model::kernel_trace kernels{};
  std::vector<model::axis_traffic> traffic{};
};

/// A rank's step. `work_of[k]`: which `work` position k of the rank's list is; -1: none, and nothing is sent.
struct paper_rank {
  int rank = 0;           ///< of the mesh
  int pipeline_rank = 0;  ///< of the table
  std::int64_t samples = 0;
  std::int64_t parameters = 0;              ///< elements of its stages' tensors, whole along the axes that share state
  std::optional<memory_forecast> memory{};  ///< nothing where the stage type does not say its sizes
  std::vector<paper_work> work{};
  std::vector<int> work_of{};
  paper_work after{};  ///< behind the list: what is left of the gradients, the optimizer, weights that are gathered
  std::vector<model::parameter> tensors{};  ///< of its stages, with this rank's part of each

  /// Calls and bytes of a step, by axes and operation.
  std::vector<model::axis_traffic> traffic() const {
    std::vector<model::axis_traffic> all;
    for (const int k : work_of)
      if (k >= 0) model::add_traffic(all, work[static_cast<std::size_t>(k)].traffic);
    model::add_traffic(all, after.traffic);
    return all;
  }
  /// Operations of a step.
  std::int64_t flops() const {
    std::int64_t n = after.kernels.flops();
    for (const int k : work_of)
      if (k >= 0) n += work[static_cast<std::size_t>(k)].kernels.flops();
    return n;
  }
};

namespace detail {

template <bool Ok, class Model>
inline constexpr bool paper_batches_are_of_tokens = Ok;
template <bool Ok, class Strategy>
inline constexpr bool paper_keeps_activations = Ok;
template <bool Ok, class Strategy>
inline constexpr bool paper_sums_by_calls = Ok;

// The types of a strategy on paper.
template <class Model, class Strategy>
struct on_paper {
  using mesh_type = typename Strategy::mesh;
  using pipeline = typename Strategy::pipeline;
  using world_type = model::paper_world<mesh_type>;
  using backend_type = model::paper_backend<typename Strategy::backend>;
  using stage_type = stage_for<Model, world_type, backend_type, typename Strategy::activations, pipeline>;
  // That of the strategy's own backend: it says its sizes, and is not made.
  using sized_type = stage_for<Model, world_type, typename Strategy::backend, typename Strategy::activations, pipeline>;
  using scalar = typename Model::scalar;
  using axes = training_axes<stage_type, mesh_type, pipeline>;
  static constexpr int buckets = served_buckets<stage_type>;
  using groups_type = gradient_groups<world_type, axes, buckets>;
  using optimizer_of_bucket = optimizer_under<scalar, Strategy, model::paper_memory>;
  using optimizer_type = bucketed<optimizer_of_bucket, buckets>;
  using held_type = local_stages<stage_type, optimizer_type>;
  static_assert(
      axes::ok && paper_keeps_activations<!reloads<typename Strategy::activations>, Strategy>,
      "heddle: a policy that moves activations elsewhere (activations::offload) has nowhere to move them to on "
      "paper: take activations::keep or recompute");
  static_assert(
      paper_sums_by_calls<Strategy::determinism::asked != determinism::level::mesh_to_mesh, Strategy>,
      "heddle: on paper gradients are summed by calls of communicators, and those of determinism::mesh_to_mesh by "
      "messages; leave it out there");
  using batch = typename Model::batch;
  static constexpr bool of_documents = takes_documents<batch>;
  static constexpr bool of_tokens = of_documents || std::is_same_v<batch, model::batch<scalar>>;
};

// Documents of the whole context, whatever they say.
struct whole_documents {
  std::int64_t count, tokens;
  std::int64_t documents() const noexcept { return count; }
  std::int64_t length(std::int64_t) const noexcept { return tokens; }
  static void fill(std::int64_t, std::int64_t, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
    std::fill(inputs.begin(), inputs.end(), 0);
    std::fill(targets.begin(), targets.end(), 0);
  }
};
struct no_documents {};

}  // namespace detail

/// The step of a strategy, whose ranks are looked at one by one: the schedule is lowered once.
/// The code that runs is that of a trainer: stages, optimizers, sums of gradients and gathers of weights, on a `paper_world`
/// with a `paper_backend`. Each kind of action runs once; the table says how often. Messages between stages follow from the
/// table. What the host reads (losses, norms) is not counted, nor are clipping and validation.
template <class Model, class Strategy>
class paper_step {
  using types = detail::on_paper<Model, Strategy>;

 public:
  using mesh_type = typename Strategy::mesh;
  using options_type = train::options<typename Model::config, any_learning_rate>;
  using plan_type = decltype(detail::lower_for<Strategy>(std::declval<typename Strategy::schedule>(),
                                                         std::declval<const mesh_type&>()));

  /// Errors: as a trainer's constructor, for options, schedule and mesh that do not go together.
  paper_step(const options_type& o, const mesh_type& mesh)
      : options_(detail::checked_options<Strategy>(o)),
        mesh_(mesh),
        plan_(detail::lower_for<Strategy>(detail::make_schedule<typename Strategy::schedule>(options_), mesh,
                                          detail::reloads_with<typename Strategy::activations>(options_))),
        parts_(detail::make_schedule<typename Strategy::schedule>(options_), detail::trained(table())),
        microbatches_(detail::checked_microbatches(options_, table().microbatches())),
        shares_(detail::size_along(mesh, typename types::axes::shares{})),
        max_samples_(step_batches<typename Model::batch>::most_samples(
            options_, shares_, microbatches_, detail::size_along(mesh, typename types::axes::context{}))) {
    types::axes::require_known(mesh);
  }

  const options_type& options() const noexcept { return options_; }
  const mesh_type& mesh() const noexcept { return mesh_; }
  schedule::plan_view plan() const noexcept { return plan_; }
  schedule::table_view table() const noexcept { return plan().table; }
  const stage_parts& parts() const noexcept { return parts_; }
  int pipeline_rank(int rank) const noexcept {
    if constexpr (mesh_type::template has<typename Strategy::pipeline>)
      return mesh_.template coordinate<typename Strategy::pipeline>(rank);
    else
      return 0;
  }
  /// Samples of a step on this rank.
  std::int64_t samples(int rank) const noexcept {
    typename types::world_type world(mesh_, rank);
    const auto& ranks = detail::group_along(world, typename types::axes::shares{});
    return balanced_split{options_.batch, ranks.size()}.size(ranks.rank());
  }

  /// What the rank will hold: `bytes_held` of its trainer; nothing where the stage type does not say its sizes.
  std::optional<memory_forecast> memory(int rank) const {
    typename types::world_type world(mesh_, rank);
    auto&& shares = types::groups_type::of(world);
    using groups = std::remove_reference_t<decltype(shares)>;
    const forecast_facts<options_type, typename types::world_type, groups> facts{options_,
                                                                                 plan(),
                                                                                 parts_,
                                                                                 world,
                                                                                 shares,
                                                                                 pipeline_rank(rank),
                                                                                 max_samples_,
                                                                                 Strategy::steps::captured,
                                                                                 rounded_per_weight()};
    return predicted_memory<Model, Strategy, typename types::sized_type>(facts);
  }

  /// The rank's step. Errors: `config_error` for a model that does not divide over the mesh.
  paper_rank rank(int rank) const {
    static_assert(detail::paper_batches_are_of_tokens<types::of_tokens, Model>,
                  "heddle: a step on paper is of a language model, whose batches are tokens and targets");
    return run(*this, rank).result();
  }

 private:
  // Of copies that a backend keeps for the products of a step.
  static constexpr std::int64_t rounded_per_weight() noexcept {
    using computes = typename Strategy::backend;
    constexpr bool keeps =
        compute::weight_keeper<computes, typename types::scalar> && requires(const computes& b) { b.kept_weights(); };
    return keeps ? static_cast<std::int64_t>(sizeof(bf16)) : 0;
  }

  // One rank while its step is looked at.
  class run {
    using kind = schedule::action_kind;
    using scalar = typename types::scalar;
    using stage_type = typename types::stage_type;
    using row = buffer<scalar, model::paper_memory>;
    using batches_type =
        std::conditional_t<types::of_documents, step_batches<typename types::batch>, detail::no_documents>;
    static constexpr auto run_it = [](const char*, std::size_t, auto&& work, auto&...) { work(); };

   public:
    run(const paper_step& of, int rank)
        : step_(of),
          list_(of.table().list(of.pipeline_rank(rank))),
          world_(of.mesh_, rank),
          groups_(types::groups_type::of(world_)),
          held_(
              of.table(), of.parts_, of.pipeline_rank(rank),
              [&](int stage, stage_type* lender) { return make(stage, lender); }, groups_),
          sharded_(held_, groups_, of.table(), of.pipeline_rank(rank)),
          sums_(held_, pipeline(), groups_, backend_),
          batches_(make_batches()) {
      all_.rank = rank;
      all_.pipeline_rank = of.pipeline_rank(rank);
      all_.samples = of.samples(rank);
      all_.memory = of.memory(rank);
      std::int64_t boundary = 0;
      held_.for_each([&](auto& h) {
        add_tensors(h.stage.parameters());
        add_tensors(h.stage.frozen_parameters());
        boundary = (std::max)(boundary, h.stage.boundary_elements(of.max_samples_));
        detail::start_optimizer(h, backend_, of.options_.seed);
      });
      in_ = row(backend_.queue(), boundary);
      out_ = row(backend_.queue(), boundary);
      if constexpr (!types::of_documents)
        ids_.assign(static_cast<std::size_t>(of.max_samples_ * of.options_.model.context), 0);
    }

    paper_rank result() {
      world_.clear();
      backend_.trace().clear();
      held_.for_each([](auto& h) { h.stage.zero_gradients(); });
      sums_.begin();
      all_.after.kernels = std::exchange(backend_.trace(), {});
      load();
      const std::vector<model::axis_traffic> before = take_traffic();
      for (std::size_t k = 0; k < list_.size(); ++k) all_.work_of.push_back(look_at(k));
      sums_.finish(run_it);
      held_.for_each([&](auto& h) { step_bytes(h); });
      sharded_.gather_updated(run_it);
      all_.after.traffic = take_traffic();
      model::add_traffic(all_.after.traffic, before);
      const model::kernel_trace behind = std::exchange(backend_.trace(), {});  // kept while its calls are read
      for (const model::kernel_calls& k : behind.kernels())
        for (std::int64_t i = 0; i < k.calls; ++i) all_.after.kernels.note(k.name, k.flops, k.bytes);
      return std::move(all_);
    }

   private:
    auto& pipeline() { return world_.template along_if<typename Strategy::pipeline>(); }
    stage_type make(int stage, stage_type* lender) {
      auto layers = detail::assigned_layers<typename Strategy::layers, Model>(
          step_.options_.model, step_.parts_.part_of(stage), step_.parts_.parts(), step_.parts_.parts_with_layers(),
          step_.options_.layers_per_stage);
      detail::complete_layers<Strategy::zero::stage>(layers, step_.parts_.replica_of(stage));
      return detail::make_stage<stage_type>(step_.options_, world_, backend_, layers, slots_of(stage),
                                            step_.max_samples_, detail::most_deferred(list_, stage), lender, list_,
                                            stage);
    }
    int slots_of(int stage) const { return step_.plan().storage.slots(stage); }
    void add_tensors(const std::vector<model::parameter>& of_stage) {
      for (const model::parameter& p : of_stage) all_.parameters += p.count;
      all_.tensors.insert(all_.tensors.end(), of_stage.begin(), of_stage.end());
    }
    // The optimizer's step reads gradients and reads and writes this rank's state and weights.
    template <class Held>
    void step_bytes(Held& h) {
      std::int64_t owned = 0;
      detail::for_each_bucket(h.stage, h.optimizer, [&](auto&, const auto& optimizer, auto) {
        owned += optimizer.owned_end() - optimizer.owned_begin();
      });
      all_.after.kernels.note("optimizer", 0,
                              owned * static_cast<std::int64_t>(2 * sizeof(scalar) + sizeof(sum_of_type<scalar>)) +
                                  2 * h.optimizer.state_bytes());
    }

    std::vector<model::axis_traffic> take_traffic() {
      std::vector<model::axis_traffic> now = world_.traffic();
      std::erase_if(now, [](const model::axis_traffic& t) {
        return std::all_of(t.counters.by_operation.begin(), t.counters.by_operation.end(),
                           [](const auto& o) { return o.calls == 0; });
      });
      world_.clear();
      return now;
    }
    // Rows of documents, where these are what is trained on.
    std::int64_t samples_of(int microbatch) const {
      if constexpr (types::of_documents)
        return batches_.all()[static_cast<std::size_t>(microbatch)].samples;
      else
        return balanced_split{all_.samples, step_.microbatches_}.size(microbatch);
    }
    batches_type make_batches() {
      if constexpr (types::of_documents) {
        using balance = typename batches_type::balance;
        const bool waves = Strategy::zero::stage >= 3 || pipeline().size() > 1;  // as a trainer's
        return batches_type(step_.table(), step_.parts_, step_.pipeline_rank(world_.rank()), step_.max_samples_,
                            detail::group_along(world_, typename types::axes::context{}), step_.options_,
                            waves ? balance::waves : balance::steps,
                            model::recompute_plan_of(detail::settings_of<stage_type>(step_.options_, {}, 0)).tail);
      } else {
        return {};
      }
    }
    void load() {
      if constexpr (types::of_documents) {
        auto&& shares = detail::group_along(world_, typename types::axes::shares{});
        const balanced_split of{step_.options_.batch, shares.size()};
        batches_.load(detail::whole_documents{step_.options_.batch, step_.options_.model.context},
                      {0, step_.options_.batch}, {of.offset(shares.rank()), all_.samples});
      }
    }
    // The first microbatch that is as this one.
    int like(int microbatch) const {
      if constexpr (types::of_documents) {
        const auto& waves = batches_.waves();
        const auto places = [&](int m) {
          std::vector<std::vector<int>> all;
          if (m < static_cast<int>(waves.size()))
            for (const auto& d : waves[static_cast<std::size_t>(m)].documents) all.push_back(d.ranks);
          return all;
        };
        for (int m = 0; m < microbatch; ++m)
          if (places(m) == places(microbatch)) return m;
        return microbatch;
      } else {
        return 0;
      }
    }
    // Whether nothing else was computed on the stage between an action and the one before it on its microbatch.
    bool follows(std::size_t k) const {
      for (std::size_t i = k; i-- > 0;) {
        const schedule::action& a = list_[i];
        if (a.stage != list_[k].stage || !(a.kind == kind::forward || a.kind == kind::recompute ||
                                           a.kind == kind::backward || a.kind == kind::backward_input))
          continue;
        return a.microbatch == list_[k].microbatch;
      }
      return true;
    }

    int look_at(std::size_t k) {
      const schedule::action& a = list_[k];
      paper_work w{a.kind, a.stage, samples_of(a.microbatch), false, {}, {}};
      switch (a.kind) {
        case kind::backward:
        case kind::backward_input:
          w.follows = stage_type::recomputes && follows(k);
          [[fallthrough]];
        case kind::forward:
        case kind::backward_weight:
        case kind::recompute:
          sharded_.before(a, run_it);
          for (std::size_t i = 0; i < all_.work.size(); ++i)
            if (const paper_work& b = all_.work[i];
                b.kind == w.kind && b.stage == w.stage && b.samples == w.samples && b.follows == w.follows &&
                likes_[i] == like(a.microbatch))
              return static_cast<int>(i);
          if constexpr (types::of_tokens) compute(held_.at(a.stage).stage, w, a.microbatch);
          return add(std::move(w), like(a.microbatch));
        case kind::send_forward:
        case kind::send_backward:
          pipeline().send(backend_.queue(), boundary(a), 0);
          break;
        case kind::recv_forward:
        case kind::recv_backward:
          pipeline().recv(backend_.queue(), boundary(a), 0);
          break;
        case kind::unshard:
          w.samples = 0;
          sharded_.unshard(a.stage, run_it);
          break;
        case kind::reshard:
          sharded_.reshard(a.stage);
          return -1;
        case kind::reduce_gradient:
          w.samples = 0;
          sums_.complete(a.stage, run_it);
          break;
        default:
          return -1;
      }
      take(w);
      for (std::size_t i = 0; i < all_.work.size(); ++i)
        if (const paper_work& b = all_.work[i];
            b.kind == w.kind && b.stage == w.stage && b.samples == w.samples && same(b.traffic, w.traffic))
          return static_cast<int>(i);
      return add(std::move(w), 0);
    }
    int add(paper_work&& w, int of) {
      all_.work.push_back(std::move(w));
      likes_.push_back(of);
      return static_cast<int>(all_.work.size()) - 1;
    }
    typename types::batch batch_of(const paper_work& w, [[maybe_unused]] int microbatch) const {
      if constexpr (types::of_documents) {
        return batches_.all()[static_cast<std::size_t>(microbatch)];
      } else {
        typename types::batch batch{};
        const auto n = static_cast<std::size_t>(w.samples * step_.options_.model.context);
        batch.tokens = std::span<const std::int32_t>(ids_).first(n);
        batch.targets = std::span<const std::int32_t>(ids_).first(n);
        batch.samples = static_cast<int>(w.samples);
        return batch;
      }
    }
    static bool same(const std::vector<model::axis_traffic>& a, const std::vector<model::axis_traffic>& b) {
      return std::equal(
          a.begin(), a.end(), b.begin(), b.end(), [](const model::axis_traffic& x, const model::axis_traffic& y) {
            return x.axes == y.axes && std::equal(x.counters.by_operation.begin(), x.counters.by_operation.end(),
                                                  y.counters.by_operation.begin(), [](const auto& p, const auto& q) {
                                                    return p.calls == q.calls && p.bytes == q.bytes;
                                                  });
          });
    }
    auto boundary(const schedule::action& a) {
      const std::int64_t n = held_.at(a.stage).stage.boundary_elements(samples_of(a.microbatch));
      return row_at<model::paper_memory>(in_.address(), n);
    }

    // Runs the action on a microbatch of its own: what comes before it is not counted.
    void compute(stage_type& stage, paper_work& w, int microbatch) {
      const typename types::batch batch = batch_of(w, microbatch);
      const auto rows = [&](row& of) {
        return row_at<model::paper_memory>(of.address(), stage.boundary_elements(w.samples));
      };
      const auto in = rows(in_), out = rows(out_);
      const auto from_here = [&] {
        world_.clear();
        backend_.trace().clear();
      };
      from_here();
      stage.forward(0, batch, in, out);
      if (w.kind == kind::forward) take(w);
      const bool another = stage_type::recomputes && !w.follows && slots_of(w.stage) > 1;
      if (another) stage.forward(1, batch, in, out);
      if (w.kind == kind::backward_weight) stage.backward_input(0, batch, in, out);
      from_here();
      if (w.kind == kind::backward) stage.backward(0, batch, in, out);
      if (w.kind == kind::backward_input) stage.backward_input(0, batch, in, out);
      if (w.kind == kind::backward_weight) stage.backward_weight(0, batch);
      if (w.kind == kind::recompute) stage.recompute(0);
      if (w.kind != kind::forward) take(w);
      if (w.kind == kind::backward_input) stage.backward_weight(0, batch);
      if (w.kind == kind::forward || w.kind == kind::recompute) stage.release(0);
      if (another) stage.release(1);
      from_here();
    }
    void take(paper_work& w) {
      w.kernels = std::exchange(backend_.trace(), {});
      w.traffic = take_traffic();
    }

    const paper_step& step_;
    paper_rank all_{};
    std::vector<int> likes_{};  // of each work: the first microbatch that is as its own
    std::span<const schedule::action> list_;
    typename types::world_type world_;
    typename types::backend_type backend_{};
    typename types::groups_type::type groups_;
    typename types::held_type held_;
    sharded_stages<typename types::held_type, typename types::groups_type::group> sharded_;
    gradient_sums<typename types::held_type, typename types::world_type::communicator,
                  typename types::groups_type::group, typename types::backend_type>
        sums_;
    batches_type batches_;
    row in_{}, out_{};
    std::vector<std::int32_t> ids_{};
  };

  options_type options_;
  mesh_type mesh_;
  plan_type plan_;
  stage_parts parts_;
  int microbatches_;
  int shares_;
  std::int64_t max_samples_;
};

}  // namespace heddle::inline v0::train
