// examples/tokens/text_parts.hpp: texts in files, compressed or not, cut into parts that threads read side by side.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/json/member_text.hpp>
#include <heddle/io/tokenizer/json_string.hpp>
#if defined(HEDDLE_HAS_ZSTD)
#include <heddle/io/zstd/decompress.hpp>
#endif

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace text_parts {

namespace fs = std::filesystem;
namespace io = heddle::io;

/// Bytes [first, end) of a file; of a compressed one all of it.
struct part {
  fs::path file;
  std::int64_t first = 0, end = 0;
};

inline bool is_compressed(const fs::path& file) { return file.extension() == ".gz" || file.extension() == ".zst"; }
/// Whether a file has a JSON object in every line, by its name; else it is one text.
inline bool has_lines(const fs::path& file) {
  const fs::path plain = is_compressed(file) ? file.stem() : file;
  return plain.extension() == ".jsonl" || plain.extension() == ".json" || plain.extension() == ".ndjson";
}

/// The parts of files, and of the files in folders, by name; plain files of lines are cut. Errors: `io_error`.
inline std::vector<part> parts_of(const std::vector<std::string>& paths, std::int64_t most) {
  std::vector<fs::path> files;
  for (const std::string& path : paths)
    if (fs::is_directory(path))
      for (const auto& entry : fs::recursive_directory_iterator(path)) {
        if (entry.is_regular_file()) files.push_back(entry.path());
      }
    else
      files.emplace_back(path);
  std::sort(files.begin(), files.end());
  std::vector<part> parts;
  for (const fs::path& file : files) {
    std::error_code ec;
    const auto size = static_cast<std::int64_t>(fs::file_size(file, ec));
    if (ec) throw heddle::io_error("heddle: cannot read '" + file.string() + "': " + ec.message());
    const bool cut = has_lines(file) && !is_compressed(file);
    for (std::int64_t at = 0; at < size; at += cut ? most : size) parts.push_back({file, at, cut ? (std::min)(at + most, size) : size});
  }
  return parts;
}

/// The bytes of a file front to back, decompressed.
class input {
 public:
  explicit input(const fs::path& file, std::int64_t first = 0) : path_(file) {
    if (file.extension() == ".gz") {
      spawn_gzip();
      return;
    }
    file_.reset(std::fopen(file.c_str(), "rb"));
    if (!file_ || fseeko(file_.get(), first, SEEK_SET) != 0) fail(std::strerror(errno));
    if (file.extension() != ".zst") return;
#if defined(HEDDLE_HAS_ZSTD)
    zstd_ = std::make_unique<io::zstd_stream>();
#else
    fail("this program was built without zstd (Debian: libzstd-dev)");
#endif
  }
  input(const input&) = delete;
  input& operator=(const input&) = delete;
  ~input() {
    file_.reset();
    if (gzip_ > 0) ::waitpid(gzip_, nullptr, 0);
  }

  /// Appends a piece to `to`; false at the end. Errors: `io_error` naming the file, also one that is cut off.
  bool more(std::string& to) {
    constexpr std::size_t piece = std::size_t{1} << 20;
    const std::size_t before = to.size();
    to.resize(before + piece);
    const std::size_t n = zstd_ ? decompressed(std::as_writable_bytes(std::span(to).subspan(before)))
                                : std::fread(to.data() + before, 1, piece, file_.get());
    to.resize(before + n);
    if (std::ferror(file_.get()) != 0) fail(std::strerror(errno));
    if (n > 0) return true;
    if (int status = 0; gzip_ > 0 && ::waitpid(std::exchange(gzip_, 0), &status, 0) > 0 && status != 0)
      fail("gzip cannot decompress it");
    return false;
  }

 private:
  struct closes {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  [[noreturn]] void fail(const std::string& what) const {
    throw heddle::io_error("heddle: cannot read '" + path_.string() + "': " + what);
  }
  void spawn_gzip() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) fail(std::strerror(errno));
    file_.reset(::fdopen(ends[0], "rb"));
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    std::string words[] = {"gzip", "-dcq", "--", path_.string()};
    char* const command[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
    const int failed = ::posix_spawnp(&gzip_, "gzip", &actions, nullptr, command, environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (failed != 0) gzip_ = 0, fail(std::string("gzip does not start: ") + std::strerror(failed));
  }
#if defined(HEDDLE_HAS_ZSTD)
  std::size_t decompressed(std::span<std::byte> to) {
    for (;;) {
      if (left_.empty()) {
        stored_.resize(std::size_t{1} << 18);
        left_ = std::as_bytes(std::span(stored_).first(std::fread(stored_.data(), 1, stored_.size(), file_.get())));
        if (left_.empty() && zstd_->whole()) return 0;
      }
      const bool ended = left_.empty();
      if (const std::size_t n = (*zstd_)(left_, to); n > 0) return n;
      if (ended) fail("it is cut off");
    }
  }
  std::unique_ptr<io::zstd_stream> zstd_;
  std::vector<char> stored_;
  std::span<const std::byte> left_;
#else
  static std::size_t decompressed(std::span<std::byte>) { return 0; }
  static constexpr bool zstd_ = false;
#endif
  fs::path path_;
  std::unique_ptr<std::FILE, closes> file_;
  ::pid_t gzip_ = 0;
};

/// Calls f(text, bytes) for the texts of a part: member `field` of each line, or all. `bytes`: of the file, where that is known.
/// Errors: `io_error` naming file and byte of a line that is no object with that text.
template <class F>
void each_text(const part& p, const std::string& field, F&& f) {
  const bool lines = has_lines(p.file), packed = is_compressed(p.file);
  input in(p.file, lines && p.first > 0 ? p.first - 1 : p.first);
  std::string text, said;
  if (!lines) {
    while (in.more(text)) {
    }
    return f(std::string_view(text), std::int64_t{0});
  }
  std::int64_t at = p.first > 0 ? p.first - 1 : 0;  // of `text` in the file
  // A line belongs to the part that it begins in: what goes before the first line end is another's.
  bool skip = p.first > 0;
  for (bool more = true; more;) {
    more = in.more(text);
    std::size_t begin = 0;
    for (std::size_t end = 0; begin < text.size(); begin = end + 1) {
      end = text.find('\n', begin);
      if (end == std::string::npos) {
        if (more) break;
        end = text.size();
      }
      const std::int64_t place = at + static_cast<std::int64_t>(begin);
      if (!packed && place >= p.end) return;
      const auto line = std::string_view(text).substr(begin, end - begin);
      if (std::exchange(skip, false) || line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      bool whole = false;
      const auto value = io::member_text(line, field, nullptr, &whole);
      if (!whole || !value || !io::read_string(*value, said))
        throw heddle::io_error("heddle: '" + p.file.string() + "', byte " + std::to_string(place) +
                               ": a line that is no JSON object with a text '" + field + "'");
      f(std::string_view(said), static_cast<std::int64_t>(line.size() + 1));
    }
    begin = (std::min)(begin, text.size());
    text.erase(0, begin);
    at += static_cast<std::int64_t>(begin);
  }
}

}  // namespace text_parts
