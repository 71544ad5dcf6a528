#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/lower/reorder.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/text/derive.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/text/print.hpp>

#include "catch.hpp"
#include "emulator.hpp"
#include "schedules.hpp"

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <string_view>

namespace reorder_tests {

namespace sc = heddle::schedule;
namespace passes = heddle::schedule::passes;
using Catch::Matchers::Contains;
using heddle::microbatches;

struct depth {
  constexpr int operator()(int rank, const sc::table_view& t) const { return t.ranks() - rank; }
};
struct own_number {
  constexpr int operator()(int rank, const sc::table_view&) const { return rank; }
};
struct interleaved_depth {
  constexpr int operator()(int rank, const sc::table_view& t) const {
    const int p = t.ranks(), v = t.stages() / p, group = t.microbatches() / std::max(1, t.microbatches() / p);
    return (v - 1) * group + 2 * (p - 1 - rank) + 1;
  }
};

template <class... P>
std::string text(std::string_view t, const P&... p) {
  return sc::to_text(sc::lower(sc::table_view(sc::parse(t)), p...));
}
std::string why(std::string_view text, int ranks = 4, int m = 8) {
  try {
    (void)sc::derive(text, ranks, m);
  } catch (const heddle::schedule_error& e) {
    return e.what();
  }
  return "no error";
}

// Derived while compiling, with the compilers' own limits.
template <int Chunks>
using looped = sc::breadth_first<microbatches<8>, Chunks>;
using h1 = sc::derived<sc::gpipe<microbatches<8>>, passes::limit_live<depth>, passes::split_backward,
                       passes::delay_weights<own_number>>;
using two_chunks = sc::derived<looped<2>, passes::in_rounds, passes::limit_live<interleaved_depth>>;
using on_a_v = sc::derived<looped<2>, passes::on_map<sc::v_shape>, passes::split_backward, passes::pair_neighbours>;
static_assert(sc::table_of<h1, 4>.view() == sc::table_of<sc::zb_h1<microbatches<8>>, 4>.view());
static_assert(sc::table_of<two_chunks, 4>.view() == sc::table_of<sc::interleaved<microbatches<8>, 2>, 4>.view());
static_assert(sc::check_table(sc::table_of<on_a_v, 4>).ok());
static_assert(sc::lowered_by<looped<2>, 4, passes::on_map<sc::v_shape>>.view().rank_of(7) == 0);

TEST_CASE("1F1B, ZB-H1, ZB-H2 and interleaved are derived from others, action by action", "[schedule]") {
  int sizes = 0, loops = 0;
  for (const int p : {2, 3, 4, 6, 8})
    for (int m = p; m <= 4 * p; ++m) {
      CAPTURE(p, m);
      const auto one = sc::lower(sc::make_table(sc::gpipe<>{m}, p), passes::limit_live<depth>{});
      REQUIRE(one.view() == sc::make_table(sc::one_f_one_b<>{m}, p).view());
      REQUIRE(sc::derive("gpipe | limit_live p - r", p, m).view() == one.view());
      const auto zb = sc::lower(one, passes::split_backward{}, passes::delay_weights<own_number>{});
      REQUIRE(zb.view() == sc::make_table(sc::zb_h1<>{m}, p).view());
      REQUIRE(sc::derive("gpipe | limit_live p-r | split_backward | delay_weights r", p, m).view() == zb.view());
      REQUIRE(sc::derive("gpipe | limit_live 2*(p-r)-1 | split_backward | delay_weights 2*r", p, m).view() ==
              sc::make_table(sc::zb_h2<>{m}, p).view());
      ++sizes;
      for (const int v : {2, 3}) {
        const sc::interleaved<microbatches<>, heddle::dynamic> named(m, v);
        if (!named.fits(p)) continue;
        const auto chunks = std::to_string(v);
        const auto made = sc::derive(
            "breadth-first:" + chunks + " | in_rounds m/(m/p) | limit_live min((v-1)*(m/(m/p)) + 2*(p-1-r) + 1, m*v)",
            p, m);
        REQUIRE(made.view() == sc::make_table(named, p).view());
        const sc::derived when(sc::breadth_first<microbatches<>, heddle::dynamic>(m, v), passes::in_rounds{m / (m / p)},
                               passes::limit_live<interleaved_depth>{});
        REQUIRE(sc::make_table(when, p).view() == made.view());
        ++loops;
      }
    }
  CHECK(sizes == 74);
  CHECK(loops == 98);
}

TEST_CASE("each pass rewrites the order that it says", "[schedule]") {
  CHECK(text("F0 F1 F2 B0 B1 B2", passes::limit_live{2}) == "0F0 0F1 0B0 0F2 0B1 0B2\n");
  CHECK(text("0F0 0F1 0I0 0I1 0W0 0W1", passes::limit_live{2}) == "0F0 0F1 0I0 0I1 0W0 0W1\n");
  CHECK(text("0F0 0F1 0I0 0W0 0I1 0W1", passes::limit_live{1}) == "0F0 0I0 0W0 0F1 0I1 0W1\n");
  CHECK(text("F0 F1 B0 B1", passes::split_backward{}) == "0F0 0F1 0I0 0W0 0I1 0W1\n");
  CHECK(text("F0 F1 B0 B1 | F0 (1F1;1B0)OVERLAP_F_B B1", passes::split_backward{}) ==
        "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 (1F1;1I0)OVERLAP_F_I 1W0 1I1 1W1\n");
  const std::string_view list = "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2";
  CHECK(text(list, passes::delay_weights{0}) == std::string(list) + "\n");
  CHECK(text(list, passes::delay_weights{1}) == "0F0 0F1 0F2 0I0 0I1 0W0 0I2 0W1 0W2\n");
  CHECK(text(list, passes::delay_weights{9}) == "0F0 0F1 0F2 0I0 0I1 0I2 0W0 0W1 0W2\n");
  // W of another order than I stand behind theirs.
  CHECK(text("0F0 0F1 0I0 0I1 0W1 0W0", passes::delay_weights{0}) == "0F0 0F1 0I0 0I1 0W1 0W0\n");
  CHECK(text("0F0 0F1 0F2 1F0 1F1 1F2 1B0 1B1 1B2 0B0 0B1 0B2", passes::in_rounds{2}) ==
        "0F0 0F1 1F0 1F1 0F2 1F2 1B0 1B1 0B0 0B1 1B2 0B2\n");
  // Two stages on two ranks, both then where the map says.
  CHECK(text("0F0 0F1 0B0 0B1 | 1F0 1B0 1F1 1B1", passes::pair_neighbours{}) ==
        "0F0 0F1 0B0 0B1\n1F0 (1B0;1F1)OVERLAP_B_F 1B1\n");
  const auto v = sc::lower(sc::make_table(sc::breadth_first<microbatches<>, 2>{2}, 2), passes::on_map<sc::v_shape>{});
  CHECK(sc::to_text(v) == "0F0 0F1 3F0 3F1 3B0 3B1 0B0 0B1\n1F0 2F0 1F1 2F1 2B0 2B1 1B0 1B1\n");
  // Forward-only tables keep no activations.
  const auto prefill = sc::make_table(sc::prefill<>{4}, 2);
  CHECK(sc::lower(prefill, passes::limit_live{1}, passes::split_backward{}, passes::delay_weights{1}).view() ==
        prefill.view());
}

TEST_CASE("passes that rewrite the order refuse what they cannot do", "[schedule]") {
  CHECK_THROWS_WITH(text("F0 F1 B0 B1", passes::limit_live{0}),
                    "heddle: passes::limit_live: rank 0 cannot run with 0 activations alive: 0B0 is next, but its "
                    "forward finds no room");
  CHECK_THROWS_WITH(text("0F0 1F0 1B0 0B0", passes::limit_live{1}), Contains("rank 0 cannot run with 1 activations"));
  CHECK_THROWS_WITH(text("0F0 0B0", passes::delay_weights{1}),
                    Contains("the table has no W; split_backward comes before"));
  CHECK_THROWS_WITH(text("0F0 0I0 0W0", passes::delay_weights{-1}), Contains("not by -1 on rank 0"));
  CHECK_THROWS_WITH(text("0F0 0I0 0W0", passes::split_backward{}), "heddle: the table to lower has I already");
  CHECK_THROWS_WITH(text("0F0 0B0", passes::in_rounds{-1}), Contains("1 or more microbatches"));
  CHECK_THROWS_WITH(text("F0 B0 | F0 B0", passes::on_map<sc::v_shape>{}),
                    Contains("on 2 ranks the map has 4 stages in 1 chains, the table 2 in 1"));
  CHECK_THROWS_WITH(text("F0 B0 | F0 B0", passes::place_transfers{}, passes::pair_neighbours{}),
                    Contains("the table has SEND_F already"));
  CHECK_THROWS_WITH(text("F0 (0F1;0B0)OVERLAP_F_B B1", passes::limit_live{1}),
                    Contains("the overlapped pair 0F1, 0B0 already; computations are paired last"));
  const auto table = sc::make_table(sc::gpipe<>{2}, 2);
  CHECK_THROWS_WITH(sc::on_ranks(table, [](int s, int) { return 2 * s; }), Contains("stage 1 is to be on rank 2 of 2"));
  // Ranks that would wait for each other: what rank 0 may hold does not reach the way back.
  CHECK_THROWS_WITH(sc::derive("breadth-first | limit_live 4", 4, 8), Contains("heddle: passes::limit_live: "));
  CHECK_THROWS_WITH(text("0F0 0F1 0B0 0B1 | 1F1 1F0 1B1 1B0", passes::limit_live{1}),
                    Contains("heddle: passes::limit_live: what it makes cannot run: "));
}

TEST_CASE("the text of a derivation is refused with its place and what is expected", "[schedule]") {
  CHECK(why("gpipe | limit_live p-") ==
        "heddle: schedule::derive: expected a number, p, r, m, v, min(, max( or \"(\" at "
        "character 21 of \"gpipe | limit_live p-\", got the end");
  CHECK(
      why("gpipe limit_live") ==
      "heddle: schedule::derive: expected \"|\" or the end at character 6 of \"gpipe limit_live\", got \"limit_live\"");
  struct refused {
    const char* text;
    const char* expected;
  };
  for (const refused& r : {refused{"", "expected the name of a schedule at character 0"},
                           {"nothing", "there is no schedule \"nothing\""},
                           {"gpipe |",
                            "expected a pass (split_backward, limit_live, delay_weights, in_rounds, on_map, "
                            "pair_neighbours or merge_backward) at character 7"},
                           {"gpipe | split", "pair_neighbours or merge_backward) at character 8"},
                           {"gpipe | split_backward 3", "expected \"|\" or the end at character 23"},
                           {"gpipe | limit_live", "or \"(\" at character 18"},
                           {"gpipe | limit_live q", "or \"(\" at character 19"},
                           {"gpipe | limit_live (p", "expected \")\" at character 21"},
                           {"gpipe | limit_live min(p", "expected \",\" at character 24"},
                           {"gpipe | limit_live 1/(p-4)", "expected a divisor other than 0 at character 21"},
                           {"gpipe | limit_live 1234567", "expected a number of at most six digits at character 19"},
                           {"gpipe | limit_live 99999*99999", "expected an amount of at most 10^9 at character 19"},
                           {"gpipe | limit_live r", "rank 0 cannot run with 0 activations alive"},
                           {"gpipe | in_rounds r", "the same on all ranks at character 18"},
                           {"gpipe | in_rounds 0", "expected rounds of at least one microbatch at character 18"},
                           {"gpipe | on_map", "expected a map: loop[:number], v or wave[:number] at character 14"},
                           {"gpipe | on_map loop:0", "expected a number of at least 1"},
                           {"gpipe | on_map v", "(this one has 8 in 1) at character 15"},
                           {"gpipe | delay_weights r", "split_backward comes before"}}) {
    CAPTURE(r.text, why(r.text));
    CHECK_THAT(why(r.text), Contains(r.expected));
  }
  CHECK_THAT(why("gpipe | limit_live " + std::string(100, '(')), Contains("at most 64 levels"));
  // Bytes at random, from the words there are: a table that runs, or an error.
  std::mt19937 random(GENERATE(5u, Catch::Generators::take(1, Catch::Generators::random(0u, 4000000000u))));
  constexpr std::array words{"gpipe", "1f1b", "|",  "|",   "limit_live", "split_backward", "p",    "r", "-",
                             "(",     ")",    "*",  "2",   "in_rounds",  "on_map",         "loop", ":", "min(",
                             ",",     "/",    "\t", "\xff"};
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text = trial % 2 ? "gpipe | " : "";
    for (auto n = random() % 8; n > 0; --n) text += std::string(words[random() % words.size()]) + " ";
    CAPTURE(text);
    try {
      const auto made = sc::derive(text, 3, 4);
      REQUIRE(sc::check_table(made).ok());
    } catch (const heddle::schedule_error& e) {
      REQUIRE(std::string(e.what()).starts_with("heddle: "));
    }
  }
}

