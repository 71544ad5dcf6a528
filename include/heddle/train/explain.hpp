// heddle/train/explain.hpp: explains a strategy before it starts: memory, traffic, time.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/core/type_name.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/paper/world.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/sim/action_table.hpp>
#include <heddle/train/cluster.hpp>
#include <heddle/train/paper_rank.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// Ranks that differ in nothing but whose weights and samples they have: `member` is the first of them.
struct rank_class {
  paper_rank member{};
  std::int64_t ranks = 1;
  std::vector<model::axis_traffic> traffic{};  ///< of the member, of a step
  double compute_seconds = 0;                  ///< of its kernels in a step, one after another
  double sent_seconds = 0;                     ///< of its calls in a step, one after another
};

/// An axis of the mesh on the cluster: the level that has the group of the first rank in one part.
struct axis_on_cluster {
  std::string name{};
  int ranks = 1;
  int distance = 1;     ///< between neighbours of a group, in ranks
  std::string level{};  ///< its name
};

/// What `explain` says.
struct explanation {
  std::string mesh{};      ///< "dp=2 x pp=2 x tp=2"
  std::string model{};     ///< the configuration in words
  std::string strategy{};  ///< "schedule 1f1b; microbatches 4; zero 1; recompute none"
  int ranks = 1;
  train::cluster on{};
  std::int64_t parameters = 0;        ///< of the model
  std::int64_t tokens = 0;            ///< of a step
  double flops = 0;                   ///< of a step by `config.flops_per_token()`: pairs that masks leave, no recomputation
  std::vector<rank_class> classes{};  ///< by rank of the first member
  std::vector<axis_on_cluster> axes{};
  schedule::action_table table{};  ///< lowered
  sim::timeline line{};            ///< of one pipeline, of the slowest ranks of each stage
  double seconds = 0;              ///< of a step
  double bubble = 0;               ///< share of the pipeline's time in which its ranks compute nothing
  double spread = 0;               ///< of the measured kernels, as a part of their seconds; 0 where none were measured
  bool extrapolated = false;       ///< kernels were measured, and some of these are outside of what was

