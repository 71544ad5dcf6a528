// Ids and texts equal those of the `tokenizers` package: tests/golden/tokenizer.
#include <heddle/core/config.hpp>

#if __has_include(<pcre2.h>) && __has_include(<utf8proc.h>) && __has_include(<nlohmann/json.hpp>)
#include <heddle/io/tokenizer/folder.hpp>

#include "catch.hpp"
#include "tokenizer_strings.hpp"

#include <fstream>
#include <string>
#include <vector>

namespace io = heddle::io;
namespace strings = tokenizer_strings;

namespace {

const std::string folder = HEDDLE_SOURCE_DIR "/tests/golden/tokenizer/";

const nlohmann::json& expected() {
  static const nlohmann::json all = nlohmann::json::parse(std::ifstream(folder + "expected.json"));
  return all;
}

constexpr const char* families[] = {"gpt2", "llama3", "qwen2", "mixed"};

void compare_strings(const std::string& family) {
  const io::tokenizer t = io::load_tokenizer(folder + family + ".json");
  const nlohmann::json& of = expected().at(family);
  const auto marks = of.at("marks").get<std::vector<std::string>>();
  std::size_t block = 0;
  for (const auto& hash : of.at("encoded")) {
    strings::hash all, as_text;
    for (std::uint64_t seed = block * 100; seed < block * 100 + 100; ++seed) {
      const std::string text = strings::string(seed, marks);
      all.ids(t.encode(text));
      as_text.ids(t.encode(text, {.add_special_tokens = false, .special_tokens_as_text = true}));
    }
    CAPTURE(family, block);  // of 100 strings each
    CHECK(all.text() == hash.get<std::string>());
    CHECK(as_text.text() == of.at("as_text").at(block).get<std::string>());
    ++block;
  }
  CHECK(block == 100);
}

void compare_code_points(const std::string& family) {
  const io::tokenizer t = io::load_tokenizer(folder + family + ".json");
  strings::hash all;
  const std::vector<std::vector<std::string>> patterns = {
      {"", ""}, {"a", "1 ", ""}, {"a", "\u0301\u0316 ", "\u0327"}, {"\u0915", "\u093c"}};
  for (std::uint32_t begin = 0; begin < 0x110000; begin += 256) {
    const bool assigned = begin < 0x32400 || (begin >= 0xe0000 && begin < 0xe1000) || (begin & 0xffff) == 0;
    if (!assigned || (begin >= 0xd800 && begin <= 0xdfff)) continue;
    for (const auto& pattern : patterns) {
      std::string text;
      for (std::uint32_t c = begin; c < begin + 256; ++c) {
        text += pattern[0];
        for (std::size_t k = 1; k < pattern.size(); ++k) {
          io::detail::append_code_point(text, c);
          text += pattern[k];
        }
      }
      all.ids(t.encode(text, {.add_special_tokens = false}));
    }
  }
  CAPTURE(family);
  CHECK(all.text() == expected().at(family).at("planes").get<std::string>());
}

// Tokenizers of pieces_golden.py: blocks of 100 strings and rows of ids, at once and streamed.
void compare_pieces() {
  const nlohmann::json all = nlohmann::json::parse(std::ifstream(folder + "pieces_expected.json"));
  CHECK(all.size() == 9);
  for (const auto& [file, of] : all.items()) {
    const io::tokenizer t = io::load_model_tokenizer(folder + file);
    const auto marks = of.at("marks").get<std::vector<std::string>>();
    CAPTURE(file);
    CHECK(t.vocabulary() == of.at("vocabulary").get<int>());
    std::uint64_t number = 0;
    for (const auto& s : of.at("strings")) {
      CAPTURE(number);
      REQUIRE(strings::string(number, marks) == s.at("text").get<std::string>());
      CHECK(t.encode(s.at("text").get<std::string>()) == s.at("ids").get<std::vector<io::token_id>>());
      ++number;
    }
    std::size_t streamed_differently = 0;
    for (std::size_t block = 0; block < of.at("encoded").size(); ++block) {
      strings::hash encoded, as_text, decoded;
      for (std::uint64_t seed = block * 100; seed < block * 100 + 100; ++seed) {
        const std::string text = strings::string(seed, marks);
        encoded.ids(t.encode(text));
        as_text.ids(t.encode(text, {.add_special_tokens = false, .special_tokens_as_text = true}));
        const std::vector<io::token_id> ids = strings::token_ids(seed, t.vocabulary());
        for (const bool skip : {false, true}) {
          const io::decode_options options{.skip_special_tokens = skip};
          const std::string whole = t.decode(ids, options);
          decoded.number(whole.size());
          decoded.bytes(whole);
          io::stream_decoder stream(t, options);
          std::string joined;
          for (const io::token_id id : ids) {
            const std::string part = stream.push(id);
            if (io::detail::valid_prefix(part) != part.size()) ++streamed_differently;
            joined += part;
          }
          if (joined + stream.finish() != whole) ++streamed_differently;
        }
      }
      CAPTURE(block);
      CHECK(encoded.text().substr(0, 8) == of.at("encoded").at(block).get<std::string>());
      CHECK(as_text.text().substr(0, 8) == of.at("as_text").at(block).get<std::string>());
      CHECK(decoded.text().substr(0, 8) == of.at("decoded").at(block).get<std::string>());
    }
    CHECK(streamed_differently == 0);
  }
}

}  // namespace

