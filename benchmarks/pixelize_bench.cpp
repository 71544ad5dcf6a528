// benchmarks/pixelize_bench.cpp: private pixelization of a frame of 1088 x 1920 beside the algorithm as it is printed, block after
// block, both on the host, and beside the speed at which memory is read. The least of rounds in turn, by the clock: works of a
// millisecond are rarely interrupted in all of them.
//   pixelize_bench [rounds]
#include "read_bandwidth.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/compute/pixelize.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

namespace {

namespace hd = heddle;
namespace pv = heddle::privacy;
constexpr std::int64_t rows = 1088, columns = 1920;
using line = hd::mesh<hd::axis<hd::dp>>;
using frame = hd::sharded<std::uint8_t, 3, hd::layout<line, hd::shard<0, hd::dp>>>;
using both_sides = pv::sides<16, 32>;
using with_noise = pv::pixelize<pv::epsilon<1, 2>, pv::pixels<16>, both_sides>;
using plain = pv::pixelize<pv::without_noise, pv::pixels<16>, both_sides>;

// Block after block: its sum, its noise (with the counters of `pixelize`, so that the draws are the same), its mean, its pixels.
void as_printed(const std::uint8_t* in, std::uint8_t* out, std::int64_t side, const pv::detail::noise_source& noise) {
  for (std::int64_t top = 0; top < rows; top += side)
    for (std::int64_t left = 0; left < columns; left += side) {
      std::int64_t sum = 0;
      for (std::int64_t r = top; r < top + side; ++r)
        for (std::int64_t c = left; c < left + side; ++c) sum += in[r * columns + c];
      const std::int64_t tile = top / 64 * (columns / 64) + left / 64;
      sum += noise(0, static_cast<std::uint32_t>(tile),
                   static_cast<std::uint32_t>(top % 64 / side * (64 / side) + left % 64 / side));
      const std::uint8_t mean = pv::detail::rounded_mean(sum, side * side);
      for (std::int64_t r = top; r < top + side; ++r)
        for (std::int64_t c = left; c < left + side; ++c) out[r * columns + c] = mean;
    }
}

double least(const std::vector<double>& v) {
  return *std::min_element(v.begin(), v.end());
}
// The least time that each work takes, in ms; the works take turns.
std::vector<double> in_turn(int rounds, const std::vector<std::function<void()>>& works) {
  std::vector<std::vector<double>> times(works.size());
  for (int r = -1; r < rounds; ++r)
    for (std::size_t w = 0; w < works.size(); ++w) {
      const spent t = time_of(works[w]);
      if (r >= 0) times[w].push_back(1e3 * t.wall);
    }
  std::vector<double> of_works;
  for (const auto& t : times) of_works.push_back(least(t));
  return of_works;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 41;
  frame x(hd::layout<line, hd::shard<0, hd::dp>>{line{1}}, hd::dynamic_shape<3>{1, rows, columns}, 0);
  std::uint32_t at = 17;
  for (std::uint8_t& v : x.elements()) v = static_cast<std::uint8_t>((at = at * 1664525u + 1013904223u) >> 24);
  const std::uint8_t* const in = x.elements().data();
  std::vector<std::uint8_t> out(static_cast<std::size_t>(rows * columns)), ours(out.size());
  hd::compute::host<> one, two(2);
  pv::pixelized means;
  for (const int side : {16, 32}) {
    const pv::by_hand map(static_cast<std::uint8_t>(side));
    const auto noisy = [&](hd::compute::host<>& backend) {
      pv::ledger ledger(pv::epsilon<1>{});
      means = with_noise(7, map)(backend, x, ledger);
    };
    const pv::detail::noise_source none{}, noise{7, with_noise::sum_scale};
    const auto t = in_turn(
        rounds, {[&] { as_printed(in, out.data(), side, none); }, [&] { pv::expand(plain(0, map)(one, x), 0, ours); },
                 [&] { means = plain(0, map)(one, x); }, [&] { as_printed(in, out.data(), side, noise); },
                 [&] { noisy(one), pv::expand(means, 0, ours); }});
    const bool same = ours == out;
    std::printf(
        "side %d: as printed %.2f ms, %.2f with noise; here %.2f, means only %.2f, with noise %.2f; same pixels: %s\n",
        side, t[0], t[3], t[1], t[2], t[4], same ? "yes" : "no");
    std::printf("side %d: faster without noise %.2f x, means only %.2f x, with the same draws %.2f x\n", side,
                t[0] / t[1], t[0] / t[2], t[3] / t[4]);
    std::vector<double> by_one, by_two, read;
    for (int r = 0; r < rounds; ++r) {
      by_one.push_back(time_of([&] { noisy(one); }).wall);
      by_two.push_back(time_of([&] { noisy(two); }).wall);
    }
    for (int r = 0; r < 3; ++r) read.push_back(read_memory(1).wall);
    std::printf("side %d: two threads %.2f x one, by the clock; the pass reads at %.2f of the bandwidth of memory\n",
                side, least(by_one) / least(by_two),
                rows * columns / (1e-3 * t[2]) / (static_cast<double>(bytes_of_memory) / least(read)));
    if (!same) return 1;
  }
}
