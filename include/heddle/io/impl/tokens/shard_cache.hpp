// heddle/io/impl/tokens/shard_cache.hpp: bodies of heddle/io/tokens/shard_cache.hpp.
#pragma once

#include <heddle/io/tokens/shard_cache.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/file_descriptor.hpp>
#include <heddle/io/checksum.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
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
namespace detail {

// Of the files that are a cache's own: no others are counted, replaced or removed.
inline constexpr const char* shard_suffix = ".heddle-shard";

// Holds a lock that other threads and processes of the node wait for.
class node_lock {
 public:
  explicit node_lock(const std::filesystem::path& path)
      : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    int failed = file_.file() < 0 ? -1 : 0;
    while (failed == 0 && (failed = ::flock(file_.file(), LOCK_EX)) != 0 && errno == EINTR) failed = 0;
    if (failed != 0) throw_file_error("lock", path, errno);
  }

 private:
  file_descriptor file_;
};

}  // namespace detail

HEDDLE_INLINE void shard_cache::prepare() {
  if (options_.most_bytes < 1 || options_.mapped < 1)
    throw config_error("heddle: shard_cache: most_bytes and mapped are 1 or more, not " +
                       std::to_string(options_.most_bytes) + " and " + std::to_string(options_.mapped));
  if (!options_.folder.empty()) detail::make_folder(options_.folder);
}

HEDDLE_INLINE std::int64_t shard_cache::shards_read() const noexcept {
  const std::lock_guard lock(mutex_);
  return read_count_;
}

HEDDLE_INLINE std::vector<std::byte> shard_cache::read_all(const std::string& key, std::int64_t most) const {
  const std::uint64_t n = size_(key);
  if (n > static_cast<std::uint64_t>(most))
    throw io_error("heddle: '" + key + "' has " + std::to_string(n) + " bytes; expected at most " +
                   std::to_string(most));
  std::vector<std::byte> bytes(static_cast<std::size_t>(n));
  read_(key, 0, bytes);
  return bytes;
}

HEDDLE_INLINE std::shared_ptr<const mapped_file> shard_cache::keep(const std::string& name, mapped_file file) {
  auto shared = std::make_shared<const mapped_file>(std::move(file));
  const std::lock_guard lock(mutex_);
  recent_.emplace_front(name, shared);
  while (std::ssize(recent_) > options_.mapped) recent_.pop_back();
  return shared;
}

HEDDLE_INLINE std::shared_ptr<const mapped_file> shard_cache::get(const std::string& name, const std::string& key,
                                                                  std::int64_t bytes, const decoder& decode) {
  {
    const std::lock_guard lock(mutex_);
    const auto there = std::find_if(recent_.begin(), recent_.end(), [&](const auto& r) { return r.first == name; });
    if (there != recent_.end()) {
      recent_.splice(recent_.begin(), recent_, there);
      return recent_.front().second;
    }
  }
  const auto of_size = [&](mapped_file file, const std::string& where) {
    if (std::ssize(file.bytes()) != bytes)
      throw io_error("heddle: '" + where + "' has " + std::to_string(file.bytes().size()) + " bytes; expected " +
                     std::to_string(bytes));
    return keep(name, std::move(file));
  };
  if (local_ && !decode) return of_size(mapped_file(local_(key)), local_(key).string());
  constexpr const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
  if (options_.folder.empty() || name.empty() || name[0] == '.' || name.find_first_not_of(plain) != std::string::npos)
    throw config_error("heddle: shard_cache: a shard '" + name + "' in the folder '" + options_.folder.string() +
                       "'; expected a folder, and a name of letters, digits, dots, dashes and underscores");
  const std::filesystem::path path = options_.folder / (name + detail::shard_suffix);
  const checksum64 sum = checksum64().update(std::as_bytes(std::span(name)));
  // One of a few locks, which stay: a lock that is removed is none for those who wait for it.
  const detail::node_lock lock(options_.folder / (".lock-" + std::to_string(sum.value() % 64)));
  for (int tries = 1;; ++tries) {
    std::error_code ec;
    const auto there = std::filesystem::file_size(path, ec);
    if (ec || there != static_cast<std::uint64_t>(bytes)) {
      bring(path, key, bytes, decode);
      shrink(path);
    } else {
      ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // used now; if that fails, it goes earlier
    }
    try {
      return of_size(mapped_file(path), path.string());
    } catch (const io_error&) {  // another process may have removed it meanwhile, to make room
      if (tries == 100 || std::filesystem::exists(path, ec)) throw;
    }
  }
}

HEDDLE_INLINE void shard_cache::bring(const std::filesystem::path& to, const std::string& key, std::int64_t bytes,
                                      const decoder& decode) {
  constexpr std::uint64_t piece = std::uint64_t{8} << 20;
  const std::filesystem::path part = to.parent_path() / ("." + to.filename().string() + ".part");
  const int created = detail::create_file(part);
  const file_descriptor file(created);
  const auto write = [&](std::span<const std::byte> from) {
    while (!from.empty()) {
      const ssize_t n = ::write(file.file(), from.data(), from.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) detail::throw_file_error("write", part, errno);
      from = from.subspan(static_cast<std::size_t>(n));
    }
  };
  if (decode) {
    write(decode(read_all(key, (std::numeric_limits<std::int64_t>::max)()), bytes));
  } else {
    const std::uint64_t size = size_(key);
    if (size != static_cast<std::uint64_t>(bytes))
      throw io_error("heddle: '" + key + "' has " + std::to_string(size) + " bytes; expected " + std::to_string(bytes));
    std::vector<std::byte> room(static_cast<std::size_t>((std::min)(size, piece)));
    for (std::uint64_t at = 0; at < size; at += piece) {
      const auto now = std::span(room).first(static_cast<std::size_t>((std::min)(piece, size - at)));
      read_(key, at, now);
      write(now);
    }
  }
  std::filesystem::rename(part, to);
  const std::lock_guard lock(mutex_);
  ++read_count_;
}

HEDDLE_INLINE void shard_cache::shrink(const std::filesystem::path& but) const {
  struct kept {
    std::filesystem::file_time_type used;
    std::filesystem::path path;
    std::int64_t bytes;
  };
  const detail::node_lock lock(options_.folder / ".lock-of-removal");
  std::vector<kept> files;
  std::int64_t all = 0;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(options_.folder)) {
    const std::string file = entry.path().filename().string();
    if (file[0] == '.' || !file.ends_with(detail::shard_suffix) || !entry.is_regular_file(ec)) continue;
    const auto used = entry.last_write_time(ec);
    const auto bytes = ec ? 0 : entry.file_size(ec);
    if (ec) continue;  // another has removed it
    all += static_cast<std::int64_t>(bytes);
    if (entry.path() != but) files.push_back({used, entry.path(), static_cast<std::int64_t>(bytes)});
  }
  std::sort(files.begin(), files.end(), [](const kept& a, const kept& b) { return a.used < b.used; });
  for (auto f = files.begin(); f != files.end() && all > options_.most_bytes; ++f) {
    std::filesystem::remove(f->path, ec);
    all -= f->bytes;
  }
}

}  // namespace heddle::inline v0::io
