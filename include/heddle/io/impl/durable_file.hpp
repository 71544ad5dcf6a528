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
#include <sys/stat.h>
#include <unistd.h>

namespace heddle::inline v0::io {
namespace detail {

HEDDLE_INLINE std::string kind_of_entry(const std::filesystem::path& path) {
  struct stat s{};
  if (::lstat(path.c_str(), &s) != 0) return {};
  switch (s.st_mode & S_IFMT) {
    case S_IFREG:
      return "a regular file";
    case S_IFDIR:
      return "a folder";
    case S_IFLNK:
      return "a symbolic link";
    case S_IFIFO:
      return "a FIFO";
    case S_IFSOCK:
      return "a socket";
    default:
      return "a device";
  }
}

HEDDLE_INLINE void throw_wrong_entry(const char* what, const std::filesystem::path& path, const char* needed,
                                     int code) {
  const std::string kind = kind_of_entry(path);
  if (kind.empty() || kind == (needed == std::string_view("file") ? "a regular file" : "a folder"))
    throw_file_error(what, path, code);
  throw io_error(std::string("heddle: cannot ") + what + " '" + path.string() + "': it is " + kind + ", not a " +
                 needed + (kind == "a symbolic link" ? "; links are not followed here" : ""));
}

HEDDLE_INLINE int open_to_read(const std::filesystem::path& path, links how) {
  const int flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC | (how == links::refused ? O_NOFOLLOW : 0);
  int fd = -1;
  do fd = ::open(path.c_str(), flags);
  while (fd < 0 && errno == EINTR);
  int code = errno;
  struct stat s{};
  if (fd >= 0) {
    if (::fstat(fd, &s) == 0 && S_ISREG(s.st_mode)) return fd;
    code = S_ISDIR(s.st_mode) ? EISDIR : EINVAL;
    ::close(fd);
  }
  if (how == links::followed && kind_of_entry(path) == "a symbolic link") throw_file_error("read", path, code);
  throw_wrong_entry("read", path, "file", code);
}

HEDDLE_INLINE std::int64_t bytes_of_file(const std::filesystem::path& path) {
  struct stat s{};
  if (::lstat(path.c_str(), &s) != 0) throw_file_error("read", path, errno);
  if (!S_ISREG(s.st_mode)) throw_wrong_entry("read", path, "file", EINVAL);
  return static_cast<std::int64_t>(s.st_size);
}

HEDDLE_INLINE int create_file(const std::filesystem::path& path) {
  // Twice and no more: whoever else makes a file of this name again and again is no killed attempt.
  for (int attempt = 0;; ++attempt) {
    int fd = -1;
    do fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    while (fd < 0 && errno == EINTR);
    if (fd >= 0) return fd;
    const int code = errno;
    if (code != EEXIST || attempt == 2 || kind_of_entry(path) != "a regular file")
      throw_wrong_entry("create", path, "file", code);
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw_file_error("replace", path, errno);
  }
}

}  // namespace detail
}  // namespace heddle::inline v0::io

namespace heddle::inline v0::io {

HEDDLE_INLINE void durable_file::write(std::span<const std::byte> bytes) {
  sum_.update(bytes);
  bytes_ += static_cast<std::int64_t>(bytes.size());
  if (to_ != nullptr) {
    to_->write(bytes);
    return;
  }
  const file_size_signal_off no_signal;
  while (!bytes.empty()) {
    const ::ssize_t n = ::write(fd_, bytes.data(), (std::min)(bytes.size(), std::size_t{1} << 30));
    if (n < 0 && errno != EINTR) detail::throw_file_error("write", path_, errno);
    if (n > 0) bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

HEDDLE_INLINE void durable_file::close() {
  if (object_writer* const to = std::exchange(to_, nullptr); to != nullptr) to->finish();
  const int fd = std::exchange(fd_, -1);
  if (fd < 0) return;
  const int synced = ::fsync(fd);
  const int code = errno;
  const int closed = ::close(fd);
  if (synced != 0) detail::throw_file_error("flush", path_, code);
  if (closed != 0) detail::throw_file_error("close", path_, errno);
}

HEDDLE_INLINE void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) detail::throw_file_error("open the folder", folder, errno);
  const int synced = ::fsync(fd);
  const int code = errno;
  ::close(fd);
  if (synced != 0 && code != EINVAL) detail::throw_file_error("flush the folder", folder, code);
}

namespace detail {
HEDDLE_INLINE std::size_t file_to_read::read(std::span<std::byte> bytes, std::int64_t offset) const {
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
HEDDLE_INLINE void file_to_read::require(std::span<std::byte> bytes, std::int64_t offset) const {
  if (from_ != nullptr) {
    from_->read(name_, offset, bytes);
    return;
  }
  if (offset < 0 || read(bytes, offset) != bytes.size())
    throw io_error("heddle: '" + path_.string() + "' ends early: " + std::to_string(bytes.size()) + " bytes at " +
                   std::to_string(offset) + " expected");
}
}  // namespace detail

HEDDLE_INLINE std::vector<std::byte> read_bytes(const std::filesystem::path& path, std::int64_t offset,
                                                std::int64_t count, detail::links how) {
  const detail::file_to_read in(path, how);
  std::vector<std::byte> bytes;
  try {
    bytes.resize(static_cast<std::size_t>(count));
  } catch (const std::exception&) {  // bad_alloc, length_error
    throw io_error("heddle: no memory for " + std::to_string(count) + " bytes of '" + path.string() + "'");
  }
  in.require(bytes, offset);
  return bytes;
}

HEDDLE_INLINE file_digest digest(const std::filesystem::path& path, detail::links how) {
  const detail::file_to_read in(path, how);
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
