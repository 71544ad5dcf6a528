// heddle/compute/pixelize.hpp: differentially private pixelization of sharded frames.
#pragma once

#include <heddle/compute/pixelized.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/privacy.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/tensor/sharded.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::privacy {

/// In how many pixels two neighbouring frames may differ, anywhere: what is hidden is any object of so many pixels.
template <std::int64_t M>
struct pixels {
  static_assert(M > 0, "heddle: privacy::pixels<M>: neighbouring frames differ in at least one pixel");
  static constexpr std::int64_t count = M;
};

/// The sides of blocks to choose from, ascending.
template <int... Sides>
struct sides {
  static_assert(sizeof...(Sides) > 0, "heddle: privacy::sides<...>: name at least one side of blocks");
  static_assert((... && (Sides > 0 && tile_side % (Sides > 0 ? Sides : 1) == 0)),
                "heddle: privacy::sides<...>: each side must divide 64, the side of a tile");
  static constexpr std::array<std::uint8_t, sizeof...(Sides)> list{static_cast<std::uint8_t>(Sides)...};
  static_assert(
      [] {
        for (std::size_t i = 1; i < list.size(); ++i)
          if (list[i - 1] >= list[i]) return false;
        return true;
      }(),
      "heddle: privacy::sides<...>: sides must ascend");
};

/// Values of a pixel, the last dimension of frames with more than one. All of a pixel's may change together, so that noise is
/// made for so many times the changes.
template <int N>
struct channels {
  static_assert(N >= 1 && N <= detail::most_channels, "heddle: privacy::channels<N>: a pixel has 1 to 4 channels");
  static constexpr int count = N;
};

/// Block means without noise, in place of a budget: for tests and comparisons. Nothing is private.
struct without_noise {};

namespace detail {
// What runs over pixels: rows of tiles on the threads of the host's backend. launched_pixelize.hpp has that of other backends.
template <class Backend>
class pixel_kernels {
  static_assert(
      requires(Backend& b) { b.workers(); },
      "heddle: privacy::pixelize: this backend launches kernels: include <heddle/compute/launched_pixelize.hpp>");

 public:
  pixel_kernels(Backend& backend, const pixelized& out, std::span<const std::uint8_t> pixels,
                std::span<const std::uint32_t> frame_numbers)
      : backend_(backend), frames_(table_of(out, pixels.data(), frame_numbers.data())) {}
  void sides(pixelized& out, const noise_source& noise, const side_choice& choice) const {
    each_band(out, [&](std::int64_t begin, std::int64_t end) { fill_sides(out, frames_, noise, choice, begin, end); });
  }
  void lay_out(pixelized& out) const { detail::lay_out(out); }
  void means(pixelized& out, const noise_source& noise) const {
    each_band(out, [&](std::int64_t begin, std::int64_t end) { fill_means(out, frames_, noise, begin, end); });
  }

 private:
  template <class Body>
  void each_band(const pixelized& out, Body&& body) const {
    backend_.workers().split(out.frames * frames_.held, 1, 1, body);
  }

  Backend& backend_;
  frame_table frames_;
};
}  // namespace detail

/// Sides that were chosen without looking at the frames: one for all tiles, or one for each tile of a frame, row by row.
class by_hand {
 public:
  static constexpr budget price() noexcept { return {}; }
  explicit by_hand(std::uint8_t side) : side_(side) {}
  explicit by_hand(std::vector<std::uint8_t> of_tiles) : of_tiles_(std::move(of_tiles)) {}

  template <class Kernels>
  void choose(Kernels&, pixelized& out, std::span<const std::uint8_t> allowed, const detail::noise_source&) const {
    const auto tiles = static_cast<std::size_t>(detail::blocks_of(out.rows, tile_side) * out.tile_columns());
    const auto of_frame = side_ != 0 ? std::vector<std::uint8_t>(tiles, side_) : of_tiles_;
    detail::require_sides(of_frame, out.rows, out.columns, allowed);
    detail::copy_sides(out, of_frame);
  }

 private:
  std::uint8_t side_ = 0;
  std::vector<std::uint8_t> of_tiles_;
};

/// Sides by the scores of a public frame, an earlier release say: the mean of |value - 128| over a tile, of which each threshold
/// that it reaches takes a smaller side. One threshold less than sides; units: grey levels, 0 to 128, ascending.
class from_public {
 public:
  static constexpr budget price() noexcept { return {}; }
  from_public(std::vector<std::uint8_t> frame, std::vector<int> thresholds)
      : frame_(std::move(frame)), thresholds_(std::move(thresholds)) {}

  template <class Kernels>
  void choose(Kernels&, pixelized& out, std::span<const std::uint8_t> allowed, const detail::noise_source&) const {
    detail::sides_of_public(out, frame_, detail::required_choice(allowed, thresholds_));
  }

