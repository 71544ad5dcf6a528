#include <heddle/schedule/check/memory.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/lower/passes.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/check/validate_storage.hpp>

#include "catch.hpp"
#include "emulator.hpp"
#include "mutants.hpp"
#include "pairs.hpp"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <string_view>

namespace sc = heddle::schedule;
namespace passes = heddle::schedule::passes;
using heddle::microbatches;
using kind = sc::action_kind;

namespace {

constexpr sc::transfers modes[] = {sc::transfers::asynchronous, sc::transfers::buffered, sc::transfers::grouped,
                                   sc::transfers::rendezvous};

struct odd_microbatches {
  constexpr bool operator()(int, int microbatch) const { return microbatch % 2 == 1; }
};

template <class... P>
std::string text(std::string_view t, const P&... p) {
  return sc::to_text(sc::lower(sc::table_view(sc::parse(t)), p...));
}

}  // namespace

TEST_CASE("each pass places what it says", "[schedule]") {
  const std::string_view list = "0F0 0F1 0I0 0W0 0I1 0W1";
  CHECK(text(list, passes::merge_backward{}) == "0F0 0F1 0B0 0B1\n");
  CHECK(text("0F0 0I0 0W0 | 1F0 1I0 1W0", passes::merge_backward{}) == "0F0 0B0\n1F0 1I0 1W0\n");
  CHECK(text("0F0 0I0 0W0 | 1F0 1I0 1W0", passes::merge_backward{.across_ranks = true}) == "0F0 0B0\n1F0 1B0\n");
  CHECK(text(list, passes::reduce_gradients{}) == "0F0 0F1 0I0 0W0 0I1 0W1 0REDUCE_GRAD\n");
  CHECK(text("0F0 1F0 1B0 0B0", passes::reduce_gradients{}) == "0F0 1F0 1B0 1REDUCE_GRAD 0B0 0REDUCE_GRAD\n");
  // Sends go first: another rank waits.
  CHECK(text("F0 B0 | F0 B0", passes::place_transfers{}, passes::reduce_gradients{}) ==
        "0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE_GRAD\n1RECV_F0 1F0 1B0 1SEND_B0 1REDUCE_GRAD\n");
  CHECK(text(list, passes::recompute<>{}) == "0F0 0F1 0RECOMPUTE0 0I0 0W0 0RECOMPUTE1 0I1 0W1\n");
  CHECK(text(list, passes::recompute<odd_microbatches>{}) == "0F0 0F1 0I0 0W0 0RECOMPUTE1 0I1 0W1\n");
  CHECK(text("F0 F1 B0 B1 | F0 (1F1;1B0)OVERLAP_F_B B1", passes::recompute<>{}) ==
        "0F0 0F1 0RECOMPUTE0 0B0 0RECOMPUTE1 0B1\n1F0 1RECOMPUTE0 (1F1;1B0)OVERLAP_F_B 1RECOMPUTE1 1B1\n");
  CHECK(text("0F0 0F1 0F2 0F3 0B3 0B2 0B1 0B0", passes::offload<>{.ahead = 2}) ==
        "0F0 0OFFLOAD0 0F1 0OFFLOAD1 0F2 0F3 0RELOAD1 0B3 0RELOAD0 0B2 0B1 0B0\n");
  CHECK(text("0F0 0F1 0F2 0F3 0B3 0B2 0B1 0B0", passes::offload<>{.ahead = 1}) ==
        "0F0 0OFFLOAD0 0F1 0OFFLOAD1 0F2 0OFFLOAD2 0F3 0RELOAD2 0B3 0RELOAD1 0B2 0RELOAD0 0B1 0B0\n");
  CHECK(text("F0 F1 F2 B2 B1 B0 | F0 F1 F2 B2 B1 B0", passes::place_transfers{}, passes::offload<>{.ahead = 1})
            .substr(0, 40) == "0F0 0SEND_F0 0OFFLOAD0 0F1 0SEND_F1 0OFF");
  CHECK(text("0F0 1F0 0F1 1F1 1B1 0B1 1B0 0B0", passes::unshard{.resident = 1}) ==
        "0UNSHARD 0F0 0RESHARD 1UNSHARD 1F0 1RESHARD 0UNSHARD 0F1 0RESHARD 1UNSHARD 1F1 1B1 1RESHARD 0UNSHARD 0B1 "
        "0RESHARD 1UNSHARD 1B0 1RESHARD 0UNSHARD 0B0 0RESHARD\n");
  CHECK(text("0F0 1F0 0F1 1F1 1B1 0B1 1B0 0B0", passes::unshard{.resident = 2}) ==
        "0UNSHARD 1UNSHARD 0F0 1F0 0F1 1F1 1B1 0B1 1B0 1RESHARD 0B0 0RESHARD\n");
  CHECK(text("0F0 1F0 2F0 2B0 1B0 0B0", passes::unshard{.resident = 2}) ==
        "0UNSHARD 1UNSHARD 0F0 0RESHARD 2UNSHARD 1F0 2F0 2B0 2RESHARD 0UNSHARD 1B0 1RESHARD 0B0 0RESHARD\n");
  CHECK(text("0F0 1F0 1B0 0B0", passes::reduce_gradients{}, passes::optimizer{}) ==
        "0F0 1F0 1B0 1REDUCE_GRAD 0B0 0REDUCE_GRAD 0OPTIM 1OPTIM\n");
  CHECK(text("0F0 1F0 1B0 0B0", passes::reduce_gradients{}, passes::optimizer{.post_validation = true}) ==
        "0F0 1F0 1B0 1REDUCE_GRAD 1OPTIM 0B0 0REDUCE_GRAD 0OPTIM\n");
  CHECK(text("0F0 1F0 1B0 0B0", passes::optimizer{.post_validation = true}) == "0F0 1F0 1B0 1OPTIM 0B0 0OPTIM\n");
}

