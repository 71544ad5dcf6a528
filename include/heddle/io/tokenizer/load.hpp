// heddle/io/tokenizer/load.hpp: reads tokenizer.json, or GPT-2's vocab.json and merges.txt.
#pragma once

#if !__has_include(<nlohmann/json.hpp>)
#error \
    "heddle/io/tokenizer/load.hpp needs nlohmann/json.hpp: link heddle::tokenizer (Debian: apt install nlohmann-json3-dev)"
#endif

#include <heddle/core/error.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/io/tokenizer/json_place.hpp>
#include <heddle/io/tokenizer/tokenizer.hpp>
#include <heddle/io/tokenizer/whole_file.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

namespace heddle::inline v0::io {

/// What GPT-2's two files do not say.
struct gpt2_tokenizer_options {
  bool add_prefix_space = false;
  /// UTF-8. Those that the vocabulary lacks get the next ids: its number of tokens and on, as in the package.
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  std::vector<std::string>
      not_special{};      ///< those of them that decoding does not leave out, such as Qwen's <tool_call>
  bool nfc = false;       ///< texts are brought to normal form C first
  std::string pattern{};  ///< words in Oniguruma's syntax; empty: GPT-2's
};

namespace detail {

// Bytes as the printable characters that files spell them with: themselves where they are printable Latin-1, U+0100 and
// up for the others, in order.
// Source: Radford et al. 2019, bytes_to_unicode of the published code.
inline const std::array<std::uint16_t, 256>& byte_characters() {
  static const std::array<std::uint16_t, 256> all = [] {
    std::array<std::uint16_t, 256> to{};
    std::uint16_t next = 256;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      to[b] = printable ? static_cast<std::uint16_t>(b) : next++;
    }
    return to;
  }();
  return all;
}
// The bytes that a string of such characters spells; none if it has others.
inline std::optional<std::string> spelled_bytes(std::string_view text) {
  static const std::array<std::int16_t, 512> byte_of = [] {
    std::array<std::int16_t, 512> to{};
    to.fill(-1);
    for (std::size_t b = 0; b < 256; ++b) to[byte_characters()[b]] = static_cast<std::int16_t>(b);
    return to;
  }();
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size(); at += sequence_length(text[at])) {
    const std::uint32_t c = code_point_at(text, at);
    if (c >= byte_of.size() || byte_of[c] < 0) return std::nullopt;
    out += static_cast<char>(static_cast<unsigned char>(byte_of[c]));
  }
  return out;
}

// Collects what a tokenizer is made of.
class tokenizer_builder {
 public:
  explicit tokenizer_builder(std::string file) : file_(std::move(file)) {}

  tokenizer_parts& parts() noexcept { return *parts_; }
  // Tokens are spelled as they are: no characters stand for bytes.
  void spelled_as_they_are() { bytes_ = false; }

  // Strings of the model, of the added tokens behind them. Ids may have few gaps only: the table is as long as they are high.
  void vocabulary(const json_place& vocab) {
    for (const auto& [spelled, id] : vocab.members()) words_.push_back({vocab.member(spelled, id).id(), &spelled});
    if (words_.empty()) vocab.fail("expected tokens, got none");
  }
  void one_word(token_id id, const std::string& spelled) { words_.push_back({id, &spelled}); }
  void added(added_token t, const json_place* where) {
    if (t.content.empty()) return;
    if (where) where_.push_back(*where);
    added_ids_.insert(t.id);
    added_.push_back(std::move(t));
  }

