// tests/train/atomized_test.cpp: a run cut into pieces equals the whole run, also when its layout changes between cuts.
#include "folder.hpp"
#include "runs.hpp"

#include "catch.hpp"
#include "transport.hpp"

#include <heddle/core/random.hpp>
#include <heddle/train/activations/bytes.hpp>
#include <heddle/train/atomized.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

using namespace train_test;
namespace hd = heddle;

namespace {

struct layout {
  std::string mesh;
  std::string schedule = "1f1b";
  int zero = 1;
  int microbatches = 2;
};

// `steps` steps in pieces of random lengths, each on the next of the layouts, a save and a resume between any two.
outcome in_pieces(const setup& whole, const std::vector<layout>& layouts, std::uint64_t seed, int& pieces) {
  const folder saves("atomized-cut");
  const hd::counter_random random(seed, 2);
  outcome all;
  pieces = 0;
  for (std::int64_t done = 0; done < whole.steps; ++pieces) {
    const auto k = static_cast<std::uint64_t>(pieces);
    const layout& here = layouts[k % layouts.size()];
    setup piece = whole;
    piece.mesh = here.mesh;
    piece.schedule = here.schedule;
    piece.zero = here.zero;
    piece.microbatches = here.microbatches;
    piece.steps =
        std::min(whole.steps,
                 done + 1 + static_cast<std::int64_t>(random.integer(k) % static_cast<std::uint64_t>(whole.steps / 3)));
    if (done > 0) piece.resume_from = saves.path.string();
    piece.save_to = saves.path.string();
    outcome one = train_f64(piece);
    REQUIRE(one.first_step == done);
    all.losses.insert(all.losses.end(), one.losses.begin(), one.losses.end());
    all.norms.insert(all.norms.end(), one.norms.begin(), one.norms.end());
    all.weights = std::move(one.weights);
    done = piece.steps;
  }
  return all;
}

setup small(std::int64_t steps) {
  setup s;
  s.layers = 4;
  s.width = 8;
  s.heads = 2;
  s.context = 4;
  s.vocabulary = 17;
  s.batch = 4;
  s.steps = steps;
  return s;
}

// A trainer of one rank whose steps and saves take the time of a made-up clock.
struct made_up_clock {
  std::int64_t now = 0;
  std::int64_t operator()() const { return now; }
};
struct one_rank {
  struct group {
    template <class T>
    void broadcast(std::span<T>, int) {}
    template <class T, class Op>
    void all_reduce(std::span<T>, Op) {}
  };
  group& control() { return group_; }
  group group_;
};
struct stage_of_bytes {
  using scalar = double;
  std::vector<double> w = std::vector<double>(100);
  std::span<double> weights() { return w; }
  std::span<double> gradients() { return w; }
};
struct state_of_bytes {
  std::int64_t state_bytes() const { return 1600; }
};
struct made_up_trainer {
  struct settings {
    std::int64_t steps = 100;
  };
  made_up_clock& clock;
  std::vector<double> step_seconds;  // of the next steps
  settings options_{};
  std::int64_t done = 0;
  one_rank world{};
  stage_of_bytes stage_{};
  state_of_bytes state{};

  one_rank& ranks() { return world; }
  const settings& options() const { return options_; }
  std::int64_t steps_done() const { return done; }
  int stages() const { return 2; }
  stage_of_bytes& stage(int) { return stage_; }
  state_of_bytes& optimizer_state(int) { return state; }
  hd::train::activation_bytes activation_bytes() const { return {.saved = 3000, .waiting = 200, .scratch = 300}; }
  std::int64_t boundary_bytes() const { return 500; }
  hd::train::step_report step(int /*data*/) {
    const auto k = static_cast<std::size_t>(done++) % step_seconds.size();
    clock.now += static_cast<std::int64_t>(step_seconds[k] * 1e9);
    return {};
  }
};

void check_same_layout(std::int64_t steps) {
  const std::uint64_t seed = 20251121;
  INFO("seed " << seed);
  for (const char* mesh : {"dp=2", "pp=2,tp=2", "pp=3"}) {
    if (!fits(mesh)) continue;
    INFO("mesh '" << mesh << "'");
    setup s = small(steps);
    s.mesh = mesh;
    const outcome whole = train_f64(s);
    int pieces = 0;
    const outcome cut = in_pieces(s, {{mesh}}, seed, pieces);
    CHECK(pieces >= 5);
    CHECK(cut.losses == whole.losses);
    CHECK(cut.norms == whole.norms);
    CHECK(cut.weights == whole.weights);
  }
}

void check_same_bits(std::int64_t steps) {
  const std::uint64_t seed = 20251122;
  INFO("seed " << seed);
  // Neither the stages nor who keeps the moments change a sum. Without clipping: the order in which ranks' shares of the
  // norm are added does depend on the stages. A single rank adds the two gradients of the tied embedding in another order.
  const std::vector<std::vector<layout>> all{
      {{"pp=2"}, {"pp=4", "gpipe", 0}, {"pp=3"}, {"pp=2", "interleaved"}, {"pp=4", "zb-h1"}, {"pp=2", "zb-v", 0}},
      {{"dp=2,pp=2"}, {"dp=2,pp=2", "gpipe", 0}, {"dp=2,pp=2", "interleaved"}}};
  for (const auto& layouts : all) {
    if (!fits("pp=4")) continue;
    INFO("from mesh '" << layouts[0].mesh << "'");
    setup s = small(steps);
    s.clip = 1e300;
    s.mesh = layouts[0].mesh;
    const outcome whole = train_f64(s);
    int pieces = 0;
    const outcome cut = in_pieces(s, layouts, seed, pieces);
    CHECK(pieces >= 5);
    CHECK(cut.losses == whole.losses);
    CHECK(cut.weights == whole.weights);
  }
}

void check_other_layouts(std::int64_t steps) {
  if (!fits("dp=4")) return;
  const std::uint64_t seed = 20251123;
  INFO("seed " << seed);
  setup s = small(steps);
  s.mesh = "dp=2";
  const outcome whole = train_f64(s);
  int pieces = 0;
  const std::vector<layout> layouts{{"dp=2"}, {"pp=2,tp=2", "zb-h1"}, {"", "gpipe", 0, 1}, {"dp=4", "1f1b", 1, 1},
                                    {"tp=2"}, {"pp=2", "interleaved"}};
  const outcome cut = in_pieces(s, layouts, seed, pieces);
  REQUIRE(cut.losses.size() == whole.losses.size());
  for (std::size_t i = 0; i < whole.losses.size(); ++i) CHECK(cut.losses[i] == Approx(whole.losses[i]).epsilon(1e-10));
  CHECK(largest_error(cut.weights, whole.weights) <= 1e-10);
}

}  // namespace

