// heddle/train/search_on_paper.hpp: searches strategies with costs from ranks on paper.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/text.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/train/explain.hpp>
#include <heddle/train/measure_layers.hpp>
#include <heddle/train/paper_rank.hpp>
#include <heddle/train/search.hpp>
#include <heddle/train/strategy_choice.hpp>
#include <heddle/train/trainer_checks.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {
namespace detail {

// f.template operator()<Zero>() of a ZeRO stage that is known when the program runs.
template <class F>
decltype(auto) with_zero_stage(int stage, F&& f) {
  switch (stage) {
    case 0:
      return f.template operator()<0>();
    case 1:
      return f.template operator()<1>();
    case 2:
      return f.template operator()<2>();
    case 3:
      return f.template operator()<3>();
    default:
      throw config_error("heddle: expected a ZeRO stage from 0 to 3, got " + std::to_string(stage));
  }
}

// The element type of a choice that such a program runs: bf16 where operands of products are.
template <class Model, class Strategy>
constexpr const char* dtype_of_choice() {
  using scalar = typename Model::scalar;
  if constexpr (Strategy::precision::rounds_products || std::is_same_v<scalar, bf16>)
    return "bf16";
  else
    return std::is_same_v<scalar, double> ? "f64" : "f32";
}

// A stage as a layer of a search. What stays has what is allocated once, too.
struct paper_layer : search_layer {
  std::int64_t workspace = 0;       // what more is allocated once where blocks are recomputed
  std::int64_t scratch = 0;         // what of `state_bytes` is allocated once
  std::int64_t messages = 0;        // between stages
  model::traced_seconds kernels{};  // of one microbatch and of what is done once
  double spread() const noexcept { return kernels.seconds > 0 ? kernels.spread / kernels.seconds : 0; }
};
// `times_again`: whether what a recomputation takes is wanted.
template <class Step>
paper_layer layer_of_stage(const Step& step, const Step& again, int rank, const cluster& on,
                           const groups_of_axes& groups, double* message, bool times_again) {
  using kind = schedule::action_kind;
  const paper_rank r = step.rank(rank);
  paper_layer l;
  const auto seconds = [&](const paper_work& w) {
    const model::traced_seconds of = on.times_of(w.kernels);
    l.kernels.add(of);
    return of.seconds + seconds_of_traffic(w.traffic, on, groups);
  };
  for (const paper_work& w : r.work) {
    double* const to = w.kind == kind::forward                                         ? &l.forward
                       : w.kind == kind::backward || w.kind == kind::backward_input    ? &l.backward_input
                       : w.kind == kind::backward_weight                               ? &l.backward_weight
                       : w.kind == kind::unshard                                       ? &l.gather
                       : w.kind == kind::reduce_gradient                               ? &l.reduction
                       : w.kind == kind::send_forward || w.kind == kind::send_backward ? message
                                                                                       : nullptr;
    if (to != nullptr) *to = (std::max)(*to, seconds(w));
  }
  l.reduction += seconds(r.after);
  l.again = 0;
  if (times_again)
    for (const paper_work& w : again.rank(rank).work)
      if (w.kind == kind::backward || w.kind == kind::backward_input)
        l.again =
            (std::max)(l.again, on.seconds(w.kernels) + seconds_of_traffic(w.traffic, on, groups) - l.backward_input);
  const std::optional<memory_forecast> recomputed = again.memory(rank);
  if (!r.memory || !recomputed)
    throw config_error("heddle: a search on paper needs a model whose stages say their sizes (model::sizes_of_stage)");
  const memory_forecast &m = *r.memory, &n = *recomputed;
  const int slots = (std::max)(1, step.plan().storage.slots(r.pipeline_rank));
  const int waiting = (std::max)(1, most_deferred(step.table().list(r.pipeline_rank), r.pipeline_rank));
  l.workspace = (std::max)(std::int64_t{0}, n.activations.scratch - m.activations.scratch);
  l.scratch = m.activations.scratch;
  l.messages = m.between_stages;
  l.state_bytes = m.parameters.total() - m.parameters.lent + m.activations.scratch;
  l.lent_bytes = m.parameters.lent;
  l.saved_bytes = m.activations.saved / slots;
  l.input_bytes = n.activations.saved / slots;
  l.waiting_bytes = m.activations.waiting / waiting;
  l.waiting_again_bytes = (std::max)(std::int64_t{0}, n.activations.waiting - m.activations.waiting) / waiting;
  return l;
}

// a - b, and nothing below 0.
inline search_layer beyond(const search_layer& a, const search_layer& b) {
  search_layer l;
  for (const auto part : {&search_layer::forward, &search_layer::again, &search_layer::backward_input,
                          &search_layer::backward_weight, &search_layer::reduction, &search_layer::gather})
    l.*part = (std::max)(0.0, a.*part - b.*part);
  for (const auto part : {&search_layer::state_bytes, &search_layer::lent_bytes, &search_layer::saved_bytes,
                          &search_layer::input_bytes, &search_layer::waiting_bytes, &search_layer::waiting_again_bytes})
    l.*part = (std::max)(std::int64_t{0}, a.*part - b.*part);
  l.input_bytes = (std::min)(l.input_bytes, l.saved_bytes);
  return l;
}

}  // namespace detail