  void finish_vocabulary() {
    std::sort(words_.begin(), words_.end(), [](const word& a, const word& b) { return a.id < b.id; });
    token_id highest = words_.back().id;
    for (const added_token& t : added_) highest = (std::max)(highest, t.id);
    const std::size_t all = words_.size() + added_.size();
    if (static_cast<std::size_t>(highest) > 4 * all + 1024)
      fail("expected ids of " + std::to_string(all) + " tokens, got one as high as " + std::to_string(highest));
    byte_strings& tokens = parts_->model.tokens;
    tokens.resize(static_cast<std::size_t>(highest) + 1);
    for (const word& w : words_) {
      if (tokens.has(w.id))
        fail("expected one token with the id " + std::to_string(w.id) + ", got two, one of them '" +
             w.spelled->substr(0, 60) + "'");
      const auto bytes = bytes_of(*w.spelled);
      if (!tokens.insert(w.id, bytes ? *bytes : *w.spelled, bytes.has_value()))
        fail("expected different tokens, got '" + w.spelled->substr(0, 60) + "' twice");
      if (!bytes) other_words_.emplace(*w.spelled, w.id);
    }
    for (unsigned b = 0; b < 256 && bytes_; ++b) {
      const char c = static_cast<char>(static_cast<unsigned char>(b));
      parts_->model.of_byte[b] = tokens.find(std::string_view(&c, 1));
      if (parts_->model.of_byte[b] == byte_strings::none) {
        std::string spelled;
        append_code_point(spelled, byte_characters()[b]);
        fail("expected a token for each of 256 bytes, got none for byte " + std::to_string(b) + " ('" + spelled + "')");
      }
    }
  }

  // Pairs as files spell them. `where` names the merge in messages.
  template <class Where>
  void merge(std::string_view left, std::string_view right, std::uint32_t rank, const Where& where) {
    const byte_strings& tokens = parts_->model.tokens;
    const auto find = [&](std::string_view spelled) {
      const auto bytes = bytes_of(spelled);
      const token_id id = bytes ? tokens.find(*bytes) : byte_strings::none;
      if (id == byte_strings::none)
        fail(where() + ": expected tokens of the vocabulary, got '" + std::string(spelled.substr(0, 60)) + "'");
      return id;
    };
    const token_id l = find(left), r = find(right);
    parts_->model.merges.insert(l, r, rank, find(std::string(left) + std::string(right)));
  }

  tokenizer finish() {
    parts_->model.finish();  // before tokens are added: they are no words
    byte_strings& tokens = parts_->model.tokens;
    parts_->special.assign(tokens.ids(), false);
    std::vector<bool> taken(tokens.ids(), false);
    // The package numbers added tokens itself, whatever ids the file gives them.
    auto following = static_cast<token_id>(words_.size());
    std::unordered_map<std::string_view, token_id> contents;
    for (std::size_t i = 0; i < added_.size(); ++i) {
      const added_token& t = added_[i];
      const auto refuse = [&](const std::string& why) {
        if (i < where_.size()) where_[i].fail(why);
        fail(why);
      };
      const auto bytes = bytes_of(t.content);
      const std::string shown = "'" + t.content.substr(0, 60) + "'";
      const token_id same = of_model(t.content);
      if (same != byte_strings::none && same != t.id)
        refuse("expected the id " + std::to_string(same) + " that the model has for " + shown + ", got " +
               std::to_string(t.id));
      if (taken[static_cast<std::size_t>(t.id)] || (same == byte_strings::none && tokens.has(t.id)))
        refuse("expected an id of its own for " + shown + ", got " + std::to_string(t.id) +
               ", which another token has");
      if (const auto [twice, once] = contents.emplace(t.content, t.id); !once)
        refuse("expected " + shown + " once, got it with the ids " + std::to_string(twice->second) + " and " +
               std::to_string(t.id));
      if (same == byte_strings::none && t.id != following)
        refuse("expected the id " + std::to_string(following) + " for " + shown +
               ", the next one behind the model's tokens and the added ones before it, got " + std::to_string(t.id));
      following = (std::max)(following, t.id + 1);
      taken[static_cast<std::size_t>(t.id)] = true;
      if (same == byte_strings::none) tokens.insert(t.id, bytes ? *bytes : t.content, false);
      parts_->special[static_cast<std::size_t>(t.id)] = t.special;
      std::string room;
      if (t.normalized)
        parts_->of_normalized.add(t, normalized(parts_->normalizers, t.content, true, room));
      else
        parts_->of_raw.add(t, t.content);
    }
    std::sort(added_.begin(), added_.end(), [](const added_token& a, const added_token& b) { return a.id < b.id; });
    parts_->added = std::move(added_);
    show_tokens(*parts_);
    return tokenizer(std::move(parts_));
  }

