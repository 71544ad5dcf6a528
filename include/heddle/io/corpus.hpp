// heddle/io/corpus.hpp: the bytes of a file or of all text files of a folder, as tokens.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/checksum.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

struct corpus_options {
  std::uint8_t separator = '\n';  ///< stands between the files of a folder
  std::int64_t minimum = 1;       ///< fewer tokens than this are an error
};

namespace detail {

inline std::string quoted(const std::filesystem::path& p) {
  return "'" + p.string() + "'";
}

// All of a regular file, appended. With `only_text`, a file with a zero byte in its first 4 KiB is left out (false).
inline bool append_file(const std::filesystem::path& path, bool only_text, std::vector<std::uint8_t>& to) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(path.c_str(), "rb"), &std::fclose};
  if (!file) throw io_error("heddle: cannot read " + quoted(path) + ": " + std::strerror(errno));
  const std::size_t start = to.size();
  std::size_t used = start;
  for (;;) {
    const std::size_t chunk = used == start ? 4096 : std::size_t{1} << 20;
    to.resize(used + chunk);
    const std::size_t n = std::fread(to.data() + used, 1, chunk, file.get());
    const bool first = used == start;
    used += n;
    to.resize(used);
    if (n < chunk && std::ferror(file.get()) != 0)
      throw io_error("heddle: cannot read " + quoted(path) + ": " + std::strerror(errno));
    if (first && only_text && n > 0 && std::memchr(to.data() + start, 0, n) != nullptr) {
      to.resize(start);
      return false;
    }
    if (n < chunk) return true;
  }
}

inline bool is_build_output(std::string_view name) {
  return name.substr(0, 5) == "build";
}

// Regular files below a folder. Links to folders are not followed, so there is no loop to fall into.
inline void list_files(const std::filesystem::path& folder, std::vector<std::filesystem::path>& to) {
  namespace fs = std::filesystem;
  std::error_code ec;
  fs::directory_iterator entries(folder, ec);
  for (; !ec && entries != fs::directory_iterator{}; entries.increment(ec)) {
    const std::string name = entries->path().filename().string();
    if (name.empty() || name.front() == '.') continue;
    std::error_code unknown;
    if (entries->is_directory(unknown)) {
      if (!entries->is_symlink(unknown) && !is_build_output(name)) list_files(entries->path(), to);
    } else if (entries->is_regular_file(unknown)) {
      to.push_back(entries->path());
    }
  }
  if (ec) throw io_error("heddle: cannot read the folder " + quoted(folder) + ": " + ec.message());
}

}  // namespace detail

/// Text as byte tokens (vocabulary 256), held in memory. Immutable; ranks of one process may share it.
class corpus {
 public:
  /// Reads a file, or every text file below a folder: sorted by path (byte order) so that all machines see the same
  /// stream, a separator between files. In a folder these are left out: names that start with a dot, folders that start
  /// with `build`, links to folders, and binary files (a zero byte in the first 4 KiB). A file named directly is always
  /// taken as it is.
  /// Errors: `io_error` that names the path if it is missing, unreadable, empty, neither file nor folder, or holds
  /// fewer than `options.minimum` tokens.
  explicit corpus(const std::filesystem::path& path, corpus_options options = {}) : name_(path.string()) {
    namespace fs = std::filesystem;
    std::error_code ec;
    const fs::file_status status = fs::status(path, ec);
    if (status.type() == fs::file_type::not_found)
      throw io_error("heddle: no such file or folder: " + detail::quoted(path));
    if (status.type() == fs::file_type::none)
      throw io_error("heddle: cannot look at " + detail::quoted(path) + ": " + ec.message());
    std::string empty = "is empty";
    if (fs::is_directory(status)) {
      std::vector<fs::path> files;
      detail::list_files(path, files);
      std::sort(files.begin(), files.end(),
                [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
      for (const fs::path& f : files) {
        const std::size_t before = bytes_.size();
        if (files_ > 0) bytes_.push_back(options.separator);
        const std::size_t start = bytes_.size();
        if (detail::append_file(f, true, bytes_) && bytes_.size() > start)
          ++files_;
        else
          bytes_.resize(before);
      }
      empty = "has no text file with anything in it (" + std::to_string(files.size()) + " files looked at)";
    } else if (fs::is_regular_file(status)) {
      detail::append_file(path, false, bytes_);
      files_ = 1;
    } else {
      throw io_error("heddle: " + detail::quoted(path) + " is neither a regular file nor a folder");
    }
    if (bytes_.empty()) throw io_error("heddle: " + detail::quoted(path) + " " + empty);
    finish(options);
  }

  /// A corpus of bytes that are already in memory. `name` appears in messages.
  corpus(std::string name, std::vector<std::uint8_t> bytes, corpus_options options = {})
      : name_(std::move(name)), bytes_(std::move(bytes)), files_(1) {
    finish(options);
  }

  static constexpr int vocabulary() noexcept { return 256; }
  std::span<const std::uint8_t> tokens() const& noexcept { return bytes_; }
  std::span<const std::uint8_t> tokens() const&& = delete;  // they would be gone at the end of the line
  std::int64_t size() const noexcept { return static_cast<std::int64_t>(bytes_.size()); }
  /// Files that contributed.
  int files() const noexcept { return files_; }
  const std::string& name() const noexcept { return name_; }
  /// 64 bits over all tokens: a save keeps it, so that resuming on other data is noticed.
  std::uint64_t fingerprint() const noexcept { return fingerprint_; }

 private:
  void finish(corpus_options options) {
    if (size() < options.minimum)
      throw io_error("heddle: '" + name_ + "' is too small: it has " + std::to_string(size()) + " tokens, at least " +
                     std::to_string(options.minimum) + " are needed");
    fingerprint_ = checksum(std::as_bytes(std::span<const std::uint8_t>(bytes_)));
  }

  std::string name_;
  std::vector<std::uint8_t> bytes_;
  int files_ = 0;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace heddle::inline v0::io
