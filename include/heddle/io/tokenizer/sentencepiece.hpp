// heddle/io/tokenizer/sentencepiece.hpp: reads SentencePiece's tokenizer.model.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/tokenizer/protobuf.hpp>
#include <heddle/io/tokenizer/tokenizer.hpp>
#include <heddle/io/tokenizer/whole_file.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// What tokenizer.model does not say.
struct sentencepiece_options {
  bool add_bos = false, add_eos = false;  ///< as special tokens around each text
  /// The mark before a text, where the model has it, is not put before the parts behind special tokens: transformers'
  /// `legacy: false`.
  bool prefix_first_only = false;
  /// Tokens that are found before a text is split: with ids behind the pieces, or of pieces, whose content they have.
  std::vector<added_token> added{};
};

namespace detail {

class sentencepiece_reader {
 public:
  explicit sentencepiece_reader(const std::string& name) : name_(name) {}

  tokenizer read(std::string_view file, const sentencepiece_options& options) {
    message(file);
    ids();
    if (type_ == bpe)
      merges();
    else
      unigrams();
    added(options);
    around(options);
    text_.first_only = options.prefix_first_only;
    parts_->normalizers.emplace_back(std::move(text_));
    return tokenizer(std::move(parts_));
  }

 private:
  using kind = piece_decoder::kind;
  enum piece_type : std::uint64_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  static constexpr std::uint64_t unigram_model = 1, bpe = 2;
  struct piece {
    std::string_view content;
    float score = 0;
    std::uint64_t type = normal;
  };

  // Numbers of fields are those of sentencepiece_model.proto.
  void message(std::string_view file) {
    protobuf_message all(file, name_);
    bool trained = false, normalized = false;
    const auto once = [&](bool& before, const char* what) {
      if (std::exchange(before, true)) all.fail(std::string("expected one ") + what + ", got two");
    };
    while (all.next()) {
      if (all.field() == 1) {
        read_piece(all.message("a piece"));
      } else if (all.field() == 2) {
        once(trained, "trainer_spec");
        read_trainer(all.message("trainer_spec"));
      } else if (all.field() == 3) {
        once(normalized, "normalizer_spec");
        read_normalizer(all.message("normalizer_spec"));
      } else if (all.field() == 5) {
        protobuf_message spec = all.message("denormalizer_spec");
        while (spec.next())
          if (spec.field() == 2 && !spec.text("precompiled_charsmap").empty())
            spec.fail("expected no table of a denormalizer, which is not supported");
      }
    }
    if (pieces_.empty()) fail("expected pieces of SentencePiece, got none");
    if (!trained || !normalized)
      fail(std::string("expected a ") + (trained ? "normalizer_spec" : "trainer_spec") + " behind " +
           std::to_string(pieces_.size()) + " pieces, got none in " + std::to_string(file.size()) + " bytes");
    if (type_ != unigram_model && type_ != bpe)
      fail("expected the model type 1 (unigram) or 2 (BPE), got " + std::to_string(type_));
  }

  void read_piece(protobuf_message m) {
    piece p;
    while (m.next()) {
      if (m.field() == 1)
        p.content = m.text("piece");
      else if (m.field() == 2)
        p.score = m.real("score");
      else if (m.field() == 3)
        p.type = m.integer("type");
    }
    const std::string shown = "piece " + std::to_string(pieces_.size());
    if (p.content.empty() || valid_prefix(p.content) != p.content.size() ||
        p.content.find('\0') != std::string_view::npos)
      m.fail("expected UTF-8 without zero bytes for " + shown + ", got " +
             (p.content.empty() ? "nothing" : "other bytes"));
    if (!std::isfinite(p.score)) m.fail("expected a finite score for " + shown);
    if (p.type < normal || p.type > byte)
      m.fail("expected a type from 1 to 6 for " + shown + ", got " + std::to_string(p.type));
    if (pieces_.size() >= 0x7ffffff) m.fail("expected fewer pieces");
    pieces_.push_back(p);
  }
  void read_trainer(protobuf_message m) {
    while (m.next()) {
      if (m.field() == 3)
        type_ = m.integer("model_type");
      else if (m.field() == 24)
        text_.mark_behind = m.flag("treat_whitespace_as_suffix");
      else if (m.field() == 35)
        byte_fallback_ = m.flag("byte_fallback");
      else if (m.field() == 44)
        unknown_surface_ = utf8(m, "unk_surface");
      else if (m.field() == 46)
        bos_ = m.text("bos_piece");
      else if (m.field() == 47)
        eos_ = m.text("eos_piece");
    }
  }
  void read_normalizer(protobuf_message m) {
    while (m.next()) {
      if (m.field() == 2) {
        std::string why;
        auto map = character_map::read(m.text("precompiled_charsmap"), why);
        if (!map) m.fail(why);
        text_.map = *std::move(map);
      } else if (m.field() == 3) {
        text_.prefix = m.flag("add_dummy_prefix");
      } else if (m.field() == 4) {
        text_.single_spaces = m.flag("remove_extra_whitespaces");
      } else if (m.field() == 5) {
        text_.marks = m.flag("escape_whitespaces");
      }
    }
  }
  static std::string utf8(protobuf_message& m, const char* what) {
    const std::string_view text = m.text(what);
    if (valid_prefix(text) != text.size()) m.fail(std::string("expected UTF-8 for ") + what + ", got other bytes");
    return std::string(text);
  }

