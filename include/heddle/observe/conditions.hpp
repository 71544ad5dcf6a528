// heddle/observe/conditions.hpp: a runbook of 28 conditions of serving clusters.
#pragma once

#include <heddle/core/config.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::observe {

/// What the places of a signal are.
enum class place_kind : std::uint8_t { whole, rank, node, stage, replica, link, channel };
HEDDLE_INLINE std::string_view to_string(place_kind kind) noexcept;

/// What can be measured. Units: seconds, bytes, numbers per second, or parts of 1. What a machine does not measure stays away.
enum class signal : std::uint8_t {
  arrivals,          ///< requests per second
  queued,            ///< requests that wait for a row
  idle,              ///< part of the rows that are empty
  rows,              ///< rows in use per step
  step,              ///< seconds of a step
  step_cv,           ///< standard deviation over mean of the time between steps
  out_cv,            ///< the same of the time between answers that leave
  unsent,            ///< tokens that are computed and not sent
  kv,                ///< seconds to move one request's keys and values
  in_retransmits,    ///< part of the segments that came in twice or not in order
  out_retransmits,   ///< part of the segments that were sent again
  flow_rate,         ///< of a channel: tokens per second
  compute,           ///< of a rank: seconds of computation per step
  active,            ///< of a rank: part of its rows in use
  node_compute,      ///< of a node: the median of its ranks' compute
  node_bytes,        ///< of a node: bytes per step to other nodes
  nic_share,         ///< of a node: part of its network card's rate in use
  pcie_share,        ///< of a node: part of its PCIe links' rate in use
  h2d_wait,          ///< of a node: seconds per step that devices wait for inputs
  d2h,               ///< of a node: seconds per step until results are on the host
  dma_bytes,         ///< of a node: bytes per transfer
  registrations,     ///< of a node: registrations of memory per step
  p2p,               ///< of a node: bytes per second between its devices
  launch_gap,        ///< of a node: seconds between the end of a step's work and the start of the next one's
  host_wait,         ///< of a node: seconds per step in which a runnable thread had no core
  credit_wait,       ///< of a node: seconds per step that its card waits for credits with data at hand
  stage_time,        ///< of a stage: seconds from receiving a microbatch to sending it
  replica_active,    ///< of a replica: part of its rows in use
  link,              ///< of a link: seconds per byte
  link_retransmits,  ///< of a link: part of the packets that were sent again
  small_delay,       ///< of a link: seconds until a small message is there
  count              ///< how many there are; those of users follow: `own_signal`
};
/// A user's signal: n from 0 to 15, with places of its own.
constexpr signal own_signal(int n) noexcept {
  return static_cast<signal>(static_cast<int>(signal::count) + n);
}
/// How many signals a user may have.
inline constexpr int most_own_signals = 16;
HEDDLE_INLINE std::string_view to_string(signal s) noexcept;
/// What the places of this signal are.
HEDDLE_INLINE place_kind kind_of(signal s) noexcept;

/// How a test compares a window's mean of a signal with a number.
enum class comparison : std::uint8_t {
  none,
  high,   ///< above `than` times its calm value, at some place
  low,    ///< below `than` times its calm value, at some place
  above,  ///< above `than` at some place
  under,  ///< not above `than` at any place
  calm,   ///< within a factor `than` of its calm value, at all places
  skew,   ///< above `than` times the median of the other places of its group
  even,   ///< no place above `than` times the median of the others of its group
  faded,  ///< below `than` times its calm value, while the median of the others of its group keeps 0.8 of theirs
  joint   ///< no place faded in that way
};
/// A comparison of one signal with a number.
struct condition_test {
  comparison how = comparison::none;
  signal of = signal::count;
  double than = 0;
};
/// Some place is above `factor` times its calm value.
constexpr condition_test high(signal s, double factor) noexcept {
  return {comparison::high, s, factor};
}
/// Some place is below `factor` times its calm value.
constexpr condition_test low(signal s, double factor) noexcept {
  return {comparison::low, s, factor};
}
/// Some place is above `value`.
constexpr condition_test above(signal s, double value) noexcept {
  return {comparison::above, s, value};
}
/// No place is above `value`.
constexpr condition_test under(signal s, double value) noexcept {
  return {comparison::under, s, value};
}
/// All places are within this factor of their calm values.
constexpr condition_test calm(signal s, double factor = 1.25) noexcept {
  return {comparison::calm, s, factor};
}
/// Some place is above `factor` times the median of the others of its group.
constexpr condition_test skew(signal s, double factor) noexcept {
  return {comparison::skew, s, factor};
}
/// No place is above `factor` times the median of the others of its group.
constexpr condition_test even(signal s, double factor) noexcept {
  return {comparison::even, s, factor};
}
/// Some place falls below `factor` times its calm value, while the others of its group keep theirs.
constexpr condition_test faded(signal s, double factor) noexcept {
  return {comparison::faded, s, factor};
}
/// No place fades in that way.
constexpr condition_test joint(signal s, double factor) noexcept {
  return {comparison::joint, s, factor};
}

