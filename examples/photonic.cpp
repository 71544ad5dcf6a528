// Optical circuits between 128 ranks: before which rounds of an all-reduce it pays to switch them, and how much that gains.
// run: images
// prints: 16 MB, switch of 10 us: 13 switches, 490 us
// prints: round  0: the circuits of round 0
// prints: wrote images/photonic_ring.svg
#include <heddle/collective/algorithm/bidirectional_ring.hpp>
#include <heddle/collective/algorithm/rabenseifner.hpp>
#include <heddle/collective/algorithm/ring.hpp>
#include <heddle/collective/algorithm/swing.hpp>
#include <heddle/collective/algorithm/torus.hpp>
#include <heddle/mesh/topologies.hpp>
#include <heddle/plan/gain_map.hpp>

#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace hd = heddle;
namespace algo = heddle::algo;

namespace {

constexpr int ranks = 128;

template <class Algorithm>
hd::round_table all_reduce_rounds() {
  return Algorithm::template rounds<hd::comm_operation::all_reduce>(ranks, 0);
}

// 3 us per hop; 100 GB/s leave a rank, through all its ports together.
hd::plan::circuit_switch optics(int ports, double delay) {
  return {3e-6, 100e9, ports, delay};
}

// What switching has to beat: the best of these algorithms on the first topology.
template <class... Algorithms>
void draw(const std::filesystem::path& file, const char* title, const hd::topology& start, int ports) {
  const std::array tables{all_reduce_rounds<Algorithms>()...};
  const std::vector<hd::round_view> algorithms(tables.begin(), tables.end());
  std::vector<std::int64_t> bytes;
  for (const double b : hd::plan::logarithmic(1e4, 1e9, 5)) bytes.push_back(static_cast<std::int64_t>(b + 0.5));
  const hd::plan::gain_map map =
      hd::plan::gains_of_switching(algorithms, start, optics(ports, 0), hd::plan::logarithmic(1e-6, 1e-2, 6), bytes);
  std::printf("\n%s; columns: 1 us, 10 us, 100 us, 1 ms, 10 ms to switch\n", title);
  for (std::size_t i = 0; i < map.bytes.size(); i += 5) {
    std::printf("%10lld bytes, never switched %10.1f us; times faster:", static_cast<long long>(map.bytes[i]),
                map.fixed[i] * 1e6);
    for (std::size_t k = 0; k < map.delays.size(); k += 6) std::printf(" %5.2f", map.gain(i, k));
    std::printf("\n");
  }
  std::ofstream out(file, std::ios::binary);
  out << hd::plan::gain_map_svg(map, title);
  if (!out.flush()) throw hd::io_error("cannot write " + file.string());
  std::printf("wrote %s\n", file.string().c_str());
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc > 1 && argv[1][0] == '-') {
    std::printf("usage: photonic [folder for pictures]\n");
    return 0;
  }
  const std::filesystem::path folder = argc > 1 ? argv[1] : ".";
  std::filesystem::create_directories(folder);

  // [plan]
  const hd::round_table rounds = all_reduce_rounds<algo::rabenseifner>();
  const hd::plan::circuit_switch fabric = optics(2, 10e-6);
  const hd::topology ring = hd::topologies::ring(ranks, fabric.port());
  const hd::plan::fabric_states states(rounds, ring, fabric);
  const hd::plan::reconfiguration plan = hd::plan::reconfigure(states, 16'000'000, 1);
  std::printf("16 MB, switch of 10 us: %d switches, %.0f us\n", plan.switches, plan.seconds * 1e6);
  for (const auto& part : plan.segments())
    std::printf("  round %2d: %s\n", part.first, states.name(part.state).c_str());
  // [plan]

  draw<algo::rabenseifner, algo::ring, algo::bidirectional_ring, algo::swing>(
      folder / "photonic_ring.svg", "All-reduce on 128 ranks that start as a ring", ring, 2);
  const hd::topology torus = hd::topologies::torus({8, 16}, optics(4, 0).port());
  draw<algo::rabenseifner, algo::ring, algo::bidirectional_ring>(
      folder / "photonic_torus.svg", "All-reduce on 128 ranks that start as an 8 x 16 torus", torus, 4);
  draw<algo::rabenseifner, algo::ring, algo::bidirectional_ring, algo::torus<8, 16>, algo::swing_torus<8, 16>>(
      folder / "photonic_torus_own.svg", "The same torus, with algorithms made for it as well", torus, 4);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
