// heddle/io/tensor_file.hpp: a file of named tensors, or of the parts of them that one rank holds.
#pragma once

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
#include <functional>
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
  static std::int64_t elements_of(const std::vector<std::int64_t>& extents) noexcept {
    constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)();
    std::int64_t n = 1;
    for (const std::int64_t e : extents)
      if (e <= 0) return 0;
    for (const std::int64_t e : extents) n = n > most / e ? most : n * e;
    return n;
  }
  friend bool operator==(const tensor_region&, const tensor_region&) = default;
};

/// One entry of a tensor file.
struct tensor_entry {
  std::string name;
  std::string dtype;
  tensor_region region;
  std::int64_t position = 0;  ///< of the first byte in the file
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;
};

namespace detail {

inline std::string join(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t n : numbers) {
    if (!text.empty()) text += ',';
    text += std::to_string(n);
  }
  return text;
}
inline std::vector<std::int64_t> split_numbers(std::string_view text, const std::string& what) {
  std::vector<std::int64_t> numbers;
  while (!text.empty()) numbers.push_back(parse_number<std::int64_t>(next_field(text, ','), 10, what));
  return numbers;
}

// Bytes of that many elements are counted by 64 bits, whatever the type.
inline constexpr std::int64_t most_elements = (std::numeric_limits<std::int64_t>::max)() / 16;

// What is wrong with a region, or nothing.
inline std::string region_fault(const tensor_region& r) {
  if (r.offset.size() != r.global.size() || r.local.size() != r.global.size())
    return "its global shape, offset and local shape have " + std::to_string(r.global.size()) + ", " +
           std::to_string(r.offset.size()) + " and " + std::to_string(r.local.size()) + " dimensions";
  for (std::size_t d = 0; d < r.global.size(); ++d)
    if (r.global[d] < 0 || r.offset[d] < 0 || r.local[d] < 0 || r.local[d] > r.global[d] - r.offset[d])
      return "dimension " + std::to_string(d) + " of extent " + std::to_string(r.global[d]) + " has no " +
             std::to_string(r.local[d]) + " elements from index " + std::to_string(r.offset[d]) + " on";
  if (tensor_region::elements_of(r.global) > most_elements)
    return "the shape [" + join(r.global) + "] has more than " + std::to_string(most_elements) + " elements";
  return {};
}

// Whether two faultless regions of one tensor have an element in common.
inline bool overlap(const tensor_region& a, const tensor_region& b) noexcept {
  bool common = a.count() > 0 && b.count() > 0;
  for (std::size_t d = 0; common && d < a.global.size(); ++d)
    common = a.offset[d] < b.offset[d] + b.local[d] && b.offset[d] < a.offset[d] + a.local[d];
  return common;
}

inline std::string describe(const tensor_region& r) {
  return "[" + join(r.local) + "] at [" + join(r.offset) + "] of [" + join(r.global) + "]";
}

// Two parts of one tensor that share some elements without being the same, or nothing. Boxes that touch the sweep along
// one dimension together are compared with each other; it is the dimension in which the most of them begin apart.
inline std::optional<std::pair<std::size_t, std::size_t>> partial_overlap(std::span<const tensor_region* const> parts) {
  if (parts.size() < 2) return {};
  const std::size_t dims = parts[0]->global.size();
  std::size_t sweep = 0, most = 0;
  for (std::size_t d = 0; d < dims; ++d) {
    std::vector<std::int64_t> begins;
    for (const tensor_region* r : parts) begins.push_back(r->offset[d]);
    std::sort(begins.begin(), begins.end());
    const auto apart = static_cast<std::size_t>(std::unique(begins.begin(), begins.end()) - begins.begin());
    if (apart > most) most = apart, sweep = d;
  }
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i]->count() > 0) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t k) {
    const tensor_region &a = *parts[i], &b = *parts[k];
    if (dims > 0 && a.offset[sweep] != b.offset[sweep]) return a.offset[sweep] < b.offset[sweep];
    return a.offset != b.offset ? a.offset < b.offset : a.local != b.local ? a.local < b.local : i < k;
  });
  std::vector<std::size_t> open;  // those that reach beyond where the sweep stands
  const tensor_region* last = nullptr;
  for (const std::size_t i : order) {
    const tensor_region& r = *parts[i];
    if (last != nullptr && r == *last) continue;  // a replica
    last = &r;
    std::size_t kept = 0;
    for (const std::size_t k : open) {
      if (overlap(*parts[k], r)) return std::pair((std::min)(i, k), (std::max)(i, k));
      if (parts[k]->offset[sweep] + parts[k]->local[sweep] > r.offset[sweep]) open[kept++] = k;
    }
    open.resize(kept);
    open.push_back(i);
  }
  return {};
}

