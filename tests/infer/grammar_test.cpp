// Regular expressions and JSON schemas as automata over bytes: they accept what the definition says, and no text that they took is a dead end.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/infer/regex.hpp>
#include <heddle/infer/schema_grammar.hpp>

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <limits>
#include <random>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace inf = heddle::infer;
using Catch::Matchers::Contains;
using json = nlohmann::json;

bool matches(const inf::byte_dfa& dfa, std::string_view text) {
  inf::dfa_position at(dfa);
  for (const char c : text)
    if (!at.take(static_cast<unsigned char>(c))) return false;
  return at.complete();
}
bool matches(const char* pattern, std::string_view text) {
  return matches(*inf::compile_regex(pattern), text);
}

// A text that is accepted, by steps drawn among those that are possible, and behind `most` bytes by the shortest way; a dead end is a failure.
std::string walk(const inf::byte_dfa& dfa, std::mt19937& random, std::size_t most) {
  std::vector<std::int64_t> left(static_cast<std::size_t>(dfa.states()), -1);  // bytes until a text may end
  for (std::int64_t round = 0, found = 1; found > 0; ++round) {
    found = 0;
    for (std::int32_t s = 0; s < dfa.states(); ++s) {
      if (left[static_cast<std::size_t>(s)] >= 0) continue;
      bool is = round == 0 && dfa.accepting(s);
      for (int c = 0; c < 256 && round > 0 && !is; ++c)
        if (const std::int32_t to = dfa.next(s, static_cast<unsigned char>(c)); to >= 0)
          is = left[static_cast<std::size_t>(to)] == round - 1;
      if (!is) continue;
      left[static_cast<std::size_t>(s)] = round;
      ++found;
    }
    found += round == 0;
  }
  inf::dfa_position at(dfa);
  std::string text;
  while (true) {
    if (left[static_cast<std::size_t>(at.state())] < 0) return "dead end: " + text;
    std::vector<unsigned char> possible;
    for (int c = 0; c < 256; ++c)
      if (const std::int32_t to = dfa.next(at.state(), static_cast<unsigned char>(c)); to >= 0)
        if (text.size() < most || left[static_cast<std::size_t>(to)] < left[static_cast<std::size_t>(at.state())])
          possible.push_back(static_cast<unsigned char>(c));
    if (possible.empty() || (at.complete() && (random() % 3 == 0 || text.size() >= most))) return text;
    const unsigned char next = possible[random() % possible.size()];
    at.take(next);
    text += static_cast<char>(next);
  }
}