/// A row of the runbook. It holds in a window in which all its tests hold; the first says where.
struct condition {
  std::string_view name;
  std::array<condition_test, 4> tests;
  std::string_view advice;
};

/// The conditions of "A Study of Skews, Imbalances, and Pathological Conditions in LLM Inference Deployment on GPU Clusters
/// detectable from DPU" (Khan and Moye, 2025, arXiv:2509.18114): a reconstruction. The study publishes no thresholds; these are ours.
inline constexpr std::array<condition, 28> catalogue{{
    {"admission_burst",
     {high(signal::arrivals, 2), high(signal::queued, 2), calm(signal::step)},
     "limit admission or rate; prefill in chunks"},
    {"ingress_starvation",
     {low(signal::arrivals, 0.5), high(signal::idle, 2)},
     "look at the front end and the load balancer; let clients send more at once"},
    {"flow_skew",
     {skew(signal::flow_rate, 2), calm(signal::step), calm(signal::rows, 1.5)},
     "spread connections over queues and cores again"},
    {"ingress_loss",
     {above(signal::in_retransmits, 1e-3)},
     "look at the path, MTU and buffers of the clients' network"},
    {"egress_backlog",
     {high(signal::unsent, 4), calm(signal::step)},
     "more queues for answers; send tokens in batches"},
    {"egress_jitter",
     {high(signal::out_cv, 2), calm(signal::step_cv, 2), calm(signal::unsent, 4)},
     "pace answers; give them a queue of their own"},
    {"egress_loss", {above(signal::out_retransmits, 1e-3)}, "look at the path to the clients and at TCP's settings"},
    {"early_finish",
     {low(signal::rows, 0.6), above(signal::queued, 0), calm(signal::step), joint(signal::replica_active, 0.5)},
     "refill rows when an answer ends (continuous batching)"},
    {"nic_full", {above(signal::nic_share, 0.95)}, "use another card, compress, or place ranks otherwise"},
    {"h2d_starvation",
     {high(signal::h2d_wait, 2), calm(signal::dma_bytes), under(signal::pcie_share, 0.9),
      under(signal::registrations, 0)},
     "pin buffers; use more copying threads or direct access of the card"},
    {"d2h_slow",
     {high(signal::d2h, 2), under(signal::pcie_share, 0.9)},
     "copy results asynchronously; make them smaller"},
    {"launch_latency", {high(signal::launch_gap, 2), calm(signal::host_wait, 2)}, "use CUDA graphs or fused kernels"},
    {"device_slow_in_node",
     {skew(signal::compute, 1.05)},
     "look at this device's clocks and temperature; move work away"},
    {"pcie_full", {above(signal::pcie_share, 0.9)}, "use another root port or the devices' own links"},
    {"p2p_through_host", {low(signal::p2p, 0.6)}, "place ranks by topology; switch access control (ACS) off"},
    {"pinned_memory_short", {low(signal::dma_bytes, 0.5)}, "allocate pools of pinned memory beforehand"},
    {"host_cpu_busy", {high(signal::host_wait, 2)}, "pin the engine's threads to cores of their own, near the device"},
    {"registration_churn", {above(signal::registrations, 0)}, "register memory once and keep it"},
    {"early_stop_in_node", {faded(signal::active, 0.5)}, "pack the batch again over this node's devices"},
    {"tensor_parallel_straggler",
     {skew(signal::node_compute, 1.05), even(signal::compute, 1.05), even(signal::node_bytes, 1.3)},
     "slow or replace this node, or give it a smaller part of the layer"},
    {"stage_stall",
     {skew(signal::stage_time, 1.2), even(signal::compute, 1.05), even(signal::node_compute, 1.05)},
     "cut the stages otherwise; use more microbatches"},
    {"node_load_skew", {skew(signal::node_bytes, 1.3)}, "copy busy experts; route requests otherwise"},
    {"congestion",
     {high(signal::link, 1.5), calm(signal::compute), under(signal::link_retransmits, 1e-4)},
     "take another path or rail; place groups so that they do not share this link"},
    {"head_of_line",
     {high(signal::small_delay, 3), calm(signal::link)},
     "give small messages a traffic class of their own"},
    {"fabric_loss", {above(signal::link_retransmits, 1e-4)}, "look at the cable and the cards of this link"},
    {"credit_starvation", {high(signal::credit_wait, 3)}, "deeper receive queues; tune the control of congestion"},
    {"kv_transfer",
     {high(signal::kv, 2), calm(signal::link)},
     "send keys and values by layers; compress; place closer"},
    {"early_stop_across_nodes", {faded(signal::replica_active, 0.5)}, "balance requests over the replicas again"},
}};

