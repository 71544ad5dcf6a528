// heddle/plan/layer_partition.hpp: layers to stages, with the fastest slowest stage.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::plan {

/// What the layers of a model cost, measured or computed. Units: any, one for all; times are usual.
struct layer_costs {
  std::vector<double> layers;  ///< of each layer, in order
  double first = 0;            ///< of what the first stage has besides (the embedding)
  double last = 0;             ///< of what the last stage has besides (the head and the loss)
};

/// Layers of each stage, in order, and the cost of the stage that costs most.
struct layer_partition {
  std::vector<int> counts;
  double bottleneck = 0;
  /// Mean cost of a stage over the greatest: 1 if all are equal. The rest is lost in every microbatch.
  double balance = 1;
  /// Whether the stages hold what they have: without a partition that does, `counts` is empty.
  bool fits() const noexcept { return !counts.empty(); }
};

namespace detail {

HEDDLE_INLINE void require_layer_costs(const layer_costs& costs, int stages, int least);
// `cost(of, s, begin, end)` is that of stage s with these layers.
HEDDLE_INLINE layer_partition partition_by(int layers, int stages, int least, const void* of,
                                           double (*cost)(const void* of, int s, int begin, int end));

}  // namespace detail

/// The cost of each stage when stage s has `counts[s]` layers. Errors: `config_error` if the counts do not add up.
HEDDLE_INLINE std::vector<double> stage_costs(const layer_costs& costs, std::span<const int> counts);

/// Distributes the layers, in order, over `stages` stages of at least `least` layers each. The slowest stage is as fast as
/// any distribution makes it; of all of those this is one with the smallest sum of squares, so that the other stages are
/// balanced, too. Exact: dynamic programming over the boundaries, O(stages layers^2).
/// Errors: `config_error` for too few layers, no stage, or costs that are negative or not finite.
HEDDLE_INLINE layer_partition partition_layers(const layer_costs& costs, int stages, int least = 0);

/// The same for any cost(s, begin, end) of stage s with layers [begin, end), infinite where it does not hold them.
template <class Cost>
  requires requires(const Cost& cost) { static_cast<double>(cost(0, 0, 0)); }
layer_partition partition_layers(int layers, int stages, const Cost& cost, int least = 0) {
  return detail::partition_by(layers, stages, least, &cost, [](const void* of, int s, int begin, int end) -> double {
    return (*static_cast<const Cost*>(of))(s, begin, end);
  });
}

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/layer_partition.hpp>
#endif