std::string random_pattern(std::mt19937& random, int level) {
  static constexpr const char* atoms[] = {"a", "b", "c", "[ab]", "[^a]", ".", "\\d", "1"};
  std::string out;
  for (auto parts = 1 + random() % 3; parts > 0; --parts) {
    if (level > 0 && random() % 3 == 0)
      out += "(" + random_pattern(random, level - 1) + ")";
    else
      out += atoms[random() % 8];
    static constexpr const char* repeats[] = {"", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"};
    out += repeats[random() % 10];
    if (level > 0 && parts > 1 && random() % 4 == 0) out += "|";
  }
  return out;
}

// Whether a value is valid, from the definition of the keywords that the tests use.
bool valid(const json& s, const json& v) {
  if (s.contains("anyOf")) {
    for (const json& one : s["anyOf"])
      if (valid(one, v)) return true;
    return false;
  }
  if (s.contains("const") && v != s["const"]) return false;
  if (s.contains("enum") && std::find(s["enum"].begin(), s["enum"].end(), v) == s["enum"].end()) return false;
  if (s.contains("type")) {
    bool any = false;
    for (const json& t : s["type"].is_array() ? s["type"] : json::array({s["type"]}))
      any = any || (t == "object" && v.is_object()) || (t == "array" && v.is_array()) ||
            (t == "string" && v.is_string()) || (t == "boolean" && v.is_boolean()) || (t == "null" && v.is_null()) ||
            (t == "number" && v.is_number()) || (t == "integer" && v.is_number_integer());
    if (!any) return false;
  }
  if (v.is_object() && s.contains("properties")) {
    for (const json& name : s.value("required", json::array()))
      if (!v.contains(name.get<std::string>())) return false;
    for (const auto& [name, member] : v.items())
      if (!s["properties"].contains(name) || !valid(s["properties"][name], member)) return false;
  }
  if (v.is_array() && s.contains("items")) {
    if (v.size() < s.value("minItems", 0U) || v.size() > s.value("maxItems", 1'000'000U)) return false;
    for (const json& item : v)
      if (!valid(s["items"], item)) return false;
  }
  if (v.is_string()) {
    const std::string text = v;
    const auto length =
        static_cast<unsigned>(std::count_if(text.begin(), text.end(), [](char c) { return (c & '\xC0') != '\x80'; }));
    if (length < s.value("minLength", 0U) || length > s.value("maxLength", 1'000'000U)) return false;
    if (s.contains("pattern") && !std::regex_search(text, std::regex(s["pattern"].get<std::string>()))) return false;
  }
  if (v.is_number()) {
    const auto x = v.get<double>();
    if (x < s.value("minimum", -1e300) || x > s.value("maximum", 1e300) || x <= s.value("exclusiveMinimum", -1e300) ||
        x >= s.value("exclusiveMaximum", 1e300))
      return false;
  }
  return true;
}

json random_schema(std::mt19937& random, int level) {
  switch (random() % (level > 0 ? 10 : 7)) {
    case 0:
      return {{"type", "boolean"}};
    case 1: {
      const int low = static_cast<int>(random() % 3000) - 1500, high = low + static_cast<int>(random() % 2000);
      return {{"type", "integer"}, {"minimum", low}, {"maximum", high}};
    }
    case 2:
      return {{"type", "number"}, {"minimum", 0}};
    case 3:
      return {{"type", "string"}, {"minLength", random() % 3}, {"maxLength", 3 + random() % 4}};
    case 4:
      return {{"enum", {1, "two\n\"", nullptr, {{"x", {true, 2.5}}}}}};
    case 5:
      return {{"type", {"string", "null"}}, {"pattern", "^[a-c\"\\\\]+$"}};
    case 6:
      return {{"type", "integer"}, {"exclusiveMinimum", -7}, {"title", "t"}};
    case 7: {
      json s{{"type", "array"}, {"items", random_schema(random, level - 1)}};
      if (random() % 2) s["minItems"] = random() % 3;
      if (random() % 2) s["maxItems"] = 2 + random() % 3;
      return s;
    }
    case 8:
      return {{"anyOf", {random_schema(random, level - 1), random_schema(random, level - 1)}}};
    default: {
      json s{{"type", "object"}, {"properties", json::object()}, {"additionalProperties", false}};
      std::vector<std::string> required;
      for (const char* name : {"a", "b\"", "long name", "d"})
        if (random() % 3 != 0) {
          s["properties"][name] = random_schema(random, level - 1);
          if (random() % 2) required.emplace_back(name);
        }
      if (random() % 2) s["required"] = required;
      return s;
    }
  }
}

}  // namespace

TEST_CASE("an automaton of a regular expression accepts what std::regex matches", "[infer]") {
  const std::uint32_t seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::int64_t accepted = 0;
  int too_large = 0;
  for (int i = 0; i < 60; ++i) {
    const std::string pattern = random_pattern(random, 2);
    CAPTURE(pattern);
    std::shared_ptr<const inf::byte_dfa> dfa;
    try {
      dfa = inf::compile_regex(pattern);
    } catch (const inf::grammar_error& e) {  // one in some 1500
      CHECK_THAT(e.what(), Contains("too large"));
      ++too_large;
      continue;
    }
    const std::regex expected(pattern, std::regex::ECMAScript | std::regex_constants::__polynomial);  // no backtracking
    for (int k = 0; k < 40; ++k) {
      std::string text;
      for (auto n = random() % 9; n > 0; --n) text += "aabbc1"[random() % 6];
      CAPTURE(text);
      const bool is = matches(*dfa, text);
      accepted += is;
      if (is != std::regex_match(text, expected)) CHECK(is == std::regex_match(text, expected));
    }
    for (int k = 0; k < 5; ++k) {
      const std::string text = walk(*dfa, random, 20);
      CAPTURE(text);
      CHECK(matches(*dfa, text));
    }
  }
  CHECK(accepted > 100);
  CHECK(too_large <= 10);
}