  // The id of a string of the model's vocabulary, as the file spells it.
  token_id of_model(std::string_view spelled) const {
    if (const auto bytes = bytes_of(spelled)) return parts_->model.tokens.find(*bytes);
    const auto found = other_words_.find(spelled);
    return found == other_words_.end() ? byte_strings::none : found->second;
  }
  bool known(token_id id) const { return parts_->model.tokens.has(id) || added_ids_.count(id) != 0; }

  [[noreturn]] void fail(const std::string& why) const { throw io_error("heddle: " + file_ + ": " + why); }

 private:
  struct word {
    token_id id;
    const std::string* spelled;
  };
  std::optional<std::string> bytes_of(std::string_view spelled) const {
    return bytes_ ? spelled_bytes(spelled) : std::optional<std::string>(spelled);
  }
  std::string file_;
  bool bytes_ = true;
  std::shared_ptr<tokenizer_parts> parts_ = std::make_shared<tokenizer_parts>();
  std::vector<word> words_;
  std::unordered_map<std::string_view, token_id> other_words_;  // that spell no bytes
  std::unordered_set<token_id> added_ids_;
  std::vector<added_token> added_;
  std::vector<json_place> where_;
};

// Reads tokenizer.json.
class tokenizer_json_reader {
 public:
  tokenizer_json_reader(const json& file, const std::string& name) : root_(file, name), builder_(name) {}

  tokenizer read() {
    if (const auto version = root_.find("version"); version && version->text() != "1.0")
      version->expected("version '1.0'");
    for (const char* unwanted : {"truncation", "padding"})
      if (const auto found = root_.find(unwanted))
        found->fail("expected null: " + std::string(unwanted) + " is not supported, got an object");
    if (const auto n = root_.find("normalizer")) normalizer(*n);
    if (const auto p = root_.find("pre_tokenizer")) pre_tokenizer(*p);
    if (!byte_level_) {
      builder_.spelled_as_they_are();
      builder_.parts().decode = std::vector<decode_step>();
    }
    decoder(root_.at("decoder"));
    model(root_.at("model"));
    if (const auto p = root_.find("post_processor")) post_processor(*p);
    return builder_.finish();
  }

 private:
  // Recursion is bounded: the file has at most 32 levels.
  void sequence_of(const json_place& at, const char* members, void (tokenizer_json_reader::*each)(const json_place&)) {
    const json_place all = at.at(members);
    for (std::size_t i = 0, n = all.elements(); i < n; ++i) (this->*each)(all.at(i));
  }

  void normalizer(const json_place& at) {
    const std::string& type = at.type();
    auto& all = builder_.parts().normalizers;
    if (all.size() >= 64) at.fail("expected at most 64 normalizers, got more");
    if (type == "NFC")
      all.emplace_back(composed_text{});
    else if (type == "Prepend")
      all.emplace_back(prefixed_text{at.at("prepend").text()});
    else if (type == "Replace")
      all.emplace_back(replaced(at));
    else if (type == "Strip")
      all.emplace_back(stripped_space{at.flag("strip_left", false), at.flag("strip_right", false)});
    else if (type == "Sequence")
      sequence_of(at, "normalizers", &tokenizer_json_reader::normalizer);
    else
      at.at("type").expected("the normalizer NFC, Prepend, Replace, Strip, Sequence, or null");
  }

  // A pattern of a component: an expression, else a text.
  static std::optional<split_pattern> expression(const json_place& pattern) {
    const auto regex = pattern.find("Regex");
    if (!regex) {
      const json_place literal = pattern.at("String");
      if (literal.text().empty()) literal.fail("expected a text to look for, got an empty one");
      return std::nullopt;
    }
    try {
      return split_pattern::from_oniguruma(regex->text());
    } catch (const io_error& e) {
      regex->fail(e.what());
    }
  }
  static replaced_text replaced(const json_place& at) {
    const json_place pattern = at.at("pattern");
    replaced_text out{expression(pattern), {}, at.at("content").text()};
    if (!out.pattern) out.literal = pattern.at("String").text();
    return out;
  }
  static std::string character(const json_place& at) {
    const std::string& text = at.text();
    if (text.empty() || text.size() != sequence_length(text[0])) at.expected("one character");
    return text;
  }
  static pre_token_step::prefixed prefix_of(const json_place& at) {
    using prefixed = pre_token_step::prefixed;
    const auto scheme = at.find("prepend_scheme");
    const std::string name = scheme ? scheme->text() : "always";
    if (name != "always" && name != "first" && name != "never") scheme->expected("always, first or never");
    if (!at.flag("add_prefix_space", true) && name != "never")
      at.fail("expected the prepend_scheme never where add_prefix_space is false, got '" + name + "'");
    return name == "always" ? prefixed::each : name == "first" ? prefixed::first : prefixed::none;
  }

