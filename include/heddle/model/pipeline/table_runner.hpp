// heddle/model/pipeline/table_runner.hpp: runs a rank's list, whatever it computes.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/model/pipeline/boundary_memory.hpp>
#include <heddle/model/pipeline/boundary_messages.hpp>
#include <heddle/model/pipeline/companion.hpp>
#include <heddle/schedule/generate/warm_up.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
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

namespace detail {

// What a run of a table asks of its stages, its microbatches and its hooks: indirect calls for each action, none for each
// element.
template <class T, class Space>
class run_calls {
 public:
  /// F, B, I or W.
  virtual void compute(const schedule::action& a, int slot, row_view<const T, Space> in, row_view<T, Space> out) = 0;
  /// Elements of a microbatch's tensor before a stage (`input`) or behind it.
  virtual std::int64_t elements(const schedule::action& a, bool input) = 0;
  virtual bool run_beside(const schedule::action& first, const schedule::action& second) = 0;
  /// Before a computation, when its input is there, and after an F.
  virtual void before(const schedule::action& a) = 0;
  virtual void forward_done(const schedule::action& a, int slot) = 0;
  /// All other actions but transfers.
  virtual void other(const schedule::action& a, int slot) = 0;
  /// Whether there are `validate` and `redo`.
  virtual bool validates() const = 0;
  virtual bool validate() = 0;
  virtual void redo() = 0;

 protected:
  ~run_calls() = default;
};

// Errors: `schedule_error` for a plan that no executor of a pipeline of so many ranks can run.
HEDDLE_INLINE void require_runnable(schedule::plan_view plan, int ranks, bool forward_only);
[[noreturn]] HEDDLE_INLINE void refuse_stage(int rank, int stage);
[[noreturn]] HEDDLE_INLINE void refuse_elements(const schedule::action& a, std::int64_t elements, std::int64_t largest);
[[noreturn]] HEDDLE_INLINE void refuse_batches(int expected, std::size_t given);
[[noreturn]] HEDDLE_INLINE void refuse_queues(int rank);

// How an observer is told of what a rank of a pipeline does.
struct run_record {
  schedule::table_view table;
  std::vector<int> world_rank_of;
  int rank = 0;
  int step = 0;

  int world_rank(int pipeline_rank) const noexcept {
    const auto i = static_cast<std::size_t>(pipeline_rank);
    return i < world_rank_of.size() ? world_rank_of[i] : pipeline_rank;
  }
  event describe(activity kind, const char* name, const schedule::action& a) const noexcept;
  event describe(const schedule::action& computation) const noexcept;
  // The same number on both sides of a message, different for every message of a run: which step, which pipeline (by
  // the world rank of its first member), which stage sends, which direction, which microbatch.
  std::uint64_t flow_of(const schedule::action& a) const noexcept;
};

// Whether the observer measures what queues of the space do.
template <class Observer, class Space>
consteval bool times_messages_on() {
  if constexpr (Observer::enabled && !std::is_same_v<Space, host_memory>)
    return requires(Observer& o, const event& e, typename Space::queue& queue) {
      o.follow_messages(0, 0, queue);
      o.begin_message(e, queue);
      o.end_message(e, queue);
    };
  else
    return false;
}
// Tells an observer of the end of a message in a queue, after an error, too.
template <class Observer, class Queue>
struct told_of_message {
  Observer& to;
  event e;
  Queue& on;
  ~told_of_message() { to.end_message(e, on); }
};

// Forward and backward traffic between two ranks are two orders of their own.
constexpr int tag_of(schedule::action_kind kind) noexcept {
  return kind == schedule::action_kind::send_forward || kind == schedule::action_kind::recv_forward ? 0 : 1;
}

// What `executor` does for all stages alike: walks the list, moves messages, holds their buffers, counts. Nothing here
// depends on the types of stages, microbatches and hooks, which `run_calls` stands for.
template <class T, memory_space Space, communicator Communicator, observer Observer>
class table_runner {
 public:
  using calls = run_calls<T, Space>;

