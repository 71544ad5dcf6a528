// heddle/plan/reconfigure.hpp: the rounds before which an optical fabric switches.
#pragma once

#include <heddle/collective/round_load.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {

/// Optical circuits between ranks. Units: seconds, bytes per second in one direction.
/// The bandwidth is that of a rank, all its ports together: a circuit for which a rank uses one of four ports has a quarter
/// of it. The links of a fixed topology have their own bandwidths: `port()` is what a link of it should have.
struct circuit_switch {
  double seconds = 0;                  ///< latency of a circuit
  double bytes_per_second = 1;         ///< what a rank can send through all its ports
  int ports = 1;                       ///< how many circuits can leave a rank, and how many can end at it
  double reconfiguration_seconds = 0;  ///< what switching takes; nothing is sent meanwhile

  /// A link that uses one port.
  constexpr link_class port() const noexcept { return {seconds, bytes_per_second / ports, link_kind::optical}; }
};

namespace detail {
constexpr void require_switch(const circuit_switch& fabric) {
  if (!(fabric.seconds >= 0) || !(fabric.bytes_per_second > 0) || fabric.ports < 1 ||
      !(fabric.reconfiguration_seconds >= 0))
    throw config_error(
        "heddle: a circuit switch needs latencies of at least 0 seconds, a bandwidth above 0 and at least one port");
}

// Who sends to whom in a round, and with how many peers each rank deals.
struct round_pairs {
  std::vector<std::pair<int, int>> pairs;  // in order of the ranks, so that equal circuits make equal topologies
  std::vector<int> out, in;
};
constexpr round_pairs pairs_of(const round_view& rounds, int round) {
  const auto p = static_cast<std::size_t>(rounds.ranks());
  round_pairs result{{}, std::vector<int>(p, 0), std::vector<int>(p, 0)};
  for (const round_transfer& t : rounds.round(round)) result.pairs.emplace_back(t.from, t.to);
  std::sort(result.pairs.begin(), result.pairs.end());
  result.pairs.erase(std::unique(result.pairs.begin(), result.pairs.end()), result.pairs.end());
  for (const auto& [from, to] : result.pairs) {
    ++result.out[static_cast<std::size_t>(from)];
    ++result.in[static_cast<std::size_t>(to)];
  }
  return result;
}
}  // namespace detail

/// How many ports a rank must have so that circuits can join all senders of a round with their receivers.
constexpr int ports_needed(round_view rounds, int round) {
  const detail::round_pairs pairs = detail::pairs_of(rounds, round);
  int most = 0;
  for (const std::vector<int>* counts : {&pairs.out, &pairs.in})
    for (const int n : *counts) most = n > most ? n : most;
  return most;
}

/// The topology matched to a round: a circuit from each sender to its receiver and no others. Where a rank has several
/// peers its ports are dealt out evenly; those left over stay dark. A fabric of more `ranks` than the rounds have leaves
/// the others without circuits. Errors: `config_error` if there are too few ports.
constexpr topology circuits_of(round_view rounds, int round, const circuit_switch& fabric, int ranks = 0) {
  const detail::round_pairs pairs = detail::pairs_of(rounds, round);
  topology result((std::max)(ranks, rounds.ranks()));
  for (const auto& [from, to] : pairs.pairs) {
    const int leaving = pairs.out[static_cast<std::size_t>(from)], ending = pairs.in[static_cast<std::size_t>(to)];
    const int peers = leaving > ending ? leaving : ending;
    if (peers > fabric.ports) {
      throw config_error(text_of(
          {"heddle: round ", round, " needs ", peers, " circuits at a rank, which has ", fabric.ports, " ports"}));
    }
    const double share = static_cast<double>(fabric.ports / peers) / fabric.ports;
    result.add_link(from, to, {fabric.seconds, fabric.bytes_per_second * share, link_kind::optical});
  }
  return result;
}

