// heddle/train/activations/store_files.hpp: preallocated files whose parts are reused.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/file_descriptor.hpp>
#include <heddle/core/file_size_signal.hpp>
#include <heddle/core/text.hpp>
#include <heddle/train/activations/store.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace heddle::inline v0::activations {

/// One file in each directory, without a name there: what it holds is gone when the process ends, however it ends.
/// Parts of it are handed out and taken back; a file grows when no part is free, by disk space that is allocated then,
/// so that a full disk is found before anything is written. Parts begin at whole pages of 4096 bytes.
/// `take`, `give` and `size` on one thread; `pieces_of` on any.
/// Errors: `io_error` naming the directory and the system's reason.
class store_files {
 public:
  static constexpr std::int64_t page = 4096;

  struct part {
    int file = -1;
    std::int64_t offset = 0;
    std::int64_t capacity = 0;
  };
  /// One read or write call. The first may go past the page cache, the second is the rest of less than a page.
  struct piece {
    int descriptor = -1;
    std::int64_t offset = 0;  ///< in the file
    std::size_t begin = 0;    ///< in the memory
    std::size_t bytes = 0;
    bool direct = false;
  };
  struct pieces {
    std::array<piece, 2> what{};
    int count = 0;
  };

  explicit store_files(const store_options& options) {
    std::vector<std::string> directories = options.directories;
    if (directories.empty()) {
      std::error_code none;
      directories.push_back(std::filesystem::temp_directory_path(none).string());
      if (none) {  // the empty path would be the current directory
        throw io_error(text_of({"heddle: there is no directory for temporary files, to have activations in: ",
                                none.message(), "; name one in store_options::directories"}));
      }
    }
    for (const std::string& d : directories) files_.emplace_back(d, options.direct);
  }

  part take(std::int64_t bytes) {
    const std::int64_t capacity = (bytes + page - 1) / page * page;
    for (std::size_t i = free_.size(); i-- > 0;)
      if (free_[i].capacity == capacity) {
        const part p = free_[i];
        free_[i] = free_.back();
        free_.pop_back();
        return p;
      }
    const std::size_t f = next_++ % files_.size();
    file& here = files_[f];
    here.grow(here.size + capacity);
    const part p{static_cast<int>(f), here.size, capacity};
    here.size += capacity;
    return p;
  }
  void give(const part& p) { free_.push_back(p); }

  /// The calls that move `bytes` between this memory and this part.
  pieces pieces_of(const part& p, const std::byte* memory, std::size_t bytes) const {
    const file& f = files_[static_cast<std::size_t>(p.file)];
    pieces all;
    std::size_t whole = 0;
    if (f.direct.file() >= 0 && f.goes_direct.load(std::memory_order_relaxed) &&
        reinterpret_cast<std::uintptr_t>(memory) % page == 0)
      whole = bytes / page * page;
    if (whole > 0) all.what[static_cast<std::size_t>(all.count++)] = {f.direct.file(), p.offset, 0, whole, true};
    if (whole < bytes)
      all.what[static_cast<std::size_t>(all.count++)] = {f.plain.file(), p.offset + static_cast<std::int64_t>(whole),
                                                         whole, bytes - whole, false};
    return all;
  }
  /// The same piece through the page cache, now and from now on: the file system refused it.
  piece without_direct(const part& p, piece refused) noexcept {
    file& f = files_[static_cast<std::size_t>(p.file)];
    f.goes_direct.store(false, std::memory_order_relaxed);
    refused.descriptor = f.plain.file();
    refused.direct = false;
    return refused;
  }
  /// What a call for `at` came to, in bytes or as a negative errno: `at` becomes what is left to do, no bytes if
  /// nothing is. Returns 0, or the errno of a call that has failed for good.
  int advance(const part& p, piece& at, std::int64_t result) noexcept {
    if (result == -EINTR || result == -EAGAIN) return 0;
    if (result == -EINVAL && at.direct) {
      at = without_direct(p, at);
      return 0;
    }
    if (result < 0) return static_cast<int>(-result);
    if (result == 0) return EIO;  // the file ends where it should not
    at.offset += result;
    at.begin += static_cast<std::size_t>(result);
    at.bytes -= static_cast<std::size_t>(result);
    // What is left of a short direct call may not be aligned any more.
    if (at.direct && at.bytes > 0 && result % page != 0) at = without_direct(p, at);
    return 0;
  }
  /// Whether any file is read and written past the page cache.
  bool direct() const noexcept {
    for (const file& f : files_)
      if (f.direct.file() >= 0 && f.goes_direct.load(std::memory_order_relaxed)) return true;
    return false;
  }
  /// Bytes of all files.
  std::int64_t size() const noexcept {
    std::int64_t n = 0;
    for (const file& f : files_) n += f.size;
    return n;
  }
  [[noreturn]] void refuse(const part& p, const char* what, int code) const {
    files_[static_cast<std::size_t>(p.file)].refuse(what, code);
  }

 private:
  using handle = file_descriptor;
  struct file {
    std::string directory;
    handle plain{};
    handle direct{};
    std::atomic<bool> goes_direct{true};
    std::int64_t size = 0;

    file(const std::string& in, bool want_direct) : directory(in) {
      std::string name = (std::filesystem::path(in) / "heddle-activations-XXXXXX").string();
      plain = handle(::mkostemp(name.data(), O_CLOEXEC));
      if (plain.file() < 0) refuse("making a file for activations", errno);
#if defined(O_DIRECT)
      if (want_direct) direct = handle(::open(name.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT));
#else
      static_cast<void>(want_direct);
#endif
      ::unlink(name.c_str());
    }
    void grow(std::int64_t to) const {
      const file_size_signal_off no_signal;
      int code = 0;
      do {
        code = ::posix_fallocate(plain.file(), size, to - size);
      } while (code == EINTR);
      if (code == EINVAL || code == EOPNOTSUPP) code = ::ftruncate(plain.file(), to) == 0 ? 0 : errno;
      if (code == 0) return;
      // A full disk may have given what it had: others need it now.
      if (::ftruncate(plain.file(), size) != 0) code = errno;
      std::string what = "making room for " + std::to_string(to - size) + " bytes of activations behind ";
      what += std::to_string(size);
      refuse(what.c_str(), code);
    }
    [[noreturn]] void refuse(const char* what, int code) const {
      throw io_error(text_of({"heddle: ", what, " in ", directory, " failed: ", write_error_text(code)}));
    }
  };

  std::deque<file> files_;
  std::vector<part> free_;
  std::size_t next_ = 0;
};

}  // namespace heddle::inline v0::activations
