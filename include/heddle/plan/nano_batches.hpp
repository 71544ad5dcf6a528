// heddle/plan/nano_batches.hpp: plans nano-batches that overlap compute, memory and network.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/sim/lanes.hpp>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::plan {

/// An operation of a layer, alone on the device.
struct nano_operation {
  std::string name{};
  sim::lane where = sim::lane::compute;
  std::function<double(int rows)>
      seconds{};             ///< for so many rows of the batch; what reads its weights again is slower in parts
  std::vector<int> after{};  ///< operations of the layer, listed before it, that it reads
};

/// What is tried.
struct nano_options {
  int rows = 2048;     ///< of an iteration's batch
  int multiple = 128;  ///< of which the parts' rows are multiples
  int parts = 2;       ///< the most nano-batches
  int layers =
      1;  ///< how many times the operations follow each other; the first of a layer read the last of the one before
  double share_step = 0.1;  ///< shares are multiples of it
  double least_gain =
      0;  ///< a plan that is not faster by so much, relative to its time, is not worth its cost: `serial`
};

/// A cut of the batch, shares and an order of operations.
struct nano_plan {
  int rows = 0, layers = 1;
  std::vector<int> parts;      ///< rows of each nano-batch; one and no shares: `serial`
  std::vector<double> shares;  ///< of each operation; 0: what others leave
  std::vector<int> order;      ///< of a layer's nano-operations, number operation * parts + part: which comes first
  bool serial = false;         ///< nothing is gained: operations one after the other
  double seconds = 0;          ///< of an iteration
  double serial_seconds = 0;   ///< one operation after the other
  double bound = 0;            ///< no plan is faster

  /// How much longer it takes than the bound, relative to it.
  double gap() const noexcept { return bound > 0 ? seconds / bound - 1 : 0; }
  friend bool operator==(const nano_plan&, const nano_plan&) = default;
};

/// The works of a plan, layer after layer, in the order in which lanes take them. A work depends on another exactly where its operation reads
/// the other's and their rows meet. `rows[o]` are the rows of operation o's parts, in order: operations may be cut differently.
/// Errors: `config_error` for rows that do not add up alike, orders and operations that make no sense.
HEDDLE_INLINE std::vector<sim::lane_work> nano_works(std::span<const nano_operation> operations,
                                                     std::span<const std::vector<int>> rows,
                                                     std::span<const double> shares, int layers,
                                                     std::span<const int> order = {});
/// The works of `find_nano_plan`'s plans, whose operations all have the same parts.
HEDDLE_INLINE std::vector<sim::lane_work> nano_works(std::span<const nano_operation> operations, const nano_plan& plan);

/// The fastest of the plans that it tries: cuts into up to `parts` nano-batches, a share for each operation that is not compute (compute
/// gets the rest), and an order, each simulated by `sim::simulate_lanes`. Small graphs are searched through; of others all cuts into two or
/// three parts, even ones of more, with the best shares of lanes, which are then improved one by one. `bound` is of
/// all mixtures of shares of each lane, without dependencies: at most a few per cent below what linear programming gives.
/// Errors: `config_error` for operations, rows and steps that make no sense, and for a speed that is 0 with the whole device.
/// Source: Zhu et al. 2024, arXiv:2408.12757 (NanoFlow), with enumeration in place of its two integer programs.
HEDDLE_INLINE nano_plan find_nano_plan(std::span<const nano_operation> operations, const sim::lane_speed& speed,
                                       const nano_options& options = {});

/// Two lines: parts, shares, seconds, gap.
HEDDLE_INLINE std::string to_string(const nano_plan& plan);
/// The plan as text, which `parse_nano_plan` reads back to the same value.
HEDDLE_INLINE std::string to_text(const nano_plan& plan);
/// Reads it. Errors: `config_error` naming `source`, line and what was expected.
HEDDLE_INLINE nano_plan parse_nano_plan(std::string_view text, std::string_view source = "the nano plan's text");

/// A transformer on `devices` ranks of tensor parallelism, and the rows of an iteration's batch: decoded and prompt tokens.
struct dense_batch {
  double layers = 80, hidden = 8192, kv_width = 1024, inner = 28672;  ///< Llama-2 70B
  double devices = 8, element_bytes = 2;
  double rows = 2048;
  double prompt = 512, answer = 1024;  ///< tokens of a request, on average
};

/// What an operation of an iteration does on all devices together. Units: FLOPs, bytes.
struct batch_costs {
  std::string name{};
  sim::lane where = sim::lane::compute;
  double flops = 0, memory_bytes = 0, network_bytes = 0;
};

/// The seven operations: kqv, o, up_gate, down, decode_attention, prompt_attention, network. A request has `answer` of prompt + answer
/// rows decoded; one prompt is cut by the batch, so half of it is read again. Source: arXiv:2408.12757, table 2.
HEDDLE_INLINE std::vector<batch_costs> costs_of(const dense_batch& batch);

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/nano_batches.hpp>
#endif
