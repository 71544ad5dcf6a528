// heddle/context/queued_messages.hpp: context messages on devices, grouped by round.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/context/program.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::detail {

// Another communicator of the same ranks, for messages beside its own. A collective.
template <class C>
auto communicator_beside(C& c) {
  if constexpr (requires { c.beside(); })
    return c.beside();
  else
    return c.split(0, c.rank());
}

// The messages of one executor, as `started_context_messages`, whose host waits for nothing that a queue can wait for.
//
// Those of a round go out together, in the order of a queue beside that of the kernels: after what was packed for them, and what the
// kernels of earlier rounds have read; the next round waits for them, or the end of their own where it folds what comes. Those that
// messages of later rounds may overtake have a queue of their own. Each queue has a communicator of its own, since the messages of one
// follow each other. A queue without others beside it (Kokkos) has all in its own order: nothing travels while it computes.
//
// This cannot deadlock: all that a group waits for belongs to earlier rounds, here or on another rank, to what was packed for it, or to its
// peers in the same round. Where a message is a call that waits for its peer's, all ranks make these calls in one order of all messages of a round:
// those not to be overtaken first, then by sender, receiver and kind. Where kinds have no tags (NCCL) that is the order of a pair, too.
template <class T, memory_space Space, class Communicator>
class queued_messages {
  using queue = typename Space::queue;
  using own_communicator = decltype(communicator_beside(std::declval<Communicator&>()));
  static constexpr bool beside = concurrent_queue<queue>;

  struct way {
    own_communicator ranks;
    std::optional<queue> own{};  // ends first: it uses the communicator
  };
  struct message {
    bool sends;
    int peer, kind, number;  // the last: among those of its group
    T* at;
    std::int64_t count;
  };

 public:
  static constexpr bool observes = false;

  // A collective of all ranks.
  queued_messages(queue& stage, Communicator& ranks, int first_tag)
      : stage_(&stage), rank_(ranks.rank()), first_tag_(first_tag) {
    for (int i = 0; i < (beside ? 2 : 1) && ranks.size() > 1; ++i) {
      ways_.push_back(std::make_unique<way>(communicator_beside(ranks)));
      if constexpr (beside) ways_.back()->own.emplace(stage.beside());
    }
  }
  queued_messages(const queued_messages&) = delete;
  queued_messages& operator=(const queued_messages&) = delete;
  // Memory is given back after the messages that are under way, which is all that an error leaves of their order.
  ~queued_messages() {
    if constexpr (beside) {
      for (const auto& w : ways_) {
        try {
          stage_->after(w->own->record());
        } catch (...) {  // of a queue that has failed, with all that was in it
          continue;
        }
      }
    }
  }
  static void name_ranks(const std::vector<int>& /*world_ranks*/) noexcept {}
  comm_counters counters() const {
    comm_counters all;
    for (const auto& w : ways_) {
      const comm_counters own = w->ranks.counters();
      for (const comm_operation what : {comm_operation::send, comm_operation::recv}) {
        all[what].calls += own[what].calls;
        all[what].bytes += own[what].bytes;
      }
    }
    return all;
  }

  class call {
   public:
    call(queued_messages& all, row_view<std::byte, Space> memory) : all_(all), memory_(memory) {}
    void before(int round) { follow(round); }
    void receive(const context_message& m, context_kind what, const row_view<std::byte, Space>& bytes) {
      add(false, m, what, bytes);
    }
    static void ready(int /*round*/) noexcept {}
    void send(const context_message& m, context_kind what, const row_view<std::byte, Space>& bytes) {
      add(true, m, what, bytes);
    }
    // Those of the round that were given.
    void launch(int round) {
      if (groups_[0].messages.empty() && groups_[1].messages.empty()) return;
      if constexpr (!beside) {
        for (group& g : groups_) {
          all_.exchange(*all_.stage_, *all_.ways_[0], g.messages, memory_);
          g = {};
        }
      } else {
        const event packed = all_.stage_->record();
        for (std::size_t i = 0; i < 2; ++i) {
          group& g = groups_[i];
          if (g.messages.empty()) continue;
          way& w = *all_.ways_[i];
          w.own->after(packed);
          all_.exchange(*w.own, w, g.messages, memory_);
          moved_.push_back({w.own->record(), i == 0 ? (g.needed_in <= round ? round : round + 1) : g.needed_in});
          g = {};
        }
      }
    }
    static void attended(std::int64_t /*begin_ns*/) noexcept {}
    void after(int round) { follow(round); }
    void finish() { follow((std::numeric_limits<int>::max)()); }

