// tokenizer.json, and GPT-2's vocab.json and merges.txt: what is accepted encodes texts to ids that it has, which a stream and
// a call decode alike, and which are the text again where nothing in the file changes or adds text.
//
// An input is two lengths of two bytes, then a first text of so many bytes, a second, and the text to encode. If the second is
// empty, the first is a tokenizer.json, else it is a vocab.json and the second merges.txt. "@BYTES@" in the first stands for
// a token for each byte, which random changes would hardly keep.
#if __has_include(<pcre2.h>) && __has_include(<utf8proc.h>) && __has_include(<nlohmann/json.hpp>)
#include <heddle/io/tokenizer/load.hpp>

#include "fuzz.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace tokenizer_fuzz {

// "..": {..} of the bytes' tokens, for @BYTES@ in inputs.
inline const std::string& byte_tokens() {
  static const std::string all = [] {
    nlohmann::json vocab;
    for (unsigned b = 0; b < 256; ++b) {
      std::string spelled;
      heddle::io::detail::append_code_point(spelled, heddle::io::detail::byte_characters()[b]);
      vocab[spelled] = b;
    }
    const std::string text = vocab.dump();
    return text.substr(1, text.size() - 2);
  }();
  return all;
}
inline std::string with_bytes(std::string_view text) {
  std::string out(text);
  if (const std::size_t at = out.find("@BYTES@"); at != std::string::npos) out.replace(at, 7, byte_tokens());
  return out;
}

// Whether a tokenizer.json that was accepted says nothing that changes texts, or adds to them.
inline bool keeps_texts(const nlohmann::json& value) {
  if (value.is_object()) {
    const auto has = [&](const char* name, const nlohmann::json& expected) {
      const auto found = value.find(name);
      return found != value.end() && *found == expected;
    };
    for (const char* changes : {"Prepend", "Replace", "Strip", "Metaspace"})
      if (has("type", changes)) return false;
    if (value.contains("decoder") && value["decoder"].is_object() && value["decoder"].value("type", "") != "ByteLevel")
      return false;
    if (has("type", "NFC") || has("behavior", "Removed") || has("lstrip", true) || has("rstrip", true)) return false;
    if (has("type", "ByteLevel") && !has("add_prefix_space", false)) return false;
    if (has("type", "TemplateProcessing")) return false;
    // An added token that is spelled as bytes are stands for those bytes.
    if (const auto content = value.find("content"); content != value.end() && content->is_string())
      for (const char c : content->get_ref<const std::string&>())
        if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  if (value.is_object() || value.is_array())
    for (const nlohmann::json& member : value)
      if (!keeps_texts(member)) return false;
  return true;
}

inline void use(const heddle::io::tokenizer& t, std::string_view text, bool same) {
  namespace io = heddle::io;
  std::string repaired;
  if (io::detail::append_repaired(repaired, text) != text.size()) repaired += io::detail::replacement_character;
  for (const bool as_text : {false, true}) {
    std::vector<io::token_id> ids;
    if (!fuzz::accepted([&] {
          ids = t.encode(text, {.add_special_tokens = !as_text,
                                .special_tokens_as_text = as_text,
                                .invalid = io::invalid_utf8::replace});
        }))
      continue;  // a pattern may take too long
    for (const io::token_id id : ids) fuzz::require(t.has(id), "ids are of the vocabulary");
    const std::string whole = t.decode(ids);
    fuzz::require(!same || whole == repaired, "decoded ids are the text");
    fuzz::require(io::detail::valid_prefix(whole) == whole.size(), "what is decoded is UTF-8");
    io::stream_decoder stream(t);
    std::string joined;
    for (const io::token_id id : ids) {
      joined += stream.push(id);
      fuzz::require(io::detail::valid_prefix(joined) == joined.size(), "a stream ends with a whole character");
    }
    fuzz::require(joined + stream.finish() == whole, "a stream decodes as one call does");
  }
}

}  // namespace tokenizer_fuzz

HEDDLE_FUZZ_TARGET(tokenizer) {
  namespace io = heddle::io;
  fuzz::bytes in(data, size);
  const std::size_t first = in.byte() * 256 + in.byte(), second = in.byte() * 256 + in.byte();
  const std::string_view all = in.rest();
  const std::string_view file = all.substr(0, first), merges = all.substr(file.size(), second),
                         text = all.substr(file.size() + merges.size());
  fuzz::accepted([&] {
    const std::string made = tokenizer_fuzz::with_bytes(file);
    const io::tokenizer t = merges.empty() ? io::parse_tokenizer(made) : io::parse_gpt2_tokenizer(made, merges);
    tokenizer_fuzz::use(t, text, !merges.empty() || tokenizer_fuzz::keeps_texts(nlohmann::json::parse(made)));
  });
}
#endif