/// The states in which a fabric may be during a collective. Number 0 is the one in which it stands before; then come those
/// that were added; then the circuits matched to each round, equal ones once. It holds the ways of all messages on all of
/// them, so that plans for many sizes and delays are cheap.
/// Refers to the table, which must live as long. Errors: `config_error` for a switch that cannot be.
class fabric_states {
 public:
  constexpr fabric_states(round_view rounds, const topology& start, const circuit_switch& fabric,
                          std::vector<topology> more = {}, routing how = routing::split)
      : rounds_(rounds), fabric_(fabric) {
    detail::require_switch(fabric);
    matched_.assign(static_cast<std::size_t>(rounds.rounds()), -1);
    states_.push_back(start);
    for (topology& t : more) add(std::move(t));
    given_ = static_cast<int>(states_.size());
    for (int k = 0; k < rounds.rounds(); ++k)
      if (ports_needed(rounds, k) <= fabric.ports)
        matched_[static_cast<std::size_t>(k)] = add(circuits_of(rounds, k, fabric, start.ranks()));
    for (const topology& t : states_) ways_.emplace_back(rounds_, t, how);
  }
  fabric_states(const fabric_states&) = delete;  // the ways refer to the states
  fabric_states& operator=(const fabric_states&) = delete;

  constexpr const round_view& rounds() const noexcept { return rounds_; }
  constexpr const circuit_switch& fabric() const noexcept { return fabric_; }
  constexpr int size() const noexcept { return static_cast<int>(states_.size()); }
  constexpr const topology& operator[](int state) const noexcept { return states_[static_cast<std::size_t>(state)]; }
  constexpr const round_routes& ways(int state) const noexcept { return ways_[static_cast<std::size_t>(state)]; }
  /// The number of a state that is this topology; -1 if none is.
  constexpr int find(const topology& t) const {
    for (std::size_t i = 0; i < states_.size(); ++i)
      if (states_[i] == t) return static_cast<int>(i);
    return -1;
  }
  /// The state matched to a round; -1 if the ports do not suffice.
  constexpr int matched(int round) const noexcept { return matched_[static_cast<std::size_t>(round)]; }
  /// "the start", "topology 1" or "the circuits of round 4".
  constexpr std::string name(int state) const {
    if (state == 0) return "the start";
    std::string text = state < given_ ? "topology " : "the circuits of round ";
    int number = state;
    for (int k = 0; k < rounds_.rounds() && state >= given_; ++k)
      if (matched(k) == state) {
        number = k;
        break;
      }
    text += std::to_string(number);
    return text;
  }

 private:
  constexpr int add(topology&& t) {
    if (const int there = find(t); there >= 0) return there;
    states_.push_back(std::move(t));
    return static_cast<int>(states_.size()) - 1;
  }

  round_view rounds_;
  circuit_switch fabric_;
  int given_ = 1;
  std::vector<topology> states_;
  std::vector<int> matched_;
  std::vector<round_routes> ways_;
};

/// What each round takes in each state; infinity where a message of it finds no way. Units: seconds.
class state_costs {
 public:
  /// `elements` as in `load_map`: those of the vector that the collective cuts.
  /// Errors: `config_error` for sizes below 0, or a vector of 2^63 bytes or more.
  constexpr state_costs(const fabric_states& states, std::int64_t elements, std::int64_t element_bytes)
      : rounds_(states.rounds().rounds()), states_(states.size()) {
    if (elements < 0 || element_bytes < 0 ||
        (element_bytes > 0 && elements > (std::numeric_limits<std::int64_t>::max)() / element_bytes)) {
      throw config_error(text_of({"heddle: reconfigure: a collective of ", elements, " elements of ", element_bytes,
                                  " bytes each; give sizes of at least 0 that are less than 2^63 bytes together"}));
    }
    seconds_.assign(static_cast<std::size_t>(rounds_) * static_cast<std::size_t>(states_),
                    std::numeric_limits<double>::infinity());
    for (int s = 0; s < states_; ++s) {
      const load_map loads(states.ways(s), elements, element_bytes);
      for (int k = 0; k < rounds_; ++k)
        if (loads[k].possible) seconds_[at(k, s)] = loads[k].seconds();
    }
  }
  constexpr int rounds() const noexcept { return rounds_; }
  constexpr int states() const noexcept { return states_; }
  constexpr double operator()(int round, int state) const noexcept { return seconds_[at(round, state)]; }

