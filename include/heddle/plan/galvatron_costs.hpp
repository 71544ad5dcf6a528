// heddle/plan/galvatron_costs.hpp: defines the cost model of Galvatron as a policy, and its search.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/plan/layer_strategies.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {

/// How a layer runs in Galvatron's space: all degrees are powers of two, tensor and Ulysses parallelism exclude each
/// other.
struct galvatron_strategy {
  int pipeline = 1, tensor = 1, ulysses = 1, data = 1;
  int zero = 0;  ///< 0, 2 or 3; 0 where nothing is shared
  bool recompute = false;
  constexpr int width() const noexcept { return (std::max)(tensor, ulysses); }
  constexpr int sharded() const noexcept { return data * ulysses; }  ///< ranks that share states
  friend constexpr auto operator<=>(const galvatron_strategy&, const galvatron_strategy&) = default;
};

/// Time of computation that overlaps with communication, where both are slower by `slowdown` meanwhile: the overlapped
/// part of each counts `slowdown` times, the rest once. Units: any, one for all.
/// Source: Galvatron (arXiv:2211.13878), section 3.4; its measured slowdowns are 1.13 to 1.3.
constexpr double overlapped(double computation, double communication, double slowdown) noexcept {
  return (std::max)(computation, communication) + (slowdown - 1) * (std::min)(computation, communication);
}

/// A measured time: that of a measured size, else slope * size + offset.
struct fitted_time {
  double slope = 0, offset = 0;
  std::map<double, double> points{};
  double operator()(double size) const {
    const auto p = points.find(size);
    return p != points.end() ? p->second : slope * size + offset;
  }
};

/// What Galvatron measures of a model and a cluster. Units: MiB and ms. Lists by degree begin with 1, 2, 4, ... ranks.
struct galvatron_profile {
  int layers = 1, sequence = 1, hidden = 1;
  fitted_time forward{}, ends_forward{};  ///< of one layer, and of embedding with head, by samples
  double parameters = 0;                  ///< of a layer, in float
  std::vector<double> activations{};      ///< of a layer and sample, by degree of tensor or Ulysses parallelism
  double recomputed = 0;                  ///< the same where only its input is kept
  struct ends_memory {
    std::vector<double> states, activations;
  };
  ends_memory ends{}, first{}, last{};                    ///< of both ends on one stage, of each on its own
  std::map<std::pair<int, bool>, double> all_reduce{};    ///< ms per MiB by ranks, and whether these are neighbours
  std::map<int, double> p2p{};                            ///< ms per MiB by pipeline stages
  std::map<int, fitted_time> all_gather{}, all_to_all{};  ///< by ranks, of a message of so many MiB
  double slowdown = 1.3;                                  ///< of computation and communication that overlap
  double backward = 2;                                    ///< forwards that a backward takes
  double context = 1024;                                  ///< what the process holds besides
  bool half_precision = true, gpipe = false, asynchronous_reduction = false;
};

/// What a search over layers asks of a cost model, for one batch cut into microbatches. Units: s and MiB, rounded up.
/// `synchronised`: with the sum of gradients.
template <class C>
concept layer_cost_model = requires(const C& c, const galvatron_strategy& s, int stage, bool synchronised) {
  { c.layer_seconds(s, synchronised) } -> std::same_as<double>;
  { c.layer_mib(s, stage) } -> std::same_as<std::int64_t>;
  { c.ends_seconds(s, stage, synchronised) } -> std::same_as<double>;
  { c.ends_mib(s, stage) } -> std::same_as<std::int64_t>;
  { c.change_seconds(s, s) } -> std::same_as<double>;
  { c.buffer_mib(s) } -> std::same_as<double>;  // of gathered activations, shared by all layers
};

/// Galvatron's published model, as its second version computes it.
/// Errors: `config_error` for a batch that microbatches do not divide, or degrees that the profile does not have.
/// Source: arXiv:2211.13878, section 3.4; arXiv:2307.02031; PKU-DAIR/Hetu-Galvatron, commit cea12ff,
/// cost_model/components.
class galvatron_costs {
 public:
  HEDDLE_INLINE galvatron_costs(const galvatron_profile& profile, int batch, int microbatches);

