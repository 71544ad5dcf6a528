// heddle/io/checkpoint.hpp: saves of a training run that survive being killed at any moment.
//
//   DIR/step-00000100/rank-00000.tensors   what rank 0 holds (io/tensor_file.hpp)
//   DIR/step-00000100/rank-00001.tensors   ...
//   DIR/step-00000100/index                the parts of every tensor, sorted by tensor (io/save_index.hpp)
//   DIR/step-00000100/manifest             what the save is, with size and checksum of every other file
//
// A save is written under the name step-00000100.partial. Every rank writes its file (`checkpoint_writer`); when all
// are done (the caller's barrier) and their `rank_file` records have been gathered, one rank calls `commit`: index,
// manifest last, everything on the disk, then the folder gets its name. A reader sees a complete save or none.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/manifest.hpp>
#include <heddle/io/save_index.hpp>
#include <heddle/io/save_names.hpp>
#include <heddle/io/tensor_file.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// How closely a save is looked at.
enum class verify : std::uint8_t {
  manifest,  ///< the manifest alone
  sizes,     ///< the manifest, and that each file it names is there with its size
  contents   ///< also the checksum of every file: reads all of them
};

/// The manifest of the save in `path`, if the save is complete. `path` may be a link; files in it may not.
/// Errors: `io_error` that says what is missing or damaged, or that the manifest is of another step than the folder's
/// name.
HEDDLE_INLINE manifest require_save(const std::filesystem::path& path, verify how = verify::contents);

namespace detail {

// The run that a save is of, as its manifest says; empty if it does not.
inline std::string run_of(const manifest& m) {
  const auto name = m.facts.find("run");
  return name == m.facts.end() ? std::string() : name->second;
}
// The manifest of a save that can be read, to its last byte, and is of this run: no other may be removed, or counted
// as one to go back to.
HEDDLE_INLINE std::optional<manifest> save_of_run(const std::filesystem::path& save, const std::string& run,
                                                  verify how = verify::contents);
// Checks the files of a save that are the `first`-th and every `stride`-th behind it, so that ranks may share them: of
// rank files in the manifest's order and the index.
HEDDLE_INLINE void require_files(const save_files& save, const manifest& m, verify how, std::size_t first = 0,
                                 std::size_t stride = 1);
// Removes a save of this run. Returns what stays there because no save wrote it, as a sentence, or nothing.
HEDDLE_INLINE std::string remove_of_run(const std::filesystem::path& save, const std::string& run,
                                        verify how = verify::contents);

}  // namespace detail

/// Writes what one rank holds into a save that is being made. Every rank has one; they need not wait for each other.
/// Errors: `io_error` that names file and tensor. A save that is never committed is never read.
class checkpoint_writer final : public part_writer {
 public:
  checkpoint_writer(const std::filesystem::path& folder, std::int64_t step, int rank)
      : checkpoint_writer(folder, rank, detail::partial_path(folder, step)) {}
  /// The same for an attempt with a folder of its own, `commit_options::partial`.
  checkpoint_writer(const std::filesystem::path& folder, int rank, const std::filesystem::path& partial)
      : rank_(rank), file_((detail::make_partial(folder, partial), partial / detail::rank_file_name(rank))) {}

  void add_part(std::string_view name, std::string_view dtype, std::span<const std::byte> bytes,
                const tensor_region& region) override {
    file_.add_part(name, dtype, bytes, region);
  }

  /// Returns when the file is on the disk. Gather the result on the rank that commits.
  rank_file finish() {
    const file_digest d = file_.finish();
    return {rank_, d.bytes, d.checksum};
  }

 private:
  std::int64_t rank_;
  tensor_file_writer file_;
};

/// Settings of `commit`.
struct commit_options {
  int keep = 2;  ///< complete saves of this run that stay, this one counted; 0 keeps all
  /// Gets a sentence for each old save in whose folder files stay that no save wrote.
  std::vector<std::string>* left = nullptr;
  /// How saves that were there before are looked at, before they are counted, replaced or removed.
  verify older = verify::contents;
  /// Where the ranks have written; empty: step-N.partial.
  std::filesystem::path partial{};
};

namespace detail {
// The two halves of `commit`: the new save gets its name, and, once it has been read back, older ones go.
HEDDLE_INLINE std::filesystem::path publish(const std::filesystem::path& folder, manifest m,
                                            const commit_options& options);
HEDDLE_INLINE void retire(const std::filesystem::path& folder, const manifest& m, const commit_options& options);
}  // namespace detail

/// Completes the save of step `m.step`: for one rank to call, after every rank's `finish`. `m.files` holds every rank's
/// record. A save of the same step that is there already is replaced; older saves are removed, beyond `keep`, only when
/// the new one is complete. Only saves that can be read and whose manifests have the same `facts["run"]` (or none, as
/// this one) are replaced, removed and counted: what another run wrote, or what is damaged, stays; if the new save
/// needs its name, as step-N.set-aside. Of a save that goes, only the files that its manifest lists are removed; others
/// stay in its folder (`options.left`). Nothing is reached through links. The new save, those that are kept and those
/// that go are read once each (the older ones as `options.older` says). Returns the folder of the save.
/// Errors: `io_error` if a rank file is missing or of another size, parts of a tensor overlap without being the same,
/// or have not all of its elements together, the save cannot be read back as it was written (two runs in one folder,
/// say), or the disk refuses; the saves that were complete before stay as they were.
HEDDLE_INLINE std::filesystem::path commit(const std::filesystem::path& folder, manifest m,
                                           commit_options options = {});