TEST_CASE("a regular expression counts code points, and never takes what is no UTF-8", "[infer]") {
  CHECK(matches(".", "\xE2\x82\xAC"));
  CHECK(matches(".{2}", "\xF0\x9F\x98\x80z"));
  CHECK_FALSE(matches(".", "\xE2\x82"));
  CHECK_FALSE(matches(".*", "\xC0\x80"));
  CHECK_FALSE(matches(".*", "\xED\xA0\x80"));
  CHECK_FALSE(matches(".*", "\xF4\x90\x80\x80"));
  CHECK(matches("[\xC3\xA0-\xC3\xBF]+", "\xC3\xA9\xC3\xA8"));
  CHECK_FALSE(matches("[^\xC3\xA9]", "\xC3\xA9"));
  CHECK(matches("[^\xC3\xA9]", "\xC3\xA8"));
  CHECK(matches("\\u20ac|\\u{1F600}", "\xF0\x9F\x98\x80"));
  CHECK(matches("^(yes|no)$", "no"));
  CHECK(matches("\\d{3}-\\w+(?:\\.[a-f\\-\\]]+)?", "123-_x.a-]"));
  CHECK(matches("", ""));
  // Every code point, against the bytes that the definition of UTF-8 gives it.
  const auto any = inf::compile_regex("[^\\x00]");
  std::int64_t wrong = 0;
  for (std::uint32_t c = 1; c <= 0x10FFFF; ++c) {
    std::string t;
    if (c < 0x80)
      t = {static_cast<char>(c)};
    else if (c < 0x800)
      t = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    else if (c < 0x10000)
      t = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
           static_cast<char>(0x80 | (c & 63))};
    else
      t = {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
           static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    wrong += matches(*any, t) != (c < 0xD800 || c > 0xDFFF);
  }
  CHECK(wrong == 0);
}

TEST_CASE("what a regular expression cannot say is refused by name and place", "[infer]") {
  const auto refused = [](const char* pattern, const char* why) {
    CAPTURE(pattern);
    CHECK_THROWS_AS(inf::compile_regex(pattern), inf::grammar_error);
    CHECK_THROWS_WITH(inf::compile_regex(pattern), Contains(why));
  };
  refused("a(?=b)", "byte 1: of groups only");
  refused("(?<x>a)", "byte 0: of groups only");
  refused("(a)\\1", "back references");
  refused("\\bword", "'\\b' is not supported");
  refused("a**", "nothing to repeat");
  refused("a{2", "{m,n}");
  refused("a{3,2}", "m not above n");
  refused("a{1001}", "at most 1000");
  refused("(a", "the group does not end");
  refused("a)", "closes no group");
  refused("[a", "the class does not end");
  refused("[b-a]", "a range should go");
  refused("a^b", "'^' can only be the first");
  refused("^a|b$", "put them into a group");
  refused("\xC3", "is no UTF-8");
  refused("\xFF", "is no UTF-8");
  refused("\\ud800", "no surrogate");
  refused("[^\\d\\D]", "no text fits");
  refused("(((a{1000}){1000}){1000}){1000}", "too large");
  refused("((((){1000}){1000}){1000}){1000}", "too large");
  refused("(a|b)*a(a|b){40}", "too large");
  refused(std::string(101, '(').c_str(), "100 levels");
  CHECK_THROWS_WITH(inf::regex(std::string(20000, 'a')), Contains("at most 16384 bytes, got 20000"));
  // Each repetition of a repetition is a level of the tree, in a group or not.
  const auto times = [](const std::string& what, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += what;
    return out;
  };
  refused(("a" + times("{1}", 401)).c_str(), "400 levels");
  refused((times("(", 90) + "a" + times(times("{1}", 5) + ")", 90)).c_str(), "400 levels");
  refused((times("(b|", 99) + "a" + times(times("{1}", 5) + ")", 99)).c_str(), "400 levels");
  CHECK(matches(("a" + times("{1}", 400)).c_str(), "a"));
  CHECK(matches((times("(b|", 99) + "a" + times("{1})", 99)).c_str(), "b"));
}

