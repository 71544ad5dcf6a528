// heddle/io/save_names.hpp: names in a folder of saves, and removal of old saves.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/durable_file.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace heddle::inline v0::io::detail {

inline std::string padded_number(std::int64_t n, std::size_t width) {
  const std::string digits = std::to_string(n);
  return digits.size() < width ? std::string(width - digits.size(), '0') + digits : digits;
}
inline std::filesystem::path save_path(const std::filesystem::path& folder, std::int64_t step) {
  return folder / ("step-" + padded_number(step, 8));
}
inline std::filesystem::path with_suffix(std::filesystem::path path, const char* suffix) {
  return path += suffix;
}
inline std::filesystem::path partial_path(const std::filesystem::path& folder, std::int64_t step) {
  return with_suffix(save_path(folder, step), ".partial");
}
inline std::string rank_file_name(std::int64_t rank) {
  return "rank-" + padded_number(rank, 5) + ".tensors";
}
inline constexpr const char* index_name = "index";
// What a rank leaves beside its file in a save that is being made, for the rank that completes it: that the file is
// done, or why it is not.
inline std::string saved_name(std::int64_t rank) {
  return "rank-" + padded_number(rank, 5) + ".saved";
}
inline std::string failed_name(std::int64_t rank) {
  return "rank-" + padded_number(rank, 5) + ".failed";
}

// What a name in a folder of saves says: "step-00000100" with what follows it, such as ".partial".
struct save_name {
  std::int64_t step = -1;  // negative: no name of a save
  std::string suffix{};

  bool is_replaced() const noexcept { return suffix == ".replaced"; }
  bool may_be_read() const noexcept { return step >= 0 && (suffix.empty() || is_replaced()); }
  // ".partial", or ".partial-" and the name of an attempt.
  bool is_attempt() const noexcept {
    return step >= 0 && (suffix == ".partial" || std::string_view(suffix).substr(0, 9) == ".partial-");
  }
};
HEDDLE_INLINE save_name parse_save_name(std::string_view name);

struct listed_save {
  std::int64_t step = 0;
  bool replaced = false;  // set aside while a new save of the same step takes its name
  std::filesystem::path path;
};
// Saves in a folder by name, newest first; whether they are saves is not known.
HEDDLE_INLINE std::vector<listed_save> list_saves(const std::filesystem::path& folder);

// A folder that is not reached through a link, and one that may be.
HEDDLE_INLINE void require_folder(const std::filesystem::path& path);
inline bool is_folder(const std::filesystem::path& path) {
  std::error_code ec;
  return std::filesystem::is_directory(path, ec);
}
// Makes the folder of a save that is being made. Errors: `io_error` that names what stands under its name.
HEDDLE_INLINE void make_partial(const std::filesystem::path& folder, const std::filesystem::path& partial);

HEDDLE_INLINE void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
// Gives a save that must stay another name, because a new one takes its own.
HEDDLE_INLINE void set_aside(const std::filesystem::path& save);

// Whether saves give files this name: "manifest", "index", or that of a rank's file or of what lies beside it.
HEDDLE_INLINE bool is_written_name(std::string_view name);
// Removes regular files of a folder, the manifest first: those of these names (`named`), or all others that have a name
// that saves give. The folder is not reached through a link, and nothing in it through one. A folder that is then empty
// goes, too. Returns the names of what is still there. Errors: `io_error`.
HEDDLE_INLINE std::vector<std::string> remove_files(const std::filesystem::path& folder,
                                                    std::span<const std::string> names, bool named);
// Removes a save whose files have these names. Returns the names of what stays in its folder, which no save wrote.
HEDDLE_INLINE std::vector<std::string> remove_save(const std::filesystem::path& save,
                                                   std::span<const std::string> names);
// Removes what attempts that were killed wrote, of steps before this one, and what is left of saves whose removal was.
// Whatever else is there stays, and what cannot be removed.
HEDDLE_INLINE void clear_attempts(const std::filesystem::path& folder, std::int64_t before);
// The same for the attempts of all steps, by the only run in the folder, which will write there. Errors: `io_error`
// that names what stands in the place of a file or folder that a save will write.
HEDDLE_INLINE void require_clear(const std::filesystem::path& folder);

}  // namespace heddle::inline v0::io::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/save_names.hpp>
#endif
