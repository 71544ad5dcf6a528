// tests/layout/choose_test.cpp: signatures of all operators: brute force, OneFlow's greedy search, a transformer block.
#include "catch.hpp"

#include <heddle/layout/choose.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace choose_tests {

namespace hd = heddle;
namespace op = hd::op;
namespace sbp = hd::sbp;
using Catch::Matchers::Contains;
constexpr double never = std::numeric_limits<double>::infinity();

hd::choice_graph graph_at_random(std::mt19937& random, int variables, int most_states, int more_edges) {
  hd::choice_graph g;
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int i = 0; i < variables; ++i) g.states.push_back(1 + below(most_states));
  const auto add = [&](std::vector<int> of) {
    int entries = 1;
    for (const int v : of) entries *= g.states[static_cast<std::size_t>(v)];
    std::vector<double> costs;
    for (int i = 0; i < entries; ++i) costs.push_back(below(9) == 0 ? never : below(100));
    g.factors.push_back({std::move(of), std::make_shared<const std::vector<double>>(std::move(costs))});
  };
  for (int i = 0; i < variables; ++i) add({i});
  for (int i = 1; i < variables; ++i) add({below(i), i});
  for (int e = 0; e < more_edges; ++e)
    if (const int a = below(variables), b = below(variables); a != b) add({a, b});
  return g;
}
double least_of_all(const hd::choice_graph& g) {
  double best = never;
  std::vector<int> states(g.states.size(), 0);
  for (std::size_t i = 0; i < states.size();) {
    best = std::min(best, hd::cost_of(g, states));
    for (i = 0; i < states.size() && ++states[i] == g.states[i]; ++i) states[i] = 0;
  }
  return best;
}
// OneFlow's search: neighbourhoods of up to four variables at a time, each set to its best, until nothing gains.
double greedy_of_four(const hd::choice_graph& g) {
  const std::size_t n = g.states.size();
  std::vector<int> states(n, 0);
  std::vector<std::vector<int>> near(n);
  for (const hd::choice_factor& f : g.factors)
    for (const int a : f.variables)
      for (const int b : f.variables)
        if (a != b) near[static_cast<std::size_t>(a)].push_back(b);
  for (std::size_t v = 0; v < n; ++v) {  // each alone first: the least of its own costs
    const std::vector<double>& own = *g.factors[v].costs;
    states[v] = static_cast<int>(std::min_element(own.begin(), own.end()) - own.begin());
  }
  double now = hd::cost_of(g, states);
  for (bool gained = true; gained;) {
    gained = false;
    for (std::size_t v = 0; v < n; ++v) {
      std::vector<int> four{static_cast<int>(v)};
      for (const int u : near[v])
        if (four.size() < 4 && std::find(four.begin(), four.end(), u) == four.end()) four.push_back(u);
      std::vector<int> tried = states;
      for (const int u : four) tried[static_cast<std::size_t>(u)] = 0;
      for (std::size_t i = 0; i < four.size();) {
        if (const double cost = hd::cost_of(g, tried); cost < now) {
          now = cost;
          states = tried;
          gained = true;
        }
        for (i = 0; i < four.size(); ++i) {
          const auto u = static_cast<std::size_t>(four[i]);
          if (++tried[u] < g.states[u]) break;
          tried[u] = 0;
        }
      }
    }
  }
  return now;
}

using line = hd::mesh<hd::axis<hd::tp, 4>>;
// A block: norm, attention by heads, its projection, norm, two products with gelu; tokens 2,048, width 4,096.
template <class Program, class X>
auto block(Program& p, const X& x, bool names_fit) {
  const std::int64_t h = 4096, heads = 32, d = 128;
  const auto norm = [&](const std::string& name, const X& v) {
    return hd::apply<op::layer_norm<2>>(v, p.weight(name + "_scale", {h}), p.weight(name + "_shift", {h}));
  };
  const X n = norm("norm1", x);
  const auto q = hd::einsum<"bsi,ihd->bhsd">(n, p.weight("q", {h, heads, d}));
  const auto k = hd::einsum<"bsi,ihd->bhsd">(n, p.weight("k", {h, heads, d}));
  const auto v = hd::einsum<"bsi,ihd->bhsd">(n, p.weight("v", {h, heads, d}));
  const auto a = hd::einsum<"bhsd,hdo->bso">(hd::apply<op::attention>(q, k, v), p.weight("o", {heads, d, h}));
  const auto m = hd::apply<op::add>(x, a);
  const auto w1 = p.weight("up", {h, 4 * h}), w2 = p.weight("down", {4 * h, h});
  const auto n2 = norm("norm2", m);
  constexpr hd::auto_redistribute fit{};
  const auto u = names_fit ? hd::apply<op::elementwise>(fit, hd::einsum<"bsi,io->bso">(fit, n2, w1))
                           : hd::apply<op::elementwise>(hd::einsum<"bsi,io->bso">(n2, w1));
  return hd::apply<op::add>(m, hd::einsum<"bsi,io->bso">(u, w2));
}
std::string layout_of(const hd::chosen_layouts& c, const std::string& name) {
  for (const hd::chosen_layout& l : c.layouts)
    if (l.name == name) return l.entries;
  return "none";
}

