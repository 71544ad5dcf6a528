#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/check/formulas_bidirectional.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/text/print.hpp>
#include <heddle/schedule/check/validate.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sc = heddle::schedule;
namespace formula = heddle::schedule::formula;
using heddle::microbatches;
using any = microbatches<>;
using waves = sc::hanayo<any, heddle::dynamic>;
using kind = sc::action_kind;

namespace {

// The lists of the publications: F' of the stage on the way back, pairs as (F7|B'3).
std::string published(const sc::table_view& t, int rank) {
  std::string text;
  bool second = false;
  for (const sc::action& a : t.list(rank)) {
    text += second ? "|" : text.empty() || text.back() == '(' ? "" : a.overlaps_next && text.back() == ')' ? "" : " ";
    if (a.overlaps_next) text += "(";
    text += sc::name(a.kind);
    text += a.stage >= t.ranks() ? "'" : "";
    text += std::to_string(a.microbatch);
    if (second) text += ")";
    second = a.overlaps_next;
  }
  return text;
}

int highest_peak(const sc::table_view& t) {
  int peak = 0;
  for (int r = 0; r < t.ranks(); ++r) peak = (std::max)(peak, sc::peak_live(t, r));
  return peak;
}

// Valid, without deadlock however transfers behave, and with as many messages as the formula says.
template <class When>
sc::action_table checked(const When& when, int p) {
  const auto table = sc::make_table(when, p);
  CAPTURE(p, when.microbatch_count(), sc::to_string(sc::check_table(table)));
  REQUIRE(sc::check_table(table).ok());
  const auto lowered = sc::lower(table);
  CAPTURE(sc::to_string(sc::check_table(lowered)));
  REQUIRE(sc::check_table(lowered).ok());
  REQUIRE(sc::check_table(lowered, sc::transfers::buffered).ok());
  REQUIRE(sc::sends(table) == formula::sends(when, p));
  REQUIRE(sc::sends(lowered) == formula::sends(when, p));
  return table;
}

// What the generator says one rank at a time is what the table holds, and as much as it counts.
template <class When>
void check_generate(const When& when, int p) {
  const auto table = sc::make_table(when, p);
  if constexpr (!sc::detail::finds_all_lists<When>) {
    for (int r = 0; r < p; ++r) {
      std::vector<sc::action> list(table.view().list(r).size());
      sc::detail::array_sink sink{list.data()};
      when.generate(r, p, sink);
      REQUIRE(sink.next == list.data() + list.size());
      REQUIRE(std::equal(list.begin(), list.end(), table.view().list(r).begin()));
    }
  }
  REQUIRE(sc::detail::count_actions(when, p) == table.actions.size());
}

}  // namespace

TEST_CASE("DualPipeV and DualPipe: valid, with the peaks and messages of their formulas", "[schedule][law]") {
  for (int p = 1; p <= 8; ++p)
    for (int m = 2 * p; m <= 4 * p + 2; ++m) {
      const sc::dual_pipe_v<> when{m};
      const auto table = checked(when, p);
      for (int r = 0; r < p; ++r) REQUIRE(sc::peak_live(table, r) == formula::peak_live(when, p, r));
    }
  for (int p = 2; p <= 12; p += 2)
    for (int m = 2 * p; m <= 4 * p + 2; m += 2) {
      const sc::dual_pipe<> when{m};
      const auto table = checked(when, p);
      REQUIRE(table.form.chains == 2);
      for (int r = 0; r < p; ++r) REQUIRE(sc::peak_live(table, r) == formula::peak_live(when, p, r));
    }
}

TEST_CASE("DualPipeV lists what the publication shows, and DualPipe the same per direction", "[schedule]") {
  const auto v = sc::make_table(sc::dual_pipe_v<>{8}, 4);
  CHECK(published(v, 0) ==
        "F0 F1 F2 F3 F4 F5 F6 F'0 I'0 W'0 F'1 I'1 W'1 F'2 I'2 W'2 F'3 (F7|B'3)(F'4|B0) B'4 (F'5|B1) B'5 (F'6|B2) "
        "B'6 (F'7|B3) B'7 I4 W4 I5 W5 I6 W6 I7 W7");
  CHECK(published(v, 3) ==
        "F0 F'0 F1 F'1 F2 F'2 F3 F'3 F4 B'0 (F'4|B0)(F5|B'1)(F'5|B1)(F6|B'2)(F'6|B2)(F7|B'3)(F'7|B3) B'4 B4 B'5 B5 "
        "I'6 I6 I'7 I7 W'6 W6 W'7 W7");
  // Two ranks to the middle and 6 microbatches from either side: rank 0 does what rank 3 does, mirrored.
  const auto both = sc::make_table(sc::dual_pipe<>{12}, 4);
  const auto half = sc::make_table(sc::dual_pipe_v<>{6}, 2);
  for (int r = 0; r < 4; ++r) {
    const auto list = both.view().list(r);
    const auto same = half.view().list((std::min)(r, 3 - r));
    REQUIRE(list.size() == same.size());
    for (std::size_t k = 0; k < list.size(); ++k) {
      const bool first = same[k].stage < 2;
      const bool down = first == (r < 2);
      CHECK(list[k].kind == same[k].kind);
      CHECK(list[k].overlaps_next == same[k].overlaps_next);
      CHECK(list[k].stage == (down ? r : 7 - r));
      CHECK(list[k].microbatch == same[k].microbatch + (down ? 0 : 6));
    }
  }
}

