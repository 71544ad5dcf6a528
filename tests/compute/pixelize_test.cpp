#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/pixelize.hpp>
#include <heddle/mesh/mesh.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <random>
#include <ratio>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace pixelize_test {
namespace hd = heddle;
namespace pv = hd::privacy;

using all_sides = pv::sides<8, 16, 32, 64>;
using half = pv::epsilon<1, 2>;
using private_stage = pv::pixelize<half, pv::pixels<16>, all_sides>;
using line = hd::mesh<hd::axis<hd::dp>>;
using by_frames = hd::layout<line, hd::shard<0, hd::dp>>;
using by_rows = hd::layout<line, hd::shard<1, hd::split::block_cyclic<64>, hd::dp>>;

std::uint8_t value(std::int64_t f, std::int64_t r, std::int64_t c, std::int64_t k) {
  return static_cast<std::uint8_t>((r * r + 3 * r * c + 7 * c + 50 * k + 11 * f) % 251);
}

// A rank's part of the picture, or of a video of such pictures.
template <std::size_t Rank, class Layout>
hd::sharded<std::uint8_t, Rank, Layout> picture(const Layout& layout, const hd::dynamic_shape<Rank>& shape, int rank) {
  hd::sharded<std::uint8_t, Rank, Layout> x(layout, shape, rank);
  const auto part = layout.part(shape, rank);
  std::size_t at = 0;
  const std::int64_t channels = Rank == 4 ? shape.extents()[Rank - 1] : 1;
  for (std::int64_t f = 0; f < part.dims[0].size(); ++f)
    for (std::int64_t r = 0; r < part.dims[1].size(); ++r)
      for (std::int64_t c = 0; c < part.dims[2].size(); ++c)
        for (std::int64_t k = 0; k < channels; ++k)
          x.elements()[at++] = value(part.dims[0].to_global(f), part.dims[1].to_global(r), c, k);
  return x;
}
template <class... E>
auto whole_picture(E... extents) {
  constexpr std::size_t rank = sizeof...(E);
  return picture<rank>(by_frames{line{1}}, hd::dynamic_shape<rank>{extents...}, 0);
}

std::int64_t clamped_mean(std::int64_t sum, std::int64_t n) {
  return std::lround(static_cast<double>(std::clamp<std::int64_t>(sum, 0, 255 * n)) / static_cast<double>(n));
}

// A serial program without tiles in memory or sums of columns: every pixel of frame f, with noise of the scale.
std::vector<std::uint8_t> reference(std::int64_t f, std::int64_t rows, std::int64_t columns, std::int64_t side,
                                    std::uint64_t seed, hd::laplace_scale t) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(rows * columns));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t top = r / side * side, left = c / side * side;
      std::int64_t sum = 0, n = 0;
      for (std::int64_t i = top; i < std::min(top + side, rows); ++i)
        for (std::int64_t j = left; j < std::min(left + side, columns); ++j, ++n) sum += value(f, i, j, 0);
      const std::int64_t tile = r / 64 * ((columns + 63) / 64) + c / 64;
      const std::int64_t across = (std::min<std::int64_t>(64, columns - c / 64 * 64) + side - 1) / side;
      const std::int64_t block = top % 64 / side * across + left % 64 / side;
      hd::counter_words words(seed, static_cast<std::uint32_t>(f), static_cast<std::uint32_t>(tile),
                              static_cast<std::uint32_t>(block));
      sum += hd::discrete_laplace(words, t);
      out[static_cast<std::size_t>(r * columns + c)] = static_cast<std::uint8_t>(clamped_mean(sum, n));
    }
  return out;
}