// A chain of passes over a schedule, all chosen by the seed: a table that is valid, runs and computes what the schedule
// computes, or an error. Whether it was a table.
bool random_chain(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const std::string_view name =
      sc::named::names[static_cast<std::size_t>(below(static_cast<int>(sc::named::names.size())))];
  const int p = 1 + below(5), m = p * (1 + below(3)) + 2 * below(2);
  const sc::named when(name, m);
  if (!when.fits(p)) return false;
  const auto base = sc::make_table(when, p);
  sc::action_table t = base;
  std::string chain(name);
  for (int n = 1 + below(5); n > 0; --n) {
    const auto apply = [&](const auto& pass, const std::string& what) {
      chain += " | " + what;
      t = sc::lower(t, pass);
    };
    const int amount = below(2 * p + 2), slope = below(3) - 1;
    const auto limit = [=](int rank, const sc::table_view&) { return amount + slope * rank; };
    try {
      switch (below(7)) {
        case 0:
          apply(passes::split_backward{}, "split");
          break;
        case 1:
          apply(passes::limit_live<decltype(limit)>{limit}, "limit " + std::to_string(amount));
          break;
        case 2:
          apply(passes::delay_weights<decltype(limit)>{limit}, "delay " + std::to_string(amount));
          break;
        case 3:
          apply(passes::in_rounds{amount}, "rounds " + std::to_string(amount));
          break;
        case 4:
          apply(passes::pair_neighbours{}, "pair");
          break;
        case 5:
          apply(passes::on_map<sc::v_shape>{}, "v");
          break;
        default:
          apply(passes::merge_backward{.across_ranks = below(2) == 1}, "merge");
          break;
      }
    } catch (const heddle::schedule_error& e) {
      if (!std::string(e.what()).starts_with("heddle: ")) throw;
      if (below(2)) continue;  // the chain goes on without it
      return false;
    }
    CAPTURE(seed, p, m, chain, sc::to_text(t), sc::to_string(sc::check_table(t)));
    REQUIRE(sc::check_table(t).ok());
  }
  CAPTURE(seed, p, m, chain, sc::to_text(t));
  REQUIRE(emulator::run(sc::lower(t), sc::transfers::rendezvous) == emulator::serial(sc::lower(base)));
  return true;
}

TEST_CASE("random chains of passes make tables that run, or refuse", "[schedule][property]") {
  const auto first = GENERATE(0u, Catch::Generators::take(1, Catch::Generators::random(0u, 4000000000u)));
  int tables = 0;
  for (unsigned k = 0; k < 250; ++k) tables += random_chain(first + k) ? 1 : 0;
  CAPTURE(first);
  CHECK(tables > 40);
}

TEST_CASE("ten thousand random chains of passes", "[schedule][property][slow]") {
  int tables = 0;
  for (unsigned seed = 0; seed < 10000; ++seed) tables += random_chain(seed) ? 1 : 0;
  WARN(tables << " of 10,000 chains made tables");
  CHECK(tables > 2000);
}

}  // namespace reorder_tests
