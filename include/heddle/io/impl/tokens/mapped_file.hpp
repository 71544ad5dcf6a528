// heddle/io/impl/tokens/mapped_file.hpp: bodies of heddle/io/tokens/mapped_file.hpp.
#pragma once

#include <heddle/io/tokens/mapped_file.hpp>
#include <heddle/io/durable_file.hpp>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <span>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace heddle::inline v0::io {

HEDDLE_INLINE mapped_file::mapped_file(const std::filesystem::path& path) {
  const int fd = detail::open_to_read(path, detail::links::followed);
  struct stat s{};
  if (::fstat(fd, &s) != 0 || s.st_size == 0) {
    ::close(fd);
    return;
  }
  const auto size = static_cast<std::size_t>(s.st_size);
  void* const at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int code = errno;
  ::close(fd);
  if (at == MAP_FAILED) detail::throw_file_error("map", path, code);
  bytes_ = {static_cast<const std::byte*>(at), size};
}

HEDDLE_INLINE mapped_file::~mapped_file() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace heddle::inline v0::io
