#include <heddle/schedule/generate/automatic.hpp>
#include <heddle/schedule/generate/inference.hpp>
#include <heddle/schedule/generate/list_scheduling.hpp>
#include <heddle/schedule/check/memory.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/lower/passes.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/schedule/check/validate_storage.hpp>

#include "catch.hpp"
#include "emulator.hpp"

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;
namespace passes = heddle::schedule::passes;
using heddle::microbatches;
using any = microbatches<>;
using kind = sc::action_kind;

namespace {

// Three stages; microbatch 1 leaves out the second.
struct skipping : sc::one_stage_per_rank<microbatches<2>> {
  static constexpr std::array<int, 6> after{1, 2, 2, sc::not_on_path, -1, -1};
  static constexpr std::array<int, 6> before{-1, -1, 0, sc::not_on_path, 1, 0};
  static constexpr int next(int stage, int i) { return after[static_cast<std::size_t>(2 * stage + i)]; }
  static constexpr int previous(int stage, int i) { return before[static_cast<std::size_t>(2 * stage + i)]; }
  template <class Sink>
  static constexpr void generate(int rank, int, Sink& emit) {
    for (const auto k : {sc::action_kind::forward, sc::action_kind::backward})
      for (int i = 0; i < (rank == 1 ? 1 : 2); ++i) emit(k, rank, i);
  }
};

// Three stages on rank 0, two on rank 1.
struct uneven_map {
  static constexpr int chains = 1;
  static constexpr int stages(int) { return 5; }
  static constexpr int rank_of(int stage, int) { return stage < 3 ? 0 : 1; }
};
struct outside_map : uneven_map {
  static constexpr int rank_of(int stage, int) { return stage < 4 ? 0 : 2; }
};
struct oldest_first {
  int forward_time = 1;
  int backward_time = 2;
  constexpr int most_live(int) const { return 4; }
  constexpr std::int64_t order(kind k, int part, int i) const {
    return (k == kind::backward ? 0 : 1000) + 10 * i - part;
  }
};
template <hd::microbatches_like M>
struct uneven_listed : sc::staged<M, uneven_map> {
  using sc::staged<M, uneven_map>::staged;
  constexpr sc::rank_lists lists(int ranks) const {
    return sc::list_schedule(uneven_map{}, ranks, this->microbatch_count(), oldest_first{});
  }
};

using three = hd::mesh<hd::axis<hd::pp, 3>>;
using four = hd::mesh<hd::axis<hd::pp, 4>>;
using when = sc::one_f_one_b<microbatches<8>>;

struct half_recomputed {
  constexpr int activation_bytes(int) const { return 100; }
  constexpr int recompute_bytes(int) const { return 10; }
};

}  // namespace

TEST_CASE("a static schedule may have ways of its own", "[schedule]") {
  STATIC_REQUIRE(sc::valid<skipping, three>);
  STATIC_REQUIRE(sc::deadlock_free<skipping, three>);
  constexpr sc::table_view t = sc::table_of<skipping, 3>;
  STATIC_REQUIRE(t.has_paths());
  STATIC_REQUIRE_FALSE(t.handles(1, 1));
  CHECK(sc::make_table(skipping{}, 3).view() == t);
  constexpr sc::table_view lowered = sc::lowered_of<skipping, 3>;
  CHECK(sc::lower(t).view() == lowered);
  CHECK(sc::sends(lowered) == 6);
  CHECK(sc::static_plan<skipping, 3>::view().table == sc::make_plan(t).view().table);
  CHECK(emulator::run(sc::static_plan<skipping, 3>::view()) == emulator::serial(t));
  // Also where passes lower it.
  constexpr sc::table_view by = sc::lowered_by<skipping, 3, passes::place_transfers>;
  CHECK(by.has_paths());
  CHECK(sc::check_table(by).ok());
}

