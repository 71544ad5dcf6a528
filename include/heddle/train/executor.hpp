// heddle/train/executor.hpp: runs one rank's list of a lowered action table against the stages the rank holds.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/schedule/plan.hpp>
#include <heddle/tensor/buffer.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// One pipeline stage as an executor sees it. `forward(slot, batch, in, out)` saves what the backward needs in `slot`;
/// `backward(slot, batch, dout, din)`, or `backward_input` and later `backward_weight(slot, batch)`, use it. A stage does
/// not keep `in`, `out`, `dout` or `din` after the call. `boundary_elements(samples)` is the size of the tensor between stages.
template <class S, class Batch>
concept pipeline_stage =
    requires(S s, const Batch& b, std::span<const typename S::scalar> in, std::span<typename S::scalar> out) {
      typename S::scalar;
      { s.boundary_elements(b.samples) } -> std::convertible_to<std::int64_t>;
      s.forward(0, b, in, out);
      s.backward(0, b, in, out);
      s.backward_input(0, b, in, out);
      s.backward_weight(0, b);
    };

/// What an executor did in one step, counted; compare with `schedule::sends` and `schedule::peak_live`.
struct executor_counters {
  std::int64_t sends = 0;
  std::int64_t bytes_sent = 0;
  int peak_live = 0;  ///< microbatches whose activations were held at the same time
};

/// Runs any valid lowered table: receives are posted where the table has them and waited for where their data is used;
/// sends run on while the rank computes, as many at a time as the storage plan allows.
/// Boundary buffers and saved slots are those of the plan (`schedule::make_plan`), allocated once.
///
/// Shapes: a boundary buffer holds the boundary tensor of the largest microbatch; microbatches may differ in size, both
/// sides compute it from the same batches. Errors: `schedule_error` if the table names a stage that is not here.
template <class Stage, communicator Communicator, observer Observer = null_observer>
class executor {
 public:
  using scalar = typename Stage::scalar;

