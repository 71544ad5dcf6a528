// heddle/io/impl/safetensors/packed_matrix.hpp: bodies of heddle/io/safetensors/packed_matrix.hpp.
#pragma once

#include <heddle/io/safetensors/packed_matrix.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/core/text.hpp>
#include <heddle/io/safetensors/dtype.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::io::detail {

inline constexpr std::int64_t parts_of(std::int64_t extent, std::int64_t each) noexcept {
  return extent / each + (extent % each != 0);
}
// Errors: `io_error` unless the tensor has one of the types and the shape.
inline void require_stored(const stored_tensor& t, std::string_view types, const std::vector<std::int64_t>& shape,
                           const std::string& because) {
  if ((" " + std::string(types) + " ").find(" " + std::string(t.entry->dtype.name) + " ") == std::string::npos)
    throw io_error("heddle: " + t.where() + " should be one of " + std::string(types) + ", it is " +
                   std::string(t.entry->dtype.name));
  if (t.entry->shape != shape)
    throw io_error("heddle: " + t.where() + ": " + because + " needs the shape " + shown_extents(shape) + ", it is " +
                   shown_extents(t.entry->shape));
}

HEDDLE_INLINE std::string stored_tensor::where() const {
  return "'" + file->path().string() + "', tensor '" + shown_name(entry->name) + "'";
}

HEDDLE_INLINE packed_matrix::packed_matrix(const quantized_weights& how, std::string name, packed_parts all)
    : how_(how), given_(all), parts_(all) {
  if (is(quantized_weights::form::stacked_mxfp4)) join_experts();
  const std::int64_t bits = how.bits, per = per_word();
  const stored_tensor& codes = parts_.codes;
  const std::string_view type = is_mxfp4() ? "U8" : "I32";
  const std::vector<std::int64_t>& stored = codes.entry->shape;
  if (codes.entry->dtype.name != type || stored.size() != 2)
    throw io_error("heddle: " + where() + " should be a matrix of " + std::string(type) + ", it is " +
                   std::string(codes.entry->dtype.name) + " " + shown_extents(stored));
  constexpr std::int64_t most = std::int64_t{1} << 40;
  if (stored[0] > most || stored[1] > most)
    throw io_error("heddle: " + where() + " has more than 2^40 rows or columns");
  std::int64_t out = 0, in = 0;
  if (is(quantized_weights::form::gptq)) {
    if (stored[0] * 32 % bits != 0)
      throw io_error("heddle: " + where() + ": " + std::to_string(stored[0]) +
                     " rows of words hold no whole numbers of " + std::to_string(bits) + " bits");
    in = stored[0] * 32 / bits, out = stored[1];
  } else if (is(quantized_weights::form::awq)) {
    in = stored[0], out = stored[1] * per;
  } else if (is_mxfp4()) {
    out = stored[0], in = stored[1] * per;
  } else {
    const stored_tensor& says = *parts_.shape;
    require_stored(says, "I64 I32", {2}, "the shape of a matrix");
    std::array<std::int64_t, 2> shape{};
    std::array<std::byte, 16> raw{};
    says.file->read(says.entry->begin, std::span(raw).first(static_cast<std::size_t>(says.entry->bytes())));
    for (std::size_t d = 0; d < 2; ++d)
      shape[d] = says.entry->dtype.bits == 64 ? load_as<std::int64_t>(raw.data() + 8 * d)
                                              : std::int64_t{load_as<std::int32_t>(raw.data() + 4 * d)};
    out = shape[0], in = shape[1];
    if (out != stored[0] || in < 0 || in > most || parts_of(in, per) != stored[1])
      throw io_error("heddle: " + where() + ": words of the shape " + shown_extents(stored) + " do not hold " +
                     std::to_string(bits) + " bits each of a matrix of shape " +
                     shown_extents(std::vector<std::int64_t>{out, in}) + ", which '" + shown_name(says.entry->name) +
                     "' says");
  }
  group_count_ = how.group > 0 ? parts_of(in, how.group) : 1;
  const std::string because = std::to_string(bits) + " bits and " +
                              (how.group > 0 ? "groups of " + std::to_string(how.group) + " columns" : "one group") +
                              " of a matrix of shape " + shown_extents(std::vector<std::int64_t>{out, in});
  const bool rows_first = has_rows_first();
  require_stored(parts_.scales, is_mxfp4() ? "U8 F8_E8M0" : "F16 BF16 F32",
                 rows_first ? std::vector{out, group_count_} : std::vector{group_count_, out}, because);
  if (parts_.zeros)
    require_stored(*parts_.zeros, "I32",
                   rows_first ? std::vector{parts_of(out, per), group_count_}
                              : std::vector{group_count_, parts_of(out * bits, 32)},
                   because);
  if (parts_.groups) require_stored(*parts_.groups, "I32", {in}, because);
  rows_ = out, columns_ = in;
  entry_ = {std::move(name), codes.entry->dtype, {out, in}, codes.entry->begin, codes.entry->end};
  if (is(quantized_weights::form::stacked_mxfp4)) {
    const std::vector<std::int64_t>& blocks = given_.codes.entry->shape;
    entry_.shape = {blocks[0], blocks[1], in};
  }
}

