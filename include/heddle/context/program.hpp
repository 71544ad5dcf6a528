// heddle/context/program.hpp: one rank's program of a context table, with reused buffers.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/context/table.hpp>
#include <heddle/core/config.hpp>

#include <cstdint>
#include <vector>

namespace heddle::inline v0 {

/// Rows of operands or partial results of one part of the heads, which a rank keeps for some rounds. Buffers with the
/// same slot share memory.
struct context_buffer {
  context_kind what = context_kind::keys;
  int part = 0;
  std::int64_t rows = 0;
  int slot = -1;  ///< -1: the rank's own tensors, or the results of its own rows
  int first_round = 0;
  int last_round = 0;  ///< the last one in which it is read
};

/// Memory of a program: as many rows of a kind as the largest of its buffers has.
struct context_slot {
  context_kind what = context_kind::keys;
  std::int64_t rows = 0;
};

/// Rows [row, row + rows) of a buffer.
struct context_range {
  int buffer = 0;
  std::int64_t row = 0;
  std::int64_t rows = 0;
  friend constexpr bool operator==(const context_range&, const context_range&) = default;
};

/// Rows that are copied, or folded, from one buffer to another.
struct context_transfer {
  context_range from{};
  int to = 0;
  std::int64_t to_row = 0;
};

/// A message: rows that leave for a peer, or come from it.
struct context_message {
  int peer = 0;
  context_range rows{};
  /// When this round begins it is waited for, or at the end of its own if that is not later: one that comes before it
  /// is read, one that leaves before its rows are used for something else.
  int needed_in = 0;
  /// Whether the receiver first reads it after the next round: messages of the rounds between may overtake it. Both ends say so.
  bool overtaken = false;
};

/// One call of the attention kernel. Slices count from the first query and key row of its ranges. Its results are
/// folded, range by range.
struct context_call {
  context_range queries{};
  context_range keys{};
  std::vector<compute::attention_slice> slices{};
  std::vector<context_transfer> of_queries{};  ///< `from` counts the rows of the call's own result
  std::vector<context_transfer> of_keys{};
};

/// What a rank does in a round, in this order.
struct context_round {
  std::vector<context_message> receives{};
  std::vector<context_transfer> packs{};  ///< rows that do not lie behind each other, copied for a message
  std::vector<context_message> sends{};
  std::vector<int> fills{};  ///< buffers of partial results that begin empty
  std::vector<context_call> calls{};
  std::vector<context_transfer> folds{};  ///< of partial results that came
  /// Backward: results of the last call, which are added to partial results that came, when these are there: they need no
  /// buffer of their own.
  std::vector<context_transfer> late_of_queries{}, late_of_keys{};
};

/// The program of one rank. The first 4 * parts buffers are its own rows: of kind k and part p number k * parts + p.
struct context_program {
  int rank = 0;
  context_pass pass = context_pass::forward;
  int parts = 1;
  std::int64_t rows = 0;
  std::vector<context_buffer> buffers{};
  std::vector<context_slot> slots{};
  std::vector<context_round> rounds{};
};

/// Lowers a table for a rank. Operands that arrive in one round and are first read in the same one lie in one buffer,
/// and a rank attends a buffer of queries to a buffer of keys in one call, on the rows that slices touch. Requires a
/// table that `check_context` accepts.
HEDDLE_INLINE context_program lower_context(const context_table& table, int rank);

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/context/impl/program.hpp>
#endif
