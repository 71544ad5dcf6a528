// heddle/io/safetensors/input_file.hpp: a file open for reading at any offset.
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
#include <sys/stat.h>
#include <unistd.h>

namespace heddle::inline v0::io {

/// A file open for reading at any offset, on any thread, with one descriptor. It is not mapped into memory: looking at
/// pages of a file that another program cuts shorter would end this one (SIGBUS). Movable. POSIX.
/// Errors: `io_error` with the path and the system's text; for pipes, devices and folders, too, without waiting for
/// them.
class input_file {
 public:
  explicit input_file(std::filesystem::path path) : path_(std::move(path)) {
    // Without O_NONBLOCK, opening a pipe waits for somebody to write to it. On regular files it has no effect.
    do fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (fd_ < 0 && errno == EINTR);
    if (fd_ < 0) detail::throw_file_error("read", path_, errno);
    try {
      opened_ = now();
    } catch (...) {
      ::close(fd_);
      throw;
    }
  }
  input_file(input_file&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), opened_(other.opened_) {}
  input_file& operator=(input_file&&) = delete;
  ~input_file() {
    if (fd_ >= 0) ::close(fd_);
  }

  const std::filesystem::path& path() const noexcept { return path_; }
  /// Bytes when it was opened.
  std::int64_t size() const noexcept { return opened_.size; }

  /// Reads the bytes from `offset` on. Errors: `io_error` with the offset if they are not there.
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

  /// Errors: `io_error` if the file has another size or time of modification than when it was opened. A write that
  /// leaves the size as it is and comes within one tick of the file system's clock (some milliseconds) after another is
  /// not seen.
  void require_unchanged() const {
    const state found = now();
    if (found.size != opened_.size)
      throw io_error("heddle: '" + path_.string() + "' had " + std::to_string(opened_.size) +
                     " bytes when it was opened, now " + std::to_string(found.size) +
                     ": it was written to while it was read");
    if (found.seconds != opened_.seconds || found.nanoseconds != opened_.nanoseconds)
      throw io_error("heddle: '" + path_.string() +
                     "' has another time of modification than when it was opened: it was written to while it was read");
  }

 private:
  struct state {
    std::int64_t size = 0, seconds = 0, nanoseconds = 0;
  };

  state now() const {
    struct ::stat about{};
    if (::fstat(fd_, &about) != 0) detail::throw_file_error("read", path_, errno);
    if (!S_ISREG(about.st_mode)) throw io_error("heddle: '" + path_.string() + "' is no file with a size");
    return {static_cast<std::int64_t>(about.st_size), static_cast<std::int64_t>(about.st_mtim.tv_sec),
            static_cast<std::int64_t>(about.st_mtim.tv_nsec)};
  }

  std::filesystem::path path_;
  int fd_ = -1;
  state opened_;
};

}  // namespace heddle::inline v0::io
