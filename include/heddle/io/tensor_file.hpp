// heddle/io/tensor_file.hpp: a file of named tensors, or of the parts of them that one rank holds.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/dtype.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/manifest.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// A box of elements of a tensor: where it lies in the whole. Shapes: all three of the same length.
struct tensor_region {
  std::vector<std::int64_t> global;  ///< extents of the whole tensor
  std::vector<std::int64_t> offset;  ///< first index of the box
  std::vector<std::int64_t> local;   ///< extents of the box

  /// The box that is the whole tensor.
  static tensor_region whole(std::vector<std::int64_t> shape) {
    return {shape, std::vector<std::int64_t>(shape.size(), 0), shape};
  }
  /// Elements of the box; the largest number where they are more than 64 bits count.
  std::int64_t count() const noexcept { return elements_of(local); }
  static std::int64_t elements_of(const std::vector<std::int64_t>& extents) noexcept;
  friend bool operator==(const tensor_region&, const tensor_region&) = default;
};

/// One entry of a tensor file.
struct tensor_entry {
  std::string name;
  std::string dtype;
  tensor_region region;
  std::int64_t position = 0;  ///< of the first byte in the file
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;           ///< of the bytes, or of the checksums of pieces
  std::vector<std::uint64_t> pieces{};  ///< the checksum of each 4 MiB, of an entry with more than these
};

namespace detail {

inline constexpr std::int64_t checksum_piece = std::int64_t{4} << 20;
// Gives an entry the checksums of its bytes.
HEDDLE_INLINE void add_checksums(tensor_entry& e, std::span<const std::byte> bytes);
// What is wrong with bytes of an entry from `begin` on, as they were read, or nothing: which of its elements they are.
// `checked`: gets how many of them belong to pieces that are whole here; only these are looked at.
HEDDLE_INLINE std::string fault_of_bytes(const tensor_entry& e, std::span<const std::byte> bytes, std::int64_t begin,
                                         std::int64_t& checked);

HEDDLE_INLINE std::string join(const std::vector<std::int64_t>& numbers);
inline std::vector<std::int64_t> split_numbers(std::string_view text, const std::string& what) {
  std::vector<std::int64_t> numbers;
  while (!text.empty()) numbers.push_back(parse_number<std::int64_t>(next_field(text, ','), 10, what));
  return numbers;
}

// Bytes of that many elements are counted by 64 bits, whatever the type.
inline constexpr std::int64_t most_elements = (std::numeric_limits<std::int64_t>::max)() / 16;

// What is wrong with a region, or nothing.
HEDDLE_INLINE std::string region_fault(const tensor_region& r);

// Whether two faultless regions of one tensor have an element in common.
HEDDLE_INLINE bool overlap(const tensor_region& a, const tensor_region& b) noexcept;

inline std::string describe(const tensor_region& r) {
  return "[" + join(r.local) + "] at [" + join(r.offset) + "] of [" + join(r.global) + "]";
}

// Two parts of one tensor that share some elements without being the same, or nothing. Boxes that touch the sweep along
// one dimension together are compared with each other; it is the dimension in which the most of them begin apart.
// `covered`: gets the elements of all parts, replicas counted once, where nothing is found.
HEDDLE_INLINE std::optional<std::pair<std::size_t, std::size_t>> partial_overlap(
    std::span<const tensor_region* const> parts, std::int64_t* covered = nullptr);

// A line of an index, and back. `where` names the file in messages. Errors: `io_error`.
HEDDLE_INLINE std::string to_line(const tensor_entry& e);
HEDDLE_INLINE tensor_entry parse_entry(std::string_view line, const std::string& where);
// The end of a file, of 64 bytes, that says where the list behind its contents begins: `word`, and the checksum of that
// list.
HEDDLE_INLINE std::string file_tail(std::string_view word, std::int64_t begin, std::string_view list);
// The list, and where it begins. Errors: `io_error` if the file is cut off or damaged.
HEDDLE_INLINE std::string read_tail_list(const file_to_read& file, const std::string& where, std::string_view word,
                                         std::int64_t size, std::int64_t head, std::int64_t& begin);

inline constexpr std::string_view tensor_file_head = "heddle tensors 1\n";
inline constexpr std::size_t tensor_file_tail = 64;
inline constexpr std::int64_t tensor_alignment = 64;

}  // namespace detail

/// Where parts of tensors are written to: a file of a save, or memory of one to come.
class part_writer {
 public:
  /// Adds a part of tensor `name`; there may be several. Shapes: `values` has `region.count()` elements, row-major.
  template <class T>
  void add(std::string_view name, std::span<const T> values, const tensor_region& region) {
    static_assert(std::endian::native == std::endian::little,
                  "heddle: checkpoints are written on little-endian machines");
    add_part(name, dtype_name<T>(), std::as_bytes(values), region);
  }
  /// Adds a one-dimensional tensor that is whole here.
  template <class T>
  void add(std::string_view name, std::span<const T> values) {
    add(name, values, tensor_region::whole({static_cast<std::int64_t>(values.size())}));
  }
  /// The same of bytes of elements of a named type (`dtype_name`).
  virtual void add_part(std::string_view name, std::string_view dtype, std::span<const std::byte> bytes,
                        const tensor_region& region) = 0;

 protected:
  ~part_writer() = default;
};

/// Writes tensors one after another, each at a multiple of 64 bytes, then an index of them as text, then a tail of 64
/// bytes that says where the index is. Elements are little-endian and row-major.
/// Errors: `io_error` that names file and tensor.
class tensor_file_writer final : public part_writer {
 public:
  explicit tensor_file_writer(std::filesystem::path path) : tensor_file_writer(durable_file(std::move(path))) {}
  /// The same to a file that is open, or an object.
  explicit tensor_file_writer(durable_file file) : file_(std::move(file)) { file_.write(detail::tensor_file_head); }

  void add_part(std::string_view name, std::string_view dtype, std::span<const std::byte> bytes,
                const tensor_region& region) override;

  /// Writes index and tail; returns when everything is on the disk, with the size and checksum of the file.
  file_digest finish();

  const std::filesystem::path& path() const noexcept { return file_.path(); }

 private:
  durable_file file_;
  std::string index_;
  std::map<std::string, std::vector<tensor_region>, std::less<>> parts_;  // a tensor may come in several
};

/// The index of a tensor file. Errors: `io_error` if it is no tensor file, cut off or damaged, or no regular file (a
/// link is none).
HEDDLE_INLINE std::vector<tensor_entry> read_tensor_index(const std::filesystem::path& path);
namespace detail {
// The same of what is open, of so many bytes. `shown`: in messages.
HEDDLE_INLINE std::vector<tensor_entry> read_index_of(const file_to_read& file, std::int64_t size,
                                                      const std::filesystem::path& shown);
}  // namespace detail

/// The bytes of one entry. Errors: `io_error` that names file and tensor if they are not what was written.
HEDDLE_INLINE std::vector<std::byte> read_tensor_bytes(const std::filesystem::path& path, const tensor_entry& e);

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/tensor_file.hpp>
#endif
