// heddle/io/impl/output_folder.hpp: bodies of heddle/io/output_folder.hpp.
#pragma once

#include <heddle/io/output_folder.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/save_folder.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>
#include <sys/stat.h>

namespace heddle::inline v0::io {

HEDDLE_INLINE bool is_beside_weights(std::string_view name) {
  for (const std::string_view whole : {"generation_config.json", "special_tokens_map.json", "added_tokens.json",
                                       "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "tekken.json"})
    if (name == whole) return true;
  for (const std::string_view begin : {"tokenizer.", "tokenizer_", "chat_template", "LICENSE", "LICENCE", "NOTICE",
                                       "USE_POLICY", "COPYING", "sentencepiece."})
    if (name.starts_with(begin)) return true;
  return false;
}

namespace detail {

// Names of files that are written into an output folder, complete or not.
inline bool is_of_output(std::string_view name) {
  constexpr std::string_view partial = ".partial";
  if (name.ends_with(partial)) name.remove_suffix(partial.size());
  for (const std::string_view whole : {".lock", "manifest", "config.json", "adapter_config.json"})
    if (name == whole) return true;
  return is_beside_weights(name) || name.starts_with(".probe-") || name.ends_with(".safetensors") ||
         name.ends_with(".safetensors.index.json") || (name.starts_with("rank-") && name.ends_with(".tensors"));
}

// The first entry of a folder that no run wrote: a link, a folder of another name, a file that is none of ours. Empty without.
inline std::string stranger_in(const std::filesystem::path& folder, bool outermost = true) {
  std::error_code ec;
  for (std::filesystem::directory_iterator at(folder, ec), end; !ec && at != end; at.increment(ec)) {
    const std::string name = at->path().filename().string();
    const auto type = at->symlink_status(ec).type();
    if (ec) break;
    const bool ours = type == std::filesystem::file_type::directory
                          ? outermost && (name == "adapter" || name.starts_with("step-"))
                          : type == std::filesystem::file_type::regular && is_of_output(name);
    if (!ours) return name;
    if (type == std::filesystem::file_type::directory)
      if (std::string inner = stranger_in(at->path(), false); !inner.empty()) return name + "/" + inner;
  }
  if (ec) throw io_error("heddle: cannot read the folder '" + folder.string() + "': " + ec.message());
  return {};
}

// Whoever calls has looked for strangers. Links are removed, not followed.
inline void empty_folder(const std::filesystem::path& folder, std::string_view but = {}) {
  std::error_code ec;
  std::vector<std::filesystem::path> all;
  for (std::filesystem::directory_iterator at(folder, ec), end; !ec && at != end; at.increment(ec))
    if (at->path().filename() != but) all.push_back(at->path());
  for (const auto& path : all) std::filesystem::remove_all(path, ec);
}

inline std::filesystem::file_status status_of(const std::filesystem::path& path) {
  std::error_code ec;
  const auto status = std::filesystem::symlink_status(path, ec);
  if (status.type() == std::filesystem::file_type::none)
    throw io_error("heddle: cannot look at '" + path.string() + "': " + ec.message());
  return status;
}

inline void require_no_link(const std::filesystem::path& path, const std::filesystem::file_status& status) {
  if (status.type() != std::filesystem::file_type::symlink) return;
  std::error_code ec;
  throw io_error("heddle: '" + path.string() + "' is a link to '" +
                 std::filesystem::read_symlink(path, ec).string() + "': nothing is written through a link");
}

// Errors: `io_error` if a folder cannot get this name by renaming.
inline void require_free_name(const std::filesystem::path& name) {
  const auto status = status_of(name);
  if (status.type() == std::filesystem::file_type::not_found) return;
  require_no_link(name, status);
  const std::string shown = "heddle: '" + name.string() + "'";
  if (status.type() != std::filesystem::file_type::directory)
    throw io_error(shown +
                   " is there and is no folder: give the name of a folder that is not there, or of an empty one");
  std::error_code ec;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator at(name, ec), end; !ec && at != end; at.increment(ec))
    names.push_back(at->path().filename().string());
  if (ec) throw io_error("heddle: cannot read the folder '" + name.string() + "': " + ec.message());
  if (!names.empty()) {
    std::sort(names.begin(), names.end());
    const auto weights = std::find_if(names.begin(), names.end(),
                                      [](const std::string& n) { return n.find(".safetensors") != n.npos; });
    const bool model = weights != names.end();
    throw io_error(shown + ", '" + (model ? *weights : names.front()) + "' is there already: " +
                   (model ? "a model is not overwritten" : "nothing is written beside other files") +
                   "; give the name of a folder that is not there, or of an empty one");
  }
  struct ::stat here{}, above{};
  if (::stat(name.c_str(), &here) == 0 && ::stat((name / "..").c_str(), &above) == 0 && here.st_dev != above.st_dev)
    throw io_error(shown + " is a mount point, which no other folder can replace: give a folder in it, such as '" +
                   (name / "model").string() + "'");
}

// Errors: `io_error` if NAME.partial, which is there, has anything that no run has left.
inline void require_left_by_a_run(const std::filesystem::path& partial, const std::filesystem::path& name) {
  const auto status = status_of(partial);
  require_no_link(partial, status);
  std::string what = "is no folder";
  if (status.type() == std::filesystem::file_type::directory) {
    std::error_code ec;
    const std::string stranger = stranger_in(partial);
    if (stranger.empty() && (std::filesystem::is_empty(partial, ec) || std::filesystem::exists(partial / ".lock", ec)))
      return;
    what = "has " + (stranger.empty() ? "files" : "'" + stranger + "'") + ", which no run has left there";
  }
  throw io_error("heddle: '" + partial.string() + "', where '" + name.string() + "' is to be written, " + what +
                 ": move it away, or give another name");
}

}  // namespace detail

HEDDLE_INLINE output_folder::output_folder(std::filesystem::path name) : name_(std::move(name)) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (const fs::path last = name_.filename(); last == "." || last == "..") name_ = fs::weakly_canonical(name_, ec);
  while (name_.has_relative_path() && !name_.has_filename()) name_ = name_.parent_path();  // "out/"
  if (!name_.has_filename()) throw io_error("heddle: '" + name_.string() + "' is no name of a folder to write");
  detail::require_free_name(name_);
  partial_ = name_;
  partial_ += ".partial";
  for (fs::path parent = name_.parent_path(); !parent.empty() && !fs::exists(parent, ec); parent = parent.parent_path())
    parents_.insert(parents_.begin(), parent);
  bool made = false;
  try {
    for (const fs::path& parent : parents_) detail::make_folder(parent);
    made = ::mkdir(partial_.c_str(), 0777) == 0;
    if (!made && errno != EEXIST) detail::throw_file_error("create the folder", partial_, errno);
    if (!made) detail::require_left_by_a_run(partial_, name_);
    claim_ = save_folder(partial_);
    detail::require_free_name(name_);  // another run may have finished since
  } catch (...) {
    claim_.release();
    if (made) fs::remove(partial_, ec);
    for (auto parent = parents_.rbegin(); parent != parents_.rend(); ++parent) fs::remove(*parent, ec);
    throw;
  }
  detail::empty_folder(partial_, ".lock");
}

HEDDLE_INLINE output_folder::~output_folder() {
  if (kept_) return;
  try {
    std::error_code ec;
    if (detail::stranger_in(partial_).empty()) detail::empty_folder(partial_);
    std::filesystem::remove(partial_, ec);
    for (auto parent = parents_.rbegin(); parent != parents_.rend(); ++parent) std::filesystem::remove(*parent, ec);
  } catch (...) {  // it stays
  }
}

HEDDLE_INLINE void output_folder::require_room(std::int64_t bytes) const {
  std::error_code ec;
  const auto room = std::filesystem::space(partial_, ec);
  if (ec || room.capacity == 0 || bytes < 0) return;  // some file systems do not say
  if (room.available < static_cast<std::uintmax_t>(bytes))
    throw io_error("heddle: '" + name_.string() + "' needs " + std::to_string(bytes) + " bytes, its file system has " +
                   std::to_string(room.available) + " left");
}

HEDDLE_INLINE void output_folder::finish() {
  namespace fs = std::filesystem;
  std::error_code ec;
  fs::remove(partial_ / ".lock", ec);  // without it nobody takes the folder for one that may be removed
  kept_ = true;
  const auto parent = name_.has_parent_path() ? name_.parent_path() : fs::path(".");
  try {
    sync_folder(partial_);
  } catch (const io_error& e) {
    throw io_error(std::string(e.what()) + "; the files are in '" + partial_.string() + "'");
  }
  std::error_code failed;
  fs::rename(partial_, name_, failed);
  fs::path where = failed ? partial_ : name_;
  for (int k = 2; failed && k < 100; ++k) {
    fs::path beside = name_;
    beside += "-" + std::to_string(k);
    if (detail::status_of(beside).type() != fs::file_type::not_found) continue;
    fs::rename(partial_, beside, ec);
    if (!ec) where = beside;
    break;
  }
  claim_.release();
  if (failed)
    throw io_error("heddle: '" + name_.string() + "' cannot be had any more (" + failed.message() +
                   "): the files are in '" + where.string() + "'");
  sync_folder(parent);
}

}  // namespace heddle::inline v0::io
