// heddle/model/pipeline/boundary_messages.hpp: boundary messages in queue order.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/tensor/view.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

namespace detail {
template <bool Ok, class Communicator, class Space>
inline constexpr bool messages_reach_memory = Ok;

// Whether messages between stages in memory `Space` go in the order of queues; through the host's memory where not.
template <class Communicator, class Space>
consteval bool messages_are_queued() {
  if constexpr (std::is_same_v<Space, host_memory>) {
    return false;
  } else {
    constexpr bool queued = sends_in_order_of<Communicator, typename Space::queue>;
    constexpr bool reached = queued || !requires { requires !Communicator::host_memory; };
    static_assert(
        messages_reach_memory<reached, Communicator, Space>,
        "heddle: this communicator takes no memory of the host, so what travels between stages is sent in the "
        "order of queues: the queue of the stages' memory needs beside(), record() and after(event), and runs host "
        "code or has a stream, while the communicator has beside(), or the communicator works in its order");
    return queued;
  }
}
}  // namespace detail

/// Buffers of equal size in the memory of the stages, and the messages that leave and fill them, where a communicator sends in
/// the order of queues (`sends_in_order_of`). Nothing is copied to the host, which waits for nothing before `finish`.
///
/// The stages compute in the order of their own queue. Messages forward along the pipeline are in the order of a second queue,
/// those backward of a third, each over a communicator of its own (`Communicator::beside`, where it has that), since the
/// messages of one communicator follow each other whatever queue they are in. A message begins when the last computation with
/// its buffer is done, a computation when the last messages with its buffers are.
///
/// This cannot deadlock, even where a send waits for its receive and a receive for its send. A plan's table has passed
/// `transfers::rendezvous`: there is one order of all ranks' computations and messages in which they can run one at a time.
/// Each queue, and each wait between two of them, keeps that order, so what stands first in it among all that is left waits for
/// nothing. Collectives inside of computations and at REDUCE_GRAD have their place in it, too, since their ranks walk the same
/// list. It needs no queue for sends and another for receives, no grouped calls, and a device may run what it is given one
/// after the other.
///
/// Units: elements. Errors: `finish` throws what a message has thrown.
template <class T, memory_space Space, communicator Communicator>
class boundary_messages {
 public:
  using queue = typename Space::queue;

  boundary_messages() = default;
  boundary_messages(const boundary_messages&) = delete;
  boundary_messages& operator=(const boundary_messages&) = delete;
  /// Buffers are given back after the messages that are under way, which is all that an error leaves of their order.
  ~boundary_messages() {
    for (auto& d : ways_) {
      if (!d->messages) continue;
      try {
        queue_->after(d->messages->record());
      } catch (...) {  // of a queue that has failed, with all that was in it
        continue;
      }
    }
  }

  /// `q` may be null where there are no buffers. Called by all ranks of `pipeline` together. `directions`: 1 for messages
  /// forward only, else 2.
  void allocate(queue* q, std::size_t count, std::int64_t elements, Communicator& pipeline, int directions) {
    queue_ = q;
    for (std::size_t i = 0; i < count; ++i) here_.emplace_back(*q, elements, "a tensor between stages");
    computed_.resize(count);
    moved_.resize(count);
    for (int i = 0; i < directions && pipeline.size() > 1; ++i) {
      auto made = std::make_unique<direction>(pipeline);
      if (q != nullptr) {
        made->messages.emplace(q->beside());
        made->messages->after(q->record());  // the buffers are there, and zero
      }
      ways_.push_back(std::move(made));
    }
  }

  row_view<T, Space> row(int i, std::int64_t elements) noexcept {
    return row_at<Space>(here_[static_cast<std::size_t>(i)].address(), elements);
  }
  /// The elements of buffer i, which a message will take.
  row_view<const T, Space> to_send(int i, std::int64_t elements) noexcept { return row(i, elements); }

