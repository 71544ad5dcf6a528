// heddle/tensor/expected_memory.hpp: adds a prediction of memory to errors of memory.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/tensor/buffer.hpp>

#include <functional>
#include <memory>
#include <string>

namespace heddle::inline v0 {
namespace detail {
struct expectation;
}

/// As long as it lives, every `memory_error` of a buffer that the thread which made it asks for ends with its text: what a trainer, say,
/// predicted that this rank would hold. It costs nothing until then.
class expected_memory {
 public:
  /// `text()` is called on that thread when memory is not to be had; empty: it has nothing to say. Where it throws, it has neither.
  /// Memory that it asks for in vain itself ends with no text. While it runs on its thread, the end on another thread waits for it.
  explicit expected_memory(std::function<std::string()> text);
  expected_memory(const expected_memory&) = delete;
  expected_memory& operator=(const expected_memory&) = delete;
  ~expected_memory();

 private:
  static std::string of_thread();

  std::shared_ptr<detail::expectation> expectation_;
};

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/tensor/impl/expected_memory.hpp>
#endif
