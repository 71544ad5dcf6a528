// heddle/io/save_index.hpp: the index of a save: where the parts of each tensor are.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/manifest.hpp>
#include <heddle/io/tensor_file.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io::detail {

struct saved_part {
  std::int64_t rank = 0;
  tensor_entry entry;
};
// Which parts a save must have.
enum class coverage : std::uint8_t {
  any,   // some elements may be missing
  whole  // all elements of each tensor
};
// Parts of one tensor are apart or the same (replicas): else the value of an element would depend on the order of
// reading, and the number of elements read would not tell whether all were; and a tensor has one shape. Sorts `parts`,
// which come in the order of ranks, by tensor.
// Errors: `io_error` that names two parts that overlap, or the elements that are missing.
HEDDLE_INLINE void require_parts_fit(const std::filesystem::path& save, std::vector<saved_part>& parts, coverage how);

// Writes sorted parts: a line for each, in blocks of whole tensors, and a list of the blocks, so that whoever wants one
// tensor reads the list and one block.
HEDDLE_INLINE file_digest write_index(durable_file file, std::span<const saved_part> parts);

// Tells a manifest whether parts have checksums of pieces, which decides its format.
inline void note_pieces(manifest& m, std::span<const saved_part> parts) {
  m.facts.erase(pieces_fact);
  for (const saved_part& p : parts)
    if (!p.entry.pieces.empty()) m.facts[pieces_fact] = std::to_string(checksum_piece);
}

// The files of a save: in a folder, or objects of a store whose names begin with `prefix`.
struct save_files {
  std::filesystem::path path{};  // of the folder, or for messages
  const object_reader* from = nullptr;
  std::string prefix{};
  io::manifest about{};  // of a save in a store

  save_files() = default;
  save_files(std::filesystem::path folder) : path(std::move(folder)) {}  // NOLINT: a folder is all of them
  file_to_read open(const std::string& name) const {
    if (from != nullptr) return file_to_read(*from, prefix + name, path / name);
    return file_to_read(path / name, links::refused);
  }
};

// What a rank's file has in it.
HEDDLE_INLINE std::vector<tensor_entry> read_rank_index(const save_files& save, const rank_file& f);

// The parts of a complete save, by tensor. Of a save with an index only the blocks that are asked for are read, once
// each; of one without (format 1), the indexes of all rank files at once. Several threads may ask at once.
class save_index {
 public:
  // Errors: `io_error` for a damaged index, or parts that overlap.
  save_index(save_files save, const manifest& m);

  // Of this tensor, in the order of ranks; none if nobody saved it. What is returned lives as long as this object.
  std::span<const saved_part> parts(std::string_view name);

  // Of elements, by all readers of this object: and of these, those whose checksum was not looked at.
  std::atomic<std::int64_t> bytes_read{0}, bytes_unchecked{0};
  // Of the index itself.
  std::atomic<std::int64_t> index_bytes_read{0};

 private:
  struct block {
    std::int64_t begin = 0, end = 0;
    std::uint64_t checksum = 0;
    std::string first;  // tensor
    std::vector<saved_part> parts{};
    bool is_read = false;
  };
  void read(block& b);

  save_files save_;
  std::mutex mutex_;
  std::vector<block> blocks_;
};

}  // namespace heddle::inline v0::io::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/save_index.hpp>
#endif
