// tests/train/search_on_paper_test.cpp: a search whose costs are ranks on paper says of a strategy what explain says of it.
#include "catch.hpp"
#include "paper_plans.hpp"

#include <heddle/mesh/parse.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/explain.hpp>
#include <heddle/train/search_on_paper.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {
namespace search_on_paper_test {

namespace hd = heddle;
namespace md = heddle::model;
namespace tr = heddle::train;
using Catch::Matchers::Contains;
using namespace paper_plans;

tr::cluster eight_devices(std::int64_t memory) {
  return {.devices = 8,
          .memory = memory,
          .device = {.flops = 1e14, .bytes_per_second = 1e12, .efficiency = 0.5, .launch_seconds = 1e-6},
          .levels = {{"node", 4, 1e11, 1e-6}, {"network", 8, 1e10, 1e-5}}};
}
tr::options<md::llama_config> small_llama() {
  return options_of({.layers = 8, .heads = 4, .kv_heads = 4, .width = 64, .ffn = 176, .context = 32, .vocabulary = 320},
                    16, 1, "1f1b");
}
// By hand, not through a choice.
tr::explanation explained(const tr::strategy_choice& c, const tr::cluster& on) {
  auto o = small_llama();
  o.schedule = c.schedule;
  o.microbatches = c.microbatches;
  o.recompute = c.recompute;
  o.layers_per_stage = c.layers;
  const auto mesh = hd::parse_mesh<mesh_type>(c.mesh);
  return tr::detail::with_zero_stage(c.zero,
                                     [&]<int Zero>() { return tr::explain<model, strategy<Zero>>(o, mesh, on); });
}

TEST_CASE("what a search on paper finds is what explain says", "[train][search_on_paper]") {
  for (const std::int64_t memory : {1'700'000, 3'000'000}) {
    CAPTURE(memory);
    const tr::cluster on = eight_devices(memory);
    const tr::search_result found = tr::search_on_paper<model, strategy>(small_llama(), on);
    REQUIRE(found.best.size() > 5);
    double before = 0;
    for (const tr::searched_strategy& s : found.best) {
      CAPTURE(to_string(s.choice));
      const tr::explanation e = explained(s.choice, on);
      CHECK(s.seconds == e.seconds);
      CHECK(s.bytes == e.fullest().member.memory->total());
      CHECK(s.bubble == e.bubble);
      CHECK(s.mfu == e.mfu());
      CHECK(s.tokens_per_second == e.tokens_per_second());
      CHECK(e.fits());
      CHECK(s.seconds >= before);
      before = s.seconds;
      CHECK(tr::read_strategy(to_string(s.choice)) == s.choice);
    }
    REQUIRE(!found.nearest.empty());
    for (const tr::refused_strategy& r : found.nearest) {
      CAPTURE(to_string(r.choice));
      CHECK(r.reason.amount == static_cast<double>(explained(r.choice, on).missing_bytes()));
      CHECK(r.reason.amount > 0);
      CHECK_THAT(r.reason.text, Contains("the fullest rank needs"));
    }
    std::int64_t refused = 0;
    for (const std::int64_t n : found.refused) refused += n;
    CHECK(found.scored + refused == found.candidates);
    CHECK_THAT(to_string(found), Contains("tokens/s") && Contains("MFU"));
  }
}

TEST_CASE("where nothing fits a search on paper tells the missing bytes", "[train][search_on_paper]") {
  const tr::cluster on = eight_devices(20'000);
  const tr::search_result found = tr::search_on_paper<model, strategy>(small_llama(), on);
  CHECK(found.best.empty());
  CHECK(found.scored == 0);
  REQUIRE(found.nearest.size() == 3);
  for (const tr::refused_strategy& r : found.nearest)
    CHECK(r.reason.amount == static_cast<double>(explained(r.choice, on).missing_bytes()));
  CHECK_THAT(to_string(found), Contains("no strategy fits") && Contains("nearest: "));
  // Heads that tp does not divide.
  CHECK(found.refused[static_cast<std::size_t>(tr::reason_kind::divides)] > 0);
}

// The sums of a search for one mesh: what `exact` does not correct.
tr::search_result sums_of(const mesh_type& mesh, const char* schedule, const tr::cluster& on, bool all_again) {
  const auto o = small_llama();
  tr::search_space space{.ranks = mesh.size(), .layers = o.model.layers, .batch = o.batch};
  space.device_bytes = on.memory;
  space.schedules = {schedule};
  space.zero = {1};
  space.most_samples = 2;
  space.simulated = 100;
  space.nearest = 0;
  return tr::search(space, [&](const tr::search_point& p) {
    const auto n = mesh.extents();
    if (p.extent("dp") != n[0] || p.extent("pp") != n[1] || p.extent("tp") != n[2]) {
      tr::search_costs other;
      other.refused = tr::search_reason{tr::reason_kind::divides, "another mesh"};
      return other;
    }
    tr::search_costs costs = tr::paper_costs<model, strategy<1>>(o, mesh, on, p.samples);
    if (all_again) {  // as if blocks could not be kept: what a block saves is more than a device has
      const auto more = on.memory - costs.layers.front().saved_bytes;
      costs.layers.front().saved_bytes += more;
    }
    return costs;
  });
}

TEST_CASE("costs on paper add up to what explain says of stages alone on their ranks", "[train][search_on_paper]") {
  const tr::cluster on = eight_devices(100'000'000);
  for (const char* schedule : {"1f1b", "zb-h1"})
    for (const bool again : {false, true})
      for (const char* extents :
           {"dp=2,pp=2,tp=2", "dp=4,pp=2,tp=1", "dp=1,pp=4,tp=2", "dp=2,pp=1,tp=4", "dp=8,pp=1,tp=1"}) {
        CAPTURE(extents, schedule, again);
        const tr::search_result found = sums_of(hd::parse_mesh<mesh_type>(extents), schedule, on, again);
        REQUIRE(!found.best.empty());
        for (const tr::searched_strategy& s : found.best) {
          CAPTURE(to_string(s.choice));
          CHECK(s.choice.recompute == (again ? "full" : "none"));
          const tr::explanation e = explained(s.choice, on);
          const auto bytes = static_cast<double>(e.fullest().member.memory->total());
          CHECK(std::abs(static_cast<double>(s.bytes) - bytes) <= 0.02 * bytes);
          // The last block of a stage is not computed again where its backward follows at once.
          CHECK(std::abs(s.seconds - e.seconds) <= (again ? 0.06 : 0.05) * e.seconds);
        }
      }
}

}  // namespace search_on_paper_test
}  // namespace