// Sums of all blocks of a frame of one channel, by tile.
std::vector<std::int64_t> sums_of(const std::vector<std::uint8_t>& frame, std::int64_t rows, std::int64_t columns,
                                  const std::vector<std::uint8_t>& sides) {
  std::vector<std::int64_t> out;
  std::size_t tile = 0;
  for (std::int64_t r = 0; r < rows; r += 64)
    for (std::int64_t c = 0; c < columns; c += 64, ++tile) {
      const pv::detail::tile_pixels p{frame.data() + r * columns + c, columns, std::min<std::int64_t>(64, rows - r),
                                      std::min<std::int64_t>(64, columns - c), 1};
      for (std::int64_t top = 0; top < p.height; top += sides[tile]) {
        std::int32_t sums[pv::detail::most_values];
        pv::detail::block_row_sums(p, top, sides[tile], sums);
        out.insert(out.end(), sums, sums + (p.width + sides[tile] - 1) / sides[tile]);
      }
    }
  return out;
}

TEST_CASE("sums and means of blocks are those of NumPy, for sizes that no side divides", "[compute]") {
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/golden/pixelize_golden.txt");
  int lines = 0;
  for (std::string text; std::getline(in, text); ++lines) {
    std::istringstream numbers(text);
    std::int64_t rows = 0, columns = 0, channels = 0, side = 0;
    numbers >> rows >> columns >> channels >> side;
    CAPTURE(rows, columns, channels, side);
    hd::compute::host<> backend;
    const pv::by_hand map(static_cast<std::uint8_t>(side));
    std::vector<std::uint8_t> got, pixels;
    const auto run = [&](const auto& x, const auto& stage) {
      pixels.assign(x.elements().begin(), x.elements().end());
      got = pv::expand(stage(backend, x), 0);
    };
    if (channels == 1)
      run(whole_picture(std::int64_t{1}, rows, columns),
          pv::pixelize<pv::without_noise, pv::pixels<16>, all_sides>(0, map));
    else
      run(whole_picture(std::int64_t{1}, rows, columns, channels),
          pv::pixelize<pv::without_noise, pv::pixels<16>, all_sides, pv::by_hand, pv::channels<3>>(0, map));
    REQUIRE(got.size() == static_cast<std::size_t>(rows * columns * channels));
    int wrong_means = 0, wrong_sums = 0;
    for (std::int64_t top = 0; top < rows; top += side)
      for (std::int64_t left = 0; left < columns; left += side) {
        std::int64_t n = 0;
        numbers >> n;
        std::int32_t sums[pv::detail::most_values];
        const std::int64_t across = left % 64 / side;
        pv::detail::block_row_sums({pixels.data() + (top / 64 * 64 * columns + left / 64 * 64) * channels,
                                    columns * channels, std::min<std::int64_t>(64, rows - top / 64 * 64),
                                    std::min<std::int64_t>(64, columns - left / 64 * 64), channels},
                                   top % 64, side, sums);
        for (std::int64_t k = 0; k < channels; ++k) {
          std::int64_t sum = -1;
          numbers >> sum;
          wrong_sums += sums[across * channels + k] != sum;
          for (std::int64_t r = top; r < std::min(top + side, rows); ++r)
            for (std::int64_t c = left; c < std::min(left + side, columns); ++c)
              wrong_means += got[static_cast<std::size_t>((r * columns + c) * channels + k)] != clamped_mean(sum, n);
        }
      }
    CHECK(bool(numbers));
    CHECK(wrong_sums == 0);
    CHECK(wrong_means == 0);
  }
  CHECK(lines == 24);
}

