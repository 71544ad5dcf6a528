// tests/train/search_test.cpp: searched strategies against trying everything, reasons for refusals.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/plan/layer_strategies.hpp>
#include <heddle/train/search.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <sys/resource.h>

namespace hd = heddle;
namespace tr = heddle::train;
using Catch::Matchers::Contains;

namespace {

// A transformer's block as a simple source of costs: everything is split by tp, states by ZeRO over dp.
tr::search_costs transformer(const tr::search_point& p, int heads) {
  tr::search_costs costs;
  const int tp = p.extent("tp"), dp = p.extent("dp");
  if (heads % tp != 0) {
    costs.refused = {tr::reason_kind::divides,
                     std::to_string(heads) + " heads are not divided by tp=" + std::to_string(tp)};
    return costs;
  }
  const double weights = 1e9 / tp, work = 0.004 * p.samples / tp + (tp > 1 ? 0.0007 * p.samples : 0.0);
  tr::search_layer l;
  l.forward = work;
  l.backward_input = 1.1 * work;
  l.backward_weight = 0.9 * work;
  l.gather = p.zero == 3 ? 0.0003 * dp : 0;
  l.reduction = dp > 1 ? 0.002 : 0;
  l.state_bytes = static_cast<std::int64_t>(
      weights * ((p.zero == 3 ? 1.0 / dp : 1) + (p.zero >= 2 ? 1.0 / dp : 1) + 2 * (p.zero >= 1 ? 1.0 / dp : 1)));
  l.lent_bytes = static_cast<std::int64_t>(weights * ((p.zero == 3 ? 1 : 0) + (p.zero >= 2 ? 1 : 0)));
  l.saved_bytes = static_cast<std::int64_t>(4e8 * p.samples / tp);
  l.input_bytes = static_cast<std::int64_t>(3e7 * p.samples);
  l.waiting_bytes = static_cast<std::int64_t>(1e8 * p.samples / tp);
  costs.layers = {l};
  costs.first.state_bytes = static_cast<std::int64_t>(4e8 / tp);
  costs.first.forward = 0.0002;
  costs.last.state_bytes = costs.first.state_bytes;
  costs.last.forward = costs.last.backward_input = costs.last.backward_weight = 0.0015 / tp * p.samples;
  costs.rank_bytes = 100000000;
  costs.message_seconds = 0.0001;
  return costs;
}

// What search_layer says of a part, added up anew.
struct part_of_model {
  double seconds = 0;
  std::int64_t bytes = 0;
};
part_of_model part_of(const tr::search_costs& c, int begin, int end, int n, bool is_first, bool is_last, int slots,
                      int waiting) {
  double f = 0, i = 0, w = 0, g = 0;
  part_of_model p;
  const auto add = [&](const tr::search_layer& l, bool again) {
    f += l.forward, i += l.backward_input + (again ? l.forward : 0), w += l.backward_weight, g += l.gather;
    p.bytes +=
        l.state_bytes + l.lent_bytes + slots * (again ? l.input_bytes : l.saved_bytes) + waiting * l.waiting_bytes;
  };
  for (int k = begin; k < end; ++k) add(c.layers[c.layers.size() == 1 ? 0 : static_cast<std::size_t>(k)], k < n);
  if (is_first) add(c.first, false);
  if (is_last) add(c.last, false);
  p.seconds = std::max(f, g) + std::max(i, g) + w;
  p.bytes += c.rank_bytes;
  return p;
}

// The least time of the slowest stage under 1F1B, over all cuts and numbers of recomputed blocks; infinite without.
double slowest_by_trying(const tr::search_costs& c, int layers, int stages, int microbatches, std::int64_t budget) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> cuts;
  const auto each = [&](auto&& self, int begin, int n) -> void {
    const int stage = static_cast<int>(std::ssize(cuts));
    if (stage == stages - 1) {
      cuts.push_back(layers);
      double most = 0;
      for (int s = 0, b = 0; s < stages; b = cuts[static_cast<std::size_t>(s++)]) {
        const part_of_model p = part_of(c, b, cuts[static_cast<std::size_t>(s)], n, s == 0, s == stages - 1,
                                        std::min(microbatches, stages - s), 0);
        most = std::max(most, p.bytes > budget ? std::numeric_limits<double>::infinity() : p.seconds);
      }
      best = std::min(best, most);
      cuts.pop_back();
      return;
    }
    for (int end = begin + 1; end <= layers - (stages - 1 - stage); ++end) {
      cuts.push_back(end);
      self(self, end, n);
      cuts.pop_back();
    }
  };
  for (int n = 0; n <= layers; ++n) each(each, 0, n);
  return best;
}