TEST_CASE("the cheapest states of 2,000 random graphs are those of brute force", "[layout][choose]") {
  const unsigned seed = 1;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  int wrong = 0, impossible = 0, costs_differ = 0, worse_than_best = 0, unproven = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const hd::choice_graph g =
        graph_at_random(random, 2 + static_cast<int>(random() % 6), 4, static_cast<int>(random() % 4));
    const double best = least_of_all(g);
    const hd::choice_states found = hd::cheapest_states(g);
    wrong += found.cost != best ? 1 : 0;
    impossible += best == never ? 1 : 0;
    costs_differ += best < never && hd::cost_of(g, found.states) != best ? 1 : 0;
    const hd::choice_states narrow = hd::cheapest_states(g, 8);
    unproven += narrow.proven ? 0 : 1;
    worse_than_best += narrow.cost < best || (narrow.proven && narrow.cost != best) ||
                               (narrow.cost < never && narrow.cost != hd::cost_of(g, narrow.states))
                           ? 1
                           : 0;
  }
  CHECK(wrong == 0);
  CHECK(costs_differ == 0);
  CHECK(worse_than_best == 0);
  CHECK(impossible > 0);
  CHECK(impossible < 1000);
  CHECK(unproven > 100);
}

TEST_CASE("the cheapest states are never worse than those of OneFlow's greedy search", "[layout][choose]") {
  const unsigned seed = 7;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  int worse = 0, better = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const hd::choice_graph g = graph_at_random(random, 12 + static_cast<int>(random() % 8), 4, 6);
    const double ours = hd::cheapest_states(g).cost, theirs = greedy_of_four(g);
    worse += ours > theirs ? 1 : 0;
    better += ours < theirs ? 1 : 0;
  }
  CHECK(worse == 0);
  CHECK(better > 20);
}

TEST_CASE("a transformer block over tp gets columns then rows and two all_reduces", "[layout][choose]") {
  for (const bool names_fit : {false, true}) {
    hd::layout_program<line> p;
    const auto x = p.input<sbp::B>("x", {1, 2048, 4096});
    p.output<sbp::B>(block(p, x, names_fit));
    hd::layout_costs costs;
    costs.bytes = 1.2 * 12 * 4096.0 * 4096 * 2 / 4;  // a quarter of the weights and some more
    const hd::chosen_layouts c = p.choose(costs);
    INFO(to_string(c));
    CHECK(c.proven);
    CHECK(c.fits);
    CHECK(c.held <= costs.bytes);
    CHECK(c.price > 0);
    for (const char* name : {"q", "k", "v"}) CHECK(layout_of(c, name) == "S<1>");  // heads
    CHECK(layout_of(c, "o") == "S<0>");
    CHECK(layout_of(c, "up") == "S<1>");
    CHECK(layout_of(c, "down") == "S<0>");
    REQUIRE(c.changes.size() == 2);
    for (const hd::chosen_change& change : c.changes) {
      CHECK(change.from == "P");
      CHECK(change.to == "B");
      CHECK(change.bytes == Approx(2 * 3.0 / 4 * 2048 * 4096 * 2));  // OneFlow's table: 2 (p - 1) / p of the tensor
    }
    CHECK_THAT(to_cpp(c, "mesh"), Contains("using up = hd::sbp::signature<mesh, hd::sbp::S<1>>;") &&
                                      Contains("using down = hd::sbp::signature<mesh, hd::sbp::S<0>>;"));
    // Without a budget all tokens are dealt out and the weights are copies; that is faster and holds more.
    const hd::chosen_layouts free = p.choose();
    CHECK(free.seconds < c.seconds);
    CHECK(free.held > c.held);
    CHECK(free.price == 0);
    CHECK(layout_of(free, "up") == "B");
  }
}

