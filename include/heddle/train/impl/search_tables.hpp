// heddle/train/impl/search_tables.hpp: bodies of heddle/train/search_tables.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/search_tables.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace heddle::inline v0::train::detail {

HEDDLE_INLINE schedule::action_table table_of_choice(const std::string& name, int ranks, int microbatches) {
  return schedule::make_table(schedule::named(name, microbatches), ranks);
}

HEDDLE_INLINE searched_table facts_of(const std::string& name, int ranks, int microbatches) {
  searched_table facts;
  schedule::action_table table;
  try {
    table = table_of_choice(name, ranks, microbatches);
  } catch (const schedule_error& e) {
    facts.misfit = e.what();
    if (facts.misfit.rfind("heddle: ", 0) == 0) facts.misfit.erase(0, 8);
    return facts;
  }
  const schedule::table_view view = table.view();
  facts.parts = view.parts();
  facts.stages = view.stages();
  facts.of_rank.resize(static_cast<std::size_t>(ranks));
  const schedule::storage storage = schedule::assign_storage(schedule::lowered_to_run(view));
  for (int s = 0; s < facts.stages; ++s) {
    facts.part_of.push_back(view.part_of(s));
    facts.slots.push_back(storage.slots[static_cast<std::size_t>(s)]);
    facts.of_rank[static_cast<std::size_t>(view.rank_of(s))].push_back(s);
    int waits = 0, most = 0;  // backwards of the input without that of the weights
    for (const schedule::action& a : view.list(view.rank_of(s))) {
      if (a.stage != s) continue;
      if (a.kind == schedule::action_kind::backward_input) most = (std::max)(most, ++waits);
      if (a.kind == schedule::action_kind::backward_weight) --waits;
    }
    facts.waiting.push_back(most);
  }
  return facts;
}

HEDDLE_INLINE std::string too_large(int stages, int ranks, int microbatches) {
  if (std::int64_t{stages} * microbatches <= std::int64_t{1} << 21) return {};
  return std::to_string(microbatches) + " microbatches on " + std::to_string(ranks) +
         " pipeline ranks are too many to simulate";
}

}  // namespace heddle::inline v0::train::detail
