// heddle/compute/launched_pixelize.hpp: private pixelization by kernels of a queue.
#pragma once

#include <heddle/compute/pixelize.hpp>
#include <heddle/core/launch_each.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::privacy::detail {

// The side of tile i.
struct each_side {
  frame_table frames;
  noise_source noise;
  side_choice choice;
  std::uint8_t* sides;
  HEDDLE_HD void operator()(std::int64_t i) const { sides[i] = choice(frames, i, noise); }
};

// How many means tile i has; none behind the last.
struct each_count {
  frame_table frames;
  const std::uint8_t* sides;
  std::int64_t tiles;
  std::int64_t* counts;
  HEDDLE_HD void operator()(std::int64_t i) const {
    if (i == tiles) {
      counts[i] = 0;
      return;
    }
    const tile_pixels tile = frames[i];
    counts[i] = blocks_of(tile.height, sides[i]) * blocks_of(tile.width, sides[i]) * tile.channels;
  }
};

// Mean i of all that are held: its tile by bisection of the offsets, then its block.
struct each_mean {
  frame_table frames;
  noise_source noise;
  const std::uint8_t* sides;
  const std::int64_t* offsets;
  std::int64_t tiles;
  std::uint8_t* means;
  HEDDLE_HD void operator()(std::int64_t i) const {
    const std::int64_t index = last_not_above(offsets, tiles, 1, i);
    const auto value = static_cast<std::int32_t>(i - offsets[index]);
    // Noise comes first: ptxas spills registers for what is held while it is drawn.
    std::int64_t sum = noise(frames.frame_of(index), frames.tile_of(index), static_cast<std::uint32_t>(value));
    const tile_pixels tile = frames[index];
    const std::int32_t side = sides[index];
    const auto channels = static_cast<std::int32_t>(tile.channels), width = static_cast<std::int32_t>(tile.width);
    const auto height = static_cast<std::int32_t>(tile.height);
    const std::int32_t block = value / channels, across = (width + side - 1) / side;
    const std::int32_t top = block / across * side, left = block % across * side;
    const std::int32_t bottom = top + side < height ? top + side : height;
    const std::int32_t right = left + side < width ? left + side : width;
    const std::uint8_t* row = tile.at + top * tile.pitch + value % channels;
    for (std::int32_t r = top; r < bottom; ++r, row += tile.pitch)
      for (std::int32_t c = left; c < right; ++c) sum += row[c * channels];
    means[i] = rounded_mean(sum, (bottom - top) * (right - left));
  }
};

template <class Backend>
  requires launches_kernels<typename Backend::space::queue>
class pixel_kernels<Backend> {
  using space = typename Backend::space;
  template <class T>
  using memory = buffer<T, space>;

 public:
  pixel_kernels(Backend& backend, const pixelized& out, row_view<const std::uint8_t, space> pixels,
                std::span<const std::uint32_t> frame_numbers)
      : queue_(backend.queue()),
        numbers_(there(frame_numbers)),
        tile_rows_(there(std::span(out.tile_rows))),
        frames_(table_of(out, first_element(pixels), first(numbers_))) {
    frames_.tile_rows = first(tile_rows_);
  }
  void sides(pixelized& out, const noise_source& noise, const side_choice& choice) {
    if (out.sides.empty()) return;
    sides_ = memory<std::uint8_t>(queue_, static_cast<std::int64_t>(out.sides.size()));
    launch_each(queue_, static_cast<std::int64_t>(out.sides.size()), each_side{frames_, noise, choice, first(sides_)});
    back(sides_, out.sides);
  }
  // Tiles are ragged: a scan of their counts, where the queue has one.
  void lay_out(pixelized& out) {
    if (out.sides.empty()) return detail::lay_out(out);
    const auto tiles = static_cast<std::int64_t>(out.sides.size());
    if (sides_.size() == 0) sides_ = there(std::span(std::as_const(out.sides)));
    if constexpr (requires(const std::int64_t* in, std::int64_t* to) { exclusive_sum(queue_, tiles, in, to); }) {
      memory<std::int64_t> counts(queue_, tiles + 1);
      offsets_ = memory<std::int64_t>(queue_, tiles + 1);
      launch_each(queue_, tiles + 1, each_count{frames_, first(sides_), tiles, first(counts)});
      exclusive_sum(queue_, tiles + 1, first(std::as_const(counts)), first(offsets_));
      out.offsets.resize(static_cast<std::size_t>(tiles) + 1);
      back(offsets_, out.offsets);
      out.means.resize(static_cast<std::size_t>(out.offsets.back()));
    } else {
      detail::lay_out(out);
      offsets_ = there(std::span(std::as_const(out.offsets)));
    }
  }
  // After `lay_out`.
  void means(pixelized& out, const noise_source& noise) {
    if (out.means.empty()) return;
    memory<std::uint8_t> means(queue_, static_cast<std::int64_t>(out.means.size()));
    launch_each(queue_, static_cast<std::int64_t>(means.size()),
                each_mean{frames_, noise, first(sides_), first(offsets_), static_cast<std::int64_t>(out.sides.size()),
                          first(means)});
    back(means, out.means);
  }

 private:
  template <class B>
  static auto first(B& b) noexcept {
    return first_element(elements_of(b.view()));
  }
  template <class T>
  memory<T> there(std::span<const T> host) {
    memory<T> copy(queue_, static_cast<std::int64_t>(host.size()));
    if (!host.empty()) queue_.copy(host, elements_of(copy.view()));
    return copy;
  }
  template <class T>
  void back(const memory<T>& from, std::vector<T>& to) {
    queue_.copy(elements_of(from.view()), std::span(to));
    queue_.wait();
  }

  typename space::queue& queue_;
  memory<std::uint32_t> numbers_;
  memory<std::int64_t> tile_rows_;
  memory<std::uint8_t> sides_;
  memory<std::int64_t> offsets_;
  frame_table frames_;
};

}  // namespace heddle::inline v0::privacy::detail
