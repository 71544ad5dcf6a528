// heddle/mesh/simgrid.hpp: a topology as a platform of SimGrid, on which MPI programs run in virtual time.
#pragma once

#include <heddle/mesh/topology_file.hpp>

#include <cstddef>
#include <string>

namespace heddle::inline v0 {

/// The platform file (format 4.1) of a topology: one host `rank-0`, `rank-1`, ... per rank, one link `link-0`, ... per
/// link in the topology's numbering, and for every pair of ranks the way that `routing::single` takes.
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
inline std::string simgrid_platform(const topology& t, double flops_per_second = 1e11) {
  std::string text =
      "<?xml version=\"1.0\"?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
      "<platform version=\"4.1\">\n  <zone id=\"cluster\" routing=\"Full\">\n";
  for (int r = 0; r < t.ranks(); ++r) {
    text.append("    <host id=\"rank-").append(std::to_string(r)).append("\" speed=\"");
    detail::append_number(text, flops_per_second);
    text.append("f\"/>\n");
  }
  for (std::size_t i = 0; i < t.links().size(); ++i) {
    const link& l = t.links()[i];
    text.append("    <link id=\"link-").append(std::to_string(i)).append("\" bandwidth=\"");
    detail::append_number(text, l.bytes_per_second < 1e18 ? l.bytes_per_second : 1e18);
    text.append("Bps\" latency=\"");
    detail::append_number(text, l.seconds);
    text.append("s\"/>\n");
  }
  for (int a = 0; a < t.ranks(); ++a)
    for (int b = 0; b < t.ranks(); ++b) {
      if (a == b) continue;
      text.append("    <route src=\"rank-")
          .append(std::to_string(a))
          .append("\" dst=\"rank-")
          .append(std::to_string(b));
      text.append("\" symmetrical=\"NO\">");
      for (const route_step& s : t.route(a, b))
        text.append("<link_ctn id=\"link-").append(std::to_string(s.link)).append("\"/>");
      text.append("</route>\n");
    }
  text += "  </zone>\n</platform>\n";
  return text;
}

/// The hostfile that goes with it: MPI's rank r runs on host `rank-r`.
inline std::string simgrid_hostfile(const topology& t) {
  std::string text;
  for (int r = 0; r < t.ranks(); ++r) text.append("rank-").append(std::to_string(r)).append("\n");
  return text;
}

}  // namespace heddle::inline v0