 private:
  std::vector<std::uint8_t> frame_;
  std::vector<int> thresholds_;
};

/// Sides by the scores of the private frames themselves, with noise that a budget of its own pays for.
class scored_for {
 public:
  scored_for(budget price, std::vector<int> thresholds) : price_(price), thresholds_(std::move(thresholds)) {}
  budget price() const noexcept { return price_; }

  template <class Kernels>
  void choose(Kernels& kernels, pixelized& out, std::span<const std::uint8_t> allowed,
              const detail::noise_source& noise) const {
    kernels.sides(out, noise, detail::required_choice(allowed, thresholds_));
  }

 private:
  budget price_;
  std::vector<int> thresholds_;
};
/// The same with a budget that the compiler adds to that of the means.
template <class Budget>
class scored : public scored_for {
 public:
  using price_type = Budget;
  explicit scored(std::vector<int> thresholds) : scored_for(Budget::value, std::move(thresholds)) {}
};

namespace detail {
template <class Budget, class Map>
struct total_of {
  using type = in_sequence<Budget>;
};
template <class Budget, class Score>
struct total_of<Budget, scored<Score>> {
  using type = in_sequence<Score, Budget>;
};
template <class Map>
struct total_of<without_noise, Map> {
  using type = without_noise;
};
template <class Score>
struct total_of<without_noise, scored<Score>> {
  using type = without_noise;
};

// The type's arguments show both numbers in the compiler's message.
template <std::int64_t M, std::int64_t Largest>
struct at_most {
  static constexpr bool value = M <= Largest;
};

// What a pixel changes of a sum of a channel, and of a score: |value - 128| is at most 128.
inline constexpr std::int64_t sum_range = 255;
inline constexpr std::int64_t score_range = 128;
inline constexpr std::int64_t most_scale = 0xffffffff;

// The most pixels that noise can hide.
constexpr std::int64_t most_pixels(budget epsilon, std::int64_t channels, std::int64_t range) noexcept {
  return most_scale / (range * channels) / epsilon.d;
}
// The scale of noise that hides m pixels of so many channels whose values count for `range` each. Requires m to be at most
// that, a numerator of at most `most_scale`, and all to be positive.
constexpr laplace_scale scale_of(budget epsilon, std::int64_t m, std::int64_t channels, std::int64_t range) noexcept {
  const std::int64_t t = range * m * channels * epsilon.d;
  const std::int64_t shared = std::gcd(t, epsilon.n);
  return {static_cast<std::uint32_t>(t / shared), static_cast<std::uint32_t>(epsilon.n / shared)};
}
template <class Budget, std::int64_t M, std::int64_t Channels, std::int64_t Range>
constexpr laplace_scale checked_scale() {
  using largest = at_most<M, most_pixels(Budget::value, Channels, Range)>;
  static_assert(largest::value,
                "heddle: privacy::pixelize: pixels<M> and a budget N / D: 255 M D channels must stay below 2^32; "
                "the second number of at_most is the largest M");
  static_assert(Budget::value.n <= most_scale,
                "heddle: privacy::pixelize: the numerator of a budget must stay below 2^32");
  return scale_of(Budget::value, largest::value ? M : 1, Channels, Range);
}

inline void require_budget(budget epsilon, std::int64_t pixels) {
  if (epsilon.n < 1 || epsilon.d < 1 || epsilon.n > most_scale)
    throw config_error(
        "heddle: privacy::pixelizer: a budget lies above 0, with a positive denominator and a numerator below "
        "2^32, got " +
        to_string(epsilon));
  if (pixels < 1)
    throw config_error("heddle: privacy::pixelizer: neighbouring frames differ in at least one pixel, got " +
                       std::to_string(pixels));
}
inline laplace_scale required_scale(budget epsilon, std::int64_t m, std::int64_t channels, std::int64_t range) {
  if (channels < 1 || channels > most_channels)
    throw config_error("heddle: privacy::pixelizer: a pixel has 1 to 4 channels, got " + std::to_string(channels));
  if (m > most_pixels(epsilon, channels, range))
    throw config_error("heddle: privacy::pixelizer: " + std::to_string(m) + " pixels with a budget of " +
                       to_string(epsilon) + " need a scale of 2^32 or more; at most " +
                       std::to_string(most_pixels(epsilon, channels, range)));
  return scale_of(epsilon, m, channels, range);
}
inline void require_list(std::span<const std::uint8_t> sides) {
  if (sides.empty()) throw config_error("heddle: privacy::pixelizer: name at least one side of blocks");
  for (std::size_t i = 0; i < sides.size(); ++i)
    if (sides[i] == 0 || tile_side % sides[i] != 0 || (i > 0 && sides[i] <= sides[i - 1]))
      throw config_error("heddle: privacy::pixelizer: sides ascend, and each divides 64; side " + std::to_string(i) +
                         " is " + std::to_string(sides[i]));
}

// Whether no cut of the layout goes through a tile of a frame: dimension 0 is that of frames, 1 that of rows.
template <class Layout>
constexpr bool keeps_tiles() {
  if (Layout::has_partial || Layout::has_halo) return false;
  for (const auto& cut : Layout::cuts)
    if (cut.dim > 1 || (cut.dim == 1 && cut.how != &heddle::v0::detail::functions_of<split::block_cyclic<tile_side>>))
      return false;
  return true;
}
// What a release needs beside frames and map.
struct release_rule {
  std::uint64_t seed;
  laplace_scale sum_scale, score_scale;
  std::span<const std::uint8_t> sides;
};

// `charge(frames)` is called once all is known to be in order, before anything is released.
template <class Backend, class T, std::size_t Rank, class Layout, class Space, class Map, class Charge>
pixelized release(Backend& backend, const sharded<T, Rank, Layout, Space>& frames, std::int64_t first_frame,
                  const release_rule& rule, const Map& map, Charge charge) {
  static_assert(std::same_as<T, std::uint8_t>, "heddle: privacy::pixelize: frames are of std::uint8_t");
  static_assert(Rank == 3 || Rank == 4,
                "heddle: privacy::pixelize: frames are frames x rows x columns, or with x channels");
  static_assert(keeps_tiles<Layout>(),
                "heddle: privacy::pixelize: this layout cuts tiles: split frames, shard<0, axis>, or rows by "
                "shard<1, split::block_cyclic<64>, axis>");
  const auto whole = frames.shape().extents();
  require_frames(whole[0], whole[1], whole[2], first_frame);
  const auto part = frames.layout().part(frames.shape(), frames.rank());
  pixelized out{.frames = part.dims[0].size(),
                .rows = whole[1],
                .columns = whole[2],
                .channels = Rank == 4 ? whole[Rank - 1] : 1,
                .tile_rows = {},
                .sides = {},
                .offsets = {},
                .means = {}};
  for (std::int64_t r = 0; r < part.dims[1].size(); r += tile_side)
    out.tile_rows.push_back(part.dims[1].to_global(r) / tile_side);
  std::vector<std::uint32_t> numbers;
  for (std::int64_t f = 0; f < out.frames; ++f)
    numbers.push_back(static_cast<std::uint32_t>(first_frame + part.dims[0].to_global(f)));
  out.sides.resize(static_cast<std::size_t>(out.frames * out.tile_columns()) * out.tile_rows.size());
  if constexpr (std::same_as<T, std::uint8_t>) {  // one error for a mistake
    pixel_kernels<Backend> kernels(backend, out, elements_of(frames), numbers);
    map.choose(kernels, out, rule.sides, {rule.seed, rule.score_scale});
    kernels.lay_out(out);
    charge(whole[0]);
    kernels.means(out, {rule.seed, rule.sum_scale});
  }
  return out;
}
}  // namespace detail

