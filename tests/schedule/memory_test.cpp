#include <heddle/schedule/check/memory.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/text/parse.hpp>

#include "catch.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace hd = heddle;
namespace sc = heddle::schedule;
using hd::pp, hd::microbatches;
using kind = sc::action_kind;

namespace {

// One byte for each stage of a microbatch.
struct one_each {
  constexpr int activation_bytes(int) const { return 1; }
};
// Different numbers everywhere.
struct uneven {
  constexpr int activation_bytes(int stage) const { return 100 + 7 * stage; }
  constexpr int weight_input_bytes(int stage) const { return 40 + 3 * stage; }
  constexpr int resident_bytes(int stage) const { return 1000 * (stage + 1); }
  constexpr int boundary_bytes() const { return 10; }
};
struct everything {
  constexpr int activation_bytes(int) const { return 100; }
  constexpr int weight_input_bytes(int) const { return 60; }
  constexpr int recompute_bytes(int) const { return 10; }
  constexpr int gathered_bytes(int) const { return 1000; }
};
using four = hd::mesh<hd::axis<pp, 4>>;
using when = sc::one_f_one_b<microbatches<8>>;

// The same sum, from what each action leaves behind.
template <class M>
std::int64_t slow_peak(sc::table_view t, const M& model, int rank) {
  std::map<std::pair<int, int>, std::int64_t> live;
  std::int64_t always = 0, peak = 0;
  for (int s = 0; s < t.stages(); ++s)
    if constexpr (requires { model.resident_bytes(s); })
      if (t.rank_of(s) == rank) always += model.resident_bytes(s);
  for (const sc::action& a : t.list(rank)) {
    if (!sc::is_compute(a.kind)) continue;
    const std::pair<int, int> cell{a.stage, a.microbatch};
    if (a.kind == kind::forward) live[cell] = model.activation_bytes(a.stage);
    std::int64_t now = always;
    for (const auto& [c, bytes] : live) now += bytes;
    peak = (std::max)(peak, now);
    if (a.kind == kind::backward_input) live[cell] = sc::detail::weight_input_bytes(model, a.stage);
    if (a.kind == kind::backward || a.kind == kind::backward_weight) live.erase(cell);
  }
  return peak;
}

}  // namespace

TEST_CASE("peak bytes are those of the activations alive", "[schedule][law]") {
  for (const std::string_view name : sc::named::names)
    for (int p = 1; p <= 6; ++p)
      for (const int m : {p, 2 * p, 2 * p + 1, 4 * p}) {
        const sc::named schedule(name, m);
        if (!schedule.fits(p)) continue;
        CAPTURE(name, p, m);
        auto table = sc::make_table(schedule, p);
        for (int r = 0; r < p; ++r) CHECK(sc::peak_bytes(table, one_each{}, r) == sc::peak_live(table, r));
        for (sc::action& a : table.actions) a.overlaps_next = false;
        std::int64_t most = 0;
        for (int r = 0; r < p; ++r) {
          const auto peak = sc::peak_bytes(table, uneven{}, r);
          CHECK(peak == slow_peak(table, uneven{}, r));
          most = (std::max)(most, peak);
        }
        const auto need = sc::peak_memory(sc::table_view(table), uneven{});
        CHECK(need.bytes == most);
        CHECK(sc::peak_bytes(table, uneven{}, need.rank) == most);
      }
}

TEST_CASE("I gives back what W does not need", "[schedule]") {
  // Two microbatches at once: 100 + 100, or 40 left of the first and 100.
  CHECK(sc::peak_bytes(sc::parse("0F0 0F1 0I0 0I1 0W0 0W1"), everything{}, 0) == 200);
  CHECK(sc::peak_bytes(sc::parse("0F0 0I0 0F1 0I1 0W0 0W1"), everything{}, 0) == 160);
  CHECK(sc::peak_bytes(sc::parse("0F0 0I0 0W0 0F1 0I1 0W1"), everything{}, 0) == 100);
  CHECK(sc::peak_bytes(sc::parse("0F0 0B0 0F1 0B1"), everything{}, 0) == 100);
  CHECK(sc::peak_bytes(sc::parse("0F0 (0B0;0F1)OVERLAP_B_F 0B1"), everything{}, 0) == 200);
}

TEST_CASE("recomputed, offloaded and gathered bytes are counted where they are there", "[schedule]") {
  CHECK(sc::peak_bytes(sc::parse("0F0 0F1 0RECOMPUTE0 0B0 0RECOMPUTE1 0B1"), everything{}, 0) == 110);
  CHECK(sc::peak_bytes(sc::parse("0F0 0F1 0F2 0RECOMPUTE0 0B0 0RECOMPUTE1 0B1 0RECOMPUTE2 0B2"), everything{}, 0) ==
        120);
  // The first is stored while the second runs, and gone when the third begins.
  CHECK(sc::peak_bytes(sc::parse("0F0 0OFFLOAD0 0F1 0OFFLOAD1 0F2 0B2 0RELOAD1 0B1 0RELOAD0 0B0"), everything{}, 0) ==
        200);
  CHECK(sc::peak_bytes(sc::parse("0F0 0F1 0F2 0B2 0B1 0B0"), everything{}, 0) == 300);
  CHECK(sc::peak_bytes(sc::parse("0UNSHARD 0F0 0RESHARD 0UNSHARD 0B0 0RESHARD"), everything{}, 0) == 1100);
  CHECK(sc::peak_bytes(sc::parse("0F0 1F0 1B0 0B0", {.forward_only = false}), everything{}, 0) == 200);
  CHECK(sc::peak_bytes(sc::parse("0F0 0F1 0F2", {.forward_only = true}), everything{}, 0) == 100);
}

