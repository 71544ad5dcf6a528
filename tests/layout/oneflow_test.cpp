#include <heddle/layout/redistribution.hpp>

#include "catch.hpp"
#include "layout/oracles/dtensor.hpp"
#include "layout/oracles/oneflow.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hd = heddle;
using hd::axis_role;

namespace {

constexpr std::size_t dims = 6;

hd::detail::axis_table<2> table_of(const oneflow::nd_sbp& s) {
  hd::detail::axis_table<2> t;
  for (std::size_t a = 0; a < 2; ++a) {
    hd::detail::axis_use& u = t.use[a];
    if (s[a].kind == 'P') {
      u.role = axis_role::partial;
      u.op = 0;
    } else if (s[a].kind == 'S') {
      u.role = axis_role::sharded;
      u.dim = s[a].dim;
      u.level = a == 1 && s[0] == s[1] ? 1 : 0;
    }
  }
  return t;
}

dtensor::placements placements_of(const oneflow::nd_sbp& s) {
  dtensor::placements p{};
  for (std::size_t a = 0; a < 2; ++a)
    p[a] = s[a].kind == 'S' ? s[a].dim : s[a].kind == 'P' ? dtensor::partial : dtensor::replicate;
  return p;
}

// DTensor's graph plan with those dimensions that occur in one of the layouts, which are those that heddle's search uses.
double over_used_dims(const std::vector<dtensor::graph>& graphs, dtensor::placements from, dtensor::placements to) {
  std::vector<int> used;
  for (dtensor::placements* p : {&from, &to})
    for (int& d : *p) {
      if (d < 0) continue;
      const auto at = std::find(used.begin(), used.end(), d);
      const auto number = static_cast<int>(at - used.begin());
      if (at == used.end()) used.push_back(d);
      d = number;
    }
  return graphs[used.size()].cost(from, to);
}

// What heddle's plan sends in total, in tensors, counted rank by rank on dimensions that every cut divides.
template <std::size_t Axes>
double planned(const hd::detail::axis_table<Axes>& from, const hd::detail::axis_table<Axes>& to,
               const std::array<int, Axes>& mesh_extents, std::int64_t extent = 12, bool idle_axes = false) {
  hd::detail::objective_numbers<Axes> objective;
  objective.idle_axes = idle_axes;
  const auto plan = hd::detail::find_steps(from, to, mesh_extents, objective);
  const auto mesh = hd::detail::numbers_of(mesh_extents);
  std::array<std::int64_t, dims> extents{};
  extents.fill(extent);
  std::int64_t sent = 0;
  for (std::size_t i = 0; i < plan.steps.size(); ++i)
    for (int r = 0; r < mesh.size; ++r)
      sent += hd::detail::elements_sent(plan.steps[i], hd::detail::cuts_of(plan.tables[i]),
                                        hd::detail::cuts_of(plan.tables[i + 1]), mesh, extents, r);
  std::int64_t whole = 1;
  for (const std::int64_t e : extents) whole *= e;
  return static_cast<double>(sent) / static_cast<double>(whole);
}

}  // namespace

TEST_CASE("the oracles give the figures of their sources", "[layout][oneflow]") {
  using namespace oneflow;
  for (int p = 1; p <= 8; ++p) {
    CHECK(same_devices(S(0), S(0), p) == 0);
    CHECK(same_devices(S(0), S(1), p) == Approx((p - 1.0) / p));
    CHECK(same_devices(S(0), B, p) == p - 1);
    CHECK(same_devices(P, S(1), p) == p - 1);
    CHECK(same_devices(P, B, p) == 2 * (p - 1));
    for (int p2 = 1; p2 <= 8; ++p2) {
      CHECK(disjoint_devices(S(0), S(1), p, p2) == 1);
      CHECK(disjoint_devices(S(0), B, p, p2) == p2);
      CHECK(disjoint_devices(B, B, p, p2) == p2);
      CHECK(disjoint_devices(B, P, p, p2) == 1);
      CHECK(disjoint_devices(P, S(0), p, p2) == p);
      CHECK(disjoint_devices(P, B, p, p2) == p + p2 - 1);
      CHECK(disjoint_devices(P, P, p, p2) == p);
    }
  }
  CHECK(direct({S(0), S(0)}, {B, S(0)}, {2, 2}) == infinite);  // the pieces interleave
  CHECK(direct({S(0), B}, {S(0), S(1)}, {2, 3}) == 0);
  CHECK(direct({B, S(0)}, {B, B}, {2, 3}) == 2 * 2);
  CHECK(direct({P, P}, {B, B}, {2, 3}) == 2 * 5);
  // DTensor's greedy plan replicates first where only the outer axis changes: (S0,S0) -> (R,S0).
  CHECK(dtensor::greedy({0, 0}, {dtensor::replicate, 0}, {2, 2}) == 1 + 2);
  CHECK(dtensor::greedy({0, 0}, {dtensor::replicate, dtensor::replicate}, {2, 3}) == 5);
  CHECK(dtensor::greedy({0, 1}, {dtensor::partial, 1}, {2, 2}) == dtensor::infinite);
}

