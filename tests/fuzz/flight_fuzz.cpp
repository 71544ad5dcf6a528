// Flight files of a rank, and the verdict over them: sizes, counts and texts are not to be trusted.
#include <heddle/observe/flight_report.hpp>

#include "fuzz.hpp"

#include <algorithm>
#include <span>

HEDDLE_FUZZ_TARGET(flight) {
  namespace observe = heddle::observe;
  observe::rank_flight one;
  if (!fuzz::accepted([&] { one = observe::read_flight(std::as_bytes(std::span(data, size)), "rank-0.flight"); }))
    return;
  fuzz::require(one.rank >= 0 && one.rank < one.ranks, "a rank is one of its run");
  for (const auto& call : one.calls) fuzz::require(call.group < one.groups.size(), "a call's group is one of its rank");
  if (one.ranks > 1'000'000) return;  // as many cells as a picture never has
  // Beside a rank that says the same, and alone.
  observe::flights all;
  all.ranks = {one, one};
  all.ranks[1].rank = one.rank + 1;
  all.ranks[0].ranks = all.ranks[1].ranks = (std::max)(one.ranks, one.rank + 2);
  for (int n = 0; n < 2; ++n) {
    const observe::flight_report report = observe::report_of(all);
    fuzz::require(!report.text.empty(), "a verdict has a text");
    (void)observe::hang_svg(all, report);
    all.ranks.pop_back();
  }
}
