// heddle/model/rows_of_batch.hpp: the rows of a microbatch as a stage keeps them for its verbs.
#pragma once

#include <heddle/model/layer.hpp>
#include <heddle/model/layers/call.hpp>

#include <cstdint>

namespace heddle::inline v0::model {

/// Of samples of one length: nothing. Batches whose rows are parts of documents specialise it (`context_batch`).
template <class Batch, class Layouts, class Backend, class World>
struct rows_of_batch {
  /// Whether a batch is of whole samples, whose rows lie behind each other.
  static constexpr bool of_samples = true;
  /// What layers see of it, as `Cache` of a `layer_run`.
  using seen = layers::no_cache;

  rows_of_batch(World&, Backend&, int /*places*/) noexcept {}
  template <class Config>
  static constexpr std::int64_t of_sample(const Config& config) noexcept {
    return config.context;
  }
  /// How many samples the head takes at once where nothing is saved.
  template <class Config>
  static constexpr std::int64_t samples_of_head(const Config&) noexcept {
    return 1;
  }
  /// Takes over what a microbatch says, for the verbs of this place.
  static void take(int /*place*/, const Batch&) noexcept {}
};

}  // namespace heddle::inline v0::model
