#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/lower/plan.hpp>

#include "catch.hpp"
#include "emulator.hpp"
#include "pairs.hpp"
#include "schedules.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <type_traits>

namespace hd = heddle;
namespace sc = heddle::schedule;
using hd::dp, hd::pp, hd::microbatches;

namespace {
using when = sc::one_f_one_b<microbatches<8>>;
using four = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 4>>;
using two = hd::mesh<hd::axis<pp, 2>>;

#if defined(__linux__)
// Whether this address lies in memory that the program cannot write.
bool is_read_only(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &begin, &end, rights) == 3 && begin <= wanted &&
        wanted < end)
      return rights[1] != 'w';
  }
  return false;
}
#endif
}  // namespace

TEST_CASE("storage keeps apart what is alive, and is as small as the peak", "[schedule][law]") {
  for (const int p : {1, 2, 3, 4, 8})
    for (const int m : {1, 3, p, 2 * p - 1, 4 * p})
      for (const auto& [name, table] : schedules::all_tables(p, m))
        for (const int in_flight : {0, 1, 3}) {
          CAPTURE(name, p, m, in_flight);
          const auto plan = sc::make_plan(table, in_flight);
          const sc::plan_view view = plan;
          for (int s = 0; s < view.table.stages(); ++s)
            REQUIRE(view.storage.slots(s) == sc::peak_live(view.table, view.table.rank_of(s), s));
          const auto result = emulator::run(view);
          REQUIRE(result.has_value());
          REQUIRE(*result == emulator::serial(view.table.stages(), m));
        }
}

TEST_CASE("a rank of 1F1B needs few boundary buffers, whatever the number of microbatches", "[schedule]") {
  for (int p = 2; p <= 8; ++p)
    for (int m = p; m <= 4 * p; ++m) {
      CAPTURE(p, m);
      const auto plan = sc::make_plan(sc::make_table(sc::one_f_one_b<>{m}, p), 0);
      for (int r = 0; r < p; ++r) CHECK(plan.view().storage.buffers(r) <= 4);
    }
  CHECK(sc::make_plan(sc::make_table(sc::gpipe<>{8}, 1)).view().storage.buffers(0) == 0);
  CHECK_THROWS_AS(sc::make_plan(sc::make_table(sc::gpipe<>{8}, 2), -1), heddle::schedule_error);
}

TEST_CASE("the parts of an overlapped pair share neither slots nor buffers", "[schedule][law][property]") {
  const auto seed = GENERATE(7u, Catch::Generators::take(2, Catch::Generators::random(0u, 4000000000u)));
  CAPTURE(seed);
  std::mt19937 random(seed);
  int pairs = 0;
  for (const int p : {1, 2, 3, 4})
    for (const int m : {2, p, 2 * p - 1, 2 * p})
      for (const auto& [name, plain] : schedules::all_tables(p, m))
        for (const int in_flight : {0, 1, 3}) {
          const auto table = schedules::with_pairs(plain, random);
          CAPTURE(name, p, m, in_flight, sc::to_text(table));
          sc::plan made{sc::lower(table), {}};
          made.memory = sc::assign_storage(made.table, in_flight);
          const sc::plan_view view = made;
          for (int k = 0; k < static_cast<int>(view.table.actions().size()); ++k) {
            if (!view.table[k].overlaps_next) continue;
            ++pairs;
            const sc::action_storage &a = view.storage[k], &b = view.storage[k + 1];
            for (const int x : {a.input, a.output})
              for (const int y : {b.input, b.output}) REQUIRE((x < 0 || x != y));
            REQUIRE((view.table[k].stage != view.table[k + 1].stage || a.saved != b.saved));
          }
          for (int s = 0; s < view.table.stages(); ++s)
            REQUIRE(view.storage.slots(s) == sc::peak_live(view.table, view.table.rank_of(s), s));
          const auto result = emulator::run(view);
          REQUIRE(result.has_value());
          REQUIRE(*result == emulator::serial(view.table.stages(), m));
        }
  CHECK(pairs > 500);
}

TEST_CASE("the emulator notices storage that is shared too early", "[schedule]") {
  auto plan = sc::make_plan(sc::make_table(sc::one_f_one_b<>{8}, 4));
  const auto whole = emulator::serial(4, 8);
  REQUIRE(emulator::run(plan.view()) == whole);
  auto broken = plan;  // all activations in one slot
  for (auto& a : broken.memory.actions)
    if (a.saved > 0) a.saved = 0;
  CHECK_FALSE(emulator::run(broken.view()) == whole);
  broken = plan;  // one boundary buffer fewer
  for (auto& a : broken.memory.actions) {
    if (a.input == 3) a.input = 2;
    if (a.output == 3) a.output = 2;
  }
  CHECK_FALSE(emulator::run(broken.view()) == whole);
  broken = plan;  // assigned for one send under way, run with two
  broken.memory.in_flight = 2;
  CHECK_FALSE(emulator::run(broken.view()) == whole);
}

