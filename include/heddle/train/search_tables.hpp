// heddle/train/search_tables.hpp: facts of a schedule's table that a search of strategies needs.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/schedule/table.hpp>

#include <string>
#include <vector>

namespace heddle::inline v0::train::detail {

// What a schedule's table says of stages; of all microbatches beyond those that fill the pipeline it is the same.
struct searched_table {
  std::string misfit{};  // why there is none
  int parts = 1, stages = 1;
  std::vector<int> part_of{}, slots{}, waiting{};
  std::vector<std::vector<int>> of_rank{};  // stages

  bool one_each() const noexcept { return stages == parts && stages == static_cast<int>(of_rank.size()); }
};

// The table of a named schedule. Errors: `schedule_error` for ranks and microbatches that it does not run.
HEDDLE_INLINE schedule::action_table table_of_choice(const std::string& name, int ranks, int microbatches);
// The same facts, with `misfit` in place of an error.
HEDDLE_INLINE searched_table facts_of(const std::string& name, int ranks, int microbatches);
// What is wrong with so many cells of stages and microbatches, or nothing: a table of more than 2^21 takes too long to simulate.
HEDDLE_INLINE std::string too_large(int stages, int ranks, int microbatches);

}  // namespace heddle::inline v0::train::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/search_tables.hpp>
#endif
