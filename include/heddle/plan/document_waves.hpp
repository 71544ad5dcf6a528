// heddle/plan/document_waves.hpp: waves of documents with their ranks, and their checks.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::plan {

/// A document of a list of lengths, and the ranks among which its tokens are shared out evenly, in the order of their shares.
struct placed_document {
  std::int64_t document = 0;
  std::vector<int> ranks{};
  friend bool operator==(const placed_document&, const placed_document&) = default;
};

/// Documents that are trained on at the same time: a microbatch. `seconds`: as the planner predicts it.
struct document_wave {
  std::vector<placed_document> documents{};
  double seconds = 0;
  friend bool operator==(const document_wave&, const document_wave&) = default;
};

/// The most tokens that one of so many ranks has of a document.
constexpr std::int64_t tokens_of_share(std::int64_t length, std::int64_t ranks) noexcept {
  return length / ranks + (length % ranks != 0 ? 1 : 0);
}

/// Refuses what planners cannot place: ranks or tokens below 1, lengths that are negative, a document that all ranks together
/// have no room for. Errors: `config_error` naming it.
HEDDLE_INLINE void require_documents(std::span<const std::int64_t> lengths, int ranks, std::int64_t tokens_per_rank);

/// Refuses waves that do not place each document with tokens once, name ranks that are not there or twice, or give a rank more than
/// `tokens_per_rank` tokens in one wave. Errors: `config_error` naming wave, document and rank.
HEDDLE_INLINE void require_waves(std::span<const document_wave> waves, std::span<const std::int64_t> lengths, int ranks,
                                 std::int64_t tokens_per_rank);

/// All ranks share every document, in the order of the list: a wave ends where the next document has no room.
/// Errors: as `require_documents`.
HEDDLE_INLINE std::vector<document_wave> whole_axis(std::span<const std::int64_t> lengths, int ranks,
                                                    std::int64_t tokens_per_rank);

namespace detail {
// Documents with tokens, longest first.
HEDDLE_INLINE std::vector<std::int64_t> longest_first(std::span<const std::int64_t> lengths);
}  // namespace detail

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/document_waves.hpp>
#endif
