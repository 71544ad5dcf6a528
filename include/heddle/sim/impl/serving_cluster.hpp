// heddle/sim/impl/serving_cluster.hpp: bodies of heddle/sim/serving_cluster.hpp.
#pragma once

#include <heddle/sim/serving_cluster.hpp>

#include <heddle/core/error.hpp>
#include <heddle/sim/network.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::sim {

namespace detail {

inline constexpr std::array<std::string_view, 28> serving_fault_names{"admission_burst",
                                                                      "ingress_starvation",
                                                                      "flow_skew",
                                                                      "ingress_loss",
                                                                      "egress_backlog",
                                                                      "egress_jitter",
                                                                      "egress_loss",
                                                                      "early_finish",
                                                                      "nic_full",
                                                                      "h2d_starvation",
                                                                      "d2h_slow",
                                                                      "launch_latency",
                                                                      "device_slow_in_node",
                                                                      "pcie_full",
                                                                      "p2p_through_host",
                                                                      "pinned_memory_short",
                                                                      "host_cpu_busy",
                                                                      "registration_churn",
                                                                      "early_stop_in_node",
                                                                      "tensor_parallel_straggler",
                                                                      "stage_stall",
                                                                      "node_load_skew",
                                                                      "congestion",
                                                                      "head_of_line",
                                                                      "fabric_loss",
                                                                      "credit_starvation",
                                                                      "kv_transfer",
                                                                      "early_stop_across_nodes"};

// Standard deviation over mean.
HEDDLE_INLINE double variation_of(const std::vector<double>& x) {
  if (x.size() < 2) return 0;
  double sum = 0, squares = 0;
  for (const double v : x) sum += v;
  const double mean = sum / static_cast<double>(x.size());
  for (const double v : x) squares += (v - mean) * (v - mean);
  return mean > 0 ? std::sqrt(squares / static_cast<double>(x.size() - 1)) / mean : 0;
}

}  // namespace detail

HEDDLE_INLINE std::vector<std::string_view> serving_faults() {
  return {detail::serving_fault_names.begin(), detail::serving_fault_names.end()};
}

struct serving_cluster::world_now {
  double arrivals = 1, to_one_channel = 0, loss_in = 1e-5, loss_out = 1e-5, drained = 3, jitter = 0.02, kv = 1;
  bool refill = true;
  int channel = 0, stopped_rank = -1, stopped_replica = -1;
  std::vector<double> slower, stage, load;                                            // by rank, stage, node
  std::vector<double> nic, pcie, h2d, d2h, launch, host, p2p, credit, registrations;  // by node
  std::vector<double> dma_bytes;
  std::vector<double> others_on_link, loss_on_link, in_front;  // by link
  std::vector<double> rate;                                    // by node: of what it sends to others
};

HEDDLE_INLINE serving_cluster::serving_cluster(serving_options options, std::uint64_t seed, serving_fault fault)
    : options_(std::move(options)), fault_(fault), random_(seed, 47) {
  const auto refuse = [](const std::string& what) { throw config_error("heddle: sim::serving_cluster: " + what); };
  const serving_options& o = options_;
  for (const int n :
       {o.replicas, o.stages, o.nodes, o.ranks, o.slots, o.microbatches, o.channels, o.links, o.steps_per_window})
    if (n < 1) refuse("all numbers are at least 1, got " + std::to_string(n));
  const int stages = o.replicas * o.stages, nodes = stages * o.nodes, ranks = nodes * o.ranks;
  const auto fits = [&](std::size_t have, int want, const char* what) {
    if (have != 0 && have != static_cast<std::size_t>(want))
      refuse(std::to_string(want) + " " + what + " are needed or none, got " + std::to_string(have));
  };
  fits(o.slower.size(), ranks, "factors of ranks");
  fits(o.node_load.size(), nodes, "loads of nodes");
  for (const int n : o.lengths)
    if (n < 1) refuse("an answer has at least 1 token, not " + std::to_string(n));
  if (!fault_.name.empty()) {
    const auto& names = detail::serving_fault_names;
    const auto at = std::find(names.begin(), names.end(), fault_.name);
    if (at == names.end()) {
      std::string all;
      for (const std::string_view n : names) all += (all.empty() ? "" : ", ") + std::string(n);
      refuse("there is no fault '" + std::string(fault_.name) + "'; there are " + all);
    }
    fault_number_ = static_cast<int>(at - names.begin()) + 1;
    int places = 1;
    switch (fault_number_) {
      case 3:
        places = o.channels;
        break;
      case 13:
      case 19:
        places = ranks;
        break;
      case 9:
      case 10:
      case 11:
      case 12:
      case 14:
      case 15:
      case 16:
      case 17:
      case 18:
      case 20:
      case 22:
      case 26:
        places = nodes;
        break;
      case 21:
        places = stages;
        break;
      case 23:
      case 24:
      case 25:
        places = o.links;
        break;
      case 28:
        places = o.replicas;
        break;
      default:
        break;
    }
    if (fault_.place < 0 || fault_.place >= places)
      refuse("fault " + std::string(fault_.name) + " has places 0 to " + std::to_string(places - 1) + ", not " +
             std::to_string(fault_.place));
  }
  const auto size = [](int n) { return static_cast<std::size_t>(n); };
  replicas_.resize(size(o.replicas));
  for (replica& r : replicas_) {
    r.left.assign(size(o.slots), 0);
    r.channel.assign(size(o.slots), 0);
    r.stage_free.assign(size(o.stages), 0);
    r.returned.assign(size(o.microbatches), 0);
  }
  unsent_.assign(size(o.channels), 0);
}