  void pre_tokenizer(const json_place& at) {
    const std::string& type = at.type();
    auto& steps = builder_.parts().steps;
    if (type == "Sequence") return sequence_of(at, "pretokenizers", &tokenizer_json_reader::pre_tokenizer);
    if (byte_level_)
      at.fail("expected ByteLevel to be the last pre-tokenizer, got '" + type.substr(0, 60) + "' behind it");
    if (steps.size() >= 64) at.fail("expected at most 64 pre-tokenizers, got more");
    using behavior = pre_token_step::behavior;
    if (type == "ByteLevel") {
      byte_level_ = true;
      if (at.flag("add_prefix_space", true)) steps.push_back({});
      if (at.flag("use_regex", true)) steps.push_back({split_pattern::from_oniguruma(gpt2_pattern)});
    } else if (type == "Split") {
      split(at);
    } else if (type == "Digits") {
      steps.push_back({split_pattern::from_oniguruma("\\p{N}"),
                       at.flag("individual_digits", false) ? behavior::isolated : behavior::contiguous});
    } else if (type == "Metaspace") {
      pre_token_step step;
      step.mark = character(at.at("replacement"));
      step.prefix = prefix_of(at);
      if (step.mark == " ") at.at("replacement").expected("a character other than a space");
      const std::string mark = step.mark;
      steps.push_back(std::move(step));
      if (at.flag("split", true)) steps.push_back({split_pattern::literal(mark), behavior::merged_with_next});
    } else {
      at.at("type").expected("the pre-tokenizer ByteLevel, Split, Digits, Metaspace or Sequence");
    }
  }

