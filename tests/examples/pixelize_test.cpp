// tests/examples/pixelize_test.cpp: pictures come back as they were written, and what is wrong with a file is named with its offset.
#include "portable_map.hpp"

#include "catch.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using Catch::Matchers::Contains;

TEST_CASE("pictures that were written are read again, with comments and any white space", "[examples]") {
  for (const std::int64_t channels : {1, 3}) {
    portable_map::picture p{5, 7, channels, {}};
    for (std::int64_t i = 0; i < 35 * channels; ++i) p.values.push_back(static_cast<std::uint8_t>(37 * i));
    p.values[0] = '#';  // a value, not a comment
    p.values[1] = '\n';
    const portable_map::picture back = portable_map::parse_picture(portable_map::picture_text(p), "p");
    CHECK(back.rows == 5);
    CHECK(back.columns == 7);
    CHECK(back.channels == channels);
    CHECK(back.values == p.values);
  }
  const portable_map::picture odd = portable_map::parse_picture("P5 # by hand\n#\n\t2 #3 4\n1\r\n255\nab", "p");
  CHECK(odd.columns == 2);
  CHECK(odd.rows == 1);
  CHECK(odd.values == std::vector<std::uint8_t>{'a', 'b'});
}

TEST_CASE("what is wrong with a picture is named with its offset", "[examples]") {
  const auto parse = [](const std::string& bytes) { return portable_map::parse_picture(bytes, "x.pgm"); };
  CHECK_THROWS_WITH(parse("P2\n1 1\n255\n0"), Contains("'x.pgm', offset 0: a binary PGM or PPM begins with P5 or P6"));
  CHECK_THROWS_WITH(parse("P5\n2 1\n65535\nabcd"), Contains("offset 12: values are 0 to 65535; 0 to 255, 8 bits"));
  CHECK_THROWS_WITH(parse("P5\n0 4\n255\n"), Contains("offset 6: a picture of 0 x 4 has no pixels"));
  CHECK_THROWS_WITH(parse("P5\n2 2\n255\nabc"),
                    Contains("offset 14: the file is cut: 3 values, where the header says 2 x 2 x 1 = 4"));
  CHECK_THROWS_WITH(parse("P6\n1 1\n255\nabcd"),
                    Contains("offset 14: the file is larger than its header says: 4 values"));
  CHECK_THROWS_WITH(parse("P5\n2 x\n255\nab"), Contains("offset 5: the height is no number"));
  CHECK_THROWS_WITH(parse("P5\n99999999999 1\n255\n"), Contains("the width is above 2^30"));
  CHECK_THROWS_WITH(parse("P5\n2 1\n255xab"), Contains("offset 10: white space is needed"));
  CHECK_THROWS_WITH(portable_map::read_picture("/there/is/none.pgm"), Contains("cannot read '/there/is/none.pgm'"));
  CHECK_THROWS_WITH(portable_map::write_picture("/there/is/none.pgm", {}), Contains("cannot write '/there/is/none.pgm'"));
  const std::string whole = "P6\n2 2 # four\n255\nabcdefghijkl";
  CHECK(parse(whole).values.size() == 12);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    CHECK_THROWS_AS(parse(whole.substr(0, size)), heddle::io_error);
  }
}