/// The rows of the catalogue and then a user's own.
HEDDLE_INLINE std::vector<condition> catalogue_and(std::span<const condition> own);
/// The place of a row in `rows`. Errors: `config_error` with the list of names.
HEDDLE_INLINE int condition_number(std::string_view name, std::span<const condition> rows = catalogue);

/// How many places there are. Ranks are numbered through: replica, stage, node, rank; nodes and stages likewise. Groups, in which
/// places are compared: the ranks of a node, the nodes of a stage, the stages of a replica; of the other kinds all places.
struct runbook_places {
  int replicas = 1;
  int stages = 1;  ///< of a replica
  int nodes = 1;   ///< of a stage
  int ranks = 1;   ///< of a node
  int links = 1;
  int channels = 1;
};

/// When rows alarm. Windows are what the caller makes them: a second, or 32 steps.
struct runbook_rule {
  int skipped = 4;       ///< windows at the start that count for nothing
  int learned = 16;      ///< windows after them whose mean is the first calm value
  int windows = 3;       ///< in a row in which a row holds before it alarms, and does not before the alarm ends
  double leaving = 0.7;  ///< an alarm's tests get easier by this: what counts is the excess over the threshold times it
  double smoothing = 0.1;  ///< of calm values afterwards; they stand still while any row holds
};

/// A condition that holds. `strength` is the first test's value over its threshold (or the other way round for low ones), above 1.
struct verdict {
  int row = -1;
  std::string_view name, advice;
  int place = -1;
  place_kind kind = place_kind::whole;
  std::int64_t since_window = -1;
  double strength = 0;
};
/// "device_slow_in_node at rank 3 since window 31 (1.2 x its threshold): look at ..."
HEDDLE_INLINE std::string to_string(const verdict& v);

/// Watches signals for the rows' conditions. Memory is fixed by the numbers of places; nothing is allocated by `add`.
/// Errors: `config_error` for places below 1, a rule below 1 window, a row without tests or with a signal that does not exist.
class runbook {
 public:
  HEDDLE_INLINE explicit runbook(runbook_places places = {}, runbook_rule rule = {},
                                 std::span<const condition> rows = catalogue);

  /// A measurement in the current window; several of one place are averaged. Values that are not finite are passed over.
  /// Errors: `config_error` for a place or a signal that does not exist.
  HEDDLE_INLINE void add(signal s, int place, double value);
  void add(signal s, double value) { add(s, 0, value); }
  /// Ends the window: afterwards `verdicts` are those of now.
  HEDDLE_INLINE void end_window();

  std::int64_t windows() const noexcept { return window_; }
  /// What holds now: the earliest first, of those the strongest.
  HEDDLE_INLINE std::vector<verdict> verdicts() const;
  /// Rows of which no signal but absent ones was seen so far: nothing is known about them.
  HEDDLE_INLINE std::vector<int> not_seen_here() const;
  std::span<const condition> rows() const noexcept { return rows_; }
  int places_of(signal s) const noexcept { return places_[static_cast<std::size_t>(s)]; }
  /// A line for each row: alarm and place, "clear", or "not seen here".
  HEDDLE_INLINE std::string to_text() const;