  void split(const json_place& at) {
    pre_token_step step;
    const json_place pattern = at.at("pattern");
    step.pattern = expression(pattern);
    if (!step.pattern) step.pattern = split_pattern::literal(pattern.at("String").text());
    const json_place behavior = at.at("behavior");
    const std::string& what = behavior.text();
    using b = pre_token_step::behavior;
    if (what == "Isolated")
      step.what = b::isolated;
    else if (what == "Removed")
      step.what = b::removed;
    else if (what == "MergedWithPrevious")
      step.what = b::merged_with_previous;
    else if (what == "MergedWithNext")
      step.what = b::merged_with_next;
    else if (what == "Contiguous")
      step.what = b::contiguous;
    else
      behavior.expected("Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
    step.invert = at.flag("invert", false);
    builder_.parts().steps.push_back(std::move(step));
  }

  void decoder(const json_place& at) {
    const std::string& type = at.type();
    if (byte_level_) {
      if (type != "ByteLevel") at.at("type").expected("the decoder ByteLevel, as the pre-tokenizer is");
      return;
    }
    auto& steps = std::get<std::vector<decode_step>>(builder_.parts().decode);
    const auto has = [&]<class Step>(const Step&) {
      return std::any_of(steps.begin(), steps.end(),
                         [](const decode_step& s) { return std::holds_alternative<Step>(s); });
    };
    if (steps.size() >= 64) at.fail("expected at most 64 decoders, got more");
    if (type == "Replace") {
      replaced_text step = replaced(at);
      if (has(joined_tokens{}) && (step.pattern || step.literal.size() != sequence_length(step.literal[0])))
        at.at("pattern").fail("expected one character behind Fuse, got more");
      steps.emplace_back(std::move(step));
    } else if (type == "ByteFallback") {
      if (has(joined_tokens{}) || has(byte_runs{})) at.fail("expected one ByteFallback, before Fuse");
      steps.emplace_back(byte_runs{});
    } else if (type == "Fuse") {
      steps.emplace_back(joined_tokens{});
    } else if (type == "Strip") {
      stripped_marks step{character(at.at("content")), static_cast<std::size_t>(at.at("start").id()),
                          static_cast<std::size_t>(at.at("stop").id())};
      if (step.stop > 0 && has(joined_tokens{})) at.at("stop").expected("0 behind Fuse");
      steps.emplace_back(std::move(step));
    } else if (type == "Metaspace") {
      steps.emplace_back(
          marked_spaces{character(at.at("replacement")), prefix_of(at) != pre_token_step::prefixed::none});
    } else if (type == "Sequence") {
      sequence_of(at, "decoders", &tokenizer_json_reader::decoder);
    } else if (type == "ByteLevel") {
      at.fail("expected the decoder ByteLevel only with the pre-tokenizer ByteLevel");
    } else {
      at.at("type").expected("the decoder ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace or Sequence");
    }
  }

  void added_tokens() {
    const auto all = root_.find("added_tokens");
    if (!all) return;
    for (std::size_t i = 0, n = all->elements(); i < n; ++i) {
      const json_place t = all->at(i);
      added_token token;
      token.id = t.at("id").id();
      token.content = t.at("content").text();
      token.special = t.flag("special", false);
      token.normalized = t.flag("normalized", !token.special);
      token.single_word = t.flag("single_word", false);
      token.lstrip = t.flag("lstrip", false);
      token.rstrip = t.flag("rstrip", false);
      builder_.added(std::move(token), &t);
    }
  }
  // The tokens of bytes, where the file says that they stand for what is no token.
  void byte_fallback(const json_place& at, unknown_characters& to) const {
    if (!at.flag("byte_fallback", false)) return;
    for (unsigned b = 0; b < 256; ++b) {
      char spelled[8];
      std::snprintf(spelled, sizeof spelled, "<0x%02X>", b);
      to.of_byte[b] = builder_.of_model(spelled);
    }
  }

  void model(const json_place& at) {
    const auto type = at.find("type");
    if (type && type->text() == "Unigram") return unigram_model(at);
    if (type && type->text() != "BPE") type->expected("the model BPE or Unigram");
    if (const auto dropout = at.find("dropout"); dropout && dropout->raw() != 0.0)
      dropout->expected("null: dropout is not supported");
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const auto found = at.find(affix); found && !found->text().empty()) found->expected("null or an empty text");
    const json_place vocab = at.at("vocab");
    builder_.vocabulary(vocab);
    added_tokens();
    builder_.finish_vocabulary();
    auto& bpe = builder_.parts().model;
    bpe.ignore_merges = at.flag("ignore_merges", false);
    if (!byte_level_) {
      unknown_characters unknown;
      unknown.fuse = at.flag("fuse_unk", false);
      if (const auto token = at.find("unk_token")) {
        unknown.unknown = builder_.of_model(token->text());
        if (unknown.unknown == byte_strings::none) token->expected("a token of the vocabulary");
      }
      byte_fallback(at, unknown);
      bpe.characters = unknown;
    }
    const json_place merges = at.at("merges");
    const std::size_t n = merges.elements();
    bpe.merges.reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
      const json& m = merges.raw()[i];
      const auto where = [&] { return "at /model/merges/" + std::to_string(i); };
      if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
        builder_.merge(m[0].get_ref<const std::string&>(), m[1].get_ref<const std::string&>(),
                       static_cast<std::uint32_t>(i), where);
        continue;
      }
      const std::string_view text =
          m.is_string() ? std::string_view(m.get_ref<const std::string&>()) : std::string_view();
      const std::size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
        merges.at(i).expected("two tokens");
      builder_.merge(text.substr(0, space), text.substr(space + 1), static_cast<std::uint32_t>(i), where);
    }
  }

  void unigram_model(const json_place& at) {
    if (byte_level_) at.fail("expected the model BPE with the pre-tokenizer ByteLevel, got Unigram");
    const json_place vocab = at.at("vocab");
    unigram<double> out;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0, n = vocab.elements(); i < n; ++i) {
      const json& entry = vocab.raw()[i];
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() ||
          entry[0].get_ref<const std::string&>().empty() || !entry[1].is_number())
        vocab.at(i).expected("a text and its score");
      const auto& spelled = entry[0].get_ref<const std::string&>();
      builder_.one_word(static_cast<token_id>(i), spelled);
      out.texts.insert(spelled, static_cast<token_id>(i));
      out.scores.push_back(entry[1].get<double>());
      least = (std::min)(least, out.scores.back());
    }
    const json_place unknown = at.at("unk_id");
    out.unknown.unknown = unknown.id();
    if (static_cast<std::size_t>(out.unknown.unknown) >= out.scores.size()) unknown.expected("the id of a token");
    out.unknown_text = vocab.raw()[static_cast<std::size_t>(out.unknown.unknown)][0].get<std::string>();
    out.unknown_score = least - 10.0;
    out.texts.finish();
    added_tokens();
    builder_.finish_vocabulary();
    byte_fallback(at, out.unknown);
    builder_.parts().unigrams = std::move(out);
  }

  void post_processor(const json_place& at) {
    const std::string& type = at.type();
    if (type == "ByteLevel") return;  // changes offsets alone
    if (type == "Sequence") return sequence_of(at, "processors", &tokenizer_json_reader::post_processor);
    if (type != "TemplateProcessing")
      at.at("type").expected("the post-processor TemplateProcessing, ByteLevel or Sequence");
    if (templated_) at.fail("expected one TemplateProcessing, got two");
    templated_ = true;
    const json_place single = at.at("single"), specials = at.at("special_tokens");
    auto& around = builder_.parts().around;
    around.clear();
    for (std::size_t i = 0, n = single.elements(); i < n; ++i) {
      const json_place piece = single.at(i);
      if (const auto sequence = piece.find("Sequence")) {
        if (sequence->at("id").text() != "A") sequence->at("id").expected("'A', the only text");
        for (const template_step& s : around)
          if (s.text) sequence->fail("expected the text once, got it twice");
        around.push_back({true, {}});
        continue;
      }
      const json_place name = piece.at("SpecialToken").at("id");
      const json_place ids = specials.at(name.text()).at("ids");
      template_step step;
      for (std::size_t k = 0, m = ids.elements(); k < m; ++k) step.ids.push_back(known_id(ids.at(k)));
      around.push_back(std::move(step));
    }
    if (std::none_of(around.begin(), around.end(), [](const template_step& s) { return s.text; }))
      single.fail("expected the text among the pieces, got none");
  }

  token_id known_id(const json_place& at) const {
    const token_id id = at.id();
    if (!builder_.known(id)) at.expected("the id of a token");
    return id;
  }

  json_place root_;
  tokenizer_builder builder_;
  bool byte_level_ = false, templated_ = false;
};

}  // namespace detail