/// What layers cost under a strategy with named schedules, from stages of few blocks of each kind on paper: seconds by the device's
/// roofline and the network's levels, bytes by the forecast. Ends are what the outer stages have besides. `samples`: of a
/// microbatch on a rank. Errors: as `paper_step`.
template <class Model, class Strategy>
search_costs paper_costs(options<typename Model::config, any_learning_rate> o, const typename Strategy::mesh& mesh,
                         const cluster& on, int samples) {
  using mesh_type = typename Strategy::mesh;
  using step_type = paper_step<Model, Strategy>;
  constexpr int axis = detail::position_of_axis<mesh_type, typename Strategy::pipeline>();
  explanation places;
  places.on = on;
  detail::groups_of_axes groups;  // of the whole mesh: a pipeline of three is at other distances
  detail::add_axes(places, groups, mesh, typename mesh_type::tags{});
  const bool alone = axis < 0 || mesh.extents()[static_cast<std::size_t>((std::max)(axis, 0))] == 1;
  std::string extents;
  const auto names = axis_names<mesh_type>();
  for (std::size_t a = 0; a < names.size(); ++a)
    extents += (a == 0 ? "" : ",") + names[a] + "=" +
               std::to_string(static_cast<int>(a) == axis && !alone ? 3 : mesh.extents()[a]);
  const auto probe = parse_mesh<mesh_type>(extents);
  o.schedule = "zb-h1";  // has both halves of a backward apart
  o.microbatches = 3;
  o.batch =
      std::int64_t{3} * samples * detail::size_along(mesh, typename detail::on_paper<Model, Strategy>::axes::shares{});
  const auto layers_of = [&](std::vector<int> counts, int place, bool times_again, double* message = nullptr) {
    o.model.layers = std::accumulate(counts.begin(), counts.end(), 0);
    o.layers_per_stage = std::move(counts);
    std::array<int, mesh_type::rank> at{};
    if constexpr (axis >= 0) at[static_cast<std::size_t>(axis)] = place;
    o.recompute = "none";
    const step_type once(o, probe);
    o.recompute = "full";
    return detail::layer_of_stage(once, step_type(o, probe), probe.rank_of(at), on, groups, message, times_again);
  };
  search_costs costs;
  // A block of each kind costs what a stage that ends with it has beyond the same one without it.
  const detail::block_kinds kinds = detail::kinds_of_blocks<Model>(o.model, 4);
  const bool two_kinds = kinds.find(1) >= 0;
  const int blocks = o.model.layers, all_blocks = static_cast<int>(kinds.of.size());
  const auto kind_of = [&](int layer) { return static_cast<std::size_t>(kinds.of[static_cast<std::size_t>(layer)]); };
  std::array<search_layer, 2> block{};
  const auto look_at = [&](int layer, const detail::paper_layer& with, const detail::paper_layer& without) {
    search_layer& l = block[kind_of(layer)];
    l = detail::beyond(with, without);
    if (two_kinds) l.state_bytes = (with.state_bytes - with.scratch) - (without.state_bytes - without.scratch);
    costs.again_bytes = (std::max)(costs.again_bytes, without.workspace);
    costs.spread = (std::max)(costs.spread, with.spread());
    costs.extrapolated = costs.extrapolated || with.kernels.extrapolated();
  };
  const auto give_blocks = [&] {
    for (int l = 0; l < (two_kinds ? blocks : 1); ++l) costs.layers.push_back(block[kind_of(l)]);
  };
  if (alone) {
    const int least = (std::max)(1, kinds.leading);  // a model of fewer blocks is of one kind
    const detail::paper_layer ground = layers_of({least}, 0, true);
    bool seen[2] = {false, false};
    for (const int kind : {0, 1})
      if (const int l = kinds.find(kind, least); l >= 0) {
        look_at(l, layers_of({l + 1}, 0, true), l == least ? ground : layers_of({l}, 0, true));
        seen[kind] = true;
      }
    for (const std::size_t kind : {std::size_t{0}, std::size_t{1}})
      if (!seen[kind]) block[kind] = block[1 - kind];  // what is different is in `first`
    give_blocks();
    costs.first = ground;
    for (int l = 0; l < least; ++l) costs.first = detail::beyond(costs.first, block[kind_of(l)]);
    return costs;
  }
  std::array<detail::paper_layer, 2> one{};  // an inner stage of one block
  for (const int kind : {0, 1}) {
    const int l = kinds.find(kind, 2) >= 0 ? kinds.find(kind, 2) : kinds.find(kind);
    if (l < 0) continue;
    const int all = (std::max)(all_blocks, l + 2);
    const auto inner = [&](int first, int count) {
      return layers_of({first, count, all - first - count}, 1, true, &costs.message_seconds);
    };
    const detail::paper_layer before = inner(l > 0 ? l - 1 : 1, 1);
    look_at(l, inner(l > 0 ? l - 1 : 0, 2), before);
    detail::paper_layer& alike = one[static_cast<std::size_t>(kind)];
    alike = l > 0 && kinds.of[static_cast<std::size_t>(l - 1)] == kind ? before : inner(l, 1);
    costs.stage_bytes =
        (std::max)(costs.stage_bytes, detail::beyond(alike, block[static_cast<std::size_t>(kind)]).state_bytes);
    costs.rank_bytes = (std::max)(costs.rank_bytes, alike.messages);
  }
  give_blocks();
  // What a stage takes once is in the seconds of the ends, and of bytes in `stage_bytes`.
  const auto end = [&](std::vector<int> counts, int place, std::size_t kind) {
    const detail::paper_layer all = layers_of(std::move(counts), place, false);
    costs.extrapolated = costs.extrapolated || all.kernels.extrapolated();
    search_layer l = detail::beyond(all, block[kind]), bytes = detail::beyond(all, one[kind]);
    l.state_bytes = bytes.state_bytes;
    l.lent_bytes = bytes.lent_bytes;
    l.saved_bytes = bytes.saved_bytes;
    l.input_bytes = bytes.input_bytes;
    l.waiting_bytes = bytes.waiting_bytes;
    return l;
  };
  costs.first = end({1, 1, all_blocks - 2}, 0, kind_of(0));
  costs.last = end({1, all_blocks - 2, 1}, 2, kind_of(all_blocks - 1));
  return costs;
}

