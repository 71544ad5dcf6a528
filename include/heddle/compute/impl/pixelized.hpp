// heddle/compute/impl/pixelized.hpp: bodies of heddle/compute/pixelized.hpp.
#pragma once

#include <heddle/compute/pixelized.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
    std::int64_t v = 0;
    for (; v + 16 <= values; v += 16)  // a number that is known: g++ -O2 vectorizes no other loops
      for (std::int64_t k = 0; k < 16; ++k) columns[v + k] = static_cast<std::uint16_t>(columns[v + k] + row[v + k]);
    for (; v < values; ++v) columns[v] = static_cast<std::uint16_t>(columns[v] + row[v]);
  }
  for (std::int64_t block = 0; block < across; ++block) {
    const std::int64_t begin = block * side, end = (std::min)(begin + side, tile.width);
    if (tile.channels == 1) {
      std::int32_t sum = 0;
      std::int64_t c = begin;
      for (; c + 8 <= end; c += 8)  // as above
        for (std::int64_t k = 0; k < 8; ++k) sum += columns[c + k];
      for (; c < end; ++c) sum += columns[c];
      sums[block] = sum;
      continue;
    }
    for (std::int64_t channel = 0; channel < tile.channels; ++channel) {
      std::int32_t sum = 0;
      for (std::int64_t c = begin; c < end; ++c) sum += columns[c * tile.channels + channel];
      sums[block * tile.channels + channel] = sum;
    }
  }
}

HEDDLE_INLINE frame_table table_of(const pixelized& out, const std::uint8_t* pixels,
                                   const std::uint32_t* frame_numbers) {
  std::int64_t rows_held = 0;
  for (const std::int64_t t : out.tile_rows) rows_held += tile_extent(out.rows, t);
  return {pixels,
          frame_numbers,
          out.tile_rows.data(),
          out.rows,
          out.columns,
          out.channels,
          static_cast<std::int64_t>(out.tile_rows.size()),
          rows_held};
}

HEDDLE_INLINE void lay_out(pixelized& out) {
  const frame_table frames = table_of(out, nullptr, nullptr);
  out.offsets.assign(out.sides.size() + 1, 0);
  for (std::size_t t = 0; t < out.sides.size(); ++t) {
    const std::int64_t band = static_cast<std::int64_t>(t) / frames.across(),
                       column = static_cast<std::int64_t>(t) % frames.across();
    const std::int64_t height = tile_extent(out.rows, out.tile_rows[static_cast<std::size_t>(band % frames.held)]);
    out.offsets[t + 1] = out.offsets[t] + blocks_of(height, out.sides[t]) *
                                              blocks_of(tile_extent(out.columns, column), out.sides[t]) * out.channels;
  }
  out.means.resize(static_cast<std::size_t>(out.offsets.back()));
}

HEDDLE_INLINE void fill_means(pixelized& out, const frame_table& frames, const noise_source& noise, std::int64_t begin,
                              std::int64_t end) {
  for (std::int64_t t = begin * frames.across(); t < end * frames.across(); ++t) {
    const tile_pixels p = frames[t];
    const std::uint32_t frame = frames.frame_of(t), tile = frames.tile_of(t);
    const std::int64_t side = out.sides[static_cast<std::size_t>(t)];
    std::uint8_t* mean = out.means.data() + out.offsets[static_cast<std::size_t>(t)];
    std::int32_t sums[most_values];
    std::uint32_t value = 0;
    for (std::int64_t top = 0; top < p.height; top += side) {
      block_row_sums(p, top, side, sums);
      const std::int32_t* sum = sums;
      for (std::int64_t left = 0; left < p.width; left += side) {
        const std::int64_t n = (std::min)(side, p.height - top) * (std::min)(side, p.width - left);
        for (std::int64_t c = 0; c < p.channels; ++c, ++value)
          *mean++ = rounded_mean(*sum++ + noise(frame, tile, value), n);
      }
    }
  }
}

HEDDLE_INLINE void fill_sides(pixelized& out, const frame_table& frames, const noise_source& noise,
                              const side_choice& choice, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin * frames.across(); t < end * frames.across(); ++t)
    out.sides[static_cast<std::size_t>(t)] = choice(frames, t, noise);
}

HEDDLE_INLINE void copy_sides(pixelized& out, std::span<const std::uint8_t> of_frame) {
  const frame_table frames = table_of(out, nullptr, nullptr);
  for (std::size_t t = 0; t < out.sides.size(); ++t)
    out.sides[t] = of_frame[frames.tile_of(static_cast<std::int64_t>(t))];
}

