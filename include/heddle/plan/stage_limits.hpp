// heddle/plan/stage_limits.hpp: partitions layers over stages that differ in speed and memory.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/plan/layer_partition.hpp>

#include <vector>

namespace heddle::inline v0::plan {

/// Stages that differ: stage s takes its cost / speeds[s] and holds the bytes of its layers, at most budgets[s].
struct stage_limits {
  std::vector<double> speeds{};  ///< of each stage, relative to that of the costs; empty: 1
  /// Bytes of layers and ends on each stage (early stages of 1F1B hold more microbatches), or one entry for all stages.
  /// Whole numbers up to 2^53 are exact.
  std::vector<layer_costs> bytes{};
  std::vector<double> budgets{};  ///< bytes that each stage may hold; empty: no limit
};

/// `partition_layers` over stages that differ, as many as there are speeds or budgets. `bottleneck` is cost over speed.
/// Errors: `config_error` as of `partition_layers(costs, stages, least)`, for lists of other lengths, and for speeds,
/// bytes and budgets that make no sense.
/// Source: stages as fast as their devices (Holmes, arXiv:2312.03549); memory of stages (Galvatron-BMW,
/// arXiv:2307.02031).
HEDDLE_INLINE layer_partition partition_layers(const layer_costs& costs, const stage_limits& limits, int least = 0);

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/stage_limits.hpp>
#endif
