// heddle/collective/round_load.hpp: loads that rounds of a collective put on a topology's links.
#pragma once

#include <heddle/collective/round_cost.hpp>
#include <heddle/collective/rounds.hpp>
#include <heddle/core/text.hpp>
#include <heddle/mesh/topology.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

// Which vertices messages from one rank can get to.
constexpr std::vector<char> reached_from(const topology& t, int start) {
  std::vector<char> there(static_cast<std::size_t>(t.vertices()), 0);
  std::vector<int> todo{start};
  there[static_cast<std::size_t>(start)] = 1;
  for (std::size_t next = 0; next < todo.size(); ++next) {
    if (next > 0 && todo[next] < t.ranks() && !t.ranks_forward()) continue;
    for (const int l : t.links_from(todo[next])) {
      const int to = t.links()[static_cast<std::size_t>(l)].to;
      if (there[static_cast<std::size_t>(to)] != 0) continue;
      there[static_cast<std::size_t>(to)] = 1;
      todo.push_back(to);
    }
  }
  return there;
}

}  // namespace detail

/// The ways that the messages of a collective take on a topology: found once, for vectors of any size. It refers to the
/// table and the links, which must live as long as it does.
/// Errors: `comm_error` if the topology has fewer ranks than the table.
class round_routes {
 public:
  constexpr round_routes(round_view rounds, const topology& network, routing how = routing::split)
      : rounds_(rounds), links_(&network.links()), possible_(static_cast<std::size_t>(rounds.rounds()), 1) {
    if (network.ranks() < rounds.ranks()) {
      throw comm_error(
          text_of({"heddle: the rounds are for ", rounds.ranks(), " ranks, the topology has ", network.ranks()}));
    }
    // One sender after the other: what is known of its ways is then a row, where a table of all pairs of 12,288 ranks
    // would take 600 MB.
    const auto p = static_cast<std::size_t>(rounds.ranks());
    const std::span<const round_transfer> transfers = rounds.transfers();
    std::vector<std::size_t> first(p + 1, 0), of_sender(transfers.size(), 0);
    for (const round_transfer& t : transfers) ++first[static_cast<std::size_t>(t.from) + 1];
    for (std::size_t r = 0; r < p; ++r) first[r + 1] += first[r];
    for (std::size_t i = transfers.size(); i-- > 0;) {
      // From the back, so that `first[r + 1]` ends as the first of sender r.
      of_sender[--first[static_cast<std::size_t>(transfers[i].from) + 1]] = i;
    }
    way_of_.assign(transfers.size(), -1);
    std::vector<int> known(p, -1);
    for (std::size_t from = 0; from < p; ++from) {
      const std::size_t begin = first[from + 1], end = from + 1 < p ? first[from + 2] : transfers.size();
      if (begin == end) continue;
      const std::vector<char> reached = detail::reached_from(network, static_cast<int>(from));
      for (std::size_t k = begin; k < end; ++k) {
        const round_transfer& t = transfers[of_sender[k]];
        const auto to = static_cast<std::size_t>(t.to);
        if (known[to] < 0) {
          known[to] = static_cast<int>(ways_.size());
          ways_.emplace_back();
          if (reached[to] != 0) ways_.back() = network.route(t.from, t.to, how);
        }
        if (reached[to] == 0) possible_[static_cast<std::size_t>(t.round)] = 0;
        way_of_[of_sender[k]] = known[to];
      }
      for (std::size_t k = begin; k < end; ++k) known[static_cast<std::size_t>(transfers[of_sender[k]].to)] = -1;
    }
  }

  // Keep the topology: a temporary one would be gone.
  round_routes(round_view rounds, const topology&& network, routing how = routing::split) = delete;

  constexpr const round_view& rounds() const noexcept { return rounds_; }
  constexpr const std::vector<link>& links() const noexcept { return *links_; }
  /// Whether links lead from each sender of a round to its receiver.
  constexpr bool possible(int round) const noexcept { return possible_[static_cast<std::size_t>(round)] != 0; }
  /// The way of a message, given its number in `rounds().transfers()`. Empty where there is none.
  constexpr const route_table& way(int transfer) const noexcept {
    return ways_[static_cast<std::size_t>(way_of_[static_cast<std::size_t>(transfer)])];
  }