HEDDLE_INLINE void packed_matrix::join_experts() {
  const std::vector<std::int64_t>& blocks = given_.codes.entry->shape;
  constexpr std::int64_t bytes = 16, most = std::int64_t{1} << 20;
  if (blocks.size() != 4 || blocks[3] != bytes || blocks[0] > most || blocks[1] > most || blocks[2] > most)
    throw io_error("heddle: " + where() +
                   " should be blocks of 32 numbers in 4 bits, [experts, out, in / 32, 16], it is " +
                   shown_extents(blocks));
  require_stored(given_.scales, "U8 F8_E8M0", {blocks[0], blocks[1], blocks[2]},
                 "an exponent for each block of '" + shown_name(given_.codes.entry->name) + "'");
  joined_ = {*given_.codes.entry, *given_.scales.entry};
  joined_[0].shape = {blocks[0] * blocks[1], blocks[2] * bytes};
  joined_[1].shape = {blocks[0] * blocks[1], blocks[2]};
  parts_.codes.entry = &joined_[0];
  parts_.scales.entry = &joined_[1];
}

HEDDLE_INLINE std::int64_t packed_matrix::stored_bytes() const noexcept {
  std::int64_t bytes = parts_.codes.entry->bytes() + parts_.scales.entry->bytes();
  for (const auto& other : {parts_.zeros, parts_.groups, parts_.shape})
    if (other) bytes += other->entry->bytes();
  return bytes;
}

HEDDLE_INLINE std::array<packed_matrix::rectangle, packed_matrix::part_count> packed_matrix::rectangles(
    const packed_window& w) const {
  const std::int64_t bits = how_.bits, per = per_word(), top = w.row, below = w.row + w.rows;
  const bool some = how_.group > 0 && !parts_.groups;  // else all groups, or the one
  const std::int64_t g = some ? w.begin / how_.group : 0;
  const std::int64_t count = (some ? (w.end - 1) / how_.group + 1 : group_count_) - g;
  std::array<rectangle, part_count> all;
  // From first to behind, as a row or column and how many there are.
  const auto from = [](std::int64_t first, std::int64_t behind) { return std::pair(first, behind - first); };
  const auto set = [&](part which, const stored_tensor& t, std::pair<std::int64_t, std::int64_t> rows,
                       std::pair<std::int64_t, std::int64_t> columns) {
    all[which] = {&t, rows.first, rows.second, columns.first, columns.second};
  };
  const auto of_rows = from(top, below), of_groups = from(g, g + count);
  if (has_rows_first()) {
    set(codes, parts_.codes, of_rows, from(w.begin / per, parts_of(w.end, per)));
    set(scales, parts_.scales, of_rows, of_groups);
    if (parts_.zeros) set(zeros, *parts_.zeros, from(top / per, parts_of(below, per)), of_groups);
  } else {
    const auto words = from(top * bits / 32, parts_of(below * bits, 32));
    if (is(quantized_weights::form::gptq))
      set(codes, parts_.codes, from(w.begin * bits / 32, parts_of(w.end * bits, 32)), of_rows);
    else
      set(codes, parts_.codes, from(w.begin, w.end), words);
    set(scales, parts_.scales, of_groups, of_rows);
    if (parts_.zeros) set(zeros, *parts_.zeros, of_groups, words);
  }
  if (parts_.groups) set(groups, *parts_.groups, from(0, 1), from(w.begin, w.end));
  return all;
}

