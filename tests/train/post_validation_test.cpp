// tests/train/post_validation_test.cpp: steps taken before the gradient norm is known, and taken back.
#include "runs.hpp"

#include "catch.hpp"
#include "folder.hpp"
#include "transport.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/layer_assignment.hpp>
#include <heddle/train/sharded_optimizer.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace hd = heddle;
using namespace train_test;

namespace {

double largest(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0 : 1e300;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

setup small() {
  setup s;
  s.layers = 5;
  s.width = 16;
  s.context = 6;
  s.vocabulary = 37;
  s.batch = 16;
  s.microbatches = 4;
  s.steps = 4;
  return s;
}
setup stepping_first(setup s) {
  s.post_validation = true;
  return s;
}
// The norm arrives while the next step's forwards run.
setup stepping_ahead(setup s) {
  s.post_validation = s.ahead = true;
  return s;
}
std::int64_t most_taken_back(const outcome& run) {
  std::int64_t n = 0;
  for (const rank_facts& r : run.ranks) n = std::max(n, r.taken_back);
  return n;
}

}  // namespace

TEST_CASE("an AdamW step is taken back: weights and both moments are what they were", "[train][post_validation]") {
  const hd::counter_random random(20261121, 5);
  INFO("seed 20261121");
  std::uint64_t draw = 0;
  for (const double beta1 : {0.9, 0.0})
    for (const std::int64_t step : {1, 2, 50})
      for (const double scale : {1.0, 1e-3}) {
        hd::compute::host<> backend(1);
        const std::size_t n = 77;
        std::vector<double> p(n), g(n), m(n), v(n);
        for (std::size_t i = 0; i < n; ++i) {
          p[i] = random.normal(draw++);
          g[i] = i % 9 == 0 ? 0.0 : random.normal(draw++);
          m[i] = step == 1 || beta1 == 0 ? 0.0 : 0.3 * random.normal(draw++);
          v[i] = step == 1 ? 0.0 : random.uniform(draw++);
        }
        const auto p0 = p, m0 = m, v0 = v;
        const hd::compute::adamw_step hyper{.lr = 1e-2,
                                            .beta1 = beta1,
                                            .beta2 = 0.95,
                                            .eps = 1e-8,
                                            .weight_decay = 0.1,
                                            .step = step,
                                            .grad_scale = scale};
        hd::compute::run<hd::compute::ops::adamw>(backend, std::span(p), std::span<const double>(g), std::span(m),
                                                  std::span(v), hyper);
        REQUIRE(largest(p, p0) > 1e-4);
        hd::compute::run<hd::compute::ops::undo_adamw>(backend, std::span(p), std::span<const double>(g), std::span(m),
                                                       std::span(v), hyper);
        CHECK(largest(p, p0) <= 1e-14);
        CHECK(largest(m, m0) <= 1e-15);
        CHECK(largest(v, v0) <= 1e-14);
        for (const double x : v) CHECK(x >= 0);
      }
  hd::compute::host<> backend(1);
  std::vector<double> one(1, 1.0);
  CHECK_THROWS_AS(
      hd::compute::run<hd::compute::ops::undo_adamw>(backend, std::span(one), std::span<const double>(one),
                                                     std::span(one), std::span(one),
                                                     hd::compute::adamw_step{.lr = 1, .weight_decay = 1}),
      hd::config_error);
}

TEST_CASE("without clipping, stepping first gives the same bits", "[train][post_validation][ranks]") {
  setup s = small();
  s.clip = 1e9;
  s.steps = 3;
  for (const char* mesh : {"", "dp=2,pp=2", "pp=2,tp=2"})
    for (const char* schedule : {"1f1b", "zb-v", "interleaved:2", "chimera", "interleaved:2, OPTIM"}) {
      if (!fits(mesh) || (std::string(mesh).empty() && schedule[0] == 'c')) continue;
      INFO(schedule << " on '" << mesh << "'");
      s.mesh = mesh;
      s.schedule = schedule;
      setup waits = s;  // the same layers on each stage
      const int parts = std::string(mesh).empty()                  ? (schedule[0] == '1' ? 1 : 2)
                        : schedule[0] == '1' || schedule[0] == 'c' ? 2
                                                                   : 4;
      const auto costs = hd::layers_by_cost::costs<hd::model::gpt2<double>>(
          {.layers = s.layers, .heads = s.heads, .width = s.width, .context = s.context, .vocabulary = s.vocabulary});
      waits.layers_per_stage = hd::plan::partition_layers(costs, parts).counts;
      const outcome ordinary = train_f64(waits);
      for (const bool ahead : {false, true}) {
        INFO((ahead ? "ahead" : "finished"));
        const outcome first = train_f64(ahead ? stepping_ahead(s) : stepping_first(s));
        CHECK(first.losses.size() == ordinary.losses.size());
        CHECK(largest(first.losses, ordinary.losses) <= (transport_test::on_threads ? 0 : 1e-14));
        CHECK(largest(first.norms, ordinary.norms) <= (transport_test::on_threads ? 0 : 1e-14));
        CHECK(first.weights == ordinary.weights);
        CHECK(most_taken_back(first) == 0);
      }
    }
}

TEST_CASE("a step that should have been clipped is taken back and done again", "[train][post_validation][ranks]") {
  setup s = small();
  s.mesh = "dp=2,pp=2";
  for (const char* schedule : {"1f1b", "zb-v", "chimera", "interleaved:2, OPTIM"}) {
    INFO(schedule);
    s.schedule = schedule;
    s.clip = 1e9;
    const outcome whole = train_f64(s);
    s.clip = 0.9 * whole.norms[0];  // more than each rank's own share
    const outcome ordinary = train_f64(s), first = train_f64(stepping_first(s));
    REQUIRE(ordinary.norms[0] > s.clip);
    CHECK(most_taken_back(first) >= 1);
    CHECK(largest(first.losses, ordinary.losses) <= 1e-12);
    CHECK(largest_error(first.weights, ordinary.weights) <= 1e-12);
    const outcome ahead = train_f64(stepping_ahead(s));
    CHECK(most_taken_back(ahead) >= 1);
    CHECK(ahead.losses == first.losses);
    CHECK(ahead.weights == first.weights);
    s.clip = 0.01;  // a rank's own share is too large: nobody steps
    const outcome small_limit = train_f64(s), waiting = train_f64(stepping_first(s));
    CHECK(largest(waiting.losses, small_limit.losses) <= 1e-12);
    CHECK(largest_error(waiting.weights, small_limit.weights) <= 1e-12);
    const outcome waiting_ahead = train_f64(stepping_ahead(s));
    CHECK(waiting_ahead.losses == waiting.losses);
    CHECK(waiting_ahead.weights == waiting.weights);
  }
}

TEST_CASE("a step taken back from a copy gives the bits of steps that wait", "[train][post_validation][ranks]") {
  setup s = small();
  s.clip = 1e9;
  for (const char* mesh : {"dp=2,pp=2", "pp=2,tp=2"})
    for (const char* schedule : {"1f1b", "zb-v", "interleaved:2, OPTIM"}) {
      if (!fits(mesh)) continue;
      INFO(schedule << " on '" << mesh << "'");
      s.mesh = mesh;
      s.schedule = schedule;
      s.clip = 1e9;
      const outcome whole = train_f64(s);
      s.clip = 0.9 * whole.norms[1];
      const outcome ordinary = train_f64(s);
      REQUIRE(ordinary.weights != whole.weights);
      for (setup first : {stepping_first(s), stepping_ahead(s)}) {
        first.with_copy = true;
        const outcome copied = train_f64(first);
        CHECK(most_taken_back(copied) >= 1);
        CHECK(largest(copied.losses, ordinary.losses) <= (transport_test::on_threads ? 0 : 1e-14));
        if (transport_test::on_threads)
          CHECK(copied.weights == ordinary.weights);
        else
          CHECK(largest_error(copied.weights, ordinary.weights) <= 1e-12);
        for (std::size_t r = 0; r < copied.ranks.size(); ++r)  // two moments, and copies of three numbers
          CHECK(2 * copied.ranks[r].state_bytes == 5 * ordinary.ranks[r].state_bytes);
      }
    }
}

TEST_CASE("forwards of a step that began with weights to be taken back are done again under every schedule",
          "[train][post_validation][ranks]") {
  setup s = small();
  s.layers = 8;
  s.steps = 3;
  s.microbatches = 8;
  s.mesh = "pp=4";
  if (!fits(s.mesh)) s.mesh = "pp=2";
  s.clip = 1e9;
  s.clip = 0.9 * train_f64(s).norms[1];   // the second step at least
  const outcome ordinary = train_f64(s);  // whatever the schedule
  for (const char* schedule : {"gpipe", "interleaved:2", "breadth-first", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min",
                               "dual-pipe", "dual-pipe-v", "chimera", "hanayo"}) {
    INFO(schedule);
    s.schedule = schedule;
    const outcome ahead = train_f64(stepping_ahead(s));
    CHECK(most_taken_back(ahead) >= 1);
    CHECK(largest(ahead.losses, ordinary.losses) <= 1e-12);
    CHECK(largest(ahead.norms, ordinary.norms) <= 1e-11);
    CHECK(largest_error(ahead.weights, ordinary.weights) <= 1e-12);
  }
}

TEST_CASE("saves and validations between steps that are ahead see finished weights",
          "[train][post_validation][ranks]") {
  const folder place("post_validation");
  setup s = small();
  s.mesh = "pp=2";
  s.schedule = "zb-v";
  s.steps = 6;
  s.validate_every = 2;
  s.clip = 1e9;
  const outcome whole = train_f64(s);
  for (const double clip : {1e9, 0.999 * whole.norms[2]}) {
    INFO("clip " << clip);
    s.clip = clip;
    const outcome ordinary = train_f64(s), finished = train_f64(stepping_first(s));
    setup half = stepping_ahead(s);
    half.steps = 3;
    half.save_to = (place.path / (clip > 1e8 ? "whole" : "clipped")).string();
    const outcome first = train_f64(half);
    setup rest = stepping_ahead(s);
    rest.resume_from = half.save_to;
    const outcome second = train_f64(rest);
    const outcome ahead = train_f64(stepping_ahead(s));
    CHECK(second.first_step == 3);
    CHECK(ahead.losses == finished.losses);
    CHECK(ahead.validation == finished.validation);
    CHECK(ahead.weights == finished.weights);
    CHECK(second.weights == ahead.weights);
    std::vector<double> both = first.losses;
    both.insert(both.end(), second.losses.begin(), second.losses.end());
    CHECK(both == ahead.losses);
    CHECK(largest_error(ahead.weights, ordinary.weights) <= 1e-12);
  }
}

TEST_CASE("ignored targets and infinite gradients are found behind a step, too", "[train][post_validation][ranks]") {
  setup s = small();
  s.mesh = "pp=2";
  s.ignore_every = 3;
  s.clip = 1e9;
  const outcome ordinary = train_f64(s), first = train_f64(stepping_first(s));
  CHECK(most_taken_back(first) == s.steps);
  CHECK(largest(first.losses, ordinary.losses) <= 1e-12);
  CHECK(largest_error(first.weights, ordinary.weights) <= 1e-12);
  const outcome ahead = train_f64(stepping_ahead(s));
  CHECK(ahead.losses == first.losses);
  CHECK(ahead.weights == first.weights);
  s.poison = "ln_f.weight";
  s.poison_value = std::nan("");
  CHECK_THROWS_WITH(train_f64(stepping_first(s)), Catch::Matchers::Contains("the weight ln_f.weight was not finite"));
  CHECK_THROWS_WITH(train_f64(stepping_ahead(s)),
                    Catch::Matchers::Contains("step 1 stopped") &&
                        Catch::Matchers::Contains("the weight ln_f.weight was not finite"));
}
