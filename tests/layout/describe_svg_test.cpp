// tests/layout/describe_svg_test.cpp: the pictures are well-formed, show every rank, and write nothing wider than its room.
#include "catch.hpp"
#include "svg.hpp"

#include <heddle/layout/describe_svg.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

using namespace heddle;
using namespace svg_test;
using Catch::Matchers::Contains;

namespace {

using square = mesh<axis<dp, 2>, axis<tp, 2>>;
using line = mesh<axis<tp, 3>>;

bool inside(const std::string& svg) {
  const double width = attribute(svg, "width"), height = attribute(svg, "height");
  bool ok = true;
  for (std::size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1)) {
    if (svg.compare(at - 1, 1, ">") == 0) continue;  // of a pattern
    const std::string_view tag = std::string_view(svg).substr(at, svg.find('>', at) - at);
    const double x = attribute(tag, "x"), y = attribute(tag, "y");
    ok = ok && x >= 0 && y >= 0 && x + attribute(tag, "width") <= width && y + attribute(tag, "height") <= height;
  }
  return ok;
}

template <class L, std::int64_t... E>
std::string good(const L& layout, const shape<E...>& s) {
  const std::string svg = describe_svg(layout, s);
  CHECK(well_formed(svg));
  CHECK(inside(svg));
  CHECK(svg.size() < 400000);
  return svg;
}

}  // namespace

TEST_CASE("pictures of layouts are well-formed and everything lies inside", "[layout][describe][svg]") {
  const std::string svg = good(layout<square, shard<0, dp>, partial<plus, tp>>{}, shape{9, 64});
  CHECK_THAT(svg, Contains(">shard&lt;0, dp&gt;, partial&lt;plus, tp&gt; on dp=2 x tp=2</text>") &&
                      Contains(">0+1</text>") && Contains(">rank 3</text>") && Contains("url(#partial)") &&
                      Contains(">5..8</text>"));
  for (const std::int64_t n : {0, 1, 3, 7, 1000}) {
    good(layout<square, shard<0, dp, tp>>{}, shape{n});
    good(layout<line, shard<0, split::zigzag, tp>>{}, shape{n, n});
    good(layout<line, shard<1, split::block_cyclic<2>, tp>>{}, shape{2, n, n});
    good(layout<mesh<axis<dp, 3>, axis<tp, 64>>, shard<2, split::padded<>, tp>, varying<dp>>{}, shape{n, 5, n});
  }
  good(layout<line, shard<1, split::block_cyclic<1>, tp>>{}, shape{2, 1000000000000});
}

TEST_CASE("a picture shows as many sheets as there are copies, up to four", "[layout][describe][svg]") {
  const auto sheets = [](const std::string& svg) {  // blocks as high as the tensor
    return count(svg, " height=\"190\" ");
  };
  CHECK(sheets(good(layout<mesh<axis<dp, 1>>>{}, shape{4, 4})) == 1);
  CHECK(sheets(good(layout<square>{}, shape{4, 4})) == 4);
  CHECK(sheets(good(layout<mesh<axis<dp, 9>>>{}, shape{4, 4})) == 4);
  CHECK(sheets(good(layout<square, shard<1, dp>>{}, shape{4, 4})) == 4);  // two sheets of two blocks
}

TEST_CASE("four dimensions are rows of slices", "[layout][describe][svg]") {
  const std::string svg = good(layout<square, shard<0, dp>, shard<1, tp>>{}, shape{4, 6, 5, 7});
  CHECK(count(svg, ">dimension 0: 0..1</text>") == 1);  // a row
  CHECK(count(svg, ">dimension 0: 2..3</text>") == 1);
  CHECK(count(svg, ">dimension 1: 0..2</text>") == 2);  // a slice in each row
  CHECK(count(svg, ">dimension 1: 3..5</text>") == 2);
  for (const char* rank : {">0</text>", ">1</text>", ">2</text>", ">3</text>"}) CHECK(count(svg, rank) == 1);
  CHECK(count(svg, ">rank 3</text>") == 1);
  CHECK(count(svg, ">2 x 3 x 5 x 7</text>") == 4);
  for (const std::int64_t n : {0, 1, 5, 100}) {
    good(layout<square, shard<3, dp>, shard<0, tp>>{}, shape{n, 2, n, 8});
    good(layout<mesh<axis<dp, 16>, axis<tp, 16>>, shard<0, dp>, shard<1, tp>>{}, shape{n, n, 2, 2});
  }
}

TEST_CASE("ranks without elements and padding are named in the picture", "[layout][describe][svg]") {
  CHECK_THAT(good(layout<line, shard<0, split::ceil, tp>>{}, shape{4}), Contains(">0: nothing</text>"));
  CHECK_THAT(good(layout<line, shard<0, split::padded<>, tp>>{}, shape{5}), Contains(">in 2</text>"));
  CHECK_THAT(good(layout<line, shard<0, tp>>{}, shape{0, 2}), Contains(">no elements</text>"));
  CHECK_THAT(good(layout<square, identical<dp>, varying<tp>>{}, shape{2}),
             Contains(">(0=2)|(1=3)</text>") && Contains("url(#varying)"));
}

TEST_CASE("slices that are left out are in the colour of a rank that holds some of them", "[layout][describe][svg]") {
  const auto paler = [](const std::string& svg) {
    std::size_t n = 0;
    for (std::size_t at = svg.find("fill-opacity=\"0.45\""); at != std::string::npos;
         at = svg.find("fill-opacity=\"0.45\"", at + 1))
      ++n;
    return n;
  };
  using long_line = heddle::mesh<heddle::axis<tp, 16>>;
  CHECK(paler(describe_svg(layout<long_line, shard<0, tp>>{}, shape{16, 2, 2})) > 0);
  CHECK(paler(describe_svg(layout<long_line, shard<1, tp>>{}, shape{2, 16, 2})) == 0);
}

TEST_CASE("describe_svg refuses what describe refuses", "[layout][describe][svg]") {
  CHECK_THROWS_AS(describe_svg(layout<square>{}, shape{1, 2, 3, 4, 5}), layout_error);
  CHECK_THROWS_AS(describe_svg(layout<square, shard<1, tp>>{}, shape{4}), layout_error);
  CHECK_THAT(describe_svg(layout<square, shard<1, tp>>{}), Contains("tensor 4 x 4;"));
}

TEST_CASE("numbers and texts of a drawing", "[core][svg]") {
  CHECK(svg_number(1.0) == "1");
  CHECK(svg_number(0.05) == "0.05");
  CHECK(svg_number(-2.5) == "-2.5");
  CHECK(svg_escaped("a<b> & \"c\"\n") == "a&lt;b&gt; &amp; &quot;c&quot; ");
  CHECK(svg_fitted("short", 10.0, 100.0) == "short");
  CHECK(svg_text_width(svg_fitted(std::string(100, 'x'), 10.0, 100.0), 10.0) <= 100.0);
}