/// A complete save.
struct found_save {
  std::filesystem::path path;
  io::manifest manifest;
};

/// What `latest` found.
struct search_result {
  std::optional<found_save> save;    ///< the newest complete save
  std::vector<std::string> skipped;  ///< why newer ones were passed over, newest first
};

/// Saves that are to be passed over, by path, and why.
using failed_saves = std::map<std::string, std::string>;

/// The newest complete save in a folder; incomplete and damaged ones are passed over, and why is said. Nothing found,
/// or no such folder: no save. For one rank to call, and tell the others; with `verify::contents` it reads the whole
/// save. `failed`: those of which it is known already that they cannot be read.
/// Errors: `io_error` if the folder is there but cannot be read.
HEDDLE_INLINE search_result latest(const std::filesystem::path& folder, verify how = verify::contents,
                                   const failed_saves& failed = {});

/// Refuses to begin anew, in a run that was told to go on, beside saves that cannot be read. Errors: `io_error` if
/// `latest` passed over saves in `folder` and found none that can be read: whoever starts anew there trains over them.
/// It says why each cannot be read, and what can be done.
HEDDLE_INLINE void require_readable(const search_result& found, const std::filesystem::path& folder);

/// Reads tensors from a complete save, by name, on any mesh: a region may be put together from what several ranks
/// saved. Construction checks the manifest and sizes and reads the list of the index's blocks; of a save without an
/// index (format 1) the indexes of all rank files, and refuses parts of a tensor that overlap without being the same.
/// The checksum of a part that is read whole is checked; of one of which less is wanted, that alone is read, and gaps
/// of up to 4 KiB in it (256 KiB of a store), without a checksum (`bytes_unchecked`) but of the pieces of 4 MiB that
/// are read whole. Several readers may read one save at once, and several threads one reader.
/// Errors: `io_error` that names file and tensor, what was expected and what is there.
class checkpoint_reader {
 public:
  /// `how`: `verify::manifest` where somebody else has looked at the files.
  explicit checkpoint_reader(std::filesystem::path save, verify how = verify::sizes);
  /// The same of the files of a folder, or of a store whose manifest somebody has read.
  explicit checkpoint_reader(detail::save_files save, verify how = verify::manifest);

  const io::manifest& manifest() const noexcept { return manifest_; }
  const std::filesystem::path& path() const noexcept { return files_.path; }

  /// Whether any rank saved a tensor of this name.
  bool contains(std::string_view name) const { return !index_->parts(name).empty(); }

  /// What rank `rank` saved, in the order it was added.
  std::vector<tensor_entry> tensors(std::int64_t rank) const;

  /// Reads exactly a part of `name` that rank `rank` saved. Shapes: `region` must be one saved; `out` has its elements.
  template <class T>
  void read(std::int64_t rank, std::string_view name, std::span<T> out, const tensor_region& region) const {
    read_part(rank, name, typed<T>(out), region);
  }
  /// The same for a one-dimensional tensor that the rank saved whole.
  template <class T>
  void read(std::int64_t rank, std::string_view name, std::span<T> out) const {
    read(rank, name, out, tensor_region::whole({static_cast<std::int64_t>(out.size())}));
  }

  /// Reads any region of tensor `name` from whichever ranks saved parts of it. Equal parts (replicas) are read once.
  template <class T>
  void read(std::string_view name, std::span<T> out, const tensor_region& region) const {
    read_region(name, typed<T>(out), region);
  }

  /// Of elements, so far, by this reader and its copies; of the index; and of those, elements whose checksum was not
  /// looked at.
  std::int64_t bytes_read() const noexcept { return index_->bytes_read; }
  std::int64_t index_bytes_read() const noexcept { return index_->index_bytes_read; }
  std::int64_t bytes_unchecked() const noexcept { return index_->bytes_unchecked; }

 private:
  using held = detail::saved_part;
  // Bytes of a part in its file, and where they go.
  struct run {
    std::int64_t from = 0, to = 0, bytes = 0;
  };

  // Where elements of one type go.
  struct destination {
    std::string_view dtype;
    std::byte* data = nullptr;
    std::size_t count = 0;
    std::size_t element_bytes = 0;
  };
  template <class T>
  static destination typed(std::span<T> out) {
    return {dtype_name<T>(), reinterpret_cast<std::byte*>(out.data()), out.size(), sizeof(T)};
  }

  std::string where(const held& h) const {
    return "heddle: '" + (path() / detail::rank_file_name(h.rank)).string() + "', tensor '" + h.entry.name + "': ";
  }
  void require_dtype(const held& h, std::string_view dtype) const {
    if (h.entry.dtype != dtype)
      throw io_error(where(h) + "expected dtype " + std::string(dtype) + ", the file has " + h.entry.dtype);
  }
  void read_part(std::int64_t rank, std::string_view name, destination out, const tensor_region& region) const;
  void read_region(std::string_view name, destination out, const tensor_region& region) const;

  // Copies the elements that the saved box and the wanted box share. Returns how many.
  std::int64_t copy_box(const held& h, const tensor_region& to, destination out) const;

  detail::save_files files_;
  io::manifest manifest_;
  std::shared_ptr<detail::save_index> index_;
};

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/checkpoint.hpp>
#endif
