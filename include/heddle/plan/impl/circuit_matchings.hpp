// heddle/plan/impl/circuit_matchings.hpp: bodies of heddle/plan/circuit_matchings.hpp.
#pragma once

#include <heddle/collective/round_load.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/plan/circuit_matchings.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {

HEDDLE_INLINE rank_traffic::rank_traffic(int ranks, std::vector<std::int64_t> bytes)
    : ranks_(ranks), bytes_(std::move(bytes)) {
  constexpr std::int64_t most = std::int64_t{1} << 53;
  const auto n = static_cast<std::size_t>(ranks > 0 ? ranks : 0);
  if (ranks < 1 || bytes_.size() != n * n)
    throw config_error(
        text_of({"heddle: traffic of ", ranks, " ranks, at least 1, has an entry for each pair of them; got ",
                 bytes_.size(), " entries"}));
  for (std::size_t r = 0; r < n; ++r) {
    std::int64_t sent = 0, received = 0;
    int targets = 0, sources = 0;
    bytes_[r * n + r] = (std::min)(bytes_[r * n + r], std::int64_t{0});  // a negative one is an error all the same
    for (std::size_t k = 0; k < n; ++k) {
      const std::int64_t out = bytes_[r * n + k], in = bytes_[k * n + r];
      if (out < 0)
        throw config_error(text_of({"heddle: traffic is 0 bytes or more; rank ", r, " sends ", out, " to rank ", k}));
      // Each is bounded before the sum is.
      if (out > most || (sent += out) > most)
        throw config_error(text_of({"heddle: a rank sends at most 2^53 bytes; rank ", r, " sends more"}));
      if (in > most || (in > 0 && (received += in) > most))
        throw config_error(text_of({"heddle: a rank receives at most 2^53 bytes; rank ", r, " receives more"}));
      targets += out > 0 ? 1 : 0;
      sources += in > 0 ? 1 : 0;
    }
    most_bytes_ = (std::max)({most_bytes_, sent, received});
    degree_ = (std::max)({degree_, targets, sources});
  }
}

HEDDLE_INLINE std::vector<matching> matchings(const rank_traffic& traffic) {
  const int n = traffic.ranks();
  const auto colors = static_cast<std::size_t>(traffic.degree());
  std::vector<circuit_message> messages;
  for (int from = 0; from < n; ++from)
    for (int to = 0; to < n; ++to)
      if (traffic(from, to) > 0) messages.push_back({from, to, traffic(from, to)});
  std::sort(messages.begin(), messages.end(), [](const auto& a, const auto& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.from != b.from ? a.from < b.from : a.to < b.to;
  });

  // peer_of[side][rank * colors + c]: with whom a sender, or a receiver, has its message of color c; -1: with nobody.
  std::vector<int> peer_of[2];
  for (auto& side : peer_of) side.assign(static_cast<std::size_t>(n) * colors, -1);
  const auto peer = [&](int side, int rank, std::size_t c) -> int& {
    return peer_of[side][static_cast<std::size_t>(rank) * colors + c];
  };
  const auto first_free = [&](int side, int rank) {
    std::size_t c = 0;
    while (peer(side, rank, c) >= 0) ++c;  // a rank has fewer messages besides this one than there are colors
    return c;
  };
  for (const circuit_message& m : messages) {
    std::size_t c = 0;
    while (c < colors && (peer(0, m.from, c) >= 0 || peer(1, m.to, c) >= 0)) ++c;
    if (c == colors) {
      // No color is free at both. From the receiver a path of the colors `c` and `d` in turn cannot end at the sender,
      // which has no message of color `c`: swap the colors along it, and `c` is free at both.
      c = first_free(0, m.from);
      const std::size_t d = first_free(1, m.to);
      std::vector<std::pair<int, int>> path;  // messages from, to
      int side = 1, rank = m.to;
      for (std::size_t color = c; peer(side, rank, color) >= 0; color = color == c ? d : c) {
        const int other = peer(side, rank, color);
        path.push_back(side == 1 ? std::pair{other, rank} : std::pair{rank, other});
        side = 1 - side;
        rank = other;
      }
      for (std::size_t k = 0; k < path.size(); ++k) {
        const std::size_t old = k % 2 == 0 ? c : d;
        peer(0, path[k].first, old) = peer(1, path[k].second, old) = -1;
      }
      for (std::size_t k = 0; k < path.size(); ++k) {
        const std::size_t now = k % 2 == 0 ? d : c;
        peer(0, path[k].first, now) = path[k].second;
        peer(1, path[k].second, now) = path[k].first;
      }
    }
    peer(0, m.from, c) = m.to;
    peer(1, m.to, c) = m.from;
  }
  std::vector<matching> rounds(colors);
  for (std::size_t c = 0; c < colors; ++c)
    for (int from = 0; from < n; ++from)
      if (const int to = peer(0, from, c); to >= 0) rounds[c].push_back({from, to, traffic(from, to)});
  return rounds;
}

