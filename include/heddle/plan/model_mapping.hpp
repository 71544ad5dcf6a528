// heddle/plan/model_mapping.hpp: maps the models of a run to sets of devices.
#pragma once

#include <heddle/core/config.hpp>

#include <functional>
#include <vector>

namespace heddle::inline v0::plan {

/// Models of a run whose iteration is stages, one after the other, such as generation, preparation and training.
struct mapped_models {
  int models = 1, stages = 3;
  /// Seconds of a model in a stage on so many devices; 0 where it has no part, infinite where it cannot have so many.
  std::function<double(int model, int stage, int devices)> seconds{};
  std::vector<double> bytes{};  ///< of each model; empty: 0
  double bytes_per_device = 0;  ///< 0: any
};

/// Models of one set share devices. Units: seconds of an iteration.
struct model_mapping {
  std::vector<int> set_of{};   ///< of each model; sets are numbered by their first models
  std::vector<int> devices{};  ///< of each set
  double seconds = 0;
};

/// All partitions of so many things into sets, each as the set of every thing: as many as the Bell numbers 1, 2, 5, 15, 52, ...
/// Errors: `config_error` for fewer than 1 or more than 10.
HEDDLE_INLINE std::vector<std::vector<int>> set_partitions(int things);

/// Seconds of a mapping: in each stage sets work beside each other, and models of a set one after the other.
HEDDLE_INLINE double seconds_of(const model_mapping& mapping, const mapped_models& of);

/// The fastest mapping of all partitions and all numbers of devices that have the memory for their set and sum to
/// `devices`; as `m2flow` with stages in the place of chunks. Errors: `config_error` for no devices or models, bytes of
/// others, and where no mapping is possible.
/// Source: Sheng et al. 2024, arXiv:2409.19256 (HybridFlow), algorithm 1.
HEDDLE_INLINE model_mapping map_models(const mapped_models& of, int devices);

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/model_mapping.hpp>
#endif