  /// `stages[s]` is stage s of the pipeline if this rank holds it, null otherwise. `pipeline` joins the ranks of this
  /// pipeline; `world_rank_of[r]` is the world rank of its rank r, for the record only, and may be empty.
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
    std::int64_t largest = 0;
    for (const schedule::action& a : table_.list(rank)) {
      const auto s = static_cast<std::size_t>(a.stage);
      if (s >= stages_.size() || stages_[s] == nullptr)
        throw schedule_error("heddle: pipeline rank " + std::to_string(rank) + " is to run stage " +
                             std::to_string(a.stage) + ", which it does not hold");
      largest =
          (std::max)(largest, static_cast<std::int64_t>(stages_[s]->boundary_elements(static_cast<int>(max_samples))));
    }
    const auto buffers = static_cast<std::size_t>(storage_.buffers(rank));
    boundary_.reserve(buffers);
    for (std::size_t i = 0; i < buffers; ++i) boundary_.emplace_back(largest);
    received_.resize(buffers);
    under_way_.resize(static_cast<std::size_t>(storage_.sends_in_flight()) + 1);
  }

  /// Runs the list once. `batches[i]` is microbatch i on this rank. `hooks.forward_done(stage, microbatch, slot)` is
  /// called after each F, while the slot is the microbatch's, and `hooks.reduce_gradient(stage)` at REDUCE_GRAD.
  /// `step` is for the record. Errors: whatever stages, hooks and the communicator throw.
  template <class Batch, class Hooks>
    requires pipeline_stage<Stage, Batch>
  void run(std::span<const Batch> batches, int step, Hooks&& hooks) {
    using schedule::action_kind;
    const int rank = pipeline_.rank();
    counters_ = {};
    int live = 0;
    const auto list = table_.list(rank);
    const auto places = storage_.actions().subspan(static_cast<std::size_t>(table_.offset(rank)), list.size());
    for (std::size_t k = 0; k < list.size(); ++k) {
      const schedule::action& a = list[k];
      const schedule::action_storage& place = places[k];
      Stage& stage = *stages_[static_cast<std::size_t>(a.stage)];
      if (a.kind == action_kind::reduce_gradient) {
        hooks.reduce_gradient(a.stage);
        continue;
      }
      if (schedule::is_per_stage(a.kind)) continue;  // OPTIM is the trainer's, once all stages are reduced
      const Batch& batch = batches[static_cast<std::size_t>(a.microbatch)];
      const std::int64_t elements = stage.boundary_elements(batch.samples);
      switch (a.kind) {
        case action_kind::recv_forward:
        case action_kind::recv_backward:
          received_[static_cast<std::size_t>(place.input)] =
              receipt{pipeline_.irecv(part(place.input, elements), a.peer, tag_of(a.kind)), a, elements};
          break;
        case action_kind::send_forward:
        case action_kind::send_backward:
          start_send(a, place.output, elements, step);
          break;
        case action_kind::forward:
          arrive(place.input, step);
          observe(activity::forward, "forward", a, step, [&] {
            stage.forward(place.saved, batch, input(place.input, elements), part(place.output, elements));
          });
          hooks.forward_done(a.stage, a.microbatch, place.saved);
          counters_.peak_live = (std::max)(counters_.peak_live, ++live);
          break;
        case action_kind::backward:
          arrive(place.input, step);
          observe(activity::backward, "backward", a, step, [&] {
            stage.backward(place.saved, batch, input(place.input, elements), part(place.output, elements));
          });
          --live;
          break;
        case action_kind::backward_input:
          arrive(place.input, step);
          observe(activity::backward_input, "backward input", a, step, [&] {
            stage.backward_input(place.saved, batch, input(place.input, elements), part(place.output, elements));
          });
          break;
        case action_kind::backward_weight:
          observe(activity::backward_weight, "backward weight", a, step,
                  [&] { stage.backward_weight(place.saved, batch); });
          --live;
          break;
        default:
          break;
      }
    }
    for (std::optional<request>& r : under_way_) {
      if (r) r->wait();
      r.reset();
    }
  }

  const executor_counters& counters() const noexcept { return counters_; }
  /// Bytes of the boundary buffers on this rank.
  std::int64_t boundary_bytes() const noexcept {
    std::int64_t n = 0;
    for (const auto& b : boundary_) n += static_cast<std::int64_t>(b.size() * sizeof(scalar));
    return n;
  }

 private:
  using request = typename Communicator::request;
  struct receipt {
    request pending;
    schedule::action what;
    std::int64_t elements;
  };

  // Forward and backward traffic between two ranks are two orders of their own.
  static int tag_of(schedule::action_kind kind) noexcept {
    return kind == schedule::action_kind::send_forward || kind == schedule::action_kind::recv_forward ? 0 : 1;
  }

  std::span<scalar> part(int buffer, std::int64_t elements) {
    if (buffer < 0) return {};
    return std::span<scalar>(boundary_[static_cast<std::size_t>(buffer)].data(), static_cast<std::size_t>(elements));
  }
  std::span<const scalar> input(int buffer, std::int64_t elements) { return part(buffer, elements); }

  void start_send(const schedule::action& a, int buffer, std::int64_t elements, int step) {
    std::optional<request>& started = under_way_[next_send_ % under_way_.size()];
    const auto payload = input(buffer, elements);
    if constexpr (Observer::enabled) {
      event e = describe(activity::send,
                         a.kind == schedule::action_kind::send_forward ? "send forward" : "send backward", a, step);
      e.bytes = static_cast<std::int64_t>(payload.size_bytes());
      e.flow = flow_of(a, step);
      observed(observer_, e, [&] { started.emplace(pipeline_.isend(payload, a.peer, tag_of(a.kind))); });
    } else {
      started.emplace(pipeline_.isend(payload, a.peer, tag_of(a.kind)));
    }
    ++next_send_;
    // The plan reuses the buffer of the send before the last `sends_in_flight` ones, so that one has to be over.
    std::optional<request>& due = under_way_[next_send_ % under_way_.size()];
    if (due) {
      due->wait();
      due.reset();
    }
    ++counters_.sends;
    counters_.bytes_sent += static_cast<std::int64_t>(payload.size_bytes());
  }

  // Waits for the message that fills this buffer, if one is on its way.
  void arrive(int buffer, int step) {
    if (buffer < 0) return;
    std::optional<receipt>& r = received_[static_cast<std::size_t>(buffer)];
    if (!r) return;
    if constexpr (Observer::enabled) {
      event e = describe(activity::recv,
                         r->what.kind == schedule::action_kind::recv_forward ? "recv forward" : "recv backward",
                         r->what, step);
      e.bytes = r->elements * static_cast<std::int64_t>(sizeof(scalar));
      e.flow = flow_of(r->what, step);
      observed(observer_, e, [&] { r->pending.wait(); });
    } else {
      r->pending.wait();
    }
    r.reset();
  }

  template <class Work>
  void observe(activity kind, const char* name, const schedule::action& a, int step, Work&& work) {
    observed(observer_, describe(kind, name, a, step), std::forward<Work>(work));
  }

  int world_rank(int pipeline_rank) const noexcept {
    const auto i = static_cast<std::size_t>(pipeline_rank);
    return i < world_rank_of_.size() ? world_rank_of_[i] : pipeline_rank;
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
    using schedule::action_kind;
    const bool up = tag_of(a.kind) == 0;
    const int sender = a.kind == action_kind::recv_forward    ? a.stage - 1
                       : a.kind == action_kind::recv_backward ? a.stage + 1
                                                              : a.stage;
    std::uint64_t id = static_cast<std::uint64_t>(step + 1);
    id = id * 4096 + static_cast<std::uint64_t>(world_rank(0));
    id = id * 1024 + static_cast<std::uint64_t>(sender);
    id = id * 2 + (up ? 0u : 1u);
    return id * 4096 + static_cast<std::uint64_t>(a.microbatch) + 1;
  }

  schedule::table_view table_;
  schedule::storage_view storage_;
  std::vector<Stage*> stages_;
  Communicator& pipeline_;
  Observer& observer_;
  std::vector<int> world_rank_of_;
  std::vector<buffer<scalar>> boundary_;
  std::vector<std::optional<receipt>> received_;
  std::vector<std::optional<request>> under_way_;
  std::size_t next_send_ = 0;
  executor_counters counters_;
};

}  // namespace heddle::inline v0::train
