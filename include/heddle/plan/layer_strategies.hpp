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

/// The undominated choices of all layers up to each one: what `choose` reads for any budget and number of layers.
/// Labels of (seconds, bytes) per layer and class, exact in bytes, O(layers labels (options + classes^2)). Above
/// `most_labels` labels of a class its bytes are rounded up to that many steps of the budget, which a choice tells;
/// whether anything fits stays exact, and the choice is as fast as the best for a budget of (1 - layers / most_labels)
/// of this one.
/// Source: the dynamic program of Galvatron (arXiv:2211.13878), section 3.3, over labels in place of steps of memory.
class layer_frontier {
 public:
  /// `changes[from * classes + to]`: seconds of a change of layout between neighbours; empty: none, and one class.
  /// Errors: `config_error` for a layer without options, classes that are none, or numbers that are negative or not
  /// finite.
  HEDDLE_INLINE layer_frontier(std::span<const std::vector<layer_option>> layers, std::int64_t budget,
                               std::span<const double> changes = {}, std::size_t most_labels = 4096);

  /// The options of the first `layers` layers whose seconds are least among all that hold at most `budget`.
  /// Errors: `config_error` for more layers or a greater budget than it was made for.
  HEDDLE_INLINE layer_strategies choose(std::int64_t budget, std::size_t layers) const;
  layer_strategies choose(std::int64_t budget) const { return choose(budget, labels_.size()); }

 private:
  // The way to a label: its class and place among the labels of the layer before, and the option taken there.
  struct label {
    double seconds = 0;
    std::int64_t bytes = 0;
    std::int32_t from = 0, from_class = 0, option = 0;
  };
  HEDDLE_INLINE static void leave_undominated(std::vector<label>& labels);
  HEDDLE_INLINE static void leave_one_per_step(std::vector<label>& labels, std::int64_t step);

  std::int64_t budget_;
  std::vector<std::vector<std::vector<label>>> labels_{};  ///< of each layer and class, fewest bytes first
  std::vector<std::int64_t> least_bytes_{0};               ///< of the first layers
  std::size_t most_ = 0;
  bool rounded_ = false;
};

/// The choice of all layers for one budget. Errors: as of `layer_frontier`.
HEDDLE_INLINE layer_strategies choose_layer_strategies(std::span<const std::vector<layer_option>> layers,
                                                       std::int64_t budget, std::span<const double> changes = {},
                                                       std::size_t most_labels = 4096);

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/layer_strategies.hpp>
#endif