TEST_CASE("reading patterns and lists of a schema is counted, once for each", "[infer]") {
  const auto compile = [](const std::string& schema, std::int64_t work) {
    return inf::compile_schema(inf::ordered_schema::parse(schema), std::bitset<256>().set(), {.work = work});
  };
  const std::string long_text(3000, 'x');
  std::string names, types;
  for (int i = 0; i < 3000; ++i) {
    names += (i > 0 ? ",\"a\"" : "\"a\"");
    types += (i > 0 ? ",\"null\"" : "\"null\"");
  }
  const std::string pattern = R"({"type": "string", "pattern": "^(?:)" + long_text + R"(){0}$"})";
  const std::string listed = R"({"enum": [")" + long_text + R"(", null], "type": "null"})";
  const std::string constant = R"({"enum": [")" + long_text + R"(", null], "const": null})";
  const std::string many_types = R"({"type": [)" + types + "]}";
  for (const std::string& item : {pattern, listed, constant, many_types}) {
    CAPTURE(item);
    CHECK_THROWS_WITH(compile(item, 2000), Contains("too large"));
    // Fifty times each, which would be 150000 operations if each of them read it again.
    CHECK(compile(R"({"type": "array", "minItems": 50, "maxItems": 50, "items": )" + item + "}", 20'000));
  }
  CHECK_THROWS_WITH(
      compile(R"({"type": "object", "properties": {"a": {"type": "null"}}, "required": [)" + names + "]}", 2000),
      Contains("too large"));
  CHECK_THROWS_WITH(
      compile(R"({"$ref": "#/$defs/)" + long_text + R"(", "$defs": {")" + long_text + R"(": {"type": "null"}}})", 2000),
      Contains("too large"));
  // Where patterns are the same, and where one is below two parents.
  const auto dfa = compile(R"({"type": "object", "required": ["a", "b", "c"], "properties": {"a": {"$ref": "#/$defs/p"},
      "b": {"$ref": "#/$defs/p"}, "c": {"type": "string", "pattern": "^y$"}},
      "$defs": {"p": {"type": "string", "pattern": "^x$"}}})",
                           100'000);
  CHECK(matches(*dfa, R"({"a":"x","b":"x","c":"y"})"));
  CHECK_FALSE(matches(*dfa, R"({"a":"x","b":"x","c":"x"})"));
}

TEST_CASE("bounds of integers are exact up to 18 digits", "[infer]") {
  const std::int64_t most = 999'999'999'999'999'999;
  const auto accepted = [&](const inf::ordered_schema& more, std::int64_t x) {
    inf::ordered_schema schema{{"type", "integer"}};
    schema.update(more);
    return matches(*inf::compile_schema(schema), std::to_string(x));
  };
  for (std::int64_t bound = most - 200; bound <= most; bound += bound < most - 3 ? 49 : 1) {
    CAPTURE(bound);
    for (std::int64_t x = bound - 1; x <= (std::min)(bound + 1, most); ++x) {
      CAPTURE(x);
      CHECK(accepted({{"maximum", bound}}, x) == (x <= bound));
      CHECK(accepted({{"minimum", bound}}, x) == (x >= bound));
      CHECK(accepted({{"exclusiveMaximum", bound}}, x) == (x < bound));
      CHECK(accepted({{"minimum", -bound}}, -x) == (x <= bound));
      CHECK(accepted({{"maximum", -bound}}, -x) == (x >= bound));
      CHECK(accepted({{"exclusiveMinimum", -bound}}, -x) == (x < bound));
      if (bound < most) CHECK(accepted({{"exclusiveMinimum", bound}}, x) == (x > bound));
      if (bound < most) CHECK(accepted({{"exclusiveMaximum", -bound}}, -x) == (x > bound));
    }
  }
  // Beyond 18 digits there is no answer, and a bound there leaves all that there are.
  const inf::ordered_schema beyond[] = {
      most + 1, most + 2, std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::uint64_t>::max(),
      1e18,     1e300,    std::numeric_limits<double>::infinity()};
  for (const inf::ordered_schema& b : beyond) {
    CAPTURE(b.dump());
    CHECK(accepted({{"maximum", b}}, most));
    CHECK_THROWS_WITH(accepted({{"minimum", b}}, 0), Contains("no value is possible"));
    CHECK_THROWS_WITH(accepted({{"exclusiveMinimum", b}}, 0), Contains("no value is possible"));
  }
  for (const inf::ordered_schema& b : {inf::ordered_schema(-most - 1), inf::ordered_schema(-1e18),
                                       inf::ordered_schema(std::numeric_limits<std::int64_t>::min())}) {
    CAPTURE(b.dump());
    CHECK(accepted({{"minimum", b}}, -most));
    CHECK_THROWS_WITH(accepted({{"maximum", b}}, 0), Contains("no value is possible"));
  }
  CHECK(accepted({{"exclusiveMaximum", most + 1}}, most));
  CHECK(accepted({{"exclusiveMaximum", 1e18}}, most));
  CHECK_THROWS_WITH(accepted({{"exclusiveMinimum", most}}, 0), Contains("no value is possible"));
  CHECK(accepted({{"maximum", 2.5}}, 2));
  CHECK_FALSE(accepted({{"maximum", 2.5}}, 3));
  CHECK_FALSE(accepted({{"exclusiveMinimum", -2.5}}, -3));
  CHECK(accepted({{"exclusiveMinimum", -2.5}}, -2));
  CHECK_FALSE(accepted({{"exclusiveMaximum", 2.0}}, 2));
  CHECK_THROWS_WITH(accepted({{"maximum", std::numeric_limits<double>::quiet_NaN()}}, 0),
                    Contains("should be a number"));
}

TEST_CASE("an automaton has only bytes that are tokens, and says so if none are left", "[infer]") {
  std::bitset<256> bytes;
  for (const char c : std::string("abc")) bytes.set(static_cast<unsigned char>(c));
  const auto dfa = inf::compile_regex("(a|x)+|abz", bytes);
  CHECK(matches(*dfa, "aa"));
  CHECK_FALSE(matches(*dfa, "ax"));
  CHECK(dfa->next(dfa->next(0, 'a'), 'b') < 0);  // nothing could follow
  CHECK_THROWS_WITH(inf::compile_regex("z", bytes), Contains("spell none"));
}

TEST_CASE("texts that an automaton of a JSON schema accepts are valid, and none is a dead end", "[infer]") {
  const std::uint32_t seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::size_t texts = 0, bytes = 0;
  for (int i = 0; i < 60; ++i) {
    const json schema = random_schema(random, 3);
    CAPTURE(schema.dump());
    std::shared_ptr<const inf::byte_dfa> dfa;
    try {
      dfa = inf::compile_schema(inf::ordered_schema::parse(schema.dump()));
    } catch (const inf::grammar_error& e) {
      CHECK_THAT(e.what(), Contains("too large"));
      continue;
    }
    for (int k = 0; k < 20; ++k) {
      const std::string text = walk(*dfa, random, 100);
      CAPTURE(text);
      const json value = json::parse(text, nullptr, false);
      CHECK(valid(schema, value));
      ++texts;
      bytes += text.size();
    }
  }
  CHECK(texts > 500);
  CHECK(bytes > 5000);
}

TEST_CASE("an automaton of a JSON schema accepts the values of the schema", "[infer]") {
  const auto accepts = [](const char* schema, const char* text) {
    return matches(*inf::compile_schema(inf::ordered_schema::parse(schema)), text);
  };
  const char* person = R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/n"}},
      "required": ["name"], "additionalProperties": false, "$defs": {"n": {"type": "integer", "minimum": 0}}})";
  CHECK(accepts(person, R"({"name": "a\"b\\\n", "age": 12})"));
  CHECK(accepts(person, R"({"name":"\u0001é"})"));
  CHECK_FALSE(accepts(person, R"({"age":1})"));
  CHECK_FALSE(accepts(person, R"({"name":"","age":-1})"));
  CHECK_FALSE(accepts(person, R"({"age":1,"name":""})"));
  CHECK_FALSE(accepts(person, "{\"name\":\"\n\"}"));
  CHECK(accepts(R"({"type": "array", "items": {"type": "null"}, "maxItems": 2})", "[null,null]"));
  CHECK(accepts(R"({"type": "array", "items": {"type": "null"}})", "[]"));
  CHECK_FALSE(accepts(R"({"type": "array", "items": {"type": "null"}, "minItems": 1})", "[]"));
  CHECK(accepts(R"({"type": "string", "pattern": "b"})", R"("abc")"));
  CHECK(accepts(R"({"type": "number"})", "-1.5e-3"));
  CHECK(accepts(R"({"type": "object", "properties": {}})", "{}"));
  for (const char* any : {"{}", R"({"title": "t", "x-order": 1, "types": {"type": 3}, "": null})"}) {
    CAPTURE(any);  // what JSON Schema does not define restricts nothing
    for (const char* value : {"null", "true", "-1.5e3", R"("a")", "[]", "{}", R"([1, "a",{"b":[null,2]}])",
                              R"({"": {"a":[1],"b": {}}, "c":"d"})"})
      CHECK(accepts(any, value));
    for (const char* value : {"", "nul", "[1,]", "[,1]", "{1:2}", R"({"a"})", R"({"a":1,})", "[[[[]]]]", "[1 ]", "01"})
      CHECK_FALSE(accepts(any, value));
  }
  CHECK(accepts(R"({"type": "array", "maxItems": 2})", R"([{"a":[]},2])"));
  CHECK_FALSE(accepts(R"({"type": "array", "maxItems": 2})", "[1,2,3]"));
  for (const auto& [low, high] : {std::pair(-120, 1013), {0, 9}, {7, 7}, {-3, -1}, {95, 105}, {-1000, 0}}) {
    const auto dfa = inf::compile_schema({{"type", "integer"}, {"minimum", low}, {"maximum", high}});
    CAPTURE(low, high);
    std::int64_t wrong = 0;
    for (int x = -1300; x < 1300; ++x) wrong += matches(*dfa, std::to_string(x)) != (x >= low && x <= high);
    CHECK(wrong == 0);
    CHECK_FALSE(matches(*dfa, "-0"));
    CHECK_FALSE(matches(*dfa, "00"));
  }
}