/// A tokenizer from the text of tokenizer.json; `name` appears in messages. Errors: as of `load_tokenizer`.
inline tokenizer parse_tokenizer(std::string_view text, const std::string& name = "tokenizer.json") {
  const detail::json file = parse_json(text, name);
  return detail::tokenizer_json_reader(file, name).read();
}

/// A tokenizer from Hugging Face's tokenizer.json, or from the folder that it lies in. Read are byte-level BPE models as
/// of GPT-2, Llama-3 and Qwen, BPE models of characters with byte fallback as of Llama-2, Mixtral and Gemma, and unigram
/// models: the normalizers `NFC`, `Prepend`, `Replace` and `Strip`; the pre-tokenizers `ByteLevel`, `Split`, `Digits` and
/// `Metaspace`; added tokens; the post-processors `TemplateProcessing` (of single texts) and `ByteLevel`; the decoders
/// `ByteLevel`, `Replace`, `ByteFallback`, `Fuse`, `Strip` and `Metaspace`; `Sequence` of each.
/// Errors: `io_error` that names the file, the place in it as a JSON pointer (or the offset where it is no JSON),
/// what was expected and what came, also for every other component.
inline tokenizer load_tokenizer(const std::filesystem::path& path) {
  std::error_code none;
  const std::filesystem::path file = std::filesystem::is_directory(path, none) ? path / "tokenizer.json" : path;
  return parse_tokenizer(detail::whole_file(file), file.string());
}

