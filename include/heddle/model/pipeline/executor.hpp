// heddle/model/pipeline/executor.hpp: runs one rank's list of a lowered action table against the stages the rank holds.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/model/pipeline/boundary_memory.hpp>
#include <heddle/model/pipeline/boundary_messages.hpp>
#include <heddle/model/pipeline/companion.hpp>
#include <heddle/model/pipeline/hooks.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/model/pipeline/stage.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/generate/warm_up.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// What an executor did in one step, counted; compare with `schedule::sends` and `schedule::peak_live`.
struct executor_counters {
  std::int64_t sends = 0;
  std::int64_t bytes_sent = 0;
  int peak_live = 0;   ///< microbatches whose activations were held at the same time
  int overlapped = 0;  ///< pairs of computations that ran at the same time
};

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
  executor(schedule::plan_view plan, std::vector<Stage*> stages, Communicator& pipeline, std::int64_t max_samples,
           Observer& observer, std::vector<int> world_rank_of = {})
      : table_(plan.table),
        storage_(plan.storage),
        stages_(std::move(stages)),
        pipeline_(pipeline),
        observer_(observer),
        world_rank_of_(std::move(world_rank_of)) {
    const int rank = pipeline.rank();
    if (table_.ranks() != pipeline.size())
      throw schedule_error("heddle: the schedule's table is for " + std::to_string(table_.ranks()) +
                           " pipeline ranks, the pipeline has " + std::to_string(pipeline.size()));
    if (!storage_.fits(table_))
      throw schedule_error("heddle: the plan's storage is not of its table; make both with schedule::make_plan");
    if (!table_.has_transfers() && schedule::sends(table_) > 0)
      throw schedule_error(
          "heddle: the plan's table has no sends and receives, but stages on several ranks; lower it with "
          "schedule::lower, or let schedule::make_plan do so");
    if constexpr (forward_only) {
      if (!table_.forward_only())
        throw schedule_error("heddle: the schedule's table has backwards, the stages are forward-only");
    }
    for (const schedule::action& a : table_.list(rank)) {
      const auto s = static_cast<std::size_t>(a.stage);
      if (s >= stages_.size() || stages_[s] == nullptr)
        throw schedule_error("heddle: pipeline rank " + std::to_string(rank) + " is to run stage " +
                             std::to_string(a.stage) + ", which it does not hold");
      if constexpr (has_sizes)
        largest_ = (std::max)(largest_,
                              static_cast<std::int64_t>(stages_[s]->boundary_elements(static_cast<int>(max_samples))));
    }
    const auto buffers = static_cast<std::size_t>(storage_.buffers(rank));
    if constexpr (queued)
      boundary_.allocate(queue_of_stages(rank), buffers, largest_, pipeline, table_.forward_only() ? 1 : 2);
    else
      boundary_.allocate(queue_of_stages(rank), buffers, largest_);
    received_.resize(buffers);
    under_way_.resize(static_cast<std::size_t>(storage_.sends_in_flight()) + 1);
    if (needs_companion(rank)) companion_ = std::make_unique<companion>();
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
      if constexpr (detail::stage_verbs_checked<Stage, Batch>()) run_checked(batches, step, hooks);
    }
  }

  const executor_counters& counters() const noexcept { return counters_; }
  /// Bytes of the boundary buffers on this rank.
  std::int64_t boundary_bytes() const noexcept { return boundary_.bytes(); }

 private:
  using space = space_of<Stage>;
  static constexpr bool has_sizes = detail::stage_sizes_checked<Stage>();
  static constexpr bool forward_only = of_stage::forward_only<Stage>;
  static constexpr bool queued = detail::messages_are_queued<Communicator, space>();
  struct queued_request {  // what follows waits by itself
    static void wait() noexcept {}
    static bool test() noexcept { return true; }
  };
  using request = std::conditional_t<queued, queued_request, typename Communicator::request>;
  struct receipt {
    request pending;
    schedule::action what;
    std::int64_t elements;
  };
  struct sending {
    request pending;
    schedule::action what;
  };

  template <class Batch, class Hooks>
  void run_checked(std::span<const Batch> batches, int step, Hooks& hooks) {
    const int rank = pipeline_.rank();
    if (batches.size() != static_cast<std::size_t>(table_.microbatches())) refuse_batches(batches.size());
    start_counting();
    const std::size_t end = table_.list(rank).size();
    if constexpr (validates<Hooks>) {
      if (!warm_up_) warm_up_ = schedule::warm_up_of(table_, rank);
      const auto warm = static_cast<std::size_t>(warm_up_->entries);
      run_entries(0, warm, batches, step, hooks);
      if (!hooks.validate()) {
        take_in_warm_up(batches, step);
        hooks.redo();
        start_counting();
        run_entries(0, warm, batches, step, hooks);
      }
      run_entries(warm, end, batches, step, hooks);
    } else {
      run_entries(0, end, batches, step, hooks);
    }
    finish_sends(step);
    boundary_.finish();
  }

  template <class Hooks>
  static constexpr bool validates = requires(Hooks& h) {
    { h.validate() } -> std::same_as<bool>;
    h.redo();
  };

  void start_counting() noexcept {
    counters_ = {};
    live_ = 0;
  }
  void finish_sends(int step) {
    for (std::optional<sending>& s : under_way_) finish_send(s, step);
  }

  template <class Batch, class Hooks>
  void run_entries(std::size_t begin, std::size_t end, std::span<const Batch> batches, int step, Hooks& hooks) {
    const int rank = pipeline_.rank();
    const auto list = table_.list(rank);
    const auto places = storage_.actions().subspan(static_cast<std::size_t>(table_.offset(rank)), list.size());
    for (std::size_t k = begin; k < end; ++k) {
      const schedule::action& a = list[k];
      if (schedule::is_compute(a.kind)) {
        const task<Batch> first = task_of(a, places[k], batches);
        if (a.overlaps_next && k + 1 < list.size() && schedule::is_compute(list[k + 1].kind)) {
          const task<Batch> second = task_of(list[k + 1], places[k + 1], batches);
          arrive(first.place->input, step);
          arrive(second.place->input, step);
          before_compute(first);
          before_compute(second);
          detail::call_before(hooks, a);
          detail::call_before(hooks, list[k + 1]);
          if (companion_ && of_stage::runs_beside(*first.stage, *second.stage)) {
            compute_together(first, second, step);
          } else {
            compute(first, step);
            compute(second, step);
          }
          after_compute(first);
          after_compute(second);
          began(first, hooks);
          began(second, hooks);
          ended(first);
          ended(second);
          ++k;
        } else {
          arrive(first.place->input, step);
          before_compute(first);
          detail::call_before(hooks, a);
          compute(first, step);
          after_compute(first);
          began(first, hooks);
          ended(first);
        }
      } else if (schedule::is_recv(a.kind)) {
        const std::int64_t elements = elements_sent(a, batches);
        received_[static_cast<std::size_t>(places[k].input)] =
            receipt{start_receive(a, places[k].input, elements), a, elements};
      } else if (schedule::is_send(a.kind)) {
        start_send(a, places[k].output, elements_sent(a, batches), step);
      } else if (a.kind == schedule::action_kind::reduce_gradient) {
        hooks.reduce_gradient(a.stage);
      } else {
        detail::call_optional_hook(hooks, a, places[k].saved);
      }
    }
  }

  // Receives, and drops, all that the other ranks' warm-ups send here and the own one has not used.
  template <class Batch>
  void take_in_warm_up(std::span<const Batch> batches, int step) {
    const auto list = table_.list(pipeline_.rank());
    std::vector<buffer<scalar>> room;
    std::vector<receipt> late;
    room.reserve(warm_up_->sent_early.size());
    for (const int k : warm_up_->sent_early) {
      const schedule::action& a = list[static_cast<std::size_t>(k)];
      const std::int64_t elements = elements_sent(a, batches);
      if constexpr (queued) {
        boundary_.drop(elements, a.peer, tag_of(a.kind));
      } else {
        const std::span<scalar> to(room.emplace_back(elements));
        late.push_back(receipt{pipeline_.irecv(to, a.peer, tag_of(a.kind)), a, elements});
      }
    }
    for (std::size_t i = 0; i < received_.size(); ++i) arrive(static_cast<int>(i), step);
    for (receipt& r : late) finish_receive(r, step);
    finish_sends(step);
  }

  // One computation, with all it works on.
  template <class Batch>
  struct task {
    const schedule::action* what;
    const schedule::action_storage* place;
    Stage* stage;
    const Batch* batch;
    std::int64_t read, written;  // elements
  };

  template <class Batch>
  task<Batch> task_of(const schedule::action& a, const schedule::action_storage& place,
                      std::span<const Batch> batches) {
    const bool up = a.kind == schedule::action_kind::forward;
    return {&a,
            &place,
            stages_[static_cast<std::size_t>(a.stage)],
            &batches[static_cast<std::size_t>(a.microbatch)],
            place.input < 0 ? 0 : elements_of(a, up, batches),
            place.output < 0 ? 0 : elements_of(a, !up, batches)};
  }

  // The elements of a microbatch's tensor before or behind a stage.
  template <class Batch>
  std::int64_t elements_of(const schedule::action& a, bool input, std::span<const Batch> batches) const {
    Stage& stage = *stages_[static_cast<std::size_t>(a.stage)];
    const Batch& batch = batches[static_cast<std::size_t>(a.microbatch)];
    const std::int64_t n = of_stage::boundary_elements(stage, batch, input);
    if (n > largest_) refuse_size(a, n);
    return n;
  }
  template <class Batch>
  std::int64_t elements_sent(const schedule::action& transfer, std::span<const Batch> batches) const {
    return elements_of(
        transfer,
        transfer.kind == schedule::action_kind::recv_forward || transfer.kind == schedule::action_kind::send_backward,
        batches);
  }

  [[noreturn]] void refuse_size(const schedule::action& a, std::int64_t elements) const {
    throw schedule_error("heddle: microbatch " + std::to_string(a.microbatch) + " needs " + std::to_string(elements) +
                         " elements between stages, the executor has room for " + std::to_string(largest_) +
                         "; give it more max_samples");
  }
  [[noreturn]] void refuse_batches(std::size_t given) const {
    throw schedule_error("heddle: the schedule's table is for " + std::to_string(table_.microbatches()) +
                         " microbatches, got " + std::to_string(given));
  }

  template <class Batch>
  void call(const task<Batch>& t) {
    using schedule::action_kind;
    const int slot = t.place->saved;
    const row_view<const scalar, space> in = part(t.place->input, t.read);
    const row_view<scalar, space> out = part(t.place->output, t.written);
    if (t.what->kind == action_kind::forward) return static_cast<void>(t.stage->forward(slot, *t.batch, in, out));
    if constexpr (!forward_only) {
      if (t.what->kind == action_kind::backward) t.stage->backward(slot, *t.batch, in, out);
      if (t.what->kind == action_kind::backward_input) t.stage->backward_input(slot, *t.batch, in, out);
      if (t.what->kind == action_kind::backward_weight) t.stage->backward_weight(slot, *t.batch);
    }
  }

  template <class Batch>
  void compute(const task<Batch>& t, int step) {
    if constexpr (Observer::enabled)
      observed(observer_, describe(*t.what, step), [&] { call(t); });
    else
      call(t);
  }

  // A computation and the messages of its buffers wait for each other where all of them are queued.
  template <class Batch>
  void before_compute([[maybe_unused]] const task<Batch>& t) {
    if constexpr (queued) {
      boundary_.before_compute(t.place->input);
      boundary_.before_compute(t.place->output);
    }
  }
  template <class Batch>
  void after_compute([[maybe_unused]] const task<Batch>& t) {
    if constexpr (queued) boundary_.after_compute(t.place->input, t.place->output);
  }

  // The second on the companion's thread; both are recorded here, by the rank's own.
  template <class Batch>
  void compute_together(const task<Batch>& first, const task<Batch>& second, int step) {
    ++counters_.overlapped;
    if constexpr (Observer::enabled) {
      event e = describe(*second.what, step);
      companion_->together([&] { compute(first, step); },
                           [&] {
                             e.begin_ns = now_ns();
                             call(second);
                             e.end_ns = now_ns();
                           });
      observer_.record(e);
    } else {
      companion_->together([&] { call(first); }, [&] { call(second); });
    }
  }

  bool needs_companion(int rank) const {
    if constexpr (companionable_stage<Stage>) {
      const auto list = table_.list(rank);
      for (std::size_t k = 0; k + 1 < list.size(); ++k)
        if (list[k].overlaps_next && schedule::is_compute(list[k + 1].kind) &&
            of_stage::runs_beside(*stages_[static_cast<std::size_t>(list[k].stage)],
                                  *stages_[static_cast<std::size_t>(list[k + 1].stage)]))
          return true;
    }
    return false;
  }

  // Activations are held from the beginning of F to the end of B or W; those of a pair begin and end together.
  template <class Batch, class Hooks>
  void began(const task<Batch>& t, Hooks& hooks) {
    if (t.what->kind != schedule::action_kind::forward) return;
    hooks.forward_done(t.what->stage, t.what->microbatch, t.place->saved);
    if (!table_.forward_only()) counters_.peak_live = (std::max)(counters_.peak_live, ++live_);
  }
  template <class Batch>
  void ended(const task<Batch>& t) {
    using schedule::action_kind;
    if (t.what->kind == action_kind::backward || t.what->kind == action_kind::backward_weight) --live_;
  }

  // Forward and backward traffic between two ranks are two orders of their own.
  static int tag_of(schedule::action_kind kind) noexcept {
    return kind == schedule::action_kind::send_forward || kind == schedule::action_kind::recv_forward ? 0 : 1;
  }

  row_view<scalar, space> part(int buffer, std::int64_t elements) {
    if (buffer < 0) return {};
    return boundary_.row(buffer, elements);
  }
  // Elsewhere than on the host all stages here work in the order of one queue.
  typename space::queue* queue_of_stages([[maybe_unused]] int rank) const {
    typename space::queue* found = nullptr;
    if constexpr (!std::same_as<space, host_memory>)
      for (const schedule::action& a : table_.list(rank)) {
        auto* const queue = &stages_[static_cast<std::size_t>(a.stage)]->queue();
        if (found != nullptr && found != queue)
          throw schedule_error("heddle: the stages of pipeline rank " + std::to_string(rank) +
                               " work in the order of different queues; give the stages of one rank the same backend");
        found = queue;
      }
    return found;
  }

  request start_receive(const schedule::action& a, int buffer, std::int64_t elements) {
    if constexpr (queued) {
      boundary_.receive(buffer, elements, a.peer, tag_of(a.kind));
      return {};
    } else {
      return pipeline_.irecv(boundary_.to_receive(buffer, elements), a.peer, tag_of(a.kind));
    }
  }
  template <class Payload>
  request isend(const schedule::action& a, [[maybe_unused]] int buffer, const Payload& payload) {
    if constexpr (queued) {
      boundary_.send(buffer, payload.size(), a.peer, tag_of(a.kind));
      return {};
    } else {
      return pipeline_.isend(payload, a.peer, tag_of(a.kind));
    }
  }

  void start_send(const schedule::action& a, int buffer, std::int64_t elements, int step) {
    std::optional<sending>& started = under_way_[next_send_ % under_way_.size()];
    const auto payload = boundary_.to_send(buffer, elements);
    if constexpr (Observer::enabled) {
      event e = describe(activity::send,
                         a.kind == schedule::action_kind::send_forward ? "send forward" : "send backward", a, step);
      e.bytes = static_cast<std::int64_t>(heddle::v0::detail::bytes_of_row(payload));
      e.flow = flow_of(a, step);
      observed(observer_, e, [&] { started.emplace(sending{isend(a, buffer, payload), a}); });
    } else {
      started.emplace(sending{isend(a, buffer, payload), a});
    }
    ++next_send_;
    // The plan reuses the buffer of the send before the last `sends_in_flight` ones, so that one has to be over.
    finish_send(under_way_[next_send_ % under_way_.size()], step);
    ++counters_.sends;
    counters_.bytes_sent += static_cast<std::int64_t>(heddle::v0::detail::bytes_of_row(payload));
  }

  // Waits for a send, if one is there. The wait is recorded where there is any: as a send that joins nothing (flow 0).
  void finish_send(std::optional<sending>& s, int step) {
    if (!s) return;
    if constexpr (Observer::enabled) {
      if (!s->pending.test()) {
        const bool up = s->what.kind == schedule::action_kind::send_forward;
        observed(observer_,
                 describe(activity::send, up ? "wait for send forward" : "wait for send backward", s->what, step),
                 [&] { s->pending.wait(); });
      }
    } else {
      s->pending.wait();
    }
    s.reset();
  }

  // Waits for the message that fills this buffer, if one is on its way.
  void arrive(int buffer, int step) {
    if (buffer < 0) return;
    std::optional<receipt>& r = received_[static_cast<std::size_t>(buffer)];
    if (!r) return;
    finish_receive(*r, step);
    if constexpr (!queued) boundary_.received(buffer, r->elements);
    r.reset();
  }
  void finish_receive(receipt& r, int step) {
    if constexpr (Observer::enabled) {
      event e =
          describe(activity::recv,
                   r.what.kind == schedule::action_kind::recv_forward ? "recv forward" : "recv backward", r.what, step);
      e.bytes = r.elements * static_cast<std::int64_t>(sizeof(scalar));
      e.flow = flow_of(r.what, step);
      observed(observer_, e, [&] { r.pending.wait(); });
    } else {
      r.pending.wait();
    }
  }

  int world_rank(int pipeline_rank) const noexcept {
    const auto i = static_cast<std::size_t>(pipeline_rank);
    return i < world_rank_of_.size() ? world_rank_of_[i] : pipeline_rank;
  }

  event describe(const schedule::action& computation, int step) const noexcept {
    using schedule::action_kind;
    switch (computation.kind) {
      case action_kind::forward:
        return describe(activity::forward, "forward", computation, step);
      case action_kind::backward:
        return describe(activity::backward, "backward", computation, step);
      case action_kind::backward_input:
        return describe(activity::backward_input, "backward input", computation, step);
      default:
        return describe(activity::backward_weight, "backward weight", computation, step);
    }
  }

  event describe(activity kind, const char* name, const schedule::action& a, int step) const noexcept {
    event e;
    e.kind = kind;
    e.name = name;
    e.rank = world_rank(pipeline_.rank());
    e.step = step;
    e.stage = a.stage;
    e.microbatch = a.microbatch;
    e.peer = a.peer < 0 ? -1 : world_rank(a.peer);
    return e;
  }

  // The same number on both sides of a message, different for every message of a run: which step, which pipeline (by
  // the world rank of its first member), which stage sends, which direction, which microbatch.
  std::uint64_t flow_of(const schedule::action& a, int step) const noexcept {
    const bool up = tag_of(a.kind) == 0;
    const int sender = schedule::is_recv(a.kind) ? schedule::counterpart(a, table_).stage : a.stage;
    std::uint64_t id = static_cast<std::uint64_t>(step + 1);
    id = id * 65536 + static_cast<std::uint64_t>(world_rank(0));
    id = id * static_cast<std::uint64_t>(table_.stages()) + static_cast<std::uint64_t>(sender);
    id = id * 2 + (up ? 0u : 1u);
    return id * static_cast<std::uint64_t>(table_.microbatches()) + static_cast<std::uint64_t>(a.microbatch) + 1;
  }

  schedule::table_view table_;
  schedule::storage_view storage_;
  std::vector<Stage*> stages_;
  Communicator& pipeline_;
  Observer& observer_;
  std::vector<int> world_rank_of_;
  std::conditional_t<queued, boundary_messages<scalar, space, Communicator>, boundary_memory<scalar, space>> boundary_;
  std::vector<std::optional<receipt>> received_;
  std::vector<std::optional<sending>> under_way_;
  std::int64_t largest_ = 0;  // elements that a boundary buffer holds
  std::size_t next_send_ = 0;
  int live_ = 0;
  executor_counters counters_;
  std::optional<schedule::warm_up> warm_up_;  // found when hooks ask for it
  std::unique_ptr<companion> companion_;      // only where pairs run at the same time
};

}  // namespace heddle::inline v0::model