  /// A message of buffer i, in direction 0 or 1, which is the messages' tag, too. `give(queue, message)` calls `message()`, which gives it
  /// to the queue, when all that the message waits for has been put there.
  template <class Give>
  void send(int i, std::int64_t elements, int peer, int way, Give&& give) {
    move(i, way,
         [&](queue& q, direction& d) { give(q, [&] { heddle::v0::send(q, d.to(), row(i, elements), peer, way); }); });
  }
  template <class Give>
  void receive(int i, std::int64_t elements, int peer, int way, Give&& give) {
    move(i, way,
         [&](queue& q, direction& d) { give(q, [&] { heddle::v0::recv(q, d.to(), row(i, elements), peer, way); }); });
  }
  void send(int i, std::int64_t elements, int peer, int way) { send(i, elements, peer, way, at_once{}); }
  void receive(int i, std::int64_t elements, int peer, int way) { receive(i, elements, peer, way, at_once{}); }
  /// `f(way, queue)` with the queue of the messages in each direction.
  template <class F>
  void each_queue(F&& f) {
    for (std::size_t way = 0; way < ways_.size(); ++way)
      if (ways_[way]->messages) f(static_cast<int>(way), *ways_[way]->messages);
  }
  /// Takes in a message that nobody needs.
  void drop(std::int64_t elements, int peer, int way) {
    direction& d = *ways_[static_cast<std::size_t>(way)];
    buffer<T, Space> room(*d.messages, elements, "a message that is dropped");  // given back behind it
    heddle::v0::recv(*d.messages, d.to(), row_at<Space>(room.address(), elements), peer, way);
  }
  /// Before a computation with buffer i is queued; -1: it has none.
  void before_compute(int i) {
    if (i < 0) return;
    if (auto& moved = moved_[static_cast<std::size_t>(i)]) {
      queue_->after(*moved);
      moved.reset();
    }
  }
  /// Behind a computation that reads buffer `input` and writes buffer `output`.
  void after_compute(int input, int output) {
    if (ways_.empty() || in_order_ || (input < 0 && output < 0)) return;
    const event done = queue_->record();
    if (input >= 0) computed_[static_cast<std::size_t>(input)] = done;
    if (output >= 0) computed_[static_cast<std::size_t>(output)] = done;
  }
  /// Whether messages take their places in the order of the stages' queue instead of having queues beside it: for graphs, whose branches
  /// CUDA may run in any order, so that a message that waits for its peer could keep back what the peer waits for. In one order that
  /// cannot be, as above, and nothing is sent while the rank computes. Set before the first message.
  void in_order(bool yes) noexcept { in_order_ = yes; }
  /// Until all messages are through. Errors: what they have thrown.
  void finish() {
    std::exception_ptr first;
    for (auto& d : ways_) {
      try {
        if (d->messages) d->messages->wait();
      } catch (...) {  // the other direction's are waited for all the same
        if (first == nullptr) first = std::current_exception();
      }
    }
    if (first != nullptr) std::rethrow_exception(first);
  }
  std::int64_t bytes() const noexcept {
    std::int64_t n = 0;
    for (const auto& b : here_) n += static_cast<std::int64_t>(b.size() * sizeof(T));
    return n;
  }

 private:
  struct at_once {
    template <class Message>
    void operator()(queue&, Message&& message) const {
      message();
    }
  };
  using event = decltype(std::declval<queue&>().record());
  static constexpr bool has_beside = requires(Communicator& c) {
    { c.beside() } -> std::same_as<Communicator>;
  };
  struct direction {
    explicit direction(Communicator& pipeline) : shared(&pipeline) {
      if constexpr (has_beside) own.emplace(pipeline.beside());
    }
    Communicator& to() noexcept { return own ? *own : *shared; }
    Communicator* shared;
    std::optional<Communicator> own{};
    std::optional<queue> messages{};  // ends first: it uses the communicator
  };

  template <class Message>
  void move(int i, int way, Message&& message) {
    const auto at = static_cast<std::size_t>(i);
    direction& d = *ways_[static_cast<std::size_t>(way)];
    if (in_order_) return message(*queue_, d);
    if (computed_[at]) {
      d.messages->after(*computed_[at]);
      computed_[at].reset();
    }
    if (moved_[at]) d.messages->after(*moved_[at]);  // one that no computation has waited for
    message(*d.messages, d);
    moved_[at] = d.messages->record();
  }

  queue* queue_ = nullptr;
  bool in_order_ = false;
  std::vector<buffer<T, Space>> here_{};
  std::vector<std::optional<event>> computed_{};  // of each buffer, the last computation that no message has waited for
  std::vector<std::optional<event>> moved_{};     // the last message that no computation has waited for
  std::vector<std::unique_ptr<direction>> ways_{};
};

}  // namespace heddle::inline v0::model
