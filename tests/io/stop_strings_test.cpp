#include <heddle/io/tokenizer/stop_strings.hpp>

#include "catch.hpp"

#include <cstddef>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace hd = heddle;
namespace io = heddle::io;

TEST_CASE("a text ends before the first complete stop string", "[tokenizer][stop]") {
  io::stop_strings stops({"\n\n", "END", "\u00e9\u00e8"});
  CHECK(stops.push("one\n") == "one");
  CHECK(stops.push("two E") == "\ntwo ");
  CHECK(stops.push("NE") == "EN");  // the second E may begin another
  CHECK(stops.push("ND more") == "");
  CHECK(stops.found());
  CHECK(stops.push("even more") == "");
  CHECK(stops.finish() == "");
  CHECK_FALSE(stops.found());
  CHECK(stops.push("caf\u00e9") == "caf");
  CHECK(stops.push("\u00e9") == "\u00e9");
  CHECK(stops.finish() == "\u00e9");
  CHECK(io::stop_strings({}).push("all") == "all");
  CHECK_THROWS_AS(io::stop_strings({"a", ""}), hd::config_error);
}

TEST_CASE("stop strings are found alike however a text is cut", "[tokenizer][stop]") {
  const unsigned seed = 20261124;
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const auto some = [&](std::size_t most) {
    std::string s;
    for (std::size_t n = 1 + below(most); n > 0; --n) s += static_cast<char>('a' + below(3));
    return s;
  };
  for (int run = 0; run < 2000; ++run) {
    std::vector<std::string> stops(1 + below(3));
    for (std::string& s : stops) s = some(6);
    const std::string text = some(40);
    // The definition, over all ends and all stop strings.
    std::string expected = text;
    bool ends = false;
    for (std::size_t end = 1; end <= text.size() && !ends; ++end)
      for (const std::string& s : stops)
        if (std::string_view(text).substr(0, end).ends_with(s)) {
          if (!ends || end - s.size() < expected.size()) expected = text.substr(0, end - s.size());
          ends = true;
        }
    io::stop_strings search(stops);
    std::string joined;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t n = 1 + below(5);
      joined += search.push(std::string_view(text).substr(at, n));
      at += n;
    }
    CAPTURE(run, text, stops);
    CHECK(search.found() == ends);
    CHECK(joined + search.finish() == expected);
  }
}