  HEDDLE_INLINE double layer_seconds(const galvatron_strategy& s, bool synchronised) const;
  HEDDLE_INLINE std::int64_t layer_mib(const galvatron_strategy& s, int stage) const;
  HEDDLE_INLINE double ends_seconds(const galvatron_strategy& s, int stage, bool synchronised) const;
  HEDDLE_INLINE std::int64_t ends_mib(const galvatron_strategy& s, int stage) const;
  HEDDLE_INLINE double change_seconds(const galvatron_strategy& from, const galvatron_strategy& to) const;
  HEDDLE_INLINE double buffer_mib(const galvatron_strategy& s) const;

 private:
  double samples(const galvatron_strategy& s) const { return batch_ / microbatches_ / s.data; }  // whole ones
  double message_mib(double samples) const {
    return samples * profile_.sequence * profile_.hidden * element_bytes() / 1024 / 1024;
  }
  double element_bytes() const { return profile_.half_precision ? 2 : 4; }
  HEDDLE_INLINE double states_ratio(const galvatron_strategy& s) const;
  HEDDLE_INLINE double all_reduce_ms(const galvatron_strategy& s) const;
  int in_flight(const galvatron_strategy& s, int stage) const {
    return s.pipeline == 1 ? 1 : profile_.gpipe ? microbatches_ : s.pipeline - stage;
  }
  const galvatron_profile::ends_memory& ends_of(const galvatron_strategy& s, int stage) const {
    return s.pipeline == 1 ? profile_.ends : stage == 0 ? profile_.first : profile_.last;
  }

  const galvatron_profile& profile_;
  int batch_, microbatches_;
};

/// What is searched.
struct galvatron_space {
  int devices = 8, layers = 1, batch = 8, microbatches = 1;
  std::int64_t budget_mib = 24 * 1024;  ///< of a device; above 20 GiB a fifth is left to the allocator
  bool uniform = false;                 ///< one strategy for all layers, embedding and head
  int default_zero = 2;                 ///< beside ZeRO-3: 0 or 2
};

/// What the search found.
struct galvatron_plan {
  std::vector<galvatron_strategy> layers{};                  ///< empty if nothing fits
  galvatron_strategy ends{};                                 ///< of embedding and head
  std::vector<int> counts{};                                 ///< layers of each stage
  double seconds = std::numeric_limits<double>::infinity();  ///< of a batch
  bool fits() const noexcept { return !layers.empty(); }
};

/// Seconds of a batch: `stages` without and `synchronised` with the sums of gradients, of one microbatch on each stage.
/// Source: PKU-DAIR/Hetu-Galvatron, cost_model_handler: pipelines whose warm-up and cool-down overlap.
HEDDLE_INLINE double galvatron_pipeline_seconds(const std::vector<double>& stages,
                                                const std::vector<double>& synchronised, int microbatches);

/// The strategies of Galvatron's second version: pipeline x (tensor or Ulysses) x data, each with two kinds of data
/// parallelism where that has more than one rank, each with and without recomputation.
HEDDLE_INLINE std::vector<galvatron_strategy> galvatron_strategies(const galvatron_space& space);

namespace detail {
HEDDLE_INLINE void require_galvatron_space(const galvatron_space& space);
}  // namespace detail