 private:
  round_view rounds_;
  const std::vector<link>* links_;
  std::vector<char> possible_;
  std::vector<route_table> ways_;
  std::vector<int> way_of_;
};

/// What a round puts on the links.
struct round_load {
  int dilation = 0;       ///< links on the longest way of a message
  double latency = 0;     ///< seconds of the slowest way
  double congestion = 0;  ///< messages over the link that most use; a message that splits counts in parts
  int busiest = -1;       ///< the link that needs most time for its bytes; -1: nothing is sent
  double bytes = 0;       ///< what the busiest link carries
  double transfer = 0;    ///< seconds it needs for them
  bool possible = true;   ///< whether links lead from each sender to its receiver

  /// What the round takes where all ranks begin it together, messages do not overtake each other and links are shared
  /// fairly: latency and congestion.
  constexpr double seconds() const noexcept { return latency + transfer; }
  friend constexpr bool operator==(const round_load&, const round_load&) = default;
};

/// How many bytes each link carries in each round, and what follows for the rounds.
/// Units: bytes, seconds; `elements` as in `extent_of`: those of the vector that the collective cuts.
class load_map {
 public:
  constexpr load_map(const round_routes& ways, std::int64_t elements, std::int64_t element_bytes)
      : links_(ways.links().size()), rounds_(static_cast<std::size_t>(ways.rounds().rounds())) {
    bytes_.assign(links_ * rounds_.size(), 0);
    messages_.assign(links_ * rounds_.size(), 0);
    const std::span<const round_transfer> transfers = ways.rounds().transfers();
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      const round_transfer& t = transfers[i];
      const route_table& way = ways.way(static_cast<int>(i));
      const std::int64_t size = elements_of(ways.rounds(), t, elements) * element_bytes;
      const std::size_t row = static_cast<std::size_t>(t.round) * links_;
      for (const route_step& step : way.steps) {
        bytes_[row + static_cast<std::size_t>(step.link)] += step.share * static_cast<double>(size);
        messages_[row + static_cast<std::size_t>(step.link)] += step.share;
      }
      round_load& load = rounds_[static_cast<std::size_t>(t.round)];
      if (load.dilation < way.hops) load.dilation = way.hops;
      if (load.latency < way.seconds) load.latency = way.seconds;
    }
    for (std::size_t k = 0; k < rounds_.size(); ++k) {
      round_load& load = rounds_[k];
      load.possible = ways.possible(static_cast<int>(k));
      for (std::size_t l = 0; l < links_; ++l) {
        if (load.congestion < messages_[k * links_ + l]) load.congestion = messages_[k * links_ + l];
        const double seconds = bytes_[k * links_ + l] / ways.links()[l].bytes_per_second;
        if (messages_[k * links_ + l] <= 0 || (load.busiest >= 0 && seconds <= load.transfer)) continue;
        load.busiest = static_cast<int>(l);
        load.bytes = bytes_[k * links_ + l];
        load.transfer = seconds;
      }
    }
  }
  constexpr load_map(round_view rounds, const topology& network, std::int64_t elements, std::int64_t element_bytes,
                     routing how = routing::split)
      : load_map(round_routes(rounds, network, how), elements, element_bytes) {}

  constexpr int rounds() const noexcept { return static_cast<int>(rounds_.size()); }
  constexpr int links() const noexcept { return static_cast<int>(links_); }
  constexpr const round_load& operator[](int round) const noexcept { return rounds_[static_cast<std::size_t>(round)]; }
  constexpr double bytes(int round, int link) const noexcept { return bytes_[at(round, link)]; }
  constexpr double messages(int round, int link) const noexcept { return messages_[at(round, link)]; }
  /// What a link carries in all rounds.
  constexpr double bytes(int link) const noexcept {
    double sum = 0;
    for (int k = 0; k < rounds(); ++k) sum += bytes(k, link);
    return sum;
  }
  /// All rounds, one after the other.
  constexpr double seconds() const noexcept {
    double sum = 0;
    for (const round_load& load : rounds_) sum += load.seconds();
    return sum;
  }

 private:
  constexpr std::size_t at(int round, int link) const noexcept {
    return static_cast<std::size_t>(round) * links_ + static_cast<std::size_t>(link);
  }

  std::size_t links_;
  std::vector<double> bytes_;
  std::vector<double> messages_;
  std::vector<round_load> rounds_;
};

}  // namespace heddle::inline v0