TEST_CASE("a run in random pieces equals the whole run bit for bit", "[train][sja][ranks]") {
  check_same_layout(30);
}
TEST_CASE("pieces with other stages, schedules and ZeRO stages give the same bits", "[train][sja][ranks]") {
  check_same_bits(30);
}
TEST_CASE("pieces on any other layout go on with the same training", "[train][sja][ranks]") {
  check_other_layouts(30);
}
TEST_CASE("a hundred steps in random pieces, on one layout and on others", "[train][sja][ranks][slow]") {
  check_same_layout(100);
  check_same_bits(100);
  check_other_layouts(100);
}

TEST_CASE("a piece stops while there is time to save", "[train][sja]") {
  made_up_clock clock;
  made_up_trainer trainer{clock, {1}};
  int saves = 0;
  const auto piece = [&](const hd::train::piece_limits& limits) {
    return hd::train::run_piece(
        trainer, 0, limits, [&](auto&) { clock.now += 5'000'000'000; },
        [&](auto&) {
          clock.now += 4'000'000'000;
          ++saves;
        },
        hd::train::quiet{}, [&] { return clock(); });
  };
  SECTION("with time enough it does all steps") {
    const auto r = piece({.steps = 30, .seconds = 40, .finish = 5});
    CHECK(r.steps == 30);
    CHECK(r.set_up == 5);
    CHECK(r.seconds == 30);
    CHECK(r.finish == 4);
    CHECK_FALSE(r.stopped);
    CHECK(r.bytes == 4000 + 2 * (800 + 800 + 1600));
    const auto u = r.usage(7, 3);
    CHECK(u.window == 7);
    CHECK(u.job == 3);
    CHECK(u.units == 30);
    CHECK(u.seconds == 30);
    CHECK(u.bytes == 10400);
    CHECK_FALSE(u.overran);
    CHECK(u.set_up == 5);
    CHECK(u.finish == 4);
    CHECK(r.length() == 39);
  }
  SECTION("slow steps make it stop early, and what it did is saved") {
    trainer.step_seconds = {1, 1, 3};
    const auto r = piece({.steps = 30, .seconds = 40, .finish = 5});
    // 5 s, then 1, 1, 3, 1, ...: after 17 steps 32 s have gone, and one of 3 s more would end the save at 40 exactly.
    CHECK(r.steps == 18);
    CHECK(r.stopped);
    CHECK(saves == 1);
    CHECK(clock.now <= 40'000'000'000);
  }
  SECTION("no step is begun that cannot be saved, and nothing is then") {
    const auto r = piece({.steps = 30, .seconds = 9, .finish = 5});
    CHECK(r.steps == 0);
    CHECK(r.stopped);
    CHECK(saves == 0);
  }
  SECTION("starting the ranks counts if it is told when that began") {
    clock.now = 7'000'000'000;
    const auto r = piece({.steps = 30, .seconds = 40, .finish = 5, .began = 4'000'000'000});
    CHECK(r.set_up == 8);
    CHECK(r.steps == 27);
    CHECK(r.stopped);
  }
  SECTION("a run ends where its options say") {
    trainer.done = 90;
    const auto r = piece({.steps = 30});
    CHECK(r.first == 90);
    CHECK(r.steps == 10);
    CHECK(piece({.steps = 30}).steps == 0);
    trainer.done = 95;
    CHECK(piece({.steps = (std::numeric_limits<std::int64_t>::max)()}).steps == 5);
    trainer.done = 120;
    CHECK(piece({.steps = 30}).steps == 0);
    CHECK(saves == 2);
    CHECK_THROWS_AS(piece({.steps = -1}), hd::config_error);
    CHECK_THROWS_AS(piece({.seconds = std::numeric_limits<double>::quiet_NaN()}), hd::config_error);
    CHECK_THROWS_AS(piece({.finish = -1}), hd::config_error);
  }
}

TEST_CASE("the profile of a run is its steps and the memory of its fullest rank", "[train][sja]") {
  made_up_clock clock;
  made_up_trainer trainer{clock, {1}};
  const auto p = hd::train::resource_profile_of(trainer, {.step = 2, .step_sd = 0.1, .set_up = 3, .finish = 4});
  CHECK(p.unit == 2);
  CHECK(p.unit_sd == 0.1);
  CHECK(p.set_up == 3);
  CHECK(p.finish == 4);
  REQUIRE(p.phases.size() == 1);
  CHECK(p.phases[0].to == 100);
  CHECK(p.phases[0].bytes == 10400);
  p.validate(100);
}
