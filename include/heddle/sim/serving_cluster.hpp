// heddle/sim/serving_cluster.hpp: simulates a serving cluster, and its faults.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/random.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace heddle::inline v0::sim {

/// What a serving cluster is made of. Units: seconds, bytes, bytes per second.
struct serving_options {
  int replicas = 2;
  int stages = 2;        ///< of a replica
  int nodes = 2;         ///< of a stage: its tensor-parallel group spans them
  int ranks = 4;         ///< of a node
  int slots = 64;        ///< rows of a replica's batch
  int microbatches = 4;  ///< into which a step's rows are cut
  int channels = 8;      ///< over which answers leave
  int links = 2;         ///< of the fabric, each shared by several groups
  int steps_per_window = 8;
  double noise = 0.015;         ///< relative, of every duration
  double arrivals = 6;          ///< requests per step, a Poisson number; without noise exactly so many
  double mean_tokens = 16;      ///< of an answer, geometric
  std::vector<int> lengths{};   ///< of answers, in turn, in place of these
  bool refill = true;           ///< empty rows at once; false: when all rows of the replica are empty (static batching)
  double compute = 2e-3;        ///< of a rank for a microbatch
  double expert_part = 0.1;     ///< of that: grows with the node's share of the tokens
  double exchange_bytes = 2e6;  ///< of a node in a step
  double kv_bytes = 1e6;        ///< of a request, from prefill to decode
  double link_rate = 25e9, uplink_rate = 12.5e9;
  double host = 1e-4;               ///< per step: of the engine's thread, of launches, of inputs and results
  std::vector<double> slower{};     ///< by rank: its compute is multiplied by this
  std::vector<double> node_load{};  ///< by node: its share of the tokens over that of its peers
};

/// A change of a rate or of a time, named after the condition that it should bring about, from a window on.
struct serving_fault {
  std::string_view name{};  ///< a name of `serving_faults`; empty: none
  int place = 0;            ///< rank, node, stage, replica, link or channel, as the condition's
  std::int64_t from_window = 0;
};
/// The names of all faults, in the order of `observe::catalogue`.
HEDDLE_INLINE std::vector<std::string_view> serving_faults();

/// What one window of steps measured: means over the window. Names and places are those of `observe::signal`.
struct serving_window {
  double arrivals = 0, queued = 0, idle = 0, rows = 0, step = 0, step_cv = 0, out_cv = 0, unsent = 0, kv = 0;
  double in_retransmits = 0, out_retransmits = 0;
  std::vector<double> flow_rate, compute, active, node_compute, node_bytes, nic_share, pcie_share, h2d_wait, d2h;
  std::vector<double> dma_bytes, registrations, p2p, launch_gap, host_wait, credit_wait, stage_time, replica_active;
  std::vector<double> link, link_retransmits, small_delay;
};

/// A queueing simulation with times only. Requests come in over a card that may lose packets, wait for rows, and pass in each step
/// through host, PCIe, the stages of a pipeline of tensor-parallel groups whose nodes exchange over a fabric with fair sharing of links
/// (`fair_rates`), and out over channels. A fault changes a rate or a time of these, never a measurement.
/// Errors: `config_error` for numbers below 1, lists of another length than ranks or nodes, a fault or place that does not exist.
class serving_cluster {
 public:
  HEDDLE_INLINE explicit serving_cluster(serving_options options = {}, std::uint64_t seed = 1,
                                         serving_fault fault = {});
  /// Runs one window further.
  HEDDLE_INLINE serving_window next();

  std::int64_t windows() const noexcept { return window_; }
  double seconds() const noexcept { return now_; }
  /// The part of all rows of all steps that computed nothing: 1 - mean/max of the lengths under static batching.
  double wasted() const noexcept { return slot_steps_ > 0 ? 1 - row_steps_ / slot_steps_ : 0; }

 private:
  struct replica {
    std::vector<int> left;           // tokens by row, 0: empty
    std::vector<int> channel;        // by row
    std::vector<double> stage_free;  // when a stage is done with what it has
    std::vector<double> returned;    // by microbatch: when its last step was done
    double queue = 0;
    bool filling = true;
    double last_end = 0, last_out = 0;
  };
  // The rates and times that faults change.
  struct world_now;
  HEDDLE_INLINE world_now rates() const;
  HEDDLE_INLINE void step(serving_window& w, const world_now& now);
  double uniform() noexcept { return random_.uniform(drawn_++); }
  HEDDLE_INLINE double noisy(double mean, double spread = 1) noexcept;
  HEDDLE_INLINE double poisson(double mean) noexcept;

  serving_options options_;
  serving_fault fault_;
  int fault_number_ = -1;
  counter_random random_;
  std::uint64_t drawn_ = 0;
  std::vector<replica> replicas_;
  std::vector<double> unsent_;
  std::vector<double> steps_seen_, outs_seen_;
  std::int64_t window_ = 0, answers_ = 0;
  int next_channel_ = 0, next_replica_ = 0;
  double now_ = 0, late_ = 0, row_steps_ = 0, slot_steps_ = 0;
};

}  // namespace heddle::inline v0::sim

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/sim/impl/serving_cluster.hpp>
#endif
