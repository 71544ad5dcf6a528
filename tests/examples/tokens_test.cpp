// tests/examples/tokens_test.cpp: the tool tokens: texts as they come, duplicates, what is done when it is killed, and what is wrong.
#if __has_include(<pcre2.h>) && __has_include(<utf8proc.h>) && __has_include(<nlohmann/json.hpp>)
#include "catch.hpp"
#include "run_program.hpp"

#include <heddle/io/tokens/megatron_index.hpp>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <unistd.h>

using Catch::Matchers::Contains;

namespace tokens_tool_test {
namespace {

namespace fs = std::filesystem;

struct tool_folder {
  fs::path path = fs::temp_directory_path() / ("heddle-tokens-" + std::to_string(::getpid()));
  tool_folder() { fs::remove_all(path), fs::create_directories(path); }
  ~tool_folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  std::string operator/(const std::string& name) const { return (path / name).string(); }
};
using tool_answer = examples_test::answer;
tool_answer shell(const std::string& command) {
  return examples_test::shell("(" + command + ") 2>&1");
}
const std::string program = HEDDLE_EXAMPLES_DIR "/tokens ";
std::string tool_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
// 300 texts of random words, 20 of them again, and 10 again with two words more.
std::vector<std::string> tool_texts() {
  std::mt19937 random(45);
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) {
    std::string text = "text";
    for (unsigned w = 0; w < 30 + random() % 60; ++w) text += " w" + std::to_string(random() % 3000);
    texts.push_back(text);
  }
  for (std::size_t i = 0; i < 300; i += 15) texts.push_back(texts[i]);
  for (std::size_t i = 1; i < 300; i += 30) texts.push_back(texts[i] + " a \xC3\xA9");
  return texts;
}
void write_lines(const fs::path& path, const std::vector<std::string>& texts) {
  std::ofstream out(path, std::ios::binary);
  for (std::size_t i = 0; i < texts.size(); ++i)
    out << nlohmann::json{{"id", i}, {"text", texts[i]}}.dump() << (i % 7 == 0 ? "\n\n" : "\n");
}

}  // namespace

TEST_CASE("texts become the same token files however they are stored and cut, without duplicates",
          "[examples][tokens]") {
  const tool_folder folder;
  const auto texts = tool_texts();
  write_lines(folder / "a.jsonl", texts);
  const auto make = [&](const std::string& from, const std::string& out, const std::string& more) {
    const tool_answer a = shell(program + "--text " + from + " --bytes --out " + (folder / out) + " " + more);
    INFO(a.text);
    REQUIRE(a.status == 0);
    REQUIRE_FALSE(fs::exists(folder / (out + ".parts")));
    return a.text;
  };
  make(folder / "a.jsonl", "all", "--cores 1");
  const heddle::io::megatron_corpus all(folder / "all");
  REQUIRE(all.documents() == 330);
  for (std::int64_t d = 0; d < 330; ++d) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(all.length(d)));
    all.copy(d, 0, std::span(ids));
    REQUIRE(std::string(ids.begin(), ids.end()) == texts[static_cast<std::size_t>(d)]);
  }
  make(folder / "a.jsonl", "again", "--cores 3 --part-bytes 23000");
  CHECK(tool_bytes(folder / "again.bin") == tool_bytes(folder / "all.bin"));
  CHECK(tool_bytes(folder / "again.idx") == tool_bytes(folder / "all.idx"));
  // Cuts at any place of a line, and exactly between two.
  std::ofstream(folder / "b.jsonl") << "{\"text\":\"a\"}\n{\"text\":\"b\"}\n\n{\"text\":\"cd\"}\n{\"text\":\"e\"}";
  for (const int n : {5, 13, 14, 26}) {
    make(folder / "b.jsonl", "again", "--cores 2 --part-bytes " + std::to_string(n));
    CHECK(heddle::io::megatron_corpus(folder / "again").documents() == 4);
    CHECK(tool_bytes(folder / "again.bin") == std::string("a\0b\0c\0d\0e\0", 10));
  }
  shell("cd " + folder.path.string() + "; mkdir gz; gzip -c a.jsonl > gz/a.jsonl.gz");
  make(folder / "gz", "again", "");
  CHECK(tool_bytes(folder / "again.bin") == tool_bytes(folder / "all.bin"));
#if defined(HEDDLE_HAS_ZSTD)
  if (shell("cd " + folder.path.string() + "; mkdir zst; zstd -q a.jsonl -o zst/a.jsonl.zst").status == 0) {
    make(folder / "zst", "again", "");
    CHECK(tool_bytes(folder / "again.bin") == tool_bytes(folder / "all.bin"));
  }