inline constexpr std::string_view tensor_file_head = "heddle tensors 1\n";
inline constexpr std::size_t tensor_file_tail = 64;
inline constexpr std::int64_t tensor_alignment = 64;

}  // namespace detail

/// Writes tensors one after another, each at a multiple of 64 bytes, then an index of them as text, then a tail of 64
/// bytes that says where the index is. Elements are little-endian and row-major.
/// Errors: `io_error` that names file and tensor.
class tensor_file_writer {
 public:
  explicit tensor_file_writer(std::filesystem::path path) : file_(std::move(path)) {
    file_.write(detail::tensor_file_head);
  }

  /// Adds a part of a tensor. Shapes: `values` has `region.count()` elements, row-major.
  template <class T>
  void add(std::string_view name, std::span<const T> values, const tensor_region& region) {
    static_assert(std::endian::native == std::endian::little,
                  "heddle: checkpoints are written on little-endian machines");
    const std::string where = "heddle: '" + file_.path().string() + "', tensor '" + std::string(name) + "': ";
    if (name.empty() || name.find_first_of("\t\n") != std::string_view::npos)
      throw io_error(where + "a name needs at least one character, and no tab or line break");
    if (const std::string fault = detail::region_fault(region); !fault.empty()) throw io_error(where + fault);
    if (static_cast<std::int64_t>(values.size()) != region.count())
      throw io_error(where + "the local shape [" + detail::join(region.local) + "] has " +
                     std::to_string(region.count()) + " elements, got " + std::to_string(values.size()));
    std::vector<tensor_region>& parts = parts_[std::string(name)];
    for (const tensor_region& earlier : parts) {
      if (earlier.offset == region.offset)
        throw io_error(where + "the part at [" + detail::join(region.offset) + "] was added before");
      if (earlier.global == region.global && detail::overlap(earlier, region))
        throw io_error(where + "the part " + detail::describe(region) + " overlaps " + detail::describe(earlier) +
                       ", which was added before");
    }
    parts.push_back(region);
    static constexpr std::array<std::byte, detail::tensor_alignment> zeros{};
    if (const std::int64_t over = file_.bytes() % detail::tensor_alignment; over > 0)
      file_.write(std::span<const std::byte>(zeros).first(static_cast<std::size_t>(detail::tensor_alignment - over)));
    const auto bytes = std::as_bytes(values);
    index_ += std::string(name) + '\t' + std::string(dtype_name<T>()) + '\t' + detail::join(region.global) + '\t' +
              detail::join(region.offset) + '\t' + detail::join(region.local) + '\t' + std::to_string(file_.bytes()) +
              '\t' + std::to_string(bytes.size()) + '\t' + to_hex(io::checksum(bytes)) + '\n';
    file_.write(bytes);
  }

  /// Writes index and tail; returns when everything is on the disk, with the size and checksum of the file.
  file_digest finish() {
    std::string tail = "\nindex " + to_hex(static_cast<std::uint64_t>(file_.bytes())) + " " +
                       to_hex(io::checksum(std::as_bytes(std::span<const char>(index_))));
    tail.resize(detail::tensor_file_tail - 1, ' ');
    file_.write(index_);
    file_.write(tail + "\n");
    file_.close();
    return {file_.bytes(), file_.checksum()};
  }

