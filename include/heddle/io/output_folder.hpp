// heddle/io/output_folder.hpp: writes a folder that appears under its name whole or not at all.
//
//   NAME.partial/   while it is written: claimed by one run, and removed where that ends without `finish`
//   NAME/           after `finish`
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/io/save_folder.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::io {

/// Whether a file of this name goes with a model wherever its weights go: those of tokenizer and generation, licenses and notices.
HEDDLE_INLINE bool is_beside_weights(std::string_view name);

/// A folder for the files of a model that is written beside its name, in NAME.partial, and renamed when it is whole. For one rank to
/// make before anything costs time: it claims NAME.partial (`save_folder`) and probes that it can be written. What a run that was killed
/// has left there is removed; what no run wrote is not. Without `finish` its destructor removes what was written, and the parents
/// that it made.
class output_folder {
 public:
  /// NAME may be missing, its parents too, or be an empty folder.
  /// Errors: `io_error` if NAME is a link, a mount point, no folder or not empty; if NAME.partial is a link or has files that no run wrote;
  /// if another run writes it, or nothing can be written there.
  explicit output_folder(std::filesystem::path name);
  output_folder(output_folder&&) = delete;
  ~output_folder();

  /// The name that the folder is to have, without a slash at its end.
  const std::filesystem::path& name() const noexcept { return name_; }
  /// Where files are to be written until `finish`: NAME.partial.
  const std::filesystem::path& path() const noexcept { return partial_; }

  /// Errors: `io_error` if the file system says that it has less than so many bytes left.
  void require_room(std::int64_t bytes) const;

  /// Gives the folder its name, when what is in it is on the disk.
  /// Errors: `io_error` if the name can no longer be had. Nothing is lost then: the folder gets the name NAME-2, or the next one that is
  /// free, and the message says which.
  void finish();

 private:
  std::filesystem::path name_, partial_;
  std::vector<std::filesystem::path> parents_;  // made here, outermost first
  save_folder claim_;
  bool kept_ = false;
};

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/output_folder.hpp>
#endif
