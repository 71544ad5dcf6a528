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

// The way to a label: its class and place among the labels of the layer before, and the option taken there.
struct layer_label {
  double seconds = 0;
  std::int64_t bytes = 0;
  std::int32_t from_class = 0, from = 0, option = 0;
};
struct layer_step {
  std::int32_t from_class = 0, from = 0, option = 0;
};

// Leaves the labels that no other is better than in both, fewest bytes first.
HEDDLE_INLINE void leave_undominated(std::vector<layer_label>& labels) {
  std::sort(labels.begin(), labels.end(), [](const layer_label& a, const layer_label& b) {
    return std::tie(a.bytes, a.seconds, a.option, a.from_class, a.from) <
           std::tie(b.bytes, b.seconds, b.option, b.from_class, b.from);
  });
  std::size_t kept = 0;
  for (const layer_label& l : labels)
    if (kept == 0 || l.seconds < labels[kept - 1].seconds) labels[kept++] = l;
  labels.resize(kept);
}

// Of each step of bytes leaves the last, fastest label; and the first of all, by which it is known whether anything fits.
HEDDLE_INLINE void leave_one_per_step(std::vector<layer_label>& labels, std::int64_t budget, std::size_t most) {
  const std::int64_t step = budget / static_cast<std::int64_t>(most) + 1;
  std::size_t kept = 1;
  for (std::size_t i = 1; i < labels.size(); ++i) {
    if (kept > 1 && labels[kept - 1].bytes / step == labels[i].bytes / step) --kept;
    labels[kept++] = labels[i];
  }
  labels.resize(kept);
}

HEDDLE_INLINE int classes_of_options(std::span<const std::vector<layer_option>> layers, std::int64_t budget,
                                     std::span<const double> changes) {
  const auto good = [](double v) { return v >= 0 && v < std::numeric_limits<double>::infinity(); };
  const int classes = changes.empty() ? 1 : static_cast<int>(std::lround(std::sqrt(static_cast<double>(changes.size()))));
  bool all = budget >= 0 && (changes.empty() || std::ssize(changes) == std::ptrdiff_t{classes} * classes);
  for (const double c : changes) all = all && good(c);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].empty()) throw config_error("heddle: layer " + std::to_string(l) + " has no strategy to choose");
    for (const layer_option& o : layers[l]) {
      all = all && good(o.seconds) && o.bytes >= 0 && o.bytes <= std::numeric_limits<std::int64_t>::max() / 4096;
      if (o.layout < 0 || o.layout >= classes)
        throw config_error("heddle: a strategy of layer " + std::to_string(l) + " is of layout class " +
                           std::to_string(o.layout) + "; there are " + std::to_string(classes));
    }
  }
  if (!all)
    throw config_error(
        "heddle: seconds, bytes and the budget of layers are finite and not negative, and changes of layout are one for "
        "each pair of classes");
  return classes;
}

}  // namespace detail

HEDDLE_INLINE layer_strategies choose_layer_strategies(std::span<const std::vector<layer_option>> layers,
                                                       std::int64_t budget, std::span<const double> changes,
                                                       std::size_t most_labels) {
  using detail::layer_label;
  const auto classes = static_cast<std::size_t>(detail::classes_of_options(layers, budget, changes));
  if (most_labels < 1) throw config_error("heddle: a frontier has at least 1 label");
  const std::size_t n = layers.size();
  layer_strategies result;
  std::vector<std::int64_t> least_behind(n + 1, 0);  // bytes of the layers from here on, at least
  for (std::size_t l = n; l-- > 0;) {
    const auto fewest = std::min_element(layers[l].begin(), layers[l].end(), [](auto& a, auto& b) { return a.bytes < b.bytes; });
    least_behind[l] = least_behind[l + 1] + fewest->bytes;
  }
  result.least_bytes = least_behind[0];
  if (result.least_bytes > budget) return result;

  std::vector<std::vector<std::vector<detail::layer_step>>> steps(n);  // of layer, class, label
  std::vector<std::vector<layer_label>> now(classes), before(classes);
  for (std::size_t l = 0; l < n; ++l) {
    for (std::size_t to = 0; to < classes; ++to) {  // what a layer of class `to` begins with
      before[to].clear();
      if (l == 0) before[to].push_back({});
      for (std::size_t from = 0; l > 0 && from < classes; ++from) {
        const double change = changes.empty() ? 0 : changes[from * classes + to];
        for (std::size_t k = 0; k < now[from].size(); ++k)
          before[to].push_back({now[from][k].seconds + change, now[from][k].bytes, static_cast<std::int32_t>(from),
                                static_cast<std::int32_t>(k), 0});
      }
      if (l > 0 && classes > 1) detail::leave_undominated(before[to]);
    }
    for (auto& labels : now) labels.clear();
    for (std::size_t o = 0; o < layers[l].size(); ++o) {
      const layer_option& option = layers[l][o];
      const auto layout = static_cast<std::size_t>(option.layout);
      for (const layer_label& b : before[layout]) {
        if (b.bytes + option.bytes + least_behind[l + 1] > budget) break;  // fewest bytes first
        now[layout].push_back({b.seconds + option.seconds, b.bytes + option.bytes, b.from_class, b.from,
                               static_cast<std::int32_t>(o)});
      }
    }
    steps[l].resize(classes);
    for (std::size_t c = 0; c < classes; ++c) {
      detail::leave_undominated(now[c]);
      if (now[c].size() > most_labels) {
        detail::leave_one_per_step(now[c], budget, most_labels);
        result.rounded = true;
      }
      result.labels = (std::max)(result.labels, now[c].size());
      for (const layer_label& k : now[c]) steps[l][c].push_back({k.from_class, k.from, k.option});
    }
  }
  if (n == 0) {
    result.seconds = 0;
    return result;
  }
  std::size_t at_class = 0, at = 0;
  for (std::size_t c = 0; c < classes; ++c)
    for (std::size_t k = 0; k < now[c].size(); ++k)
      if (now[c][k].seconds < result.seconds) {
        result.seconds = now[c][k].seconds;
        result.bytes = now[c][k].bytes;
        at_class = c, at = k;
      }
  result.chosen.resize(n);
  for (std::size_t l = n; l-- > 0;) {
    const detail::layer_step& step = steps[l][at_class][at];
    result.chosen[l] = step.option;
    at_class = static_cast<std::size_t>(step.from_class);
    at = static_cast<std::size_t>(step.from);
  }
  return result;
}

}  // namespace heddle::inline v0::plan
