// heddle/model/microbatch_slots.hpp: the slots of a stage, each with the microbatch on its way from forward to backward.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/layer.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace heddle::inline v0::model {

/// A ring of slots, and sets of memory for microbatches between backward_input and backward_weight. A slot goes from empty to
/// forward, then through backward, or backward_input and backward_weight, to empty.
/// Errors: `schedule_error` for a slot that does not exist or a verb out of order.
class microbatch_slots {
 public:
  enum class phase : unsigned char { empty, forward_done, input_done };
  struct slot {
    extent_of_batch extent{};
    double loss_sum = 0;
    std::size_t deferred = 0;  ///< its set, between backward_input and backward_weight
    phase at = phase::empty;
  };

  microbatch_slots(int slots, int deferred)
      : slots_(static_cast<std::size_t>(slots)), used_(static_cast<std::size_t>(deferred), false) {}

  int size() const noexcept { return static_cast<int>(slots_.size()); }
  const slot& operator[](int i) const { return slots_[checked(i)]; }

  /// Before a forward.
  slot& for_forward(int i) {
    slot& s = slots_[checked(i)];
    if (s.at != phase::empty)
      throw schedule_error("heddle: forward into slot " + std::to_string(i) +
                           ", which still holds a microbatch that has not been through backward");
    return s;
  }
  /// Before `verb`, which comes behind forward.
  slot& forwarded(int i, const char* verb) {
    slot& s = slots_[checked(i)];
    if (s.at != phase::forward_done) refuse(verb, i, "before its forward");
    return s;
  }
  /// Before backward_weight.
  slot& waiting(int i) {
    slot& s = slots_[checked(i)];
    if (s.at != phase::input_done) refuse("backward_weight", i, "before its backward_input");
    return s;
  }
  /// A set for backward_input of this slot. Errors: all are in use.
  std::size_t free_set(int i) const {
    static_cast<void>(checked(i));
    std::size_t free = 0;
    while (free < used_.size() && used_[free]) ++free;
    if (free == used_.size())
      throw schedule_error(
          "heddle: backward_input of slot " + std::to_string(i) + ": " + std::to_string(free) +
          " microbatches already wait for backward_weight; construct the stage with a larger `deferred`");
    return free;
  }
  void defer(int i, std::size_t set) {
    slot& s = slots_[checked(i)];
    used_[set] = true;
    s.deferred = set;
    s.at = phase::input_done;
  }
  /// The slot is free again.
  void release(int i) {
    slot& s = slots_[checked(i)];
    if (s.at == phase::input_done) used_[s.deferred] = false;
    s.at = phase::empty;
  }

 private:
  std::size_t checked(int i) const {
    if (i < 0 || i >= size())
      throw schedule_error("heddle: slot " + std::to_string(i) + " of a stage with " + std::to_string(slots_.size()) +
                           " slots");
    return static_cast<std::size_t>(i);
  }
  [[noreturn]] static void refuse(const char* verb, int i, const char* why) {
    throw schedule_error(std::string("heddle: ") + verb + " of slot " + std::to_string(i) + " " + why);
  }

  std::vector<slot> slots_;
  std::vector<bool> used_;
};

}  // namespace heddle::inline v0::model