  table_runner(schedule::plan_view plan, Communicator& pipeline, Observer& observer, std::vector<int> world_rank_of,
               bool forward_only)
      : table_(plan.table),
        storage_(plan.storage),
        pipeline_(pipeline),
        observer_(observer),
        record_{plan.table, std::move(world_rank_of), pipeline.rank()} {
    require_runnable(plan, pipeline.size(), forward_only);
  }

  /// Memory for tensors between stages, `elements` each; `queue` may be null where there are none. `beside`: whether
  /// pairs of computations run at the same time.
  void allocate(typename Space::queue* queue, std::int64_t elements, bool beside);
  void run(calls& c, int step, std::size_t batches);
  /// Where messages are queued: in the order of the stages' queue, and no run waits for them (`boundary_messages::in_order`).
  void send_in_order() noexcept {
    if constexpr (queued) boundary_.in_order(true);
    in_order_ = true;
  }

  int world_rank(int pipeline_rank) const noexcept { return record_.world_rank(pipeline_rank); }
  const executor_counters& counters() const noexcept { return counters_; }
  std::int64_t boundary_bytes() const noexcept { return boundary_.bytes(); }

 private:
  using action = schedule::action;
  static constexpr bool queued = messages_are_queued<Communicator, Space>();
  struct queued_request {  // what follows waits by itself
    static void wait() noexcept {}
    static bool test() noexcept { return true; }
  };
  using request = std::conditional_t<queued, queued_request, typename Communicator::request>;
  struct receipt {
    request pending;
    action what;
    std::int64_t elements;
  };
  struct sending {
    request pending;
    action what;
  };
  // One computation, with all it works on.
  struct task {
    const action* what;
    const schedule::action_storage* place;
    std::int64_t read, written;  // elements
  };

  void start_counting() noexcept {
    counters_ = {};
    live_ = 0;
  }
  void finish_sends() {
    for (std::optional<sending>& s : under_way_) finish_send(s);
  }
  void run_entries(calls& c, std::size_t begin, std::size_t end);
  void run_pair(calls& c, const task& first, const task& second);
  void take_in_warm_up(calls& c);

  task task_of(calls& c, const action& a, const schedule::action_storage& place) {
    const bool up = a.kind == schedule::action_kind::forward;
    return {&a, &place, place.input < 0 ? 0 : elements_of(c, a, up), place.output < 0 ? 0 : elements_of(c, a, !up)};
  }
  // The elements of a microbatch's tensor before or behind a stage.
  std::int64_t elements_of(calls& c, const action& a, bool input) const {
    const std::int64_t n = c.elements(a, input);
    if (n > largest_) refuse_elements(a, n, largest_);
    return n;
  }
  std::int64_t elements_sent(calls& c, const action& transfer) const {
    return elements_of(
        c, transfer,
        transfer.kind == schedule::action_kind::recv_forward || transfer.kind == schedule::action_kind::send_backward);
  }

  void call(calls& c, const task& t) {
    c.compute(*t.what, t.place->saved, part(t.place->input, t.read), part(t.place->output, t.written));
  }
  void compute(calls& c, const task& t) {
    if constexpr (Observer::enabled)
      observed(observer_, record_.describe(*t.what), [&] { call(c, t); });
    else
      call(c, t);
  }
  void compute_together(calls& c, const task& first, const task& second);

