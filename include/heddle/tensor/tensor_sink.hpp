// heddle/tensor/tensor_sink.hpp: writes a rank's part of a tensor into a named sink.
#pragma once

#include <heddle/tensor/runs.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0 {

/// What elements of type T can be written to by the name of a tensor: `tensor(name)` has the `shape()` of the whole, says `where()` it is
/// for errors, and takes elements [first, first + values.size()) of its row-major order. The reverse of `tensor_source`;
/// `io::safetensors_part_writer` is one.
template <class S, class T>
concept tensor_sink = requires(S& sink, std::string_view name, std::int64_t first, std::span<const T> values) {
  { sink.tensor(name).shape() } -> std::convertible_to<std::span<const std::int64_t>>;
  { sink.tensor(name).where() } -> std::convertible_to<std::string>;
  sink.tensor(name).write(first, values);
};

namespace detail {

// The reverse of `read_transposed`: rows and columns of a row-major memory of `columns` columns, named by stretches (`from` in the whole,
// `to` in the memory), into a tensor that holds the transpose, [all_columns, all_rows]. Through a tile, so that each write is a run.
template <class Tensor, class T>
void write_transposed(Tensor& tensor, std::int64_t all_rows, std::span<const stretch> rows,
                      std::span<const stretch> cols, const T* from, std::int64_t columns) {
  constexpr std::int64_t wide = 32, tall = 256;
  std::vector<T> tile(static_cast<std::size_t>(wide * tall));
  for_each_tile(
      rows, cols, tall, wide,
      [&](const stretch& r, std::int64_t i, std::int64_t height, const stretch& c, std::int64_t j, std::int64_t width) {
        for (std::int64_t y = 0; y < height; ++y)
          for (std::int64_t k = 0; k < width; ++k)
            tile[static_cast<std::size_t>(k * tall + y)] = from[(r.to + i + y) * columns + c.to + j + k];
        for (std::int64_t k = 0; k < width; ++k)
          tensor.write(
              (c.from + j + k) * all_rows + r.from + i,
              std::span<const T>(tile).subspan(static_cast<std::size_t>(k * tall), static_cast<std::size_t>(height)));
      });
}

}  // namespace detail

}  // namespace heddle::inline v0
