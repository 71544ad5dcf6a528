// tests/io/tokenizer_folder_test.cpp: a folder's tokenizer is read from GPT-2's two files as from tokenizer.json, and never guessed from other files.
#include <heddle/core/config.hpp>

#if __has_include(<pcre2.h>) && __has_include(<utf8proc.h>) && __has_include(<nlohmann/json.hpp>)
#include <heddle/io/tokenizer/folder.hpp>

#include "catch.hpp"
#include "scratch.hpp"
#include "tokenizer_strings.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace hd = heddle;
namespace io = heddle::io;
namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {
const std::string golden_files = HEDDLE_SOURCE_DIR "/tests/golden/tokenizer/";
const std::string spoken = "A heddle lifts\tthe warp; it's 1000 times <|endoftext|> Stra\u00dfe  \n\n done";

struct gpt2_files : scratch_folder {
  gpt2_files() : scratch_folder("tokenizer-folder") {
    fs::copy_file(golden_files + "gpt2_vocab.json", path / "vocab.json");
    fs::copy_file(golden_files + "gpt2_merges.txt", path / "merges.txt");
  }
  void config(const json& value) const { put(path / "tokenizer_config.json", value.dump()); }
  std::string refused() const {
    return message_of<hd::io_error>([&] { io::load_model_tokenizer(path); });
  }
};
}  // namespace

TEST_CASE("vocab.json and merges.txt of a folder are read as GPT2Tokenizer reads them", "[tokenizer]") {
  const gpt2_files folder;
  const io::tokenizer whole = io::load_tokenizer(golden_files + "gpt2.json");
  const auto same = [&] {
    const io::tokenizer t = io::load_model_tokenizer(folder.path);
    CHECK(t.encode(spoken) == whole.encode(spoken));
    CHECK(t.special("<|endoftext|>") == whole.special("<|endoftext|>"));
    return t;
  };
  CHECK_THAT(folder.refused(),
             Contains("of no class, not of GPT2Tokenizer or Qwen2Tokenizer") && Contains("save_pretrained"));
  put(folder / "config.json", R"({"model_type": "gpt2"})");
  same();
  folder.config({{"tokenizer_class", "GPT2TokenizerFast"}, {"unk_token", {{"content", "<|endoftext|>"}}}});
  same();
  CHECK(io::tokenizer_files(folder.path) == std::vector<std::string>{"merges.txt", "vocab.json"});
  const json end = {{"content", "<|endoftext|>"}, {"special", true}, {"normalized", true}};
  folder.config({{"tokenizer_class", "GPT2Tokenizer"},
                 {"pad_token", "<pad>"},
                 {"added_tokens_decoder", {{"900", end}, {"901", {{"content", "<pad>"}, {"special", true}}}}}});
  const io::tokenizer padded = same();
  CHECK(padded.special("<pad>") == 901);
  CHECK(padded.encode("a<pad>b").size() == 3);
  folder.config({{"tokenizer_class", "GPT2Tokenizer"}, {"add_prefix_space", true}});
  CHECK(io::load_model_tokenizer(folder.path).encode("heddle") == whole.encode(" heddle"));

  const auto refused = [&](json more) {
    more["tokenizer_class"] = "GPT2Tokenizer";
    folder.config(more);
    return folder.refused();
  };
  folder.config({{"tokenizer_class", "RobertaTokenizer"}});
  CHECK_THAT(folder.refused(), Contains("of RobertaTokenizer, not of GPT2Tokenizer"));
  CHECK_THAT(refused({{"add_bos_token", true}}), Contains("added to each text"));
  CHECK_THAT(refused({{"mask_token", {{"content", "<mask>"}, {"lstrip", true}}}}), Contains("has 'lstrip'"));
  CHECK_THAT(refused({{"added_tokens_decoder", {{"900", {{"content", "x"}}}}}}), Contains("'900' that is not special"));
  CHECK_THAT(refused({{"added_tokens_decoder", {{"905", end}}}}), Contains("where the added tokens have 905"));
  put(folder / "added_tokens.json", R"({"<extra>": 901})");
  CHECK_THAT(refused(json::object()), Contains("'<extra>', which no other file says is special"));
  folder.config({{"tokenizer_class", "GPT2Tokenizer"}, {"additional_special_tokens", {"<first>", "<extra>"}}});
  put(folder / "added_tokens.json", R"({"<extra>": 901, "<first>": 900, "<|endoftext|>": 902})");
  const io::tokenizer more = io::load_model_tokenizer(folder.path);
  CHECK(more.special("<first>") == 900);
  CHECK(more.special("<extra>") == 901);
  CHECK(more.special("<|endoftext|>") == 902);
}