 private:
  static constexpr std::size_t signals = static_cast<std::size_t>(signal::count) + most_own_signals;
  struct cell {
    double sum = 0, now = 0, calm = 0;
    int samples = 0, learned = 0;
    bool fresh = false;  // measured in the window that has ended
  };
  struct state {
    int streak = 0, quiet = 0, place = -1;
    bool alarm = false;
    std::int64_t since = -1;
    double strength = 0;
  };
  struct finding {
    bool seen = false, holds = false;
    int place = -1;
    double strength = 0;
  };
  HEDDLE_INLINE finding look(const condition_test& test, double ease) const;
  HEDDLE_INLINE double others(std::size_t first, std::size_t group, std::size_t but, bool of_calm) const;

  std::vector<condition> rows_;
  runbook_rule rule_;
  std::array<int, signals> places_{}, groups_{};
  std::array<std::size_t, signals> begins_{};
  std::vector<cell> cells_;
  std::vector<state> states_;
  mutable std::vector<double> scratch_;
  std::int64_t window_ = 0;
};

/// Gives a runbook what a window of a serving cluster measured, simulated (`sim::serving_window`) or real. `Window` has members named
/// after signals: numbers for those of the whole, ranges of numbers for the others. What it lacks is a signal that is not seen.
template <class Window>
void add_window(runbook& to, const Window& w) {
  const auto one = [&](signal s, double value) { to.add(s, value); };
  const auto all = [&](signal s, const auto& values) {
    int place = 0;
    for (const double v : values) to.add(s, place++, v);
  };
  if constexpr (requires { w.arrivals; }) one(signal::arrivals, w.arrivals);
  if constexpr (requires { w.queued; }) one(signal::queued, w.queued);
  if constexpr (requires { w.idle; }) one(signal::idle, w.idle);
  if constexpr (requires { w.rows; }) one(signal::rows, w.rows);
  if constexpr (requires { w.step; }) one(signal::step, w.step);
  if constexpr (requires { w.step_cv; }) one(signal::step_cv, w.step_cv);
  if constexpr (requires { w.out_cv; }) one(signal::out_cv, w.out_cv);
  if constexpr (requires { w.unsent; }) one(signal::unsent, w.unsent);
  if constexpr (requires { w.kv; }) one(signal::kv, w.kv);
  if constexpr (requires { w.in_retransmits; }) one(signal::in_retransmits, w.in_retransmits);
  if constexpr (requires { w.out_retransmits; }) one(signal::out_retransmits, w.out_retransmits);
  if constexpr (requires { w.flow_rate; }) all(signal::flow_rate, w.flow_rate);
  if constexpr (requires { w.compute; }) all(signal::compute, w.compute);
  if constexpr (requires { w.active; }) all(signal::active, w.active);
  if constexpr (requires { w.node_compute; }) all(signal::node_compute, w.node_compute);
  if constexpr (requires { w.node_bytes; }) all(signal::node_bytes, w.node_bytes);
  if constexpr (requires { w.nic_share; }) all(signal::nic_share, w.nic_share);
  if constexpr (requires { w.pcie_share; }) all(signal::pcie_share, w.pcie_share);
  if constexpr (requires { w.h2d_wait; }) all(signal::h2d_wait, w.h2d_wait);
  if constexpr (requires { w.d2h; }) all(signal::d2h, w.d2h);
  if constexpr (requires { w.dma_bytes; }) all(signal::dma_bytes, w.dma_bytes);
  if constexpr (requires { w.registrations; }) all(signal::registrations, w.registrations);
  if constexpr (requires { w.p2p; }) all(signal::p2p, w.p2p);
  if constexpr (requires { w.launch_gap; }) all(signal::launch_gap, w.launch_gap);
  if constexpr (requires { w.host_wait; }) all(signal::host_wait, w.host_wait);
  if constexpr (requires { w.credit_wait; }) all(signal::credit_wait, w.credit_wait);
  if constexpr (requires { w.stage_time; }) all(signal::stage_time, w.stage_time);
  if constexpr (requires { w.replica_active; }) all(signal::replica_active, w.replica_active);
  if constexpr (requires { w.link; }) all(signal::link, w.link);
  if constexpr (requires { w.link_retransmits; }) all(signal::link_retransmits, w.link_retransmits);
  if constexpr (requires { w.small_delay; }) all(signal::small_delay, w.small_delay);
}

}  // namespace heddle::inline v0::observe

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/observe/impl/conditions.hpp>
#endif