TEST_CASE("schedules are checked by the compiler", "[schedule][law]") {
  STATIC_REQUIRE(sc::valid<when, four> && sc::deadlock_free<when, four>);
  STATIC_REQUIRE(sc::valid<when, hd::mesh<hd::axis<dp, 2>>>);  // no pp axis: one rank
  STATIC_REQUIRE(sc::deadlock_free<sc::gpipe<microbatches<1>>, hd::mesh<hd::axis<pp, 8>>>);
  STATIC_REQUIRE(sc::valid<when, hd::mesh<hd::axis<dp>, hd::axis<pp, 4>>>);  // only pp must be known
  STATIC_REQUIRE(sc::require<when, four>());
  // Large ones stay within what compilers evaluate by default.
  using sixteen = hd::mesh<hd::axis<pp, 16>>;
  STATIC_REQUIRE(sc::valid<sc::one_f_one_b<microbatches<64>>, sixteen>);
  STATIC_REQUIRE(sc::deadlock_free<sc::one_f_one_b<microbatches<64>>, sixteen>);
  STATIC_REQUIRE(sc::deadlock_free<sc::gpipe<microbatches<64>>, sixteen>);
  STATIC_REQUIRE(sc::deadlock_free<schedules::interleaved<2, microbatches<64>>, sixteen>);

  STATIC_REQUIRE_FALSE(sc::valid<sc::written<"F0 B0 | B0 F0">, two>);
  STATIC_REQUIRE_FALSE(sc::deadlock_free<sc::written<"F0 B0 | B0 F0">, two>);
  STATIC_REQUIRE_FALSE(sc::valid<sc::written<"F0 B0 | F0 B0">, four>);  // two lists, four ranks
  using misfit = schedules::interleaved<2, microbatches<6>>;
  STATIC_REQUIRE(sc::valid<misfit, two>);
  STATIC_REQUIRE_FALSE(sc::valid<misfit, four>);
  STATIC_REQUIRE(sc::report_of<misfit, 4>.what == sc::problem::microbatch_count);

  // In order, but both ranks send first where sends block.
  using crossed =
      sc::written<"F0 SEND_F0 F1 SEND_F1 RECV_B0 B0 RECV_B1 B1 | RECV_F0 F0 B0 SEND_B0 RECV_F1 F1 B1 SEND_B1">;
  STATIC_REQUIRE(sc::valid<crossed, two>);
  STATIC_REQUIRE_FALSE(sc::deadlock_free<crossed, two>);
  STATIC_REQUIRE(sc::lowered_report_of<crossed, 2>.position == 3);
}

TEST_CASE("a plan is constants where all is static, and the same at run time", "[schedule][law]") {
  const auto fixed = sc::plan_for(when{}, four{});
  STATIC_REQUIRE(std::is_empty_v<decltype(fixed)>);
  const auto at_run_time = sc::plan_for(sc::one_f_one_b<>{8}, hd::mesh<hd::axis<dp>, hd::axis<pp>>{2, 4});
  const auto mixed = sc::plan_for(when{}, hd::mesh<hd::axis<dp>, hd::axis<pp>>{2, 4});
  for (const sc::plan_view& other : {at_run_time.view(), mixed.view()}) {
    const sc::plan_view view = fixed;
    CHECK(view.table == other.table);
    CHECK(std::equal(view.storage.actions().begin(), view.storage.actions().end(), other.storage.actions().begin(),
                     other.storage.actions().end()));
    for (int r = 0; r < 4; ++r) {
      CHECK(view.storage.buffers(r) == other.storage.buffers(r));
      CHECK(view.storage.slots(r) == other.storage.slots(r));
      CHECK(view.storage.slots(r) == 4 - r);
    }
  }
#if defined(__linux__)
  CHECK(is_read_only(fixed.view().table.actions().data()));
  CHECK(is_read_only(fixed.view().storage.actions().data()));
  CHECK_FALSE(is_read_only(at_run_time.table.actions.data()));
#endif
  CHECK_THROWS_AS(sc::make_plan(sc::parse("0F0 0B0 0F1 0B1 | 1F0 1F1 1B0 1B1")), heddle::schedule_error);
  // A table that comes with its transfers is run as it is, if it can be.
  const auto lowered = sc::lower(sc::make_table<when>(4));
  CHECK(sc::make_plan(lowered).table.view() == lowered.view());
  CHECK_THROWS_WITH(sc::make_plan(schedules::naive(sc::make_table<when>(4))), Catch::Matchers::Contains("deadlock"));
}
