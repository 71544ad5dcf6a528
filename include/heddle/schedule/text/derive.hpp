// heddle/schedule/text/derive.hpp: a schedule derived from a named one by passes, as text.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/schedule/table.hpp>

#include <string>
#include <string_view>

namespace heddle::inline v0::schedule {

/// The table of a derivation: a name of `schedule::named`, and passes between bars, in their order:
///
///     gpipe | limit_live p-r | split_backward | delay_weights r
///
/// Passes: `split_backward`, `limit_live N`, `delay_weights N`, `in_rounds [N]`, `on_map loop[:V] | v | wave[:W]`,
/// `pair_neighbours`, `merge_backward`, as in `schedule::passes`. N is a whole number, or an expression of p (ranks), r
/// (the rank), m (microbatches) and v (stages of a rank) with + - * / ( ) min(,) max(,); / drops the remainder. The map
/// stands alone behind `on_map`, without bars.
/// Errors: `schedule_error` with the character, from 0, and what was expected there; and those of the schedule and the
/// passes, with the pass.
HEDDLE_INLINE action_table derive(std::string_view text, int ranks, int microbatches);

}  // namespace heddle::inline v0::schedule

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/schedule/impl/text/derive.hpp>
#endif
