// heddle/plan/layer_strategies.hpp: chooses a strategy per layer under a memory budget.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::plan {

/// A strategy that a layer may have. Units: seconds any, one for all; bytes likewise, and exact.
struct layer_option {
  double seconds = 0;
  std::int64_t bytes = 0;
  int layout = 0;  ///< class of the layouts in which it takes and gives activations
};

/// The strategy of each layer, and what they take together.
struct layer_strategies {
  std::vector<int> chosen{};  ///< of each layer, an index into its options; empty if nothing fits
  double seconds = std::numeric_limits<double>::infinity();
  std::int64_t bytes = 0;
  std::int64_t least_bytes = 0;  ///< what the layers hold at least, with any choice
  std::size_t labels = 0;        ///< the most that a layer and class kept
  bool rounded = false;          ///< labels were joined: the choice may be slower than the best
  bool fits() const noexcept { return seconds < std::numeric_limits<double>::infinity(); }
};

/// The options whose seconds, with those of changes of layout between neighbours, are least among all that hold at most `budget`.
/// `changes[from * classes + to]`: seconds of a change of layout; empty: none, and one class.
/// A dominance frontier of (seconds, bytes) labels per layer and class, exact in bytes, O(layers labels (options + classes^2)). Above
/// `most_labels` labels of a class its bytes are rounded up to that many steps of the budget, which the result tells; whether anything
/// fits stays exact, and the choice is as fast as the best for a budget of (1 - layers / most_labels) of this one.
/// Errors: `config_error` for a layer without options, classes that are none, or numbers that are negative or not finite.
/// Source: the dynamic program of Galvatron (arXiv:2211.13878), section 3.3, over labels in place of steps of memory.
HEDDLE_INLINE layer_strategies choose_layer_strategies(std::span<const std::vector<layer_option>> layers,
                                                       std::int64_t budget, std::span<const double> changes = {},
                                                       std::size_t most_labels = 4096);

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/layer_strategies.hpp>
#endif
