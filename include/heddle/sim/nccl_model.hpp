// heddle/sim/nccl_model.hpp: NCCL's model of its collectives: time, algorithm and protocol.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::sim {

/// The algorithms and protocols that NCCL chooses from, with the names it prints.
enum class nccl_algorithm : std::uint8_t { tree, ring, pat, nvls };
/// The protocols that NCCL chooses from.
enum class nccl_protocol : std::uint8_t { ll, ll128, simple };

/// The name that NCCL prints.
constexpr std::string_view to_string(nccl_algorithm a) noexcept {
  constexpr std::array<std::string_view, 4> names{"tree", "ring", "pat", "nvls"};
  return names[static_cast<std::size_t>(a)];
}
constexpr std::string_view to_string(nccl_protocol p) noexcept {
  constexpr std::array<std::string_view, 3> names{"LL", "LL128", "Simple"};
  return names[static_cast<std::size_t>(p)];
}

/// The machine as NCCL's model sees it: equal nodes, equal GPUs. Units: GB/s are 1e9 bytes per second, of all channels of
/// one direction together; latencies are built in.
struct nccl_cluster {
  int nodes = 1;
  int gpus_per_node = 8;
  bool nvlink = true;             ///< false: GPUs of a node are joined by PCIe; no LL128 then
  double inside_gbps = 360;       ///< through one GPU, inside a node
  double between_gbps = 100;      ///< between two nodes, all network cards of a node together
  int channels = 16;              ///< into how many pieces NCCL cuts a call
  bool nvls = false;              ///< the switch adds (NVLink SHARP)
  double nvls_efficiency = 0.85;  ///< 0.85 on Hopper, 0.74 on Blackwell
  double post_seconds = 1e-6;     ///< what a host needs to start a message: 1 us on Intel, 2 us on AMD

  constexpr int ranks() const noexcept { return nodes * gpus_per_node; }
};

/// A way in which NCCL can do a call, and the time it expects.
struct nccl_estimate {
  nccl_algorithm algorithm = nccl_algorithm::ring;
  nccl_protocol protocol = nccl_protocol::simple;
  double seconds = 0;
};