int first_of(const std::string& recompute, int layers) {
  return recompute == "none" ? 0 : recompute == "full" ? layers : std::stoi(recompute.substr(6));
}

}  // namespace

TEST_CASE("searched stages and recomputed blocks are the best of all", "[train][search]") {
  const hd::counter_random random(20261203, 0);
  INFO("seed 20261203");
  std::uint64_t draw = 0;
  int fitted = 0, refused = 0, uneven = 0, partly = 0;
  for (int round = 0; round < 60; ++round) {
    INFO("round " << round);
    tr::search_space space{.ranks = 4, .layers = 6 + round % 3, .batch = 8};
    space.schedules = {"1f1b"};
    space.zero = {0, 3};
    space.simulated = 1000;
    space.nearest = 1000;
    // Layers of their own seconds and bytes, the same whenever the source is asked.
    std::vector<tr::search_layer> drawn;
    for (int l = 0; l < space.layers; ++l) {
      tr::search_layer one;
      one.forward = 0.5 + random.uniform(draw++), one.backward_input = 0.5 + random.uniform(draw++);
      one.backward_weight = random.uniform(draw++), one.gather = random.uniform(draw++);
      one.state_bytes = static_cast<std::int64_t>(random.integer(draw++) % 100);
      one.saved_bytes = 20 + static_cast<std::int64_t>(random.integer(draw++) % 100);
      one.input_bytes = static_cast<std::int64_t>(random.integer(draw++) % 20);
      drawn.push_back(one);
    }
    space.device_bytes = 150 + static_cast<std::int64_t>(random.integer(draw++) % 1500);
    const auto source = [&](const tr::search_point& p) {
      tr::search_costs costs;
      costs.layers = drawn;
      for (auto& l : costs.layers) {
        l.forward *= p.samples, l.backward_input *= p.samples, l.backward_weight *= p.samples;
        l.saved_bytes *= p.samples;
        l.gather = p.zero == 3 ? l.gather : 0;
        l.lent_bytes = p.zero == 3 ? l.state_bytes / 2 : 0;
      }
      costs.last = costs.layers.back();
      return costs;
    };
    const tr::search_result found = tr::search(space, source);
    CHECK(found.candidates ==
          found.scored + found.refused[0] + found.refused[1] + found.refused[2] + found.refused[3] + found.refused[4]);
    CHECK(std::ssize(found.best) == found.scored);
    CHECK(std::ssize(found.nearest) == found.refused[1]);
    const auto point_of = [](const tr::strategy_choice& c, int samples) {
      tr::search_point p;
      p.axes = tr::mesh_axes_of(c);
      p.zero = c.zero;
      p.samples = samples;
      return p;
    };
    double last = 0;
    for (const tr::searched_strategy& s : found.best) {
      CAPTURE(to_string(s.choice));
      const tr::search_point p = point_of(s.choice, s.samples);
      const int stages = p.extent("pp"), n = first_of(s.choice.recompute, space.layers);
      CHECK(static_cast<std::int64_t>(s.choice.microbatches) * s.samples * p.extent("dp") == space.batch);
      const double best = slowest_by_trying(source(p), space.layers, stages, s.choice.microbatches, space.device_bytes);
      double slow = 0;
      std::vector<int> counts = s.choice.layers;
      for (int k = 0; s.choice.layers.empty() && k < stages; ++k)
        counts.push_back(space.layers / stages + (k < space.layers % stages ? 1 : 0));
      std::int64_t fullest = 0;
      for (int k = 0, b = 0; k < stages; b += counts[static_cast<std::size_t>(k++)]) {
        const part_of_model part = part_of(source(p), b, b + counts[static_cast<std::size_t>(k)], n, k == 0,
                                           k == stages - 1, std::min(s.choice.microbatches, stages - k), 0);
        slow = std::max(slow, part.seconds);
        fullest = std::max(fullest, part.bytes);
      }
      REQUIRE(std::abs(slow - best) <= 1e-9 * best);
      REQUIRE(s.bytes == fullest);
      REQUIRE(fullest <= space.device_bytes);
      CHECK(s.bound <= s.seconds * (1 + 1e-12));
      CHECK(s.seconds >= last);
      last = s.seconds;
      ++fitted;
      uneven += s.choice.layers.empty() ? 0 : 1;
      partly += s.choice.recompute.rfind("first ", 0) == 0 ? 1 : 0;
    }
    for (const tr::refused_strategy& r : found.nearest) {
      CAPTURE(to_string(r.choice));
      const tr::search_point p = point_of(r.choice, r.samples);
      CHECK(std::isinf(
          slowest_by_trying(source(p), space.layers, p.extent("pp"), r.choice.microbatches, space.device_bytes)));
      ++refused;
    }
  }
  CHECK(fitted > 200);
  CHECK(refused > 100);
  CHECK(uneven > 50);
  CHECK(partly > 20);
}

