// heddle/train/impl/branches.hpp: bodies of heddle/train/branches.hpp.
#pragma once

#include <heddle/train/branches.hpp>

#include <heddle/core/text.hpp>
#include <heddle/io/checksum.hpp>

#include <cmath>
#include <cstring>
#include <numeric>

namespace heddle::inline v0::train {

HEDDLE_INLINE double branch_losses::barrier() const {
  if (own.empty()) return 0;
  return (std::accumulate(at_mean.begin(), at_mean.end(), 0.0) - std::accumulate(own.begin(), own.end(), 0.0)) /
         static_cast<double>(own.size());
}

namespace detail {

HEDDLE_INLINE void require_branches(const branch_options& options, int branches, int ranks, int ranks_of_trainer) {
  if (!(options.keep >= 0.5 && options.keep <= 1))
    throw config_error("heddle: branches: keep must be 0.5 (equal after one exchange) to 1 (no exchange), got " +
                       std::to_string(options.keep));
  if (options.adaptive && branches != 2)
    throw config_error(
        text_of({"heddle: branches: adaptive goes by the cosine between two branches; here are ", branches}));
  if (ranks != branches * ranks_of_trainer)
    throw config_error(text_of(
        {"heddle: branches: ", branches, " branches of trainers on ", ranks_of_trainer, " ranks are not the ", ranks,
         " ranks of the world: make trainers on world.sub<...>() of all axes but that of the branches"}));
}
HEDDLE_INLINE void require_merge_weights(std::span<const double> weights, int branches) {
  double sum = 0;
  for (const double w : weights) sum += w;
  if (static_cast<int>(weights.size()) != branches)
    throw config_error(text_of({"heddle: branches: merge needs a weight for each of the ", branches, " branches, got ",
                                static_cast<std::int64_t>(weights.size())}));
  if (!(std::abs(sum - 1) <= 1e-9))
    throw config_error("heddle: branches: the weights of a merge must add up to 1, got " + std::to_string(sum));
}
HEDDLE_INLINE std::int64_t word_of_name(const std::string& name) {
  return static_cast<std::int64_t>(io::checksum64().update(std::as_bytes(std::span(name))).value());
}
HEDDLE_INLINE std::vector<std::int64_t> words_of(std::span<const branch_parameter> all) {
  std::vector<std::int64_t> words;
  for (const branch_parameter& p : all) {
    words.push_back(p.count);
    words.push_back(static_cast<std::int64_t>(p.name.size()));
    const std::size_t at = words.size();
    words.resize(at + (p.name.size() + 7) / 8);
    if (!p.name.empty()) std::memcpy(&words[at], p.name.data(), p.name.size());
  }
  return words;
}
HEDDLE_INLINE std::vector<branch_parameter> parameters_of(std::span<const std::int64_t> words) {
  std::vector<branch_parameter> all;
  for (std::size_t at = 0; at + 1 < words.size();) {
    branch_parameter& p = all.emplace_back();
    p.count = words[at];
    p.name.resize(static_cast<std::size_t>(words[at + 1]));
    if (!p.name.empty()) std::memcpy(p.name.data(), &words[at + 2], p.name.size());
    at += 2 + (p.name.size() + 7) / 8;
  }
  return all;
}
HEDDLE_INLINE std::string difference_of_branches(std::span<const branch_parameter> mine, int branch,
                                                 std::span<const branch_parameter> first) {
  const auto say = [](std::span<const branch_parameter> all, std::size_t i) -> std::string {
    if (i >= all.size()) return "no further parameter";
    return all[i].name + " of " + std::to_string(all[i].count) + " elements";
  };
  for (std::size_t i = 0; i < (std::max)(mine.size(), first.size()); ++i) {
    if (i < mine.size() && i < first.size() && mine[i].name == first[i].name && mine[i].count == first[i].count)
      continue;
    return "heddle: branches have other parameters: branch " + std::to_string(branch) + " has " + say(mine, i) +
           " where branch 0 has " + say(first, i);
  }
  return {};
}
HEDDLE_INLINE double mean_cosine(std::span<const double> sums) {
  double sum = 0;
  std::size_t tensors = 0;
  for (std::size_t i = 0; i + 2 < sums.size(); i += 3, ++tensors) {
    const double size = std::sqrt(sums[i + 1]) * std::sqrt(sums[i + 2]);
    if (size > 0)
      sum += sums[i] / size;
    else if (sums[i + 1] == sums[i + 2])
      sum += 1;
  }
  return tensors == 0 ? 1 : sum / static_cast<double>(tensors);
}

}  // namespace detail

}  // namespace heddle::inline v0::train
