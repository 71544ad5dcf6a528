// tests/schedule/warm_up_test.cpp: how far ranks can run a table before a backward, checked entry by entry.
#include "catch.hpp"
#include "schedules.hpp"

#include <heddle/schedule/lower/lower.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/generate/warm_up.hpp>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace sc = heddle::schedule;

namespace {

using message = std::tuple<int, int>;  // sending stage, microbatch

int forwards_in(sc::table_view t, int rank) {
  const auto list = t.list(rank);
  int n = 0;
  for (int k = 0; k < sc::warm_up_of(t, rank).entries; ++k)
    n += list[static_cast<std::size_t>(k)].kind == sc::action_kind::forward ? 1 : 0;
  return n;
}

}  // namespace

TEST_CASE("a warm-up has no backward, waits for none, and is as long as can be", "[schedule][warm_up]") {
  for (int p = 1; p <= 8; ++p)
    for (const int m : {p, 2 * p, 2 * p + 1})
      for (const auto name : sc::named::names) {
        const sc::named when(name, m);
        if (!when.fits(p)) continue;
        INFO(std::string(name) << ", p = " << p << ", m = " << m);
        const sc::action_table table = sc::lower(sc::make_table(when, p));
        const sc::table_view t = table;
        std::vector<sc::warm_up> of;
        std::set<message> sent, received;
        for (int r = 0; r < p; ++r) {
          of.push_back(sc::warm_up_of(t, r));
          for (int k = 0; k < of.back().entries; ++k) {
            const sc::action& a = t.list(r)[static_cast<std::size_t>(k)];
            if (a.kind == sc::action_kind::send_forward) sent.insert({a.stage, a.microbatch});
            if (a.kind == sc::action_kind::recv_forward) received.insert({sc::counterpart(a, t).stage, a.microbatch});
            CHECK_FALSE((a.kind == sc::action_kind::backward || a.kind == sc::action_kind::backward_input ||
                         a.kind == sc::action_kind::backward_weight || a.overlaps_next));
          }
        }
        CHECK(std::includes(sent.begin(), sent.end(), received.begin(), received.end()));
        std::set<message> early;
        for (int r = 0; r < p; ++r) {
          const auto list = t.list(r);
          for (const int k : of[static_cast<std::size_t>(r)].sent_early) {
            const sc::action& a = list[static_cast<std::size_t>(k)];
            REQUIRE(k >= of[static_cast<std::size_t>(r)].entries);
            REQUIRE(a.kind == sc::action_kind::recv_forward);
            CHECK(early.insert({sc::counterpart(a, t).stage, a.microbatch}).second);
          }
          // The entry behind it could not have run.
          const auto end = static_cast<std::size_t>(of[static_cast<std::size_t>(r)].entries);
          REQUIRE(end < list.size());
          const sc::action& next = list[end];
          if (next.kind == sc::action_kind::recv_forward)
            CHECK(sent.count({sc::counterpart(next, t).stage, next.microbatch}) == 0);
          else
            CHECK((next.overlaps_next ||
                   (next.kind != sc::action_kind::forward && next.kind != sc::action_kind::send_forward)));
        }
        std::set<message> both;
        both.insert(received.begin(), received.end());
        both.insert(early.begin(), early.end());
        CHECK(both == sent);  // what is sent early is received, once
        CHECK(early.size() + received.size() == sent.size());
      }
}

TEST_CASE("known warm-ups", "[schedule][warm_up]") {
  const auto counts = [](const char* name, int p, int m) {
    const sc::action_table table = sc::lower(sc::make_table(sc::named(name, m), p));
    std::vector<int> n;
    for (int r = 0; r < p; ++r) n.push_back(forwards_in(table, r));
    return n;
  };
  CHECK(counts("gpipe", 4, 8) == std::vector<int>{8, 8, 8, 8});
  CHECK(counts("1f1b", 4, 8) == std::vector<int>{4, 3, 2, 1});
  CHECK(counts("zb-h2", 4, 8) == std::vector<int>{6, 4, 2, 1});  // the receive of the first gradient is posted before
  CHECK(counts("zb-v", 4, 8)[0] == 8);                           // 2 p - 1, and a second chunk's
}
