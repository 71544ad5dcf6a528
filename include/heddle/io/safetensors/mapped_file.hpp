// heddle/io/safetensors/mapped_file.hpp: a file mapped into memory for reading.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/durable_file.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace heddle::inline v0::io {

/// A file mapped into memory, read only: pages come from the disk when they are looked at. Movable. POSIX.
/// Whoever cuts the file shorter while it is mapped ends programs that look at what is gone (SIGBUS): `require_unchanged` finds
/// what happened before it.
/// Errors: `io_error` with the path and the system's text.
class mapped_file {
 public:
  explicit mapped_file(std::filesystem::path path) : path_(std::move(path)) {
    do fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    while (fd_ < 0 && errno == EINTR);
    if (fd_ < 0) detail::throw_file_error("read", path_, errno);
    try {
      size_ = size_now();
      if (size_ == 0) return;
      void* const at = ::mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ, MAP_SHARED, fd_, 0);
      if (at == MAP_FAILED) detail::throw_file_error("map", path_, errno);
      data_ = static_cast<const std::byte*>(at);
    } catch (...) {
      ::close(fd_);
      throw;
    }
  }
  mapped_file(mapped_file&& other) noexcept
      : path_(std::move(other.path_)),
        fd_(std::exchange(other.fd_, -1)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  mapped_file& operator=(mapped_file&&) = delete;
  ~mapped_file() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<std::size_t>(size_));
    if (fd_ >= 0) ::close(fd_);
  }

  const std::filesystem::path& path() const noexcept { return path_; }
  std::int64_t size() const noexcept { return size_; }
  std::span<const std::byte> bytes() const noexcept { return {data_, static_cast<std::size_t>(size_)}; }

  /// Copies the bytes from `offset` on, without mapping their pages: for long runs the faster way, and an error, not a signal, where the file
  /// was cut shorter. Errors: `io_error` with the offset if they are not there.
  void read(std::int64_t offset, std::span<std::byte> out) const {
    while (!out.empty()) {
      const ::ssize_t n = ::pread(fd_, out.data(), (std::min)(out.size(), std::size_t{1} << 30), offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) detail::throw_file_error("read", path_, errno);
      if (n == 0)
        throw io_error("heddle: '" + path_.string() + "', offset " + std::to_string(offset) + ": the file ends early");
      offset += n;
      out = out.subspan(static_cast<std::size_t>(n));
    }
  }

  /// Errors: `io_error` if the file no longer has the size it had when it was mapped.
  void require_unchanged() const {
    if (const std::int64_t now = size_now(); now != size_)
      throw io_error("heddle: '" + path_.string() + "' had " + std::to_string(size_) +
                     " bytes when it was opened, now " + std::to_string(now) + ": it was written to while it was read");
  }

 private:
  std::int64_t size_now() const {
    struct ::stat about{};
    if (::fstat(fd_, &about) != 0) detail::throw_file_error("read", path_, errno);
    if (!S_ISREG(about.st_mode)) throw io_error("heddle: '" + path_.string() + "' is no file with a size");
    return static_cast<std::int64_t>(about.st_size);
  }

  std::filesystem::path path_;
  int fd_ = -1;
  const std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace heddle::inline v0::io
