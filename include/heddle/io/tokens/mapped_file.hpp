// heddle/io/tokens/mapped_file.hpp: a file that is read as memory, page by page when it is touched.
#pragma once

#include <heddle/core/config.hpp>

#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

namespace heddle::inline v0::io {

/// A regular file, mapped to be read. Movable. The file may not become shorter while one lives.
class mapped_file {
 public:
  mapped_file() = default;
  /// Errors: `io_error` naming the file and what is wrong, as that it is a folder, or not there.
  explicit mapped_file(const std::filesystem::path& path);
  mapped_file(mapped_file&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  mapped_file& operator=(mapped_file&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~mapped_file();

  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<const std::byte> bytes_{};
};

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/tokens/mapped_file.hpp>
#endif
