// heddle/io/durable_file.hpp: writing files so that they are on the disk when we say so.
#pragma once

#include <heddle/core/config.hpp>
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

/// Reads objects that have names, from somewhere else than a file: see `store`. Errors: `io_error`.
class object_reader {
 public:
  virtual void read(const std::string& name, std::int64_t offset, std::span<std::byte> out) const = 0;

 protected:
  ~object_reader() = default;
};
/// Takes an object front to back. It is there when `finish` returns; without, it never is. Errors: `io_error`.
class object_writer {
 public:
  object_writer() = default;
  object_writer(const object_writer&) = delete;
  object_writer& operator=(const object_writer&) = delete;
  virtual ~object_writer() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
  virtual void finish() = 0;
};

namespace detail {
[[noreturn]] inline void throw_file_error(const char* what, const std::filesystem::path& path, int code) {
  throw io_error(std::string("heddle: cannot ") + what + " '" + path.string() + "': " + write_error_text(code));
}
inline void make_folder(const std::filesystem::path& folder) {
  std::error_code ec;
  std::filesystem::create_directories(folder, ec);
  if (ec) throw io_error("heddle: cannot create the folder '" + folder.string() + "': " + ec.message());
}

// Whether a file may be reached through a symbolic link as the last name of its path. The files of a save may not.
enum class links : std::uint8_t { followed, refused };

// What stands under a name, a link not followed: "a folder", "a FIFO", ...; empty where nothing does.
HEDDLE_INLINE std::string kind_of_entry(const std::filesystem::path& path);
// The error for an entry that is not what is needed there. `needed`: "file" or "folder".
[[noreturn]] HEDDLE_INLINE void throw_wrong_entry(const char* what, const std::filesystem::path& path,
                                                  const char* needed, int code);
// A descriptor of a regular file, to read. Never waits for the other end of a FIFO.
HEDDLE_INLINE int open_to_read(const std::filesystem::path& path, links how);
// The bytes of a regular file that is not reached through a link. Errors: `io_error` that names what stands there.
HEDDLE_INLINE std::int64_t bytes_of_file(const std::filesystem::path& path);
// Makes a new file. A regular file of that name is removed first: with other names (hard links) its contents live on.
HEDDLE_INLINE int create_file(const std::filesystem::path& path);

// A file that is open for reading; POSIX's calls, for <fstream> costs every program that saves a tenth of a second.
class file_to_read {
 public:
  file_to_read(const std::filesystem::path& path, links how) : path_(path), fd_(open_to_read(path, how)) {}
  // An object, as if it were a file. `shown`: in messages.
  file_to_read(const object_reader& from, std::string name, std::filesystem::path shown)
      : path_(std::move(shown)), fd_(-1), from_(&from), name_(std::move(name)) {}
  file_to_read(const file_to_read&) = delete;
  file_to_read& operator=(const file_to_read&) = delete;
  ~file_to_read() {
    if (fd_ >= 0) ::close(fd_);
  }

  // As many bytes from `offset` of a file as there are, at most those of `bytes`; returns how many.
  std::size_t read(std::span<std::byte> bytes, std::int64_t offset) const;
  // All of them. Errors: `io_error` if they are not there.
  void require(std::span<std::byte> bytes, std::int64_t offset) const;

 private:
  std::filesystem::path path_;
  int fd_;
  const object_reader* from_ = nullptr;
  std::string name_{};
};
}  // namespace detail

/// A new file that is written front to back. Keeps count of its bytes and their checksum. `close` returns only when the
/// operating system says that the contents reached the device (fsync). Without `close`, what was written so far is left
/// behind as it is. POSIX.
/// Errors: `io_error` with the path and the system's text (disk full, no permission, the limit of file sizes, ...).
class durable_file {
 public:
  /// Creates the file. A regular file of that name is replaced; a link, a FIFO, a device or a folder is an error that
  /// names it, and stays as it is.
  explicit durable_file(std::filesystem::path path) : path_(std::move(path)), fd_(detail::create_file(path_)) {}
  /// Writes to an object, which must outlive this, as if it were a file. `shown`: in messages.
  durable_file(object_writer& to, std::filesystem::path shown) : path_(std::move(shown)), to_(&to) {}
  durable_file(durable_file&& other) noexcept
      : path_(std::move(other.path_)),
        fd_(std::exchange(other.fd_, -1)),
        to_(std::exchange(other.to_, nullptr)),
        bytes_(other.bytes_),
        sum_(other.sum_) {}
  durable_file& operator=(durable_file&&) = delete;
  ~durable_file() {
    if (fd_ >= 0) ::close(fd_);
  }

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span<const char>(text))); }

  void close();

  const std::filesystem::path& path() const noexcept { return path_; }
  std::int64_t bytes() const noexcept { return bytes_; }
  std::uint64_t checksum() const noexcept { return sum_.value(); }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  object_writer* to_ = nullptr;
  std::int64_t bytes_ = 0;
  checksum64 sum_;
};

/// Makes the names in a folder durable: what was created, renamed or removed in it. Errors: `io_error`.
HEDDLE_INLINE void sync_folder(const std::filesystem::path& folder);

/// Reads `count` bytes from `offset` of a regular file. Errors: `io_error` with the path if they are not there.
HEDDLE_INLINE std::vector<std::byte> read_bytes(const std::filesystem::path& path, std::int64_t offset,
                                                std::int64_t count, detail::links how = detail::links::followed);

/// The size of a file and the checksum of its contents.
struct file_digest {
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;
};
/// The size and checksum of a regular file. Errors: `io_error` if it cannot be read.
HEDDLE_INLINE file_digest digest(const std::filesystem::path& path, detail::links how = detail::links::followed);

namespace detail {
// Writes under another name, makes it durable, and gives it its name: readers see all of it or none.
template <class Fill>
void write_whole_file(const std::filesystem::path& path, Fill&& fill) {
  std::filesystem::path partial = path;
  partial += ".partial";
  try {
    durable_file file(partial);
    fill(file);
    file.close();
    std::error_code ec;
    std::filesystem::rename(partial, path, ec);
    if (ec)
      throw io_error("heddle: cannot rename '" + partial.string() + "' to '" + path.string() + "': " + ec.message());
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    throw;
  }
  sync_folder(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}
}  // namespace detail

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/durable_file.hpp>
#endif