TEST_CASE("pixelized frames have the same bits for any ranks, threads and split, those of a serial program",
          "[compute]") {
  const hd::dynamic_shape<3> shape{3, 200, 130};
  const std::int64_t side = 16;
  const std::uint64_t seed = 99;
  std::vector<std::vector<std::uint8_t>> wanted;
  for (std::int64_t f = 0; f < 3; ++f) wanted.push_back(reference(f, 200, 130, side, seed, {8160, 1}));
  CHECK(wanted[0] != wanted[1]);
  const private_stage stage(seed, pv::by_hand(std::uint8_t{16}));
  const pv::pixelize<half, pv::pixels<16>, all_sides, pv::scored<pv::epsilon<8>>> by_score(
      seed, pv::scored<pv::epsilon<8>>({50, 62, 64}));
  std::vector<std::vector<std::uint8_t>> scores;
  const auto gathered = [&](const auto& layout, int ranks, int threads, const auto& pixelizer) {
    std::vector<std::vector<std::uint8_t>> out(3, std::vector<std::uint8_t>(200 * 130));
    hd::compute::host<> backend(threads);
    for (int rank = 0; rank < ranks; ++rank) {  // ranks say nothing to each other
      const auto x = picture<3>(layout, shape, rank);
      pv::ledger spent(pv::epsilon<100>{});
      const pv::pixelized means = pixelizer(backend, x, spent);
      const auto part = layout.part(shape, rank);
      for (std::int64_t f = 0; f < part.dims[0].size(); ++f) {
        const std::vector<std::uint8_t> local = pv::expand(means, f);
        REQUIRE(static_cast<std::int64_t>(local.size()) == part.dims[1].size() * 130);
        for (std::int64_t r = 0; r < part.dims[1].size(); ++r)
          std::copy_n(
              local.begin() + r * 130, 130,
              out[static_cast<std::size_t>(part.dims[0].to_global(f))].begin() + part.dims[1].to_global(r) * 130);
      }
    }
    return out;
  };
  scores = gathered(by_frames{line{1}}, 1, 1, by_score);
  // Numbers in place of types give the same bits.
  const std::vector<std::uint8_t> list{8, 16, 32, 64};
  CHECK(gathered(by_rows{line{2}}, 2, 1,
                 pv::pixelizer<pv::by_hand>(seed, {1, 2}, 16, list, pv::by_hand(std::uint8_t{16}))) == wanted);
  const pv::pixelizer<pv::scored_for> told(seed, {1, 2}, 16, list, pv::scored_for({8, 1}, {50, 62, 64}));
  CHECK(told.total() == pv::budget{17, 2});
  CHECK(gathered(by_rows{line{2}}, 2, 1, told) == scores);
  CHECK(scores != wanted);
  for (const int ranks : {1, 2, 3, 4, 8})
    for (const int threads : {1, 2}) {
      CAPTURE(ranks, threads);
      CHECK(gathered(by_frames{line{ranks}}, ranks, threads, stage) == wanted);
      CHECK(gathered(by_rows{line{ranks}}, ranks, threads, stage) == wanted);
      CHECK(gathered(by_rows{line{ranks}}, ranks, threads, by_score) == scores);
      CHECK(gathered(by_frames{line{ranks}}, ranks, threads, by_score) == scores);
    }
}

TEST_CASE("no placement of m changes costs more than the budget; noise for min(m, n) in edge blocks would",
          "[compute][law]") {
  STATIC_REQUIRE(private_stage::sum_scale.numerator == 255 * 16 * 2);
  STATIC_REQUIRE(private_stage::sum_scale.denominator == 1);
  STATIC_REQUIRE(std::same_as<private_stage::total, half>);
  using paid = pv::pixelize<half, pv::pixels<16>, all_sides, pv::scored<pv::epsilon<1, 10>>>;
  STATIC_REQUIRE(std::same_as<paid::total, pv::epsilon<3, 5>>);
  STATIC_REQUIRE(paid::score_scale.numerator == 128 * 16 * 10);
  using colour = pv::pixelize<half, pv::pixels<16>, all_sides, pv::by_hand, pv::channels<3>>;
  STATIC_REQUIRE(colour::sum_scale.numerator == 3 * private_stage::sum_scale.numerator);

  const std::uint64_t seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937_64 draw(seed);
  const std::int64_t rows = 66, columns = 66;  // the last tile has 4 pixels
  const std::vector<std::uint8_t> sides{16, 8, 32, 8};
  const double eps = 0.5;
  const auto scale = private_stage::sum_scale;
  const double t = static_cast<double>(scale.numerator) / scale.denominator;
  // The loss of a change of these pixels from 0 to 255, by noise of scale t, or of 255 min(m, n) / eps for a block of n.
  const auto losses = [&](const std::vector<std::size_t>& changed) {
    std::vector<std::uint8_t> before(static_cast<std::size_t>(rows * columns), 0), after = before, ones = before;
    std::fill(ones.begin(), ones.end(), std::uint8_t{1});
    for (const std::size_t p : changed) after[p] = 255;
    const auto a = sums_of(before, rows, columns, sides), b = sums_of(after, rows, columns, sides);
    const auto n = sums_of(ones, rows, columns, sides);
    std::pair<double, double> out{0, 0};
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto change = static_cast<double>(std::abs(b[i] - a[i]));
      out.first += change / t;
      out.second += change / (255.0 * static_cast<double>(std::min<std::int64_t>(16, n[i])) / eps);
    }
    return out;
  };
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<std::size_t> changed(16);
    const std::size_t from = trial % 2 == 0 ? 0 : static_cast<std::size_t>(64 * columns);
    for (auto& p : changed) p = from + draw() % (static_cast<std::size_t>(rows * columns) - from);
    CHECK(losses(changed).first <= eps * (1 + 1e-12));
  }
  std::vector<std::size_t> edge;
  for (const std::int64_t r : {64, 65})
    for (const std::int64_t c : {64, 65}) edge.push_back(static_cast<std::size_t>(r * columns + c));
  for (std::size_t c = 0; c < 12; ++c) edge.push_back(c);
  CHECK(losses(edge).first == Approx(eps));
  CHECK(losses(edge).second == Approx(1.75 * eps));  // breaks the promise

  // Scores: a pixel changes |value - 128| by at most 128, from 0 to 128.
  std::vector<std::uint8_t> tile(64 * 64, 128), other = tile;
  std::fill_n(other.begin(), 16, std::uint8_t{0});
  const auto score = [](const std::vector<std::uint8_t>& x) {
    return pv::detail::tile_score({x.data(), 64, 64, 64, 1});
  };
  CHECK(score(tile) == 0);
  CHECK(score(other) == 16 * 128);
}

