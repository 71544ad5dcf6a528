#include <heddle/schedule/formulas.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/parse.hpp>
#include <heddle/schedule/print.hpp>
#include <heddle/schedule/validate.hpp>

#include "catch.hpp"
#include "schedules.hpp"

#include <string>

namespace sc = heddle::schedule;
using heddle::microbatches;

namespace {

// The lists of the publications, written with the stage's own rank left out and chunks as F', I', W'.
std::string published(const sc::table_view& t, int rank) {
  std::string text;
  for (const sc::action& a : t.list(rank)) {
    text += (text.empty() ? "" : " ") + std::string(sc::name(a.kind)) + (a.stage >= t.ranks() ? "'" : "");
    text += std::to_string(a.microbatch);
  }
  return text;
}

template <class When>
void check_formulas(const When& when, int p, int m) {
  namespace formula = sc::formula;
  CAPTURE(p, m);
  const auto table = sc::make_table(when, p);
  REQUIRE(sc::validate(table).ok());
  for (int r = 0; r < p; ++r) {
    CAPTURE(r);
    REQUIRE(sc::peak_live(table, r) == formula::peak_live(when, p, r));
    REQUIRE(sc::peak_live(table, r, r) == formula::peak_live(when, p, r));
  }
  REQUIRE(sc::sends(table) == formula::sends(when, p));
  const auto lowered = sc::lower(table);
  REQUIRE(sc::sends(lowered) == formula::sends(when, p));
  REQUIRE(sc::validate(lowered).ok());
}

}  // namespace

TEST_CASE("GPipe and 1F1B have the peaks and messages of their formulas", "[schedule][law]") {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 4 * p; ++m) {
      check_formulas(sc::gpipe<>{m}, p, m);
      check_formulas(sc::one_f_one_b<>{m}, p, m);
    }
}