TEST_CASE("a table is a schedule, with its ways", "[schedule]") {
  const int steps[] = {3, 1, 2};
  const auto decoding = sc::decode_table(steps, 2);
  CHECK(sc::make_table(sc::tabled(decoding), 2).view() == decoding.view());
  const auto plain = sc::make_table(sc::named("dual-pipe", 8), 4);
  CHECK(sc::make_table(sc::tabled(plain), 4).view() == plain.view());
}

TEST_CASE("tables whose parts do not fit are refused before they are read", "[schedule]") {
  sc::action_table t = sc::parse("F0 B0");
  t.offsets.back() = 50;
  CHECK(sc::check_table(t).what == sc::problem::malformed);
  t.offsets.back() = 1;
  CHECK(sc::check_table(t).what == sc::problem::malformed);
}

TEST_CASE("sizes beyond all bounds are refused", "[schedule]") {
  const int huge = 2000000000;
  CHECK_THROWS_WITH(sc::make_table(sc::zb_v<>{1}, huge),
                    "heddle: a schedule on 2000000000 pipeline ranks is too large");
  CHECK_THROWS_AS(sc::make_table(sc::dual_pipe<>{2}, huge), hd::schedule_error);
  CHECK_FALSE(sc::dual_pipe<>{8}.fits(huge));
  CHECK_FALSE(sc::dual_pipe_v<>{8}.fits(huge));
  CHECK_THROWS_WITH(sc::make_table(sc::interleaved<any, hd::dynamic>{1, 65536}, 65536),
                    "heddle: a schedule of 2147483647 stages and 1 microbatches is too large");
  CHECK_THROWS_AS(sc::make_table(sc::hanayo<any, hd::dynamic>{1, 32768}, 65536), hd::schedule_error);
  CHECK_THROWS_AS(sc::make_table(sc::one_f_one_b<>{huge}, 2), hd::schedule_error);
  CHECK_THROWS_WITH(sc::make_table(sc::v_half<>{1}, 65536),
                    "heddle: a V schedule of 1 microbatches on 65536 pipeline ranks is too large to be packed");
  CHECK_THROWS_AS(sc::make_table(sc::v_min<>{1}, 65536), hd::schedule_error);
}

TEST_CASE("list scheduling takes any stage map and any times", "[schedule]") {
  for (int m = 1; m <= 8; ++m) {
    const auto table = sc::make_table(uneven_listed<any>{m}, 2);
    CHECK(sc::check_table(table).ok());
    CHECK(emulator::run(sc::make_plan(table).view()) == emulator::serial(table));
    // Times are only compared with each other, and long ones take no longer to go through.
    const auto slow =
        sc::list_schedule(uneven_map{}, 2, m, oldest_first{.forward_time = 1 << 30, .backward_time = 1 << 30});
    const auto fast = sc::list_schedule(uneven_map{}, 2, m, oldest_first{.forward_time = 1, .backward_time = 1});
    CHECK(slow.actions == fast.actions);
  }
  STATIC_REQUIRE(sc::valid<uneven_listed<microbatches<4>>, hd::mesh<hd::axis<hd::pp, 2>>>);
  CHECK_THROWS_WITH(sc::list_schedule(uneven_map{}, 2, 2, oldest_first{.forward_time = 0}),
                    "heddle: list scheduling: a forward and a backward take at least one unit of time");
  CHECK_THROWS_WITH(sc::list_schedule(outside_map{}, 2, 2, oldest_first{}),
                    "heddle: list scheduling: stage 4 lives on rank 2, there are 2");
}