TEST_CASE("every pair of DualPipe is a forward beside a backward of the other way", "[schedule]") {
  for (const auto& table : {sc::make_table(sc::dual_pipe_v<>{20}, 6), sc::make_table(sc::dual_pipe<>{16}, 6)}) {
    int pairs = 0;
    for (int r = 0; r < 6; ++r) {
      const auto list = table.view().list(r);
      for (std::size_t k = 0; k < list.size(); ++k) {
        if (!list[k].overlaps_next) continue;
        ++pairs;
        CHECK(list[k].kind == kind::forward);
        CHECK(list[k + 1].kind == kind::backward);
        CHECK(list[k].stage != list[k + 1].stage);
        CHECK(list[k].microbatch != list[k + 1].microbatch);
      }
    }
    CHECK(pairs > 0);
  }
}

TEST_CASE("Chimera: valid, with the peaks and messages of its formulas", "[schedule][law]") {
  for (int p = 2; p <= 8; p += 2)
    for (int m = 2; m <= 4 * p; m += 2) {
      const sc::chimera<> when{m};
      const auto table = checked(when, p);
      if (m < p) continue;
      for (int r = 0; r < p; ++r) REQUIRE(sc::peak_live(table, r) == formula::peak_live(when, p, r));
      REQUIRE(sc::peak_live(table, 0) == p / 2 + 1);
      REQUIRE(sc::peak_live(table, p / 2) == p);
    }
}

TEST_CASE("Hanayo: valid, with at most the peaks of its formula and its messages", "[schedule][law]") {
  for (int w = 1; w <= 3; ++w)
    for (int p = 1; p <= 8; ++p)
      for (int m = 1; m <= 4 * p; m += w < 3 ? 1 : 3) {
        const waves when{m, w};
        const auto table = checked(when, p);
        REQUIRE(highest_peak(table) <= formula::peak_live(when, p, 0));
        REQUIRE(table.view().stages() == 2 * w * p);
      }
  CHECK(sc::make_table(waves{6, 2}, 3).view() == sc::make_table(sc::hanayo<any, 2>{6}, 3).view());
  CHECK_THROWS_WITH((waves{6, 0}), "heddle: hanayo runs in 1 to 32768 waves, got 0");
}

TEST_CASE("V-Half and V-Min: valid, within the peaks of their formulas", "[schedule][law]") {
  for (int p = 1; p <= 9; ++p)
    for (int m = 1; m <= 4 * p; ++m) {
      const sc::v_half<> half{m};
      const sc::v_min<> third{m};
      const auto halves = checked(half, p);
      const auto thirds = checked(third, p);
      REQUIRE(highest_peak(halves) <= formula::peak_live(half, p, 0));
      REQUIRE(highest_peak(thirds) <= formula::peak_live(third, p, 0));
      if (m <= p) continue;
      for (int r = 0; r < p; ++r) REQUIRE(sc::peak_live(halves, r) == formula::peak_live(half, p, r));
      REQUIRE(highest_peak(thirds) == formula::peak_live(third, p, 0));
    }
  const int thirds[][2] = {{4, 4}, {6, 6}, {8, 8}, {12, 10}, {16, 12}};
  for (const auto& [p, most] : thirds) CHECK(highest_peak(sc::make_table(sc::v_min<>{2 * p}, p)) == most);
}

TEST_CASE("schedules that turn or meet: static and dynamic tables are equal", "[schedule][law]") {
  using eight = microbatches<8>;
  STATIC_REQUIRE(sc::table_of<sc::dual_pipe_v<eight>, 4>.actions.size() == 4 * (4 * 8) + (3 + 2 + 1) + 4 * 4);
  CHECK(sc::make_table(sc::dual_pipe_v<>{8}, 4).view() == sc::table_of<sc::dual_pipe_v<eight>, 4>.view());
  CHECK(sc::make_table(sc::dual_pipe<>{8}, 4).view() == sc::table_of<sc::dual_pipe<eight>, 4>.view());
  CHECK(sc::make_table(sc::chimera<>{8}, 4).view() == sc::table_of<sc::chimera<eight>, 4>.view());
  CHECK(sc::make_table(sc::hanayo<>{8}, 4).view() == sc::table_of<sc::hanayo<eight>, 4>.view());
  CHECK(sc::make_table(sc::v_half<>{8}, 4).view() == sc::table_of<sc::v_half<eight>, 4>.view());
  CHECK(sc::make_table(sc::v_min<>{8}, 4).view() == sc::table_of<sc::v_min<eight>, 4>.view());
  STATIC_REQUIRE(sc::check_table(sc::table_of<sc::dual_pipe<eight>, 4>).ok());
  STATIC_REQUIRE(sc::check_table(sc::lowered_of<sc::chimera<eight>, 4>).ok());
  STATIC_REQUIRE(sc::peak_live(sc::table_of<sc::v_half<eight>, 4>, 2) == 6);
  check_generate(sc::dual_pipe_v<>{9}, 4);
  check_generate(sc::dual_pipe<>{8}, 4);
  check_generate(sc::chimera<>{6}, 4);
  check_generate(waves{5, 2}, 3);
  check_generate(sc::v_half<>{7}, 3);
  check_generate(sc::v_min<>{7}, 3);
}