TEST_CASE("a string of a schema has as many characters as it is to have, however they are escaped", "[infer]") {
  const auto times = [](const char* what, int n) {
    std::string out = "\"";
    for (int i = 0; i < n; ++i) out += what;
    return out + '"';
  };
  const auto least = inf::compile_schema({{"type", "string"}, {"minLength", 1500}});
  const auto most = inf::compile_schema({{"type", "string"}, {"maxLength", 1500}});
  for (const char* one :
       {"a", "\\\"", "\\\\", "\\n", "\\u0000", "\\u001f", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    CAPTURE(one);
    for (int n = 1499; n <= 1501; ++n) {
      CAPTURE(n);
      CHECK(matches(*least, times(one, n)) == (n >= 1500));
      CHECK(matches(*most, times(one, n)) == (n <= 1500));
    }
  }
  // Each character has one escape, and those that need none have none.
  const auto any = inf::compile_schema({{"type", "string"}});
  for (int c = 0; c < 256; ++c) {
    CAPTURE(c);
    constexpr const char* digits = "0123456789abcdef";
    const std::string text{'"', '\\', 'u', '0', '0', digits[c / 16], digits[c % 16], '"'};
    CHECK(matches(*any, text) ==
          (c < 0x20 && std::string_view("\b\f\n\r\t").find(static_cast<char>(c)) == std::string_view::npos));
    CHECK(matches(*any, std::string{'"', '\\', static_cast<char>(c), '"'}) ==
          (std::string_view("\"\\bfnrt").find(static_cast<char>(c)) != std::string_view::npos));
  }
  CHECK(matches(*inf::compile_schema({{"type", "string"}, {"pattern", "^[b-y]$"}}), R"("c")"));
  const auto controls = inf::compile_schema({{"type", "string"}, {"pattern", R"(^[\x12-\x1f]$)"}});
  CHECK(matches(*controls, R"("\u0012")"));
  CHECK_FALSE(matches(*controls, R"("\u0002")"));
  CHECK_FALSE(matches(*controls, R"("\u0011")"));
}

TEST_CASE("what of JSON Schema is not supported is refused by name and place", "[infer]") {
  const auto refused = [](const char* schema, const char* why) {
    CAPTURE(schema);
    CHECK_THROWS_WITH(inf::compile_schema(inf::ordered_schema::parse(schema)), Contains(why));
  };
  refused(R"({"minLength": 1})", "at '#': 'minLength' is not supported without 'type'");
  refused(R"({"type": "string", "min_length": 1})", "'min_length' is not supported here");
  refused(R"({"nullable": true})", "'nullable' is not supported without 'type'");
  refused("true", "a schema should be an object");
  refused(R"({"type": "object", "properties": {"a": {"type": "string", "not": {}}}})",
          "at '#/properties/a': 'not' is not supported");
  refused(R"({"oneOf": []})", "'oneOf' is not supported without 'type'");
  refused(R"({"anyOf": []})", "array of schemas");
  refused(R"({"type": "integer", "multipleOf": 2})", "'multipleOf' is not supported");
  refused(R"({"type": "string", "minimum": 2})", "'minimum' has no meaning");
  refused(R"({"type": "number", "maximum": 2})", "only supported for the type integer");
  refused(R"({"type": "integer", "minimum": 2, "maximum": 1})", "no value is possible");
  refused(R"({"enum": [1], "type": "string"})", "no value is possible");
  refused(R"({"type": "object", "properties": {}, "required": ["x"]})", "names of 'properties'");
  refused(R"({"type": "object", "additionalProperties": {"type": "null"}})", "true or false");
  refused(R"({"type": "array", "minItems": 2, "maxItems": 1})", "no value is possible");
  refused(R"({"type": "array", "items": {"type": "null"}, "minItems": -1})", "whole number from 0");
  refused(R"x({"type": "string", "pattern": "(?=a)"})x", "at '#/pattern': a regular expression, byte 0");
  refused(R"({"$ref": "#/$defs/x"})", "is not there");
  refused(R"({"$ref": "other.json"})", "a pointer into the schema");
  refused(R"({"$ref": "#"})", "no text fits");
  refused(R"({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]})", "no text fits");
  refused(R"({"type": "array", "items": {"type": "string", "maxLength": 9000}, "minItems": 9000})", "too large");
}

TEST_CASE("a schema that is too large names the part that is", "[infer]") {
  const auto refused = [](const std::string& part, const char* place) {
    CAPTURE(part);
    const std::string schema =
        R"({"type": "object", "properties": {"name": {"type": "string"}, "part": )" + part + "}}";
    CHECK_THROWS_WITH(inf::compile_schema(inf::ordered_schema::parse(schema)),
                      Contains("a JSON schema, at '" + std::string(place) + "': a grammar is too large") &&
                          !Contains("heddle: a grammar"));
  };
  refused(R"({"type": "string", "maxLength": 9000})", "#/properties/part");  // of states
  refused(R"({"type": "string", "minLength": 1900})", "#/properties/part");  // of entries of the table
  refused(R"({"type": "array", "items": {"type": "integer"}, "maxItems": 5000})", "#/properties/part");
  refused(R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 9000}}})",
          "#/properties/part/properties/a");
  refused(R"({"anyOf": [{"type": "null"}, {"type": "string", "pattern": "(a{1000}){1000}"}]})",
          "#/properties/part/anyOf/1/pattern");
}

