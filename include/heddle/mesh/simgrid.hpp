// heddle/mesh/simgrid.hpp: a topology as a platform of SimGrid, for MPI in virtual time.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/mesh/topology_file.hpp>

#include <cstddef>
#include <string>

namespace heddle::inline v0 {

/// How a platform file gives the ways of messages.
enum class simgrid_ways {
  /// As a route per link, from which SimGrid finds the ways, where it finds those of the topology; else as `pairs`.
  shortest,
  /// As a route for every pair of ranks: 180 MB for 1,024.
  pairs
};

/// The platform file (format 4.1) of a topology: one host `rank-0`, `rank-1`, ... per rank, one link `link-0`, ... per
/// link in the topology's numbering, and the ways that `routing::single` takes. SimGrid's own search takes ways with
/// the fewest links, through hosts, too. So there is a route per link only where each pair of ranks has one shortest
/// way, which passes no other rank: nodes with one network card, but neither rings nor nodes with several.
/// Units: `flops_per_second` of one host: what the computing between calls is counted with. Links of infinite bandwidth
/// have 1e18 bytes per second: SimGrid ends with an infinite one.
/// Errors: `mesh_error` if two ranks are not connected.
///
/// smpirun's own model slows links down as one measured cluster did, and lets each message load the way back as well.
/// With these options, on one line, a message that is alone takes exactly the latency and bandwidth of its way:
///
///     --cfg=network/model:CM02 --cfg=network/crosstraffic:0 --cfg=network/TCP-gamma:0 --cfg=network/weight-S:0
///     --cfg=network/bandwidth-factor:1 --cfg=network/latency-factor:1
///     --cfg=smpi/simulate-computation:no --cfg=smpi/wtime:0
HEDDLE_INLINE std::string simgrid_platform(const topology& t, double flops_per_second = 1e11,
                                           simgrid_ways ways = simgrid_ways::shortest);

/// The hostfile that goes with it: MPI's rank r runs on host `rank-r`.
inline std::string simgrid_hostfile(const topology& t) {
  std::string text;
  for (int r = 0; r < t.ranks(); ++r) text.append("rank-").append(std::to_string(r)).append("\n");
  return text;
}

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/mesh/impl/simgrid.hpp>
#endif