TEST_CASE("what I adds and what OFFLOAD can take away are counted as what they are", "[schedule]") {
  // Gradients that wait for W are there while I runs, beside what the other part of its pair still keeps.
  const struct {
    constexpr int activation_bytes(int) const { return 100; }
    constexpr int weight_input_bytes(int) const { return 150; }
  } deferring;
  const sc::memory_need need = sc::peak_memory(sc::parse("F0 F1 (I0;B1)OVERLAP_I_B W0"), deferring);
  CHECK(need.bytes == 250);
  CHECK(sc::to_text(need.where) == "0I0");
  CHECK(sc::peak_memory(sc::parse("F0 F1 I0 W0 B1"), deferring).bytes == 250);
  // No more than is there: the forward has dropped what is computed again.
  const struct {
    constexpr int activation_bytes(int) const { return 100; }
    constexpr int recompute_bytes(int) const { return 10; }
    constexpr int offload_bytes(int) const { return 80; }
  } both;
  const auto again = sc::parse("F0 OFFLOAD0 F1 OFFLOAD1 F2 F3 B3 B2 RELOAD1 RECOMPUTE1 B1 RELOAD0 RECOMPUTE0 B0");
  CHECK(sc::peak_memory(again, both).bytes == 210);  // of microbatch 1 while it is stored, and 2 and 3
  const auto kept = sc::parse("F0 OFFLOAD0 F1 OFFLOAD1 F2 F3 B3 B2 RELOAD1 B1 RELOAD0 B0");
  CHECK(sc::peak_memory(kept, both).bytes == 320);
}

TEST_CASE("a schedule fits or the message says who needs what", "[schedule]") {
  STATIC_REQUIRE(sc::fits<when, four, one_each, 4>);
  STATIC_REQUIRE_FALSE(sc::fits<when, four, one_each, 3>);
  STATIC_REQUIRE_FALSE(sc::fits<sc::gpipe<microbatches<8>>, four, one_each, 7>);
  STATIC_REQUIRE(sc::require_memory<when, four, one_each, 4>());
  STATIC_REQUIRE(sc::memory_of<when, 4, one_each>.rank == 0);
  const auto table = sc::make_table(when{}, 4);
  CHECK(sc::check_memory(sc::table_view(table), one_each{}, 4).ok());
  CHECK_NOTHROW(sc::require_memory(sc::table_view(table), one_each{}, 4));
  CHECK_THROWS_WITH(sc::require_memory(sc::table_view(table), one_each{}, 3),
                    "heddle: rank 0 needs 4 bytes at position 6 (0F3), 3 are allowed; take a schedule that keeps fewer "
                    "microbatches, smaller ones, or recompute or offload activations");
  // Position 6 of the list that runs, whether it was lowered before or not, as the compiler counts.
  const auto lowered = sc::lower(table);
  CHECK(sc::to_text(lowered.view().list(0)[6]) == "0F3");
  CHECK(sc::check_memory(sc::table_view(lowered), one_each{}, 3).position == 6);
  CHECK(sc::check_memory(sc::make_plan(table), one_each{}, 3).position == 6);
  STATIC_REQUIRE(sc::memory_of<when, 4, one_each>.position == 6);
  // With the boundary buffers of the plan.
  const auto plan = sc::make_plan(table);
  for (int r = 0; r < 4; ++r)
    CHECK(sc::peak_memory(plan.view(), uneven{}).bytes >= sc::peak_bytes(plan.table, uneven{}, r));
  CHECK(sc::peak_memory(plan.view(), uneven{}).bytes == 4000 + 121 + 10 * plan.view().storage.buffers(3));
  STATIC_REQUIRE(sc::memory_of<when, 4, uneven>.rank == 3);
  CHECK(sc::memory_of<when, 4, uneven>.bytes == sc::peak_memory(plan.view(), uneven{}).bytes);
}

TEST_CASE("a transformer's activations as published", "[schedule]") {
  // GPT-3's layer: s b h (34 + 5 a s / h) with s = 2048, b = 1, h = 12288, a = 96.
  constexpr sc::transformer_memory gpt3{.samples = 1, .sequence = 2048, .hidden = 12288, .heads = 96, .layers = 1};
  STATIC_REQUIRE(gpt3.activation_bytes(0) == 2048LL * 12288 * (34 + 80));
  STATIC_REQUIRE(gpt3.activation_bytes(0) - gpt3.weight_input_bytes(0) == 2048LL * 12288 * (2 + 80));
  STATIC_REQUIRE(sc::memory_model<sc::transformer_memory>);
}
