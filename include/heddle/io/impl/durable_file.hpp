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
#include <fstream>
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

HEDDLE_INLINE std::vector<std::byte> read_bytes(const std::filesystem::path& path, std::int64_t offset,
                                                std::int64_t count) {
  std::ifstream in(path, std::ios::binary);
  if (!in) detail::throw_file_error("read", path, errno);
  std::vector<std::byte> bytes;
  try {
    bytes.resize(static_cast<std::size_t>(count));
  } catch (const std::exception&) {  // bad_alloc, length_error
    throw io_error("heddle: no memory for " + std::to_string(count) + " bytes of '" + path.string() + "'");
  }
  in.seekg(static_cast<std::streamoff>(offset));
  if (count > 0) in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(count));
  if (!in || in.gcount() != (count > 0 ? count : 0))
    throw io_error("heddle: '" + path.string() + "' ends early: " + std::to_string(count) + " bytes at " +
                   std::to_string(offset) + " expected");
  return bytes;
}

HEDDLE_INLINE file_digest digest(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) detail::throw_file_error("read", path, errno);
  std::vector<char> piece(std::size_t{1} << 20);
  checksum64 sum;
  file_digest d;
  while (in) {
    in.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    const auto n = static_cast<std::size_t>(in.gcount());
    sum.update(std::as_bytes(std::span<const char>(piece.data(), n)));
    d.bytes += static_cast<std::int64_t>(n);
  }
  if (in.bad()) detail::throw_file_error("read", path, errno);
  d.checksum = sum.value();
  return d;
}

}  // namespace heddle::inline v0::io