HEDDLE_INLINE void packed_matrix::load(std::atomic<std::int64_t>* also) {
  packed_window here{};
  std::swap(here, window_);  // what a failing read leaves is not looked at
  loaded_ = rectangles(here);
  const auto read = [&](const rectangle& r) {
    const std::int64_t size = r.of->entry->dtype.bits / 8, wide = r.of->entry->shape.back();
    bytes_.resize(static_cast<std::size_t>(r.bytes()));
    const std::int64_t rows = r.columns == wide ? 1 : r.rows, run = r.bytes() / (rows > 0 ? rows : 1);
    for (std::int64_t i = 0; i < rows; ++i)
      r.of->file->read(r.of->entry->begin + ((r.row + i) * wide + r.column) * size,
                       std::span(bytes_).subspan(static_cast<std::size_t>(i * run), static_cast<std::size_t>(run)));
    r.of->read->fetch_add(r.bytes(), std::memory_order_relaxed);
    if (also != nullptr) also->fetch_add(r.bytes(), std::memory_order_relaxed);
  };
  const auto take = [&](part which, auto& to) {
    to.clear();
    if (loaded_[which].of == nullptr) return;
    read(loaded_[which]);
    to.resize(static_cast<std::size_t>(loaded_[which].rows * loaded_[which].columns));
    const bool is_bytes = loaded_[which].of->entry->dtype.bits == 8;
    if constexpr (std::is_same_v<decltype(to.data()), float*>) {
      if (!is_bytes) convert_elements(loaded_[which].of->entry->dtype.name, bytes_.data(), to.data(), std::ssize(to));
      for (std::size_t i = 0; is_bytes && i < bytes_.size(); ++i)  // 2^(e - 127), and 255 is no number
        to[i] = bytes_[i] == std::byte{255} ? std::numeric_limits<float>::quiet_NaN()
                                            : std::ldexp(1.0f, std::to_integer<int>(bytes_[i]) - 127);
    } else if (is_bytes) {
      for (std::size_t i = 0; i < bytes_.size(); ++i) to[i] = std::to_integer<std::uint8_t>(bytes_[i]);
    } else {
      std::memcpy(to.data(), bytes_.data(), bytes_.size());
    }
  };
  take(codes, words_);
  take(zeros, zero_words_);
  take(groups, group_of_);
  take(scales, scales_);
  parts_.codes.file->require_unchanged();
  for (const float s : scales_)
    if (!std::isfinite(s))
      throw io_error("heddle: " + parts_.scales.where() + ": a scale should be finite, got " + number_text(s));
  for (std::size_t i = 0; i < group_of_.size(); ++i)
    if (group_of_[i] < 0 || group_of_[i] >= group_count_)
      throw io_error("heddle: " + parts_.groups->where() + ": column " +
                     std::to_string(here.begin + static_cast<std::int64_t>(i)) + " is of group " +
                     std::to_string(group_of_[i]) + ", the matrix has " + std::to_string(group_count_));
  window_ = here;
}

HEDDLE_INLINE void packed_matrix::decode(std::int64_t row, std::int64_t begin, std::int64_t end) {
  values_.resize(static_cast<std::size_t>(end - begin));
  const int bits = how_.bits;
  const std::uint32_t mask = (1u << bits) - 1;
  const std::int64_t per = per_word();
  const auto word = [](const std::vector<std::uint32_t>& of, std::int64_t at) {
    return of[static_cast<std::size_t>(at)];
  };
  // Numbers one behind the other, those of 3 bits across two words: `next` is how far the next word is.
  const auto along = [&](const std::vector<std::uint32_t>& of, std::int64_t at, std::int64_t next, std::int64_t bit) {
    const int low = static_cast<int>(bit % 32);
    std::uint32_t v = word(of, at) >> low;
    if (low + bits > 32) v |= word(of, at + next) << (32 - low);
    return v & mask;
  };
  // The columns of eight are 0 2 4 6 1 3 5 7 there.
  constexpr int places[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  const auto interleaved = [&](const std::vector<std::uint32_t>& of, std::int64_t at) {
    return (word(of, at) >> (4 * places[row % 8])) & mask;
  };
  const rectangle &c = loaded_[codes], &z = loaded_[zeros], &s = loaded_[scales];
  const auto code = [&](std::int64_t i) {
    if (is(quantized_weights::form::gptq)) return along(words_, c.at(i * bits / 32, row), c.columns, i * bits);
    if (is(quantized_weights::form::awq)) return interleaved(words_, c.at(i, row / per));
    return along(words_, c.at(row, i / per), 0, i % per * bits);
  };
  const auto zero = [&](std::int64_t g) {
    if (zero_words_.empty()) return 1u << (bits - 1);
    if (is(quantized_weights::form::gptq))
      return (along(zero_words_, z.at(g, row * bits / 32), 1, row * bits) + (how_.zeros_one_less ? 1u : 0u)) & mask;
    if (is(quantized_weights::form::awq)) return interleaved(zero_words_, z.at(g, row / per));
    return along(zero_words_, z.at(row / per, g), 0, row % per * bits);
  };
  // Of E2M1, twice: a sign and three bits.
  constexpr int twice[8] = {0, 1, 2, 3, 4, 6, 8, 12};
  std::int64_t group = -1;
  std::int64_t from = 0;
  double scale = 0;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t g = !group_of_.empty() ? group_of_[static_cast<std::size_t>(i - loaded_[groups].column)]
                           : how_.group > 0   ? i / how_.group
                                              : 0;
    if (g != group) {
      group = g;
      from = zero(g);
      const auto at = has_rows_first() ? s.at(row, g) : s.at(g, row);
      scale = static_cast<double>(scales_[static_cast<std::size_t>(at)]);
    }
    if (is_mxfp4()) {
      const double size = twice[code(i) & 7] * 0.5 * scale;
      values_[static_cast<std::size_t>(i - begin)] = code(i) >= 8 ? -size : size;
      continue;
    }
    // Of at most 9 and 24 bits: exact.
    values_[static_cast<std::size_t>(i - begin)] = static_cast<double>(std::int64_t{code(i)} - from) * scale;
  }
}

}  // namespace heddle::inline v0::io::detail