  void ids() {
    piece_decoder decoder;
    decoder.unknown = unknown_surface_;
    decoder.strips_first = text_.prefix || text_.single_spaces;
    decoder.strips_more = text_.single_spaces;
    byte_strings& tokens = parts_->model.tokens;
    tokens.resize(pieces_.size());
    std::optional<token_id> unknown_id;
    content_finder reserved;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const piece& p = pieces_[i];
      const auto id = static_cast<token_id>(i);
      const std::string shown = "'" + std::string(p.content.substr(0, 60)) + "'";
      const bool word = p.type == normal || p.type == user_defined || p.type == unused;
      const auto twice = word ? std::nullopt : reserved.longest(p.content, 0);
      if (!tokens.insert(id, p.content, word) || (twice && twice->end == p.content.size()))
        fail("expected different pieces, got " + shown + " twice");
      if (!word) reserved.insert(p.content, i);
      if (p.type == unknown) {
        if (unknown_id) fail("expected one unknown piece, got " + shown + " and another");
        unknown_id = id;
      }
      if (p.type == byte) {
        const auto value = spelled_byte(p.content);
        if (!value || !byte_fallback_) fail("expected byte pieces such as '<0x0A>', and byte_fallback, got " + shown);
        unknown_.of_byte[static_cast<unsigned char>(*value)] = id;
      }
      if (p.type == user_defined) text_.kept.insert(p.content, i);
      if (p.type == unused && type_ == bpe) fail("expected no unused pieces in a BPE model, got " + shown);
      decoder.kinds.push_back(p.type == control   ? kind::control
                              : p.type == unknown ? kind::unknown
                              : p.type == byte    ? kind::byte
                                                  : kind::text);
    }
    if (!unknown_id) fail("expected an unknown piece, got none");
    unknown_.unknown = *unknown_id;
    unknown_.fuse = true;
    if (byte_fallback_ && std::ranges::count(unknown_.of_byte, unknown_characters::none) > 0)
      fail("expected byte pieces for all of 256 bytes");
    parts_->decode = std::move(decoder);
  }