/// A seed from the system's source of random bits. Ranks of one world must use one: draw it on one of them.
inline std::uint64_t random_seed() {
  std::random_device draw;
  return (std::uint64_t{draw()} << 32) | draw();
}

/// Pixelizes frames so that a budget bounds what they tell of any M pixels: means of square blocks, each with discrete Laplace
/// noise of scale t = 255 M channels / budget on its integer sum, divided by the real number of pixels. M changed pixels change
/// the vector of all sums by at most 255 M channels, wherever they are and whatever the blocks, so that the release costs
/// `budget`, in sequence with the one that pays for a `scored` map. Clamping, rounding and expanding cost nothing.
/// Shapes: frames x rows x columns, with more than one channel x channels. Frames, and rows by `split::block_cyclic<64>`, may be
/// split over any axes; nothing is sent, and the bits do not depend on ranks and threads.
/// Source: Liu 2025, arXiv:2511.04261, on sums; Dwork et al. 2006, "Calibrating noise to sensitivity in private data analysis".
template <class Budget, class Pixels, class Sides, class Map = by_hand, class Channels = channels<1>>
class pixelize {
 public:
  static constexpr bool is_private = !std::same_as<Budget, without_noise>;
  /// What a frame costs: an `epsilon`.
  using total = typename detail::total_of<Budget, Map>::type;

