// heddle/tensor/tensor_source.hpp: reads a rank's part of a tensor, and no more.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/tensor/runs.hpp>
#include <heddle/tensor/sharded.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0 {

/// What elements of type T can be read from by the name of a tensor: `tensor(name)` has the `shape()` of the whole, says `where()` it is for
/// errors, and reads elements [first, first + out.size()) of its row-major order, converted. `io::safetensors_folder` is one.
template <class S, class T>
concept tensor_source = requires(const S& source, std::string_view name, std::int64_t first, std::span<T> out) {
  { source.contains(name) } -> std::convertible_to<bool>;
  { source.tensor(name).shape() } -> std::convertible_to<std::span<const std::int64_t>>;
  { source.tensor(name).where() } -> std::convertible_to<std::string>;
  source.tensor(name).read(first, out);
};

/// How a source holds a matrix: as it is, or transposed, as PyTorch's `Linear` holds what GPT-2's `Conv1D` holds as it is.
enum class stored_as : bool { is, transposed };

namespace detail {

// Whether the one shape is the other with neighbouring dimensions joined, so that both have the same order of elements.
inline bool joins_dimensions(std::span<const std::int64_t> joined, std::span<const std::int64_t> of) {
  std::size_t d = 0;
  for (const std::int64_t wanted : joined) {
    std::int64_t n = 1;
    while (d < of.size() && n != wanted) n *= of[d++];
    if (n != wanted) return false;
  }
  for (; d < of.size(); ++d)
    if (of[d] != 1) return false;
  return true;
}

// The rows and columns of a matrix named by stretches, from a tensor that holds the transpose, [all_columns, all_rows], by tiles, so that each
// read is a run of the file: read(first, k, height) for row k of the tile, then done(r, i, height, c, j, width) with the stretches of rows and
// columns, and where in them the tile begins.
inline constexpr std::int64_t widest_transposed_tile = 32, tallest_transposed_tile = 256;
template <class Read, class Done>
void for_each_transposed_tile(std::int64_t all_rows, std::span<const stretch> rows, std::span<const stretch> cols,
                              Read&& read, Done&& done) {
  for_each_tile(
      rows, cols, tallest_transposed_tile, widest_transposed_tile,
      [&](const stretch& r, std::int64_t i, std::int64_t height, const stretch& c, std::int64_t j, std::int64_t width) {
        for (std::int64_t k = 0; k < width; ++k) read((c.from + j + k) * all_rows + r.from + i, k, height);
        done(r, i, height, c, j, width);
      });
}

// A row-major memory of `columns` columns from such a tensor: the rows and columns are `from` in the whole and `to` in the memory.
template <class Tensor, class T>
void read_transposed(const Tensor& tensor, std::int64_t all_rows, std::span<const stretch> rows,
                     std::span<const stretch> cols, T* to, std::int64_t columns) {
  constexpr std::int64_t tall = tallest_transposed_tile;
  std::vector<T> tile(static_cast<std::size_t>(widest_transposed_tile * tall));
  for_each_transposed_tile(
      all_rows, rows, cols,
      [&](std::int64_t first, std::int64_t k, std::int64_t height) {
        tensor.read(first,
                    std::span<T>(tile).subspan(static_cast<std::size_t>(k * tall), static_cast<std::size_t>(height)));
      },
      [&](const stretch& r, std::int64_t i, std::int64_t height, const stretch& c, std::int64_t j, std::int64_t width) {
        for (std::int64_t y = 0; y < height; ++y)
          for (std::int64_t k = 0; k < width; ++k)
            to[(r.to + i + y) * columns + c.to + j + k] = tile[static_cast<std::size_t>(k * tall + y)];
      });
}

}  // namespace detail

/// Fills the part of a tensor that a rank holds from a source, run by run: no more is read than the rank holds (halos, too), and
/// nothing else is in memory but a small tile where the source holds the transpose. The source's shape may join neighbouring
/// dimensions of the tensor's: queries, keys and values [D, 3, H, d] come from [D, 3 D]. Along partial axes the first rank gets the values, the
/// others the operator's identity. Padding stays as it is.
/// Errors: `layout_error` if the shapes do not fit; what the source throws.
template <class T, std::size_t Rank, layout_like Layout, tensor_source<T> Source>
void read_shard(const Source& source, std::string_view name, sharded<T, Rank, Layout>& part,
                stored_as how = stored_as::is) {
  const auto& tensor = source.tensor(name);
  const auto extents = part.shape().extents();
  const std::span<const std::int64_t> published = tensor.shape();
  std::vector<std::int64_t> wanted(extents.begin(), extents.end());
  if (how == stored_as::transposed) {
    if (Rank != 2)
      throw layout_error("heddle: " + std::string(tensor.where()) + " should be a transposed matrix for a tensor of " +
                         std::to_string(Rank) + " dimensions");
    std::reverse(wanted.begin(), wanted.end());
  }
  if (!detail::joins_dimensions(published, wanted))
    throw layout_error("heddle: " + std::string(tensor.where()) + ": expected the shape " + shown_extents(wanted) +
                       ", it has " + shown_extents(published));
  if constexpr (Layout::has_partial) {
    if (!detail::carries_value(part.layout(), part.rank())) {
      using op = typename detail::partial_op<Layout>::type;
      std::fill(part.elements().begin(), part.elements().end(), op::template identity<T>());
      return;
    }
  }
  if (part.elements().empty()) return;
  const auto held = part.layout().part(part.shape(), part.rank());
  const auto overlap = detail::overlap_of(detail::whole_part<Layout::mesh_type::rank>(extents), held);
  if constexpr (Rank == 2) {
    if (how == stored_as::transposed) {
      const auto all = [](const detail::stretch_list& s) {
        return std::span<const detail::stretch>(s.begin(), s.size());
      };
      detail::read_transposed(tensor, extents[0], all(overlap.along[0]), all(overlap.along[1]), part.elements().data(),
                              held.stored()[1]);
      return;
    }
  }
  detail::for_each_run(overlap, extents, held.stored(), [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    tensor.read(from, part.elements().subspan(static_cast<std::size_t>(to), static_cast<std::size_t>(count)));
  });
}

/// The part of a tensor of this shape that `rank` holds, from a source: see `read_shard`.
template <class T, class Source, layout_like Layout, std::int64_t... E>
  requires tensor_source<Source, T>
sharded<T, sizeof...(E), Layout> read_sharded(const Source& source, std::string_view name, const Layout& layout,
                                              const shape<E...>& whole, int rank, stored_as how = stored_as::is) {
  sharded<T, sizeof...(E), Layout> part(layout, whole, rank);
  read_shard(source, name, part, how);
  return part;
}

}  // namespace heddle::inline v0
