// heddle/model/pipeline/executor.hpp: runs one rank's list of an action table on stages.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/model/pipeline/hooks.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/model/pipeline/stage.hpp>
#include <heddle/model/pipeline/table_runner.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// Runs any valid lowered table: receives are posted where the table has them and waited for where their data is used;
/// sends run on while the rank computes, as many at a time as the storage plan allows. Tables may have several stages
/// per rank, several chains, ways of their own for microbatches, split backwards, or no backwards at all.
/// The two computations of an overlapped pair run at the same time, the second on a thread beside the rank's own, where
/// their stages allow it (`companionable_stage`); the thread is there only if the rank has such a pair.
/// Boundary buffers and saved slots are those of the plan (`schedule::make_plan`), allocated once.
///
/// Boundary buffers lie in the memory of the stages (`Stage::space`, the host's if they name none). Where the host may not touch
/// it, stages work in the order of one queue, and computations have been queued when `run` returns. Messages go straight from and to
/// that memory in the order of queues, where the communicator can (`boundary_messages`, which says why nothing waits for ever); `run`
/// waits for them at its end. Elsewhere they go through buffers on the host.
///
/// Shapes: a boundary buffer holds the boundary tensor of the largest microbatch; microbatches may differ in samples and
/// in length, both sides compute the size from the same batches. Errors: `schedule_error` if the table names a stage
/// that is not here, has backwards where the stages have none or is not lowered, if the storage is another table's, or if
/// a microbatch is larger than the buffers.
template <class Stage, communicator Communicator, observer Observer = null_observer>
class executor {
 public:
  using scalar = typename detail::scalar_of_stage<Stage>::type;

  /// `stages[s]` is stage s of the pipeline if this rank holds it, null otherwise; one object may be several stages (the
  /// passes of `schedule::decode`). `pipeline` joins the ranks of this pipeline; `world_rank_of[r]` is the world rank of
  /// its rank r, for the record only, and may be empty.
  executor(schedule::plan_view plan, stage_pointers<Stage> stages, Communicator& pipeline, std::int64_t max_samples,
           Observer& observer, std::vector<int> world_rank_of = {})
      : runner_(plan, pipeline, observer, std::move(world_rank_of), forward_only), stages_(std::move(stages)) {
    const int rank = pipeline.rank();
    const auto list = plan.table.list(rank);
    std::int64_t largest = 0;
    for (const schedule::action& a : list) {
      const auto s = static_cast<std::size_t>(a.stage);
      if (s >= stages_.size() || stages_[s] == nullptr) detail::refuse_stage(rank, a.stage);
      if constexpr (has_sizes)
        largest = (std::max)(largest,
                             static_cast<std::int64_t>(stages_[s]->boundary_elements(static_cast<int>(max_samples))));
    }
    auto* const queue = queue_of_stages(list, rank);
    runner_.allocate(queue, largest, has_pairs(list));
    if constexpr (Observer::enabled && requires { observer.follow(rank, *queue); })
      if (queue != nullptr) observer.follow(runner_.world_rank(rank), *queue);
  }

  /// Runs the list once. `batches[i]` is microbatch i on this rank. `hooks.forward_done(stage, microbatch, slot)` is
  /// called after each F, while the slot is the microbatch's, and `hooks.reduce_gradient(stage)` at REDUCE_GRAD. Where
  /// the hooks have them, the other actions call `optimizer_step(stage)`, `unshard(stage)`, `reshard(stage)`,
  /// `recompute(stage, microbatch, slot)`, `offload(stage, microbatch, slot)`, `reload(stage, microbatch, slot)`;
  /// `before(const schedule::action&)` is called before each F, B, I and W, when its input is there.
  /// Hooks may have `bool validate()` and `redo()`: `validate` is called once, behind the rank's `schedule::warm_up`. If
  /// it says no, on all ranks or none, the warm-up's messages are taken in, `redo` is called, and the list begins again.
  /// `step` is for the record. Errors: whatever stages, hooks and the communicator throw.
  /// A compile error names each member that the stage lacks (`pipeline_stage`, `inference_stage`).
  template <class Batch, class Hooks>
  void run(std::span<const Batch> batches, int step, Hooks&& hooks) {
    if constexpr (has_sizes) {
      if constexpr (detail::stage_verbs_checked<Stage, Batch>()) {
        calls<Batch, std::remove_reference_t<Hooks>> all(stages_, batches, hooks);
        runner_.run(all, step, batches.size());
      }
    }
  }

