// heddle/sim/transformer_step.hpp: step times of a transformer, with overlaps.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/mesh/axis.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/lower/passes.hpp>
#include <heddle/sim/levels.hpp>
#include <heddle/sim/world_step.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::sim {

/// A transformer of equal layers, each attention and a feed-forward part of four times its width, trained with tensor
/// and sequence parallelism inside of each pipeline rank; and what a device achieves. A microbatch is one sequence.
/// Units: floating-point operations and bytes per second of one device; seconds.
struct transformer_job {
  int layers = 1;
  double hidden = 1, context = 1, vocabulary = 0;
  double matmul_rate = 1;     ///< in matrix products of weights
  double attention_rate = 1;  ///< in attention
  double half_seconds =
      0;  ///< norm, dropout and residual of attention or of the feed-forward part: forward; backward twice
  double element_bytes = 2;  ///< of weights, gradients and activations
  double message_share = 1;  ///< of the bandwidth of its way, what one message between two ranks gets

  // What the overlaps change.
  bool messages_beside = false;
  bool data_beside = false;
  int tensor_chunks = 0;  ///< pieces of a product that its communication runs beside; 0: one after the other
  int halves = 2;         ///< parts of a layer with a norm and an exchange of their own; 1: in parallel
  double attended = 1;    ///< share of the context that attention looks at
};

/// A change of a job, as a type. `name` for tables; `runs_as`: what of heddle does it, empty where it is only
/// simulated.
template <class O>
concept transformer_change = requires(transformer_job& job) {
  { O::name() } -> std::convertible_to<std::string>;
  { O::runs_as } -> std::convertible_to<std::string_view>;
  O::apply(job);
};

/// Sends and receives run beside what a rank computes. Source of these: Jiang et al. 2024, arXiv:2402.15627
/// (MegaScale), sections 3.1 and 3.2.
struct overlap_pipeline {
  static std::string name() { return "pipeline overlap"; }
  static constexpr std::string_view runs_as = "schedule::transfers::asynchronous";
  static constexpr void apply(transformer_job& job) { job.messages_beside = true; }
};
/// Weights of a stage are gathered before its first forward, gradients reduced behind its last backward, both beside
/// what the rank computes; without it all weights are gathered before the first forward and all gradients reduced at
/// the end.
struct overlap_data {
  static std::string name() { return "data overlap"; }
  static constexpr std::string_view runs_as = "train::reduce_beside and zero<3>";
  static constexpr void apply(transformer_job& job) { job.data_beside = true; }
};
/// Each product of weights and the exchange before or behind it are cut into `Chunks`, of which one is exchanged while
/// another is multiplied: both take as long as the longer, and a chunk more.
template <int Chunks>
  requires(Chunks > 0)
struct overlap_tensor {
  static std::string name() { return "tensor overlap, " + std::to_string(Chunks) + " chunks"; }
  static constexpr std::string_view runs_as = "";
  static constexpr void apply(transformer_job& job) { job.tensor_chunks = Chunks; }
};
/// Attention and the feed-forward part of a layer from one norm, side by side: one exchange before and one behind both.
struct parallel_block {
  static std::string name() { return "parallel block"; }
  static constexpr std::string_view runs_as = "model::sum_of_layers";
  static constexpr void apply(transformer_job& job) { job.halves = 1; }
};
/// Attention to the last `Tokens` only.
template <int Tokens>
  requires(Tokens > 0)
struct window {
  static std::string name() { return "window of " + std::to_string(Tokens); }
  static constexpr std::string_view runs_as = "";
  static constexpr void apply(transformer_job& job) { job.attended = (std::min)(1.0, Tokens / job.context); }
};

/// A job with changes applied, in their order.
template <transformer_change... Changes>
constexpr transformer_job changed(transformer_job job) {
  (Changes::apply(job), ...);
  return job;
}

/// Times that differ from stage to stage.
struct times_of_stages {
  std::vector<stage_times> of;
  double operator()(const schedule::action& a) const { return of[static_cast<std::size_t>(a.stage)](a); }
};

namespace detail {
// All gradients are reduced behind everything else of a rank.
struct reduce_at_the_end {
  constexpr schedule::action_table operator()(schedule::table_view t) const {
    return schedule::detail::rewritten(
        t,
        [&](std::vector<schedule::action>& out, int k, int entries) {
          schedule::detail::copy_entries(out, t, k, entries);
        },
        [&](std::vector<schedule::action>& out, int rank) {
          for (int s = t.stages(); s-- > 0;)
            if (t.rank_of(s) == rank) out.push_back({schedule::action_kind::reduce_gradient, s, -1});
        });
  }
};
}  // namespace detail

