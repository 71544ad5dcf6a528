#include <heddle/schedule/check/formulas.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/text/print.hpp>
#include <heddle/schedule/check/validate.hpp>

#include "catch.hpp"
#include "schedules.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

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
  const sc::report found = sc::check_table(table);
  INFO(sc::to_string(found));
  REQUIRE(found.ok());
  for (int r = 0; r < p; ++r) {
    CAPTURE(r);
    REQUIRE(sc::peak_live(table, r) == formula::peak_live(when, p, r));
  }
  REQUIRE(sc::sends(table) == formula::sends(when, p));
  const auto lowered = sc::lower(table);
  REQUIRE(sc::sends(lowered) == formula::sends(when, p));
  REQUIRE(sc::check_table(lowered, sc::transfers::rendezvous).ok());
  for (int r = 0; r < p; ++r) REQUIRE(sc::peak_live(lowered, r) == formula::peak_live(when, p, r));
}

}  // namespace

TEST_CASE("schedules of one stage per rank have the peaks and messages of their formulas", "[schedule][law]") {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 4 * p; ++m) {
      check_formulas(sc::gpipe<>{m}, p, m);
      check_formulas(sc::one_f_one_b<>{m}, p, m);
      check_formulas(sc::zb_h1<>{m}, p, m);
      check_formulas(sc::zb_h2<>{m}, p, m);
      check_formulas(sc::prefill<>{m}, p, m);
    }
}