  /// From here on messages are in the order of the stages' queue, where the communicator sends in that of queues, and `run` does not wait for them:
  /// one graph can have all of a run.
  void send_in_order() noexcept { runner_.send_in_order(); }
  const executor_counters& counters() const noexcept { return runner_.counters(); }
  /// Bytes of the boundary buffers on this rank.
  std::int64_t boundary_bytes() const noexcept { return runner_.boundary_bytes(); }

 private:
  using space = space_of<Stage>;
  static constexpr bool has_sizes = detail::stage_sizes_checked<Stage>();
  static constexpr bool forward_only = of_stage::forward_only<Stage>;

  // What the runner of the table asks, of these types.
  template <class Batch, class Hooks>
  class calls final : public detail::run_calls<scalar, space> {
   public:
    calls(const stage_pointers<Stage>& stages, std::span<const Batch> batches, Hooks& hooks)
        : stages_(stages), batches_(batches), hooks_(hooks) {}

    void compute(const schedule::action& a, int slot, row_view<const scalar, space> in,
                 row_view<scalar, space> out) override {
      using schedule::action_kind;
      Stage& stage = stage_of(a);
      const Batch& batch = batch_of(a);
      if (a.kind == action_kind::forward) return static_cast<void>(stage.forward(slot, batch, in, out));
      if constexpr (!forward_only) {
        if (a.kind == action_kind::backward) stage.backward(slot, batch, in, out);
        if (a.kind == action_kind::backward_input) stage.backward_input(slot, batch, in, out);
        if (a.kind == action_kind::backward_weight) stage.backward_weight(slot, batch);
      }
    }
    std::int64_t elements(const schedule::action& a, bool input) override {
      return of_stage::boundary_elements(stage_of(a), batch_of(a), input);
    }
    bool run_beside(const schedule::action& first, const schedule::action& second) override {
      return of_stage::runs_beside(stage_of(first), stage_of(second));
    }
    void before(const schedule::action& a) override { detail::call_before(hooks_, a); }
    void forward_done(const schedule::action& a, int slot) override {
      hooks_.forward_done(a.stage, a.microbatch, slot);
    }
    void other(const schedule::action& a, int slot) override {
      if (a.kind == schedule::action_kind::reduce_gradient)
        hooks_.reduce_gradient(a.stage);
      else
        detail::call_optional_hook(hooks_, a, slot);
    }
    bool validates() const override { return has_validation; }
    bool validate() override {
      if constexpr (has_validation)
        return hooks_.validate();
      else
        return true;
    }
    void redo() override {
      if constexpr (has_validation) hooks_.redo();
    }

   private:
    static constexpr bool has_validation = requires(Hooks& h) {
      { h.validate() } -> std::same_as<bool>;
      h.redo();
    };
    Stage& stage_of(const schedule::action& a) const { return *stages_[static_cast<std::size_t>(a.stage)]; }
    const Batch& batch_of(const schedule::action& a) const { return batches_[static_cast<std::size_t>(a.microbatch)]; }

    const stage_pointers<Stage>& stages_;
    std::span<const Batch> batches_;
    Hooks& hooks_;
  };

  // Whether two computations of this list may run at the same time.
  bool has_pairs([[maybe_unused]] std::span<const schedule::action> list) const {
    if constexpr (companionable_stage<Stage>) {
      for (std::size_t k = 0; k + 1 < list.size(); ++k)
        if (list[k].overlaps_next && schedule::is_compute(list[k + 1].kind) &&
            of_stage::runs_beside(*stages_[static_cast<std::size_t>(list[k].stage)],
                                  *stages_[static_cast<std::size_t>(list[k + 1].stage)]))
          return true;
    }
    return false;
  }
  // Elsewhere than on the host all stages here work in the order of one queue.
  typename space::queue* queue_of_stages([[maybe_unused]] std::span<const schedule::action> list,
                                         [[maybe_unused]] int rank) const {
    typename space::queue* found = nullptr;
    if constexpr (!std::same_as<space, host_memory>)
      for (const schedule::action& a : list) {
        auto* const queue = &stages_[static_cast<std::size_t>(a.stage)]->queue();
        if (found != nullptr && found != queue) detail::refuse_queues(rank);
        found = queue;
      }
    return found;
  }

  detail::table_runner<scalar, space, Communicator, Observer> runner_;
  stage_pointers<Stage> stages_;
};

}  // namespace heddle::inline v0::model
