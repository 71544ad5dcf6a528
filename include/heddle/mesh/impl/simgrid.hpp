// heddle/mesh/impl/simgrid.hpp: bodies of heddle/mesh/simgrid.hpp.
#pragma once

#include <heddle/mesh/simgrid.hpp>
#include <heddle/mesh/topology_file.hpp>

#include <cstddef>
#include <string>

namespace heddle::inline v0 {

HEDDLE_INLINE std::string simgrid_platform(const topology& t, double flops_per_second) {
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

}  // namespace heddle::inline v0
