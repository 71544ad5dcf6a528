// heddle/infer/text_streams.hpp: runs a model over a text, for its residual stream.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/infer/cache.hpp>
#include <heddle/infer/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::infer {

/// each(streams, first, rows) for up to `most_rows` tokens of a text at a time, with the residual streams at tokens [first, first + rows). Blocks of the
/// runner's cache are overwritten: no engine may have sequences in it.
/// Shapes: streams [rows, width]. Errors: `config_error` for a text longer than the runner's context or cache or with tokens that the
/// vocabulary does not have, where `who` says so; what the runner throws.
template <step_runner Runner, class Each>
  requires stream_runner<Runner>
void each_stream_of_text(Runner& runner, std::span<const std::int32_t> text, std::string_view who,
                         std::int64_t most_rows, Each&& each) {
  using T = typename Runner::scalar;
  const step_limits limits = runner.limits();
  const std::int64_t length = std::ssize(text), most = (std::min)(limits.context, limits.blocks * limits.block_rows);
  if (length > most)
    throw config_error("heddle: " + std::string(who) + ": a text should have at most the " + std::to_string(most) +
                       " tokens that fit, got " + std::to_string(length));
  for (const std::int32_t t : text)
    if (t < 0 || t >= limits.vocabulary)
      throw config_error("heddle: " + std::string(who) + ": tokens of a text should be from 0 to " +
                         std::to_string(limits.vocabulary - 1) + ", got " + std::to_string(t));
  std::vector<T> logits;
  for (std::int64_t first = 0; first < length;) {
    step s;
    const std::int64_t rows = (std::min)({limits.max_rows, length - first, most_rows});
    const std::int64_t blocks = detail::blocks_of_tokens(first + rows, limits.block_rows);
    s.tokens.assign(text.begin() + first, text.begin() + first + rows);
    s.sequences = {{0, rows, first, 0, blocks}};
    for (std::int64_t b = 0; b < blocks; ++b) s.blocks.push_back(static_cast<std::int32_t>(b));
    for (std::int64_t r = 0; r < rows; ++r) s.wanted.push_back(r);
    s.streams = true;
    logits.resize(static_cast<std::size_t>(rows * limits.vocabulary));
    runner.run(s, std::span<T>(logits));
    each(runner.streams(), first, rows);
    first += rows;
  }
}

}  // namespace heddle::inline v0::infer