TEST_CASE("list scheduling refuses numbers that no table has", "[schedule]") {
  const auto list = [](const auto& map, int ranks, int m) { return sc::list_schedule(map, ranks, m, oldest_first{}); };
  CHECK_THROWS_WITH(list(sc::v_shape{}, 64, 1 << 26),
                    "heddle: list scheduling: no table has 67108864 microbatches on 128 stages in 1 chains on 64 "
                    "ranks");
  CHECK_THROWS_AS(list(sc::v_shape{}, 2000000000, 1), hd::schedule_error);
  CHECK_THROWS_AS(list(sc::v_shape{}, 0, 4), hd::schedule_error);
  CHECK_THROWS_AS(list(sc::v_shape{}, 2, -4), hd::schedule_error);
  CHECK_THROWS_AS(list(sc::bidirectional{}, 2, 1), hd::schedule_error);
  struct no_chain : sc::v_shape {
    int chains = 0;
  };
  CHECK_THROWS_AS(list(no_chain{}, 2, 4), hd::schedule_error);
  // It fits a table, but each of 2^24 actions would look at 2^16 stages.
  CHECK_THROWS_WITH(
      sc::make_table(sc::named("hanayo:32768", 1), 128),
      "heddle: list scheduling: 8388608 stages and 1 microbatches on 128 ranks take too long to schedule; "
      "actions times stages of a rank are 1099511627776, at most 2147483648");
}

TEST_CASE("a schedule whose number of actions is another one is refused", "[schedule]") {
  struct miscounted : sc::one_f_one_b<any> {
    int actions;
    miscounted(int m, int n) : sc::one_f_one_b<any>(m), actions(n) {}
    constexpr int action_count(int) const { return actions; }
  };
  CHECK(sc::make_table(miscounted{8, 64}, 4).view() == sc::make_table(sc::one_f_one_b<any>{8}, 4).view());
  CHECK_THROWS_WITH(sc::make_table(miscounted{8, 3}, 4),
                    "heddle: a schedule writes 64 actions, but its action_count says 3");
  CHECK_THROWS_WITH(sc::make_table(miscounted{8, 65}, 4),
                    "heddle: a schedule writes 64 actions, but its action_count says 65");
}

TEST_CASE("automatic schedules take maps of a fixed number of stages", "[schedule]") {
  const std::vector<sc::stage_cost> costs(5);
  const sc::automatic planned(6, uneven_map{}, costs, 0, std::vector<double>{9, 4});
  CHECK(planned.ranks() == 2);
  CHECK(sc::check_table(sc::make_table(planned, 2)).ok());
  CHECK(planned.outcome().makespan >= 6 * 3 * 3);  // the work of rank 0
  CHECK_THROWS_WITH(sc::automatic(6, sc::loop<2>{}, costs),
                    "heddle: automatic schedule: the map has 6 stages on 3 ranks in 1 chains; give the cost of each of "
                    "them, in one chain: there are 5");
}

TEST_CASE("automatic schedules refuse costs that no double holds", "[schedule]") {
  const auto plan = [](sc::stage_cost cost, double link = 0) {
    return sc::automatic(8, std::vector<sc::stage_cost>(4, cost), link).outcome().makespan;
  };
  const char* const much =
      "heddle: automatic schedule: the times or bytes of 8 microbatches are more than a double can hold";
  CHECK_THROWS_WITH(plan({1e308, 1e308, 1e308, 1, 0}), much);
  CHECK_THROWS_WITH(plan({1, 1, 1, 1e308, 0}), much);
  CHECK_THROWS_WITH(plan({1, 1, 1, 1, 0}, 1e307), much);
  CHECK_THROWS_WITH(sc::automatic(8, sc::v_shape{}, std::vector<sc::stage_cost>(4, {1e307, 1, 1, 1, 0})), much);
  CHECK(plan({1e290, 1e290, 1e290, 1e300, 0}) < 1e294);
}

