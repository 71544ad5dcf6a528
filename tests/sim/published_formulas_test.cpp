// tests/sim/published_formulas_test.cpp: what schedules cost, as published, written out once more: nothing here is taken
// from the library but tables, counts and simulated times.
#include <heddle/schedule/lower/lower.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/sim/action_table.hpp>

#include "catch.hpp"

#include <algorithm>
#include <string>

namespace sc = heddle::schedule;
namespace sim = heddle::sim;

namespace {

// A schedule on p ranks with m microbatches, v stages per rank.
struct published {
  std::string name;
  int p, m, v = 1;
  sc::action_table table = sc::make_table(sc::named(name, m), p);

  // The time of a step beyond the work of a rank; times are those of a rank's share.
  double bubble(double f, double i, double w) const {
    return sim::simulate(sc::lower(table), sim::stage_times{f / v, i / v, w / v}).makespan - m * (f + i + w);
  }
  void takes(double f, double i, double w, double wanted) const {
    CAPTURE(name, p, m, f, i, w);
    REQUIRE(bubble(f, i, w) == Approx(wanted).margin(1e-9));
  }
  int peak(int r) const { return sc::peak_live(table, r); }
  template <class F>
  void keeps(F&& wanted) const {
    for (int r = 0; r < p; ++r) {
      CAPTURE(name, p, m, r);
      REQUIRE(peak(r) == wanted(r));
    }
  }
  int most() const {
    int n = 0;
    for (int r = 0; r < p; ++r) n = (std::max)(n, peak(r));
    return n;
  }
  void sends(int wanted) const {
    CAPTURE(name, p, m);
    REQUIRE(sc::sends(sc::lower(table)) == wanted);
  }
};

constexpr double times[][3] = {{1, 1, 1}, {2, 3, 1.5}, {1, 2, 0.5}};

bool runs(const std::string& name, int p, int m) {
  return sc::named(name, m).fits(p);
}
template <class F>
void for_all(F&& check) {
  for (int p = 2; p <= 8; ++p)
    for (int m = p; m <= 4 * p; ++m) check(p, m);
}

}  // namespace

TEST_CASE("published: GPipe, 1F1B, ZB-H1 and ZB-H2", "[sim][law]") {
  for_all([](int p, int m) {
    const published gpipe{"gpipe", p, m}, one{"1f1b", p, m}, h1{"zb-h1", p, m};
    for (const auto& [f, i, w] : times) {
      gpipe.takes(f, i, w, (p - 1) * (f + i + w));
      one.takes(f, i, w, (p - 1) * (f + i + w));
      h1.takes(f, i, w, (p - 1) * (f + i - w));
    }
    gpipe.keeps([&](int) { return m; });
    one.keeps([&](int r) { return (std::min)(p - r, m); });
    h1.keeps([&](int) { return (std::min)(p, m); });
    for (const published* s : {&gpipe, &one, &h1}) s->sends(2 * (p - 1) * m);
    if (m < 2 * p - 1) return;
    const published h2{"zb-h2", p, m};
    h2.takes(1, 1, 1, p - 1);
    h2.keeps([&](int) { return 2 * p - 1; });
    h2.sends(2 * (p - 1) * m);
  });
}

TEST_CASE("published: interleaved and breadth-first", "[sim][law]") {
  for_all([](int p, int m) {
    for (int v = 2; v <= 4; ++v) {
      const published breadth{"breadth-first:" + std::to_string(v), p, m, v};
      for (const auto& [f, i, w] : times) breadth.takes(f, i, w, (p - 1) * (f + i + w) / v);
      breadth.keeps([&](int) { return m * v; });
      breadth.sends(2 * (v * p - 1) * m);
      const std::string name = "interleaved:" + std::to_string(v);
      if (!runs(name, p, m)) continue;
      const published depth{name, p, m, v};
      for (const auto& [f, i, w] : times) depth.takes(f, i, w, (p - 1) * (f + i + w) / v);
      if (m % p == 0) depth.keeps([&](int r) { return (std::min)((v - 1) * p + 2 * (p - 1 - r) + 1, m * v); });
      depth.sends(2 * (v * p - 1) * m);
    }
  });
}

TEST_CASE("published: ZB-V, V-Half, V-Min, DualPipeV and DualPipe", "[sim][law]") {
  for_all([](int p, int m) {
    if (m < 2 * p - 1) return;
    const published zb_v{"zb-v", p, m, 2};
    zb_v.takes(1, 1, 1, (p - 1) / 2.0);
    zb_v.keeps([&](int) { return 2 * p; });
    zb_v.sends(4 * (p - 1) * m);
    if (m < 2 * p) return;
    const published v_half{"v-half", p, m, 2}, v_min{"v-min", p, m, 2}, dual_v{"dual-pipe-v", p, m, 2};
    CAPTURE(p, m);
    REQUIRE(v_half.most() == (p % 2 == 0 ? p + 2 : p + 1));
    REQUIRE(3 * v_min.most() <= 2 * (p + 4));
    dual_v.takes(1, 1, 1, (p - 1) * (1.5 + 1 - 1.5));
    dual_v.keeps([&](int) { return 2 * p + 1; });
    for (const published* s : {&v_half, &v_min, &dual_v}) s->sends(4 * (p - 1) * m);
    if (p % 2 != 0 || m % 2 != 0) return;
    const published dual{"dual-pipe", p, m};
    dual.takes(1, 1, 1, (p / 2 - 1) * (3 + 2 - 3));
    dual.keeps([&](int) { return p + 1; });
    dual.sends(2 * (p - 1) * m);
  });
}

TEST_CASE("published: Chimera and Hanayo", "[sim][law]") {
  for (int p = 2; p <= 8; ++p) {
    if (p % 2 == 0) {
      const published chimera{"chimera", p, p};
      chimera.takes(2, 1, 1, (p / 2 - 1) * 4);
      const double idle = chimera.bubble(1, 1, 1);
      REQUIRE(idle / (3 * p + idle) == Approx((p - 2) / (1.5 * p + p - 2)));
      REQUIRE(chimera.most() == p);
      REQUIRE(chimera.peak(0) == p / 2 + 1);
      REQUIRE(chimera.peak(p - 1) == p / 2 + 1);
      chimera.sends(2 * (p - 1) * p);
    }
    for (int waves = 1; waves <= 2; ++waves)
      for (int m = p; m <= 4 * p; m += p) {
        const published hanayo{"hanayo:" + std::to_string(waves), p, m, 2 * waves};
        hanayo.takes(2, 1, 1, (p - 1) * 4 / (2.0 * waves));
        REQUIRE(hanayo.most() <= p * 2 * waves);
        hanayo.sends(2 * (2 * waves * p - 2 * waves) * m);
      }
  }
}
