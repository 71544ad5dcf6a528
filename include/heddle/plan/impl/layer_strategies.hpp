// heddle/plan/impl/layer_strategies.hpp: bodies of heddle/plan/layer_strategies.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/plan/layer_strategies.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace heddle::inline v0::plan {
namespace detail {

HEDDLE_INLINE int classes_of_options(std::span<const std::vector<layer_option>> layers, std::int64_t budget,
                                     std::span<const double> changes) {
  const auto good = [](double v) { return v >= 0 && v < std::numeric_limits<double>::infinity(); };
  const int classes =
      changes.empty() ? 1 : static_cast<int>(std::lround(std::sqrt(static_cast<double>(changes.size()))));
  bool all = budget >= 0 && (changes.empty() || std::ssize(changes) == std::ptrdiff_t{classes} * classes);
  for (const double c : changes) all = all && good(c);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].empty()) throw config_error("heddle: layer " + std::to_string(l) + " has no strategy to choose");
    for (const layer_option& o : layers[l]) {
      all = all && good(o.seconds) && o.bytes >= 0 && o.bytes <= (std::numeric_limits<std::int64_t>::max)() / 4096;
      if (o.layout < 0 || o.layout >= classes)
        throw config_error("heddle: a strategy of layer " + std::to_string(l) + " is of layout class " +
                           std::to_string(o.layout) + "; there are " + std::to_string(classes));
    }
  }
  if (!all)
    throw config_error(
        "heddle: seconds, bytes and the budget of layers are finite and not negative, and changes of layout are one "
        "for "
        "each pair of classes");
  return classes;
}

}  // namespace detail

// Leaves the labels that no other is better than in both, fewest bytes first.
HEDDLE_INLINE void layer_frontier::leave_undominated(std::vector<label>& labels) {
  std::sort(labels.begin(), labels.end(), [](const label& a, const label& b) {
    return std::tie(a.bytes, a.seconds, a.option, a.from_class, a.from) <
           std::tie(b.bytes, b.seconds, b.option, b.from_class, b.from);
  });
  std::size_t kept = 0;
  for (const label& l : labels)
    if (kept == 0 || l.seconds < labels[kept - 1].seconds) labels[kept++] = l;
  labels.resize(kept);
}

// Of each step of bytes leaves the last, fastest label; and the first of all, which says whether anything fits.
HEDDLE_INLINE void layer_frontier::leave_one_per_step(std::vector<label>& labels, std::int64_t step) {
  std::size_t kept = 1;
  for (std::size_t i = 1; i < labels.size(); ++i) {
    if (kept > 1 && labels[kept - 1].bytes / step == labels[i].bytes / step) --kept;
    labels[kept++] = labels[i];
  }
  labels.resize(kept);
}

HEDDLE_INLINE layer_frontier::layer_frontier(std::span<const std::vector<layer_option>> layers, std::int64_t budget,
                                             std::span<const double> changes, std::size_t most_labels)
    : budget_(budget) {
  const auto classes = static_cast<std::size_t>(detail::classes_of_options(layers, budget, changes));
  if (most_labels < 1) throw config_error("heddle: a frontier has at least 1 label");
  labels_.resize(layers.size());
  std::vector<label> before;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    std::int64_t least = layers[l].front().bytes;
    for (const layer_option& o : layers[l]) least = (std::min)(least, o.bytes);
    least_bytes_.push_back(least_bytes_.back() + least);
    labels_[l].resize(classes);
    for (std::size_t to = 0; to < classes; ++to) {
      before.clear();  // what a layer of this class begins with
      if (l == 0) before.push_back({});
      for (std::size_t from = 0; l > 0 && from < classes; ++from) {
        const double change = changes.empty() ? 0 : changes[from * classes + to];
        const std::vector<label>& there = labels_[l - 1][from];
        for (std::size_t k = 0; k < there.size(); ++k)
          before.push_back({there[k].seconds + change, there[k].bytes, static_cast<std::int32_t>(k),
                            static_cast<std::int32_t>(from), 0});
      }
      if (classes > 1) leave_undominated(before);
      std::vector<label>& now = labels_[l][to];
      for (std::size_t o = 0; o < layers[l].size(); ++o) {
        const layer_option& option = layers[l][o];
        if (static_cast<std::size_t>(option.layout) != to) continue;
        for (const label& b : before) {
          if (b.bytes + option.bytes > budget) break;  // fewest bytes first
          now.push_back(
              {b.seconds + option.seconds, b.bytes + option.bytes, b.from, b.from_class, static_cast<std::int32_t>(o)});
        }
      }
      leave_undominated(now);
      if (now.size() > most_labels) {
        leave_one_per_step(now, budget / static_cast<std::int64_t>(most_labels) + 1);
        rounded_ = true;
      }
      most_ = (std::max)(most_, now.size());
    }
  }
}

HEDDLE_INLINE layer_strategies layer_frontier::choose(std::int64_t budget, std::size_t layers) const {
  if (layers > labels_.size() || budget > budget_)
    throw config_error("heddle: a frontier of " + std::to_string(labels_.size()) + " layers and " +
                       std::to_string(budget_) + " bytes was asked for " + std::to_string(layers) + " and " +
                       std::to_string(budget));
  layer_strategies result;
  result.least_bytes = least_bytes_[layers];
  result.labels = most_;
  result.rounded = rounded_;
  if (layers == 0) result.seconds = 0;
  if (layers == 0 || result.least_bytes > budget) return result;
  const label* at = nullptr;
  for (const std::vector<label>& of : labels_[layers - 1])
    for (const label& l : of) {
      if (l.bytes > budget) break;
      if (l.seconds < result.seconds) at = &l, result.seconds = l.seconds;
    }
  result.bytes = at->bytes;
  result.chosen.resize(layers);
  for (std::size_t l = layers; l-- > 0;) {
    result.chosen[l] = at->option;
    if (l > 0) at = &labels_[l - 1][static_cast<std::size_t>(at->from_class)][static_cast<std::size_t>(at->from)];
  }
  return result;
}

HEDDLE_INLINE layer_strategies choose_layer_strategies(std::span<const std::vector<layer_option>> layers,
                                                       std::int64_t budget, std::span<const double> changes,
                                                       std::size_t most_labels) {
  return layer_frontier(layers, budget, changes, most_labels).choose(budget);
}

}  // namespace heddle::inline v0::plan
