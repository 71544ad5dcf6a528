// heddle/rl/advantage.hpp: advantages of answers and of their tokens, from rewards.
#pragma once

#include <heddle/core/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::rl {

namespace detail {
inline void require_groups(std::size_t rewards, std::size_t group, const char* what) {
  if (group < 2 || rewards % group != 0)
    throw config_error("heddle: " + std::string(what) + " compares the answers of a group, at least 2: got " +
                       std::to_string(rewards) + " rewards in groups of " + std::to_string(group));
}
// `f(rewards of a group, their mean, advantages of the group)`; a group of equal rewards has advantages of 0, whatever
// its mean is rounded to.
template <class F>
std::vector<double> by_group(std::span<const double> rewards, std::size_t group, F&& f) {
  std::vector<double> advantages(rewards.size(), 0.0);
  for (std::size_t at = 0; at < rewards.size(); at += group) {
    const auto of = rewards.subspan(at, group);
    if (std::all_of(of.begin(), of.end(), [&](double r) { return r == of[0]; })) continue;
    double sum = 0;
    for (const double r : of) sum += r;
    f(of, sum / static_cast<double>(group), std::span(advantages).subspan(at, group));
  }
  return advantages;
}
}  // namespace detail

/// (reward - mean) / (deviation + epsilon) of each answer in its group, `group` answers beside each other; the
/// deviation is that of a sample, of group - 1. Groups of equal rewards have 0.
/// Errors: `config_error` for groups of fewer than 2, and rewards that are no whole groups.
/// Source: Shao et al. 2024, DeepSeekMath (GRPO), arXiv:2402.03300, section 4.1.
inline std::vector<double> group_normalised(std::span<const double> rewards, std::size_t group, double epsilon = 1e-4) {
  detail::require_groups(rewards.size(), group, "group_normalised");
  return detail::by_group(rewards, group, [&](auto of, double mean, auto to) {
    double squares = 0;
    for (const double r : of) squares += (r - mean) * (r - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(group - 1));
    for (std::size_t i = 0; i < group; ++i) to[i] = (of[i] - mean) / (deviation + epsilon);
  });
}

/// The reward of each answer less the mean of the others in its group.
/// Errors: as `group_normalised`. Source: Ahmadian et al. 2024 (RLOO), arXiv:2402.14740.
inline std::vector<double> leave_one_out(std::span<const double> rewards, std::size_t group) {
  detail::require_groups(rewards.size(), group, "leave_one_out");
  return detail::by_group(rewards, group, [&](auto of, double mean, auto to) {
    const auto n = static_cast<double>(group);
    for (std::size_t i = 0; i < group; ++i) to[i] = (of[i] - mean) * (n / (n - 1));
  });
}

/// Advantages of the tokens of one answer, and what a critic should have said.
struct gae_result {
  std::vector<double> advantages, returns;
};
/// Generalised advantage estimation: A[t] = d[t] + gamma lambda A[t + 1] with d[t] = reward[t] + gamma value[t + 1] -
/// value[t], 0 behind the end. Tokens that `mask` leaves out (empty: none) are skipped as if they were not there. Not
/// whitened.
/// Errors: `config_error` where lengths differ. Source: Schulman et al. 2015, arXiv:1506.02438.
inline gae_result gae(std::span<const double> rewards, std::span<const double> values, double gamma, double lambda,
                      const std::vector<bool>& mask = {}) {
  const std::size_t n = rewards.size();
  if (values.size() != n || (!mask.empty() && mask.size() != n))
    throw config_error("heddle: gae: " + std::to_string(n) + " rewards came with " + std::to_string(values.size()) +
                       " values and a mask of " + std::to_string(mask.size()));
  gae_result all{std::vector<double>(n), std::vector<double>(n)};
  double next_value = 0, next = 0;
  for (std::size_t t = n; t-- > 0;) {
    if (mask.empty() || mask[t]) {
      next = rewards[t] + gamma * next_value - values[t] + gamma * lambda * next;
      next_value = values[t];
    }
    all.advantages[t] = next;
    all.returns[t] = next + values[t];
  }
  return all;
}

}  // namespace heddle::inline v0::rl
