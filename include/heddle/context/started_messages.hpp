// heddle/context/started_messages.hpp: context messages in host memory, one by one.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/context/program.hpp>
#include <heddle/core/observer.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// What carries the messages of a context table: started sends and receives of bytes, as those of a `communicator`.
template <class C>
concept message_carrier = requires(C& c, std::span<const std::byte> in, std::span<std::byte> out) {
  requires comm_request<typename C::request>;
  { c.rank() } -> std::same_as<int>;
  { c.isend(in, 0, 0) } -> std::same_as<typename C::request>;
  { c.irecv(out, 0, 0) } -> std::same_as<typename C::request>;
};

namespace detail {
// A communicator whose messages somebody watches: it takes events.
template <class C>
inline constexpr bool takes_events = requires(C& c, const event& e) { c.record(e); };
struct no_event {};

// The messages of one executor. Each is on its way until it is needed, and is waited for on its own. A communicator that takes events is
// told of each, from when it is started until it is known to be over.
template <class Communicator>
class started_context_messages {
 public:
  static constexpr bool observes = takes_events<Communicator>;

  started_context_messages(Communicator& ranks, int first_tag) : ranks_(ranks), first_tag_(first_tag) {}
  void name_ranks(std::vector<int> world_ranks) { names_ = std::move(world_ranks); }
  auto counters() const { return ranks_.counters(); }

  // Those of one call, round by round: before, receive..., ready, send..., launch, attended..., after; and in the end finish.
  class call {
   public:
    call(started_context_messages& all, std::span<std::byte> /*memory*/) : all_(all) {}
    void before(int round) {
      wait_for(sends_, round);
      earlier_ = receives_.size();
    }
    void receive(const context_message& m, context_kind what, std::span<std::byte> bytes) {
      receives_.push_back({all_.ranks_.irecv(bytes, m.peer, all_.tag_of(what)), m.needed_in,
                           all_.told_of(m, what, bytes.size(), false)});
    }
    void ready(int round) { wait_for(receives_, round, receives_.size() - earlier_); }
    void send(const context_message& m, context_kind what, std::span<const std::byte> bytes) {
      sends_.push_back({all_.ranks_.isend(bytes, m.peer, all_.tag_of(what)), m.needed_in,
                        all_.told_of(m, what, bytes.size(), true)});
    }
    static void launch(int /*round*/) noexcept {}
    // A call of the kernel that began then is over. Some transports move nothing unless they are asked.
    void attended([[maybe_unused]] std::int64_t begin_ns) {
      if constexpr (observes) {
        event e;
        e.name = "attention of context";
        e.begin_ns = begin_ns;
        all_.record(e);
      }
      for (pending& s : sends_) test(s);
      for (pending& s : receives_) test(s);
    }
    void after(int round) {
      wait_for(sends_, round);
      wait_for(receives_, round);
    }
    void finish() { after((std::numeric_limits<int>::max)()); }

   private:
    struct pending {
      typename Communicator::request what;
      int needed_in;
      [[no_unique_address]] std::conditional_t<observes, event, no_event> told{};
    };
    void test(pending& p) {
      const bool over = p.what.test();
      if constexpr (observes)
        if (over) all_.record(p.told);
    }
    // Waits for what is needed, but for the last `but` of the list.
    void wait_for(std::vector<pending>& list, int round, std::size_t but = 0) {
      std::size_t kept = 0;
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (i + but < list.size() && list[i].needed_in <= round) {
          list[i].what.wait();
          if constexpr (observes) all_.record(list[i].told);
          continue;
        }
        if (kept != i) list[kept] = std::move(list[i]);
        ++kept;
      }
      while (list.size() > kept) list.pop_back();
    }

    started_context_messages& all_;
    std::vector<pending> receives_{}, sends_{};
    std::size_t earlier_ = 0;
  };

 private:
  int tag_of(context_kind what) const noexcept { return first_tag_ + static_cast<int>(what); }
  auto told_of([[maybe_unused]] const context_message& m, [[maybe_unused]] context_kind what,
               [[maybe_unused]] std::size_t bytes, [[maybe_unused]] bool sends) {
    if constexpr (observes) {
      static constexpr const char* names[2][4] = {{"recv keys", "recv queries", "recv of queries", "recv of keys"},
                                                  {"send keys", "send queries", "send of queries", "send of keys"}};
      const auto kind = static_cast<std::size_t>(what);
      const auto named = [&](int rank) { return names_.empty() ? rank : names_[static_cast<std::size_t>(rank)]; };
      const int here = named(ranks_.rank()), there = named(m.peer);
      event e;
      e.kind = sends ? activity::send : activity::recv;
      e.name = names[sends ? 1 : 0][kind];
      e.peer = there;
      e.bytes = static_cast<std::int64_t>(bytes);
      e.begin_ns = now_ns();
      // Both ends count the messages of a pair and kind alike. Flows of pipelines are lower.
      const auto way =
          static_cast<std::uint64_t>(sends ? here : there) << 16 | static_cast<std::uint64_t>(sends ? there : here);
      const std::uint32_t number = counts_[{m.peer, static_cast<int>(kind), sends}]++ & ((1U << 29) - 1);
      e.flow = std::uint64_t{1} << 63 | way << 31 | kind << 29 | number;
      return e;
    } else {
      return no_event{};
    }
  }
  void record(event& e) {
    if (e.end_ns != 0) return;
    e.end_ns = now_ns();
    ranks_.record(e);
  }

  Communicator& ranks_;
  int first_tag_;
  std::vector<int> names_{};
  [[no_unique_address]] std::conditional_t<observes, std::map<std::tuple<int, int, bool>, std::uint32_t>, no_event>
      counts_{};
};

}  // namespace detail

}  // namespace heddle::inline v0