HEDDLE_INLINE double serving_cluster::noisy(double mean, double spread) noexcept {
  if (options_.noise <= 0) return mean;
  // The sum of four uniform numbers is near enough to a normal one.
  const auto b = random_.bits(drawn_++);
  const double sum =
      (static_cast<double>(b[0]) + static_cast<double>(b[1]) + static_cast<double>(b[2]) + static_cast<double>(b[3])) *
      0x1.0p-32;
  return mean * (std::max)(0.0, 1 + options_.noise * spread * 1.7320508075688772 * (sum - 2));
}

HEDDLE_INLINE double serving_cluster::poisson(double mean) noexcept {
  if (options_.noise <= 0) return mean;
  if (mean > 60) {
    const auto b = random_.bits(drawn_++);
    double sum = -2;
    for (const std::uint32_t part : b) sum += static_cast<double>(part) * 0x1.0p-32;
    return (std::max)(0.0, std::floor(mean + std::sqrt(3 * mean) * sum + 0.5));
  }
  const double least = std::exp(-mean);
  double product = uniform();
  int n = 0;
  for (; product > least; ++n) product *= uniform();
  return n;
}

// The rates and times of this window, with what the fault makes of them.
HEDDLE_INLINE serving_cluster::world_now serving_cluster::rates() const {
  const serving_options& o = options_;
  const auto size = [](int n) { return static_cast<std::size_t>(n); };
  const std::size_t stages = size(o.replicas * o.stages), nodes = stages * size(o.nodes), ranks = nodes * size(o.ranks);
  world_now now;
  now.refill = o.refill;
  now.slower = o.slower.empty() ? std::vector<double>(ranks, 1) : o.slower;
  now.load = o.node_load.empty() ? std::vector<double>(nodes, 1) : o.node_load;
  now.stage.assign(stages, 1);
  for (auto* of : {&now.h2d, &now.d2h, &now.launch, &now.host, &now.p2p, &now.credit}) of->assign(nodes, 1);
  for (auto* of : {&now.nic, &now.pcie, &now.registrations}) of->assign(nodes, 0);
  now.dma_bytes.assign(nodes, 65536);
  now.others_on_link.assign(size(o.links), 0);
  now.loss_on_link.assign(size(o.links), 1e-8);
  now.in_front.assign(size(o.links), 0);
  if (fault_number_ > 0 && window_ >= fault_.from_window) {
    const std::size_t p = size(fault_.place);
    switch (fault_number_) {
      case 1:
        now.arrivals = 4;
        break;
      case 2:
        now.arrivals = 0.15;
        break;
      case 3:
        now.to_one_channel = 0.8;
        now.channel = fault_.place;
        break;
      case 4:
        now.loss_in = 0.02;
        break;
      case 5:
        now.drained = 0.4;
        break;
      case 6:
        now.jitter = 0.3;
        break;
      case 7:
        now.loss_out = 0.02;
        break;
      case 8:
        now.refill = false;
        break;
      case 9:
        now.nic[p] = 0.85;
        break;
      case 10:
        now.h2d[p] = 4;
        break;
      case 11:
        now.d2h[p] = 4;
        break;
      case 12:
        now.launch[p] = 5;
        break;
      case 13:
        now.slower[p] *= 1.25;
        break;
      case 14:
        now.pcie[p] = 0.76;
        break;
      case 15:
        now.p2p[p] = 0.45;
        break;
      case 16:
        now.dma_bytes[p] = 8192;
        break;
      case 17:
        now.host[p] = 6;
        break;
      case 18:
        now.registrations[p] = 2;
        break;
      case 19:
        now.stopped_rank = fault_.place;
        break;
      case 20:
        for (std::size_t r = p * size(o.ranks); r < (p + 1) * size(o.ranks); ++r) now.slower[r] *= 1.25;
        break;
      case 21:
        now.stage[p] = 1.5;
        break;
      case 22:
        now.load[p] *= 1.7;
        break;
      case 23:
        now.others_on_link[p] = 12;
        break;
      case 24:
        now.in_front[p] = 1;
        break;
      case 25:
        now.loss_on_link[p] = 2e-3;
        break;
      case 26:
        now.credit[p] = 20;
        break;
      case 27:
        now.kv = 4;
        break;
      case 28:
        now.stopped_replica = fault_.place;
        break;
      default:
        break;
    }
  }
  // The fabric: each node's exchange crosses its own uplink and the link of its group; others' flows share that link.
  std::vector<heddle::v0::link> lines(nodes + size(o.links));
  std::vector<route_table> ways;
  const auto way = [&](std::initializer_list<std::size_t> over) {
    route_table table;
    for (const std::size_t l : over) table.steps.push_back({.link = static_cast<int>(l), .share = 1});
    ways.push_back(std::move(table));
  };
  for (std::size_t n = 0; n < nodes; ++n) {
    lines[n].bytes_per_second = o.uplink_rate;
    way({n, nodes + n / size(o.nodes) % size(o.links)});
  }
  for (std::size_t l = 0; l < size(o.links); ++l) {
    lines[nodes + l].bytes_per_second = o.link_rate;
    for (double k = 0; k < now.others_on_link[l]; ++k) way({nodes + l});
  }
  std::vector<const route_table*> pointers;
  for (const route_table& t : ways) pointers.push_back(&t);
  now.rate = fair_rates(lines, pointers);
  now.rate.resize(nodes);
  return now;
}

