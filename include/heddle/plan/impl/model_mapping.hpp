// heddle/plan/impl/model_mapping.hpp: bodies of heddle/plan/model_mapping.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/plan/model_mapping.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

namespace heddle::inline v0::plan {
namespace detail {

// Seconds of the models of each stage, for one set on so many devices.
inline std::vector<double> seconds_of_set(const mapped_models& of, const std::vector<int>& set_of, int set,
                                          int devices) {
  std::vector<double> all(static_cast<std::size_t>(of.stages));
  for (int s = 0; s < of.stages; ++s)
    for (int m = 0; m < of.models; ++m)
      if (set_of[static_cast<std::size_t>(m)] == set) all[static_cast<std::size_t>(s)] += of.seconds(m, s, devices);
  return all;
}

}  // namespace detail

HEDDLE_INLINE std::vector<std::vector<int>> set_partitions(int things) {
  if (things < 1 || things > 10)
    throw config_error("heddle: set_partitions lists those of 1 to 10 things, got " + std::to_string(things));
  std::vector<std::vector<int>> all;
  std::vector<int> set_of;
  const auto add = [&](auto&& self, int sets) -> void {
    if (std::ssize(set_of) == things) return all.push_back(set_of);
    for (int s = 0; s <= sets; ++s) {
      set_of.push_back(s);
      self(self, s == sets ? sets + 1 : sets);
      set_of.pop_back();
    }
  };
  add(add, 0);
  return all;
}

HEDDLE_INLINE double seconds_of(const model_mapping& mapping, const mapped_models& of) {
  std::vector<double> most(static_cast<std::size_t>(of.stages));
  for (std::size_t set = 0; set < mapping.devices.size(); ++set) {
    const auto own = detail::seconds_of_set(of, mapping.set_of, static_cast<int>(set), mapping.devices[set]);
    for (std::size_t s = 0; s < most.size(); ++s) most[s] = (std::max)(most[s], own[s]);
  }
  double sum = 0;
  for (const double s : most) sum += s;
  return sum;
}

HEDDLE_INLINE model_mapping map_models(const mapped_models& of, int devices) {
  if (of.models < 1 || of.stages < 1 || devices < 1 || (!of.bytes.empty() && std::ssize(of.bytes) != of.models))
    throw config_error("heddle: map_models: at least 1 model, stage and device, and bytes of each model; got " +
                       std::to_string(of.models) + ", " + std::to_string(of.stages) + ", " + std::to_string(devices) +
                       " and " + std::to_string(of.bytes.size()));
  model_mapping best;
  best.seconds = std::numeric_limits<double>::infinity();
  for (const std::vector<int>& set_of : set_partitions(of.models)) {
    const int sets = *std::max_element(set_of.begin(), set_of.end()) + 1;
    std::vector<int> fewest(static_cast<std::size_t>(sets), 1);  // with the memory
    std::vector<std::vector<std::vector<double>>> seconds(static_cast<std::size_t>(sets));
    int needed = 0;
    for (int set = 0; set < sets; ++set) {
      double bytes = 0;
      for (int m = 0; m < of.models; ++m)
        if (set_of[static_cast<std::size_t>(m)] == set && !of.bytes.empty())
          bytes += of.bytes[static_cast<std::size_t>(m)];
      int& n = fewest[static_cast<std::size_t>(set)];
      if (of.bytes_per_device > 0)
        n = static_cast<int>((std::min)((std::max)(1.0, std::ceil(bytes / of.bytes_per_device)), devices + 1.0));
      needed += n;
      for (int d = 0; d <= devices; ++d)
        seconds[static_cast<std::size_t>(set)].push_back(d < n ? std::vector<double>{}
                                                               : detail::seconds_of_set(of, set_of, set, d));
    }
    std::vector<int> given;
    const auto give = [&](auto&& self, int left, int left_needed, const std::vector<double>& most) -> void {
      double sum = 0;
      for (const double s : most) sum += s;
      if (!(sum < best.seconds)) return;  // further sets only add
      const auto set = given.size();
      if (set == static_cast<std::size_t>(sets)) {
        best = {set_of, given, sum};
        return;
      }
      const int others = left_needed - fewest[set];
      const bool last = set + 1 == static_cast<std::size_t>(sets);
      for (int n = last ? left : fewest[set]; n <= left - others; ++n) {
        std::vector<double> now = most;
        for (std::size_t s = 0; s < now.size(); ++s)
          now[s] = (std::max)(now[s], seconds[set][static_cast<std::size_t>(n)][s]);
        given.push_back(n);
        self(self, left - n, others, now);
        given.pop_back();
      }
    };
    if (needed <= devices) give(give, devices, needed, std::vector<double>(static_cast<std::size_t>(of.stages)));
  }
  if (best.devices.empty())
    throw config_error("heddle: map_models: no sets of the " + std::to_string(of.models) + " models fit on " +
                       std::to_string(devices) + " devices");
  return best;
}

}  // namespace heddle::inline v0::plan