TEST_CASE("Llama-2's, Mixtral's, Gemma's and SentencePiece's ids and texts are the packages'", "[tokenizer][golden]") {
  compare_pieces();
}

TEST_CASE("the first strings have the package's ids", "[tokenizer][golden]") {
  for (const std::string family : families) {
    const io::tokenizer t = io::load_tokenizer(folder + family + ".json");
    const nlohmann::json& of = expected().at(family);
    const auto marks = of.at("marks").get<std::vector<std::string>>();
    std::uint64_t seed = 0;
    for (const auto& s : of.at("strings")) {
      CAPTURE(family, seed);
      REQUIRE(strings::string(seed, marks) == s.at("text").get<std::string>());
      CHECK(t.encode(s.at("text").get<std::string>()) == s.at("ids").get<std::vector<io::token_id>>());
      ++seed;
    }
    CHECK(seed == 75);
    CHECK(t.vocabulary() == of.at("vocabulary").get<int>());
  }
}

TEST_CASE("10,000 strings have the package's ids: GPT-2", "[tokenizer][golden]") {
  compare_strings("gpt2");
}
TEST_CASE("10,000 strings have the package's ids: Llama-3", "[tokenizer][golden]") {
  compare_strings("llama3");
}
TEST_CASE("10,000 strings have the package's ids: Qwen-2", "[tokenizer][golden]") {
  compare_strings("qwen2");
}
TEST_CASE("10,000 strings have the package's ids: every kind of token and split", "[tokenizer][golden]") {
  compare_strings("mixed");
}

TEST_CASE("10,000 rows of ids have the package's texts, at once and one by one", "[tokenizer][golden]") {
  for (const std::string family : families) {
    const io::tokenizer t = io::load_tokenizer(folder + family + ".json");
    const nlohmann::json& of = expected().at(family);
    std::size_t block = 0, streamed_differently = 0;
    for (const auto& hash : of.at("decoded")) {
      strings::hash all;
      for (std::uint64_t seed = block * 100; seed < block * 100 + 100; ++seed) {
        const std::vector<io::token_id> ids = strings::token_ids(seed, t.vocabulary());
        for (const bool skip : {false, true}) {
          const io::decode_options options{.skip_special_tokens = skip};
          const std::string text = t.decode(ids, options);
          all.number(text.size());
          all.bytes(text);
          io::stream_decoder stream(t, options);
          std::string joined;
          for (const io::token_id id : ids) {
            const std::string part = stream.push(id);
            if (io::detail::valid_prefix(part) != part.size()) ++streamed_differently;
            joined += part;
          }
          joined += stream.finish();
          if (joined != text) ++streamed_differently;
        }
      }
      CAPTURE(family, block);
      CHECK(all.text() == hash.get<std::string>());
      ++block;
    }
    CHECK(block == 100);
    CHECK(streamed_differently == 0);
  }
}

TEST_CASE("every code point has the package's ids, alone and beside others: GPT-2", "[tokenizer][golden][exhaustive]") {
  compare_code_points("gpt2");
}
// Llama-3's pattern has the same classes.
TEST_CASE("every code point has the package's ids, alone and beside others: Qwen-2",
          "[tokenizer][golden][exhaustive]") {
  compare_code_points("qwen2");
}
TEST_CASE("every code point has the package's ids, alone and beside others: others",
          "[tokenizer][golden][exhaustive]") {
  compare_code_points("mixed");
}

TEST_CASE("GPT-2's two files make the tokenizer that tokenizer.json describes", "[tokenizer][golden]") {
  const io::tokenizer one = io::load_tokenizer(folder + "gpt2.json");
  const io::tokenizer two = io::load_gpt2_tokenizer(folder + "gpt2_vocab.json", folder + "gpt2_merges.txt");
  CHECK(two.vocabulary() == one.vocabulary());
  CHECK(two.special("<|endoftext|>") == one.special("<|endoftext|>"));
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    CAPTURE(seed);
    const std::string text = strings::string(seed, {"<|endoftext|>"});
    CHECK(two.encode(text) == one.encode(text));
  }
}
#endif
