// heddle/model/impl/microbatch_slots.hpp: bodies of heddle/model/microbatch_slots.hpp.
#pragma once

#include <heddle/model/microbatch_slots.hpp>
#include <heddle/core/error.hpp>

#include <cstddef>
#include <string>

namespace heddle::inline v0::model {

HEDDLE_INLINE microbatch_slots::slot& microbatch_slots::for_forward(int i) {
  slot& s = slots_[checked(i)];
  if (s.at != phase::empty)
    throw schedule_error("heddle: forward into slot " + std::to_string(i) +
                         ", which still holds a microbatch that has not been through backward");
  return s;
}

HEDDLE_INLINE microbatch_slots::slot& microbatch_slots::forwarded(int i, const char* verb) {
  slot& s = slots_[checked(i)];
  if (s.at != phase::forward_done) refuse(verb, i, "before its forward");
  return s;
}

HEDDLE_INLINE microbatch_slots::slot& microbatch_slots::waiting(int i) {
  slot& s = slots_[checked(i)];
  if (s.at != phase::input_done) refuse("backward_weight", i, "before its backward_input");
  return s;
}

HEDDLE_INLINE std::size_t microbatch_slots::free_set(int i) const {
  static_cast<void>(checked(i));
  std::size_t free = 0;
  while (free < used_.size() && used_[free]) ++free;
  if (free == used_.size())
    throw schedule_error(
        "heddle: backward_input of slot " + std::to_string(i) + ": " + std::to_string(free) +
        " microbatches already wait for backward_weight; construct the stage with a larger `deferred`");
  return free;
}

HEDDLE_INLINE void microbatch_slots::defer(int i, std::size_t set) {
  slot& s = slots_[checked(i)];
  used_[set] = true;
  s.deferred = set;
  s.at = phase::input_done;
}

HEDDLE_INLINE void microbatch_slots::release(int i) {
  slot& s = slots_[checked(i)];
  if (s.at == phase::input_done) used_[s.deferred] = false;
  s.at = phase::empty;
}

HEDDLE_INLINE std::size_t microbatch_slots::checked(int i) const {
  if (i < 0 || i >= size())
    throw schedule_error("heddle: slot " + std::to_string(i) + " of a stage with " + std::to_string(slots_.size()) +
                         " slots");
  return static_cast<std::size_t>(i);
}

HEDDLE_INLINE void microbatch_slots::refuse(const char* verb, int i, const char* why) {
  throw schedule_error(std::string("heddle: ") + verb + " of slot " + std::to_string(i) + " " + why);
}

}  // namespace heddle::inline v0::model