/// What a layer takes forward on one device: products of weights, attention, what else there is, and exchanges of the
/// tensor-parallel group that nothing covers. Units: seconds.
struct layer_seconds {
  double products = 0, attention = 0, other = 0, exchanges = 0;
  constexpr double sum() const noexcept { return products + attention + other + exchanges; }
};
/// The forward of a layer of a job, on one of so many tensor-parallel ranks. `exchange`: seconds of an all_gather or a
/// reduce_scatter of a microbatch's activations among them.
constexpr layer_seconds forward_of_layer(const transformer_job& job, int tensor_ranks, double exchange) {
  layer_seconds l;
  l.products = 24 * job.context * job.hidden * job.hidden / tensor_ranks / job.matmul_rate;
  l.attention = 4 * job.context * job.context * job.attended * job.hidden / tensor_ranks / job.attention_rate;
  l.other = job.halves * job.half_seconds;
  const int calls = 2 * job.halves;  // a gather before and a reduce_scatter behind each part
  const double beside = l.products / calls;
  l.exchanges = job.tensor_chunks == 0 ? calls * exchange
                                       : calls * ((std::max)(exchange, beside) + exchange / job.tensor_chunks - beside);
  return l;
}

/// Simulates a step of the job on a mesh with the axes pp, dp and tp (any may be missing), by the schedule of `table`
/// (computations only). Backward takes twice the products, attention and the rest, and the same exchanges. The last
/// stage has the head.
/// Errors: `config_error` unless the stages divide the layers; and as `simulate_step`.
/// Source: operations of a layer: Narayanan et al. 2021, arXiv:2104.04473; exchanges: Korthikanti et al. 2022,
/// arXiv:2205.05198.
template <mesh_like Mesh>
step simulate_step(const transformer_job& job, schedule::table_view table, const Mesh& mesh, const levels& where,
                   const step_options& how = {}) {
  const int stages = table.stages(), t = mesh.template extent_or_one<tp>();
  if (stages < 1 || job.layers % stages != 0)
    throw config_error(text_of(
        {"heddle: ", job.layers, " layers do not divide over the ", stages, " stages of a simulated transformer"}));
  double exchange = 0;
  if constexpr (Mesh::template has<tp>)
    exchange = call_seconds<tp>(where, mesh, comm_operation::all_gather, job.context * job.hidden * job.element_bytes);
  const int each = job.layers / stages;
  const layer_seconds layer = forward_of_layer(job, t, exchange);
  const double head = 2 * job.context * job.hidden * job.vocabulary / t / job.matmul_rate;
  step_times<times_of_stages> times;
  for (int s = 0; s < stages; ++s) {
    const double forward = each * layer.sum() + (s == stages - 1 ? head : 0);
    // The gradient of the input has the exchanges; that of the weights is products alone.
    const double products = each * layer.products + (s == stages - 1 ? head : 0);
    times.compute.of.push_back({forward, 2 * forward - each * layer.exchanges - products, products});
    const double weights =
        each * 12 * job.hidden * job.hidden + (s == 0 || s == stages - 1 ? job.vocabulary * job.hidden : 0);
    times.gradient_bytes.push_back(weights / t * job.element_bytes);
  }
  times.weight_bytes = times.gradient_bytes;
  times.message_bytes = job.context * job.hidden * job.element_bytes / t / job.message_share;
  step_options options = how;
  options.messages_beside = job.messages_beside;
  options.data_beside = job.data_beside;
  const int resident = stages / (std::max)(table.ranks(), 1);
  namespace passes = schedule::passes;
  const auto lowered = job.data_beside ? schedule::lower(table, passes::unshard{resident}, passes::place_transfers{},
                                                         passes::reduce_gradients{}, passes::optimizer{})
                                       : schedule::lower(table, passes::unshard{resident}, passes::place_transfers{},
                                                         detail::reduce_at_the_end{}, passes::optimizer{});
  return simulate_step(lowered.view(), mesh, times, where, options);
}

/// A line of an ablation: the job with all changes up to this one.
struct ablation_row {
  std::string added;    ///< "" for the job as it is
  std::string runs_as;  ///< what of heddle does it; "" where it is only simulated
  step result;
};

/// The job, then with one of `Changes` more at a time, in their order.
template <transformer_change... Changes, mesh_like Mesh>
std::vector<ablation_row> ablation(const transformer_job& job, schedule::table_view table, const Mesh& mesh,
                                   const levels& where) {
  std::vector<ablation_row> rows;
  transformer_job now = job;
  rows.push_back({"", "", simulate_step(now, table, mesh, where)});
  ((Changes::apply(now),
    rows.push_back({Changes::name(), std::string(Changes::runs_as), simulate_step(now, table, mesh, where)})),
   ...);
  return rows;
}

/// A row each: seconds, what each step gained, and which of it is only simulated.
inline std::string to_string(const std::vector<ablation_row>& rows) {
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double s = rows[i].result.seconds;
    std::string name = i == 0 ? "as it is" : "+ " + rows[i].added;
    name.resize((std::max)(name.size(), std::size_t{30}), ' ');
    char numbers[64];
    std::snprintf(numbers, sizeof numbers, "%9.4f s  %+6.2f %%", s,
                  i == 0 ? 0.0 : 100 * (rows[i - 1].result.seconds / s - 1));
    text += name;
    text += numbers;
    if (i > 0) text += rows[i].runs_as.empty() ? "  only simulated" : "  " + rows[i].runs_as;
    text += '\n';
  }
  return text;
}

}  // namespace heddle::inline v0::sim