   private:
    struct no_events {
      no_events record() { return {}; }
    };
    using event = decltype(std::declval<std::conditional_t<beside, queue, no_events>&>().record());
    struct group {
      std::vector<message> messages{};
      int needed_in = (std::numeric_limits<int>::max)();
    };
    struct moved {
      event done;
      int needed_in;
    };
    void add(bool sends, const context_message& m, context_kind what, const row_view<std::byte, Space>& bytes) {
      group& g = groups_[m.overtaken ? 1 : 0];
      g.messages.push_back({sends, m.peer, static_cast<int>(what), static_cast<int>(g.messages.size()),
                            reinterpret_cast<T*>(bytes.address()),
                            bytes.size() / static_cast<std::int64_t>(sizeof(T))});
      // What leaves stays as it is until the next round begins.
      if (!sends || m.overtaken) g.needed_in = (std::min)(g.needed_in, m.needed_in);
    }
    // What the kernels get from now on waits for messages that are needed in this round.
    void follow([[maybe_unused]] int round) {
      if constexpr (beside)
        std::erase_if(moved_, [&](const moved& m) {
          if (m.needed_in > round) return false;
          all_.stage_->after(m.done);
          return true;
        });
    }

    queued_messages& all_;
    row_view<std::byte, Space> memory_;
    std::array<group, 2> groups_{};  // the second: those that may be overtaken
    std::vector<moved> moved_{};
  };

 private:
  void exchange(queue& q, way& w, std::vector<message>& messages, const row_view<std::byte, Space>& memory) {
    const auto order = [&](const message& m) {
      return std::tuple(m.sends ? rank_ : m.peer, m.sends ? m.peer : rank_, m.kind, m.number);
    };
    std::sort(messages.begin(), messages.end(),
              [&](const message& a, const message& b) { return order(a) < order(b); });
    if constexpr (works_in_order_of<own_communicator, queue>) {
      one_by_one(q, w, messages);
    } else if constexpr (runs_host_code<queue>) {
      // The memory of all of them is open while they travel.
      if (!messages.empty()) q.run([this, &w, messages](const auto&...) { start(w.ranks, messages); }, memory);
    } else if constexpr (goes_on_stream_of<own_communicator, queue>) {
      own_communicator there = w.ranks.on(q.stream());
      start(there, messages);
    } else {
      one_by_one(q, w, messages);
    }
  }
  // Started together, and then waited for, on the calling thread or on the communicator's stream.
  void start(own_communicator& ranks, const std::vector<message>& messages) const {
    std::vector<typename own_communicator::request> started;
    started.reserve(messages.size());
    for (const bool sends : {false, true})
      for (const message& m : messages) {
        const std::span<T> elements(m.at, static_cast<std::size_t>(m.count));
        if (m.sends != sends) continue;
        if (sends)
          started.push_back(ranks.isend(std::span<const T>(elements), m.peer, first_tag_ + m.kind));
        else
          started.push_back(ranks.irecv(elements, m.peer, first_tag_ + m.kind));
      }
    for (auto& s : started) s.wait();
  }
  void one_by_one(queue& q, way& w, const std::vector<message>& messages) const {
    for (const message& m : messages) {
      const auto elements = row_at<Space>(m.at, m.count);
      if (m.sends)
        heddle::v0::send(q, w.ranks, elements, m.peer, first_tag_ + m.kind);
      else
        heddle::v0::recv(q, w.ranks, elements, m.peer, first_tag_ + m.kind);
    }
  }

  queue* stage_;
  int rank_, first_tag_;
  std::vector<std::unique_ptr<way>> ways_{};
};

}  // namespace heddle::inline v0::detail
