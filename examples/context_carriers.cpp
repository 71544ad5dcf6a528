// Carriers of context parallelism: one document over ranks, attended by every carrier, beside attention on one rank.
// run: 4 causal zigzag
// mpi: 4
// virtual: 8 8 causal zigzag
// prints: kv-ring        4 rounds, 1.000 max/mean, 1867776 bytes
// prints: ulysses-2      not on 4 ranks
// prints: all carriers: as on one rank
// prints: wrote context_token_ring.svg
// varies: [0-9]+.[0-9]+ ms here
#include "transport.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/context/check.hpp>
#include <heddle/context/cost.hpp>
#include <heddle/context/execute.hpp>
#include <heddle/context/masks.hpp>
#include <heddle/context/picture.hpp>
#include <heddle/mesh/topologies.hpp>
#include <heddle/sim/network.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

namespace hd = heddle;
namespace hc = heddle::compute;

namespace {

constexpr hd::context_shape heads{8, 4, 32, 32, sizeof(float), sizeof(float)};
constexpr float scale = 0.17677669f;  // 1 / sqrt(32)

// Rows of what attention takes, and of what it makes.
enum tensor { q, k, v, d_out, out, d_q, d_k, d_v };
struct rows {
  std::array<std::vector<float>, 8> of{};
  std::vector<float> lse;
  std::int64_t count;
  explicit rows(std::int64_t n) : lse(static_cast<std::size_t>(n * heads.query_heads)), count(n) {
    for (int t = q; t <= d_v; ++t) of[static_cast<std::size_t>(t)].resize(static_cast<std::size_t>(n * width(t)));
  }
  static std::int64_t heads_of(int t) {
    return t == k || t == v || t == d_k || t == d_v ? heads.key_heads : heads.query_heads;
  }
  static std::int64_t width(int t) { return heads_of(t) * heads.head_dim; }
  float* row(int t, std::int64_t r) { return of[static_cast<std::size_t>(t)].data() + r * width(t); }
  hc::head_rows<float> operator[](tensor t) { return {row(t, 0), count, heads_of(t), heads.head_dim, width(t)}; }
  hc::head_rows<const float> in(tensor t) { return (*this)[t]; }
};

struct passes {
  hd::context_table forward, backward;
};

// Both passes on ranks of the transport: seconds, and the largest difference to the whole document.
std::array<double, 2> run(const passes& tables, rows& whole) {
  const hd::context_cut& cut = tables.forward.cut;
  std::array<double, 2> result{};
  hd::launch<on::transport>(hd::mesh<hd::axis<hd::cp>>{cut.ranks}, [&](auto& world) {
    auto& ranks = world.template along<hd::cp>();
    const int me = ranks.rank();
    rows own(cut.rows[static_cast<std::size_t>(me)]);
    hd::each_row_of(cut, me, [&](int, std::int64_t position, std::int64_t row) {
      for (int t = q; t <= d_out; ++t) std::copy_n(whole.row(t, position), rows::width(t), own.row(t, row));
    });
    const hd::context_program forward = hd::lower_context(tables.forward, me),
                              backward = hd::lower_context(tables.backward, me);
    hc::host<> backend(1);
    hd::context_executor<float, hc::host<>, std::remove_reference_t<decltype(ranks)>> attention(backend, ranks);
    ranks.barrier();
    const auto start = std::chrono::steady_clock::now();
    attention.attend(forward, own[q], own[k], own[v], scale, own[out], own.lse);
    attention.attend_backward(backward, own[d_out], own[q], own[k], own[v], own[out], own.lse, scale, own[d_q],
                              own[d_k], own[d_v]);
    ranks.barrier();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    double worst = 0;
    hd::each_row_of(cut, me, [&](int, std::int64_t position, std::int64_t row) {
      for (int t = out; t <= d_v; ++t)
        for (std::int64_t i = 0; i < rows::width(t); ++i)
          worst = std::max<double>(worst, std::abs(own.row(t, row)[i] - whole.row(t, position)[i]));
    });
    world.control().all_reduce(worst, hd::maximum{});
    if (on::keeps(me)) result = {seconds, worst};
  });
  return result;
}

int compare(int ranks, const std::string& mask, const std::string& order) {
  if (ranks < 1 || ranks > 64) throw hd::config_error("context_carriers: the ranks should be 1 to 64");
  const std::int64_t length = 64 * ranks;
  hd::context_document document{length, {}, hd::named_context_mask(mask, length)};
  for (int r = 0; r < ranks; ++r) document.ranks.push_back(r);
  const hd::context_cut cut = hd::named_context_order(order).cut({document}, ranks);

  rows whole(length);
  for (int t = q; t <= d_out; ++t)
    for (std::size_t i = 0; i < whole.of[static_cast<std::size_t>(t)].size(); ++i)
      whole.of[static_cast<std::size_t>(t)][i] =
          static_cast<float>(hd::counter_random(1, static_cast<std::uint64_t>(t)).normal(i));
  hc::host<> backend(1);
  const std::span<const hc::attention_slice> slices(document.mask);
  hc::run<hc::ops::attention>(backend, whole.in(q), whole.in(k), whole.in(v), slices, scale, whole[out],
                              std::span(whole.lse), hc::key_pages{});
  hc::run<hc::ops::attention_backward>(backend, whole.in(d_out), whole.in(q), whole.in(k), whole.in(v), whole.in(out),
                                       std::span<const float>(whole.lse), slices, scale, whole[d_q], whole[d_k],
                                       whole[d_v], hc::key_pages{});

  std::printf("%d ranks, %d tokens, %s, %s; forward and backward\n", ranks, static_cast<int>(length), mask.c_str(),
              order.c_str());
  const hd::topology links = hd::topologies::full(ranks, {1e-6, 1e10});  // 1 us, 10 GB/s from each rank to each other
  double worst = 0;
  for (const hd::context_carrier& carrier : hd::context_carriers()) {
    const std::string name(carrier.name);
    if (!carrier.offers(ranks) || heads.query_heads % carrier.parts != 0) {
      std::printf("%-14s not on %d ranks\n", name.c_str(), ranks);
      continue;
    }
    passes tables{make_context_table(carrier, cut, hd::context_pass::forward),
                  make_context_table(carrier, cut, hd::context_pass::backward)};
    double simulated = 0;
    std::int64_t bytes = 0;
    for (hd::context_table* t : {&tables.forward, &tables.backward}) {
      hd::require_context(*t);
      bytes += bytes_sent(*t, heads).total();
      t->rounds.sizes = context_sizes(*t, heads);
      simulated +=
          hd::sim::simulate(t->rounds, links, 0, 1, {}, hd::routing::split, compute_seconds(*t, heads, 1e12)).seconds;
    }
    const auto [seconds, error] = run(tables, whole);
    worst = std::max(worst, error);
    std::printf("%-14s %d rounds, %.3f max/mean, %d bytes, %.3f ms simulated, %.2f ms here, error %.0e\n", name.c_str(),
                tables.forward.round_count(), balance_of(tables.forward).max_over_mean(), static_cast<int>(bytes),
                simulated * 1e3, seconds * 1e3, error);
    if (name == "kv-ring" || name == "token-ring" || name == "usp-2") {
      std::string file = "context_" + name + ".svg";
      std::replace(file.begin(), file.end(), '-', '_');
      std::ofstream picture(file, std::ios::binary);
      picture << context_svg(tables.forward,
                             name + ": " + mask + " mask, " + order + " order, " + std::to_string(length) + " tokens");
      if (!picture.flush()) throw hd::io_error("cannot write " + file);
      std::printf("wrote %s\n", file.c_str());
    }
  }
  std::printf("all carriers: %s on one rank\n", worst < 1e-4 ? "as" : "NOT as");
  return worst < 1e-4 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    on::begin(argc, argv);
    return compare(argc > 1 ? std::atoi(argv[1]) : 4, argc > 2 ? argv[2] : "causal", argc > 3 ? argv[3] : "zigzag");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