TEST_CASE("schedules that turn or meet have names", "[schedule]") {
  const auto check = [](std::string_view name, const auto& when, int p) {
    CAPTURE(std::string(name));
    CHECK(sc::make_table(sc::named{name, when.microbatch_count()}, p).view() == sc::make_table(when, p).view());
  };
  check("dual-pipe-v", sc::dual_pipe_v<>{8}, 4);
  check("dual-pipe", sc::dual_pipe<>{8}, 4);
  check("chimera", sc::chimera<>{6}, 4);
  check("hanayo", sc::hanayo<>{6}, 4);
  check("hanayo:2", waves{6, 2}, 4);
  check("v-half", sc::v_half<>{5}, 4);
  check("v-min", sc::v_min<>{5}, 4);
}

TEST_CASE("every schedule adds the weight gradients of a stage in the order of microbatches", "[schedule][law]") {
  for (const std::string_view name : sc::named::names)
    for (const int p : {2, 4, 6}) {
      const auto table = sc::make_table(sc::named{name, 2 * p}, p);
      CAPTURE(std::string(name), p);
      std::vector<int> last(table.rank_of_stage.size(), -1);
      for (const sc::action& a : table.actions) {
        if (a.kind != kind::backward && a.kind != kind::backward_weight) continue;
        int& before = last[static_cast<std::size_t>(a.stage)];
        REQUIRE(a.microbatch > before);
        before = a.microbatch;
      }
    }
}

TEST_CASE("every schedule is read back from its text", "[schedule][law]") {
  for (const std::string_view name : sc::named::names)
    for (const int p : {2, 4}) {
      CAPTURE(std::string(name), p);
      const auto table = sc::make_table(sc::named{name, 2 * p}, p);
      CHECK(sc::parse(sc::to_text(table), table.form).view() == table.view());
      const auto lowered = sc::lower(table);
      CHECK(sc::parse(sc::to_text(lowered), table.form).view() == lowered.view());
    }
}

TEST_CASE("formulas hold for as many microbatches as there may be", "[schedule]") {
  const int m = 2147483647;
  CHECK(formula::peak_live(sc::interleaved<any, heddle::dynamic>{2000000000, 4}, 8, 7) == 3 * 8 + 1);
  CHECK(formula::peak_live(sc::zb_h1<any, heddle::dynamic>{2000000000, 4}, 8, 7) == 3 * 8 + 8);
  CHECK(formula::peak_live(sc::zb_v<>{m}, 8, 7) == 16);
  CHECK(formula::peak_live(sc::dual_pipe_v<>{m}, 8, 7) == 17);
  CHECK(formula::peak_live(sc::v_half<>{m}, 8, 7) == 10);
  CHECK(formula::peak_live(sc::v_min<>{m}, 8, 7) == 8);
  CHECK(formula::sends(sc::v_min<>{m}, 8) == std::int64_t{28} * m);
  CHECK(formula::work(sc::dual_pipe_v<>{m}, 8, {}) == 3.0 * m);
  CHECK(formula::work(sc::dual_pipe<>{m - 1}, 8, {}) == 3.0 * (m - 1));
  CHECK(formula::work(sc::decode<any>{m, 4}, 8, {}) == 4.0 * m);
}

TEST_CASE("schedules that turn or meet refuse numbers they cannot run", "[schedule]") {
  CHECK_THROWS_WITH(sc::make_table(sc::dual_pipe_v<>{7}, 4),
                    "heddle: the schedule cannot run 7 microbatches on 4 pipeline ranks; it can run 8 on them");
  CHECK_THROWS_AS(sc::make_table(sc::dual_pipe<>{8}, 3), heddle::schedule_error);
  CHECK_THROWS_AS(sc::make_table(sc::dual_pipe<>{9}, 4), heddle::schedule_error);
  CHECK_THROWS_AS(sc::make_table(sc::dual_pipe<>{6}, 4), heddle::schedule_error);
  CHECK_THROWS_AS(sc::make_table(sc::chimera<>{5}, 4), heddle::schedule_error);
  CHECK_THROWS_AS(sc::make_table(sc::chimera<>{4}, 1), heddle::schedule_error);
  struct nothing_lives {
    int forward_time = 1, backward_time = 1;
    int most_live(int) const { return 0; }
    int order(kind, int, int) const { return 0; }
  };
  CHECK_THROWS_WITH(sc::list_schedule(sc::loop<2>{}, 2, 3, nothing_lives{}),
                    "heddle: list scheduling stops: no rank may begin anything; let more be alive at a time");
}
