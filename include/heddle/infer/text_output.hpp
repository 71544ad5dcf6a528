// heddle/infer/text_output.hpp: the text of a request's answer, part by part, up to a stop string.
#pragma once

#include <heddle/infer/event.hpp>
#include <heddle/io/tokenizer/stop_strings.hpp>
#include <heddle/io/tokenizer/tokenizer.hpp>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Text that is certain now. `finish` is not `none` in the last part, and then says how the text ended.
struct text_part {
  std::string text{};
  finish_reason finish = finish_reason::none;
  friend bool operator==(const text_part&, const text_part&) = default;
};

/// Turns the events of one request into text. No part ends within a character; the text ends before the first stop string, and what may
/// be the beginning of one is held back. A token that ended the answer (`finish_reason::stop`) is not part of the text.
class text_output {
 public:
  /// Errors: `config_error` for an empty stop string.
  explicit text_output(io::tokenizer t, std::vector<std::string> stop_strings = {},
                       io::decode_options options = {.skip_special_tokens = true, .skip_unknown_ids = true, .kept = {}})
      : decoder_(std::move(t), options), stops_(std::move(stop_strings)) {}

  /// The text that an event brings; nothing once the text has ended. Errors: as of `io::stream_decoder::push`.
  text_part push(const event& e) {
    if (ended_) return {};
    text_part part;
    if (e.token && e.finish != finish_reason::stop) part.text = stops_.push(counted(decoder_.push(*e.token)));
    if (e.finish != finish_reason::none && !stops_.found()) part.text += stops_.push(counted(decoder_.finish()));
    if (stops_.found()) {
      part.finish = finish_reason::stop;
    } else if (e.finish != finish_reason::none) {
      part.text += stops_.finish();
      part.finish = e.finish;
    }
    ended_ = part.finish != finish_reason::none;
    return part;
  }
  /// The same, and the engine ends the request where a stop string did; the events that follow bring nothing.
  template <class Engine>
  text_part push(const event& e, Engine& engine) {
    text_part part = push(e);
    if (part.finish != finish_reason::none && e.finish == finish_reason::none) engine.finish(e.id);
    return part;
  }
  /// Whether the last part was returned.
  bool ended() const noexcept { return ended_; }
  /// Whether a stop string ended the text, which the engine does not know of.
  bool stopped_by_text() const noexcept { return stops_.found(); }
  /// Bytes of text that the tokens so far have, those that are held back among them.
  std::size_t decoded_bytes() const noexcept { return decoded_; }

 private:
  std::string counted(std::string text) {
    decoded_ += text.size();
    return text;
  }

  io::stream_decoder decoder_;
  io::stop_strings stops_;
  std::size_t decoded_ = 0;
  bool ended_ = false;
};

}  // namespace heddle::inline v0::infer