  // A computation and the messages of its buffers wait for each other where all of them are queued.
  void before_compute([[maybe_unused]] const task& t) {
    if constexpr (queued) {
      boundary_.before_compute(t.place->input);
      boundary_.before_compute(t.place->output);
    }
  }
  void after_compute([[maybe_unused]] const task& t) {
    if constexpr (queued) boundary_.after_compute(t.place->input, t.place->output);
  }
  // Activations are held from the beginning of F to the end of B or W; those of a pair begin and end together.
  void began(calls& c, const task& t) {
    if (t.what->kind != schedule::action_kind::forward) return;
    c.forward_done(*t.what, t.place->saved);
    if (!table_.forward_only()) counters_.peak_live = (std::max)(counters_.peak_live, ++live_);
  }
  void ended(const task& t) noexcept {
    using schedule::action_kind;
    if (t.what->kind == action_kind::backward || t.what->kind == action_kind::backward_weight) --live_;
  }
  row_view<T, Space> part(int buffer, std::int64_t elements) {
    if (buffer < 0) return {};
    return boundary_.row(buffer, elements);
  }

  // What observers are told of a message.
  event message_event(const action& a, std::int64_t elements) const noexcept {
    using schedule::action_kind;
    const bool sends = schedule::is_send(a.kind), up = tag_of(a.kind) == 0;
    event e =
        record_.describe(sends ? activity::send : activity::recv,
                         sends ? (up ? "send forward" : "send backward") : (up ? "recv forward" : "recv backward"), a);
    e.bytes = elements * static_cast<std::int64_t>(sizeof(T));
    e.flow = record_.flow_of(a);
    return e;
  }
  static constexpr bool times_messages = times_messages_on<Observer, Space>();
  // Gives a message to its queue, between what observers that measure queues are told.
  auto timed([[maybe_unused]] const action& a, [[maybe_unused]] std::int64_t elements) {
    if constexpr (times_messages)
      return [this, &a, elements](auto& queue, auto&& message) {
        const told_of_message<Observer, std::remove_reference_t<decltype(queue)>> told{
            observer_, message_event(a, elements), queue};
        observer_.begin_message(told.e, queue);
        message();
      };
    else
      return [](auto&, auto&& message) { message(); };
  }
  request start_receive(const action& a, int buffer, std::int64_t elements) {
    if constexpr (queued) {
      boundary_.receive(buffer, elements, a.peer, tag_of(a.kind), timed(a, elements));
      return {};
    } else {
      return pipeline_.irecv(boundary_.to_receive(buffer, elements), a.peer, tag_of(a.kind));
    }
  }
  template <class Payload>
  request isend(const action& a, [[maybe_unused]] int buffer, const Payload& payload) {
    if constexpr (queued) {
      const auto elements = static_cast<std::int64_t>(payload.size());
      boundary_.send(buffer, elements, a.peer, tag_of(a.kind), timed(a, elements));
      return {};
    } else {
      return pipeline_.isend(payload, a.peer, tag_of(a.kind));
    }
  }
  void start_send(const action& a, int buffer, std::int64_t elements);
  void finish_send(std::optional<sending>& s);
  void arrive(int buffer);
  void finish_receive(receipt& r);

