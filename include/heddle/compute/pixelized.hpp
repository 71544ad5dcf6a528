// heddle/compute/pixelized.hpp: frames as means of blocks by tile, and their expansion.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/discrete_laplace.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::privacy {

/// Rows and columns of a tile, which has blocks of one side. Tiles at the lower and right edge may be smaller.
inline constexpr std::int64_t tile_side = 64;

/// What a rank holds of pixelized frames: one mean for each block and channel, one block side for each tile.
struct pixelized {
  std::int64_t frames = 0;   ///< held
  std::int64_t rows = 0;     ///< of the whole frame
  std::int64_t columns = 0;  ///< of the whole frame
  std::int64_t channels = 1;
  std::vector<std::int64_t> tile_rows;  ///< numbers, in the whole frame, of the rows of tiles that are held
  std::vector<std::uint8_t> sides;      ///< of the blocks of each tile: frame, row of tiles, tile
  std::vector<std::int64_t> offsets;    ///< where each tile's means begin, and the end of all
  std::vector<std::uint8_t> means;      ///< by tile; in it row of blocks, block, channel

  std::int64_t tile_columns() const noexcept { return (columns + tile_side - 1) / tile_side; }
  /// Bytes that have to be kept: means and sides, from which all else follows.
  std::size_t bytes() const noexcept { return means.size() + sides.size(); }
  bool operator==(const pixelized&) const = default;
};

/// The pixels of one frame, each the mean of its block. `frame` is the local number. Shapes: rows that are held x columns x
/// channels. Errors: `config_error` for a frame that is not held.
HEDDLE_INLINE std::vector<std::uint8_t> expand(const pixelized& means, std::int64_t frame);
/// The same into memory that is there. Errors: `config_error`, also for another size than the frame's.
HEDDLE_INLINE void expand(const pixelized& means, std::int64_t frame, std::span<std::uint8_t> out);

namespace detail {
// Rows or columns of tile `tile` of `extent` in all.
HEDDLE_HD constexpr std::int64_t tile_extent(std::int64_t extent, std::int64_t tile) noexcept {
  const std::int64_t left = extent - tile * tile_side;
  return left < tile_side ? left : tile_side;
}
HEDDLE_HD constexpr std::int64_t blocks_of(std::int64_t extent, std::int64_t side) noexcept {
  return (extent + side - 1) / side;
}

// A tile of a frame in memory: `pitch` bytes from one row to the next.
struct tile_pixels {
  const std::uint8_t* at;
  std::int64_t pitch, height, width, channels;
};
inline constexpr std::int64_t most_channels = 4;
inline constexpr std::int64_t most_values = tile_side * most_channels;  // of a row of a tile

// Sums of one row of blocks of side `side`, which begins at row `top` of the tile: block, channel. In one pass, over 16-bit
// sums of columns. Shapes: at most `most_values` sums.
HEDDLE_INLINE void block_row_sums(const tile_pixels& tile, std::int64_t top, std::int64_t side, std::int32_t* sums);

// Sum of |value - 128| over pixels and channels.
HEDDLE_HD constexpr std::int64_t tile_score(const tile_pixels& tile) noexcept {
  std::int64_t score = 0;
  for (std::int64_t r = 0; r < tile.height; ++r) {
    const std::uint8_t* row = tile.at + r * tile.pitch;
    std::int32_t of_row = 0;
    for (std::int64_t v = 0; v < tile.width * tile.channels; ++v) of_row += row[v] < 128 ? 128 - row[v] : row[v] - 128;
    score += of_row;
  }
  return score;
}

// Frames in memory one after the other, as a rank holds them: `held` rows of tiles of each.
struct frame_table {
  const std::uint8_t* pixels;
  const std::uint32_t* frame_numbers;
  const std::int64_t* tile_rows;  // numbers in the whole frame
  std::int64_t rows, columns, channels, held, rows_held;