  const std::filesystem::path& path() const noexcept { return file_.path(); }

 private:
  durable_file file_;
  std::string index_;
  std::map<std::string, std::vector<tensor_region>, std::less<>> parts_;  // a tensor may come in several
};

/// The index of a tensor file. Errors: `io_error` if the file is no tensor file, cut off or damaged.
inline std::vector<tensor_entry> read_tensor_index(const std::filesystem::path& path) {
  const std::string where = "heddle: '" + path.string() + "': ";
  std::error_code ec;
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path, ec));
  if (ec) throw io_error(where + "cannot be read: " + ec.message());
  const auto head_bytes = static_cast<std::int64_t>(detail::tensor_file_head.size());
  const auto tail_bytes = static_cast<std::int64_t>(detail::tensor_file_tail);
  const auto text_at = [&path](std::int64_t offset, std::int64_t count) {
    const auto bytes = read_bytes(path, offset, count);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  if (size < head_bytes || text_at(0, head_bytes) != detail::tensor_file_head)
    throw io_error(where + "is not a heddle tensor file of version 1");
  const std::string tail = size < head_bytes + tail_bytes ? std::string{} : text_at(size - tail_bytes, tail_bytes);
  if (tail.substr(0, 7) != "\nindex ") throw io_error(where + "is cut off: it has no index");
  const auto begin = static_cast<std::int64_t>(
      detail::parse_number<std::uint64_t>(std::string_view(tail).substr(7, 16), 16, where + "index offset"));
  if (begin < head_bytes || begin > size - tail_bytes) throw io_error(where + "is damaged: its index lies outside it");
  const std::string index = text_at(begin, size - tail_bytes - begin);
  if (to_hex(checksum(std::as_bytes(std::span<const char>(index)))) != tail.substr(24, 16))
    throw io_error(where + "is damaged: the checksum of its index is wrong");
  std::vector<tensor_entry> entries;
  for (std::string_view rest = index; !rest.empty();) {
    std::string_view line = detail::next_field(rest, '\n');
    tensor_entry e;
    e.name = std::string(detail::next_field(line, '\t'));
    const std::string what = where + "tensor '" + e.name + "'";
    e.dtype = std::string(detail::next_field(line, '\t'));
    e.region.global = detail::split_numbers(detail::next_field(line, '\t'), what);
    e.region.offset = detail::split_numbers(detail::next_field(line, '\t'), what);
    e.region.local = detail::split_numbers(detail::next_field(line, '\t'), what);
    e.position = detail::parse_number<std::int64_t>(detail::next_field(line, '\t'), 10, what);
    e.bytes = detail::parse_number<std::int64_t>(detail::next_field(line, '\t'), 10, what);
    e.checksum = detail::parse_number<std::uint64_t>(line, 16, what);
    const std::string fault = detail::region_fault(e.region);
    if (!fault.empty()) throw io_error(what + ": " + fault);
    if (dtype_bytes(e.dtype) == 0 || e.bytes != e.region.count() * dtype_bytes(e.dtype) || e.position < head_bytes ||
        e.position > begin || e.bytes > begin - e.position)
      throw io_error(what + ": " + std::to_string(e.bytes) + " bytes at " + std::to_string(e.position) +
                     " do not fit " + e.dtype + " [" + detail::join(e.region.local) + "]");
    entries.push_back(std::move(e));
  }
  return entries;
}

/// The bytes of one entry. Errors: `io_error` that names file and tensor if they are not what was written.
inline std::vector<std::byte> read_tensor_bytes(const std::filesystem::path& path, const tensor_entry& e) {
  auto bytes = read_bytes(path, e.position, e.bytes);
  if (const std::uint64_t sum = checksum(bytes); sum != e.checksum)
    throw io_error("heddle: '" + path.string() + "', tensor '" + e.name + "': is damaged: its checksum is " +
                   to_hex(sum) + ", " + to_hex(e.checksum) + " was written");
  return bytes;
}

}  // namespace heddle::inline v0::io