TEST_CASE("passes refuse what they cannot do", "[schedule]") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(text("0F0 0B0", passes::optimizer{}, passes::optimizer{}),
                    "heddle: the table to lower has OPTIM already");
  CHECK_THROWS_WITH(text("0F0 0B0", passes::reduce_gradients{}, passes::reduce_gradients{}), Contains("REDUCE_GRAD"));
  CHECK_THROWS_WITH(text("0F0 0B0", passes::unshard{0}), Contains("at least one stage is resident, not 0"));
  CHECK_THROWS_WITH(text("0F0 0B0", passes::offload<>{.ahead = 0}), Contains("at least one computation ahead, not 0"));
  CHECK_THROWS_WITH(text("0F0 1F0 0F1 (1F1;0B0)OVERLAP_F_B 1B0 1B1 0B1", passes::unshard{1}),
                    Contains("let `resident` be 2 or more"));
}

TEST_CASE("lowered by any row of passes, every schedule is valid and computes the same", "[schedule][law][property]") {
  const auto seed = GENERATE(9u, Catch::Generators::take(1, Catch::Generators::random(0u, 4000000000u)));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (const std::string_view name : sc::named::names)
    for (int p = 1; p <= 4; ++p)
      for (const int m : {p, 2 * p, 2 * p + 2}) {
        const sc::named when(name, m);
        if (!when.fits(p)) continue;
        sc::action_table t = sc::make_table(when, p);
        std::string row;
        if (below(2)) t = schedules::with_pairs(t, random, 0.3), row += "pairs ";
        const auto apply = [&](const auto& pass, const char* what) { t = sc::lower(t, pass), row += what; };
        if (below(2)) apply(passes::merge_backward{below(2) == 1}, "merge ");
        if (below(2)) apply(passes::recompute<>{}, "recompute ");
        if (below(2)) apply(passes::offload<>{.ahead = 1 + below(4)}, "offload ");
        if (below(2)) apply(passes::unshard{2 + below(2)}, "unshard ");
        const bool first = below(2) == 1;
        if (first) apply(passes::reduce_gradients{}, "reduce ");
        apply(passes::place_transfers{}, "place ");
        if (!first && below(2)) apply(passes::reduce_gradients{}, "reduce ");
        if (below(2)) apply(passes::optimizer{.post_validation = below(2) == 1}, "optimizer ");
        CAPTURE(name, p, m, row, sc::to_text(t), sc::to_string(sc::check_table(t)));
        const auto whole = emulator::serial(t);
        REQUIRE(sc::check_table(t).ok());
        for (const auto mode : modes) {
          REQUIRE(sc::check_table(t, mode).ok());
          REQUIRE(emulator::run(t, mode) == whole);
        }
        const auto memory = sc::assign_storage(t, below(3));
        REQUIRE(sc::check_storage(t, memory).ok());
        REQUIRE(emulator::run(sc::plan_view{t, memory}) == whole);
        // Mistakes in such tables are found, too.
        for (int trial = 0; trial < 10; ++trial) {
          const auto bad = schedules::mutant(t, random);
          for (const auto mode : modes) {
            CAPTURE(static_cast<int>(mode), sc::to_text(bad), sc::to_string(sc::check_table(bad, mode)));
            if (sc::check_table(bad, mode).ok()) REQUIRE(emulator::run(bad, mode) == whole);
          }
        }
      }
}

