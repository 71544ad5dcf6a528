// tests/sim/visits_svg_test.cpp: the picture of a timetable has every visit, node and origin.
#include "catch.hpp"
#include "skippipe_cities/published.hpp"

#include <heddle/sim/serial_nodes.hpp>
#include <heddle/sim/visits_svg.hpp>

#include <string>
#include <vector>

namespace hd = heddle;

namespace {
int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}
}  // namespace

TEST_CASE("a picture of visits has them all", "[sim][skippipe]") {
  const auto paths = published::collision_aware();
  const auto times = hd::sim::serial_nodes{}(paths, published::costs());
  std::vector<std::string> names(20, "a <node>");
  const std::string svg = hd::sim::visits_svg(paths, times, names, "SkipPipe", 80);
  CHECK(count(svg, "opacity=\"0.5\"") == 120);    // backwards
  CHECK(count(svg, "fill=\"#30363c\"") == 30);    // losses
  CHECK(count(svg, ">a &lt;node&gt;<") == 20);    // nodes
  CHECK(count(svg, "from a &lt;node&gt;") == 5);  // origins
  CHECK(count(svg, "30 microbatches, 33.05 s") == 1);
  CHECK(count(svg, ">70 s<") + count(svg, ">80 s<") == 1);
  // Without names nodes have numbers; without visits there is still a picture.
  CHECK(count(hd::sim::visits_svg(paths, {}, {}, "nothing"), ">19<") == 1);
}