  double tokens_per_second() const noexcept { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
  /// Model FLOP utilisation. Source: Chowdhery et al. 2022, arXiv:2204.02311, appendix B.
  double mfu() const noexcept { return seconds > 0 ? flops / (seconds * ranks * on.device.flops) : 0; }
  /// The class whose ranks hold most. There is one.
  const rank_class& fullest() const noexcept;
  bool fits() const noexcept { return missing_bytes() == 0; }
  /// What the fullest rank needs beyond the device's memory; 0 where it fits.
  std::int64_t missing_bytes() const noexcept;
};

/// A table of the classes, one of what is sent, and a line of times.
HEDDLE_INLINE std::string to_string(const explanation& e);

namespace detail {

// Consecutive coordinates along an axis whose ranks are alike: first and number.
using coordinate_runs = std::vector<std::pair<int, int>>;

// Adds [first, last] by halves. Sizes of balanced parts only fall along an axis, so ends that are alike are all alike.
template <class Key>
void add_runs(coordinate_runs& to, int first, int last, const Key& key) {
  if (first == last || key(first) == key(last)) {
    if (!to.empty() && key(to.back().first) == key(first))
      to.back().second += last - first + 1;
    else
      to.emplace_back(first, last - first + 1);
    return;
  }
  const int middle = first + (last - first) / 2;
  add_runs(to, first, middle, key);
  add_runs(to, middle + 1, last, key);
}

// The numbers by which ranks differ.
template <class Step>
std::vector<std::int64_t> key_of_rank(const Step& step, int rank) {
  std::vector<std::int64_t> key{step.samples(rank)};
  if (const auto m = step.memory(rank))
    for (const std::int64_t n : {m->parameters.weights, m->parameters.gradients, m->parameters.moments,
                                 m->parameters.lent, m->parameters.rounded, m->activations.saved,
                                 m->activations.waiting, m->activations.scratch, m->between_stages})
      key.push_back(n);
  return key;
}

// f(first rank, how many ranks) of each class of the ranks at one place of the pipeline.
template <class Mesh, class Step, class F>
void for_each_class(const Mesh& mesh, const Step& step, int pipeline_axis, int pipeline_rank, F&& f) {
  constexpr std::size_t axes = Mesh::rank;
  std::array<coordinate_runs, axes> runs;
  std::array<int, axes> at{};
  if (pipeline_axis >= 0) at[static_cast<std::size_t>(pipeline_axis)] = pipeline_rank;
  for (std::size_t a = 0; a < axes; ++a) {
    if (static_cast<int>(a) == pipeline_axis) {
      runs[a] = {{pipeline_rank, 1}};
      continue;
    }
    std::array<int, axes> there = at;
    add_runs(runs[a], 0, mesh.extents()[a] - 1, [&](int c) {
      there[a] = c;
      return key_of_rank(step, mesh.rank_of(there));
    });
  }
  const auto each = [&](auto&& self, std::size_t a, std::int64_t ranks) -> void {
    if (a == axes) return f(mesh.rank_of(at), ranks);
    for (const auto& [first, count] : runs[a]) {
      at[a] = first;
      self(self, a + 1, ranks * count);
    }
  };
  each(each, 0, 1);
}

// Axes with the members of the first rank's group along each.
using groups_of_axes = std::vector<std::pair<std::string, std::vector<int>>>;
// Of calls one after another.
HEDDLE_INLINE double seconds_of_traffic(const std::vector<model::axis_traffic>& all, const cluster& on,
                                        const groups_of_axes& groups);
// Times, totals and the timeline of what has been looked at.
HEDDLE_INLINE void complete_explanation(explanation& e, const groups_of_axes& groups);

// What options leave to the types of a strategy.
template <class When>
std::string schedule_text(const std::string& given) {
  if constexpr (std::is_same_v<When, schedule::named>)
    return given.empty() ? "1f1b" : given;
  else
    return std::string(short_type_name<When>());
}
template <class Activations>
std::string recompute_text(const std::string& given) {
  if (!given.empty()) return given;
  if constexpr (std::is_same_v<Activations, activations::keep>)
    return "none";
  else
    return std::string(short_type_name<Activations>());
}

// The members of the first rank's group along each single axis.
template <class Mesh, class... Tags>
void add_axes(explanation& e, groups_of_axes& groups, const Mesh& mesh, type_list<Tags...>) {
  const auto add = [&]<class Tag>(std::type_identity<Tag>) {
    const std::vector<int> members = heddle::v0::group<Tag>(mesh, 0);
    const std::string name = axis_names(type_list<Tag>{}).front();
    e.axes.push_back({name, static_cast<int>(members.size()), members.size() > 1 ? members[1] - members[0] : 1,
                      e.on.level_of(members).name});
    groups.emplace_back(name, members);
  };
  (..., add(std::type_identity<Tags>{}));
}
// The position of an axis in the mesh; -1: it has none.
template <class Mesh, class Tag>
constexpr int position_of_axis() {
  if constexpr (Mesh::template has<Tag>)
    return static_cast<int>(Mesh::template position<Tag>);
  else
    return -1;
}

}  // namespace detail

/// Explains a strategy: a rank of each class runs its step on paper (`paper_step`), and one pipeline of the slowest ranks is
/// simulated with times of kernels (the cluster's measured ones, else the device's roofline) and of the network's levels. Calls along the axes inside of a stage are part of
/// its computations; reductions of gradients and gathers of weights that the table does not place follow its last action.
/// Errors: those of a trainer for options, schedule and mesh that do not go together; `config_error` for a cluster that is
/// wrong or has fewer devices than the mesh.
template <class Model, class Strategy>
explanation explain(const options<typename Model::config, any_learning_rate>& options,
                    const typename Strategy::mesh& mesh, const cluster& on) {
  using pipeline = typename Strategy::pipeline;
  using mesh_type = typename Strategy::mesh;
  on.validate();
  if (mesh.size() > on.devices)
    throw config_error("heddle: the mesh " + to_string(mesh) + " needs " + std::to_string(mesh.size()) +
                       " devices, the cluster has " + std::to_string(on.devices));
  const paper_step<Model, Strategy> step(options, mesh);
  explanation e;
  e.mesh = to_string(mesh);
  e.model = to_string(options.model);
  e.ranks = mesh.size();
  e.on = on;
  e.table = schedule::copy(step.table());
  e.strategy = "schedule " + detail::schedule_text<typename Strategy::schedule>(options.schedule) + "; microbatches " +
               std::to_string(step.table().microbatches()) + "; zero " + std::to_string(Strategy::zero::stage) +
               "; recompute " + detail::recompute_text<typename Strategy::activations>(options.recompute);
  e.tokens = options.batch * options.model.context;
  e.flops = options.model.flops_per_token() * static_cast<double>(e.tokens);
  detail::groups_of_axes groups;
  detail::add_axes(e, groups, mesh, typename mesh_type::tags{});
  std::set<int> known;
  for (int p = 0; p < step.table().ranks(); ++p)
    detail::for_each_class(mesh, step, detail::position_of_axis<mesh_type, pipeline>(), p,
                           [&](int rank, std::int64_t ranks) {
                             rank_class c;
                             c.member = step.rank(rank);
                             c.ranks = ranks;
                             for (const model::parameter& t : c.member.tensors)
                               if (known.insert(t.id).second) e.parameters += t.global_count();
                             e.classes.push_back(std::move(c));
                           });
  detail::complete_explanation(e, groups);
  return e;
}

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/explain.hpp>
#endif
