// heddle/io/impl/save_folder.hpp: bodies of heddle/io/save_folder.hpp.
#pragma once

#include <heddle/io/save_folder.hpp>
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
#include <sys/stat.h>
#include <unistd.h>

namespace heddle::inline v0::io {

HEDDLE_INLINE void probe_folder(const std::filesystem::path& folder, std::int64_t number) {
  const std::filesystem::path path = folder / (".probe-" + std::to_string(::getpid()) + "-" + std::to_string(number));
  std::error_code ignored;
  try {
    detail::make_folder(folder);
    durable_file file(path);
    file.write(std::vector<std::byte>(4096));
    file.close();
    sync_folder(folder);
  } catch (const io_error& e) {
    if (detail::kind_of_entry(path) == "a regular file") std::filesystem::remove(path, ignored);
    const std::string why = e.what();
    throw io_error("heddle: nothing can be saved in '" + folder.string() + "': " + why.substr(why.find(' ') + 1));
  }
  std::error_code ec;
  if (!std::filesystem::remove(path, ec) && ec)
    throw io_error("heddle: saves in '" + folder.string() + "' could not be removed again: '" + path.string() +
                   "': " + ec.message());
}

HEDDLE_INLINE save_folder::save_folder(const std::filesystem::path& folder) {
  detail::make_folder(folder);
  const std::filesystem::path path = folder / ".lock";
  do descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
  while (descriptor_ < 0 && errno == EINTR);
  struct stat s{};
  if (descriptor_ < 0 || ::fstat(descriptor_, &s) != 0 || !S_ISREG(s.st_mode)) {
    const int code = descriptor_ < 0 ? errno : EINVAL;
    release();
    detail::throw_wrong_entry("create", path, "file", code);
  }
  try {
    claim(folder, path);
    // What has no room for a save may have none because of these; nobody else is making one.
    if (locked_) detail::require_clear(folder);
    probe_folder(folder);
  } catch (...) {
    release();
    throw;
  }
}

HEDDLE_INLINE void save_folder::claim(const std::filesystem::path& folder, const std::filesystem::path& path) {
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
    who = who.substr(0, who.substr(0, 8) == "process " ? who.find('\n') : 0);
    throw io_error("heddle: '" + folder.string() + "': another run is saving here" +
                   (who.empty() ? "" : " (" + who + ")") + "; wait until it has ended, or give another folder");
  }
  locked_ = true;
  // Who it is, for the message of others; that it can be written is what the probe finds out.
  // A file of this name that says something else, or has other names (hard links), is the user's: it is locked, no
  // more.
  constexpr std::string_view head = "process ";
  struct stat s{};
  const ::ssize_t n = ::pread(descriptor_, text.data(), text.size() - 1, 0);
  const std::string_view there(text.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
  if (n < 0 || ::fstat(descriptor_, &s) != 0 || s.st_nlink > 1 || (n > 0 && there.substr(0, head.size()) != head))
    return;
  const file_size_signal_off no_signal;
  const std::string who = detail::this_process() + "\n";
  if (::ftruncate(descriptor_, 0) == 0) static_cast<void>(::pwrite(descriptor_, who.data(), who.size(), 0) < 0);
}

}  // namespace heddle::inline v0::io
