// heddle/compute/impl/pixelized.hpp: bodies of heddle/compute/pixelized.hpp.
#pragma once

#include <heddle/compute/pixelized.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <string>

namespace heddle::inline v0::privacy {
namespace detail {

HEDDLE_INLINE void block_row_sums(const tile_pixels& tile, std::int64_t top, std::int64_t side, std::int32_t* sums) {
  const std::int64_t values = tile.width * tile.channels;
  const std::int64_t across = blocks_of(tile.width, side);
  std::uint16_t columns[most_values] = {};  // at most 64 x 255 each
  for (std::int64_t r = top; r < (std::min)(top + side, tile.height); ++r) {
    const std::uint8_t* row = tile.at + r * tile.pitch;
    for (std::int64_t v = 0; v < values; ++v) columns[v] = static_cast<std::uint16_t>(columns[v] + row[v]);
  }
  std::fill_n(sums, across * tile.channels, 0);
  for (std::int64_t block = 0; block < across; ++block)
    for (std::int64_t c = block * side; c < (std::min)((block + 1) * side, tile.width); ++c)
      for (std::int64_t channel = 0; channel < tile.channels; ++channel)
        sums[block * tile.channels + channel] += columns[c * tile.channels + channel];
}

HEDDLE_INLINE std::int64_t tile_score(const tile_pixels& tile) {
  std::int64_t score = 0;
  for (std::int64_t r = 0; r < tile.height; ++r) {
    const std::uint8_t* row = tile.at + r * tile.pitch;
    std::int32_t of_row = 0;
    for (std::int64_t v = 0; v < tile.width * tile.channels; ++v) of_row += std::abs(int{row[v]} - 128);
    score += of_row;
  }
  return score;
}

HEDDLE_INLINE std::uint8_t side_by_score(std::int64_t score, std::int64_t values, std::span<const std::uint8_t> sides,
                                         std::span<const int> thresholds) noexcept {
  std::size_t passed = 0;
  while (passed < thresholds.size() && score >= thresholds[passed] * values) ++passed;
  return sides[sides.size() - 1 - passed];
}

// Calls body(index of the tile, its local frame, its number in the whole frame, its pixels) for rows of tiles [begin, end).
template <class Body>
void each_tile(const pixelized& of, const std::uint8_t* pixels, std::int64_t begin, std::int64_t end, Body body) {
  const std::int64_t pitch = of.columns * of.channels;
  const auto held = static_cast<std::int64_t>(of.tile_rows.size());
  std::int64_t rows_held = 0;
  for (const std::int64_t t : of.tile_rows) rows_held += tile_extent(of.rows, t);
  for (std::int64_t band = begin; band < end; ++band) {
    const std::int64_t frame = band / held;
    const std::int64_t tile_row = of.tile_rows[static_cast<std::size_t>(band % held)];
    // Only the last row of tiles may be smaller, and it is the last of whoever holds it.
    const std::uint8_t* top = pixels + (frame * rows_held + band % held * tile_side) * pitch;
    for (std::int64_t c = 0; c < of.tile_columns(); ++c)
      body(static_cast<std::size_t>(band * of.tile_columns() + c), static_cast<std::size_t>(frame),
           static_cast<std::uint32_t>(tile_row * of.tile_columns() + c),
           tile_pixels{top + c * tile_side * of.channels, pitch, tile_extent(of.rows, tile_row),
                       tile_extent(of.columns, c), of.channels});
  }
}

HEDDLE_INLINE void lay_out(pixelized& out) {
  out.offsets.assign(out.sides.size() + 1, 0);
  std::int64_t at = 0;
  each_tile(out, nullptr, 0, out.frames * static_cast<std::int64_t>(out.tile_rows.size()),
            [&](std::size_t tile, std::size_t, std::uint32_t, const tile_pixels& p) {
              out.offsets[tile] = at;
              at += blocks_of(p.height, out.sides[tile]) * blocks_of(p.width, out.sides[tile]) * p.channels;
            });
  out.offsets.back() = at;
  out.means.resize(static_cast<std::size_t>(at));
}

HEDDLE_INLINE void fill_means(pixelized& out, const std::uint8_t* pixels, std::span<const std::uint32_t> frame_numbers,
                              const noise_source& noise, std::int64_t begin, std::int64_t end) {
  each_tile(out, pixels, begin, end,
            [&](std::size_t index, std::size_t frame, std::uint32_t tile, const tile_pixels& p) {
              std::int32_t sums[most_values];
              const std::int64_t side = out.sides[index];
              std::uint8_t* mean = out.means.data() + out.offsets[index];
              std::uint32_t value = 0;
              for (std::int64_t top = 0; top < p.height; top += side) {
                block_row_sums(p, top, side, sums);
                const std::int32_t* sum = sums;
                for (std::int64_t left = 0; left < p.width; left += side) {
                  const std::int64_t n = (std::min)(side, p.height - top) * (std::min)(side, p.width - left);
                  for (std::int64_t c = 0; c < p.channels; ++c, ++value)
                    *mean++ = rounded_mean(*sum++ + noise(frame_numbers[frame], tile, value), n);
                }
              }
            });
}

HEDDLE_INLINE void fill_sides(pixelized& out, const std::uint8_t* pixels, std::span<const std::uint32_t> frame_numbers,
                              const noise_source& noise, std::span<const std::uint8_t> sides,
                              std::span<const int> thresholds, std::int64_t begin, std::int64_t end) {
  each_tile(out, pixels, begin, end,
            [&](std::size_t index, std::size_t frame, std::uint32_t tile, const tile_pixels& p) {
              const std::int64_t score = tile_score(p) + noise(frame_numbers[frame], tile, score_value);
              out.sides[index] = side_by_score(score, p.height * p.width * p.channels, sides, thresholds);
            });
}

HEDDLE_INLINE void copy_sides(pixelized& out, std::span<const std::uint8_t> of_frame) {
  each_tile(out, nullptr, 0, out.frames * static_cast<std::int64_t>(out.tile_rows.size()),
            [&](std::size_t index, std::size_t, std::uint32_t tile, const tile_pixels&) {
              out.sides[index] = of_frame[tile];
            });
}

HEDDLE_INLINE void sides_of_public(pixelized& out, std::span<const std::uint8_t> frame,
                                   std::span<const std::uint8_t> sides, std::span<const int> thresholds) {
  pixelized whole{.frames = 1, .rows = out.rows, .columns = out.columns, .channels = out.channels, .tile_rows = {},
                  .sides = {}, .offsets = {}, .means = {}};
  if (static_cast<std::int64_t>(frame.size()) != out.rows * out.columns * out.channels)
    throw config_error("heddle: privacy::from_public: a public frame of " +
                       std::to_string(out.rows * out.columns * out.channels) + " values is needed, as the frames have, got " +
                       std::to_string(frame.size()));
  for (std::int64_t t = 0; t < blocks_of(out.rows, tile_side); ++t) whole.tile_rows.push_back(t);
  const auto bands = static_cast<std::int64_t>(whole.tile_rows.size());
  whole.sides.resize(static_cast<std::size_t>(bands * whole.tile_columns()));
  fill_sides(whole, frame.data(), std::array<std::uint32_t, 1>{}, {}, sides, thresholds, 0, bands);
  copy_sides(out, whole.sides);
}

HEDDLE_INLINE void require_thresholds(std::span<const int> thresholds, std::size_t sides) {
  if (thresholds.size() + 1 != sides)
    throw config_error("heddle: privacy::pixelize: " + std::to_string(sides) + " sides are told apart by " +
                       std::to_string(sides - 1) + " thresholds, got " + std::to_string(thresholds.size()));
  for (std::size_t i = 0; i < thresholds.size(); ++i)
    if (thresholds[i] < 0 || thresholds[i] > 128 || (i > 0 && thresholds[i] <= thresholds[i - 1]))
      throw config_error("heddle: privacy::pixelize: thresholds of the mean of |value - 128| lie in 0 to 128 and ascend; threshold " +
                         std::to_string(i) + " is " + std::to_string(thresholds[i]));
}

HEDDLE_INLINE void require_frames(std::int64_t frames, std::int64_t rows, std::int64_t columns, std::int64_t first_frame) {
  const std::string shape = std::to_string(frames) + " frames of " + std::to_string(rows) + " x " + std::to_string(columns);
  if (frames < 1 || rows < 1 || columns < 1)
    throw config_error("heddle: privacy::pixelize: " + shape + " pixels: there is nothing to pixelize");
  if (blocks_of(rows, tile_side) > (std::numeric_limits<std::int32_t>::max)() / blocks_of(columns, tile_side))
    throw config_error("heddle: privacy::pixelize: " + shape + " pixels: a frame has fewer than 2^31 tiles of 64 x 64");
  if (first_frame < 0 || first_frame > (std::int64_t{1} << 32) - frames)
    throw config_error("heddle: privacy::pixelize: " + shape + " from number " + std::to_string(first_frame) +
                       " on: numbers of frames lie in 0 to 2^32 - 1");
}

HEDDLE_INLINE void require_sides(std::span<const std::uint8_t> of_frame, std::int64_t rows, std::int64_t columns,
                                 std::span<const std::uint8_t> allowed) {
  const std::int64_t tiles = blocks_of(rows, tile_side) * blocks_of(columns, tile_side);
  if (static_cast<std::int64_t>(of_frame.size()) != tiles)
    throw config_error("heddle: privacy::by_hand: a frame of " + std::to_string(rows) + " x " + std::to_string(columns) +
                       " has " + std::to_string(tiles) + " tiles of 64 x 64, got sides of " +
                       std::to_string(of_frame.size()));
  for (std::size_t t = 0; t < of_frame.size(); ++t)
    if (std::find(allowed.begin(), allowed.end(), of_frame[t]) == allowed.end())
      throw config_error("heddle: privacy::by_hand: tile " + std::to_string(t) + " has blocks of side " +
                         std::to_string(of_frame[t]) + ", which is none of sides<...>");
}

}  // namespace detail

HEDDLE_INLINE std::vector<std::uint8_t> expand(const pixelized& means, std::int64_t frame) {
  if (frame < 0 || frame >= means.frames)
    throw config_error("heddle: privacy::expand: frame " + std::to_string(frame) + " of " + std::to_string(means.frames) +
                       " that are held");
  const auto held = static_cast<std::int64_t>(means.tile_rows.size());
  const std::int64_t pitch = means.columns * means.channels;
  std::int64_t rows = 0;
  for (const std::int64_t t : means.tile_rows) rows += detail::tile_extent(means.rows, t);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(rows * pitch));
  for (std::int64_t band = 0; band < held; ++band)
    for (std::int64_t t = 0; t < means.tile_columns(); ++t) {
      const auto index = static_cast<std::size_t>((frame * held + band) * means.tile_columns() + t);
      const std::int64_t side = means.sides[index];
      const std::int64_t height = detail::tile_extent(means.rows, means.tile_rows[static_cast<std::size_t>(band)]);
      const std::int64_t width = detail::tile_extent(means.columns, t);
      const std::int64_t across = detail::blocks_of(width, side);
      const std::uint8_t* of_tile = means.means.data() + means.offsets[index];
      for (std::int64_t r = 0; r < height; ++r) {
        std::uint8_t* row = out.data() + (band * tile_side + r) * pitch + t * tile_side * means.channels;
        for (std::int64_t c = 0; c < width; ++c)
          std::copy_n(of_tile + (r / side * across + c / side) * means.channels, means.channels, row + c * means.channels);
      }
    }
  return out;
}

}  // namespace heddle::inline v0::privacy
