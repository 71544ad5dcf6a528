// heddle/train/impl/cluster.hpp: bodies of heddle/train/cluster.hpp.
#pragma once

#include <heddle/train/cluster.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>

namespace heddle::inline v0::train {

HEDDLE_INLINE void cluster::validate() const {
  const auto refuse = [](const std::string& what, const std::string& expected, double got) {
    throw config_error("heddle: a cluster's " + what + " should be " + expected + ", got " + number_text(got));
  };
  const auto positive = [&](const std::string& what, double x) {
    if (!(x > 0) || !std::isfinite(x)) refuse(what, "a positive number", x);
  };
  const auto not_negative = [&](const std::string& what, double x) {
    if (!(x >= 0) || !std::isfinite(x)) refuse(what, "a number of 0 or more", x);
  };
  if (devices < 1 || devices > 1 << 20) refuse("devices", "1 to 1048576", devices);
  positive("memory", static_cast<double>(memory));
  positive("flops", device.flops);
  positive("bytes_per_second", device.bytes_per_second);
  if (!(device.efficiency > 0 && device.efficiency <= 1))
    refuse("efficiency", "above 0 and at most 1", device.efficiency);
  not_negative("launch_seconds", device.launch_seconds);
  if (levels.empty()) throw config_error("heddle: a cluster has at least one level, that of its network");
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const cluster_level& l = levels[i];
    const std::string of = "level '" + l.name + "', ";
    const int within = i + 1 < levels.size() ? levels[i + 1].devices : devices;
    if (l.devices < 1 || within % l.devices != 0 || (i + 1 == levels.size() && l.devices != devices))
      refuse(of + "devices",
             i + 1 == levels.size() ? "all " + std::to_string(devices) + " devices"
                                    : "a divisor of the " + std::to_string(within) + " of the next level",
             l.devices);
    positive(of + "bytes_per_second", l.bytes_per_second);
    not_negative(of + "latency_seconds", l.latency_seconds);
  }
}

HEDDLE_INLINE const cluster_level& cluster::level_of(std::span<const int> on) const {
  if (on.empty()) return levels.front();
  const auto [first, last] = std::minmax_element(on.begin(), on.end());
  if (*first < 0 || *last >= devices)
    throw config_error("heddle: the cluster has " + std::to_string(devices) + " devices, a plan uses number " +
                       std::to_string(*first < 0 ? *first : *last));
  for (const cluster_level& l : levels)
    if (*first / l.devices == *last / l.devices) return l;
  return levels.back();
}

HEDDLE_INLINE double seconds_of(comm_operation what, double bytes, int ranks, const cluster_level& level) {
  if (ranks <= 1) return 0;
  const double n = ranks;
  const auto steps = [&](double number, double of_each) {
    return number * (level.latency_seconds + of_each / level.bytes_per_second);
  };
  switch (what) {
    case comm_operation::all_reduce:
      return steps(2 * (n - 1), bytes / n);
    case comm_operation::reduce_scatter:
    case comm_operation::reduce_scatter_v:
    case comm_operation::all_to_all:
    case comm_operation::all_to_all_v:
      return steps(n - 1, bytes / n);
    case comm_operation::all_gather:
    case comm_operation::all_gather_v:
    case comm_operation::gather:
    case comm_operation::gather_v:
      return steps(n - 1, bytes);
    case comm_operation::recv:
    case comm_operation::split:
      return 0;
    default:
      return steps(1, bytes);
  }
}

}  // namespace heddle::inline v0::train