TEST_CASE("a table that cannot be lowered is refused with rank and action", "[schedule]") {
  CHECK_THROWS_WITH(sc::lower(sc::parse("B0 F0 | F0 B0")),
                    "heddle: the schedule cannot be executed in order: rank 0, position 0 (0B0) waits for ever; "
                    "schedule::check_table says for what");
  // What lowering would count with is looked at before, whatever lowers.
  const auto refuses = [](const sc::action_table& t, const char* why) {
    CHECK_THROWS_WITH(sc::lower(t), why);
    CHECK_THROWS_WITH(sc::lower(t, passes::offload<>{}), why);
    CHECK_THROWS_WITH(sc::lower(t, passes::unshard{}, passes::place_transfers{}), why);
  };
  refuses(sc::parse("0F0 1F0 | 1B0 0B0"), "heddle: rank 1, position 0 (1B0): stage 1 lives on rank 0");
  sc::action_table t = sc::parse("F0 B0 | F0 B0");
  t.actions[3].stage = 2;
  refuses(t, "heddle: rank 1, position 1 (2B0): there is no stage 2");
  t.actions[3] = {kind::backward, 1, 1};
  refuses(t, "heddle: rank 1, position 1 (1B1): there is no microbatch 1 for this action");
  std::string text = "F999999 B999999\nSTAGES";
  for (int s = 0; s < 4295; ++s) text += " 0";
  const sc::action_table large = sc::parse(text);
  refuses(large, sc::to_string(sc::check_table(large)).c_str());
  CHECK_THROWS_WITH(
      sc::lower(sc::parse("F0 F1 B0 | F0 F1 B0 B1")),
      "heddle: the schedule cannot be lowered: stage 0 lacks 1 backwards; schedule::check_table says which");
}

TEST_CASE("a schedule known by name says its name where it does not fit", "[schedule]") {
  CHECK_THROWS_WITH(sc::make_table(sc::named("dual-pipe", 3), 4),
                    "heddle: the schedule \"dual-pipe\" cannot run 3 microbatches on 4 pipeline ranks; it can run 8 on "
                    "them");
  const auto says = [](const char* name, int microbatches, int ranks, const std::string& which) {
    CHECK_THROWS_WITH(sc::make_table(sc::named(name, microbatches), ranks), Catch::Matchers::EndsWith("; " + which));
  };
  says("chimera", 5, 4, "it can run 4 or 6 on them");
  says("chimera", 1, 2, "it can run 2 on them");
  says("chimera", 2, 3, "it can run them on 2 or 4 ranks");
  says("chimera", 5, 3, "it can run 4 or 6 on 2 ranks");
  says("chimera", 3, 1, "it can run 2 or 4 on 2 ranks");
  says("dual-pipe", 2147483647, 4, "it can run 2147483646 on them");
  says("dual-pipe-v", 7, 4, "it can run 8 on them");
  says("interleaved", 9, 4, "it can run 8 or 10 on them");
  says("zb-h1:2", 9, 4, "it can run 8 or 10 on them");
  // What it names, it runs; nothing in between does.
  for (const char* name : {"chimera", "dual-pipe", "dual-pipe-v", "interleaved", "zb-h1:2"})
    for (int ranks = 1; ranks <= 6; ++ranks)
      for (int m = 1; m <= 20; ++m) CHECK(sc::named(name, m).fits(ranks) == sc::named(name, 1).fits_with(m, ranks));
}

TEST_CASE("plans and budgets of static schedules take passes", "[schedule]") {
  STATIC_REQUIRE(sc::fits<when, four, half_recomputed, 400>);
  STATIC_REQUIRE_FALSE(sc::fits<when, four, half_recomputed, 399>);
  STATIC_REQUIRE(sc::fits<when, four, half_recomputed, 130, passes::recompute<>>);  // 3 kept in part, 1 in whole
  STATIC_REQUIRE_FALSE(sc::fits<when, four, half_recomputed, 129, passes::recompute<>>);
  STATIC_REQUIRE(sc::require_memory<when, four, half_recomputed, 130, passes::recompute<>>());
  STATIC_REQUIRE(sc::require<when, four, passes::recompute<>>());
  STATIC_REQUIRE(sc::deadlock_free<when, four, passes::unshard>);

  // Without a pass that places transfers the rest is lowered as usual.
  using by_compiler = sc::static_plan<when, 4, 1, passes::recompute<>, passes::unshard>;
  constexpr sc::plan_view made = by_compiler::view();
  CHECK(made.table.has(kind::recompute));
  CHECK(made.table.has(kind::unshard));
  CHECK(made.table.has(kind::reduce_gradient));
  CHECK(made.table.has_transfers());
  CHECK(sc::check_storage(made.table, made.storage).ok());
  CHECK(emulator::run(made) == emulator::serial(sc::table_of<when, 4>));
  const auto here = sc::plan_for(sc::one_f_one_b<>{8}, four{}, passes::recompute<>{}, passes::unshard{});
  CHECK(here.view().table == made.table);
  STATIC_REQUIRE(std::is_empty_v<by_compiler>);
  STATIC_REQUIRE(std::is_empty_v<decltype(sc::plan_for(when{}, four{}))>);
}

