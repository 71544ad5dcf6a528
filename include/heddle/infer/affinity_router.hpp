// heddle/infer/affinity_router.hpp: sends requests to replicas that hold their experts.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/infer/rows_by_experts.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Chooses the replica of a request whose experts are split over replicas (`lockstep_runner`): the one with most of its tokens' votes among
/// those that have not had a request in this round. A round ends when each has had one, so that none waits.
/// Source: arXiv:2503.04398 (Speculative MoE), requests under data-parallel attention.
class affinity_router {
 public:
  /// Errors: `config_error` for a placement on other ranks or of another vocabulary.
  affinity_router(plan::expert_placement placement, int replicas, std::int64_t vocabulary)
      : placement_(detail::checked_placement(std::move(placement), replicas, vocabulary)),
        had_(static_cast<std::size_t>(replicas), false) {}

  /// The replica of a request with this prompt; of equal ones the first. Errors: `config_error` for a token outside the vocabulary.
  int route(std::span<const std::int32_t> prompt) {
    std::vector<std::int64_t> votes(had_.size(), 0);
    for (const std::int32_t token : prompt) {
      const int rank = placement_.rank_of_token[detail::token_of_placement(placement_, token)];
      if (rank != plan::expert_placement::unseen) ++votes[static_cast<std::size_t>(rank)];
    }
    if (std::find(had_.begin(), had_.end(), false) == had_.end()) had_.assign(had_.size(), false);
    std::size_t best = had_.size();
    for (std::size_t r = 0; r < had_.size(); ++r)
      if (!had_[r] && (best == had_.size() || votes[r] > votes[best])) best = r;
    had_[best] = true;
    return static_cast<int>(best);
  }

 private:
  plan::expert_placement placement_;
  std::vector<bool> had_;
};

}  // namespace heddle::inline v0::infer
