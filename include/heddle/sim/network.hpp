// heddle/sim/network.hpp: simulates rounds of collectives with fair sharing of links.
#pragma once

#include <heddle/collective/round_load.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::sim {

/// What a transport makes of messages of at least so many bytes: it multiplies the latency of their ways, and of
/// the bandwidth that they get it uses that share.
struct size_class {
  double from_bytes = 0;
  double latency_factor = 1, bandwidth_factor = 1;
};

/// The size classes that SimGrid's SMPI measured for TCP on the Stampede cluster and takes by default.
inline std::vector<size_class> stampede_sizes() {
  return {{0, 2.01467, 0.812084},    {257, 1.95341, 0.338112},   {732, 1.9503, 0.341987},
          {1426, 1.61075, 0.608902}, {3484, 1.88101, 0.77493},   {5776, 2.18796, 1.08739},
          {9376, 2.59299, 0.58729},  {15424, 3.48845, 0.697866}, {65472, 11.6436, 0.940694}};
}

/// What goes on at both ends of a message, and on its way. Units: seconds, bytes.
struct message_costs {
  double send_seconds = 0;           ///< the sender is busy so long with each message, one after the other
  double receive_seconds = 0;        ///< the receiver with each message that has come
  double fold_seconds_per_byte = 0;  ///< with folding what has come
  double eager_bytes = 0;            ///< a sender of fewer bytes does not wait until they are there
  double extra_seconds = 0;          ///< added to the latency of every way
  std::vector<size_class> sizes{};   ///< shortest first; none: ways are what their links say

  /// The class of a message.
  constexpr size_class size_of(double bytes) const {
    size_class found;
    for (const size_class& c : sizes)
      if (c.from_bytes <= bytes) found = c;
    return found;
  }
};

/// What a simulation found. Units: seconds from the begin, in the order of the table's transfers.
struct network_timeline {
  std::vector<double> start;     ///< when each message set off: both ends had begun the round
  std::vector<double> end;       ///< when its last byte was there
  std::vector<double> finished;  ///< per rank: when it was done with its last round
  /// When each rank was done with each round, [rounds, ranks]; empty for a simulation without computation.
  std::vector<double> round_ends;
  double seconds = 0;  ///< the last of all

  /// The longest way of a message, latency and transfer.
  constexpr double slowest() const noexcept {
    double most = 0;
    for (std::size_t i = 0; i < start.size(); ++i) most = (std::max)(most, end[i] - start[i]);
    return most;
  }
};

/// Rates of messages that share links, each as large as it can be without making one that is not larger still smaller
/// (max-min fair): all rates grow together until a link is full, which fixes those that cross it, and so on.
/// `ways[i]` are the links that message i crosses, with shares; a message without links gets an infinite rate.
/// Units: bytes per second. Source: Bertsekas and Gallager, Data Networks, 1992, section 6.5.2.
constexpr std::vector<double> fair_rates(const std::vector<link>& links, const std::vector<const route_table*>& ways) {
  std::vector<double> rate(ways.size(), std::numeric_limits<double>::infinity());
  auto free = std::vector<double>(links.size(), 0), wanted = free;
  std::vector<std::vector<int>> users(links.size());
  std::vector<int> used;
  std::vector<char> fixed(ways.size(), 0);
  for (std::size_t i = 0; i < ways.size(); ++i)
    for (const route_step& step : ways[i]->steps) {
      const auto l = static_cast<std::size_t>(step.link);
      if (users[l].empty()) {
        used.push_back(step.link);
        free[l] = links[l].bytes_per_second;
      }
      users[l].push_back(static_cast<int>(i));
      wanted[l] += step.share;
    }
  constexpr double nothing = 1e-9;  // shares are sums of fractions: less is left over by rounding
  const auto fix = [&](std::size_t m, double level) {
    fixed[m] = 1;
    rate[m] = level;
    for (const route_step& step : ways[m]->steps) {
      const auto k = static_cast<std::size_t>(step.link);
      free[k] = (std::max)(0.0, free[k] - level * step.share);
      wanted[k] -= step.share;
    }
  };
  for (;;) {
    double level = std::numeric_limits<double>::infinity();
    for (const int l : used)
      if (const auto k = static_cast<std::size_t>(l); wanted[k] > nothing)
        level = (std::min)(level, free[k] / wanted[k]);
    if (!(level < std::numeric_limits<double>::infinity())) return rate;
    // All links that are full at this level at once: in symmetric patterns that is most of them.
    std::vector<int> full;
    for (const int l : used)
      if (const auto k = static_cast<std::size_t>(l); wanted[k] > nothing && free[k] / wanted[k] <= level * (1 + 1e-12))
        full.push_back(l);
    for (const int l : full)
      for (const int i : users[static_cast<std::size_t>(l)])
        if (fixed[static_cast<std::size_t>(i)] == 0) fix(static_cast<std::size_t>(i), level);
    for (const int l : full) wanted[static_cast<std::size_t>(l)] = 0;
  }
}