/// The plan of the fastest batch: for each depth of the pipeline, greatest width and mode (tensor, Ulysses, both) the
/// choice per layer under the memory that embedding and head leave, for each strategy of those. Stages are even.
template <layer_cost_model Costs>
galvatron_plan search_galvatron(const Costs& costs, const galvatron_space& space) {
  detail::require_galvatron_space(space);
  const std::vector<galvatron_strategy> all = galvatron_strategies(space);
  const std::int64_t budget =
      space.budget_mib / 1024 > 20
          ? space.budget_mib - static_cast<std::int64_t>(static_cast<double>(space.budget_mib) * 0.2)
          : space.budget_mib;
  const int per_microbatch = (std::max)(space.batch / space.microbatches, 1);
  galvatron_plan best;

  const auto consider = [&](const std::vector<int>& counts, std::vector<galvatron_strategy> layers,
                            const galvatron_strategy& ends) {
    std::vector<double> stages, synchronised;
    std::size_t next = 0;
    for (std::size_t s = 0; s < counts.size(); ++s) {
      stages.push_back(costs.ends_seconds(ends, static_cast<int>(s), false));
      synchronised.push_back(0);
      for (int i = 0; i < counts[s]; ++i, ++next) {
        stages[s] += costs.layer_seconds(layers[next], false);
        synchronised[s] += costs.layer_seconds(layers[next], true);
      }
    }
    const double seconds = galvatron_pipeline_seconds(stages, synchronised, space.microbatches);
    if (seconds < best.seconds) best = {std::move(layers), ends, counts, seconds};
  };

  // One depth of the pipeline, with the strategies that are allowed there.
  const auto search = [&](int depth, const std::vector<galvatron_strategy>& of_layers, double buffer) {
    std::vector<int> counts(static_cast<std::size_t>(depth), space.layers / depth);
    counts.back() += space.layers % depth;
    if (space.uniform) {
      for (const galvatron_strategy& s : of_layers) {
        galvatron_strategy ends = s;
        ends.recompute = false;
        bool fits = true;
        for (int stage = 0; stage < depth; ++stage)
          fits = fits && static_cast<std::int64_t>(std::ceil(buffer)) + costs.ends_mib(ends, stage) +
                                 counts[static_cast<std::size_t>(stage)] * costs.layer_mib(s, stage) <=
                             budget;
        if (fits) consider(counts, std::vector<galvatron_strategy>(static_cast<std::size_t>(space.layers), s), ends);
      }
      return;
    }
    const std::size_t n = of_layers.size();
    std::vector<double> changes(n * n);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) changes[i * n + j] = costs.change_seconds(of_layers[i], of_layers[j]);
    std::vector<layer_frontier> frontiers;  // of each stage, for any bytes that its ends leave
    for (int stage = 0; stage < depth; ++stage) {
      std::vector<layer_option> options;
      for (std::size_t i = 0; i < n; ++i)
        options.push_back(
            {costs.layer_seconds(of_layers[i], true), costs.layer_mib(of_layers[i], stage), static_cast<int>(i)});
      const std::vector<std::vector<layer_option>> here(
          static_cast<std::size_t>(counts[static_cast<std::size_t>(stage)]), options);
      frontiers.emplace_back(here, budget, changes);
    }
    for (const galvatron_strategy& ends : of_layers) {
      if (ends.recompute) continue;
      std::vector<galvatron_strategy> layers;
      for (int stage = 0; stage < depth; ++stage) {
        const std::int64_t left = budget - static_cast<std::int64_t>(buffer) - costs.ends_mib(ends, stage);
        for (const int i : frontiers[static_cast<std::size_t>(stage)].choose(left).chosen)
          layers.push_back(of_layers[static_cast<std::size_t>(i)]);
      }
      if (std::ssize(layers) == space.layers) consider(counts, std::move(layers), ends);
    }
  };

  for (int depth = 1; depth <= (std::min)({space.devices, space.microbatches, space.layers}); depth *= 2) {
    const int group = space.devices / depth, most_data = (std::min)(per_microbatch, group);
    for (const bool tensor : {true, false})
      for (const bool ulysses : {true, false})
        for (int widest = 1; (tensor || ulysses) && widest <= group; widest *= 2) {
          if (tensor ? widest < group / most_data : widest != group) continue;
          std::vector<galvatron_strategy> allowed;
          for (const galvatron_strategy& s : all)
            if (s.pipeline == depth && s.width() <= widest && s.data <= most_data && (tensor || s.tensor == 1) &&
                (ulysses || s.ulysses == 1))
              allowed.push_back(s);
          galvatron_strategy wide{depth, widest, 1, group / widest};
          if (!allowed.empty()) search(depth, allowed, tensor ? costs.buffer_mib(wide) : 0);
        }
  }
  return best;
}

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/galvatron_costs.hpp>
#endif
