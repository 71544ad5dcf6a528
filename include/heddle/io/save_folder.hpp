// heddle/io/save_folder.hpp: claims a writable folder for the saves of one run.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/file_size_signal.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/save_names.hpp>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace heddle::inline v0::io {

namespace detail {

// "process 12 on host": tells processes apart, on all machines of a run.
inline std::string this_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = 0;
  return "process " + std::to_string(::getpid()) + " on " + host.data();
}

}  // namespace detail

/// Whether saves can be written to `folder`, which is made if it is not there: a small file is created, written,
/// flushed to the device and removed. `number` tells it from those of others who try at the same time.
/// Errors: `io_error` with the folder, the path and the system's text.
HEDDLE_INLINE void probe_folder(const std::filesystem::path& folder, std::int64_t number = 0);

/// A folder of saves that belongs to one run while this object lives: the file `.lock` in it is locked (flock), which
/// ends with the process, however that ends. For one rank to make, before the first step: the one that commits.
/// Movable. An empty one holds nothing.
class save_folder {
 public:
  save_folder() = default;
  /// Makes the folder if it is not there, claims it, removes what attempts that were killed, or had no room, wrote
  /// there (step-N.partial), and probes it. `folder` itself may be a link; nothing in it is reached through one.
  /// Errors: `io_error` if another run, of this process or another, is saving there, or nothing can be saved; it names
  /// what is no file or folder and stands where a save will write one.
  explicit save_folder(const std::filesystem::path& folder);
  save_folder(save_folder&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), locked_(std::exchange(other.locked_, false)) {}
  save_folder& operator=(save_folder&& other) noexcept {
    if (this != &other) {
      release();
      descriptor_ = std::exchange(other.descriptor_, -1);
      locked_ = std::exchange(other.locked_, false);
    }
    return *this;
  }
  ~save_folder() { release(); }

  bool is_held() const noexcept { return descriptor_ >= 0; }
  /// Whether others are kept out: false where the file system has no locks, and the folder was only probed.
  bool is_locked() const noexcept { return locked_; }
  /// Lets others have the folder. The file `.lock` stays: removing it would let two runs lock two files of one name.
  void release() noexcept {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
    locked_ = false;
  }

 private:
  void claim(const std::filesystem::path& folder, const std::filesystem::path& path);

  int descriptor_ = -1;
  bool locked_ = false;
};

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/save_folder.hpp>
#endif