TEST_CASE("on one stage as many blocks are recomputed as the choice per layer recomputes", "[train][search]") {
  tr::search_space space{.ranks = 1, .layers = 24, .batch = 1};
  const auto source = [](const tr::search_point& p) { return transformer(p, 8); };
  const tr::search_costs c = source({});
  const tr::search_layer& l = c.layers.front();
  for (const std::int64_t gb : {100, 102, 104, 107, 110}) {
    CAPTURE(gb);
    space.device_bytes = gb * 1000000000;
    const auto found = tr::search(space, source);
    const std::vector<hd::plan::layer_option> options{
        {l.forward + l.backward_input + l.backward_weight, l.state_bytes + l.saved_bytes},
        {2 * l.forward + l.backward_input + l.backward_weight, l.state_bytes + l.input_bytes}};
    const auto chosen =
        hd::plan::choose_layer_strategies(std::vector<std::vector<hd::plan::layer_option>>(24, options),
                                          space.device_bytes - c.rank_bytes - c.first.state_bytes - c.last.state_bytes);
    REQUIRE(found.best.size() == (chosen.fits() ? 1u : 0u));
    if (chosen.fits())
      CHECK(first_of(found.best[0].choice.recompute, 24) == std::count(chosen.chosen.begin(), chosen.chosen.end(), 1));
  }
}

TEST_CASE("equal stages take the time of the formula, and more memory is never slower", "[train][search]") {
  tr::search_space space{.ranks = 8, .layers = 16, .batch = 32};
  const auto source = [](const tr::search_point& p) {
    tr::search_costs c = transformer(p, 8);
    c.first = c.last = {};
    c.message_seconds = 0;
    return c;
  };
  space.schedules = {"1f1b"};
  space.simulated = 1000;
  int checked = 0;
  for (const auto& s : tr::search(space, source).best) {
    if (!s.choice.layers.empty() || s.choice.recompute != "none") continue;
    tr::search_point p;
    p.axes = tr::mesh_axes_of(s.choice);
    p.zero = s.choice.zero;
    p.samples = s.samples;
    const int pp = p.extent("pp");
    if (16 % pp != 0) continue;
    const part_of_model one = part_of(source(p), 0, 16 / pp, 0, false, false, 0, 0);
    const double reduction = 16.0 / pp * source(p).layers.front().reduction;
    CHECK(std::abs(s.seconds - (one.seconds * (s.choice.microbatches + pp - 1) + reduction)) < 1e-9);
    ++checked;
  }
  CHECK(checked > 20);
  space.schedules = {"1f1b", "interleaved:2", "zb-h1"};
  double last = std::numeric_limits<double>::infinity();
  for (std::int64_t gb = 2; gb <= 64; gb *= 2) {
    space.device_bytes = gb * 1000000000;
    const auto found = tr::search(space, source);
    if (found.best.empty()) continue;
    CHECK(found.best.front().seconds <= last * (1 + 1e-12));
    for (const auto& s : found.best) CHECK(s.bound <= s.seconds * (1 + 1e-12));
    last = found.best.front().seconds;
  }
  CHECK(last < 10);
}

