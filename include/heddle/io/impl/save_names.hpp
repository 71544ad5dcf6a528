// heddle/io/impl/save_names.hpp: bodies of heddle/io/save_names.hpp.
#pragma once

#include <heddle/io/save_names.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/durable_file.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace heddle::inline v0::io::detail {

HEDDLE_INLINE save_name parse_save_name(std::string_view name) {
  constexpr std::string_view head = "step-";
  if (name.substr(0, head.size()) != head) return {};
  name.remove_prefix(head.size());
  save_name s;
  const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), s.step);
  if (code != std::errc{} || s.step < 0) return {};
  s.suffix = name.substr(static_cast<std::size_t>(end - name.data()));
  return s;
}

HEDDLE_INLINE bool is_written_name(std::string_view name) {
  if (name == "manifest" || name == index_name) return true;
  constexpr std::string_view head = "rank-";
  if (name.substr(0, head.size()) != head) return false;
  std::int64_t rank = -1;
  std::from_chars(name.data() + head.size(), name.data() + name.size(), rank);
  if (rank < 0) return false;
  // As they are renamed to when they are whole.
  if (constexpr std::string_view part = ".part"; name.size() > part.size() && name.substr(name.size() - 5) == part)
    name.remove_suffix(part.size());
  return name == rank_file_name(rank) || name == saved_name(rank) || name == failed_name(rank);
}

HEDDLE_INLINE std::vector<listed_save> list_saves(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::vector<listed_save> saves;
  std::error_code ec;
  fs::directory_iterator entries(folder, ec);
  for (; !ec && entries != fs::directory_iterator{}; entries.increment(ec)) {
    const save_name name = parse_save_name(entries->path().filename().string());
    if (name.may_be_read()) saves.push_back({name.step, name.is_replaced(), entries->path()});
  }
  if (ec && ec != std::errc::no_such_file_or_directory)
    throw io_error("heddle: cannot read the folder '" + folder.string() + "': " + ec.message());
  std::sort(saves.begin(), saves.end(), [](const listed_save& a, const listed_save& b) {
    return a.step != b.step ? a.step > b.step : a.replaced < b.replaced;
  });
  return saves;
}

HEDDLE_INLINE void require_folder(const std::filesystem::path& path) {
  struct stat s{};
  if (::lstat(path.c_str(), &s) != 0) throw_file_error("open", path, errno);
  if (!S_ISDIR(s.st_mode)) throw_wrong_entry("open", path, "folder", ENOTDIR);
}

HEDDLE_INLINE void make_partial(const std::filesystem::path& folder, const std::filesystem::path& path) {
  make_folder(folder);
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) throw_file_error("create the folder", path, errno);
  require_folder(path);
}

HEDDLE_INLINE void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code ec;
  std::filesystem::rename(from, to, ec);
  if (ec) throw io_error("heddle: cannot rename '" + from.string() + "' to '" + to.string() + "': " + ec.message());
}

HEDDLE_INLINE void set_aside(const std::filesystem::path& save) {
  for (int n = 1;; ++n) {
    const auto to = with_suffix(save, n == 1 ? ".set-aside" : (".set-aside-" + std::to_string(n)).c_str());
    if (kind_of_entry(to).empty()) return rename_path(save, to);
  }
}

// A folder by its descriptor: what is done in it is done in this one, whatever its name says meanwhile.
class opened_folder {
 public:
  explicit opened_folder(const std::filesystem::path& path) : path_(path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) throw_wrong_entry("open", path, "folder", errno);
    stream_ = ::fdopendir(fd);
    if (stream_ == nullptr) {
      const int code = errno;
      ::close(fd);
      throw_file_error("open", path, code);
    }
  }
  opened_folder(const opened_folder&) = delete;
  opened_folder& operator=(const opened_folder&) = delete;
  ~opened_folder() { ::closedir(stream_); }

  // All names, that of the manifest first: without it a save that is half removed is no save.
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    ::rewinddir(stream_);
    while (const ::dirent* e = ::readdir(stream_)) {
      const std::string_view name = e->d_name;
      if (name != "." && name != "..") all.emplace_back(name);
    }
    std::sort(all.begin(), all.end(), [](const std::string& a, const std::string& b) {
      return (a == "manifest") != (b == "manifest") ? a == "manifest" : a < b;
    });
    return all;
  }
  bool has_file(const std::string& name) const {
    struct stat s{};
    return ::fstatat(::dirfd(stream_), name.c_str(), &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(s.st_mode);
  }
  void remove(const std::string& name) const {
    if (::unlinkat(::dirfd(stream_), name.c_str(), 0) != 0 && errno != ENOENT)
      throw_file_error("remove", path_ / name, errno);
  }

 private:
  const std::filesystem::path& path_;
  ::DIR* stream_ = nullptr;
};

HEDDLE_INLINE std::vector<std::string> remove_files(const std::filesystem::path& folder,
                                                    std::span<const std::string> names, bool named) {
  std::vector<std::string> left;
  {
    const opened_folder in(folder);
    for (const std::string& name : in.names()) {
      const bool listed = std::find(names.begin(), names.end(), name) != names.end();
      if (listed == named && (named || is_written_name(name)) && in.has_file(name))
        in.remove(name);
      else
        left.push_back(name);
    }
  }
  if (left.empty() && (named || names.empty()) && ::rmdir(folder.c_str()) != 0 && errno != ENOENT)
    throw_file_error("remove the folder", folder, errno);
  return left;
}

HEDDLE_INLINE std::vector<std::string> remove_save(const std::filesystem::path& save,
                                                   std::span<const std::string> names) {
  bool has_others = false;
  {
    const opened_folder in(save);
    for (const std::string& name : in.names())
      has_others = has_others || std::find(names.begin(), names.end(), name) == names.end() || !in.has_file(name);
  }
  if (!has_others) {
    // Its name goes before its files, so that what a kill leaves of them is cleared away by the next save.
    const std::filesystem::path gone = with_suffix(save, ".removed");
    std::error_code ec;
    if (is_folder(gone) && kind_of_entry(gone) == "a folder") remove_files(gone, {}, false);
    std::filesystem::rename(save, gone, ec);
    if (!ec) return remove_files(gone, {}, false);
  }
  return remove_files(save, names, true);
}

HEDDLE_INLINE void clear_attempts(const std::filesystem::path& folder, std::int64_t before) {
  namespace fs = std::filesystem;
  std::vector<fs::path> old;
  std::error_code ec;
  for (fs::directory_iterator entry(folder, ec); !ec && entry != fs::directory_iterator{}; entry.increment(ec)) {
    const save_name name = parse_save_name(entry->path().filename().string());
    if ((name.is_attempt() && name.step < before) || name.suffix == ".removed" || name.suffix == ".replaced.removed")
      old.push_back(entry->path());
  }
  for (const fs::path& path : old) {
    try {
      remove_files(path, {}, false);
    } catch (const io_error&) {
    }
  }
}

HEDDLE_INLINE void require_clear(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::vector<fs::path> partial;
  std::error_code ec;
  for (fs::directory_iterator entry(folder, ec); !ec && entry != fs::directory_iterator{}; entry.increment(ec))
    if (parse_save_name(entry->path().filename().string()).is_attempt()) partial.push_back(entry->path());
  if (ec) throw io_error("heddle: cannot read the folder '" + folder.string() + "': " + ec.message());
  for (const fs::path& path : partial)
    for (const std::string& name : remove_files(path, {}, false))
      if (is_written_name(name)) throw_wrong_entry("create", path / name, "file", EEXIST);
  clear_attempts(folder, 0);
}

}  // namespace heddle::inline v0::io::detail
