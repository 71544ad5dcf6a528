// heddle/io/safetensors/entry.hpp: entries of a safetensors header, and their rules.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/io/safetensors/dtype.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// A tensor of a safetensors file. Units: `begin` and `end` are offsets in the file, in bytes.
struct safetensors_entry {
  std::string name;
  safetensors_dtype dtype;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, end = 0;

  /// Elements.
  std::int64_t count() const noexcept {
    std::int64_t n = 1;
    for (const std::int64_t e : shape) n *= e;
    return n;
  }
  std::int64_t bytes() const noexcept { return end - begin; }
};

/// The header of a safetensors file: its tensors in the order of their data, and its metadata in the order of the file.
struct safetensors_header {
  std::vector<safetensors_entry> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::int64_t data_begin = 0;  ///< offset of the first byte behind the header
};

/// The longest header that is read or written, in bytes. Source: safetensors, `MAX_HEADER_SIZE`.
inline constexpr std::int64_t most_safetensors_header = 100000000;

namespace detail {

inline std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d) text += (d > 0 ? "," : "") + std::to_string(shape[d]);
  return text + "]";
}

/// Bytes of a tensor, or -1 where they leave 63 bits, or -2 where they are not whole.
inline std::int64_t safetensors_bytes(const safetensors_dtype& dtype, const std::vector<std::int64_t>& shape) noexcept {
  constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)();
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    std::int64_t n = 1;  // the reference multiplies in order: what leaves 64 bits before the zero is refused there too
    for (const std::int64_t e : shape) {
      if (e != 0 && n > most / e) return -1;
      n *= e;
    }
    return 0;
  }
  std::int64_t bits = dtype.bits;
  for (const std::int64_t e : shape) {
    if (bits > most / e) return -1;
    bits *= e;
  }
  return bits % 8 == 0 ? bits / 8 : -2;
}

// Sorts the tensors by their data; checks that each has the bytes of its shape and that together they fill the data, in
// order, without holes. `file` is the size of the file; `where` begins errors. Offsets count from the data's begin
// before, from the file's after.
inline void settle_entries(safetensors_header& h, std::int64_t file, const std::string& where) {
  const auto at = [&](const safetensors_entry& e) {
    return where + "tensor '" + shown_name(e.name) + "', offset " + std::to_string(e.begin) + " of the data: ";
  };
  std::vector<std::size_t> order(h.tensors.size());  // tensors without elements stay in the order of the header
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t k) {
    const safetensors_entry &a = h.tensors[i], &b = h.tensors[k];
    return a.begin != b.begin ? a.begin < b.begin : a.end != b.end ? a.end < b.end : i < k;
  });
  std::vector<safetensors_entry> sorted;
  for (const std::size_t i : order) sorted.push_back(std::move(h.tensors[i]));
  h.tensors = std::move(sorted);
  const std::int64_t data = file - h.data_begin;
  std::int64_t filled = 0;
  for (const safetensors_entry& e : h.tensors) {
    const std::int64_t bytes = safetensors_bytes(e.dtype, e.shape);
    if (bytes == -1)
      throw io_error(at(e) + "the shape " + shown_extents(e.shape) + " of " + std::string(e.dtype.name) +
                     " has more bytes than 64 bits count");
    if (bytes == -2)
      throw io_error(at(e) + "the shape " + shown_extents(e.shape) + " of " + std::string(e.dtype.name) +
                     " ends inside a byte");
    if (e.end < e.begin) throw io_error(at(e) + "it ends at " + std::to_string(e.end) + ", before it begins");
    if (e.begin != filled)
      throw io_error(at(e) +
                     (e.begin < filled ? "it overlaps the tensor before it, which ends at "
                                       : "nothing fills the bytes before it; it was expected at ") +
                     std::to_string(filled));
    if (e.end - e.begin != bytes)
      throw io_error(at(e) + std::string(e.dtype.name) + " " + shown_extents(e.shape) + " has " +
                     std::to_string(bytes) + " bytes, its offsets say " + std::to_string(e.end - e.begin));
    if (e.end > data)
      throw io_error(at(e) + "it ends at " + std::to_string(e.end) + ", the file's data at " + std::to_string(data) +
                     ": the file is cut off");
    filled = e.end;
  }
  if (filled != data)
    throw io_error(where + "offset " + std::to_string(h.data_begin + filled) + ": " + std::to_string(data - filled) +
                   " bytes behind the last tensor");
  for (safetensors_entry& e : h.tensors) e.begin += h.data_begin, e.end += h.data_begin;
}

}  // namespace detail
}  // namespace heddle::inline v0::io