TEST_CASE("what is being stored when it is needed again counts once", "[schedule]") {
  struct {
    constexpr int activation_bytes(int) const { return 100; }
  } const model;
  CHECK(sc::peak_memory(sc::parse("F0 OFFLOAD0 F1 F2 RELOAD0 B0 B1 B2"), model).bytes == 300);
  // Behind another OFFLOAD it is gone, and has to come back.
  CHECK(sc::peak_memory(sc::parse("F0 OFFLOAD0 F1 OFFLOAD1 F2 B2 RELOAD1 B1 RELOAD0 B0"), model).bytes == 200);
}

TEST_CASE("automatic schedules for any costs are valid and within their limits", "[schedule]") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto between = [&](double low, double high) { return low + (high - low) * below(1000) / 1000.0; };
  for (int round = 0; round < 500; ++round) {
    const int p = 1 + below(6), m = 1 + below(12);
    std::vector<sc::stage_cost> costs(static_cast<std::size_t>(p));
    std::vector<double> limits;
    for (sc::stage_cost& c : costs) {
      c = {between(0, 3), between(0, 3), between(0, 3), between(0, 3), 0};
      c.released_by_input = c.bytes * (below(2) == 0 ? 0 : between(0, 1));
      limits.push_back(c.bytes * (below(3) == 0 ? 1 : between(1, 8)));
    }
    const sc::automatic planned(any{m}, costs, between(0, 1), limits);
    CAPTURE(round, p, m);
    REQUIRE(sc::check_table(sc::make_table(planned, p)).ok());
    for (std::size_t r = 0; r < limits.size(); ++r) REQUIRE(planned.outcome().peak_bytes[r] <= limits[r]);
  }
}

TEST_CASE("tables whose parts do not fit each other are refused, whatever they are given to", "[schedule]") {
  const sc::action_table good = sc::parse("F0 B0 | F0 B0");
  CHECK(sc::make_table(sc::tabled(good), 2).view() == good.view());
  std::vector<sc::action_table> bad(8, good);
  bad[0].form.chains = 3;
  bad[1].form.chains = 0;
  bad[2].form.chains = -1;
  bad[3].offsets = {0, 3, 2};
  bad[4].offsets.push_back(9);
  bad[5].rank_of_stage[1] = 7;
  bad[6].next = bad[6].previous = {5, -1};
  bad[7].microbatches = -1;
  for (const sc::action_table& t : bad) {
    CAPTURE(&t - bad.data());
    CHECK_FALSE(sc::check_table(t).ok());
    CHECK_THROWS_AS(sc::tabled(t), heddle::schedule_error);
    CHECK_THROWS_AS(sc::make_plan(t), heddle::schedule_error);
  }
  // One of a user's that says more chains than it has stages.
  struct odd : sc::one_f_one_b<any> {
    using sc::one_f_one_b<any>::one_f_one_b;
    constexpr sc::table_form form() const { return {.chains = 3}; }
  };
  CHECK_FALSE(sc::check_table(sc::make_table(odd{3}, 2)).ok());
  CHECK_THROWS_AS(sc::plan_for(odd{3}, heddle::mesh<heddle::axis<heddle::pp>>(2)), heddle::schedule_error);
}
