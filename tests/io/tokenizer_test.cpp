#include <heddle/core/config.hpp>

#if __has_include(<pcre2.h>) && __has_include(<utf8proc.h>) && __has_include(<nlohmann/json.hpp>)
#include <heddle/io/tokenizer/load.hpp>
#include <heddle/io/tokenizer/sentencepiece.hpp>

#include "catch.hpp"
#include "scratch.hpp"
#include "tokenizer_strings.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace hd = heddle;
namespace io = heddle::io;
namespace strings = tokenizer_strings;
using Catch::Matchers::Contains;
using ids = std::vector<io::token_id>;

namespace {

const std::string golden = HEDDLE_SOURCE_DIR "/tests/golden/tokenizer/";

// The smallest tokenizer.json: ids of bytes are the bytes, then "ab" and "abc".
nlohmann::json small() {
  nlohmann::json vocab;
  for (unsigned b = 0; b < 256; ++b) {
    std::string spelled;
    io::detail::append_code_point(spelled, io::detail::byte_characters()[b]);
    vocab[spelled] = b;
  }
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  return {{"version", "1.0"},
          {"added_tokens", {{{"id", 258}, {"content", "<end>"}, {"special", true}, {"normalized", false}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", nlohmann::json{"ab", "c"}}}}}};
}
// As Llama-2's: ids of the bytes' tokens are the bytes and 1.
nlohmann::json marked() {
  nlohmann::json vocab = {{"<unk>", 0}};
  for (unsigned b = 0; b < 256; ++b) {
    char spelled[8];
    std::snprintf(spelled, sizeof spelled, "<0x%02X>", b);
    vocab[spelled] = b + 1;
  }
  int id = 257;
  for (const char* word : {"\u2581", "a", "b", "ab", "\u2581ab"}) vocab[word] = id++;
  const nlohmann::json spaces = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  return {
      {"normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "\u2581"}}, spaces}}}},
      {"pre_tokenizer", nullptr},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", vocab},
        {"byte_fallback", true},
        {"fuse_unk", true},
        {"unk_token", "<unk>"},
        {"merges", {"a b", nlohmann::json{"\u2581", "ab"}}}}}};
}
std::string refusal(const nlohmann::json& file) {
  return message_of<hd::io_error>([&] { io::parse_tokenizer(file.dump(), "t.json"); });
}
std::string refusal(const char* pointer, const nlohmann::json& value) {
  nlohmann::json file = small();
  file[nlohmann::json::json_pointer(pointer)] = value;
  return refusal(file);
}

// The definition: as long as a pair can be merged, the leftmost of the lowest rank.
ids merged_slowly(const io::detail::byte_pair_encoding& bpe, std::string_view word) {
  ids out;
  for (const char c : word) out.push_back(bpe.of_byte[static_cast<unsigned char>(c)]);
  while (true) {
    std::size_t best = 0;
    auto least = io::detail::merge_table::merge{};
    for (std::size_t i = 0; i + 1 < out.size(); ++i)
      if (const auto m = bpe.merges.find(out[i], out[i + 1]); m.rank < least.rank) least = m, best = i;
    if (least.rank == io::detail::merge_table::none) return out;
    out[best] = least.to;
    out.erase(out.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

}  // namespace

TEST_CASE("a small tokenizer encodes, decodes and knows its tokens", "[tokenizer]") {
  const io::tokenizer t = io::parse_tokenizer(small().dump());
  CHECK(t.encode("") == ids{});
  CHECK(t.encode("abcab") == ids{257, 256});
  CHECK(t.encode("x<end>abc") == ids{'x', 258, 257});
  CHECK(t.encode("<end>", {.special_tokens_as_text = true}) == ids{'<', 'e', 'n', 'd', '>'});
  CHECK(t.decode(ids{257, 258, 256}) == "abc<end>ab");
  CHECK(t.decode(ids{257, 258, 256}, {.skip_special_tokens = true}) == "abcab");
  CHECK(t.vocabulary() == 259);
  CHECK(t.token_bytes(257) == "abc");
  CHECK(t.token_bytes(0) == std::string_view("\0", 1));
  CHECK(t.token_bytes(258) == "<end>");
  CHECK(t.find("ab") == 256);
  CHECK(t.find("<end>") == 258);
  CHECK(t.find("ba") == std::nullopt);
  CHECK(t.special("<end>") == 258);
  CHECK(t.is_special(258));
  CHECK_FALSE(t.is_special(257));
  CHECK_FALSE(t.is_special(-1));
  CHECK(t.added_tokens().size() == 1);
  CHECK_THROWS_WITH(t.special("<begin>"), Contains("no special token '<begin>'") && Contains("<end>"));
  CHECK_THROWS_WITH(t.token_bytes(259), Contains("token 259") && Contains("below 259"));
  CHECK_THROWS_AS(t.decode(ids{1, 300}), hd::text_error);
  CHECK_THROWS_AS(t.decode(ids{-1}), hd::text_error);
  CHECK(t.decode(ids{'a', 300, -1, 'b'}, {.skip_unknown_ids = true}) == "ab");
}

TEST_CASE("bytes that are no UTF-8 are refused with their place, or replaced as Python does", "[tokenizer]") {
  const io::tokenizer t = io::parse_tokenizer(small().dump());
  const struct {
    std::string bytes;
    std::size_t valid;
    std::string replaced;  // bytes.decode("utf-8", "replace")
  } cases[] = {{"a\xff", 1, "a\ufffd"},
               {"\xc3", 0, "\ufffd"},
               {"ok\xe2\x82", 2, "ok\ufffd"},
               {"\xe2\x82z", 0, "\ufffdz"},
               {"\xc0\x80", 0, "\ufffd\ufffd"},
               {"\xed\xa0\x80!", 0, "\ufffd\ufffd\ufffd!"},
               {"\xf4\x90\x80\x80", 0, "\ufffd\ufffd\ufffd\ufffd"},
               {"\xf0\x9f\x98\xf0\x9f\x98\x80", 0, "\ufffd\U0001f600"}};
  for (const auto& c : cases) {
    CAPTURE(c.replaced);
    CHECK(io::detail::valid_prefix(c.bytes) == c.valid);
    CHECK_THROWS_WITH(t.encode(c.bytes), Contains("byte " + std::to_string(c.valid) + " ") && Contains("UTF-8"));
    CHECK(t.encode(c.bytes, {.invalid = io::invalid_utf8::replace}) == t.encode(c.replaced));
    // Decoding repairs in the same way, and streams cut anywhere do, too.
    ids raw;
    for (const char b : c.bytes) raw.push_back(static_cast<unsigned char>(b));
    CHECK(t.decode(raw) == c.replaced);
    io::stream_decoder stream(t);
    std::string joined;
    for (const io::token_id id : raw) joined += stream.push(id);
    CHECK(joined + stream.finish() == c.replaced);
  }
}

TEST_CASE("a stream holds back what is no whole character yet", "[tokenizer]") {
  const io::tokenizer t = io::parse_tokenizer(small().dump());
  io::stream_decoder stream(t);
  CHECK(stream.push(0xf0) == "");
  CHECK(stream.push(0x9f) == "");
  CHECK(stream.push(0x98) == "");
  CHECK(stream.pending() == 3);
  CHECK_THROWS_AS(stream.push(1000), hd::text_error);
  CHECK(stream.pending() == 3);
  CHECK(stream.push(0x80) == "\U0001f600");
  CHECK(stream.pending() == 0);
  CHECK(stream.push(0xe2) == "");
  CHECK(stream.push('a') ==
        "\ufffd"
        "a");
  CHECK(stream.push(0xc3) == "");
  CHECK(stream.finish() == "\ufffd");
  CHECK(stream.finish() == "");
  CHECK(stream.push(257) == "abc");
}

TEST_CASE("what is encoded is decoded to the same text", "[tokenizer]") {
  for (const char* family : {"gpt2", "llama3"}) {  // the others normalize
    const io::tokenizer t = io::load_tokenizer(golden + family + ".json");
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
      const std::string text = strings::string(seed, {"<|eot_id|>", "<|endoftext|>"});
      CAPTURE(family, seed);
      CHECK(t.decode(t.encode(text, {.add_special_tokens = false})) == text);
      CHECK(t.decode(t.encode(text, {.add_special_tokens = false, .special_tokens_as_text = true})) == text);
    }
  }
}

TEST_CASE("words of any length are merged as the definition says", "[tokenizer]") {
  const nlohmann::json file = nlohmann::json::parse(get(golden + "gpt2.json"));
  const std::string name = "gpt2.json";
  io::detail::tokenizer_builder builder(name);
  builder.vocabulary(io::detail::json_place(file["model"]["vocab"], name));
  builder.finish_vocabulary();
  auto& bpe = builder.parts().model;
  bpe.merges.reserve(file["model"]["merges"].size());
  std::uint32_t rank = 0;
  for (const auto& m : file["model"]["merges"])
    builder.merge(m[0].get<std::string>(), m[1].get<std::string>(), rank++, [] { return std::string(); });
  bpe.finish();
  const std::string letters = "etaoinshr wl\xc3\xa9\xd0\xb0";
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    strings::random r(seed);
    std::string word;
    for (std::size_t n = 1 + r.below(seed % 10 == 0 ? 300 : 70), have = 0; have < n; ++have)
      word += r.below(8) == 0 ? static_cast<char>(r.below(256)) : letters[r.below(letters.size())];
    ids out;
    bpe.encode_word(word, out);
    CHECK(out == merged_slowly(bpe, word));
  }
}

TEST_CASE("long words and long white space take no quadratic time", "[tokenizer]") {
  // A quadratic merge would not end within the limit of any test run.
  const io::tokenizer t = io::load_tokenizer(golden + "qwen2.json");
  const std::string word(300000, 'a');
  CHECK(t.decode(t.encode(word)) == word);
  CHECK(t.decode(t.encode(std::string(100000, ' ') + "x")) == std::string(100000, ' ') + "x");
  // The pattern looks behind all white space for a line break, within the limit of steps.
  CHECK(t.encode(std::string(1500000, '\t') + "x").size() == 1500001);
}

TEST_CASE("text gives no special token that the model has", "[tokenizer]") {
  nlohmann::json file = small();
  file["added_tokens"] = {{{"id", 257}, {"content", "abc"}, {"special", true}, {"normalized", false}}};
  const auto as_text = [&](const std::string& text) {
    return io::parse_tokenizer(file.dump()).encode(text, {.special_tokens_as_text = true});
  };
  CHECK(io::parse_tokenizer(file.dump()).encode("abcab") == ids{257, 256});
  CHECK(as_text("abcabab") == ids{'a', 'b', 'c', 256, 256});  // merges lead to it
  CHECK(as_text("abc") == ids{'a', 'b', 'c'});
  file["model"]["merges"] = {"a b"};
  file["model"]["ignore_merges"] = true;
  CHECK(as_text("abc") == ids{256, 'c'});  // it is a word
  file["added_tokens"] = {{{"id", 'a'}, {"content", "a"}, {"special", true}, {"normalized", false}}};
  CHECK(as_text("ab") == ids{256});
  CHECK_THROWS_WITH(as_text("ba"), Contains("the token of byte 97 is special"));
}

TEST_CASE("limits of a match grow with the text", "[tokenizer]") {
  const auto pattern = io::detail::split_pattern::from_oniguruma("\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+");
  io::detail::split_pattern::room room(pattern);
  constexpr std::size_t spaces = 12000000;  // more than the steps that a short text has
  const auto found = pattern.next(std::string(spaces, ' ') + "x", 0, room);
  REQUIRE(found);
  CHECK(found->first == 0);
  CHECK(found->second == spaces - 1);
}

TEST_CASE("many combining marks are ordered, and composed as utf8proc does", "[tokenizer]") {
  std::string mixed = "a", below, above;
  for (int i = 0; i < 50000; ++i) mixed += "\u0301\u0316", below += "\u0316", above += "\u0301";
  const std::string ordered = io::detail::nfc("a" + below + above);
  CHECK(io::detail::nfc(mixed) == ordered);
  CHECK(ordered == "\u00e1" + below + above.substr(2));
  const auto random_seed = std::random_device{}();
  for (std::uint64_t seed = random_seed; seed < random_seed + 3000ULL; ++seed) {
    CAPTURE(seed);
    std::string text = strings::string(seed, {"<x>"});
    strings::random r(seed);
    for (std::size_t n = r.below(12); n > 0; --n) {
      const std::string base[] = {"a", "\u1100", "\u1161", "\u11a8", "\uac00", "\u00e9", "\u0f73", "\u212b"};
      text += base[r.below(8)];
      for (std::size_t marks = r.below(5); marks > 0; --marks)
        io::detail::append_code_point(text, 0x300 + static_cast<std::uint32_t>(r.below(0x70)));
    }
    utf8proc_uint8_t* made = nullptr;
    const auto size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                     &made, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> keep(made, &std::free);
    REQUIRE(size >= 0);
    std::string out;
    io::detail::append_utf8proc_nfc(out, text);
    CHECK(out == std::string_view(reinterpret_cast<const char*>(made), static_cast<std::size_t>(size)));
  }
}

TEST_CASE("added tokens that take white space along look at it once", "[tokenizer]") {
  nlohmann::json file = small();
  file["added_tokens"] = {{{"id", 258}, {"content", "\t"}, {"lstrip", true}, {"rstrip", true}, {"normalized", false}}};
  const io::tokenizer t = io::parse_tokenizer(file.dump());
  CHECK(t.encode("a \t b") == ids{'a', 258, 'b'});
  CHECK(t.encode(" \t\t a") == ids{258, 'a'});             // as the package: nothing is left for the second
  CHECK(t.encode(std::string(500000, '\t')) == ids{258});  // would not end if each looked at all
}

TEST_CASE("threads share a tokenizer", "[tokenizer]") {
  const io::tokenizer t = io::load_tokenizer(golden + "llama3.json");
  std::vector<std::vector<ids>> found(4);
  std::vector<std::thread> threads;
  for (auto& mine : found)
    threads.emplace_back([&t, &mine] {
      for (std::uint64_t seed = 0; seed < 200; ++seed) mine.push_back(t.encode(strings::string(seed, {"<|eot_id|>"})));
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& other : found) CHECK(other == found[0]);
}

TEST_CASE("components that are not supported are named, with what was expected", "[tokenizer]") {
  CHECK_THAT(
      refusal("/pre_tokenizer/type", "Whitespace"),
      Contains("t.json: at /pre_tokenizer/type: expected the pre-tokenizer ByteLevel, Split, Digits, Metaspace or "
               "Sequence, got 'Whitespace'"));
  CHECK_THAT(refusal("/normalizer", {{"type", "NFKC"}}),
             Contains("at /normalizer/type: expected the normalizer NFC, Prepend, Replace, Strip, Sequence, or null") &&
                 Contains("got 'NFKC'"));
  CHECK_THAT(refusal("/model/type", "Unigram"),
             Contains("at /model: expected the model BPE with the pre-tokenizer ByteLevel, got Unigram"));
  CHECK_THAT(refusal("/model/type", "WordPiece"),
             Contains("at /model/type: expected the model BPE or Unigram, got 'WordPiece'"));
  CHECK_THAT(refusal("/model/dropout", 0.1), Contains("at /model/dropout: expected null") && Contains("got 0.1"));
  CHECK_THAT(refusal("/model/end_of_word_suffix", "</w>"), Contains("at /model/end_of_word_suffix: expected null"));
  CHECK_THAT(refusal("/decoder/type", "WordPiece"),
             Contains("expected the decoder ByteLevel, as the pre-tokenizer is, got 'WordPiece'"));
  CHECK_THAT(refusal("/post_processor", {{"type", "BertProcessing"}}),
             Contains("expected the post-processor") && Contains("got 'BertProcessing'"));
  CHECK_THAT(refusal("/truncation", {{"max_length", 5}}), Contains("at /truncation: expected null"));
  CHECK_THAT(refusal("/version", "2.0"), Contains("at /version: expected version '1.0', got '2.0'"));
  CHECK_THAT(refusal("/pre_tokenizer", nullptr), Contains("at /decoder: expected the decoder ByteLevel only with"));
  nlohmann::json marks = marked();
  const auto refused = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json file = marked();
    file[nlohmann::json::json_pointer(pointer)] = value;
    return refusal(file);
  };
  CHECK(refusal(marks).empty());
  CHECK_THAT(
      refused("/decoder/decoders/1/type", "CTC"),
      Contains("at /decoder/decoders/1/type: expected the decoder ByteLevel, Replace, ByteFallback, Fuse, Strip, "
               "Metaspace or Sequence, got 'CTC'"));
  CHECK_THAT(refused("/decoder/decoders/3/stop", 1),
             Contains("/decoder/decoders/3/stop: expected 0 behind Fuse, got 1"));
  CHECK_THAT(refused("/decoder/decoders/3/content", "ab"), Contains("expected one character, got 'ab'"));
  CHECK_THAT(refused("/decoder/decoders/1", {{"type", "Fuse"}}),
             !Contains("expected"));  // then all bytes stay as they are spelled
  CHECK_THAT(refused("/decoder/decoders/0", {{"type", "Fuse"}}), Contains("expected one ByteFallback, before Fuse"));
  CHECK_THAT(refused("/normalizer/normalizers/1/pattern", {{"String", ""}}), Contains("expected a text to look for"));
  CHECK_THAT(refused("/model/unk_token", "<none>"), Contains("/model/unk_token: expected a token of the vocabulary"));
  CHECK_THAT(refused("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}}),
             Contains("/pre_tokenizer/prepend_scheme: expected always, first or never, got 'last'"));
  CHECK_THAT(refused("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}}),
             Contains("expected the prepend_scheme never where add_prefix_space is false"));
}

TEST_CASE("malformed files are refused with their place", "[tokenizer]") {
  CHECK(refusal(small()).empty());
  CHECK_THAT(message_of<hd::io_error>([] { io::parse_tokenizer("{\n  \"version\": ", "t.json"); }),
             Contains("heddle: t.json, offset 15: is no JSON"));
  CHECK_THAT(message_of<hd::io_error>([] { io::parse_tokenizer(small().dump() + std::string("\0x", 2), "t.json"); }),
             Contains("t.json, offset ") && Contains("a zero byte"));
  CHECK_THAT(message_of<hd::io_error>([] {
               std::string text = small().dump();
               text.replace(0, 1, "{\"model\": {}, ");
               io::parse_tokenizer(text, "t.json");
             }),
             Contains("t.json: the name 'model' comes twice"));
  CHECK_THAT(refusal(nlohmann::json::array()), Contains("t.json: expected an object, got an array"));
  CHECK_THAT(refusal("/model/merges/1", "abc"), Contains("at /model/merges/1: expected two tokens, got 'abc'"));
  CHECK_THAT(refusal("/model/merges/0", "a b c"), Contains("expected two tokens"));
  CHECK_THAT(refusal("/model/merges/1", 7), Contains("expected two tokens, got 7"));
  CHECK_THAT(refusal("/model/merges/1", "a c"),
             Contains("at /model/merges/1: expected tokens of the vocabulary, got 'ac'"));
  CHECK_THAT(refusal("/model/vocab/abc", -1), Contains("at /model/vocab/abc: expected a token id, got -1"));
  CHECK_THAT(refusal("/model/vocab/abc", 1.5), Contains("expected a token id, got 1.5"));
  CHECK_THAT(refusal("/model/vocab/abc", 2000000000),
             Contains("expected ids of 259 tokens, got one as high as 2000000000"));
  CHECK_THAT(refusal("/model/vocab/abc", 256), Contains("expected one token with the id 256, got two"));
  CHECK_THAT(refusal("/added_tokens/0/id", 257),
             Contains("at /added_tokens/0: expected an id of its own for '<end>', got 257"));
  CHECK_THAT(refusal("/added_tokens/0/content", "abc"),
             Contains("expected the id 257 that the model has for 'abc', got 258"));
  CHECK_THAT(refusal("/added_tokens/0/id", 260),
             Contains("at /added_tokens/0: expected the id 258 for '<end>', the next one") && Contains("got 260"));
  const auto with_added = [](const nlohmann::json& tokens) { return refusal("/added_tokens", tokens); };
  CHECK(with_added(
            {{{"id", 258}, {"content", "<a>"}}, {{"id", 97}, {"content", "a"}}, {{"id", 258 + 1}, {"content", "<b>"}}})
            .empty());
  CHECK_THAT(with_added({{{"id", 259}, {"content", "<b>"}}, {{"id", 258}, {"content", "<a>"}}}),
             Contains("at /added_tokens/0: expected the id 258 for '<b>'") && Contains("got 259"));
  CHECK_THAT(with_added({{{"id", 258}, {"content", "<a>"}}, {{"id", 260}, {"content", "<b>"}}}),
             Contains("at /added_tokens/1: expected the id 259 for '<b>'") && Contains("got 260"));
  CHECK_THAT(with_added({{{"id", 258}, {"content", "<a>"}}, {{"id", 259}, {"content", "<a>"}}}),
             Contains("at /added_tokens/1: expected '<a>' once, got it with the ids 258 and 259"));
  CHECK_THAT(refusal("/added_tokens/0/special", "yes"),
             Contains("at /added_tokens/0/special: expected true or false, got 'yes'"));
  nlohmann::json file = small();
  file["model"]["vocab"].erase("q");
  CHECK_THAT(refusal(file), Contains("expected a token for each of 256 bytes, got none for byte 113 ('q')"));
  const nlohmann::json byte_level = small()["pre_tokenizer"];
  const auto with_split = [&](const std::string& regex, const std::string& behavior = "Isolated") {
    return refusal("/pre_tokenizer",
                   {{"type", "Sequence"},
                    {"pretokenizers",
                     {{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", behavior}}, byte_level}}});
  };
  CHECK(with_split("[^\\r\\n\\p{L}]?+\\p{Lu}*|\\d{1,3}(?=\\S)|\\x{4e00}[\\x{3041}-\\x{3096}]|(?i:'s)").empty());
  for (const char* same : {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[a\\-\\d]|[-\\s]|[\\d-]", "'(?i:s|t|re)",
                           "(?i:'m)(?i:t)?|(?i:\\?l)", "(?:(?i:'ts|'re))+"}) {
    CAPTURE(same);
    CHECK(with_split(same).empty());
  }
  CHECK_THAT(with_split("a", "Sideways"),
             Contains("/pre_tokenizer/pretokenizers/0/behavior: expected Isolated") && Contains("'Sideways'"));
  CHECK_THAT(with_split("(a"),
             Contains("at /pre_tokenizer/pretokenizers/0/pattern/Regex") && Contains("PCRE2 refuses"));
  for (const char* differs : {"\\h",
                              "^a",
                              "a$",
                              "a.b",
                              "\\w",
                              "\\bx",
                              "[a&&b]",
                              "[[:alpha:]]",
                              "(?m:a)",
                              "(?<n>a)",
                              "a{2}+",
                              "\\p{Foo}",
                              "[]",
                              "\\",
                              "[",
                              "\\p{L",
                              "\\x{110000}",
                              "\\1",
                              "(*FAIL)",
                              "[\\d-z]",
                              "[\\p{L}-z]",
                              "[\\s-\\x{9}]",
                              "[a-\\d]",
                              "[\\x{1}-\\s]",
                              "(?i:ss)",
                              "(?i:mS\\'|St)",
                              "(?i:off)",
                              "(?i:fi)",
                              "(?i:Fl)",
                              "(?i:\u00df)",
                              "(?i:[sdmt])",
                              "(?i:\\x{df})",
                              "(?i:\\p{L})",
                              "(?i:s+)",
                              "(?i:s{2})",
                              "(?i:(?:s)t)",
                              "(?i:s)(?i:t)",
                              "(?i:s){2}",
                              "(?:(?i:s|x))+",
                              "(?i:a",
                              "(?i:x|s)(?:b|(?i:T))"}) {
    CAPTURE(differs);
    CHECK_THAT(with_split(differs), Contains("/pattern/Regex: at byte ") && Contains(": expected literals, classes"));
  }
  nlohmann::json deep = byte_level;
  for (int i = 0; i < 40; ++i) deep = {{"type", "Sequence"}, {"pretokenizers", {deep}}};
  CHECK_THAT(refusal("/pre_tokenizer", deep), Contains("t.json has objects and arrays in more than 32 levels"));
  CHECK_THAT(refusal("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {byte_level, byte_level}}}),
             Contains("expected ByteLevel to be the last"));
  CHECK_THAT(refusal("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", nlohmann::json::array()}}),
             Contains("at /decoder: expected the decoder ByteLevel only with the pre-tokenizer ByteLevel"));
  const auto with_single = [&](const nlohmann::json& single) {
    return refusal("/post_processor", {{"type", "TemplateProcessing"},
                                       {"single", single},
                                       {"special_tokens", {{"<end>", {{"ids", {258}}}}, {"<x>", {{"ids", {999}}}}}}});
  };
  const nlohmann::json text = {{"Sequence", {{"id", "A"}}}};
  const auto mark = [](const char* name) { return nlohmann::json{{"SpecialToken", {{"id", name}}}}; };
  CHECK(with_single({mark("<end>"), text}).empty());
  CHECK_THAT(with_single(nlohmann::json::array({mark("<end>")})), Contains("expected the text among the pieces"));
  CHECK_THAT(with_single({text, text}), Contains("expected the text once"));
  CHECK_THAT(with_single({mark("<x>"), text}),
             Contains("at /post_processor/special_tokens/<x>/ids/0: expected the id of a token, got 999"));
  CHECK_THAT(with_single({mark("<y>"), text}), Contains("expected a member '<y>'"));
}

TEST_CASE("a pattern that goes back and forth is an error, not a hang", "[tokenizer]") {
  nlohmann::json file = small();
  file["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Split"}, {"pattern", {{"Regex", "(?:a+)+[bc]"}}}, {"behavior", "Isolated"}},
                             small()["pre_tokenizer"]}}};
  const io::tokenizer t = io::parse_tokenizer(file.dump());
  CHECK(t.encode("aab") == ids{'a', 256});
  CHECK_THROWS_WITH(t.encode(std::string(200, 'a')), Contains("cannot be matched at byte") && Contains("of 200"));
}

TEST_CASE("GPT-2's two files: lines, options and refusals", "[tokenizer]") {
  const nlohmann::json vocab = small()["model"]["vocab"];
  const auto parse = [&](const std::string& merges, const io::gpt2_tokenizer_options& options = {}) {
    return io::parse_gpt2_tokenizer(vocab.dump(), merges, options);
  };
  const io::tokenizer t = parse("#version: 0.2\r\na b\r\nab c\r\n");
  CHECK(t.encode("abc<|endoftext|> abc") == ids{257, 258, ' ', 257});
  CHECK(t.special("<|endoftext|>") == 258);
  CHECK(parse("a b\nab c", {.add_prefix_space = true, .special_tokens = {}}).encode("abc") == ids{' ', 257});
  CHECK_THROWS_WITH(parse("#version: 0.2\na b\nabc\n"), Contains("merges.txt:3: expected two tokens"));
  CHECK_THROWS_WITH(parse("a b\n\nab c\n"), Contains("merges.txt:2: expected two tokens"));
  CHECK_THROWS_WITH(parse("a b\na c\n"),
                    Contains("of merges.txt, line 2: expected tokens of the vocabulary, got 'ac'"));
  CHECK_THROWS_WITH(parse("a \xff\n"), Contains("merges.txt:1"));
  CHECK_THROWS_WITH(io::parse_gpt2_tokenizer("[]", ""), Contains("vocab.json: expected an object, got an array"));
  CHECK_THROWS_WITH(io::parse_gpt2_tokenizer("{\"a\": \"b\"}", ""),
                    Contains("vocab.json: at /a: expected a token id, got 'b'"));
  CHECK(parse("a b\nab c", {.special_tokens = {"<a>", "", "a", "<b>"}}).encode("<b>a<a>") == ids{259, 'a', 258});
  for (const char* broken : {"ok\xe2\x82", "ok\xff", "ok\xf0\x9f"})
    CHECK_THROWS_WITH(parse("a b\nab c", {.special_tokens = {"<a>", broken}}),
                      Contains("gpt2_tokenizer_options::special_tokens[1]: expected UTF-8, got byte 2 ("));
  CHECK_THROWS_AS(parse("a b\nab c", {.special_tokens = {"\xf0"}}), hd::config_error);
  nlohmann::json high = vocab;
  high["abc"] = 0x7ffffffe;
  CHECK_THROWS_WITH(io::parse_gpt2_tokenizer(high.dump(), "a b\n", {.special_tokens = {"<a>", "<b>"}}),
                    Contains("got one as high as 2147483646"));
  CHECK_THROWS_WITH(io::parse_gpt2_tokenizer(high.dump(), "a b\n", {.special_tokens = {"abc", "<a>", "<b>"}}),
                    Contains("vocab.json: expected ids that leave some for special tokens, got none for '<a>'"));
  high["abc"] = 300;
  const auto gaps = [&](const std::vector<std::string>& special) {
    return io::parse_gpt2_tokenizer(high.dump(), "a b\n", {.special_tokens = special}).encode("<a>");
  };
  CHECK(gaps({"<a>"}) == ids{258});  // the number of tokens, as in the package
  CHECK(gaps({"abc", "<a>"}) == ids{301});
  high["abc"] = 258;
  CHECK_THROWS_WITH(gaps({"<a>"}), Contains("expected an id of its own for '<a>', got 258"));
  CHECK_THROWS_WITH(io::parse_gpt2_tokenizer("{}", ""), Contains("expected tokens, got none"));
}

TEST_CASE("tokens of bytes wait until all of their run are there", "[tokenizer]") {
  const io::tokenizer t = io::parse_tokenizer(marked().dump());
  CHECK(t.encode("ab \u00e9") == ids{261, 257, 0xc3 + 1, 0xa9 + 1});
  CHECK(t.token_bytes(261) == " ab");
  CHECK(t.token_bytes(0xc3 + 1) == "\xc3");
  CHECK(t.find(" ab") == 261);
  io::stream_decoder stream(t);
  CHECK(stream.push(261) == "ab");
  CHECK(stream.push(0xc3 + 1) == "");
  CHECK(stream.push(0xa9 + 1) == "");  // one more that is none would make U+FFFD of both
  CHECK(stream.pending() == 2);
  CHECK(stream.push(261) == "\u00e9 ab");
  CHECK(stream.push(0xc3 + 1) == "");
  CHECK(stream.finish() == "\ufffd");
  CHECK(stream.push(261) == "ab");
}

namespace {

// A message of protobuf, field by field.
struct proto {
  std::string bytes;
  static std::string varint(std::uint64_t n) {
    std::string out;
    for (; n > 0x7f; n >>= 7) out += static_cast<char>(0x80 | (n & 0x7f));
    return out + static_cast<char>(n);
  }
  proto& number(unsigned field, std::uint64_t n) { return bytes += varint(field << 3) + varint(n), *this; }
  proto& text(unsigned field, const std::string& of) {
    return bytes += varint(field << 3 | 2) + varint(of.size()) + of, *this;
  }
  proto& piece(const std::string& content, float score, unsigned type = 1) {
    std::uint32_t bits = std::bit_cast<std::uint32_t>(score);
    std::string four;
    for (int k = 0; k < 4; ++k) four += static_cast<char>(bits >> 8 * k & 0xff);
    proto p;
    p.text(1, content).bytes += varint(2 << 3 | 5) + four;
    return text(1, p.number(3, type).bytes);
  }
};
proto few_pieces() {
  proto m;
  m.piece("<unk>", 0, 2).piece("<s>", 0, 3).piece("</s>", 0, 3).piece("\u2581", -3).piece("a", -4).piece("b", -5);
  return m.piece("ab", -1).piece("\u2581ab", -2);
}
std::string model_of(proto pieces, unsigned type = 2) {
  return pieces.text(2, proto().number(3, type).bytes).text(3, proto().number(4, 0).bytes).bytes;
}

}  // namespace

TEST_CASE("SentencePiece's file: small models, and what is refused at its byte", "[tokenizer]") {
  const auto parse = [](const std::string& file, const io::sentencepiece_options& options = {}) {
    return io::parse_sentencepiece(file, options, "t.model");
  };
  const auto refused = [&](const std::string& file) { return message_of<hd::io_error>([&] { parse(file); }); };
  for (const unsigned type : {1U, 2U}) {
    CAPTURE(type);
    const io::tokenizer t = parse(model_of(few_pieces(), type), {.add_bos = true, .add_eos = true});
    CHECK(t.encode("ab ab") == ids{1, 7, 7, 2});
    CHECK(t.encode("bxyb<s>", {.add_special_tokens = false}) == ids{3, 5, 0, 5, 1});
    CHECK(t.decode(ids{1, 7, 7, 0, 2}) == "ab ab \u2047 ");
    CHECK(t.special("</s>") == 2);
    CHECK(t.token_bytes(7) == " ab");
  }
  const io::sentencepiece_options more{.added = {{8, "<x>", false, false, false, false, true}}};
  CHECK(parse(model_of(few_pieces()), more).encode("ab<x>ab") == ids{7, 8, 7});
  CHECK(parse(model_of(few_pieces()), {.prefix_first_only = true, .added = more.added}).encode("ab<x>ab") ==
        ids{7, 8, 6});

  const std::string whole = model_of(few_pieces());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    CHECK_THAT(refused(whole.substr(0, size)), Contains("heddle: t.model: ") && Contains("expected"));
  }
  const auto cut = [&](std::size_t size) { return refused(whole.substr(0, size)); };
  CHECK_THAT(cut(5), Contains("at byte 0: expected 14 bytes for field 1, got 3 up to the end of the message"));
  CHECK_THAT(cut(1), Contains("at byte 1: expected a whole number, got the end"));
  CHECK_THAT(refused(std::string(11, '\xff')), Contains("at byte 0: expected a number of at most 64 bits"));
  CHECK_THAT(refused("{}"), Contains("at byte 0: expected a field of protobuf"));
  CHECK_THAT(refused(proto().text(1, proto().text(1, "a").bytes + "\x22\x7f").bytes),
             Contains("at byte 5: expected 127 bytes for field 4, got 0"));
  CHECK_THAT(refused(proto().number(1, 7).bytes), Contains("at byte 0: expected bytes for a piece, got type 0"));
  CHECK_THAT(refused(proto().piece("\xff", 0).bytes), Contains("expected UTF-8") && Contains("piece 0"));
  CHECK_THAT(refused(proto().piece("a", 0, 9).bytes), Contains("expected a type from 1 to 6 for piece 0, got 9"));
  CHECK_THAT(refused(model_of(few_pieces(), 3)), Contains("expected the model type 1 (unigram) or 2 (BPE), got 3"));
  CHECK_THAT(refused(model_of(few_pieces().piece("ab", -9))), Contains("expected different pieces, got 'ab' twice"));
  CHECK_THAT(refused(model_of(few_pieces().piece("az", -9))), Contains("each character of 'az', got none for 'z'"));
  CHECK_THAT(refused(model_of(few_pieces().piece("<0x41>", 0, 6))), Contains("and byte_fallback, got '<0x41>'"));
  CHECK_THAT(refused(model_of(proto().piece("a", 0))), Contains("expected an unknown piece, got none"));
  proto table = few_pieces();
  table.text(2, proto().number(3, 2).bytes).text(3, proto().text(2, std::string("\x08\0\0\0abc", 7)).bytes);
  CHECK_THAT(refused(table.bytes), Contains("expected a table of characters with its size before it, got 7 bytes"));
  CHECK_THROWS_WITH(parse(model_of(few_pieces()), {.added = {{6, "<x>", false, false, false, false, true}}}),
                    Contains("expected the piece 'ab' for the id 6, got the added token '<x>'"));
}

TEST_CASE("a folder has its tokenizer.json; what cannot be read is named", "[tokenizer]") {
  const scratch_folder folder("tokenizer");
  put(folder / "tokenizer.json", small().dump());
  CHECK(io::load_tokenizer(folder.path).encode("abc") == ids{257});
  CHECK(io::load_tokenizer(folder / "tokenizer.json").encode("abc") == ids{257});
  CHECK_THROWS_WITH(io::load_tokenizer(folder / "other.json"), Contains("other.json is not a file that can be read"));
}
#endif
