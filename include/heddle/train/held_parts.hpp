// heddle/train/held_parts.hpp: the stages that one rank holds, and who shares their weights.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/train/stage_parts.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace heddle::inline v0::train {

/// Which stages of a table a rank holds, and with whom it shares weights: replicas of its parts, and the tied embedding of the
/// first and the last part. Numbers alone, the same for every model.
class held_parts {
 public:
  /// Errors: `schedule_error` if the rank would hold two replicas of one part.
  held_parts(schedule::table_view table, const stage_parts& of_model, int rank);

  const stage_parts& parts() const noexcept { return parts_; }
  int rank() const noexcept { return rank_; }
  /// The stages here, ascending; and in the order in which they are made: the embedding's first, for it lends.
  std::span<const int> stages() const noexcept { return stages_; }
  std::span<const int> to_make() const noexcept { return to_make_; }
  /// Where among `stages()` a stage is; -1 if it is not here.
  int place_of(int stage) const noexcept { return place_of_[static_cast<std::size_t>(stage)]; }
  bool has(int stage) const noexcept { return place_of(stage) >= 0; }
  /// Of a stage that has the head and not the embedding: the stage here that has the embedding; -1 if there is none.
  int lender_of(int stage) const noexcept;

  bool has_embedding() const noexcept { return has(parts_.stages_of(0).front()); }
  bool has_replicas(int stage) const noexcept { return parts_.has_replicas(parts_.part_of(stage)); }
  /// The pipeline ranks that have a stage with the embedding or with the head, ascending.
  std::span<const int> tied_ranks() const noexcept { return tied_ranks_; }
  /// Of two such ranks, the other one.
  int other_tied_rank() const noexcept { return tied_ranks_[tied_ranks_[0] == rank_ ? 1 : 0]; }
  /// Whether the embedding and the head are on two ranks, and nowhere else.
  bool ties_two_ranks() const noexcept;
  /// Whether this rank has replicas of others' stages, or a stage with the embedding or the head.
  bool shares() const noexcept;
  /// The ranks that share weights with this one, or with one of those.
  std::span<const int> sharers() const noexcept { return sharers_; }

  /// Parts with replicas of which one is here: which stage that is, and the ranks of all of them.
  struct replicated {
    int stage;
    std::vector<int> ranks;
  };
  const std::vector<replicated>& replicas() const noexcept { return replicas_; }

 private:
  void find_sharers(schedule::table_view table);

  stage_parts parts_;
  int rank_;
  std::vector<int> stages_;
  std::vector<int> to_make_;
  std::vector<int> place_of_;  // by the stage's number in the table
  std::vector<int> tied_ranks_;
  std::vector<int> sharers_;
  std::vector<replicated> replicas_;
};

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/held_parts.hpp>
#endif
