// heddle/train/steps.hpp: policies of a training step that need no header of their own, and the names of those that do.
#pragma once

#include <heddle/core/config.hpp>

namespace heddle::inline v0 {

/// The kind of policies that say how a step gets to the device.
struct steps_kind {};

/// The host gives each operation of each step to the backend. The default.
struct eager_steps {
  using kind = steps_kind;
  static constexpr bool captured = false;
};

struct captured_steps;  // of train/captured_steps.hpp

/// The kind of policies that say when the norm of the gradients is checked.
struct norm_check_kind {};

/// The norm of all gradients is known before any weight changes. The default.
struct norm_first {
  using kind = norm_check_kind;
  static constexpr bool steps_first = false;
  static constexpr bool copies = false;
};

struct post_validation;            // of train/post_validation.hpp
struct post_validation_with_copy;

}  // namespace heddle::inline v0