namespace detail {

class network_run {
 public:
  constexpr network_run(const round_routes& ways, std::int64_t elements, std::int64_t element_bytes,
                        const message_costs& costs, std::span<const double> compute = {})
      : ways_(ways), rounds_(ways.rounds()), transfers_(rounds_.transfers()), costs_(costs), compute_(compute) {
    const auto p = static_cast<std::size_t>(rounds_.ranks());
    of_rank_.resize(p);
    ranks_.resize(p);
    flows_.resize(transfers_.size());
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      const round_transfer& t = transfers_[i];
      of_rank_[at(t.from)].push_back(static_cast<int>(i));
      of_rank_[at(t.to)].push_back(static_cast<int>(i));
      flow& f = flows_[i];
      f.bytes = static_cast<double>(elements_of(rounds_, t, elements) * element_bytes);
      const size_class size = costs_.size_of(f.bytes);
      f.left = f.bytes / size.bandwidth_factor;
      f.latency = ways_.way(static_cast<int>(i)).seconds * size.latency_factor + costs_.extra_seconds;
    }
  }

  constexpr network_timeline run() {
    network_timeline line;
    line.start.assign(transfers_.size(), 0);
    line.end.assign(transfers_.size(), 0);
    round_count_ = rounds_.rounds();
    if (!compute_.empty()) {
      round_count_ = (std::max)(round_count_, static_cast<int>(compute_.size()) / rounds_.ranks());
      round_ends_.assign(at(round_count_) * at(rounds_.ranks()), 0);
    }
    for (int r = 0; r < rounds_.ranks(); ++r) begin_round(r);
    while (step()) {
    }
    for (std::size_t i = 0; i < flows_.size(); ++i) {
      line.start[i] = flows_[i].start;
      line.end[i] = flows_[i].end;
    }
    for (const rank_state& r : ranks_) {
      line.finished.push_back(r.now);
      line.seconds = (std::max)(line.seconds, r.now);
    }
    line.round_ends = static_cast<std::vector<double>&&>(round_ends_);
    return line;
  }

