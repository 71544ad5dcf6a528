// heddle/core/file_descriptor.hpp: the owner of an open file, socket or pipe, which closes it.
#pragma once

#include <unistd.h>

#include <utility>

namespace heddle::inline v0 {

/// Owns an open file and closes it at its end. -1: it has none.
class file_descriptor {
 public:
  file_descriptor() = default;
  explicit file_descriptor(int file) noexcept : file_(file) {}
  file_descriptor(file_descriptor&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  file_descriptor& operator=(file_descriptor&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~file_descriptor() {
    if (file_ >= 0) ::close(file_);
  }
  int file() const noexcept { return file_; }

 private:
  int file_ = -1;
};

}  // namespace heddle::inline v0
