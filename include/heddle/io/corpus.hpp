// heddle/io/corpus.hpp: the bytes of a file or of all text files of a folder, as tokens.
#pragma once

#include <heddle/core/config.hpp>
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

/// How a corpus is read from a folder.
struct corpus_options {
  std::uint8_t separator = '\n';  ///< stands between the files of a folder
  std::int64_t minimum = 1;       ///< fewer tokens than this are an error
  /// Files and folders below the folder that are left out, such as that of the saves.
  std::vector<std::filesystem::path> leave_out{};
};

/// How a corpus and a folder of saves lie in each other, as a sentence; empty where neither has the other in it. Links
/// in both are followed. Saves below a corpus belong into `corpus_options::leave_out`.
HEDDLE_INLINE std::string describe_nesting(const std::filesystem::path& data, const std::filesystem::path& saves);

namespace detail {

inline std::string quoted(const std::filesystem::path& p) {
  return "'" + p.string() + "'";
}

// All of a regular file, appended. With `only_text`, a file with a zero byte in its first 4 KiB is left out (false),
// and one that heddle wrote: part of a save, a trace, a picture.
HEDDLE_INLINE bool append_file(const std::filesystem::path& path, bool only_text, std::vector<std::uint8_t>& to);

inline bool is_build_output(std::string_view name) {
  return name.substr(0, 5) == "build";
}

// Whether a text begins as those that heddle writes: manifests and tensors of saves, traces, pictures.
HEDDLE_INLINE bool is_written_by_heddle(std::string_view text);

// Regular files below a folder. Links to folders are not followed, so there is no loop to fall into.
HEDDLE_INLINE void list_files(const std::filesystem::path& folder,
                              const std::vector<std::filesystem::path>& leave_out,
                              std::vector<std::filesystem::path>& to);

}  // namespace detail

/// Text as byte tokens (vocabulary 256), held in memory. Immutable; ranks of one process may share it.
class corpus {
 public:
  /// Reads a file, or every text file below a folder: sorted by path (byte order) so that all machines see the same
  /// stream, a separator between files. In a folder these are left out: names that start with a dot, folders that start
  /// with `build`, links to folders, binary files (a zero byte in the first 4 KiB), what heddle wrote (the files of
  /// saves, traces, pictures: by how they begin), and `options.leave_out`. A file named directly is always taken as it
  /// is.
  /// Errors: `io_error` that names the path if it is missing, unreadable, empty, neither file nor folder, or holds
  /// fewer than `options.minimum` tokens.
  explicit corpus(const std::filesystem::path& path, corpus_options options = {});

  /// A corpus of bytes that are already in memory. `name` appears in messages.
  corpus(std::string name, std::vector<std::uint8_t> bytes, corpus_options options = {})
      : name_(std::move(name)), bytes_(std::move(bytes)), files_(1) {
    finish(options);
  }

  static constexpr int vocabulary() noexcept { return 256; }
  std::span<const std::uint8_t> tokens() const& noexcept { return bytes_; }
  std::span<const std::uint8_t> tokens() const&& = delete;  // they would be gone at the end of the line
  std::int64_t size() const noexcept { return static_cast<std::int64_t>(bytes_.size()); }
  /// Where each file that contributed begins, and the end: what `io::basic_documents` takes, for files as documents. A separator belongs to the
  /// file before it.
  std::span<const std::int64_t> starts() const& noexcept { return starts_; }
  std::span<const std::int64_t> starts() const&& = delete;
  /// Files that contributed.
  int files() const noexcept { return files_; }
  const std::string& name() const noexcept { return name_; }
  /// 64 bits over all tokens: a save keeps it, so that resuming on other data is noticed.
  std::uint64_t fingerprint() const noexcept { return fingerprint_; }

 private:
  void finish(corpus_options options);

  std::string name_;
  std::vector<std::uint8_t> bytes_;
  int files_ = 0;
  std::vector<std::int64_t> starts_{0};
  std::uint64_t fingerprint_ = 0;
};

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/corpus.hpp>
#endif
