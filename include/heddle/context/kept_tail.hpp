// heddle/context/kept_tail.hpp: attention of first rows where outputs of the last are kept.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/context/pieces.hpp>
#include <heddle/core/config.hpp>

#include <cstdint>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// The same pieces, with masks in which the last `part / of` of each rank's rows see nothing: the table of a forward pass
/// over it attends the other queries alone. In the order `split::zigzag` these are the early halves of documents.
/// Source: Sun et al. 2025, arXiv:2509.19836 (sequence-level selective checkpointing).
HEDDLE_INLINE context_cut without_tail(context_cut cut, std::int64_t part, std::int64_t of);

/// A transformer that is trained on one document under a causal mask, to compare what is recomputed. Units: tokens, layers
/// and elements. `ffn`: of a gated MLP, three matrices.
/// Source: Sun et al. 2025, arXiv:2509.19836.
struct attention_recompute {
  double sequence = 0, layers = 0, width = 0, ffn = 0, vocabulary = 0;

  /// Bytes of the outputs of attention that a rank with `rows` rows keeps, of elements of `element` bytes.
  constexpr double kept_bytes(double rows, double element, double kept) const noexcept {
    return kept * layers * rows * width * element;
  }
  /// Bytes of the logits of those rows.
  constexpr double logits_bytes(double rows, double element) const noexcept { return rows * vocabulary * element; }
  /// Operations of a token forward outside of attention, over those of its attention forward.
  constexpr double rest_over_attention() const noexcept {
    const double rest = 2 * (4 * width * width + 3 * width * ffn + vocabulary * width / layers);
    return rest / (2 * sequence * width);
  }
  /// A step in units of attention forward, where blocks are computed again and outputs of the last `kept` of the rows are
  /// not: attention is 1 forward, (1 - kept)^2 again and 2.5 backward; the rest 1, 1 and 2.
  constexpr double step(double kept) const noexcept {
    return 3.5 + (1 - kept) * (1 - kept) + 4 * rest_over_attention();
  }
  /// How much faster a step is than one that keeps none.
  constexpr double speedup(double kept) const noexcept { return step(0) / step(kept); }
};

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/context/impl/kept_tail.hpp>
#endif