TEST_CASE("released sums of two neighbours have nearly the same odds", "[compute][property]") {
  const int draws = 100'000;
  const pv::detail::noise_source noise{4711, private_stage::sum_scale};
  std::vector<int> first(41), second(41), too_far(41);
  const auto bin = [](std::int64_t x) {
    return static_cast<std::size_t>(std::clamp<std::int64_t>((x + 32 * 2000) / 3000, 0, 40));
  };
  for (int i = 0; i < draws; ++i) {
    ++first[bin(noise(static_cast<std::uint32_t>(i), 0, 0))];
    const std::int64_t x = noise(static_cast<std::uint32_t>(i), 1, 0);
    ++second[bin(x + 16 * 255)];
    ++too_far[bin(x + 2 * 16 * 255)];
  }
  const auto worst = [&](const std::vector<int>& other) {
    double most = 0;
    for (std::size_t b = 0; b < first.size(); ++b)
      if (first[b] > 1000 && other[b] > 1000)
        most = std::max(most, std::abs(std::log(static_cast<double>(first[b]) / other[b])));
    return most;
  };
  CHECK(worst(second) <= 0.5 + 0.1);
  CHECK(worst(second) > 0.35);        // the budget is used
  CHECK(worst(too_far) > 0.5 + 0.1);  // twice the changes
}

