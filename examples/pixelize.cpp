// Pixelizes a picture so that a budget bounds what it tells of any few pixels: pixelize IN OUT, binary PGM or PPM.
// run: @SOURCE_DIR@/examples/pixelize/square.pgm out.pgm --epsilon 1/2 --pixels 16 --sides 8,16,32 --ranks 2 --seed 7
// prints: 150 x 200 pixels, 12 tiles on 2 ranks
// prints: spent 3/5: any 16 changed pixels change the odds of what is released by at most exp(3/5)
// prints: square.pgm: 30000 bytes, kept
// kokkos
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/pixelize.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#if defined(HEDDLE_EXAMPLE_KOKKOS)  // the program pixelize_kokkos, with --backend kokkos
#include <heddle/compute/kokkos/kokkos.hpp>
#include <heddle/compute/launched_pixelize.hpp>
#include <heddle/tensor/host_copy.hpp>
#endif

#include "portable_map.hpp"
#include "tool.hpp"

namespace hd = heddle;
namespace pv = heddle::privacy;

namespace {
struct settings {
  std::string in, out, epsilon = "1/2", score = "1/10", backend = "host";
  std::int64_t pixels = 16;
  int ranks = 1;
  std::vector<int> sides, thresholds;
  std::optional<std::uint64_t> seed;
};

// "1/2" or "3".
pv::budget read_budget(const std::string& text, const char* option) {
  pv::budget b{0, 1};
  const char* const end = text.data() + text.size();
  auto [at, problem] = std::from_chars(text.data(), end, b.n);
  if (problem == std::errc{} && at != end && *at == '/') {
    const auto second = std::from_chars(at + 1, end, b.d);
    at = second.ptr;
    problem = second.ec;
  }
  if (problem != std::errc{} || at != end || b.n < 1 || b.d < 1)
    throw tool::usage_error(std::string("heddle: ") + option + " must be a fraction above 0, as in 1/2, got " + text);
  return b;
}

// The means of a rank's part, by the backend that was asked for: the same bits.
template <class Stage, class Frames>
pv::pixelized release(const settings& s, const Stage& stage, const Frames& part, pv::ledger& spent) {
#if defined(HEDDLE_EXAMPLE_KOKKOS)
  if (s.backend == "kokkos") {
    using space = Kokkos::DefaultHostExecutionSpace;
    hd::compute::kokkos<space> backend;
    return stage(backend, hd::copy_to<hd::kokkos_memory<space>>(backend.queue(), part), spent);
  }
#else
  if (s.backend == "kokkos") throw tool::usage_error("heddle: --backend kokkos is the program pixelize_kokkos");
#endif
  hd::compute::host<> backend;
  return stage(backend, part, spent);
}

// Rows of tiles go to ranks in turn. Threads write what they hold into one picture.
template <class Map>
void run(const settings& s, std::vector<std::uint8_t> sides, Map map) {
  portable_map::picture picture = portable_map::read_picture(s.in);
  const pv::pixelizer<Map> stage(s.seed ? *s.seed : pv::random_seed(), read_budget(s.epsilon, "--epsilon"), s.pixels,
                                 std::move(sides), std::move(map));
  using mesh = hd::mesh<hd::axis<hd::dp>>;
  const std::vector<std::uint8_t> source = picture.values;
  std::vector<std::size_t> kept(static_cast<std::size_t>(s.ranks)), tiles = kept;
  hd::launch<hd::threads>(mesh{s.ranks}, [&](auto& world) {
    const hd::layout<mesh, hd::shard<1, hd::split::block_cyclic<pv::tile_side>, hd::dp>> rows{mesh{s.ranks}};
    hd::sharded<std::uint8_t, 4, decltype(rows)> part(
        rows, hd::dynamic_shape<4>{1, picture.rows, picture.columns, picture.channels}, world.rank());
    const std::int64_t pitch = picture.columns * picture.channels;
    const auto held = rows.part(part.shape(), world.rank()).dims[1];
    for (std::int64_t r = 0; r < held.size(); ++r)
      std::copy_n(source.begin() + held.to_global(r) * pitch, pitch, part.elements().begin() + r * pitch);
    pv::ledger spent(stage.total());
    const pv::pixelized means = release(s, stage, part, spent);
    const std::vector<std::uint8_t> seen = pv::expand(means, 0);
    for (std::int64_t r = 0; r < held.size(); ++r)
      std::copy_n(seen.begin() + r * pitch, pitch, picture.values.begin() + held.to_global(r) * pitch);
    kept[static_cast<std::size_t>(world.rank())] = means.bytes();
    tiles[static_cast<std::size_t>(world.rank())] = means.sides.size();
  });
  portable_map::write_picture(s.out, picture);
  std::size_t bytes = 0, all = 0;
  for (const std::size_t k : kept) bytes += k;
  for (const std::size_t t : tiles) all += t;
  const std::string total = to_string(stage.total());
  std::printf("%lld x %lld pixels, %zu tiles on %d ranks\n", static_cast<long long>(picture.rows),
              static_cast<long long>(picture.columns), all, s.ranks);
  std::printf("spent %s: any %lld changed pixels change the odds of what is released by at most exp(%s)\n",
              total.c_str(), static_cast<long long>(s.pixels), total.c_str());
  std::printf("%s: %zu bytes, kept as means and sides: %zu\n", std::filesystem::path(s.in).filename().string().c_str(),
              source.size(), bytes);
  if (s.seed) std::printf("--seed is for tests: who knows it takes the noise away\n");
}
}  // namespace

int main(int argc, char** argv) {
#if defined(HEDDLE_EXAMPLE_KOKKOS)
  int words = 1;
  char* word[] = {argv[0], nullptr};
  const Kokkos::ScopeGuard session(words, word);
#endif
  settings s;
  tool::command_line app("Pixelizes a picture with differential privacy: binary PGM or PPM in and out.");
  app.add_option("IN", s.in, "picture to read")->required();
  app.add_option("OUT", s.out, "picture to write")->required();
  app.add_option("--epsilon", s.epsilon, "budget of the means, as in 1/2");
  app.add_option("--pixels", s.pixels, "hide any object of so many pixels")
      ->range(std::int64_t{1}, std::int64_t{1} << 32);
  app.add_option("--sides", s.sides, "sides of blocks that divide 64; several: chosen for each tile by a score")
      ->delimiter(',')
      ->range(1, 64)
      ->otherwise("16");
  app.add_option("--score", s.score, "further budget of the scores, where there are several sides");
  app.add_option("--thresholds", s.thresholds, "grey levels of the mean |value - 128|, one less than sides")
      ->delimiter(',')
      ->range(0, 128)
      ->otherwise("evenly spread");
  app.add_option("--backend", s.backend, "what computes")->one_of({"host", "kokkos"});
  app.add_option("--ranks", s.ranks, "threads, which hold rows of tiles in turn")->range(1, 1024);
  app.add_option("--seed", s.seed, "for tests alone: noise that can be drawn again");
  return tool::run(app, argc, argv, [&] {
    if (s.sides.empty()) s.sides = {16};
    const std::vector<std::uint8_t> sides(s.sides.begin(), s.sides.end());
    if (sides.size() == 1) return run(s, sides, pv::by_hand(sides[0]));
    if (s.thresholds.empty())
      for (std::size_t i = 1; i < sides.size(); ++i) s.thresholds.push_back(static_cast<int>(i * 128 / sides.size()));
    run(s, sides, pv::scored_for(read_budget(s.score, "--score"), s.thresholds));
  });
}
