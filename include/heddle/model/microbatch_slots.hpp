// heddle/model/microbatch_slots.hpp: slots of a stage for microbatches on their way.
#pragma once

#include <heddle/core/config.hpp>
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
  slot& for_forward(int i);
  /// Before `verb`, which comes behind forward.
  slot& forwarded(int i, const char* verb);
  /// Before backward_weight.
  slot& waiting(int i);
  /// A set for backward_input of this slot. Errors: all are in use.
  std::size_t free_set(int i) const;
  void defer(int i, std::size_t set);
  /// The slot is free again.
  void release(int i);

 private:
  std::size_t checked(int i) const;
  [[noreturn]] static void refuse(const char* verb, int i, const char* why);

  std::vector<slot> slots_;
  std::vector<bool> used_;
};

}  // namespace heddle::inline v0::model

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/model/impl/microbatch_slots.hpp>
#endif
