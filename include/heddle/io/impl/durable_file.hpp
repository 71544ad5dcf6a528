// heddle/io/impl/durable_file.hpp: bodies of heddle/io/durable_file.hpp.
#pragma once

#include <heddle/io/durable_file.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/file_size_signal.hpp>
#include <heddle/io/checksum.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>
#include <fcntl.h>
#include <unistd.h>

namespace heddle::inline v0::io {

HEDDLE_INLINE void durable_file::write(std::span<const std::byte> bytes) {
  sum_.update(bytes);
  bytes_ += static_cast<std::int64_t>(bytes.size());
  const heddle::detail::file_size_signal_off no_signal;
  while (!bytes.empty()) {
    const ::ssize_t n = ::write(fd_, bytes.data(), (std::min)(bytes.size(), std::size_t{1} << 30));
    if (n < 0 && errno != EINTR) detail::throw_file_error("write", path_, errno);
    if (n > 0) bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

HEDDLE_INLINE void durable_file::close() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0) return;
  const int synced = ::fsync(fd);
  const int code = errno;
  const int closed = ::close(fd);
  if (synced != 0) detail::throw_file_error("flush", path_, code);
  if (closed != 0) detail::throw_file_error("close", path_, errno);
}

HEDDLE_INLINE void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) detail::throw_file_error("open the folder", folder, errno);
  const int synced = ::fsync(fd);
  const int code = errno;
  ::close(fd);
  if (synced != 0 && code != EINVAL) detail::throw_file_error("flush the folder", folder, code);
}

namespace detail {
/// A file that is open for reading; POSIX's calls, for <fstream> costs every program that saves a tenth of a second.
class file_to_read {
 public:
  explicit file_to_read(const std::filesystem::path& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw_file_error("read", path, errno);
  }
  file_to_read(const file_to_read&) = delete;
  file_to_read& operator=(const file_to_read&) = delete;
  ~file_to_read() { ::close(fd_); }

  /// As many bytes from `offset` as there are, at most those of `bytes`; returns how many.
  std::size_t read(std::span<std::byte> bytes, std::int64_t offset) const {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const auto n = ::pread(fd_, bytes.data() + done, bytes.size() - done,
                             static_cast<::off_t>(offset) + static_cast<::off_t>(done));
      if (n < 0 && errno != EINTR) throw_file_error("read", path_, errno);
      if (n == 0) break;
      if (n > 0) done += static_cast<std::size_t>(n);
    }
    return done;
  }

 private:
  const std::filesystem::path& path_;
  int fd_;
};
}  // namespace detail

HEDDLE_INLINE std::vector<std::byte> read_bytes(const std::filesystem::path& path, std::int64_t offset,
                                                std::int64_t count) {
  const detail::file_to_read in(path);
  std::vector<std::byte> bytes;
  try {
    bytes.resize(static_cast<std::size_t>(count));
  } catch (const std::exception&) {  // bad_alloc, length_error
    throw io_error("heddle: no memory for " + std::to_string(count) + " bytes of '" + path.string() + "'");
  }
  if (offset < 0 || in.read(bytes, offset) != bytes.size())
    throw io_error("heddle: '" + path.string() + "' ends early: " + std::to_string(count) + " bytes at " +
                   std::to_string(offset) + " expected");
  return bytes;
}

HEDDLE_INLINE file_digest digest(const std::filesystem::path& path) {
  const detail::file_to_read in(path);
  std::vector<std::byte> piece(std::size_t{1} << 20);
  checksum64 sum;
  file_digest d;
  while (const std::size_t n = in.read(piece, d.bytes)) {
    sum.update(std::span<const std::byte>(piece).first(n));
    d.bytes += static_cast<std::int64_t>(n);
  }
  d.checksum = sum.value();
  return d;
}

}  // namespace heddle::inline v0::io