HEDDLE_INLINE void serving_cluster::step(serving_window& w, const world_now& now) {
  const serving_options& o = options_;
  const auto size = [](int n) { return static_cast<std::size_t>(n); };
  const std::size_t per_node = size(o.ranks), columns = size(o.nodes) * per_node, links = size(o.links);
  // Requests come in; of those that lost a segment on the way the next step hears.
  double come = poisson(o.arrivals * now.arrivals);
  w.arrivals += come;
  const double segments = 20 * come, lost = (std::min)(segments, poisson(segments * now.loss_in));
  w.in_retransmits += lost;
  come += late_;
  late_ = (std::min)(come, lost);
  come -= late_;
  for (; come >= 1; --come) {
    next_replica_ = (next_replica_ + 1) % o.replicas;
    if (next_replica_ == now.stopped_replica && o.replicas > 1) next_replica_ = (next_replica_ + 1) % o.replicas;
    ++replicas_[size(next_replica_)].queue;
  }
  late_ += come;  // a part of a request comes later

  double begin = std::numeric_limits<double>::infinity();
  for (std::size_t q = 0; q < replicas_.size(); ++q) {
    replica& r = replicas_[q];
    // Rows are filled, those of the emptiest rank first.
    std::vector<int> used(columns, 0);
    int rows = 0;
    for (std::size_t i = 0; i < r.left.size(); ++i)
      if (r.left[i] > 0) {
        ++used[i % columns];
        ++rows;
      }
    if (rows == 0) r.filling = true;
    if (now.refill) r.filling = true;
    const std::size_t first_rank = q * size(o.stages) * columns;
    const int stopped = now.stopped_rank - static_cast<int>(first_rank);
    const auto stopped_column =
        stopped >= 0 && stopped < static_cast<int>(columns * size(o.stages)) ? stopped % static_cast<int>(columns) : -1;
    // What stops early has few tokens left, and gets no new requests.
    for (std::size_t i = 0; i < r.left.size(); ++i)
      if (static_cast<int>(i % columns) == stopped_column || static_cast<int>(q) == now.stopped_replica)
        r.left[i] = (std::min)(r.left[i], 8);
    while (r.filling && r.queue >= 1) {
      std::size_t best = r.left.size();
      for (std::size_t i = 0; i < r.left.size(); ++i)
        if (r.left[i] == 0 && static_cast<int>(i % columns) != stopped_column &&
            (best == r.left.size() || used[i % columns] < used[best % columns]))
          best = i;
      if (best == r.left.size()) break;
      --r.queue;
      ++rows;
      ++used[best % columns];
      r.left[best] =
          !o.lengths.empty()
              ? o.lengths[static_cast<std::size_t>(answers_) % o.lengths.size()]
              : 1 + static_cast<int>(std::log(1 - uniform()) / std::log(1 - 1 / (std::max)(1.5, o.mean_tokens)));
      ++answers_;
      next_channel_ = (next_channel_ + 1) % o.channels;
      r.channel[best] = now.to_one_channel > 0 && uniform() < now.to_one_channel ? now.channel : next_channel_;
    }
    if (!now.refill) r.filling = false;
    w.queued += r.queue;
    w.rows += rows;
    w.idle += 1 - static_cast<double>(rows) / o.slots;
    w.replica_active[q] += static_cast<double>(rows) / o.slots;
    for (std::size_t c = 0; c < columns; ++c)
      w.active[first_rank + c] += used[c] / (static_cast<double>(o.slots) / static_cast<double>(columns));
    row_steps_ += rows;
    slot_steps_ += o.slots;

    // What happens once a step on the nodes.
    const double weight = 0.8 + 0.2 * rows / o.slots;
    double before = 0;
    const std::size_t first_node = q * size(o.stages * o.nodes);
    for (std::size_t n = first_node; n < first_node + size(o.stages * o.nodes); ++n) {
      const double pieces = 65536 / now.dma_bytes[n], left_of_pcie = 1 - now.pcie[n];
      const double copies = o.host * (1 + 0.3 * (pieces - 1)) / left_of_pcie + 1e-4 * now.registrations[n];
      const double h2d = noisy(copies * now.h2d[n], 3), d2h = noisy(o.host / left_of_pcie * now.d2h[n], 3);
      const double host = noisy(0.5 * o.host * now.host[n], 5), launch = noisy(o.host * now.launch[n], 3) + host;
      w.h2d_wait[n] += h2d;
      w.d2h[n] += d2h;
      w.host_wait[n] += host;
      w.launch_gap[n] += launch;
      w.dma_bytes[n] += noisy(now.dma_bytes[n]);
      w.registrations[n] += now.registrations[n];
      w.pcie_share[n] += (std::min)(1.0, noisy(0.2 * weight) + now.pcie[n]);
      w.nic_share[n] += (std::min)(1.0, noisy(0.2 * weight, 3) + now.nic[n]);
      before = (std::max)(before, h2d + d2h + launch);
    }
    // Stages: the slowest rank, then the exchange of the slowest node.
    std::vector<double> takes(size(o.stages));
    for (std::size_t s = 0; s < takes.size(); ++s) {
      const std::size_t stage = q * size(o.stages) + s, spine = stage % links;
      double slowest = 0, exchange = 0, loads = 0;
      const std::size_t from = stage * size(o.nodes), to = from + size(o.nodes);
      for (std::size_t n = from; n < to; ++n) loads += now.load[n];
      for (std::size_t n = from; n < to; ++n) {
        const double load = now.load[n] / (loads / o.nodes);
        const double expected = o.compute * weight * now.stage[stage] * (1 - o.expert_part + o.expert_part * load);
        std::vector<double> of_node(per_node);
        for (std::size_t k = 0; k < per_node; ++k) {
          const double t = noisy(expected * now.slower[n * per_node + k]);
          w.compute[n * per_node + k] += t;
          of_node[k] = t;
          slowest = (std::max)(slowest, t);
        }
        const auto half = of_node.begin() + static_cast<std::ptrdiff_t>(per_node / 2);
        std::nth_element(of_node.begin(), half, of_node.end());
        w.node_compute[n] += *half;
        const double bytes = o.exchange_bytes * now.load[n], p2p = noisy(100e9 * now.p2p[n]);
        const double per_byte = noisy(1 / now.rate[n]) * (1 + 50 * now.loss_on_link[spine]);
        const double wait = noisy(o.exchange_bytes > 0 ? 1e-5 * now.credit[n] : 0, 5);
        w.node_bytes[n] += noisy(bytes);
        w.p2p[n] += p2p;
        w.credit_wait[n] += wait;
        if (bytes > 0) w.link[spine] += per_byte;
        exchange = (std::max)(exchange, (bytes * per_byte + wait + 2 * bytes / p2p) / o.microbatches);
      }
      takes[s] = slowest + exchange;
      w.stage_time[stage] += takes[s];
      const double packets = 8 * o.exchange_bytes / 4096 * o.nodes;
      w.link_retransmits[spine] += packets > 0 ? poisson(packets * now.loss_on_link[spine]) / packets : 0;
      // A small message waits for the bulk in front of it, if they share a queue.
      const double bulk = o.exchange_bytes * o.nodes / o.link_rate;
      w.small_delay[spine] += noisy(1e-5, 5) + (now.in_front[spine] > 0 ? uniform() * bulk : 0);
    }
    double end = 0;
    for (double& back : r.returned) {
      double at = back + before;
      for (std::size_t s = 0; s < takes.size(); ++s) at = r.stage_free[s] = (std::max)(at, r.stage_free[s]) + takes[s];
      back = end = at;
    }
    const double took = end - r.last_end, out = end + took * (noisy(1, now.jitter / (std::max)(1e-9, o.noise)) - 1);
    w.step += took;
    if (r.last_end > 0) {
      steps_seen_.push_back(took);
      outs_seen_.push_back((std::max)(0.0, out - r.last_out));
    }
    r.last_end = end;
    r.last_out = out;
    begin = (std::min)(begin, end);
    w.kv += noisy(now.kv * o.kv_bytes / now.rate[first_node], 3);

    // Answers leave.
    for (std::size_t i = 0; i < r.left.size(); ++i)
      if (r.left[i] > 0) {
        --r.left[i];
        const std::size_t c = size(r.channel[i]);
        ++unsent_[c];
        ++w.flow_rate[c];
      }
    w.out_retransmits += poisson(rows * now.loss_out);
  }
  now_ = begin;
  const double usual = o.arrivals * o.mean_tokens / o.channels;
  for (double& u : unsent_) {
    w.unsent += u;
    // A channel sends what it can; flows that are uneven need more of one of them.
    u = (std::max)(0.0, u - now.drained * (now.drained < 1 ? usual : (std::max)(usual, u)));
  }
}

