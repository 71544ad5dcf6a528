// heddle/io/impl/corpus.hpp: bodies of heddle/io/corpus.hpp.
#pragma once

#include <heddle/io/corpus.hpp>
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
namespace detail {

HEDDLE_INLINE bool append_file(const std::filesystem::path& path, bool only_text, std::vector<std::uint8_t>& to) {
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

HEDDLE_INLINE void list_files(const std::filesystem::path& folder, std::vector<std::filesystem::path>& to) {
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
}  // namespace heddle::inline v0::io

namespace heddle::inline v0::io {

HEDDLE_INLINE corpus::corpus(const std::filesystem::path& path, corpus_options options) : name_(path.string()) {
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
    std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
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

HEDDLE_INLINE void corpus::finish(corpus_options options) {
  if (size() < options.minimum)
    throw io_error("heddle: '" + name_ + "' is too small: it has " + std::to_string(size()) + " tokens, at least " +
                   std::to_string(options.minimum) + " are needed");
  fingerprint_ = checksum(std::as_bytes(std::span<const std::uint8_t>(bytes_)));
}

}  // namespace heddle::inline v0::io