 private:
  constexpr std::size_t at(int round, int state) const noexcept {
    return static_cast<std::size_t>(round) * static_cast<std::size_t>(states_) + static_cast<std::size_t>(state);
  }
  int rounds_;
  int states_;
  std::vector<double> seconds_;
};

/// Says to `reconfigure` that the fabric may stay as the last round left it; otherwise name the state to go to.
inline constexpr int stay = -2;  // not what `fabric_states::find` gives for a topology that is none of them

/// A plan: the state of the fabric in each round.
struct reconfiguration {
  double seconds = 0;       ///< transfers and switching
  int switches = 0;         ///< how often the fabric is switched, at the end too if it is to return
  int last = 0;             ///< the state in which it is left
  std::vector<int> states;  ///< per round

  constexpr bool possible() const noexcept { return seconds < std::numeric_limits<double>::infinity(); }
  /// Whether the fabric is switched before a round; `rounds` asks about the end.
  constexpr bool switches_before(int round) const noexcept {
    const auto k = static_cast<std::size_t>(round);
    return (k == 0 ? 0 : states[k - 1]) != (k < states.size() ? states[k] : last);
  }
  /// Rounds that run without a switch between them: [first, end) in one state.
  struct segment {
    int first = 0;
    int end = 0;
    int state = 0;
    friend constexpr bool operator==(const segment&, const segment&) = default;
  };
  /// The plan as a program: for each segment switch to its state if the fabric is not there, and run its rounds.
  constexpr std::vector<segment> segments() const {
    std::vector<segment> all;
    for (int k = 0; k < static_cast<int>(states.size()); ++k) {
      const int state = states[static_cast<std::size_t>(k)];
      if (all.empty() || all.back().state != state) all.push_back({k, k, state});
      all.back().end = k + 1;
    }
    return all;
  }
};

/// The plan that takes the least time: a shortest path through (round, state), so exact. Between equal ones it switches
/// less often. `then` is a state in which to leave the fabric, which is paid for as well; 0 is the one it began in.
/// Where no state carries some round, `possible()` of the result is false.
/// Errors: `config_error` if the delay is negative or `then` is no state; that of `state_costs` for sizes below 0.
/// Work: rounds * states. Source: Vijaya Kumar, Devraj and Singh 2025, arXiv:2509.15450 (when to switch depends on the
/// delay alone, for any collective and any first topology); the search by dynamic programming is ours.
constexpr reconfiguration reconfigure(const state_costs& costs, double reconfiguration_seconds, int then = stay) {
  struct node {
    double seconds = std::numeric_limits<double>::infinity();
    int switches = 0;
    int before = 0;
    constexpr bool better_than(const node& o) const noexcept {
      return seconds < o.seconds || (seconds == o.seconds && switches < o.switches);
    }
  };
  if (!(reconfiguration_seconds >= 0))
    throw config_error("heddle: reconfigure: switching circuits takes at least 0 seconds");
  if (then != stay && (then < 0 || then >= costs.states())) {
    throw config_error(text_of({"heddle: reconfigure: the fabric cannot be left in state ", then, "; it has ",
                                costs.states(), " states, counted from 0 (plan::stay leaves it where it is)"}));
  }
  const auto rounds = static_cast<std::size_t>(costs.rounds());
  const auto count = static_cast<std::size_t>(costs.states());
  const auto from = [&](const node& n, std::size_t at, bool same) {
    return node{n.seconds + (same ? 0 : reconfiguration_seconds), n.switches + (same ? 0 : 1), static_cast<int>(at)};
  };
  std::vector<node> now(count), table(rounds * count);
  now[0] = {0, 0, 0};
  for (std::size_t k = 0; k < rounds; ++k) {
    std::size_t least = 0;
    for (std::size_t s = 1; s < count; ++s)
      if (now[s].better_than(now[least])) least = s;
    for (std::size_t s = 0; s < count; ++s) {
      node best = from(now[s], s, true);
      const node other = from(now[least], least, least == s);
      if (other.better_than(best)) best = other;
      best.seconds += costs(static_cast<int>(k), static_cast<int>(s));
      table[k * count + s] = best;
    }
    for (std::size_t s = 0; s < count; ++s) now[s] = table[k * count + s];
  }
  std::size_t at = 0;
  node end;
  for (std::size_t s = 0; s < count; ++s)
    if (const node n = from(now[s], s, then == stay || s == static_cast<std::size_t>(then)); n.better_than(end)) {
      end = n;
      at = s;
    }
  reconfiguration result;
  result.seconds = end.seconds;
  result.switches = end.switches;
  result.last = then == stay ? static_cast<int>(at) : then;
  result.states.assign(rounds, 0);
  for (std::size_t k = rounds; k-- > 0;) {
    result.states[k] = static_cast<int>(at);
    at = static_cast<std::size_t>(table[k * count + at].before);
  }
  return result;
}
/// The same for a vector of `elements`.
constexpr reconfiguration reconfigure(const fabric_states& states, std::int64_t elements, std::int64_t element_bytes,
                                      int then = stay) {
  return reconfigure(state_costs(states, elements, element_bytes), states.fabric().reconfiguration_seconds, then);
}

