// heddle/observe/linux_counters.hpp: network counters of Linux as signals of a runbook.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/observe/conditions.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace heddle::inline v0::observe {

/// What changed between two readings; nothing for what this machine does not count, or where nothing was counted.
struct linux_window {
  std::optional<double> in_retransmits;   ///< segments that came in twice or not in order, part of all that came
  std::optional<double> out_retransmits;  ///< segments that were sent again, part of all that were sent
  std::optional<double> nic_share;        ///< of the busiest interface with a known speed: part of it in use
  std::optional<double>
      link_retransmits;  ///< InfiniBand: packets out of sequence or without an answer, part of all that were sent
  std::optional<double> credit_wait;  ///< InfiniBand: ticks of the port in which data waited for credits, per second
};

/// Reads /proc/net/snmp, netstat and dev, /sys/class/net/*/speed and /sys/class/infiniband/*/ports/*. Files that are absent, or that
/// say something else than expected, are absent signals. `root`: a folder in place of /.
class linux_counters {
 public:
  HEDDLE_INLINE explicit linux_counters(std::string root = {});
  /// What changed since the last call (or the construction), which was so many seconds ago.
  HEDDLE_INLINE linux_window next(double seconds);
  /// The same, given to a runbook: the cards are those of `node`, the InfiniBand link is `link`.
  HEDDLE_INLINE void add_to(runbook& to, double seconds, int node = 0, int link = 0);

 private:
  using counts = std::map<std::string, double>;
  HEDDLE_INLINE counts read() const;
  std::string root_;
  counts last_;
};

}  // namespace heddle::inline v0::observe

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/observe/impl/linux_counters.hpp>
#endif