TEST_CASE("on one axis every plan sends what OneFlow's transfer table says", "[layout][oneflow][law]") {
  const std::array<oneflow::sbp, 4> all{oneflow::S(0), oneflow::S(1), oneflow::B, oneflow::P};
  for (int p = 1; p <= 8; ++p)
    for (const auto& from : all)
      for (const auto& to : all) {
        CAPTURE(p, oneflow::text(from), oneflow::text(to));
        hd::detail::axis_table<1> f, t;
        f.use[0] = table_of({from, oneflow::B}).use[0];
        t.use[0] = table_of({to, oneflow::B}).use[0];
        const std::array<int, 1> mesh{p};
        f = hd::detail::without_unit_axes(f, mesh);
        t = hd::detail::without_unit_axes(t, mesh);
        CHECK(planned(f, t, mesh, std::int64_t{p} * p) == Approx(oneflow::same_devices(from, to, p)).margin(1e-12));
      }
}

TEST_CASE("all 64 x 64 pairs of nd-SBPs are reached, and never cost more than OneFlow's or DTensor's way",
          "[layout][oneflow][law]") {
  for (const std::array<int, 2>& mesh : {std::array{2, 2}, std::array{2, 3}, std::array{3, 2}}) {
    CAPTURE(mesh[0], mesh[1]);
    const oneflow::planner theirs(mesh);
    std::vector<dtensor::graph> graphs;  // by how many dimensions there are
    for (int d = 0; d <= 4; ++d) graphs.emplace_back(mesh, d);
    const auto& states = theirs.states();
    REQUIRE(states.size() == 64);
    int cheaper_than_oneflow = 0, cheaper_than_greedy = 0, refused_by_dtensor = 0, unreached = 0;
    std::string worse;
    for (std::size_t i = 0; i < states.size(); ++i)
      for (std::size_t j = 0; j < states.size(); ++j) {
        const auto from = table_of(states[i]), to = table_of(states[j]);
        const std::string pair = oneflow::text(states[i]) + " -> " + oneflow::text(states[j]);
        const double ours = planned(from, to, mesh);
        const auto& route = theirs.between(i, j);
        const double greedy = dtensor::greedy(placements_of(states[i]), placements_of(states[j]), mesh);
        const double dijkstra = over_used_dims(graphs, placements_of(states[i]), placements_of(states[j]));
        const auto compare = [&](const char* with, double mine, double other) {
          if (mine > other + 1e-9)
            worse += pair + ": " + std::to_string(mine) + ", " + with + " " + std::to_string(other) + "\n";
        };
        unreached += !(route.cost < oneflow::infinite) || route.middle.size() > 3;
        unreached += !(std::abs(theirs.cost_of(i, j) - route.cost) < 1e-9);
        compare("OneFlow", ours, route.cost);
        compare("DTensor's greedy plan", ours, greedy);
        compare("DTensor's graph plan", planned(from, to, mesh, 12, true), dijkstra);
        if (dijkstra > greedy + 1e-9) worse += pair + ": the oracles contradict each other\n";
        cheaper_than_oneflow += ours < route.cost - 1e-9;
        cheaper_than_greedy += greedy < dtensor::infinite && ours < greedy - 1e-9;
        refused_by_dtensor += greedy == dtensor::infinite;
      }
    CHECK(worse == "");
    CHECK(unreached == 0);
    CHECK(cheaper_than_oneflow > 1000);
    CHECK(cheaper_than_greedy > 1000);
    CHECK(refused_by_dtensor > 0);
  }
}

TEST_CASE("splitting a dimension further outside sends what must move, and no more", "[layout][oneflow]") {
  // OneFlow's eager path counts nothing for (B,S0) -> (S0,S0); it is 1 - 1/h1.
  CHECK(planned(table_of({oneflow::B, oneflow::S(0)}), table_of({oneflow::S(0), oneflow::S(0)}), std::array{2, 2}) ==
        Approx(1.0 / 2));
  CHECK(planned(table_of({oneflow::B, oneflow::S(0)}), table_of({oneflow::S(0), oneflow::S(0)}), std::array{2, 3}) ==
        Approx(2.0 / 3));
}