namespace detail {

// By algorithm (tree, ring, pat, nvls) and protocol (LL, LL128, Simple). Units: microseconds.
using nccl_table = std::array<std::array<double, 3>, 4>;
inline constexpr nccl_table nccl_base{{{6.8, 14, 8.4}, {6.6, 14, 8.4}, {8, 8, 8}, {0, 0, 0}}};
inline constexpr nccl_table nccl_nvlink_hop{{{0.6, 1.25, 4}, {0.6, 1.9, 3.4}, {0, 0, 4}, {0, 0, 25}}};
inline constexpr nccl_table nccl_pcie_hop{{{1, 1.9, 4}, {1, 2.5, 5.7}, {0, 0, 4}, {0, 0, 0}}};
inline constexpr nccl_table nccl_net_hop{{{5, 8.5, 14}, {2.7, 4, 14}, {0, 0, 14}, {0, 0, 18}}};

// ceil is not what the model has: 3 nodes cost log2(3) hops. Constant evaluation needs its own; the series of
// 2 artanh((x - 1) / (x + 1)) / ln 2 for x in [1, 2).
constexpr double log2_of(double x) noexcept {
  double whole = 0;
  for (; x >= 2; x /= 2) whole += 1;
  const double y = (x - 1) / (x + 1);
  double term = y, sum = 0;
  for (int k = 1; k < 40; k += 2, term *= y * y) sum += term / k;
  return whole + 2 * sum / 0.693147180559945309417;
}

// What share of its bandwidth a tree reaches at this size: a valley in the middle, where pipelining has begun and chunks
// are still small. Between two powers of two the share lies between theirs.
constexpr double nccl_tree_share(nccl_protocol protocol, double bytes) noexcept {
  // Lowest share, and log2 of the bytes where the descent begins, the valley begins and ends, and full speed returns.
  struct valley {
    double lowest, leave, low, high, back;
  };
  constexpr std::array<valley, 3> valleys{{{0.4, 10, 19, 20, 26}, {0.5, 14, 19, 21, 26}, {0.6, 16, 20, 22, 28}}};
  const valley v = valleys[static_cast<std::size_t>(protocol)];
  if (bytes <= 1) return 1;
  const double at = log2_of(bytes);
  if (at <= v.leave || at >= v.back) return 1;
  if (at < v.low) return 1 - (1 - v.lowest) * (at - v.leave) / (v.low - v.leave);
  if (at > v.high) return 1 - (1 - v.lowest) * (v.back - at) / (v.back - v.high);
  return v.lowest;
}

constexpr bool nccl_offers(const nccl_cluster& c, comm_operation what, nccl_algorithm a, nccl_protocol p) noexcept {
  const bool reduce_all = what == comm_operation::all_reduce;
  const bool half = what == comm_operation::reduce_scatter || what == comm_operation::all_gather;
  const bool rooted = what == comm_operation::broadcast || what == comm_operation::reduce;
  if (p == nccl_protocol::ll128 && !c.nvlink && c.gpus_per_node > 1) return false;
  switch (a) {
    case nccl_algorithm::ring:
      return reduce_all || half || rooted;
    case nccl_algorithm::tree:
      return reduce_all;
    case nccl_algorithm::pat:
      return half && p == nccl_protocol::simple && c.gpus_per_node == 1 && c.nodes > 1;
    case nccl_algorithm::nvls:
      return c.nvls && c.nvlink && p == nccl_protocol::simple && c.gpus_per_node > 1 &&
             (reduce_all || (half && c.nodes == 1));
  }
  return false;
}

// GB/s at which the bytes of a call go, given that many steps of the ring.
constexpr double nccl_bandwidth(const nccl_cluster& c, nccl_algorithm a, nccl_protocol p, double bytes, int steps) {
  const bool one_node = c.nodes == 1;
  const double slowest = one_node || c.between_gbps > c.inside_gbps ? c.inside_gbps : c.between_gbps;
  double bus = c.gpus_per_node == 1 ? c.between_gbps : slowest;
  switch (a) {
    case nccl_algorithm::ring: {
      // LL is bound by stores of eight bytes, half of them flags: what a Hopper reaches inside a node, on two, on more.
      const double cap = one_node ? 141 : c.nodes == 2 ? 45 : 35;
      if (p == nccl_protocol::ll) bus = bus / 2 < cap ? bus / 2 : cap;
      if (p == nccl_protocol::ll128) bus *= 0.92;
      return bus * c.ranks() / steps;
    }
    case nccl_algorithm::tree:
      bus *= 0.92;
      if (p == nccl_protocol::ll) bus /= 3.8;
      if (p == nccl_protocol::ll128) bus *= one_node ? 7.0 / 9 : 120.0 / 128;
      return bus * 0.85 * 0.5 * nccl_tree_share(p, bytes);
    case nccl_algorithm::pat:
      return bus * 0.75 * c.ranks() / steps;
    case nccl_algorithm::nvls:
      return bus * c.nvls_efficiency * c.ranks() / steps;
  }
  return bus;
}

constexpr double nccl_latency(const nccl_cluster& c, nccl_algorithm a, nccl_protocol p, double bytes, int steps) {
  const auto in = [&](const nccl_table& t) { return t[static_cast<std::size_t>(a)][static_cast<std::size_t>(p)]; };
  const double inter = in(nccl_net_hop);
  double intra = in(c.nvlink ? nccl_nvlink_hop : nccl_pcie_hop);
  double base = in(nccl_base);
  switch (a) {
    case nccl_algorithm::ring: {
      const bool twice = steps > c.ranks() - 1;
      const int between = c.nodes == 1 ? 0 : (twice ? 2 : 1) * (c.nodes - 1);
      const double post = c.post_seconds * 1e6 * (p == nccl_protocol::simple ? 3 : 1);
      if (c.nodes > 1 && intra < post) intra = post;
      double micro = base + (steps - between) * intra + between * inter;
      if (p == nccl_protocol::simple && c.nodes > 1 && bytes / (static_cast<double>(c.channels) * c.ranks()) >= 64)
        micro *= 1.4;
      return micro;
    }
    case nccl_algorithm::tree:
      return base + 2 * ((c.gpus_per_node - 1) * intra + log2_of(c.nodes) * inter);
    case nccl_algorithm::pat:
      return base + log2_of(c.nodes) * inter / 3.5 + 2.8 * c.ranks();
    case nccl_algorithm::nvls:
      return base + intra + (c.nodes > 1 ? inter : 0);
  }
  return base;
}

}  // namespace detail