TEST_CASE("1,024 devices and 80 layers are searched in 10 s of a processor and 1 GB", "[train][search][slow]") {
  const auto peak = [] {
    rusage use{};
    ::getrusage(RUSAGE_SELF, &use);
    return use.ru_maxrss * 1024;
  };
  const auto before = peak();
  tr::search_space space{.ranks = 1024, .layers = 80, .batch = 2048, .device_bytes = 80'000'000'000};
  space.schedules = {"1f1b", "interleaved:2", "zb-h1", "zb-v"};
  space.zero = {0, 1, 2, 3};
  const std::clock_t began = std::clock();
  const auto found = tr::search(space, [](const tr::search_point& p) { return transformer(p, 64); });
  const double seconds = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
  INFO(found.candidates << " candidates, " << seconds << " s, " << (peak() - before) / 1'000'000 << " MB");
  CHECK(found.candidates > 2000);
  REQUIRE(!found.best.empty());
  CHECK(found.best.front().bytes <= space.device_bytes);
  CHECK(seconds < 10);
  CHECK(peak() - before < 1'000'000'000);
}

TEST_CASE("every refusal has its reason", "[train][search]") {
  tr::search_space space{.ranks = 16, .layers = 8, .batch = 24, .device_bytes = 9000000000};
  space.axes = {{"dp"}, {"pp"}, {"tp", 4}};
  space.schedules = {"1f1b", "interleaved:2", "dual-pipe", "zb-v"};
  space.trainer = [](const tr::strategy_choice& c) {
    return c.zero == 3 ? std::optional<tr::search_reason>({tr::reason_kind::trainer, "this program has no ZeRO-3"})
                       : std::nullopt;
  };
  const tr::search_result found = tr::search(space, [](const tr::search_point& p) { return transformer(p, 2); });
  const std::string text = to_string(found);
  INFO(text);
  for (const tr::reason_kind k : {tr::reason_kind::divides, tr::reason_kind::memory, tr::reason_kind::schedule,
                                  tr::reason_kind::network, tr::reason_kind::trainer})
    CHECK(found.refused[static_cast<std::size_t>(k)] > 0);
  REQUIRE(found.nearest.size() == 3);
  CHECK(found.nearest[0].reason.amount <= found.nearest[2].reason.amount);
  CHECK(found.nearest[0].reason.amount > 0);
  CHECK_THAT(found.nearest[0].reason.text, Contains("along pp needs") && Contains("GB of 9.00, at position"));
  CHECK_THAT(text, Contains("refused: network") && Contains("tp=16 is more than 4 ranks") &&
                       Contains("this program has no ZeRO-3") && Contains("nearest: ") && Contains("mesh") &&
                       !Contains("no strategy fits"));
  for (const auto& s : found.best) CHECK(s.choice.zero != 3);
  space.device_bytes = 1000;
  const tr::search_result none = tr::search(space, [](const tr::search_point& p) { return transformer(p, 2); });
  CHECK(none.best.empty());
  CHECK_THAT(to_string(none), Contains("no strategy fits") && Contains("nearest: "));
  // A table that no schedule makes is a refusal, too.
  const tr::search_result large =
      tr::search({.ranks = 1, .layers = 8, .batch = std::int64_t{1} << 30, .most_samples = 1},
                 [](const tr::search_point& p) { return transformer(p, 2); });
  CHECK(large.refused[static_cast<std::size_t>(tr::reason_kind::schedule)] == 1);
  CHECK_THAT(to_string(large), Contains("microbatches on 1 pipeline ranks are too many to simulate"));
  CHECK_THROWS_AS(tr::search({.ranks = 0}, [](const tr::search_point& p) { return transformer(p, 2); }),
                  hd::config_error);
  CHECK_THROWS_WITH(
      tr::search({}, [](const tr::search_point&) { return tr::search_costs{.layers = {{.forward = -1}}}; }),
      Contains("negative or not finite"));
  CHECK_THROWS_WITH(
      tr::search({.layers = 3}, [](const tr::search_point&) { return tr::search_costs{.layers = {{}, {}}}; }),
      Contains("2 layers; expected 1 for all or 3"));
}
