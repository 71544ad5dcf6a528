// heddle/model/stage_sizes.hpp: memory of a pipeline stage, before it is made.
#pragma once

#include <cstdint>

namespace heddle::inline v0::model {

/// What a stage will hold, as its own members of these names say once it is made.
struct stage_sizes {
  std::int64_t flat_elements = 0;    ///< of its flat buffers
  std::int64_t frozen_elements = 0;  ///< of weights that are not trained
  std::int64_t tied_elements = 0;    ///< of the gradient of a tied embedding
  bool borrows_embedding = false;    ///< of another stage of the rank: that gradient is in a buffer of its own
  std::int64_t saved_bytes_per_slot = 0, deferred_bytes = 0, workspace_bytes = 0;
  std::int64_t boundary_elements = 0;  ///< of a tensor between stages, for as many samples as it takes
};

/// The sizes of a stage type. `known`: whether they can be computed ahead; by default they cannot. Specialize it for a stage of your own
/// to have them in errors of memory (`train::memory_forecast`).
template <class Stage>
struct sizes_of_stage {
  static constexpr bool known = false;
  static constexpr int buckets = 1;
};

}  // namespace heddle::inline v0::model