 private:
  static constexpr double never = std::numeric_limits<double>::infinity();
  static constexpr std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }

  struct flow {
    double bytes = 0;
    double left = 0;  // of the bytes that have to be carried, more than its own where it uses its share badly
    double latency = 0;
    double sender_ready = never, receiver_ready = never;
    double start = 0;
    double flows_from = never;  // when its first byte arrives
    double rate = 0;
    double end = never;
  };
  struct rank_state {
    std::size_t next = 0;  // of its transfers: the first of the round it is in
    std::size_t stop = 0;  // the first of a later round
    int round = -1;        // that it is in
    int open = 0;          // messages of this round it still waits for
    double now = 0;        // when the round began; at the end of one, when it ended
    double last = 0;       // the latest of what ended in it
    double receiving = 0;  // seconds for what has come
  };

  constexpr void begin_round(int rank) {
    rank_state& r = ranks_[at(rank)];
    const std::vector<int>& mine = of_rank_[at(rank)];
    r.next = r.stop;
    const int round = r.next == mine.size() ? round_count_ : transfers_[at(mine[r.next])].round;
    if (!compute_.empty()) {
      if (r.round >= 0) end_of(rank, r.round);
      while (++r.round < round) {  // rounds without messages
        r.now += computing(rank, r.round);
        end_of(rank, r.round);
      }
    }
    if (r.next == mine.size()) return;
    while (r.stop < mine.size() && transfers_[at(mine[r.stop])].round == round) ++r.stop;
    r.open = static_cast<int>(r.stop - r.next);
    r.last = r.now + computing(rank, round);
    r.receiving = 0;
    double free = r.now;  // the sender works on one message after the other
    for (std::size_t k = r.next; k < r.stop; ++k) {
      flow& f = flows_[at(mine[k])];
      const round_transfer& t = transfers_[at(mine[k])];
      if (t.from == rank) {
        free += costs_.send_seconds;
        f.sender_ready = free;
      } else {
        f.receiver_ready = r.now;
      }
      if (f.sender_ready < never && f.receiver_ready < never) {
        f.start = (std::max)(f.sender_ready, f.receiver_ready);
        f.flows_from = f.start + f.latency;
        waiting_.push_back(mine[k]);
      }
    }
    // A sender that does not wait is done with a message when it has handed it over.
    for (std::size_t k = r.next; k < r.stop; ++k) {
      const round_transfer& t = transfers_[at(mine[k])];
      if (t.from == rank && flows_[at(mine[k])].bytes < costs_.eager_bytes)
        leave(rank, flows_[at(mine[k])].sender_ready, 0);
    }
  }

  constexpr double computing(int rank, int round) const {
    const std::size_t i = at(round) * at(rounds_.ranks()) + at(rank);
    return i < compute_.size() ? compute_[i] : 0;
  }
  constexpr void end_of(int rank, int round) {
    round_ends_[at(round) * at(rounds_.ranks()) + at(rank)] = ranks_[at(rank)].now;
  }

  // One message less to wait for; with the last one the round ends.
  constexpr void leave(int rank, double when, double receiving) {
    rank_state& r = ranks_[at(rank)];
    r.last = (std::max)(r.last, when);
    r.receiving += receiving;
    if (--r.open > 0) return;
    r.now = r.last + r.receiving;
    ready_.push_back(rank);
  }

  constexpr void finish(int number, double when) {
    flow& f = flows_[at(number)];
    f.end = when;
    const round_transfer& t = transfers_[at(number)];
    double receiving = costs_.receive_seconds;
    if (t.how != arrival::store) receiving += costs_.fold_seconds_per_byte * f.bytes;
    leave(t.to, when, receiving);
    if (!(f.bytes < costs_.eager_bytes)) leave(t.from, when, 0);
  }

  // To the next moment at which something ends or begins. Returns whether there was one.
  constexpr bool step() {
    for (std::size_t i = 0; i < ready_.size(); ++i) begin_round(ready_[i]);
    ready_.clear();
    double next = never;
    for (const int n : waiting_) next = (std::min)(next, flows_[at(n)].flows_from);
    for (const int n : active_) next = (std::min)(next, now_ + flows_[at(n)].left / flows_[at(n)].rate);
    if (!(next < never)) return false;
    next = (std::max)(next, now_);
    // What is over within rounding of this moment is over now.
    const double slack = 1e-12 * (next + 1e-9);
    std::vector<int> still, over;
    for (const int n : active_) {
      flow& f = flows_[at(n)];
      if (f.left / f.rate <= next - now_ + slack) {
        over.push_back(n);
      } else {
        f.left -= f.rate * (next - now_);
        still.push_back(n);
      }
    }
    now_ = next;
    bool changed = !over.empty();
    std::vector<int> later;
    for (const int n : waiting_) {
      if (flows_[at(n)].flows_from > next + slack) {
        later.push_back(n);
      } else if (flows_[at(n)].bytes > 0) {
        still.push_back(n);
        changed = true;
      } else {
        over.push_back(n);
      }
    }
    waiting_ = later;
    active_ = still;
    for (const int n : over) finish(n, next);
    if (changed) share();
    return true;
  }

  constexpr void share() {
    std::vector<const route_table*> ways;
    for (const int n : active_) ways.push_back(&ways_.way(n));
    const std::vector<double> rates = fair_rates(ways_.links(), ways);
    for (std::size_t i = 0; i < active_.size(); ++i) flows_[at(active_[i])].rate = rates[i];
  }

  const round_routes& ways_;
  round_view rounds_;
  std::span<const round_transfer> transfers_;
  message_costs costs_;
  std::span<const double> compute_;
  int round_count_ = 0;
  std::vector<double> round_ends_;
  std::vector<std::vector<int>> of_rank_;
  std::vector<rank_state> ranks_;
  std::vector<flow> flows_;
  std::vector<int> waiting_;  // for their first byte
  std::vector<int> active_;
  std::vector<int> ready_;  // ranks that begin a round now
  double now_ = 0;
};

}  // namespace detail

/// Runs the rounds of a collective in virtual time. A rank begins a round when all its messages of the round before have
/// come and gone and what came is folded. A message sets off when both of its ranks have begun its round; after the
/// latency of its way its bytes flow, at a rate that is shared fairly on every link with all that flows then.
/// `compute`: for how many seconds each rank computes in each round, [rounds, ranks], beside its messages; a rank's round then ends when both are
/// done. It may have more rounds than the table.
/// Units: seconds, bytes; `elements` as in `load_map`. Errors: `comm_error` if a message finds no way.
constexpr network_timeline simulate(const round_routes& ways, std::int64_t elements, std::int64_t element_bytes,
                                    const message_costs& costs = {}, std::span<const double> compute = {}) {
  for (int k = 0; k < ways.rounds().rounds(); ++k)
    if (!ways.possible(k)) {
      throw comm_error(text_of({"heddle: no links lead from a sender of round ", k, " to its receiver"}));
    }
  return detail::network_run(ways, elements, element_bytes, costs, compute).run();
}
constexpr network_timeline simulate(round_view rounds, const topology& network, std::int64_t elements,
                                    std::int64_t element_bytes, const message_costs& costs = {},
                                    routing how = routing::split, std::span<const double> compute = {}) {
  return simulate(round_routes(rounds, network, how), elements, element_bytes, costs, compute);
}

}  // namespace heddle::inline v0::sim
