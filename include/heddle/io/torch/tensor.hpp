// heddle/io/torch/tensor.hpp: reads a tensor that lies in boxes in several files.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/io/safetensors/dtype.hpp>
#include <heddle/io/safetensors/input_file.hpp>
#include <heddle/io/torch/metadata.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::io {

namespace detail {

// Where the elements of a box are.
struct placed_chunk {
  const input_file* file = nullptr;
  std::int64_t begin = 0;  // of its first element in the file
};
}  // namespace detail

/// A tensor in files that are open: what `tensor_source` asks for. It is valid as long as its folder; any number of
/// threads may read it.
class torch_tensor {
 public:
  torch_tensor(const torch_record& record, const std::vector<detail::placed_chunk>& places, const std::string& folder)
      : record_(&record), places_(&places), folder_(&folder) {}

  std::span<const std::int64_t> shape() const noexcept { return record_->shape; }
  std::string_view dtype() const noexcept { return record_->dtype.name; }
  /// Folder and tensor, for errors.
  std::string where() const { return "'" + *folder_ + "', tensor '" + shown_name(record_->name) + "'"; }

  /// Reads `out.size()` elements from element `first` on, in row-major order, converted (`convert_elements`): of each
  /// box that has some of them those, run by run, short runs through up to 256 KiB that are read ahead.
  /// Errors: `io_error` if the tensor has not so many, if its type does not convert to T, and if a file is
  /// shorter than it was. That a file has changed is looked at when the tensor is asked for.
  template <class T>
  void read(std::int64_t first, std::span<T> out) const {
    const auto n = static_cast<std::int64_t>(out.size()), have = record_->count();
    if (first < 0 || n > have || first > have - n)
      throw io_error("heddle: " + where() + " has " + std::to_string(have) + " elements, not " + std::to_string(n) +
                     " from " + std::to_string(first) + " on");
    if (!converts_to<T>(dtype()))
      throw io_error("heddle: " + where() + ": elements of " + std::string(dtype()) + " do not convert to " +
                     std::string(safetensors_dtype_name<T>()));
    std::size_t box = 0;
    std::vector<window> ahead;
    std::vector<std::int64_t> index(record_->shape.size());
    for (std::int64_t done = 0; done < n;) {
      for (std::int64_t d = std::ssize(index), rest = first + done; d-- > 0;) {
        const std::int64_t extent = record_->shape[static_cast<std::size_t>(d)];
        index[static_cast<std::size_t>(d)] = rest % extent;
        rest /= extent;
      }
      box = box_of(index, box);
      std::int64_t at = 0;
      const std::int64_t count = (std::min)(n - done, run_in(record_->chunks[box], index, at));
      const auto to = out.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count));
      // What is wanted of a box is one stretch of it, of short runs in a tensor that is cut along its last dimensions.
      std::int64_t held = 1;
      for (const std::int64_t extent : record_->chunks[box].extents) held *= extent;
      if (const std::int64_t wanted = (std::min)(n - done, held - at); wanted > count && is_short(count)) {
        ahead.resize(record_->chunks.size());
        read_short(ahead[box], (*places_)[box], at, wanted, to);
      } else {
        read_run((*places_)[box], at, to);
      }
      done += count;
    }
  }

 private:
  // Elements of a box that have been read before they are asked for.
  struct window {
    std::int64_t first = 0, end = 0;
    std::vector<std::byte> bytes{};
  };
  static constexpr std::int64_t ahead_bytes = std::int64_t{1} << 18;
  bool is_short(std::int64_t count) const noexcept { return count * (record_->dtype.bits / 8) < ahead_bytes / 4; }
  template <class T>
  void read_short(window& w, const detail::placed_chunk& place, std::int64_t at, std::int64_t wanted,
                  std::span<T> out) const {
    const std::int64_t element = record_->dtype.bits / 8, count = std::ssize(out);
    if (at < w.first || at + count > w.end) {
      w.first = at;
      w.end = at + (std::min)(wanted, ahead_bytes / element);
      w.bytes.resize(static_cast<std::size_t>((w.end - w.first) * element));
      place.file->read(place.begin + at * element, w.bytes);
    }
    convert_elements(dtype(), w.bytes.data() + (at - w.first) * element, out.data(), count);
  }
  static bool holds(const torch_chunk& c, const std::vector<std::int64_t>& index) noexcept {
    for (std::size_t d = 0; d < index.size(); ++d)
      if (index[d] < c.offset[d] || index[d] - c.offset[d] >= c.extents[d]) return false;
    return true;
  }
  // `last`: where the element before it was.
  std::size_t box_of(const std::vector<std::int64_t>& index, std::size_t last) const {
    const auto& all = record_->chunks;
    for (std::size_t k = 0; k < all.size(); ++k)
      if (const std::size_t box = (last + k) % all.size(); holds(all[box], index)) return box;
    throw io_error("heddle: " + where() + ": no part has an element of it");
  }
  // How many elements from `index` on follow each other both in the tensor and in the box, and at which element of the
  // box they begin.
  std::int64_t run_in(const torch_chunk& c, const std::vector<std::int64_t>& index, std::int64_t& at) const {
    std::int64_t run = 1, stride = 1;
    bool whole = true;  // the dimensions behind this one
    at = 0;
    for (std::size_t d = index.size(); d-- > 0;) {
      const std::int64_t in_box = index[d] - c.offset[d];
      at += in_box * stride;
      if (whole) run = (c.extents[d] - in_box) * stride - at + in_box * stride;
      whole = whole && c.extents[d] == record_->shape[d];
      stride *= c.extents[d];
    }
    return run;
  }
  template <class T>
  void read_run(const detail::placed_chunk& place, std::int64_t at, std::span<T> out) const {
    const std::int64_t element = record_->dtype.bits / 8;
    if (!std::is_same_v<T, bool> && dtype() == safetensors_dtype_name<T>())
      return place.file->read(place.begin + at * element, std::as_writable_bytes(out));
    std::array<std::byte, 8192> piece;
    for (std::int64_t done = 0, n = std::ssize(out); done < n;) {
      const std::int64_t count = (std::min)(n - done, std::ssize(piece) / element);
      place.file->read(place.begin + (at + done) * element,
                       std::span(piece).first(static_cast<std::size_t>(count * element)));
      convert_elements(dtype(), piece.data(), out.data() + done, count);
      done += count;
    }
  }

  const torch_record* record_;
  const std::vector<detail::placed_chunk>* places_;
  const std::string* folder_;
};

}  // namespace heddle::inline v0::io