TEST_CASE("schedules of several stages per rank have the peaks and messages of their formulas", "[schedule][law]") {
  using any = microbatches<>;
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 4 * p; ++m) {
      check_formulas(sc::zb_v<>{m}, p, m);
      for (int v = 1; v <= 4; ++v) {
        const sc::interleaved<any, heddle::dynamic> interleaved{m, v};
        const sc::zb_h1<any, heddle::dynamic> h1{m, v};
        CHECK(interleaved.fits(p) == (m % (std::max)(1, m / p) == 0));
        CHECK(h1.fits(p) == (v == 1 || interleaved.fits(p)));
        if (interleaved.fits(p)) check_formulas(interleaved, p, m);
        if (h1.fits(p)) check_formulas(h1, p, m);
        check_formulas(sc::breadth_first<any, heddle::dynamic>{m, v}, p, m);
        check_formulas(sc::prefill<any, heddle::dynamic>{m, v}, p, m);
        check_formulas(sc::decode<>{m, v}, p, m);
      }
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

TEST_CASE("interleaved 1F1B lists what the publication shows", "[schedule]") {
  const auto t = sc::make_table<sc::interleaved<microbatches<8>>>(4);
  CHECK(published(t, 0) ==
        "F0 F1 F2 F3 F'0 F'1 F'2 F'3 F4 F5 F6 B'0 F7 B'1 F'4 B'2 F'5 B'3 F'6 B0 F'7 B1 B2 B3 B'4 "
        "B'5 B'6 B'7 B4 B5 B6 B7");
  CHECK(published(t, 3) ==
        "F0 F1 F2 F3 F'0 B'0 F'1 B'1 F'2 B'2 F'3 B'3 F4 B0 F5 B1 F6 B2 F7 B3 F'4 B'4 F'5 B'5 F'6 "
        "B'6 F'7 B'7 B4 B5 B6 B7");
  // One chunk is 1F1B with a longer warm-up; groups need not have p microbatches.
  CHECK(sc::to_text(sc::make_table(sc::interleaved<microbatches<>, 1>{2}, 2)) == "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n");
  CHECK(published(sc::make_table(sc::interleaved<>{3}, 2), 1) == "F0 F1 F2 F'0 B'0 F'1 B'1 F'2 B'2 B0 B1 B2");
}

TEST_CASE("breadth-first lists one chunk after the other", "[schedule]") {
  const auto t = sc::make_table<sc::breadth_first<microbatches<3>>>(2);
  CHECK(sc::to_text(t) ==
        "0F0 0F1 0F2 2F0 2F1 2F2 2B0 2B1 2B2 0B0 0B1 0B2\n"
        "1F0 1F1 1F2 3F0 3F1 3F2 3B0 3B1 3B2 1B0 1B1 1B2\n");
  CHECK(sc::make_table(sc::breadth_first<microbatches<>, 1>{5}, 3).view() == sc::make_table(sc::gpipe<>{5}, 3).view());
}

TEST_CASE("the zero-bubble schedules list what the publications show", "[schedule]") {
  const auto h1 = sc::make_table<sc::zb_h1<microbatches<8>>>(4);
  CHECK(published(h1, 0) == "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7");
  CHECK(published(h1, 1) == "F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7");
  CHECK(published(h1, 3) == "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7");
  const auto h2 = sc::make_table<sc::zb_h2<microbatches<8>>>(4);
  CHECK(published(h2, 0) == "F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7");
  CHECK(published(h2, 1) == "F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 W0 F7 I3 W1 I4 W2 I5 W3 I6 W4 I7 W5 W6 W7");
  CHECK(published(h2, 3) == "F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2 W3 W4 W5 W6 W7");
  const auto zv = sc::make_table<sc::zb_v<microbatches<8>>>(4);
  CHECK(published(zv, 3) ==
        "F0 F'0 F1 F'1 F2 F'2 F3 F'3 I'0 W'0 F4 I0 W0 F'4 I'1 W'1 F5 I1 W1 F'5 I'2 W'2 F6 I2 W2 "
        "F'6 I'3 W'3 F7 I3 W3 F'7 I'4 W'4 I4 I'5 I5 I'6 I6 I'7 I7 W4 W'5 W'6 W'7 W5 W6 W7");
  // With too few microbatches, the schedule of enough of them without those that are not there.
  CHECK(sc::to_text(sc::make_table(sc::zb_v<>{1}, 2)) == "0F0 3F0 3I0 3W0 0I0 0W0\n1F0 2F0 2I0 2W0 1I0 1W0\n");
  CHECK(sc::to_text(sc::make_table(sc::zb_h2<>{2}, 2)) == "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1\n");
  CHECK(sc::to_text(sc::make_table(sc::zb_v<>{1}, 1)) == "0F0 1F0 1I0 1W0 0I0 0W0\n");
}

TEST_CASE("inference pipelines have forwards only", "[schedule]") {
  const auto prompts = sc::make_table<sc::prefill<microbatches<3>>>(2);
  CHECK(sc::to_text(prompts) == "0F0 0F1 0F2\n1F0 1F1 1F2\n");
  CHECK(prompts.form == sc::table_form{.chains = 1, .forward_only = true});
  // Groups of two and three microbatches, each through both chunks.
  CHECK(published(sc::make_table(sc::prefill<microbatches<>, 2>{5}, 2), 1) == "F0 F1 F2 F'0 F'1 F'2 F3 F4 F'3 F'4");
  // Three passes of two microbatches: pass t of part x is stage 2t + x; the tokens go from rank 1 to rank 0.
  const auto tokens = sc::make_table<sc::decode<microbatches<2>, 3>>(2);
  CHECK(sc::to_text(tokens) == "0F0 0F1 2F0 2F1 4F0 4F1\n1F0 1F1 3F0 3F1 5F0 5F1\n");
  CHECK(tokens.view().next(1, 0) == 2);
  CHECK(tokens.view().rank_of(2) == 0);
  CHECK(sc::check_table(sc::lower(tokens), sc::transfers::rendezvous).ok());
  STATIC_REQUIRE(sc::check_table(sc::table_of<sc::decode<microbatches<2>, 3>, 2>).ok());
}

TEST_CASE("sequences may end after different numbers of tokens", "[schedule]") {
  const std::vector<int> steps{1, 3, 2};
  const auto t = sc::decode_table(steps, 2);
  CHECK(sc::to_text(t) == "0F0 0F1 0F2 2F1 2F2 4F1\n1F0 1F1 1F2 3F1 3F2 5F1\nWAYS 0:0>1 1:0>1>2>3>4>5 2:0>1>2>3\n");
  CHECK(sc::check_table(t).ok());
  CHECK(sc::sends(t) == 1 + 5 + 3);
  const auto lowered = sc::lower(t);
  CHECK(sc::check_table(lowered, sc::transfers::rendezvous).ok());
  CHECK(sc::sends(lowered) == 1 + 5 + 3);
  // Where all end together, it is the schedule's table, but for the ways, which say what the stages' order says.
  for (const int p : {1, 2, 5})
    for (const int m : {1, 4, 7}) {
      const auto same = sc::decode_table(std::vector<int>(static_cast<std::size_t>(m), 3), p);
      const auto plain = sc::make_table(sc::decode<>{m, 3}, p);
      CHECK(sc::to_text(same).substr(0, sc::to_text(plain).size()) == sc::to_text(plain));
      for (int s = 0; s < 3 * p; ++s) {
        CHECK(same.view().next(s, m - 1) == plain.view().next(s, m - 1));
        CHECK(same.view().previous(s, m - 1) == plain.view().previous(s, m - 1));
      }
    }
  CHECK_THROWS_WITH(sc::decode_table(std::vector<int>{2, 0}, 2),
                    "heddle: decoding: microbatch 1 has 0 passes; each needs at least one");
  CHECK_THROWS_AS(sc::decode_table(std::vector<int>{}, 2), heddle::schedule_error);
  CHECK_THROWS_AS(sc::decode_table(steps, 0), heddle::schedule_error);
  CHECK_THROWS_AS(sc::decode_table(std::vector<int>{2000000000}, 2), heddle::schedule_error);
}

TEST_CASE("every schedule has a plan that can be executed", "[schedule]") {
  for (const int p : {1, 2, 5})
    for (const int m : {1, 3, 10}) {
      CAPTURE(p, m);
      CHECK(sc::make_plan(sc::make_table(sc::prefill<microbatches<>, 2>{m}, p)).table.form.forward_only);
      CHECK(sc::make_plan(sc::make_table(sc::decode<>{m, 4}, p)).table.form.forward_only);
      for (const std::string_view name : sc::named::names) {
        const sc::named when{name, m};
        if (when.fits(p)) CHECK_NOTHROW(sc::make_plan(sc::make_table(when, p)));
      }
    }
  CHECK_NOTHROW(sc::make_plan(sc::decode_table(std::vector<int>{1, 3, 2}, 2)));
}

TEST_CASE("a schedule written by a user is the library's", "[schedule]") {
  for (const int p : {1, 2, 4})
    for (const int m : {p, 2 * p, 5 * p}) {
      CHECK(sc::make_table(schedules::interleaved<2, microbatches<>>{m}, p).view() ==
            sc::make_table(sc::interleaved<>{m}, p).view());
      CHECK(sc::make_table(schedules::interleaved<3, microbatches<>>{m}, p).view() ==
            sc::make_table(sc::interleaved<microbatches<>, 3>{m}, p).view());
    }
}

template <class Static, class Dynamic>
static void check_equal(const Dynamic& when) {
  CHECK(sc::make_table(when, 4).view() == sc::table_of<Static, 4>.view());
  CHECK(sc::lower(sc::make_table(when, 4)).view() == sc::lowered_of<Static, 4>.view());
}

TEST_CASE("every schedule is the same at compile time and at run time", "[schedule][law]") {
  using eight = microbatches<8>;
  using any = microbatches<>;
  constexpr int dynamic = heddle::dynamic;
  check_equal<sc::interleaved<eight>>(sc::interleaved<any, dynamic>{8, 2});
  check_equal<sc::breadth_first<eight, 3>>(sc::breadth_first<any, dynamic>{8, 3});
  check_equal<sc::zb_h1<eight>>(sc::zb_h1<>{8});
  check_equal<sc::zb_h1<eight, 2>>(sc::zb_h1<any, dynamic>{8, 2});
  check_equal<sc::zb_h2<eight>>(sc::zb_h2<>{8});
  check_equal<sc::zb_v<eight>>(sc::zb_v<>{8});
  check_equal<sc::prefill<eight, 2>>(sc::prefill<any, dynamic>{8, 2});
  check_equal<sc::decode<eight, 2>>(sc::decode<>{8, 2});
  STATIC_REQUIRE(sc::formula::peak_live(sc::zb_v<eight>{}, 4, 0) == sc::peak_live(sc::table_of<sc::zb_v<eight>, 4>, 0));
}

TEST_CASE("static and dynamic tables are equal, and a static one has its exact size", "[schedule][law]") {
  using one = sc::one_f_one_b<microbatches<8>>;
  using all = sc::gpipe<microbatches<5>>;
  STATIC_REQUIRE(sc::table_of<one, 4>.actions.size() == 2 * 4 * 8);
  STATIC_REQUIRE(sizeof(sc::table_of<one, 4>) ==
                 sizeof(sc::action) * 64 + sizeof(int) * (5 + 4 + 1) + sizeof(sc::table_form));
  STATIC_REQUIRE(sc::make_table<one>(4).view() == sc::table_of<one, 4>.view());
  CHECK(sc::make_table(sc::one_f_one_b<>{8}, 4).view() == sc::table_of<one, 4>.view());
  CHECK(sc::make_table(sc::gpipe<>{5}, 3).view() == sc::table_of<all, 3>.view());
  CHECK(sc::lower(sc::make_table(sc::one_f_one_b<>{8}, 4)).view() == sc::lowered_of<one, 4>.view());
  CHECK_FALSE(sc::make_table(sc::one_f_one_b<>{8}, 4).view() == sc::make_table(sc::one_f_one_b<>{7}, 4).view());
  CHECK_FALSE(sc::make_table(sc::one_f_one_b<>{8}, 4).view() == sc::make_table(sc::gpipe<>{8}, 4).view());
  STATIC_REQUIRE(sc::peak_live(sc::table_of<one, 4>, 1) == 3);
}

TEST_CASE("a schedule chosen by name is the schedule it names", "[schedule]") {
  using any = microbatches<>;
  const auto check = [](std::string_view name, const auto& when, int p) {
    const sc::named chosen{name, when.microbatch_count()};
    INFO(name << ", p = " << p << ", m = " << when.microbatch_count());
    CHECK(chosen.fits(p) == sc::detail::fits(when, p));
    if (chosen.fits(p)) CHECK(sc::make_table(chosen, p).view() == sc::make_table(when, p).view());
  };
  for (const int p : {1, 2, 4})
    for (const int m : {1, 3, 8, 9}) {
      check("gpipe", sc::gpipe<>{m}, p);
      check("1f1b", sc::one_f_one_b<>{m}, p);
      check("interleaved", sc::interleaved<>{m}, p);
      check("interleaved:4", sc::interleaved<any, 4>{m}, p);
      check("breadth-first", sc::breadth_first<>{m}, p);
      check("breadth-first:3", sc::breadth_first<any, 3>{m}, p);
      check("zb-h1", sc::zb_h1<>{m}, p);
      check("zb-h1:2", sc::zb_h1<any, 2>{m}, p);
      check("zb-h2", sc::zb_h2<>{m}, p);
      check("zb-v", sc::zb_v<>{m}, p);
    }
  for (const std::string_view name : sc::named::names) {
    CAPTURE(name);
    const sc::named when{name, 16};
    CHECK(when.name() == name);
    CHECK(sc::check_table(sc::make_table(when, 4)).ok());
  }
  CHECK(sc::named("interleaved:12", 2).number() == 12);
  CHECK(sc::named("zb-v", 2).number() == 0);
  CHECK_THROWS_WITH((sc::named{"2f2b", 4}), Catch::Matchers::Contains("heddle: there is no schedule \"2f2b\" (known: "
                                                                      "gpipe, 1f1b, interleaved[:number], "));
  CHECK_THROWS_WITH((sc::named{"1f1b:2", 4}), "heddle: the schedule \"1f1b:2\": \"1f1b\" takes no number");
  for (const char* text :
       {"interleaved:", "interleaved:0", "interleaved:-1", "interleaved:2x", "interleaved:999999", "interleaved:32769"})
    CHECK_THROWS_WITH((sc::named{text, 4}), "heddle: the schedule \"" + std::string(text) +
                                                "\": behind the colon stands a number from 1 to 32768, as in "
                                                "\"interleaved:2\"");
  CHECK_THROWS_AS((sc::named{"interleaved:99999", 4}), heddle::schedule_error);
  CHECK_THROWS_AS((sc::named{"gpipe", 0}), heddle::schedule_error);
}

TEST_CASE("numbers of microbatches and ranks that cannot be are refused at run time", "[schedule]") {
  CHECK_THROWS_WITH(sc::gpipe<>{0}, "heddle: a step needs at least one microbatch, got 0");
  CHECK_THROWS_AS(microbatches<>{-1}, heddle::schedule_error);
  CHECK_THROWS_WITH(sc::make_table(sc::gpipe<>{4}, 0), "heddle: a schedule needs at least one pipeline rank, got 0");
  CHECK_THROWS_WITH(sc::make_table(sc::gpipe<>{2000000000}, 4),
                    "heddle: a schedule of 4 stages and 2000000000 microbatches is too large");
  CHECK_THROWS_WITH((sc::make_table(sc::interleaved<>{9}, 4)),
                    "heddle: the schedule cannot run 9 microbatches on 4 pipeline ranks; it can run 8 or 10 on them");
  CHECK_THROWS_WITH((sc::interleaved<microbatches<>, heddle::dynamic>{8, 0}),
                    "heddle: a rank of a pipeline holds 1 to 65536 stages, got 0");
}