TEST_CASE("no more stages are gathered than allowed", "[schedule][law]") {
  for (const std::string_view name : {"interleaved:4", "breadth-first:3", "zb-v", "1f1b"})
    for (const int resident : {1, 2, 3})
      for (const int p : {2, 4}) {
        const auto t = sc::lower(sc::make_table(sc::named(name, 2 * p), p), passes::unshard{resident});
        CAPTURE(name, resident, p, sc::to_text(t));
        REQUIRE(sc::check_table(t).ok());
        for (int r = 0; r < p; ++r) {
          std::set<int> gathered;
          std::size_t most = 0;
          for (const sc::action& a : t.view().list(r)) {
            if (a.kind == kind::unshard) gathered.insert(a.stage);
            if (a.kind == kind::reshard) gathered.erase(a.stage);
            most = (std::max)(most, gathered.size());
          }
          CHECK(most <= static_cast<std::size_t>(resident));
          CHECK(gathered.empty());
        }
      }
  // Breadth-first gathers each chunk once per direction; depth-first many times.
  const auto gathers = [](std::string_view name) {
    const auto t = sc::lower(sc::make_table(sc::named(name, 16), 4), passes::unshard{1});
    int n = 0;
    for (const sc::action& a : t.view().list(1)) n += a.kind == kind::unshard ? 1 : 0;
    return n;
  };
  CHECK(gathers("breadth-first:4") == 7);  // the last chunk stays between its forwards and its backwards
  CHECK(gathers("interleaved:4") > 30);
}

TEST_CASE("offload and recompute lower the peak of activations", "[schedule]") {
  struct model {
    constexpr int activation_bytes(int) const { return 100; }
    constexpr int recompute_bytes(int) const { return 10; }
  };
  const auto table = sc::make_table(sc::gpipe<>{8}, 2);
  CHECK(sc::peak_bytes(table, model{}, 0) == 800);
  CHECK(sc::peak_bytes(sc::lower(table, passes::recompute<>{}), model{}, 0) == 7 * 10 + 100);
  CHECK(sc::peak_bytes(sc::lower(table, passes::offload<>{.ahead = 1}), model{}, 0) < 800);
}

TEST_CASE("passes run at compile time", "[schedule]") {
  using when = sc::one_f_one_b<microbatches<8>>;
  constexpr sc::table_view t = sc::lowered_by<when, 4, passes::recompute<>, passes::unshard, passes::place_transfers,
                                              passes::reduce_gradients, passes::optimizer>;
  STATIC_REQUIRE(sc::check_table(t).ok());
  CHECK(t == sc::lower(sc::make_table<when>(4), passes::recompute<>{}, passes::unshard{}, passes::place_transfers{},
                       passes::reduce_gradients{}, passes::optimizer{})
                 .view());
  // The default lowering is a row of passes, but for I and W that stay apart around a send.
  CHECK(sc::lower(sc::make_table<when>(4)).view() == sc::lower(sc::make_table<when>(4), passes::merge_backward{},
                                                               passes::place_transfers{}, passes::reduce_gradients{})
                                                         .view());
}
