// heddle/train/cluster.hpp: a cluster as plans see it: equal devices, and network levels.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/config.hpp>
#include <heddle/model/paper/profile.hpp>
#include <heddle/model/paper/trace.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::train {

/// A level of a network: parts of so many devices that follow each other, and what a device can send inside of one.
struct cluster_level {
  std::string name{};           ///< "node", "pod", "network"
  int devices = 1;              ///< of a part; a part of the last level is the cluster
  double bytes_per_second = 1;  ///< of each device, to others in its part, all at once
  double latency_seconds = 0;   ///< of a message
};

/// Equal devices in levels of parts, the narrowest first. Rank r of a mesh is on device r. Kernels take what was measured of
/// them, where there is a profile, and otherwise what the roofline of the device says.
struct cluster {
  int devices = 1;
  std::int64_t memory = 0;  ///< bytes of a device that a program may hold
  model::roofline device{};
  std::vector<cluster_level> levels{{"device", 1, 1, 0}};
  model::kernel_profile kernels{};

  /// Errors: `config_error` naming the number and what is expected: positive rates, parts that divide the next ones.
  void validate() const;
  /// The narrowest level that has all of these devices in one part. Errors: `config_error` for a device that is not there.
  const cluster_level& level_of(std::span<const int> on) const;
  /// Of kernels one after another.
  model::traced_seconds times_of(const model::kernel_trace& trace) const {
    return model::seconds_of(trace, kernels, device);
  }
  double seconds(const model::kernel_trace& trace) const { return times_of(trace).seconds; }
};

/// How long a call of a group takes in which each rank gives `bytes` (`comm_counters`), by rings on this level: all_reduce
/// 2 (n-1)/n bytes, reduce_scatter and all_to_all (n-1)/n, all_gather (n-1) times the own block; a message its bytes,
/// nothing at the receiver. Units: seconds. 0 for one rank.
/// Source: Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521, sections 4.1 to 4.5.
HEDDLE_INLINE double seconds_of(comm_operation what, double bytes, int ranks, const cluster_level& level);

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/cluster.hpp>
#endif