TEST_CASE("a schema within itself takes values of some levels, and none that has more", "[infer]") {
  const auto levels_of = [](const char* schema, const auto& value) {
    const auto dfa = inf::compile_schema(inf::ordered_schema::parse(schema));
    int levels = 0;
    while (levels < 20 && matches(*dfa, value(levels))) ++levels;
    for (int deeper = levels; deeper < 20; ++deeper) CHECK_FALSE(matches(*dfa, value(deeper)));
    return levels;  // 0 to one below it are taken
  };
  const auto chain = [](int levels) {
    std::string out = R"({"v":1})";
    for (int i = 0; i < levels; ++i) out = R"({"v":1,"next":)" + out + "}";
    return out;
  };
  const char* list = R"({"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}},
      "required": ["v"]})";
  CHECK(levels_of(list, chain) == 6);
  const char* either =
      R"({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"v": {"type": "integer"},
      "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["v"]}}})";
  CHECK(levels_of(either, chain) == 5);
  const auto tree = [](int levels) {
    std::string out = R"({"name":"a","children":[]})";
    for (int i = 0; i < levels; ++i) out = R"({"name":"a","children":[)" + out + "," + out + "]}";
    return out;
  };
  const char* folders = R"({"$ref": "#/$defs/f", "$defs": {"f": {"type": "object", "properties": {
      "name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/f"}}},
      "required": ["name", "children"]}}})";
  CHECK(levels_of(folders, [&](int levels) { return levels < 8 ? tree(levels) : tree(8); }) == 5);
  // Where five levels are too large, there are fewer.
  const char* wide = R"({"$ref": "#/$defs/f", "$defs": {"f": {"type": "object", "properties": {
      "name": {"type": "string"}, "a": {"$ref": "#/$defs/f"}, "b": {"$ref": "#/$defs/f"}, "c": {"$ref": "#/$defs/f"},
      "d": {"$ref": "#/$defs/f"}, "e": {"$ref": "#/$defs/f"}, "f": {"$ref": "#/$defs/f"}, "g": {"$ref": "#/$defs/f"},
      "h": {"$ref": "#/$defs/f"}}, "required": ["name"]}}})";
  const auto side = [](int levels) {
    std::string out = R"({"name":"a"})";
    for (int i = 0; i < levels; ++i) out = R"({"name":"a","b":)" + out + "}";
    return out;
  };
  CHECK(levels_of(wide, side) == 3);
  std::mt19937 random(7);
  const auto dfa = inf::compile_schema(inf::ordered_schema::parse(folders));
  for (int i = 0; i < 50; ++i) {
    const json value = json::parse(walk(*dfa, random, 200), nullptr, false);
    CHECK((value.is_object() && value["name"].is_string() && value["children"].is_array()));
  }
}