  // SentencePiece joins the neighbours whose text is the piece with the highest score: a merge for each pair of pieces.
  void merges() {
    byte_pair_encoding& model = parts_->model;
    model.characters = unknown_;
    std::vector<float> scores;
    for (const piece& p : pieces_)
      if (p.type == normal) scores.push_back(p.score);
    std::sort(scores.begin(), scores.end(), std::greater<>{});
    scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
    struct found {
      token_id left, right;
      std::uint32_t rank;
      token_id to;
    };
    std::vector<found> all;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const piece& p = pieces_[i];
      if (p.type == user_defined) model.whole_symbols.insert(p.content, i);
      if (p.type != normal) continue;
      const auto rank = static_cast<std::uint32_t>(
          std::lower_bound(scores.begin(), scores.end(), p.score, std::greater<>{}) - scores.begin());
      for (std::size_t at = 0, size = 0; at < p.content.size(); at += size) {
        size = sequence_length(p.content[at]);
        if (model.tokens.find(p.content.substr(at, size)) == byte_strings::none)
          fail("expected a piece for each character of '" + std::string(p.content.substr(0, 60)) + "', got none for '" +
               std::string(p.content.substr(at, size)) + "'");
        if (at == 0) continue;
        const token_id left = mergeable(p.content.substr(0, at)), right = mergeable(p.content.substr(at));
        if (left != byte_strings::none && right != byte_strings::none)
          all.push_back({left, right, rank, static_cast<token_id>(i)});
      }
    }
    model.merges.reserve(all.size());
    for (const found& f : all) model.merges.insert(f.left, f.right, f.rank, f.to);
    model.finish();
  }
  token_id mergeable(std::string_view text) const {
    const token_id id = parts_->model.tokens.find(text);
    return id != byte_strings::none && pieces_[static_cast<std::size_t>(id)].type == normal ? id : byte_strings::none;
  }

  void unigrams() {
    unigram<float> model;
    model.unknown = unknown_;
    float least = (std::numeric_limits<float>::max)(), most = (std::numeric_limits<float>::min)();
    for (const piece& p : pieces_)
      if (p.type == normal) least = (std::min)(least, p.score), most = (std::max)(most, p.score);
    model.unknown_score = least - 10.0F;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const piece& p = pieces_[i];
      model.scores.push_back(p.type == user_defined
                                 ? static_cast<double>(static_cast<float>(p.content.size()) * most) - 0.1
                                 : static_cast<double>(p.score));
      if (p.type == normal || p.type == user_defined)
        model.texts.insert(std::string(p.content), static_cast<token_id>(i));
    }
    model.texts.finish();
    parts_->unigrams = std::move(model);
  }

  void added(const sentencepiece_options& options) {
    for (std::size_t i = 0; i < pieces_.size(); ++i)
      if (pieces_[i].type == control || pieces_[i].type == unknown)
        parts_->added.push_back(
            {static_cast<token_id>(i), std::string(pieces_[i].content), false, false, false, false, true});
    auto ids = static_cast<token_id>(pieces_.size());
    for (const added_token& t : options.added) ids = (std::max)(ids, t.id + 1);
    if (static_cast<std::size_t>(ids) > pieces_.size() + options.added.size() + 1024)
      fail("expected ids of added tokens behind those of " + std::to_string(pieces_.size()) + " pieces, got " +
           std::to_string(ids - 1));
    parts_->model.tokens.grow(static_cast<std::size_t>(ids));
    for (const added_token& t : options.added) {
      const std::string shown = "'" + t.content.substr(0, 60) + "'";
      if (t.id < 0 || t.content.empty() || valid_prefix(t.content) != t.content.size())
        fail("expected an id and UTF-8 for an added token, got " + std::to_string(t.id) + " and " + shown);
      const bool of_piece = static_cast<std::size_t>(t.id) < pieces_.size();
      if (of_piece && pieces_[static_cast<std::size_t>(t.id)].content != t.content)
        fail("expected the piece '" + std::string(pieces_[static_cast<std::size_t>(t.id)].content) + "' for the id " +
             std::to_string(t.id) + ", got the added token " + shown);
      const auto same = [&](const added_token& o) { return o.id == t.id; };
      const auto before = std::find_if(parts_->added.begin(), parts_->added.end(), same);
      if (before != parts_->added.end()) {
        if (!of_piece) fail("expected an id of its own for " + shown + ", got " + std::to_string(t.id));
        *before = t;
      } else {
        parts_->added.push_back(t);
      }
      if (!of_piece) parts_->model.tokens.insert(t.id, t.content, false);
    }
    std::sort(parts_->added.begin(), parts_->added.end(),
              [](const added_token& a, const added_token& b) { return a.id < b.id; });
    parts_->special.assign(parts_->model.tokens.ids(), false);
    for (const added_token& t : parts_->added) {
      parts_->special[static_cast<std::size_t>(t.id)] = t.special;
      parts_->of_raw.add(t, t.content);
    }
    show_tokens(*parts_);
  }

  void around(const sentencepiece_options& options) {
    const auto mark = [&](const std::string& content) {
      for (const added_token& t : parts_->added)
        if (t.content == content) return template_step{false, {t.id}};
      fail("expected the control piece '" + content + "', which is added to each text, got none");
    };
    if (options.add_bos) parts_->around.insert(parts_->around.begin(), mark(bos_));
    if (options.add_eos) parts_->around.push_back(mark(eos_));
  }

  [[noreturn]] void fail(const std::string& why) const { throw io_error("heddle: " + name_ + ": " + why); }

  const std::string& name_;
  std::shared_ptr<tokenizer_parts> parts_ = std::make_shared<tokenizer_parts>();
  std::vector<piece> pieces_;
  std::uint64_t type_ = unigram_model;
  bool byte_fallback_ = false;
  unknown_characters unknown_;
  piece_text text_;
  std::string unknown_surface_ = " \xe2\x81\x87 ", bos_ = "<s>", eos_ = "</s>";
};

}  // namespace detail

/// A tokenizer from the bytes of tokenizer.model; `name` appears in messages. Errors: as of `load_sentencepiece`.
inline tokenizer parse_sentencepiece(std::string_view file, const sentencepiece_options& options = {},
                                     const std::string& name = "tokenizer.model") {
  return detail::sentencepiece_reader(name).read(file, options);
}

/// A tokenizer from SentencePiece's tokenizer.model, a unigram or a BPE model, with the ids and texts of the
/// `sentencepiece` package. Control pieces such as `<s>` are special tokens: where a text spells them they are found, and
/// each part between them is encoded like a text of its own; `special_tokens_as_text` encodes all as the package does.
/// Errors: `io_error` that names the file, its byte where it is cut or malformed, what was expected and what came.
inline tokenizer load_sentencepiece(const std::filesystem::path& path, const sentencepiece_options& options = {}) {
  return parse_sentencepiece(detail::whole_file(path), options, path.string());
}

}  // namespace heddle::inline v0::io
