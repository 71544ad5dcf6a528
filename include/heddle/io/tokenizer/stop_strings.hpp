// heddle/io/tokenizer/stop_strings.hpp: ends streamed text at a stop string.
#pragma once

#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// Looks for stop strings in a text that comes in parts, as `stream_decoder` returns them. The text ends before the stop
/// string that is complete first, of several that end there before the longest. What `push` and `finish` return,
/// joined, does not depend on how the text is cut; what may be the beginning of a stop string is held back.
class stop_strings {
 public:
  /// Errors: `config_error` for an empty stop string.
  explicit stop_strings(std::vector<std::string> stops) : stops_(std::move(stops)) {
    for (const std::string& s : stops_)
      if (s.empty()) throw config_error("heddle: a stop string must have at least one byte, got an empty one");
  }

  /// The text that is certain now. Empty once a stop string was found: what comes then is not part of the text.
  std::string push(std::string_view part) {
    if (found_) return {};
    for (const char c : part) {
      held_ += c;
      std::size_t length = 0;
      for (const std::string& s : stops_)
        if (s.size() > length && std::string_view(held_).ends_with(s)) length = s.size();
      if (length == 0) continue;
      found_ = true;
      held_.resize(held_.size() - length);
      return std::exchange(held_, {});
    }
    std::string out = held_.substr(0, held_.size() - open());
    held_.erase(0, out.size());
    return out;
  }
  /// The text that was held back, at the end of a text without a stop string. A new text can follow.
  std::string finish() {
    found_ = false;
    return std::exchange(held_, {});
  }
  /// Whether a stop string was found: then there is nothing more to make.
  bool found() const noexcept { return found_; }

 private:
  // Bytes at the end of `held_` that are the beginning of a stop string: as many as possible.
  std::size_t open() const {
    std::size_t most = 0;
    for (const std::string& s : stops_)
      for (std::size_t n = (std::min)(s.size() - 1, held_.size()); n > most; --n)
        if (std::string_view(held_).ends_with(std::string_view(s).substr(0, n))) most = n;
    return most;
  }

  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace heddle::inline v0::io
