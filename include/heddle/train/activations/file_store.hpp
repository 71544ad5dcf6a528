// heddle/train/activations/file_store.hpp: a store in files, written and read by threads.
#pragma once

#include <heddle/train/activations/store_files.hpp>
#include <heddle/train/activations/threaded_store.hpp>

#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::inline v0::activations {

/// Files as a device: plain system calls, past the page cache where that is possible.
class file_device {
 public:
  using place = store_files::part;

  explicit file_device(const store_options& options) : files_(options) {}

  place prepare(std::int64_t bytes) { return files_.take(bytes); }
  void release(const place& p) { files_.give(p); }
  std::int64_t write(const place& p, std::span<const std::byte> bytes) {
    return move(p, bytes.data(), bytes.size(), "writing", [](const store_files::piece& at, const std::byte* from) {
      const file_size_signal_off no_signal;
      return ::pwrite(at.descriptor, from, at.bytes, at.offset);
    });
  }
  std::int64_t read(const place& p, std::span<std::byte> bytes) {
    return move(p, bytes.data(), bytes.size(), "reading", [](const store_files::piece& at, std::byte* to) {
      return ::pread(at.descriptor, to, at.bytes, at.offset);
    });
  }
  store_files& files() noexcept { return files_; }
  const store_files& files() const noexcept { return files_; }

 private:
  template <class Byte, class Call>
  std::int64_t move(const place& p, Byte* memory, std::size_t bytes, const char* what, Call&& call) {
    std::int64_t direct = 0;
    const store_files::pieces all = files_.pieces_of(p, memory, bytes);
    for (int i = 0; i < all.count; ++i) {
      store_files::piece at = all.what[static_cast<std::size_t>(i)];
      while (at.bytes > 0) {
        const bool past_cache = at.direct;
        const ssize_t n = call(at, memory + at.begin);
        if (const int code = files_.advance(p, at, n < 0 ? -errno : n); code != 0) files_.refuse(p, what, code);
        if (n > 0 && past_cache) direct += n;
      }
    }
    return direct;
  }

  store_files files_;
};

/// A store in files.
using file_store = threaded_store<file_device>;

}  // namespace heddle::inline v0::activations
