// Schedules from text and by name: what is accepted, printed and read again is the same, and check_table can read it.
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/text/print.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/schedule/check/validate.hpp>

#include "fuzz.hpp"

HEDDLE_FUZZ_TARGET(schedule) {
  namespace sc = heddle::schedule;
  fuzz::bytes in(data, size);
  const unsigned how = in.byte();
  fuzz::accepted([&] {
    const sc::action_table t = sc::parse(in.rest(), {.chains = 1 + static_cast<int>(how % 3)});
    fuzz::require(sc::parse(sc::to_text(t), t.form).view() == t.view(), "a table reads back");
    if (t.rank_of_stage.size() < 64 && t.microbatches < 64) {
      const bool ok = sc::check_table(t).ok();
      fuzz::require(fuzz::accepted([&] { sc::tabled{t}; }) || !ok, "a valid table is a schedule");
    }
  });
  fuzz::accepted([&] {
    const sc::named when(in.rest(), 1 + static_cast<int>(how % 8));
    const int ranks = 1 + static_cast<int>(how / 8 % 4);
    if (std::int64_t{when.stages(ranks)} > 64) return;
    fuzz::require(sc::check_table(sc::make_table(when, ranks)).ok(), "a named schedule's table is valid");
  });
}