TEST_CASE("vocab.json and merges.txt of Qwen2Tokenizer have its pattern, its normal form and its tokens",
          "[tokenizer]") {
  const scratch_folder folder("qwen-tokenizer");
  const json whole = json::parse(get(golden_files + "qwen2.json"));
  put(folder / "vocab.json", whole["model"]["vocab"].dump());
  std::string merges = "#version: 0.2\n";
  for (const json& m : whole["model"]["merges"])
    merges += m[0].get<std::string>() + " " + m[1].get<std::string>() + "\n";
  put(folder / "merges.txt", merges);
  json added;
  for (const json& t : whole["added_tokens"]) added[std::to_string(t["id"].get<int>())] = t;
  put(folder / "tokenizer_config.json",
      json{{"tokenizer_class", "Qwen2Tokenizer"}, {"added_tokens_decoder", added}}.dump());
  const io::tokenizer t = io::load_model_tokenizer(folder.path),
                      expected = io::load_tokenizer(golden_files + "qwen2.json");
  CHECK(t.vocabulary() == expected.vocabulary());
  for (const io::added_token& token : expected.added_tokens()) {
    CHECK(t.find(token.content) == token.id);
    CHECK(t.is_special(token.id) == token.special);
  }
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const std::string text = tokenizer_strings::string(seed, {"<|im_end|>", "<tool_call>"});
    CAPTURE(seed);
    CHECK(t.encode(text) == expected.encode(text));
  }
}

TEST_CASE("tokenizer.model of a folder is read with what its other files say", "[tokenizer]") {
  const scratch_folder folder("piece-tokenizer");
  fs::copy_file(golden_files + "sp_bpe.model", folder / "tokenizer.model");
  const io::tokenizer alone = io::load_model_tokenizer(folder / "tokenizer.model");
  const auto config = [&](const json& value) { put(folder / "tokenizer_config.json", value.dump()); };
  const auto refused = [&] { return message_of<hd::io_error>([&] { io::load_model_tokenizer(folder.path); }); };
  const auto encoded = [&](const std::string& text) { return io::load_model_tokenizer(folder.path).encode(text); };
  std::vector<io::token_id> ids = alone.encode(spoken);
  CHECK_THAT(refused(), Contains("has tokenizer.model of no class, not of LlamaTokenizer or GemmaTokenizer"));
  config({{"tokenizer_class", "T5Tokenizer"}});
  CHECK_THAT(refused(), Contains("of T5Tokenizer"));
  config({{"tokenizer_class", "LlamaTokenizer"}, {"add_bos_token", false}});
  CHECK(encoded(spoken) == ids);
  config({{"tokenizer_class", "LlamaTokenizer"}, {"add_eos_token", true}});
  ids.insert(ids.begin(), alone.special("<s>"));
  ids.push_back(alone.special("</s>"));
  CHECK(encoded(spoken) == ids);
  const int next = alone.vocabulary();
  json extra = {{"content", "<extra>"}, {"special", false}, {"rstrip", true}};
  config({{"tokenizer_class", "LlamaTokenizer"}, {"added_tokens_decoder", {{std::to_string(next), extra}}}});
  const io::tokenizer more = io::load_model_tokenizer(folder.path);
  CHECK(more.find("<extra>") == next);
  CHECK(more.encode("<extra> loom", {.add_special_tokens = false}).front() == next);
  CHECK(more.decode(std::vector<io::token_id>{next}) == "<extra>");
  config({{"tokenizer_class", "LlamaTokenizer"}, {"added_tokens_decoder", {{"x", extra}}}});
  CHECK_THAT(refused(), Contains("with an added token 'x' that is no id with a content"));
  config({{"tokenizer_class", "LlamaTokenizer"}, {"added_tokens_decoder", {{"7", extra}}}});
  CHECK_THAT(refused(), Contains("for the id 7, got the added token '<extra>'"));
}

TEST_CASE("a folder without a tokenizer that can be read is an error that names what it has", "[tokenizer]") {
  const scratch_folder folder("no-tokenizer");
  const auto refused = [&] { return message_of<hd::io_error>([&] { io::load_model_tokenizer(folder.path); }); };
  put(folder / "config.json", "{}");
  put(folder / "tokenizer_config.json", "{}");
  CHECK_THAT(
      refused(),
      Contains("has no tokenizer: heddle reads tokenizer.json, SentencePiece's tokenizer.model, and vocab.json") &&
          Contains("--bytes says so"));
  for (const char* name :
       {"spiece.model", "sentencepiece.bpe.model", "vocab.txt", "tekken.json", "qwen.tiktoken", "merges.txt"}) {
    put(folder / name, "{}");
    CHECK_THAT(refused(), Contains("has " + std::string(name) + ", which cannot be read"));
    CHECK(io::tokenizer_files(folder.path) == std::vector<std::string>{name});
    fs::remove(folder / name);
  }
  put(folder / "tokenizer.json", "{}");
  CHECK_THAT(refused(), Contains("tokenizer.json: expected a member 'decoder'"));
}

TEST_CASE("tokens of bytes are the bytes", "[tokenizer]") {
  const io::tokenizer t = io::byte_tokenizer();
  CHECK(t.vocabulary() == 256);
  const std::string text = spoken + std::string("\0\x7f", 2);
  const auto ids = t.encode(text);
  REQUIRE(ids.size() == text.size());
  for (std::size_t i = 0; i < ids.size(); ++i) CHECK(ids[i] == static_cast<unsigned char>(text[i]));
  CHECK(t.decode(ids) == text);
}
#endif