TEST_CASE("layouts of a small model cost what brute force over its signatures finds", "[layout][choose]") {
  // One product "bi,io->bo" over two ranks, operands given as copies, the result asked for as copies: of the signatures
  // of OneFlow's table 1 splitting b or o costs half of the work and an all_gather, splitting i half and an all_reduce.
  hd::layout_program<hd::mesh<hd::axis<hd::tp, 2>>> p;
  const auto x = p.input<sbp::B>("x", {64, 256});
  const auto w = p.weight<sbp::B>("w", {256, 128});
  p.output<sbp::B>(hd::einsum<"bi,io->bo">(x, w));
  hd::layout_costs costs{.flops_per_second = 1e12, .bytes_per_second = 1e9, .latency = 0, .element_bytes = 4};
  const double work = 2.0 * 64 * 256 * 128 / 1e12, result = 64.0 * 128 * 4 / 1e9;
  const auto least = [&](double whole) { return std::min(whole, whole / 2 + result / 2); };
  CHECK(p.choose(costs).seconds == Approx(least(work)).epsilon(1e-12));
  costs.bytes_per_second = 1e13;
  CHECK(p.choose(costs).seconds == Approx(work / 2 + result / 2 / 1e4).epsilon(1e-12));
  // With gradients: three times the work; x's are not asked for, w's are gathered where o is split, and the result's,
  // which are contributions where the result is copies, are summed into parts.
  costs.backward = true;
  const double weight = 256.0 * 128 * 4 / 1e13;
  CHECK(p.choose(costs).seconds == Approx(3 * work / 2 + result / 1e4 + weight / 2).epsilon(1e-12));
}

TEST_CASE("meshes of two axes, uneven and small extents are chosen for", "[layout][choose]") {
  hd::layout_program<hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 3>, hd::axis<hd::pp, 1>>> p;
  const auto x = p.input<sbp::S<0>, sbp::B, sbp::B>("x", {10, 2048});
  const auto w = p.weight("w", {2048, 5});
  const auto y = hd::apply<op::add>(hd::einsum<"bi,io->bo">(x, w), p.input("b", {10, 5}));
  p.output<sbp::S<0>, sbp::B, sbp::B>(y);
  hd::layout_costs costs{.latency = 0, .element_bytes = 8, .bytes = 10 * 2048 / 2 * 8 + 2048 * 5 * 8 / 3 + 200};
  const hd::chosen_layouts c = p.choose(costs);
  INFO(to_string(c));
  CHECK(c.fits);
  CHECK(layout_of(c, "w").substr(0, 5) != "B, B,");
  costs.bytes = 100;
  CHECK_FALSE(p.choose(costs).fits);
}

TEST_CASE("choices that cannot be are refused with what was expected", "[layout][choose]") {
  hd::layout_program<line> p;
  const auto x = p.input("x", {4, 8});
  const auto w = p.weight("w", {9, 2});
  CHECK_THROWS_WITH((hd::einsum<"bi,io->bo">(x, w)),
                    Contains("dimension 0 of operand 1 of result 0 is 9 and 8 in another operand"));
  CHECK_THROWS_WITH((hd::einsum<"bij,io->bo">(x, w)),
                    Contains("operand 0 of result 0 has 2 dimensions; the operator takes 3"));
  CHECK_THROWS_WITH((p.weight<sbp::S<2>>("v", {9, 2})),
                    Contains("v has 2 dimensions") && Contains("splits dimension 2"));
  CHECK_THROWS_WITH(p.input("z", {4, 0}), Contains("z has an extent of 0"));
  CHECK_THROWS_AS(p.choose({.flops_per_second = 0}), hd::config_error);
  const auto costs = [](std::vector<double> c) { return std::make_shared<const std::vector<double>>(std::move(c)); };
  CHECK_THROWS_WITH(hd::cheapest_states({{2, 0}, {}}), Contains("variable 1 has 0 states"));
  CHECK_THROWS_WITH(hd::cheapest_states({{2}, {{{1}, costs({1, 2})}}}), Contains("factor 0 names variable 1"));
  CHECK_THROWS_WITH(hd::cheapest_states({{2}, {{{0}, costs({1})}}}), Contains("factor 0 needs 2 costs; got 1"));
  CHECK_THROWS_WITH(hd::cheapest_states({{1}, {{{0}, costs({std::nan("")})}}}), Contains("factor 0 is NaN"));
}

}  // namespace choose_tests