TEST_CASE("1F1B lists what the publication shows", "[schedule]") {
  const auto t = sc::make_table<sc::one_f_one_b<microbatches<8>>>(4);
  CHECK(published(t, 0) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  CHECK(published(t, 1) == "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7");
  CHECK(published(t, 2) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
  CHECK(published(t, 3) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
}

TEST_CASE("GPipe lists all forwards, then all backwards", "[schedule]") {
  CHECK(sc::to_text(sc::make_table(sc::gpipe<>{3}, 2)) == "0F0 0F1 0F2 0B0 0B1 0B2\n1F0 1F1 1F2 1B0 1B1 1B2\n");
}

TEST_CASE("a user's schedules: split backwards, chunks, V maps", "[schedule]") {
  using namespace schedules;
  const auto h1 = sc::make_table<zb_h1<microbatches<8>>>(4);
  CHECK(published(h1, 0) == "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7");
  CHECK(published(h1, 1) == "F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7");
  CHECK(published(h1, 3) == "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7");
  const auto v2 = sc::make_table<interleaved<2, microbatches<8>>>(4);
  CHECK(published(v2, 0) ==
        "F0 F1 F2 F3 F'0 F'1 F'2 F'3 F4 F5 F6 B'0 F7 B'1 F'4 B'2 F'5 B'3 F'6 B0 F'7 B1 B2 B3 B'4 "
        "B'5 B'6 B'7 B4 B5 B6 B7");
  CHECK(published(v2, 3) ==
        "F0 F1 F2 F3 F'0 B'0 F'1 B'1 F'2 B'2 F'3 B'3 F4 B0 F5 B1 F6 B2 F7 B3 F'4 B'4 F'5 B'5 F'6 "
        "B'6 F'7 B'7 B4 B5 B6 B7");
  const auto zv = sc::make_table<zb_v<microbatches<8>>>(4);
  CHECK(published(zv, 3) ==
        "F0 F'0 F1 F'1 F2 F'2 F3 F'3 I'0 W'0 F4 I0 W0 F'4 I'1 W'1 F5 I1 W1 F'5 I'2 W'2 F6 I2 W2 "
        "F'6 I'3 W'3 F7 I3 W3 F'7 I'4 W'4 I4 I'5 I5 I'6 I6 I'7 I7 W4 W'5 W'6 W'7 W5 W6 W7");
  for (int p = 2; p <= 8; ++p)
    for (int m = 1; m <= 4 * p; ++m) {
      CAPTURE(p, m);
      for (const auto& [name, table] : all_tables(p, m)) {
        CAPTURE(name, sc::to_string(sc::validate(table)));
        REQUIRE(sc::validate(table).ok());
        for (int r = 0; r < p; ++r) {
          if (name == "zb_h1") REQUIRE(sc::peak_live(table, r) == (std::min)(p, m));
          if (name == "zb_v") REQUIRE(sc::peak_live(table, r) == 2 * p);
          if (name == "interleaved v=2") REQUIRE(sc::peak_live(table, r) == (std::min)(p + 2 * (p - 1 - r) + 1, 2 * m));
        }
        if (name == "interleaved v=3") REQUIRE(sc::sends(table) == 2 * (3 * p - 1) * m);
        if (name == "zb_v") REQUIRE(sc::sends(table) == 4 * (p - 1) * m);
      }
    }
}

TEST_CASE("static and dynamic tables are equal, and a static one has its exact size", "[schedule][law]") {
  using one = sc::one_f_one_b<microbatches<8>>;
  using all = sc::gpipe<microbatches<5>>;
  STATIC_REQUIRE(sc::table_of<one, 4>.actions.size() == 2 * 4 * 8);
  STATIC_REQUIRE(sizeof(sc::table_of<one, 4>) == sizeof(sc::action) * 64 + sizeof(int) * (5 + 4 + 1) + sizeof(sc::table_form));
  STATIC_REQUIRE(sc::make_table<one>(4).view() == sc::table_of<one, 4>.view());
  CHECK(sc::make_table(sc::one_f_one_b<>{8}, 4).view() == sc::table_of<one, 4>.view());
  CHECK(sc::make_table(sc::gpipe<>{5}, 3).view() == sc::table_of<all, 3>.view());
  CHECK(sc::lower(sc::make_table(sc::one_f_one_b<>{8}, 4)).view() == sc::lowered_of<one, 4>.view());
  CHECK_FALSE(sc::make_table(sc::one_f_one_b<>{8}, 4).view() == sc::make_table(sc::one_f_one_b<>{7}, 4).view());
  CHECK_FALSE(sc::make_table(sc::one_f_one_b<>{8}, 4).view() == sc::make_table(sc::gpipe<>{8}, 4).view());
  STATIC_REQUIRE(sc::peak_live(sc::table_of<one, 4>, 1) == 3);
}

TEST_CASE("a schedule chosen by name is the schedule it names", "[schedule]") {
  for (const int p : {1, 2, 4})
    for (const int m : {1, 3, 8}) {
      CAPTURE(p, m);
      CHECK(sc::make_table(sc::named{"gpipe", m}, p).view() == sc::make_table(sc::gpipe<>{m}, p).view());
      CHECK(sc::make_table(sc::named{"1f1b", m}, p).view() == sc::make_table(sc::one_f_one_b<>{m}, p).view());
    }
  CHECK(sc::named("1f1b", 2).name() == "1f1b");
  CHECK_THROWS_WITH((sc::named{"2f2b", 4}), "heddle: there is no schedule \"2f2b\" (known: gpipe, 1f1b)");
  CHECK_THROWS_AS((sc::named{"gpipe", 0}), heddle::schedule_error);
}

TEST_CASE("numbers of microbatches and ranks that cannot be are refused at run time", "[schedule]") {
  CHECK_THROWS_WITH(sc::gpipe<>{0}, "heddle: a step needs at least one microbatch, got 0");
  CHECK_THROWS_AS(microbatches<>{-1}, heddle::schedule_error);
  CHECK_THROWS_WITH(sc::make_table(sc::gpipe<>{4}, 0), "heddle: a schedule needs at least one pipeline rank, got 0");
  CHECK_THROWS_WITH(sc::make_table(sc::gpipe<>{2000000000}, 4),
                    "heddle: a schedule of 4 stages and 2000000000 microbatches is too large");
  CHECK_THROWS_WITH((sc::make_table(schedules::interleaved<2, microbatches<>>{6}, 4)),
                    "heddle: the schedule cannot run 6 microbatches on 4 pipeline ranks; change one of the numbers");
}
