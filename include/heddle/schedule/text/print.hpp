// heddle/schedule/text/print.hpp: action tables as text.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/schedule/table.hpp>

#include <cstddef>
#include <string>

namespace heddle::inline v0::schedule {

namespace detail {
HEDDLE_INLINE void append_number(std::string& text, int n);

// WAYS 0:0>1>3 1:0>2>3: the ways of microbatches, each with its stages in order, as far as they can be followed.
HEDDLE_INLINE void append_ways(std::string& text, table_view t);

// Whether the first list that has something of a stage is that of its rank, for every stage.
HEDDLE_INLINE bool lists_tell_ranks(table_view t);
}  // namespace detail

/// The text form of one action: stage, kind, microbatch: "2F0", "0SEND_F2", "3REDUCE_GRAD".
HEDDLE_INLINE std::string to_text(const action& a);

/// The text form of a table: one line per rank, actions separated by blanks; a pair that may run side by side as
/// "(2F5;5B1)OVERLAP_F_B"; "-" for a rank without actions. Behind the ranks a line "STAGES 0 1 1 0" where the lists do
/// not tell on which rank each stage is, and where microbatches have ways of their own a line "WAYS 0:0>1>3 1:0>2>3":
/// each microbatch with its stages in order. `parse` reads it back.
HEDDLE_INLINE std::string to_text(table_view table);

}  // namespace heddle::inline v0::schedule

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/schedule/impl/text/print.hpp>
#endif
