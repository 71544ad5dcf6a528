// heddle/io/impl/corpus.hpp: bodies of heddle/io/corpus.hpp.
#pragma once

#include <heddle/io/corpus.hpp>
#include <heddle/io/save_names.hpp>
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

HEDDLE_INLINE bool is_written_by_heddle(std::string_view text) {
  for (const std::string_view head :
       {"heddle checkpoint\n", "heddle tensors 1\n", "heddle index 1\n", "{\"displayTimeUnit\":\"ns\",\"otherData\":{"})
    if (text.substr(0, head.size()) == head) return true;
  constexpr std::string_view svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"";
  constexpr std::string_view font =
      " font-family=\"Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif\">";
  return text.substr(0, svg.size()) == svg && text.substr(0, text.find('\n')).ends_with(font);
}

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
    if (first && only_text && n > 0 &&
        (std::memchr(to.data() + start, 0, n) != nullptr ||
         is_written_by_heddle({reinterpret_cast<const char*>(to.data()) + start, n}))) {
      to.resize(start);
      return false;
    }
    if (n < chunk) return true;
  }
}

// What ranks tell each other in the folder of a save in the background.
HEDDLE_INLINE bool is_word_of_save(std::string_view name) {
  return is_written_name(name) && (name.ends_with(".saved") || name.ends_with(".failed"));
}

HEDDLE_INLINE void list_files(const std::filesystem::path& folder,
                              const std::vector<std::filesystem::path>& leave_out,
                              std::vector<std::filesystem::path>& to) {
  namespace fs = std::filesystem;
  std::error_code ec;
  fs::directory_iterator entries(folder, ec);
  for (; !ec && entries != fs::directory_iterator{}; entries.increment(ec)) {
    const std::string name = entries->path().filename().string();
    if (name.empty() || name.front() == '.') continue;
    std::error_code unknown;
    if (std::any_of(leave_out.begin(), leave_out.end(),
                    [&](const fs::path& p) { return fs::equivalent(p, entries->path(), unknown); }))
      continue;
    if (entries->is_directory(unknown)) {
      if (!entries->is_symlink(unknown) && !is_build_output(name)) list_files(entries->path(), leave_out, to);
    } else if (entries->is_regular_file(unknown) && !is_word_of_save(name)) {
      to.push_back(entries->path());
    }
  }
  if (ec) throw io_error("heddle: cannot read the folder " + quoted(folder) + ": " + ec.message());
}

}  // namespace detail
}  // namespace heddle::inline v0::io

namespace heddle::inline v0::io {

HEDDLE_INLINE std::string describe_nesting(const std::filesystem::path& data, const std::filesystem::path& saves) {
  namespace fs = std::filesystem;
  const auto whole = [](const fs::path& p) {
    std::error_code ec;
    fs::path w = fs::weakly_canonical(fs::absolute(p, ec), ec);
    return w.has_filename() ? w : w.parent_path();
  };
  const fs::path d = whole(data), s = whole(saves);
  const auto has = [](const fs::path& outer, const fs::path& inner) {
    return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
  };
  if (d == s) return detail::quoted(data) + " is also the folder of the saves, which are not trained on";
  if (has(d, s))
    return detail::quoted(saves) + ", the folder of the saves, lies below " + detail::quoted(data) +
           ": nothing in it is trained on";
  if (has(s, d)) return detail::quoted(data) + " lies below " + detail::quoted(saves) + ", the folder of the saves";
  return {};
}

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
    detail::list_files(path, options.leave_out, files);
    std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
    for (const fs::path& f : files) {
      const std::size_t before = bytes_.size();
      if (files_ > 0) bytes_.push_back(options.separator);
      const std::size_t start = bytes_.size();
      if (detail::append_file(f, true, bytes_) && bytes_.size() > start) {
        if (files_++ > 0) starts_.push_back(static_cast<std::int64_t>(start));
      } else {
        bytes_.resize(before);
      }
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
  starts_.push_back(size());
  fingerprint_ = checksum(std::as_bytes(std::span<const std::uint8_t>(bytes_)));
}

}  // namespace heddle::inline v0::io