// A million runs of the whole release, on frames of one block: all changes are in it, and all is in the means that come out.
TEST_CASE("means of two neighbours have nearly the same odds in a million runs", "[compute][property][slow]") {
  const std::int64_t runs = 1'000'000, at_once = 10'000;
  hd::compute::host<> backend;
  const auto histogram = [&](int changed, std::uint64_t seed) {
    hd::sharded<std::uint8_t, 3, by_frames> x(by_frames{line{1}}, hd::dynamic_shape<3>{at_once, 8, 8}, 0);
    for (std::size_t i = 0; i < x.elements().size(); ++i)
      x.elements()[i] = i % 64 >= 32                                 ? std::uint8_t{128}
                        : i % 64 < static_cast<std::size_t>(changed) ? std::uint8_t{255}
                                                                     : std::uint8_t{0};
    pv::ledger spent(pv::epsilon<500'000>{});
    std::vector<int> bins(32);
    for (std::int64_t first = 0; first < runs; first += at_once)
      for (const std::uint8_t mean : private_stage(seed, pv::by_hand(std::uint8_t{8}))(backend, x, spent, first).means)
        ++bins[mean / 8];
    CHECK(spent.left() == pv::budget{0, 1});
    return bins;
  };
  const std::vector<int> first = histogram(0, 71), second = histogram(16, 72), too_far = histogram(32, 73);
  const auto worst = [&](const std::vector<int>& other) {
    double most = 0;
    for (std::size_t b = 0; b < first.size(); ++b)
      if (first[b] > 1000 && other[b] > 1000)
        most = std::max(most, std::abs(std::log(static_cast<double>(first[b]) / other[b])));
    return most;
  };
  CHECK(worst(second) <= 0.5 + 0.1);
  CHECK(worst(second) > 0.4);
  CHECK(worst(too_far) > 0.5 + 0.1);
}

TEST_CASE("sides by score follow the picture, and at equal budgets err less than fixed ones", "[compute]") {
  // Flat ground at 128 and a square of stripes.
  const std::int64_t side = 256;
  hd::sharded<std::uint8_t, 3, by_frames> x(by_frames{line{1}}, hd::dynamic_shape<3>{1, side, side}, 0);
  for (std::int64_t r = 0; r < side; ++r)
    for (std::int64_t c = 0; c < side; ++c)
      x.elements()[static_cast<std::size_t>(r * side + c)] = static_cast<std::uint8_t>(
          r >= 64 && r < 128 && c >= 64 && c < 192 ? ((r / 8 + c / 8) % 2 == 0 ? 8 : 248) : 128);
  hd::compute::host<> backend;
  using choice = pv::sides<8, 32>;
  const auto error = [&](const pv::pixelized& means) {
    const std::vector<std::uint8_t> got = pv::expand(means, 0);
    double sum = 0;
    for (std::size_t i = 0; i < got.size(); ++i) sum += (got[i] - x.elements()[i]) * (got[i] - x.elements()[i]);
    return sum / static_cast<double>(got.size());
  };
  int better_than_8 = 0, better_than_32 = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    pv::ledger a(pv::epsilon<2>{}), b(pv::epsilon<2>{}), c(pv::epsilon<2>{});
    using score = pv::epsilon<1, 5>;
    const auto adaptive = pv::pixelize<pv::epsilon<9, 5>, pv::pixels<16>, choice, pv::scored<score>>(
        seed, pv::scored<score>({60}))(backend, x, a);
    CHECK(a.left() == pv::budget{0, 1});
    CHECK(adaptive.sides == std::vector<std::uint8_t>{32, 32, 32, 32, 32, 8, 8, 32, 32, 32, 32, 32, 32, 32, 32, 32});
    using fixed = pv::pixelize<pv::epsilon<2>, pv::pixels<16>, choice>;
    const double at_8 = error(fixed(seed, pv::by_hand(std::uint8_t{8}))(backend, x, b));
    const double at_32 = error(fixed(seed, pv::by_hand(std::uint8_t{32}))(backend, x, c));
    better_than_8 += error(adaptive) < at_8;
    better_than_32 += error(adaptive) < at_32;
  }
  CHECK(better_than_8 == 20);
  CHECK(better_than_32 == 20);

  // Of a frame of 1080 x 1920 at side 16 less than 1/230 is kept: a byte for each of 68 x 120 blocks and 17 x 30 tiles.
  using plain = pv::pixelize<pv::without_noise, pv::pixels<16>, pv::sides<16>>;
  const hd::sharded<std::uint8_t, 3, by_frames> large(by_frames{line{1}}, hd::dynamic_shape<3>{1, 1080, 1920}, 0);
  const auto kept = plain(0, pv::by_hand(std::uint8_t{16}))(backend, large).bytes();
  CHECK(kept == 68 * 120 + 17 * 30);
  CHECK(kept * 230 <= 1080 * 1920);

  // The same picture as a public frame gives the same map, for nothing.
  using free = pv::pixelize<pv::epsilon<2>, pv::pixels<16>, choice, pv::from_public>;
  pv::ledger spent(pv::epsilon<2>{});
  const auto by_public = free(1, pv::from_public({x.elements().begin(), x.elements().end()}, {60}))(backend, x, spent);
  CHECK(by_public.sides == std::vector<std::uint8_t>{32, 32, 32, 32, 32, 8, 8, 32, 32, 32, 32, 32, 32, 32, 32, 32});
  CHECK(by_public.bytes() == 14 * 4 + 2 * 64 + 16);
}

