// heddle/infer/serve/tokenizer/answer_text.hpp: turns the events of a request into text: whole characters, stop strings, log-probabilities.
#pragma once

#include <heddle/infer/event.hpp>
#include <heddle/io/tokenizer/stop_strings.hpp>
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
  std::string message{};  ///< of an error
};

/// The text of one answer. What may begin a stop string is held back, and so are the bytes of a character that is not whole. The parts' texts joined are
/// the answer before the first stop string; the bytes of the parts' tokens joined are that text, too, where the tokens form UTF-8.
/// Special tokens, and a token that ended the answer (`finish_reason::stop`), are not part of the text.
class answer_text {
 public:
  explicit answer_text(io::tokenizer t, std::vector<std::string> stop = {})
      : tokenizer_(std::move(t)),
        decoder_(tokenizer_, {.skip_special_tokens = true, .skip_unknown_ids = true}),
        stops_(std::move(stop)) {}

  /// The part that an event adds. After the answer ended, here or in the event, parts are empty.
  answer_part push(const event& e) {
    answer_part out;
    if (ended_) return out;
    if (cached_ < e.cached_prompt_tokens) cached_ = e.cached_prompt_tokens;
    if (e.token) ++tokens_;
    if (e.token && e.finish != finish_reason::stop) {
      const std::size_t from = decoded_;
      const std::string text = decoder_.push(*e.token);
      decoded_ += text.size();
      if (e.log_probability && tokenizer_.has(*e.token) && !tokenizer_.is_special(*e.token))
        held_.push_back({from, describe(e)});
      add(out, stops_.push(text));
    }
    if (stops_.found()) {
      out.finish = finish_reason::stop;
    } else if (e.finish != finish_reason::none) {
      out.finish = e.finish;
      out.message = e.message;
      const std::string rest = decoder_.finish();
      decoded_ += rest.size();
      add(out, stops_.push(rest));
      if (stops_.found())
        out.finish = finish_reason::stop;
      else
        add(out, stops_.finish());
    }
    ended_ = out.finish != finish_reason::none;
    release(out);
    return out;
  }

  bool ended() const noexcept { return ended_; }
  /// Whether the answer ended with a stop string, which the engine does not know of.
  bool stopped_by_text() const noexcept { return stops_.found(); }
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
  void add(answer_part& to, std::string text) {
    emitted_ += text.size();
    to.text += text;
  }
  // Tokens whose text is certain; a token that a stop string cuts is cut, too.
  void release(answer_part& to) {
    while (!held_.empty()) {
      held_token& h = held_.front();
      const std::size_t end = held_.size() > 1 ? held_[1].from : decoded_;
      if (!ended_ && (end > emitted_ || h.from >= emitted_)) return;
      if (stops_.found()) {
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
  io::stream_decoder decoder_;
  io::stop_strings stops_;
  std::deque<held_token> held_{};
  std::size_t decoded_ = 0;  // bytes of text that the tokens so far have
  std::size_t emitted_ = 0;  // of these, handed out
  std::int64_t tokens_ = 0;
  std::int64_t cached_ = 0;
  bool ended_ = false;
};

}  // namespace heddle::inline v0::infer
