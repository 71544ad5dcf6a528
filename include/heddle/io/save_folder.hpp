// heddle/io/save_folder.hpp: claims a writable folder for the saves of one run.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/file_size_signal.hpp>
#include <heddle/io/durable_file.hpp>

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
inline void probe_folder(const std::filesystem::path& folder, std::int64_t number = 0) {
  const std::filesystem::path path = folder / (".probe-" + std::to_string(::getpid()) + "-" + std::to_string(number));
  std::error_code ignored;
  try {
    detail::make_folder(folder);
    durable_file file(path);
    file.write(std::vector<std::byte>(4096));
    file.close();
    sync_folder(folder);
  } catch (const io_error& e) {
    std::filesystem::remove(path, ignored);
    const std::string why = e.what();
    throw io_error("heddle: nothing can be saved in '" + folder.string() + "': " + why.substr(why.find(' ') + 1));
  }
  std::error_code ec;
  if (!std::filesystem::remove(path, ec) && ec)
    throw io_error("heddle: saves in '" + folder.string() + "' could not be removed again: '" + path.string() +
                   "': " + ec.message());
}

/// A folder of saves that belongs to one run while this object lives: the file `.lock` in it is locked (flock), which
/// ends with the process, however that ends. For one rank to make, before the first step: the one that commits.
/// Movable. An empty one holds nothing.
class save_folder {
 public:
  save_folder() = default;
  /// Makes the folder if it is not there, claims it and probes it.
  /// Errors: `io_error` if another run, of this process or another, is saving there, or nothing can be saved.
  explicit save_folder(const std::filesystem::path& folder) {
    detail::make_folder(folder);
    const std::filesystem::path path = folder / ".lock";
    do descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) detail::throw_file_error("create", path, errno);
    try {
      claim(folder, path);
      probe_folder(folder);
    } catch (...) {
      release();
      throw;
    }
  }
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
  void claim(const std::filesystem::path& folder, const std::filesystem::path& path) {
    int locked = 0;
    do locked = ::flock(descriptor_, LOCK_EX | LOCK_NB);
    while (locked != 0 && errno == EINTR);
    std::array<char, 300> text{};
    // Some file systems have no locks: Lustre unless it is mounted with flock, NFS without lockd.
    if (locked != 0 && (errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK)) return;
    if (locked != 0 && errno != EWOULDBLOCK) detail::throw_file_error("lock", path, errno);
    if (locked != 0) {
      const ::ssize_t n = ::pread(descriptor_, text.data(), text.size() - 1, 0);
      std::string who(text.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
      who = who.substr(0, who.find('\n'));
      throw io_error("heddle: '" + folder.string() + "': another run is saving here" +
                     (who.empty() ? "" : " (" + who + ")") + "; wait until it has ended, or give another folder");
    }
    locked_ = true;
    // Who it is, for the message of others; that it can be written is what the probe finds out.
    const heddle::detail::file_size_signal_off no_signal;
    const std::string who = detail::this_process() + "\n";
    if (::ftruncate(descriptor_, 0) == 0) static_cast<void>(::pwrite(descriptor_, who.data(), who.size(), 0) < 0);
  }

  int descriptor_ = -1;
  bool locked_ = false;
};

}  // namespace heddle::inline v0::io