/// A tokenizer from the texts of GPT-2's vocab.json and merges.txt; the names appear in messages. Errors: as of
/// `load_gpt2_tokenizer`.
inline tokenizer parse_gpt2_tokenizer(std::string_view vocab, std::string_view merges,
                                      const gpt2_tokenizer_options& options = {},
                                      const std::string& vocab_name = "vocab.json",
                                      const std::string& merges_name = "merges.txt") {
  const detail::json file = parse_json(vocab, vocab_name);
  detail::tokenizer_builder builder(vocab_name);
  const detail::json_place root(file, vocab_name);
  builder.vocabulary(root);
  auto next = static_cast<std::int64_t>(root.members().size());
  for (std::size_t i = 0; i < options.special_tokens.size(); ++i) {
    const std::string& content = options.special_tokens[i];
    if (const std::size_t valid = detail::valid_prefix(content); valid != content.size())
      throw config_error("heddle: gpt2_tokenizer_options::special_tokens[" + std::to_string(i) +
                         "]: expected UTF-8, got byte " + std::to_string(valid) + " (" +
                         std::to_string(static_cast<unsigned char>(content[valid])) +
                         "), which begins no whole character");
    if (content.empty()) continue;
    const auto found = file.find(content);
    added_token t;
    if (found == file.end() && next > 0x7ffffffe)
      builder.fail("expected ids that leave some for special tokens, got none for '" + content.substr(0, 60) + "'");
    t.id = static_cast<token_id>(found != file.end() ? found->get<std::int64_t>() : next);
    next = (std::max)(next, std::int64_t{t.id} + 1);
    t.content = content;
    t.normalized = false;
    t.special = std::ranges::count(options.not_special, content) == 0;
    builder.added(std::move(t), nullptr);
  }
  builder.finish_vocabulary();

  std::vector<std::pair<std::string_view, std::string_view>> pairs;
  std::vector<std::size_t> lines;
  std::size_t number = 0;
  for (std::string_view rest = merges; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix((std::min)(line.size() + 1, rest.size()));
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.substr(0, 8) == "#version") continue;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos ||
        detail::valid_prefix(line) != line.size())
      throw io_error("heddle: " + merges_name + ":" + std::to_string(number) +
                     ": expected two tokens and a space between them, got " + std::to_string(line.size()) +
                     " bytes that are something else");
    pairs.emplace_back(line.substr(0, space), line.substr(space + 1));
    lines.push_back(number);
  }
  builder.parts().model.merges.reserve(pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i)
    builder.merge(pairs[i].first, pairs[i].second, static_cast<std::uint32_t>(i),
                  [&] { return "of " + merges_name + ", line " + std::to_string(lines[i]); });
  if (options.add_prefix_space) builder.parts().steps.push_back({});
  try {
    builder.parts().steps.push_back({detail::split_pattern::from_oniguruma(
        options.pattern.empty() ? detail::gpt2_pattern : std::string_view(options.pattern))});
  } catch (const io_error& e) {
    throw config_error(std::string("heddle: gpt2_tokenizer_options::pattern: ") + e.what());
  }
  if (options.nfc) builder.parts().normalizers.emplace_back(detail::composed_text{});
  return builder.finish();
}

/// A tokenizer from GPT-2's vocab.json and merges.txt: GPT-2's pre-tokenizer, and the special tokens of `options`.
/// Errors: `io_error` that names the file and the place in it (JSON pointer, or line), what was expected and what came;
/// `config_error` for a special token that is no UTF-8.
inline tokenizer load_gpt2_tokenizer(const std::filesystem::path& vocab, const std::filesystem::path& merges,
                                     const gpt2_tokenizer_options& options = {}) {
  return parse_gpt2_tokenizer(detail::whole_file(vocab), detail::whole_file(merges), options, vocab.string(),
                              merges.string());
}

}  // namespace heddle::inline v0::io