/// What the rounds take on the first topology, without a switch. Units: seconds; infinity if a message finds no way.
constexpr double static_seconds(const state_costs& costs) noexcept {
  double sum = 0;
  for (int k = 0; k < costs.rounds(); ++k) sum += costs(k, 0);
  return sum;
}

/// A plan as flat values, made at compile time: `Make` is a lambda without captures that returns a `reconfiguration`.
///
///     constexpr auto& plan = plan::static_reconfiguration<[] { return plan::reconfigure(...); }>;
template <int Rounds>
struct fixed_reconfiguration {
  double seconds = 0;
  int switches = 0;
  int last = 0;
  std::array<int, static_cast<std::size_t>(Rounds)> states{};
};
/// The plan that `Make` returns, as a `fixed_reconfiguration` made at compile time.
template <auto Make>
inline constexpr auto static_reconfiguration = [] {
  constexpr int rounds = static_cast<int>(Make().states.size());
  const reconfiguration made = Make();
  fixed_reconfiguration<rounds> result{made.seconds, made.switches, made.last, {}};
  for (std::size_t k = 0; k < result.states.size(); ++k) result.states[k] = made.states[k];
  return result;
}();

/// What a session does with the circuits after a collective.
enum class afterwards : std::uint8_t {
  stay,    ///< they stay as the last round left them
  go_home  ///< the fabric returns to the topology of the session's begin, at the price of a switch
};

/// A fabric over several collectives: each begins where the one before left the circuits, and may return to the topology
/// with which the session began.
class fabric_session {
 public:
  constexpr fabric_session(topology start, const circuit_switch& fabric)
      : home_(std::move(start)), now_(home_), fabric_(fabric) {}

  /// Plans a collective and takes the fabric through it.
  constexpr reconfiguration run(round_view rounds, std::int64_t elements, std::int64_t element_bytes,
                                afterwards then = afterwards::stay) {
    const fabric_states states(rounds, now_, fabric_, {home_});
    const reconfiguration made =
        reconfigure(states, elements, element_bytes, then == afterwards::stay ? plan::stay : states.find(home_));
    if (!made.possible()) throw config_error("heddle: no state of the fabric carries a round of this collective");
    seconds_ += made.seconds;
    switches_ += made.switches;
    now_ = topology(states[made.last]);
    return made;
  }
  constexpr const topology& now() const noexcept { return now_; }
  constexpr bool at_home() const noexcept { return now_ == home_; }
  /// Of all collectives so far.
  constexpr double seconds() const noexcept { return seconds_; }
  constexpr int switches() const noexcept { return switches_; }

 private:
  topology home_;
  topology now_;
  circuit_switch fabric_;
  double seconds_ = 0;
  int switches_ = 0;
};

}  // namespace heddle::inline v0::plan
