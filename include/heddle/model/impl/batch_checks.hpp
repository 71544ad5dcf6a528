// heddle/model/impl/batch_checks.hpp: bodies of heddle/model/batch_checks.hpp.
#pragma once

#include <heddle/model/batch_checks.hpp>
#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

HEDDLE_INLINE void require_same_extent(int slot, extent_of_batch e, extent_of_batch forward) {
  if (e != forward)
    throw schedule_error("heddle: backward of slot " + std::to_string(slot) + " with " + std::to_string(e.samples) +
                         " samples of " + std::to_string(e.sequence) + " tokens, forward had " +
                         std::to_string(forward.samples) + " of " + std::to_string(forward.sequence));
}

HEDDLE_INLINE void require_logits(std::size_t room, extent_of_batch e, std::int64_t vocabulary) {
  if (static_cast<std::int64_t>(room) != e.samples * vocabulary)
    throw config_error("heddle: last_logits needs room for " + std::to_string(e.samples) + " x " +
                       std::to_string(vocabulary) + " logits, got " + std::to_string(room));
}

HEDDLE_INLINE void require_log_probabilities(std::size_t room, extent_of_batch e) {
  if (static_cast<std::int64_t>(room) != e.rows())
    throw config_error("heddle: target_log_probabilities needs room for " + std::to_string(e.samples) + " x " +
                       std::to_string(e.sequence) + " numbers, got " + std::to_string(room));
}

HEDDLE_INLINE void require_stream_size(std::size_t elements, extent_of_batch e, std::int64_t own, int width,
                                       const char* what) {
  if (static_cast<std::int64_t>(elements) == own * width) return;
  std::string text = std::string("heddle: ") + what + " must hold ";
  if (own != e.rows()) text += std::to_string(own) + " of the rows of ";
  text += std::to_string(e.samples) + " x " + std::to_string(e.sequence) + " x " + std::to_string(width) +
          " elements, got " + std::to_string(elements);
  throw config_error(text);
}

}  // namespace heddle::inline v0::model
