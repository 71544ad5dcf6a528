// heddle/sim/temporal_fusion.hpp: simulates one decoder that fuses requests' steps.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/min_move_window.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::sim {

/// A request that is ready to decode at `arrival_s` and leaves after `tokens` steps.
struct fused_request {
  double arrival_s = 0;
  std::int64_t tokens = 0;
};

/// What a step takes: `step_s` for one row, of which each further row adds the fraction `per_row`, and each token that a row has in the cache the fraction `per_token`.
struct fused_step_costs {
  double step_s = 0;
  double per_row = 0;
  double per_token = 0;
};

/// What became of the requests. Units: seconds, steps, rows, moves of a slot.
struct fused_decoding {
  double makespan_s = 0;  ///< from time 0 until the last request leaves
  std::vector<double> end_s{};
  std::int64_t steps = 0;
  std::int64_t rows = 0;
  std::int64_t most_rows = 0;
  std::int64_t moves = 0;
};

/// Seconds until n requests that arrive `interval_s` apart are done, each of which takes `alone_s` alone, if a step of all in flight takes `slowdown` times as long as one of one.
/// Source: derived from Flover, arXiv:2305.13484, whose measured makespans it gives.
constexpr double fused_makespan(std::int64_t n, double interval_s, double alone_s, double slowdown) noexcept {
  return static_cast<double>(n - 1) * interval_s + slowdown * alone_s;
}

/// Tokens of all requests of a simulation together are fewer: each of them takes a step of one of them.
inline constexpr std::int64_t most_fused_tokens = std::int64_t{1} << 30;

/// Runs the loop: requests that have arrived take slots, in the order given, at most `slots` at once; each step computes all slots from the first to the last in use. With `close_holes`
/// slots in use are moved together before each step (`min_move_window`), else a slot that was left within them is computed on. Takes time proportional to the rows of all steps.
/// Errors: `config_error` for no slots, no tokens, arrivals that are not finite or do not ascend, costs that are not finite or negative, `most_fused_tokens` or more
/// tokens of all requests together, and for times beyond what a double holds.
inline fused_decoding simulate_temporal_fusion(const std::vector<fused_request>& requests,
                                               const fused_step_costs& costs, std::int64_t slots, bool close_holes) {
  const auto show = [](double x) { return number_text(x); };
  const auto is_cost = [](double x) { return std::isfinite(x) && x >= 0; };
  if (slots < 1)
    throw config_error("heddle: fused decoding should have at least one slot, got " + std::to_string(slots) + " slots");
  if (!is_cost(costs.step_s) || !is_cost(costs.per_row) || !is_cost(costs.per_token))
    throw config_error("heddle: costs of a step of fused decoding should be finite and not negative, got " +
                       show(costs.step_s) + " s, " + show(costs.per_row) + " per row and " + show(costs.per_token) +
                       " per token");
  std::int64_t tokens = 0;  // of all requests so far
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const fused_request& r = requests[i];
    if (r.tokens < 1 || !std::isfinite(r.arrival_s) || (i > 0 && r.arrival_s < requests[i - 1].arrival_s))
      throw config_error(
          "heddle: fused decoding should have requests of at least one token and finite, ascending arrivals, got "
          "request " +
          std::to_string(i) + " of " + std::to_string(r.tokens) + " tokens at " + show(r.arrival_s) + " s");
    if (r.tokens >= most_fused_tokens - tokens)
      throw config_error("heddle: requests of fused decoding should have fewer than " +
                         std::to_string(most_fused_tokens) + " tokens together, got " + std::to_string(tokens) +
                         " and request " + std::to_string(i) + " of " + std::to_string(r.tokens));
    tokens += r.tokens;
  }
  struct slot {
    std::size_t request = 0;
    std::int64_t left = 0;
    std::int64_t cached = 0;
  };
  fused_decoding found;
  found.end_s.resize(requests.size());
  // A slot is added for a request that came, so there are never more than requests.
  std::vector<slot> at((std::min)(static_cast<std::size_t>(slots), requests.size()));
  std::vector<std::uint8_t> used(at.size(), 0);
  std::size_t next = 0, low = 0, high = 0;  // slots low, ..., high - 1 are computed
  double now = 0;
  while (true) {
    if (close_holes) {
      const slot_window w = min_move_window(used);
      for (const slot_move& m : w.moves) {
        const auto from = static_cast<std::size_t>(m.from), to = static_cast<std::size_t>(m.to);
        at[to] = at[from];
        used[to] = std::exchange(used[from], std::uint8_t{0});
      }
      found.moves += std::ssize(w.moves);
    }
    while (low < high && used[low] == 0) ++low;
    while (high > low && used[high - 1] == 0) --high;
    if (low == high) {
      if (next == requests.size()) return found;
      low = high = 0;
      now = (std::max)(now, requests[next].arrival_s);
    }
    while (next < requests.size() && requests[next].arrival_s <= now) {
      std::size_t to = low;
      while (to < high && used[to] != 0) ++to;
      if (to == high && high < at.size())
        ++high;
      else if (to == high && low > 0)
        to = --low;
      else if (to == high)
        break;  // waits
      at[to] = {next, requests[next].tokens, 0};
      used[to] = 1;
      ++next;
    }
    std::int64_t cached = 0;
    for (std::size_t i = low; i < high; ++i) cached += at[i].cached++;
    const auto rows = static_cast<std::int64_t>(high - low);
    now += costs.step_s *
           (1 + costs.per_row * static_cast<double>(rows - 1) + costs.per_token * static_cast<double>(cached));
    if (!std::isfinite(now))
      throw config_error("heddle: fused decoding should end at a time that a double holds, got " + show(now) +
                         " s after " + std::to_string(found.steps + 1) + " steps");
    for (std::size_t i = low; i < high; ++i)
      if (used[i] != 0 && --at[i].left == 0) {
        used[i] = 0;
        found.end_s[at[i].request] = found.makespan_s = now;
      }
    ++found.steps;
    found.rows += rows;
    found.most_rows = (std::max)(found.most_rows, rows);
  }
}

}  // namespace heddle::inline v0::sim