HEDDLE_INLINE serving_window serving_cluster::next() {
  const serving_options& o = options_;
  const auto size = [](int n) { return static_cast<std::size_t>(n); };
  const std::size_t stages = size(o.replicas * o.stages), nodes = stages * size(o.nodes), ranks = nodes * size(o.ranks);
  serving_window w;
  for (auto* of : {&w.compute, &w.active}) of->assign(ranks, 0);
  for (auto* of : {&w.node_compute, &w.node_bytes, &w.nic_share, &w.pcie_share, &w.h2d_wait, &w.d2h, &w.dma_bytes,
                   &w.registrations, &w.p2p, &w.launch_gap, &w.host_wait, &w.credit_wait})
    of->assign(nodes, 0);
  w.stage_time.assign(stages, 0);
  w.replica_active.assign(size(o.replicas), 0);
  for (auto* of : {&w.link, &w.link_retransmits, &w.small_delay}) of->assign(size(o.links), 0);
  w.flow_rate.assign(size(o.channels), 0);
  steps_seen_.clear();
  outs_seen_.clear();
  const double begun = now_;
  const world_now now = rates();
  for (int k = 0; k < o.steps_per_window; ++k) step(w, now);
  ++window_;

  const double n = o.steps_per_window, seconds = now_ - begun, replicas = o.replicas;
  const double segments = 20 * w.arrivals, tokens = w.rows;
  w.in_retransmits = segments > 0 ? w.in_retransmits / segments : 0;
  w.out_retransmits = tokens > 0 ? w.out_retransmits / tokens : 0;
  for (double& v : w.flow_rate) v /= seconds;
  w.arrivals /= seconds;
  for (double* v : {&w.queued, &w.unsent}) *v /= n;
  for (double* v : {&w.idle, &w.rows, &w.step, &w.kv}) *v /= n * replicas;
  for (auto* of : {&w.compute, &w.active, &w.node_compute, &w.node_bytes, &w.nic_share, &w.pcie_share, &w.h2d_wait,
                   &w.d2h, &w.dma_bytes, &w.registrations, &w.p2p, &w.launch_gap, &w.host_wait, &w.credit_wait,
                   &w.stage_time, &w.replica_active})
    for (double& v : *of) v /= n;
  // Of each link: the mean of the groups that cross it.
  std::vector<double> groups(size(o.links), 0);
  for (std::size_t s = 0; s < stages; ++s) ++groups[s % groups.size()];
  for (std::size_t l = 0; l < groups.size(); ++l) {
    w.link[l] /= n * groups[l] * o.nodes;
    w.link_retransmits[l] /= n * groups[l];
    w.small_delay[l] /= n * groups[l];
  }
  // Only ranks of first stages hold rows; of the others nothing is measured.
  const std::size_t columns = size(o.nodes * o.ranks);
  for (std::size_t r = 0; r < ranks; ++r)
    if (r / columns % size(o.stages) != 0) w.active[r] = std::numeric_limits<double>::quiet_NaN();
  w.step_cv = detail::variation_of(steps_seen_);
  w.out_cv = detail::variation_of(outs_seen_);
  return w;
}

}  // namespace heddle::inline v0::sim