  schedule::table_view table_;
  schedule::storage_view storage_;
  Communicator& pipeline_;
  Observer& observer_;
  run_record record_;
  std::conditional_t<queued, boundary_messages<T, Space, Communicator>, boundary_memory<T, Space>> boundary_;
  std::vector<std::optional<receipt>> received_;
  std::vector<std::optional<sending>> under_way_;
  std::int64_t largest_ = 0;  // elements that a boundary buffer holds
  std::size_t next_send_ = 0;
  int live_ = 0;
  bool in_order_ = false;
  executor_counters counters_;
  std::optional<schedule::warm_up> warm_up_;  // found when hooks ask for it
  std::unique_ptr<companion> companion_;      // only where pairs run at the same time
};

template <class T, memory_space Space, communicator Communicator, observer Observer>
void table_runner<T, Space, Communicator, Observer>::allocate(typename Space::queue* queue, std::int64_t elements,
                                                              bool beside) {
  largest_ = elements;
  const auto buffers = static_cast<std::size_t>(storage_.buffers(pipeline_.rank()));
  if constexpr (queued)
    boundary_.allocate(queue, buffers, largest_, pipeline_, table_.forward_only() ? 1 : 2);
  else
    boundary_.allocate(queue, buffers, largest_);
  received_.resize(buffers);
  under_way_.resize(static_cast<std::size_t>(storage_.sends_in_flight()) + 1);
  if (beside) companion_ = std::make_unique<companion>();
  if constexpr (queued && times_messages)
    boundary_.each_queue(
        [&](int way, auto& messages) { observer_.follow_messages(world_rank(pipeline_.rank()), way, messages); });
}

template <class T, memory_space Space, communicator Communicator, observer Observer>
void table_runner<T, Space, Communicator, Observer>::run(calls& c, int step, std::size_t batches) {
  record_.step = step;
  const int rank = pipeline_.rank();
  if (batches != static_cast<std::size_t>(table_.microbatches())) refuse_batches(table_.microbatches(), batches);
  start_counting();
  const std::size_t end = table_.list(rank).size();
  std::size_t warm = 0;
  if (c.validates()) {
    if (!warm_up_) warm_up_ = schedule::warm_up_of(table_, rank);
    warm = static_cast<std::size_t>(warm_up_->entries);
    run_entries(c, 0, warm);
    if (!c.validate()) {
      take_in_warm_up(c);
      c.redo();
      start_counting();
      run_entries(c, 0, warm);
    }
  }
  run_entries(c, warm, end);
  finish_sends();
  if (!queued || !in_order_) boundary_.finish();
}

template <class T, memory_space Space, communicator Communicator, observer Observer>
void table_runner<T, Space, Communicator, Observer>::run_entries(calls& c, std::size_t begin, std::size_t end) {
  const int rank = pipeline_.rank();
  const auto list = table_.list(rank);
  const auto places = storage_.actions().subspan(static_cast<std::size_t>(table_.offset(rank)), list.size());
  for (std::size_t k = begin; k < end; ++k) {
    const action& a = list[k];
    if (schedule::is_compute(a.kind)) {
      const task first = task_of(c, a, places[k]);
      if (a.overlaps_next && k + 1 < list.size() && schedule::is_compute(list[k + 1].kind)) {
        run_pair(c, first, task_of(c, list[k + 1], places[k + 1]));
        ++k;
        continue;
      }
      arrive(first.place->input);
      before_compute(first);
      c.before(a);
      compute(c, first);
      after_compute(first);
      began(c, first);
      ended(first);
    } else if (schedule::is_recv(a.kind)) {
      const std::int64_t elements = elements_sent(c, a);
      received_[static_cast<std::size_t>(places[k].input)] =
          receipt{start_receive(a, places[k].input, elements), a, elements};
    } else if (schedule::is_send(a.kind)) {
      start_send(a, places[k].output, elements_sent(c, a));
    } else {
      c.other(a, places[k].saved);
    }
  }
}

template <class T, memory_space Space, communicator Communicator, observer Observer>
void table_runner<T, Space, Communicator, Observer>::run_pair(calls& c, const task& first, const task& second) {
  arrive(first.place->input);
  arrive(second.place->input);
  before_compute(first);
  before_compute(second);
  c.before(*first.what);
  c.before(*second.what);
  if (companion_ && c.run_beside(*first.what, *second.what)) {
    compute_together(c, first, second);
  } else {
    compute(c, first);
    compute(c, second);
  }
  after_compute(first);
  after_compute(second);
  began(c, first);
  began(c, second);
  ended(first);
  ended(second);
}

// The second on the companion's thread; both are recorded here, by the rank's own.
template <class T, memory_space Space, communicator Communicator, observer Observer>
void table_runner<T, Space, Communicator, Observer>::compute_together(calls& c, const task& first, const task& second) {
  ++counters_.overlapped;
  if constexpr (Observer::enabled) {
    event e = record_.describe(*second.what);
    companion_->together([&] { compute(c, first); },
                         [&] {
                           e.begin_ns = now_ns();
                           call(c, second);
                           e.end_ns = now_ns();
                         });
    observer_.record(e);
  } else {
    companion_->together([&] { call(c, first); }, [&] { call(c, second); });
  }
}

// Receives, and drops, all that the other ranks' warm-ups send here and the own one has not used.
template <class T, memory_space Space, communicator Communicator, observer Observer>
void table_runner<T, Space, Communicator, Observer>::take_in_warm_up(calls& c) {
  const auto list = table_.list(pipeline_.rank());
  std::vector<buffer<T>> room;
  std::vector<receipt> late;
  room.reserve(warm_up_->sent_early.size());
  for (const int k : warm_up_->sent_early) {
    const action& a = list[static_cast<std::size_t>(k)];
    const std::int64_t elements = elements_sent(c, a);
    if constexpr (queued) {
      boundary_.drop(elements, a.peer, tag_of(a.kind));
    } else {
      const std::span<T> to(room.emplace_back(elements));
      late.push_back(receipt{pipeline_.irecv(to, a.peer, tag_of(a.kind)), a, elements});
    }
  }
  for (std::size_t i = 0; i < received_.size(); ++i) arrive(static_cast<int>(i));
  for (receipt& r : late) finish_receive(r);
  finish_sends();
}

template <class T, memory_space Space, communicator Communicator, observer Observer>
void table_runner<T, Space, Communicator, Observer>::start_send(const action& a, int buffer, std::int64_t elements) {
  std::optional<sending>& started = under_way_[next_send_ % under_way_.size()];
  const auto payload = boundary_.to_send(buffer, elements);
  if constexpr (Observer::enabled) {
    observed(observer_, message_event(a, static_cast<std::int64_t>(payload.size())),
             [&] { started.emplace(sending{isend(a, buffer, payload), a}); });
  } else {
    started.emplace(sending{isend(a, buffer, payload), a});
  }
  ++next_send_;
  // The plan reuses the buffer of the send before the last `sends_in_flight` ones, so that one has to be over.
  finish_send(under_way_[next_send_ % under_way_.size()]);
  ++counters_.sends;
  counters_.bytes_sent += static_cast<std::int64_t>(bytes_of_row(payload));
}

// Waits for a send, if one is there. The wait is recorded where there is any: as a send that joins nothing (flow 0).
template <class T, memory_space Space, communicator Communicator, observer Observer>
void table_runner<T, Space, Communicator, Observer>::finish_send(std::optional<sending>& s) {
  if (!s) return;
  if constexpr (Observer::enabled) {
    if (!s->pending.test()) {
      const bool up = s->what.kind == schedule::action_kind::send_forward;
      observed(observer_,
               record_.describe(activity::send, up ? "wait for send forward" : "wait for send backward", s->what),
               [&] { s->pending.wait(); });
    }
  } else {
    s->pending.wait();
  }
  s.reset();
}

// Waits for the message that fills this buffer, if one is on its way.
template <class T, memory_space Space, communicator Communicator, observer Observer>
void table_runner<T, Space, Communicator, Observer>::arrive(int buffer) {
  if (buffer < 0) return;
  std::optional<receipt>& r = received_[static_cast<std::size_t>(buffer)];
  if (!r) return;
  finish_receive(*r);
  if constexpr (!queued) boundary_.received(buffer, r->elements);
  r.reset();
}

template <class T, memory_space Space, communicator Communicator, observer Observer>
void table_runner<T, Space, Communicator, Observer>::finish_receive(receipt& r) {
  if constexpr (Observer::enabled) {
    observed(observer_, message_event(r.what, r.elements), [&] { r.pending.wait(); });
  } else {
    r.pending.wait();
  }
}

}  // namespace detail
}  // namespace heddle::inline v0::model

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/model/impl/pipeline/table_runner.hpp>
#endif