  /// Scale of the noise on sums, and on scores, of which a pixel changes at most 128 a channel. A denominator of 0: none.
  static constexpr laplace_scale sum_scale = [] {
    if constexpr (is_private)
      return detail::checked_scale<Budget, Pixels::count, Channels::count, detail::sum_range>();
    else
      return laplace_scale{0, 0};
  }();
  static constexpr laplace_scale score_scale = [] {
    if constexpr (requires { typename Map::price_type; })
      return detail::checked_scale<typename Map::price_type, Pixels::count, Channels::count, detail::score_range>();
    else
      return laplace_scale{0, 0};
  }();

  pixelize(std::uint64_t seed, Map map) : seed_(seed), map_(std::move(map)) {}

  /// The means of what this rank holds. `first_frame` is the number of frame 0: noise depends on seed and number. All ranks call
  /// it with ledgers that have seen the same; what is charged is the whole tensor's.
  /// Errors, before anything is released: `config_error` for frames without pixels, with 2^31 tiles or more, or numbers beyond
  /// 32 bits; for a map of another size or sides; for what the ledger refuses.
  template <class Backend, class T, std::size_t Rank, class Layout, class Space>
  pixelized operator()(Backend& backend, const sharded<T, Rank, Layout, Space>& frames, ledger& spent,
                       std::int64_t first_frame = 0) const
    requires is_private
  {
    return release(backend, frames, first_frame, [&](std::int64_t n) { spent.spend(total{}, seed_, first_frame, n); });
  }
  /// Without noise there is no ledger.
  template <class Backend, class T, std::size_t Rank, class Layout, class Space>
  pixelized operator()(Backend& backend, const sharded<T, Rank, Layout, Space>& frames,
                       std::int64_t first_frame = 0) const
    requires(!is_private)
  {
    return release(backend, frames, first_frame, [](std::int64_t) {});
  }

 private:
  static_assert(!std::same_as<Map, scored_for>,
                "heddle: privacy::pixelize: the budget of scores is a type here: scored<Budget>");
  template <class Backend, class T, std::size_t Rank, class Layout, class Space, class Charge>
  pixelized release(Backend& backend, const sharded<T, Rank, Layout, Space>& frames, std::int64_t first_frame,
                    Charge charge) const {
    static_assert(Rank != (Channels::count == 1 ? 4 : 3),
                  "heddle: privacy::pixelize: pixels with channels have a dimension of their own, and channels<N>");
    if constexpr (Rank == 4)
      if (frames.shape().extents()[Rank - 1] != Channels::count)
        throw config_error("heddle: privacy::pixelize: pixels have " + std::to_string(Channels::count) +
                           " channels, got " + std::to_string(frames.shape().extents()[Rank - 1]));
    return detail::release(backend, frames, first_frame, {seed_, sum_scale, score_scale, Sides::list}, map_, charge);
  }

  std::uint64_t seed_;
  Map map_;
};

/// `pixelize` with numbers that are known at run time only, those of a command line say: the same bits.
template <class Map>
class pixelizer {
 public:
  /// `sides` ascend. Errors: `config_error` for a budget of 0 or below, a number of pixels below 1, sides that do not ascend or
  /// do not divide 64.
  pixelizer(std::uint64_t seed, budget epsilon, std::int64_t pixels, std::vector<std::uint8_t> sides, Map map)
      : seed_(seed), epsilon_(epsilon), pixels_(pixels), sides_(std::move(sides)), map_(std::move(map)) {
    detail::require_budget(epsilon_, pixels_);
    if (map_.price() != budget{}) detail::require_budget(map_.price(), pixels_);
    detail::require_list(sides_);
  }

  /// What a frame costs. Errors: `config_error` if the sum is no fraction of 64-bit numbers.
  budget total() const { return epsilon_ + map_.price(); }
  /// As that of `pixelize`. Errors: also `config_error` for more than 4 channels, or 2^32 or more of 255 m channels / budget.
  template <class Backend, class T, std::size_t Rank, class Layout, class Space>
  pixelized operator()(Backend& backend, const sharded<T, Rank, Layout, Space>& frames, ledger& spent,
                       std::int64_t first_frame = 0) const {
    const std::int64_t channels = Rank == 4 ? frames.shape().extents()[Rank - 1] : 1;
    const laplace_scale score = map_.price() == budget{}
                                    ? laplace_scale{0, 0}
                                    : detail::required_scale(map_.price(), pixels_, channels, detail::score_range);
    return detail::release(
        backend, frames, first_frame,
        {seed_, detail::required_scale(epsilon_, pixels_, channels, detail::sum_range), score, sides_}, map_,
        [&](std::int64_t n) { spent.spend(total(), seed_, first_frame, n); });
  }

 private:
  std::uint64_t seed_;
  budget epsilon_;
  std::int64_t pixels_;
  std::vector<std::uint8_t> sides_;
  Map map_;
};

}  // namespace heddle::inline v0::privacy