/// All ways in which NCCL could do a collective of `bytes` (the whole vector: an all_reduce's buffer, what an all_gather
/// gathers), with the time its model gives each: latency * `calls` + bytes / bandwidth, where `calls` collectives are
/// started as one group. Ring, tree (all_reduce), PAT (all_gather and reduce_scatter, one GPU per node) and NVLS.
/// Units: bytes, seconds. Errors: `config_error` for an empty cluster, a bandwidth that is not positive, a negative size
/// or a collective that the model does not know.
/// Source: NCCL 2.28's tuning model; constants are its defaults. Its table of what a tree loses at middle sizes is
/// replaced by a valley of straight lines, so that estimates are continuous.
constexpr std::vector<nccl_estimate> nccl_estimates(const nccl_cluster& c, comm_operation what, double bytes,
                                                    int calls = 1) {
  if (c.nodes < 1 || c.gpus_per_node < 1 || c.channels < 1 || calls < 1)
    throw config_error("heddle: nccl_estimates needs at least one node, one GPU, one channel and one call");
  if (!(c.inside_gbps > 0) || !(c.between_gbps > 0) || !(bytes >= 0))
    throw config_error("heddle: nccl_estimates needs bandwidths above 0 and a size of 0 bytes or more");
  std::vector<nccl_estimate> all;
  const int p = c.ranks();
  if (p == 1) {
    all.push_back({});
    return all;
  }
  const int steps = what == comm_operation::all_reduce ? 2 * (p - 1) : p - 1;
  const bool rooted = what == comm_operation::broadcast || what == comm_operation::reduce;
  for (int a = 0; a < 4; ++a)
    for (int q = 0; q < 3; ++q) {
      const auto algorithm = static_cast<nccl_algorithm>(a);
      const auto protocol = static_cast<nccl_protocol>(q);
      if (!detail::nccl_offers(c, what, algorithm, protocol)) continue;
      // A broadcast sends every byte over every link of the ring: p steps' worth of p blocks.
      const double gbps = detail::nccl_bandwidth(c, algorithm, protocol, bytes, rooted ? p : steps);
      const double micro = detail::nccl_latency(c, algorithm, protocol, bytes, steps);
      all.push_back({algorithm, protocol, (micro * calls + bytes / (1000 * gbps)) * 1e-6});
    }
  if (all.empty()) {
    std::string text = "heddle: NCCL's model has no estimate for ";
    text += to_string(what);
    throw config_error(text);
  }
  return all;
}

/// What NCCL would choose: the least of `nccl_estimates`.
constexpr nccl_estimate nccl_choice(const nccl_cluster& c, comm_operation what, double bytes, int calls = 1) {
  const std::vector<nccl_estimate> all = nccl_estimates(c, what, bytes, calls);
  nccl_estimate best = all.front();
  for (const nccl_estimate& e : all)
    if (e.seconds < best.seconds) best = e;
  return best;
}

/// The bandwidth that NCCL's own tests print for a call of `bytes` that took `seconds`: what the slowest link carried,
/// comparable between collectives and numbers of ranks. Units: GB/s.
constexpr double nccl_bus_bandwidth(comm_operation what, int ranks, double bytes, double seconds) noexcept {
  const double p = ranks;
  double factor = 1;
  if (what == comm_operation::all_reduce) factor = 2 * (p - 1) / p;
  if (what == comm_operation::reduce_scatter || what == comm_operation::all_gather ||
      what == comm_operation::all_to_all)
    factor = (p - 1) / p;
  return seconds > 0 ? bytes / seconds * 1e-9 * factor : 0;
}

}  // namespace heddle::inline v0::sim