HEDDLE_INLINE void sides_of_public(pixelized& out, std::span<const std::uint8_t> frame, const side_choice& choice) {
  if (static_cast<std::int64_t>(frame.size()) != out.rows * out.columns * out.channels)
    throw config_error("heddle: privacy::from_public: a public frame of " +
                       std::to_string(out.rows * out.columns * out.channels) +
                       " values is needed, as the frames have, got " + std::to_string(frame.size()));
  pixelized whole{.frames = 1,
                  .rows = out.rows,
                  .columns = out.columns,
                  .channels = out.channels,
                  .tile_rows = {},
                  .sides = {},
                  .offsets = {},
                  .means = {}};
  for (std::int64_t t = 0; t < blocks_of(out.rows, tile_side); ++t) whole.tile_rows.push_back(t);
  const auto bands = static_cast<std::int64_t>(whole.tile_rows.size());
  whole.sides.resize(static_cast<std::size_t>(bands * whole.tile_columns()));
  const std::uint32_t number = 0;
  fill_sides(whole, table_of(whole, frame.data(), &number), {}, choice, 0, bands);
  copy_sides(out, whole.sides);
}

HEDDLE_INLINE side_choice required_choice(std::span<const std::uint8_t> sides, std::span<const int> thresholds) {
  if (thresholds.size() + 1 != sides.size())
    throw config_error("heddle: privacy::pixelize: " + std::to_string(sides.size()) + " sides are told apart by " +
                       std::to_string(sides.size() - 1) + " thresholds, got " + std::to_string(thresholds.size()));
  side_choice choice{.count = static_cast<int>(sides.size())};
  std::copy(sides.begin(), sides.end(), choice.sides);
  for (std::size_t i = 0; i < thresholds.size(); ++i) {
    if (thresholds[i] < 0 || thresholds[i] > 128 || (i > 0 && thresholds[i] <= thresholds[i - 1]))
      throw config_error(
          "heddle: privacy::pixelize: thresholds of the mean of |value - 128| lie in 0 to 128 and ascend; threshold " +
          std::to_string(i) + " is " + std::to_string(thresholds[i]));
    choice.thresholds[i] = thresholds[i];
  }
  return choice;
}

HEDDLE_INLINE void require_frames(std::int64_t frames, std::int64_t rows, std::int64_t columns,
                                  std::int64_t first_frame) {
  const std::string shape =
      std::to_string(frames) + " frames of " + std::to_string(rows) + " x " + std::to_string(columns);
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
    throw config_error("heddle: privacy::by_hand: a frame of " + std::to_string(rows) + " x " +
                       std::to_string(columns) + " has " + std::to_string(tiles) + " tiles of 64 x 64, got sides of " +
                       std::to_string(of_frame.size()));
  for (std::size_t t = 0; t < of_frame.size(); ++t)
    if (std::find(allowed.begin(), allowed.end(), of_frame[t]) == allowed.end())
      throw config_error("heddle: privacy::by_hand: tile " + std::to_string(t) + " has blocks of side " +
                         std::to_string(of_frame[t]) + ", which is none of sides<...>");
}

}  // namespace detail

HEDDLE_INLINE std::vector<std::uint8_t> expand(const pixelized& means, std::int64_t frame) {
  std::int64_t rows = 0;
  for (const std::int64_t t : means.tile_rows) rows += detail::tile_extent(means.rows, t);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(rows * means.columns * means.channels));
  expand(means, frame, out);
  return out;
}

HEDDLE_INLINE void expand(const pixelized& means, std::int64_t frame, std::span<std::uint8_t> out) {
  if (frame < 0 || frame >= means.frames)
    throw config_error("heddle: privacy::expand: frame " + std::to_string(frame) + " of " +
                       std::to_string(means.frames) + " that are held");
  const auto held = static_cast<std::int64_t>(means.tile_rows.size());
  const std::int64_t pitch = means.columns * means.channels;
  std::int64_t rows = 0;
  for (const std::int64_t t : means.tile_rows) rows += detail::tile_extent(means.rows, t);
  if (static_cast<std::int64_t>(out.size()) != rows * pitch)
    throw config_error("heddle: privacy::expand: a frame has " + std::to_string(rows * pitch) +
                       " values here, there is room for " + std::to_string(out.size()));
  for (std::int64_t band = 0; band < held; ++band)
    for (std::int64_t t = 0; t < means.tile_columns(); ++t) {
      const auto index = static_cast<std::size_t>((frame * held + band) * means.tile_columns() + t);
      const std::int64_t side = means.sides[index];
      const std::int64_t height = detail::tile_extent(means.rows, means.tile_rows[static_cast<std::size_t>(band)]);
      const std::int64_t width = detail::tile_extent(means.columns, t);
      const std::uint8_t* of_tile = means.means.data() + means.offsets[index];
      std::uint8_t* const first = out.data() + band * tile_side * pitch + t * tile_side * means.channels;
      for (std::int64_t top = 0; top < height; top += side) {
        std::uint8_t* const row = first + top * pitch;
        for (std::int64_t left = 0; left < width; left += side, of_tile += means.channels) {
          const std::int64_t end = (std::min)(left + side, width);
          if (means.channels == 1)
            std::fill(row + left, row + end, *of_tile);
          else
            for (std::int64_t c = left; c < end; ++c) std::copy_n(of_tile, means.channels, row + c * means.channels);
        }
        for (std::int64_t r = 1; r < (std::min)(side, height - top); ++r)
          std::copy_n(row, width * means.channels, row + r * pitch);
      }
    }
}

}  // namespace heddle::inline v0::privacy