TEST_CASE("the format of a string is kept to where it is simple to say, and passed over elsewhere", "[infer]") {
  const auto accepts = [](const char* format, const std::string& text) {
    return matches(*inf::compile_schema({{"type", "string"}, {"format", format}}), '"' + text + '"');
  };
  for (const char* day : {"2024-02-29", "2000-02-29", "1999-12-31", "2023-02-28", "2023-04-30"}) {
    CAPTURE(day);
    CHECK(accepts("date", day));
    CHECK(accepts("date-time", day + std::string("T23:59:59Z")));
  }
  for (const char* day : {"2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01", "2023-00-01", "0000-01-01", "23-1-1"})
    CHECK_FALSE(accepts("date", day));
  CHECK(accepts("time", "00:00:00.25+05:30"));
  CHECK_FALSE(accepts("time", "24:00:00Z"));
  CHECK_FALSE(accepts("date-time", "2024-01-01 00:00:00Z"));
  CHECK(accepts("uuid", "01234567-89ab-cdef-ABCD-0123456789ab"));
  CHECK_FALSE(accepts("uuid", "0123456789abcdefABCD0123456789ab"));
  CHECK(accepts("ipv4", "192.168.0.255"));
  CHECK_FALSE(accepts("ipv4", "192.168.0.256"));
  CHECK_FALSE(accepts("ipv4", "1.2.3"));
  CHECK(accepts("email", "anything"));
  CHECK(matches(*inf::compile_schema({{"type", "string"}, {"format", "date"}, {"maxLength", 3}}), R"("abc")"));
  CHECK(matches(*inf::compile_schema({{"type", "string"}, {"format", "date"}, {"pattern", "^b$"}}), R"("b")"));
  CHECK(matches(*inf::compile_schema({{"type", "integer"}, {"format", "int32"}}), "7"));
  CHECK(matches(*inf::compile_schema({{"format", "date"}}), "null"));
  CHECK(matches(*inf::compile_schema({{"type", "string"}, {"contentEncoding", "base64"}}), R"("YQ==")"));
}
