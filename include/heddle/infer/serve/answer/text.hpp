// heddle/infer/serve/answer/text.hpp: text of a request's events, with stop strings.
#pragma once

#include <heddle/infer/event.hpp>
#include <heddle/infer/serve/answer/sections.hpp>
#include <heddle/infer/text_output.hpp>
#include <heddle/io/tokenizer/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// A token's bytes and the natural logarithm of its probability.
struct text_probability {
  std::string bytes{};
  double log_probability = 0;
  friend bool operator==(const text_probability&, const text_probability&) = default;
};

/// A token of an answer with the likeliest tokens at its place.
struct token_text {
  text_probability token{};
  std::vector<text_probability> likeliest{};
  friend bool operator==(const token_text&, const token_text&) = default;
};

/// Text that is certain now, its tokens, and how the answer ended, if it did.
struct answer_part {
  std::string text{};
  std::vector<token_text> tokens{};  ///< where log-probabilities were asked for
  finish_reason finish = finish_reason::none;
  std::string message{};           ///< of an error
  std::string reasoning{};         ///< thoughts, which are not part of `text`
  std::vector<tool_call> calls{};  ///< of tools, which are not part of `text`
  bool called = false;             ///< of the last part: whether the answer has calls
};

/// The text of one answer. What may begin a stop string is held back, and so are the bytes of a character that is not whole. The parts' texts joined are
/// the answer before the first stop string; the bytes of the parts' tokens joined are that text, too, where the tokens form UTF-8.
/// Special tokens, and a token that ended the answer (`finish_reason::stop`), are not part of the text.
class answer_text {
 public:
  /// `kept`: special tokens that are part of the text.
  explicit answer_text(io::tokenizer t, std::vector<std::string> stop = {}, std::vector<io::token_id> kept = {})
      : tokenizer_(t),
        text_(std::move(t), std::move(stop),
              {.skip_special_tokens = true, .skip_unknown_ids = true, .kept = std::move(kept)}) {}

  /// The part that an event adds. After the answer ended, here or in the event, parts are empty.
  answer_part push(const event& e) {
    answer_part out;
    if (ended()) return out;
    if (cached_ < e.cached_prompt_tokens) cached_ = e.cached_prompt_tokens;
    if (e.token) ++tokens_;
    const std::size_t from = text_.decoded_bytes();
    text_part part = text_.push(e);
    if (e.token && e.finish != finish_reason::stop && e.log_probability && tokenizer_.has(*e.token) &&
        !tokenizer_.is_special(*e.token))
      held_.push_back({from, describe(e)});
    emitted_ += part.text.size();
    out.text = std::move(part.text);
    out.finish = part.finish;
    if (part.finish != finish_reason::none && !stopped_by_text()) out.message = e.message;
    release(out);
    return out;
  }

  bool ended() const noexcept { return text_.ended(); }
  /// Whether the answer ended with a stop string, which the engine does not know of.
  bool stopped_by_text() const noexcept { return text_.stopped_by_text(); }
  /// Tokens so far, those of a stop string among them.
  std::int64_t tokens() const noexcept { return tokens_; }
  std::int64_t cached_prompt_tokens() const noexcept { return cached_; }

 private:
  struct held_token {
    std::size_t from = 0;  // bytes of text before it
    token_text what{};
  };

  text_probability describe(std::int32_t token, double log_probability) const {
    const double most = (std::min)(log_probability, 0.0);  // rounding may leave it above
    return {std::string(tokenizer_.has(token) ? tokenizer_.token_bytes(token) : ""),
            (std::max)(most, -9999.0)};  // JSON has no infinity
  }
  token_text describe(const event& e) const {
    token_text out{.token = describe(*e.token, *e.log_probability)};
    for (const token_probability& p : e.likeliest) out.likeliest.push_back(describe(p.token, p.log_probability));
    return out;
  }
  // Tokens whose text is certain; a token that a stop string cuts is cut, too.
  void release(answer_part& to) {
    while (!held_.empty()) {
      held_token& h = held_.front();
      const std::size_t end = held_.size() > 1 ? held_[1].from : text_.decoded_bytes();
      if (!ended() && (end > emitted_ || h.from >= emitted_)) return;
      if (stopped_by_text()) {
        if (h.from >= emitted_) break;
        std::string& bytes = h.what.token.bytes;
        if (end > emitted_) bytes.resize((std::min)(bytes.size(), emitted_ - h.from));
      }
      to.tokens.push_back(std::move(h.what));
      held_.pop_front();
    }
    held_.clear();
  }

  io::tokenizer tokenizer_;
  text_output text_;
  std::deque<held_token> held_{};
  std::size_t emitted_ = 0;  // bytes of text that were handed out
  std::int64_t tokens_ = 0;
  std::int64_t cached_ = 0;
};

}  // namespace heddle::inline v0::infer