#endif
  CHECK_THAT(make(folder / "a.jsonl", "exact", "--dedup 1 --cores 2 --part-bytes 29000"),
             Contains("330 documents, 20 of them duplicates (6.1 %)"));
  CHECK_THAT(make(folder / "a.jsonl", "near", "--dedup 0.8 --cores 1"),
             Contains("330 documents, 30 of them duplicates (9.1 %)"));
  const heddle::io::megatron_corpus near(folder / "near");
  CHECK((near.documents() == 300 && near.length(299) == all.length(299)));  // the first of each stays
  make(folder / "a.jsonl", "again", "--dedup 0.8 --cores 4 --part-bytes 31000");
  CHECK(tool_bytes(folder / "again.bin") == tool_bytes(folder / "near.bin"));
  // Where a step's tokens come from.
  const tool_answer explained =
      shell(program + "--explain 3 --batch 2 --context 50 --samples 60 --data " + (folder / "near"));
  CHECK((explained.status == 0 && explained.text.find("sample 6: " + (folder / "near.bin") + " bytes ") == 0));
  CHECK_THAT(explained.text, Contains("step 3  digest "));
}

TEST_CASE("tokens that is killed goes on with what is left", "[examples][tokens]") {
  const tool_folder folder;
  std::vector<std::string> texts;
  for (int i = 0; i < 4; ++i)
    for (std::string text : tool_texts()) texts.push_back(std::to_string(i) + text);
  write_lines(folder / "a.jsonl", texts);
  const std::string options = "--bytes --dedup 0.8 --cores 2 --part-bytes 60000 --text " + (folder / "a.jsonl");
  REQUIRE(shell(program + options + " --out " + (folder / "whole")).status == 0);
  const std::string parts = folder / "cut.parts";
  shell(program + options + " --out " + (folder / "cut") + " & p=$!; until [ -e " + parts +
        "/000003.idx ] || ! kill -0 $p; do sleep 0.01; done; kill -9 $p");
  const bool killed = fs::exists(parts);
  if (killed) {
    CHECK_THAT(shell(program + "--bytes --text " + (folder / "a.jsonl") + " --out " + (folder / "cut")).text,
               Contains("cut.parts' has parts of other texts or options; remove it to begin anew"));
  }
  const tool_answer a = shell(program + options + " --out " + (folder / "cut"));
  INFO(a.text);
  REQUIRE(a.status == 0);
  if (killed) CHECK_THAT(a.text, Contains(" parts were there already"));
  CHECK(tool_bytes(folder / "cut.bin") == tool_bytes(folder / "whole.bin"));
  CHECK(tool_bytes(folder / "cut.idx") == tool_bytes(folder / "whole.idx"));
}

TEST_CASE("texts that cannot be read are named by tokens", "[examples][tokens]") {
  const tool_folder folder;
  const auto fault = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(folder / name, std::ios::binary) << bytes;
    const tool_answer a = shell(program + "--bytes --cores 1 --text " + (folder / name) + " --out " + (folder / "x"));
    CHECK(a.status == 1);
    fs::remove_all(folder / "x.parts");
    return a.text;
  };
  CHECK_THAT(fault("a.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n"),
             Contains("a.jsonl', byte 14: a line that is no JSON object with a text 'text'"));
  CHECK_THAT(fault("b.jsonl", "{\"text\": 5}\n"), Contains("b.jsonl', byte 0: "));
  CHECK_THAT(fault("c.jsonl", "no\n"), Contains("c.jsonl', byte 0: "));
  // The text is there, and the object around it is not whole.
  for (const char* line :
       {R"({"text":"a"}{"text":"b"})", R"({"text":"a","meta":{"x)", R"({"text":"a"] garbage)", R"({"text":"a"} garbage)",
        R"({"text":"a",})", R"({"text":"a")", R"({"text":"a","n":})", R"({"text":"a" "n":1})", R"({"text":"a)"}) {
    INFO(line);
    CHECK_THAT(fault("f.jsonl", R"({"n": [1, {}], "text": "a"} )" "\n" + std::string(line) + "\n"),
               Contains("f.jsonl', byte 29: a line that is no JSON object with a text 'text'"));
  }
  CHECK_THAT(fault("d.jsonl.gz", "no gzip"), Contains("d.jsonl.gz': gzip cannot decompress it"));
#if defined(HEDDLE_HAS_ZSTD)
  CHECK_THAT(fault("e.jsonl.zst", "no zstd"), Contains("heddle: zstd: "));
#endif
  CHECK(shell(program + "--bytes --out x").status == 2);
  CHECK(shell(program + "--explain 1").status == 2);
  CHECK_THAT(shell(program + "--bytes --text " + (folder / "none") + " --out x").text, Contains("none'"));
}

}  // namespace tokens_tool_test
#endif