HEDDLE_INLINE std::vector<matching> birkhoff(const rank_traffic& traffic) {
  const auto n = static_cast<std::size_t>(traffic.ranks());
  const std::int64_t all = traffic.most_bytes();
  // What is to be sent, and filled up with nothing until each row and column sums up to `all`.
  std::vector<std::int64_t> real = traffic.bytes(), left = real, row(n, all), column(n, all);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      row[i] -= real[i * n + j];
      column[j] -= real[i * n + j];
    }
  for (std::size_t i = 0, j = 0; i < n && j < n;) {
    const std::int64_t fill = (std::min)(row[i], column[j]);
    left[i * n + j] += fill;
    row[i] -= fill;
    column[j] -= fill;
    row[i] == 0 ? ++i : ++j;
  }
  // Matchings with everybody in them, each as long as its least entry, which is 0 then: so each lies in a smaller face of
  // Birkhoff's polytope, of (n - 1)^2 dimensions, than the one before.
  std::vector<matching> rounds;
  const std::size_t nobody = n;
  std::vector<std::size_t> target(n, nobody), source(n, nobody), parent(n);
  std::vector<char> seen(n);
  std::vector<std::size_t> reached;
  for (std::int64_t remains = all; remains > 0;) {
    for (std::size_t start = 0; start < n; ++start) {
      if (target[start] != nobody) continue;
      // An augmenting path by breadth first search; one exists, as all rows and columns have the same sum.
      std::fill(seen.begin(), seen.end(), char{0});
      reached.assign(1, start);
      std::size_t end = nobody;
      for (std::size_t k = 0; k < reached.size() && end == nobody; ++k)
        for (std::size_t j = 0; j < n && end == nobody; ++j) {
          if (seen[j] != 0 || left[reached[k] * n + j] == 0) continue;
          seen[j] = 1;
          parent[j] = reached[k];
          if (source[j] == nobody)
            end = j;
          else
            reached.push_back(source[j]);
        }
      while (end != nobody) {
        const std::size_t from = parent[end];
        const std::size_t before = target[from];
        target[from] = end;
        source[end] = from;
        end = before;
      }
    }
    std::int64_t length = remains;
    for (std::size_t i = 0; i < n; ++i) length = (std::min)(length, left[i * n + target[i]]);
    matching round;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t at = i * n + target[i];
      if (const std::int64_t sent = (std::min)(length, real[at]); sent > 0) {
        round.push_back({static_cast<int>(i), static_cast<int>(target[i]), sent});
        real[at] -= sent;
      }
      left[at] -= length;
      if (left[at] > 0) continue;
      source[target[i]] = nobody;
      target[i] = nobody;
    }
    remains -= length;
    if (!round.empty()) rounds.push_back(std::move(round));
  }
  return rounds;
}

HEDDLE_INLINE std::vector<matching> shifts(const rank_traffic& traffic) {
  std::vector<matching> rounds;
  const int n = traffic.ranks();
  for (int by = 1; by < n; ++by) {
    matching round;
    for (int from = 0; from < n; ++from)
      if (const int to = (from + by) % n; traffic(from, to) > 0) round.push_back({from, to, traffic(from, to)});
    if (!round.empty()) rounds.push_back(std::move(round));
  }
  return rounds;
}

HEDDLE_INLINE double matched_seconds(const std::vector<matching>& rounds, const circuit_switch& fabric) {
  double seconds = 0;
  for (const matching& round : rounds) {
    std::int64_t longest = 0;
    for (const circuit_message& m : round) longest = (std::max)(longest, m.bytes);
    seconds += fabric.reconfiguration_seconds + fabric.seconds + static_cast<double>(longest) / fabric.bytes_per_second;
  }
  return seconds;
}

HEDDLE_INLINE double least_matched_seconds(const rank_traffic& traffic, const circuit_switch& fabric) {
  return static_cast<double>(traffic.most_bytes()) / fabric.bytes_per_second +
         traffic.degree() * (fabric.reconfiguration_seconds + fabric.seconds);
}

HEDDLE_INLINE std::string to_string(traffic_way way) {
  constexpr const char* words[] = {"fixed links", "fewest matchings", "Birkhoff", "shifts"};
  return words[static_cast<std::size_t>(way)];
}

HEDDLE_INLINE traffic_plan plan_traffic(const rank_traffic& traffic, const topology& start,
                                        const circuit_switch& fabric) {
  detail::require_switch(fabric);
  const int n = traffic.ranks();
  if (start.ranks() != n)
    throw config_error(text_of({"heddle: traffic of ", n, " ranks on a fabric of ", start.ranks(), " ranks"}));
  round_builder at_once(comm_operation::all_to_all, n, 0, n * n, 1);
  for (int from = 0; from < n; ++from)
    for (int to = 0; to < n; ++to)
      if (traffic(from, to) > 0) at_once.send(0, from, to).block(from * n + to);
  round_table messages = at_once.take();
  messages.sizes = traffic.bytes();

  traffic_plan plan;
  std::vector<matching> ways[] = {{}, matchings(traffic), birkhoff(traffic), shifts(traffic)};
  for (std::size_t k = 0; k < plan.seconds_of.size(); ++k) plan.seconds_of[k] = matched_seconds(ways[k], fabric);
  const load_map loads(messages, start, 0, 1);
  if (loads.rounds() > 0)
    plan.seconds_of[0] = loads[0].possible ? loads[0].seconds() : std::numeric_limits<double>::infinity();
  const auto least = static_cast<std::size_t>(std::min_element(plan.seconds_of.begin(), plan.seconds_of.end()) -
                                              plan.seconds_of.begin());
  plan.way = static_cast<traffic_way>(least);
  plan.seconds = plan.seconds_of[least];
  plan.rounds = std::move(ways[least]);
  return plan;
}

HEDDLE_INLINE std::string to_string(const traffic_plan& plan) {
  const auto line = [&](traffic_way way) {
    const double us = 1e6 * plan.seconds_of[static_cast<std::size_t>(way)];
    return to_string(way) + ": " + heddle::rounded_text(us, 1) + " us";
  };
  std::string text = line(plan.way) + " in " + std::to_string(plan.rounds.size()) + " matchings\n";
  for (std::size_t k = 0; k < plan.seconds_of.size(); ++k)
    if (const auto way = static_cast<traffic_way>(k); way != plan.way) text += line(way) + "\n";
  return text;
}

}  // namespace heddle::inline v0::plan