  HEDDLE_HD constexpr std::int64_t across() const noexcept { return blocks_of(columns, tile_side); }
  // Of tile `index`, counted over all that are held: its frame's number, its number in the whole frame, its pixels.
  HEDDLE_HD constexpr std::uint32_t frame_of(std::int64_t index) const noexcept {
    return frame_numbers[index / (held * across())];
  }
  HEDDLE_HD constexpr std::uint32_t tile_of(std::int64_t index) const noexcept {
    return static_cast<std::uint32_t>(tile_rows[index / across() % held] * across() + index % across());
  }
  HEDDLE_HD constexpr tile_pixels operator[](std::int64_t index) const noexcept {
    const std::int64_t band = index / across(), column = index % across(), pitch = columns * channels;
    // Only the last row of tiles may be smaller, and it is the last of whoever holds it.
    const std::int64_t first =
        (band / held * rows_held + band % held * tile_side) * pitch + column * tile_side * channels;
    return {pixels + first, pitch, tile_extent(rows, tile_rows[band % held]), tile_extent(columns, column), channels};
  }
};
HEDDLE_INLINE frame_table table_of(const pixelized& out, const std::uint8_t* pixels,
                                   const std::uint32_t* frame_numbers);

// Noise of one scale, from one seed; a denominator of 0: none.
struct noise_source {
  std::uint64_t seed = 0;
  laplace_scale scale{0, 0};

  // Of block and channel `value` of a tile; scores have the last value there is.
  HEDDLE_HD constexpr std::int64_t operator()(std::uint32_t frame, std::uint32_t tile,
                                              std::uint32_t value) const noexcept {
    if (scale.denominator == 0) return 0;
    counter_words words(seed, frame, tile, value);
    return discrete_laplace(words, scale);
  }
};

// Mean, to the nearest, of n values of 0 to 255 whose sum with noise is `sum`. Requires n <= 2^22: divisions of 32 bits are faster.
HEDDLE_HD constexpr std::uint8_t rounded_mean(std::int64_t sum, std::int64_t n) noexcept {
  const std::int64_t held = sum < 0 ? 0 : sum > 255 * n ? 255 * n : sum;
  return static_cast<std::uint8_t>(static_cast<std::uint32_t>(2 * held + n) / static_cast<std::uint32_t>(2 * n));
}

// Chooses a side for a tile by its score with noise: the more of the ascending thresholds the mean reaches, the smaller.
struct side_choice {
  static constexpr int most = 7;  // divisors of 64
  int count = 0;
  std::uint8_t sides[most] = {};  // ascending
  std::int32_t thresholds[most] = {};

  HEDDLE_HD constexpr std::uint8_t operator()(const frame_table& frames, std::int64_t index,
                                              const noise_source& noise) const noexcept {
    const tile_pixels tile = frames[index];
    const std::int64_t score = tile_score(tile) + noise(frames.frame_of(index), frames.tile_of(index), 0xffffffffu);
    const std::int64_t values = tile.height * tile.width * tile.channels;
    int passed = 0;
    while (passed + 1 < count && score >= thresholds[passed] * values) ++passed;
    return sides[count - 1 - passed];
  }
};
// Errors: `config_error` for thresholds that do not ascend, lie outside 0 to 128, or are not one less than sides.
HEDDLE_INLINE side_choice required_choice(std::span<const std::uint8_t> sides, std::span<const int> thresholds);

// Sets the offsets for the sides, and room for the means.
HEDDLE_INLINE void lay_out(pixelized& out);
// The means of rows of tiles [begin, end), counted over all frames that are held.
HEDDLE_INLINE void fill_means(pixelized& out, const frame_table& frames, const noise_source& noise, std::int64_t begin,
                              std::int64_t end);
// Their sides by score.
HEDDLE_INLINE void fill_sides(pixelized& out, const frame_table& frames, const noise_source& noise,
                              const side_choice& choice, std::int64_t begin, std::int64_t end);
// Sides for all frames from sides of the tiles of one whole frame.
HEDDLE_INLINE void copy_sides(pixelized& out, std::span<const std::uint8_t> of_frame);
// Sides for all frames by the scores of one whole, public frame.
HEDDLE_INLINE void sides_of_public(pixelized& out, std::span<const std::uint8_t> frame, const side_choice& choice);
// Requires frames with pixels, and numbers of frames and tiles that counters hold.
HEDDLE_INLINE void require_frames(std::int64_t frames, std::int64_t rows, std::int64_t columns,
                                  std::int64_t first_frame);
// Requires a side of the list for each tile of a frame.
HEDDLE_INLINE void require_sides(std::span<const std::uint8_t> of_frame, std::int64_t rows, std::int64_t columns,
                                 std::span<const std::uint8_t> allowed);
}  // namespace detail

}  // namespace heddle::inline v0::privacy

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/compute/impl/pixelized.hpp>
#endif
