// Charts as pictures and in letters: boxes stand where their times say, labels where there is room.
#include "catch.hpp"

#include <heddle/draw/gantt.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using heddle::gantt_box;
using heddle::gantt_chart;
using heddle::gantt_lane;

namespace {

std::size_t count(std::string_view text, std::string_view what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

gantt_chart small() {
  return {.title = "small",
          .captions = {"8 units"},
          .rows = {"a", "long"},
          .styles = {{"one", "#111111", "#eeeeee", false, "F"},
                     {"two", "#222222", "#eeeeee", false, "B"},
                     {"strip", "#333333", "#eeeeee", true, "S"},
                     {"", "#444444", "#eeeeee", false, "f"}},
          .boxes = {{0, 0, "0", 0, 1},
                    {0, 1, "12", 2, 4},
                    {1, 0, "0", 4, 8, gantt_lane::upper},
                    {1, 1, "7", 4, 8, gantt_lane::lower},
                    {1, 3, "10", 0, 1},
                    {0, 2, "", 1, 2}}};
}

}  // namespace

TEST_CASE("a chart in letters", "[core][gantt]") {
  const gantt_chart c = small();
  CHECK(heddle::gantt_text(c, 40) ==
        "small; 8 units\n"
        "a    F0--....B12-----................\n"
        "long f10-............F0+B7-----------\n");
  // No number is cut: without room the letters stand alone.
  CHECK(heddle::gantt_text(c, 16) ==
        "small; 8 units\n"
        "a    F0..B12-........\n"
        "long f-......F0+B7---\n");
  CHECK(heddle::gantt_text(c, 8) ==
        "small; 8 units\n"
        "a    F.B-....\n"
        "long f...F+B-\n");
  CHECK(heddle::gantt_text(c, 3).size() == std::string("small; 8 units\na    ...\nlong ...\n").size());
  CHECK(heddle::gantt_text(gantt_chart{}) == "");
  CHECK(heddle::gantt_text(gantt_chart{.rows = {"idle"}}) == "idle \n");
  // Several have one scale: that of the longest chart and the shortest box.
  std::vector<gantt_chart> two{c, {.title = "other", .rows = {"x"}, .styles = c.styles, .boxes = {{0, 1, "3", 0, 16}}}};
  CHECK(heddle::gantt_text(two, 32) ==
        "small; 8 units\n"
        "a    F0..B12-........\n"
        "long f-......F0+B7---\n"
        "other\n"
        "x B3------------------------------\n");
  gantt_chart wrong = c;
  wrong.boxes = {{-1, 0, "1", 0, 8}, {2, 0, "2", 0, 8}, {0, 4, "3", 0, 8}, {0, -1, "4", 0, 8}, {0, 0, "5", 3, 3}};
  CHECK(heddle::gantt_text(wrong, 8) == "small; 8 units\na    ....\nlong ....\n");
}

TEST_CASE("the parts of a pair share a row", "[core][gantt]") {
  const std::string svg = heddle::gantt_svg(small(), {.unit = "units", .width = 420});
  CHECK(count(svg, "height=\"22\" fill=\"#111111\"") == 1);
  CHECK(count(svg, "height=\"10.5\" fill=\"#111111\"") == 1);
  CHECK(count(svg, "height=\"10.5\" fill=\"#222222\"") == 1);
  CHECK(count(svg, "height=\"5\" fill=\"#333333\"") == 2);  // and its legend
  CHECK(count(svg, ">one</text>") == 1);
  CHECK(count(svg, ">0 units</text>") == 1);
  CHECK(count(svg, "#444444") == 1);  // without a name, not in the legend
  CHECK(svg == heddle::gantt_svg(small(), {.unit = "units", .width = 420}));
}

TEST_CASE("a picture holds only what XML may hold, whatever names are", "[core][gantt]") {
  const std::string none = "\xef\xbf\xbd";  // U+FFFD
  const std::vector<std::pair<std::string, std::string>> names{
      {"a&b<c>\"d'", "a&amp;b&lt;c&gt;&quot;d'"},
      {"x\x01y\tz", "x y z"},
      {"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"},
      {"\xee\x80\x80\xf4\x8f\xbf\xbd", "\xee\x80\x80\xf4\x8f\xbf\xbd"},  // the first and last beyond surrogates
      {"caf\xe9", "caf" + none},                                         // Latin-1
      {"\xc3", none},                                                    // cut off
      {"\xe2\x82z", none + none + "z"},
      {"\xc0\xaf", none + none},                        // too long for its character
      {"\xe0\x80\xaf", none + none + none},             // the same
      {"\xed\xa0\x80", none + none + none},             // half of a pair
      {"\xef\xbf\xbe", none + none + none},             // U+FFFE is no character
      {"\xf4\x90\x80\x80", none + none + none + none},  // beyond the last
  };
  for (const auto& [name, written] : names) {
    CAPTURE(name);
    CHECK(heddle::svg_escaped(name) == written);
    const std::string picture = heddle::gantt_svg(gantt_chart{.title = name, .rows = {"r"}}, {});
    CHECK(picture.find('>' + written + "</text>") != std::string::npos);
  }
}

TEST_CASE("pictures of one scale", "[core][gantt]") {
  const auto width_of_idle = [](const std::string& svg) {
    const std::size_t at = svg.find("fill=\"url(#idle)\"");
    const std::size_t from = svg.rfind("width=\"", at) + 7;
    return std::stod(svg.substr(from, 10));
  };
  const double alone = width_of_idle(heddle::gantt_svg(small()));
  CHECK(alone == Approx(1086).margin(1));
  CHECK(width_of_idle(heddle::gantt_svg(small(), {.shown = 16})) == Approx(alone / 2).margin(1));
  std::vector<gantt_chart> charts{small(), small()};
  for (gantt_box& b : charts[1].boxes) b.begin *= 4, b.end *= 4;
  CHECK(width_of_idle(heddle::gantt_svg(charts)) == Approx(alone / 4).margin(1));
  CHECK(width_of_idle(heddle::gantt_svg(charts, {.same_scale = false})) == alone);
}

TEST_CASE("ticks are 1, 2 or 5 times a power of ten", "[core][gantt]") {
  CHECK(heddle::detail::tick_step(84.0, 12) == Approx(10.0));
  CHECK(heddle::detail::tick_step(12.0, 12) == Approx(1.0));
  CHECK(heddle::detail::tick_step(13.0, 12) == Approx(2.0));
  CHECK(heddle::detail::tick_step(0.5, 12) == Approx(0.05));
  CHECK(heddle::svg_number(1.0) == "1");
  CHECK(heddle::svg_number(0.05) == "0.05");
  CHECK(heddle::svg_number(-2.5) == "-2.5");
  CHECK(heddle::svg_number(1234.567) == "1234.57");
}
