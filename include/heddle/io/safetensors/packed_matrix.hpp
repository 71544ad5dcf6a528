// heddle/io/safetensors/packed_matrix.hpp: reads matrices packed in 2 to 8 bits.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/io/safetensors/entry.hpp>
#include <heddle/io/safetensors/input_file.hpp>
#include <heddle/tensor/quantized_weights.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::io::detail {

// A tensor as a file has it, and what counts the bytes that are read of the file.
struct stored_tensor {
  const input_file* file;
  const safetensors_entry* entry;
  std::atomic<std::int64_t>* read;
  std::string where() const;
};

// The tensors of one matrix. `shape`: of those that do not say how many columns the last word has.
struct packed_parts {
  stored_tensor codes, scales;
  std::optional<stored_tensor> zeros, groups, shape;
};

// How the names of these end in files of a form, behind the name of the layer; empty where it has none.
struct packed_names {
  const char *codes, *scales, *zeros, *groups, *shape;
};
constexpr packed_names names_of(quantized_weights::form how) noexcept {
  if (how == quantized_weights::form::gptq) return {".qweight", ".scales", ".qzeros", ".g_idx", ""};
  if (how == quantized_weights::form::awq) return {".qweight", ".scales", ".qzeros", "", ""};
  if (how == quantized_weights::form::stacked_mxfp4) return {"_blocks", "_scales", "", "", ""};
  if (how == quantized_weights::form::mxfp4) return {".weight_packed", ".weight_scale", "", "", ""};
  return {".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_g_idx", ".weight_shape"};
}

// A part of a matrix that is in memory: the words, scales and zero points of its rows and columns. The layouts of GPTQ and AWQ have neighbours
// of a row far from each other, so rows come by many at once.
struct packed_window {
  static constexpr std::int64_t tall = 256;  // rows
  std::int64_t row = 0, rows = 0, begin = 0, end = 0;
  bool has(std::int64_t r, std::int64_t from, std::int64_t to) const noexcept {
    return r >= row && r < row + rows && from >= begin && to <= end;
  }
};

class packed_matrix {
 public:
  // `name` is that of the matrix, which no file has. Errors: `io_error` for types and shapes that do not fit each other.
  HEDDLE_INLINE packed_matrix(const quantized_weights& how, std::string name, packed_parts parts);

  const safetensors_entry& entry() const noexcept { return entry_; }  // the bytes are those of the words
  const quantized_weights& how() const noexcept { return how_; }
  const packed_parts& parts() const noexcept { return given_; }
  std::string where() const { return parts_.codes.where(); }
  // Bytes of all its tensors.
  HEDDLE_INLINE std::int64_t stored_bytes() const noexcept;

  // Puts elements [first, first + count), row-major: put(k, value) for the k-th of them. Any number of threads. `also` counts the bytes, too.
  // Errors: `io_error` for groups that are not there, and for scales that are not finite.
  template <class Put>
  void read(std::int64_t first, std::int64_t count, std::atomic<std::int64_t>* also, Put&& put) {
    const std::scoped_lock lock(mutex_);
    for_each_piece(window_, first, count, [&](std::int64_t row, std::int64_t begin, std::int64_t end, bool moved) {
      if (moved) load(also);
      decode(row, begin, end);
      for (std::int64_t i = 0; i < end - begin; ++i)
        put(row * columns_ + begin + i - first, values_[static_cast<std::size_t>(i)]);
    });
  }
  // Bytes that the same read would take, where `window` is in memory.
  std::int64_t bytes_of_read(packed_window& window, std::int64_t first, std::int64_t count) const {
    std::int64_t bytes = 0;
    for_each_piece(window, first, count, [&](std::int64_t, std::int64_t, std::int64_t, bool moved) {
      if (moved)
        for (const rectangle& r : rectangles(window)) bytes += r.bytes();
    });
    return bytes;
  }

 private:
  // Rows and columns of one of the tensors.
  struct rectangle {
    const stored_tensor* of = nullptr;
    std::int64_t row = 0, rows = 0, column = 0, columns = 0;
    std::int64_t bytes() const noexcept { return of == nullptr ? 0 : rows * columns * of->entry->dtype.bits / 8; }
    std::int64_t at(std::int64_t r, std::int64_t c) const noexcept { return (r - row) * columns + c - column; }
  };
  enum part : std::size_t { codes, scales, zeros, groups, part_count };

  // f(row, begin, end, whether the window has moved) for the pieces of rows that these elements are.
  template <class F>
  void for_each_piece(packed_window& window, std::int64_t first, std::int64_t count, F&& f) const {
    const std::int64_t wide = columns_, behind = first + count, last = (behind - 1) / (wide > 0 ? wide : 1);
    while (first < behind) {
      const std::int64_t row = first / wide, begin = first % wide;
      const std::int64_t end = row == last ? (behind - 1) % wide + 1 : wide;
      const bool moves = !window.has(row, begin, end);
      if (moves) {
        // Where one piece is asked for, the rows below it are next: those of a rank that has some of the columns.
        const std::int64_t rows = (behind - first > end - begin ? last + 1 : rows_) - row;
        window = {row, rows < packed_window::tall ? rows : packed_window::tall, begin, end};
      }
      f(row, begin, end, moves);
      first += end - begin;
    }
  }
  HEDDLE_INLINE std::array<rectangle, part_count> rectangles(const packed_window& window) const;
  HEDDLE_INLINE void load(std::atomic<std::int64_t>* also);
  HEDDLE_INLINE void decode(std::int64_t row, std::int64_t begin, std::int64_t end);
  bool is(quantized_weights::form f) const noexcept { return how_.how == f; }
  // Whether a row of the matrix is one of the codes and of the scales.
  bool has_rows_first() const noexcept { return is(quantized_weights::form::packed) || is_mxfp4(); }
  bool is_mxfp4() const noexcept {
    return is(quantized_weights::form::mxfp4) || is(quantized_weights::form::stacked_mxfp4);
  }
  // Codes in a word, or in a byte.
  std::int64_t per_word() const noexcept { return is_mxfp4() ? 2 : 32 / how_.bits; }
  // Makes one matrix of those of all experts, one below the other. Errors: `io_error` for other shapes.
  HEDDLE_INLINE void join_experts();

  quantized_weights how_;
  packed_parts given_, parts_;                 // parts_: of matrices of experts that are joined
  std::array<safetensors_entry, 2> joined_{};  // their codes and scales
  safetensors_entry entry_;
  std::int64_t rows_ = 0, columns_ = 0;  // of the matrix, or of all experts' one below the other
  std::int64_t group_count_ = 1;
  std::mutex mutex_;
  packed_window window_;
  std::array<rectangle, part_count> loaded_{};
  std::vector<std::byte> bytes_;
  std::vector<std::uint32_t> words_, zero_words_;  // of MXFP4 a byte in each
  std::vector<std::int32_t> group_of_;
  std::vector<float> scales_;
  std::vector<double> values_;
};

}  // namespace heddle::inline v0::io::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/safetensors/packed_matrix.hpp>
#endif