TEST_CASE("pixelization refuses before anything is charged", "[compute]") {
  using Catch::Matchers::Contains;
  hd::compute::host<> backend;
  const auto x = whole_picture(std::int64_t{2}, std::int64_t{70}, std::int64_t{65});
  pv::ledger spent(pv::epsilon<1>{});
  const auto run = [&](auto map, std::uint64_t seed, std::int64_t first) {
    return pv::pixelize<half, pv::pixels<16>, pv::sides<8, 16>, decltype(map)>(seed, map)(backend, x, spent, first);
  };
  CHECK_THROWS_WITH(run(pv::by_hand(std::uint8_t{32}), 1, 0), Contains("tile 0 has blocks of side 32"));
  CHECK_THROWS_WITH(run(pv::by_hand(std::vector<std::uint8_t>(3, 8)), 1, 0),
                    Contains("has 4 tiles of 64 x 64, got sides of 3"));
  CHECK_THROWS_WITH(run(pv::from_public({1, 2}, {5}), 1, 0),
                    Contains("a public frame of 4550 values") && Contains("got 2"));
  CHECK_THROWS_WITH(run(pv::from_public(std::vector<std::uint8_t>(4550), {5, 6}), 1, 0),
                    Contains("told apart by 1 thresholds, got 2"));
  CHECK_THROWS_WITH(run(pv::scored<half>({129}), 1, 0), Contains("threshold 0 is 129"));
  CHECK_THROWS_WITH(run(pv::by_hand(std::uint8_t{8}), 1, (std::int64_t{1} << 32) - 1),
                    Contains("2 frames of 70 x 65") && Contains("2^32"));
  CHECK(spent.left() == pv::budget{1, 1});
  CHECK_THROWS_WITH(run(pv::scored<half>({60}), 1, 0), Contains("2 frames of a budget of 1/1 cost more than the 1/1"));
  const pv::pixelized means = run(pv::by_hand(std::uint8_t{8}), 1, 0);
  CHECK(spent.left() == pv::budget{0, 1});
  CHECK_THROWS_WITH(run(pv::by_hand(std::uint8_t{8}), 1, 0), Contains("have had"));
  CHECK_THROWS_WITH(pv::expand(means, 2), Contains("frame 2 of 2"));
  std::vector<std::uint8_t> small(3);
  CHECK_THROWS_WITH(pv::expand(means, 0, small), Contains("values here, there is room for 3"));
  const auto made = [](pv::budget epsilon, std::int64_t m, std::vector<std::uint8_t> sides) {
    return pv::pixelizer<pv::by_hand>(1, epsilon, m, sides, pv::by_hand(std::uint8_t{8}));
  };
  CHECK_THROWS_WITH(made({0, 1}, 16, {8}), Contains("above 0") && Contains("got 0/1"));
  CHECK_THROWS_WITH(made({1, 1}, 0, {8}), Contains("at least one pixel, got 0"));
  CHECK_THROWS_WITH(made({1, 1}, 16, {8, 12}), Contains("side 1 is 12"));
  CHECK_THROWS_WITH(made({1, 1}, 16, {16, 8}), Contains("side 1 is 8"));
  CHECK_THROWS_WITH(made({1, 100}, 168'431, {8})(backend, x, spent), Contains("at most 168430"));
  const auto nothing = whole_picture(std::int64_t{1}, std::int64_t{0}, std::int64_t{65});
  CHECK_THROWS_WITH(
      (pv::pixelize<pv::without_noise, pv::pixels<1>, all_sides>(1, pv::by_hand(std::uint8_t{8}))(backend, nothing)),
      Contains("1 frames of 0 x 65 pixels: there is nothing to pixelize"));
}
}  // namespace pixelize_test