/// Explains a strategy of named schedules that is data. `Strategy<Zero>` has the program's types for a ZeRO stage.
/// Errors: as `explain`; `config_error` for an order of ranks, a mesh or an element type that these types do not have.
template <class Model, template <int> class Strategy>
explanation explain_choice(options<typename Model::config, any_learning_rate> o, const strategy_choice& choice,
                           const cluster& on) {
  choice.apply(o);
  if (o.recompute.empty()) o.recompute = "none";
  require_compiled(choice, {.zero = {0, 1, 2, 3},
                            .dtypes = {detail::dtype_of_choice<Model, Strategy<0>>()},
                            .axes = axis_names<typename Strategy<0>::mesh>()});
  const auto mesh = parse_mesh<typename Strategy<0>::mesh>(choice.mesh);
  return detail::with_zero_stage(choice.zero, [&]<int Zero>() { return explain<Model, Strategy<Zero>>(o, mesh, on); });
}

/// Searches the strategies of a cluster: costs from `paper_costs`, the best and the nearest misses scored by `explain`, so
/// that what the result says of a strategy is what `explain` says of it. Of `space` the ranks, layers, samples, bytes and
/// scores are filled in here. Errors: as `search`; those of a cluster that is wrong.
template <class Model, template <int> class Strategy>
search_result search_on_paper(const options<typename Model::config, any_learning_rate>& o, const cluster& on,
                              search_space space = {}) {
  using mesh_type = typename Strategy<0>::mesh;
  on.validate();
  space.ranks = on.devices;
  space.layers = o.model.layers;
  space.batch = o.batch;
  space.device_bytes = on.memory;
  space.dtype = detail::dtype_of_choice<Model, Strategy<0>>();
  const auto refused = [](reason_kind kind, const error& e) {
    return search_reason{kind, std::string(without_prefix(e.what())), 0};
  };
  space.exact = [&](const strategy_choice& choice) -> search_score {
    try {
      const explanation e = explain_choice<Model, Strategy>(o, choice, on);
      const auto& memory = e.fullest().member.memory;
      return {e.seconds, e.bubble, memory ? memory->total() : 0, e.tokens_per_second(), e.mfu(), {}};
    } catch (const error& e) {
      return {.refused = refused(reason_kind::trainer, e)};
    }
  };
  return search(space, [&](const search_point& point) -> search_costs {
    std::string text;
    for (const auto& [name, n] : point.axes) text += (text.empty() ? "" : ",") + name + "=" + std::to_string(n);
    try {
      const auto mesh = parse_mesh<mesh_type>(text);
      return detail::with_zero_stage(
          point.zero, [&]<int Zero>() { return paper_costs<Model, Strategy<Zero>>(o, mesh, on, point.samples); });
    } catch (const error& e) {
      search_costs none;
      none.refused = refused(reason_kind::divides, e);
      return none;
    }
  });
}

}  // namespace heddle::inline v0::train
