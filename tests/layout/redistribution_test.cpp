#include <heddle/layout/propagate.hpp>
#include <heddle/layout/redistribution.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
using hd::cp, hd::dp, hd::pp, hd::tp;
using hd::step_kind;

namespace {
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 2>, hd::axis<tp, 4>>;
using some = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
using half = hd::mesh<hd::axis<dp, 3>, hd::axis<tp>>;
using S0 = hd::shard<0, tp>;
using S1 = hd::shard<1, tp>;
using P = hd::partial<hd::plus, tp>;
using Pmax = hd::partial<hd::maximum, tp>;

template <class M, class... From>
struct from_to {
  template <class... To>
  static constexpr bool takes(std::initializer_list<step_kind> kinds) {
    using plan = hd::redistribution_plan<hd::layout<M, From...>, hd::layout<M, To...>>;
    if (plan::steps.size() != kinds.size()) return false;
    std::size_t i = 0;
    for (const step_kind k : kinds) {
      const auto& step = plan::steps[i++];
      if (step.kind != k || step.axis_name != "tp" || step.axis != static_cast<int>(M::template position<tp>))
        return false;
    }
    return true;
  }
};

template <class M>
constexpr bool one_axis_table() {
  using k = step_kind;
  return from_to<M>::template takes<>({}) && from_to<M>::template takes<S0>({k::slice}) &&
         from_to<M>::template takes<P>({k::keep_on_owner}) && from_to<M, S0>::template takes<>({k::all_gather}) &&
         from_to<M, S0>::template takes<S0>({}) && from_to<M, S0>::template takes<S1>({k::all_to_all}) &&
         from_to<M, S0>::template takes<P>({k::pad_with_identity}) &&
         from_to<M, P>::template takes<>({k::all_reduce}) && from_to<M, P>::template takes<S1>({k::reduce_scatter}) &&
         from_to<M, P>::template takes<P>({}) && from_to<M, P>::template takes<Pmax>({k::all_reduce, k::keep_on_owner});
}
}  // namespace

TEST_CASE("every pair on one axis has its step", "[layout][redistribution][law]") {
  STATIC_REQUIRE(one_axis_table<mesh>());
  STATIC_REQUIRE(one_axis_table<some>());
  STATIC_REQUIRE(one_axis_table<half>());
  using plan = hd::redistribution_plan<hd::layout<mesh, S0>, hd::layout<mesh, S1>>;
  STATIC_REQUIRE(plan::steps[0].from_dim == 0);
  STATIC_REQUIRE(plan::steps[0].to_dim == 1);
  STATIC_REQUIRE(plan::steps[0].op == -1);
  using change = hd::redistribution_plan<hd::layout<mesh, P>, hd::layout<mesh, Pmax>>;
  STATIC_REQUIRE(change::steps[0].op_name == "plus");
  STATIC_REQUIRE(change::steps[1].op_name == "maximum");
}

TEST_CASE("a tensor-parallel layer ends with one all_reduce of known bytes", "[layout][redistribution]") {
  using m = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 2>, hd::axis<tp, 2>>;
  using input = hd::layout<m, hd::shard<0, dp>>;
  using hidden = hd::propagate<"bi,io->bo", input, hd::layout<m, hd::shard<1, tp>>>;
  using out = hd::propagate<"bi,io->bo", hidden, hd::layout<m, hd::shard<0, tp>>>;
  constexpr auto plan = hd::redistribution<out, input>;
  STATIC_REQUIRE(plan.steps.size() == 1);
  STATIC_REQUIRE(plan.steps[0].kind == step_kind::all_reduce);
  STATIC_REQUIRE(plan.proven);
  STATIC_REQUIRE(plan.bytes_sent_per_rank(hd::shape{8, 64}, sizeof(float)) == 1024);
  STATIC_REQUIRE(plan.bytes_sent_in_total(hd::shape{8, 64}, sizeof(float)) == 8 * 1024);
  STATIC_REQUIRE(plan.local_shape_before(0, hd::shape{8, 64}, 7) == hd::shape{4, 64});
  CHECK(to_string(plan) ==
        "shard<0, dp>, partial<plus, tp> -> shard<0, dp> on dp=2 x pp=2 x tp=2: all_reduce(plus) over tp");
  CHECK(to_string(hd::redistribution<input, input>) ==
        "shard<0, dp> -> shard<0, dp> on dp=2 x pp=2 x tp=2: nothing to do");
  using w = hd::layout<m, hd::shard<0, tp>>;
  using v = hd::layout<m, hd::shard<1, tp>>;
  CHECK(to_string(hd::redistribution<w, v>) ==
        "shard<0, tp> -> shard<1, tp> on dp=2 x pp=2 x tp=2: all_to_all from dimension 0 to 1 over tp");
}

TEST_CASE("bytes of even parts follow the table", "[layout][redistribution][law]") {
  for (int p = 1; p <= 6; ++p)
    for (int d = 1; d <= 3; ++d) {
      CAPTURE(p, d);
      const some m{d, p};
      const hd::shape s{2 * p * d, 3 * p};
      const std::int64_t T = s.size() / d * 8;  // local to dp, which splits dimension 0 first
      const auto bytes = [&]<class From, class To>(std::type_identity<From>, std::type_identity<To>) {
        const auto plan = hd::plan_redistribution(From{m}, To{m});
        for (int r = 0; r < m.size(); ++r) CHECK(plan.bytes_sent(s, 8, r) == plan.bytes_sent_per_rank(s, 8));
        CHECK(plan.bytes_sent_in_total(s, 8) == plan.bytes_sent_per_rank(s, 8) * m.size());
        return plan.bytes_sent_per_rank(s, 8);
      };
      using D = hd::shard<0, dp>;
      const std::type_identity<hd::layout<some, D>> R{};
      const std::type_identity<hd::layout<some, hd::shard<0, dp, tp>>> A{};
      const std::type_identity<hd::layout<some, D, S1>> B{};
      const std::type_identity<hd::layout<some, D, P>> sum{};
      CHECK(bytes(R, R) == 0);
      CHECK(bytes(R, A) == 0);
      CHECK(bytes(R, sum) == 0);
      CHECK(bytes(A, sum) == 0);
      CHECK(bytes(B, R) == T * (p - 1) / p);
      CHECK(bytes(A, R) == T * (p - 1) / p);
      CHECK(bytes(A, B) == T * (p - 1) / (p * p));
      CHECK(bytes(sum, B) == T * (p - 1) / p);
      CHECK(bytes(sum, R) == 2 * T * (p - 1) / p);
    }
}

TEST_CASE("bytes of uneven parts follow the overlap of the parts", "[layout][redistribution][law]") {
  // Element by element: who has it, who needs it, and who needs it from whom.
  using one = hd::mesh<hd::axis<tp>>;
  using S0 = hd::layout<one, hd::shard<0, tp>>;
  using S1 = hd::layout<one, hd::shard<1, tp>>;
  using R = hd::layout<one>;
  using sum = hd::layout<one, hd::partial<hd::plus, tp>>;
  for (int p = 1; p <= 5; ++p)
    for (std::int64_t n = 0; n <= 17; ++n)
      for (std::int64_t m : {0, 1, 3, 4, 7}) {
        CAPTURE(p, n, m);
        const one mesh{p};
        const hd::shape s{n, m};
        bool ok = true;
        std::int64_t all_reduce_total = 0;
        for (int r = 0; r < p; ++r) {
          std::int64_t exchange = 0, gather = 0, scatter = 0;
          for (std::int64_t i = 0; i < n; ++i)
            for (std::int64_t j = 0; j < m; ++j)
              for (int to = 0; to < p; ++to) {
                if (to == r) continue;
                exchange += S0{mesh}.owns(s, r, {i, j}) && S1{mesh}.owns(s, to, {i, j}) ? 1 : 0;
                gather += S0{mesh}.owns(s, r, {i, j}) ? 1 : 0;
                scatter += S1{mesh}.owns(s, to, {i, j}) ? 1 : 0;
              }
          ok = ok && hd::plan_redistribution(S0{mesh}, S1{mesh}).bytes_sent(s, 2, r) == 2 * exchange;
          ok = ok && hd::plan_redistribution(S0{mesh}, R{mesh}).bytes_sent(s, 2, r) == 2 * gather;
          ok = ok && hd::plan_redistribution(sum{mesh}, S1{mesh}).bytes_sent(s, 2, r) == 2 * scatter;
          all_reduce_total += hd::plan_redistribution(sum{mesh}, R{mesh}).bytes_sent(s, 2, r);
        }
        REQUIRE(ok);
        REQUIRE(all_reduce_total == 2 * (p - 1) * n * m * 2);  // exactly 2 (p-1) T, however it is cut
      }
}

namespace {
template <class... Ls, class Mesh>
auto costs(const Mesh& m, const hd::shape<hd::dynamic, hd::dynamic>& s) {
  std::array<std::array<std::int64_t, sizeof...(Ls)>, sizeof...(Ls)> all{};
  std::size_t row = 0;
  const auto fill = [&]<class From>(std::type_identity<From>) {
    all[row++] = {hd::plan_redistribution(From{m}, Ls{m}).bytes_sent_in_total(s, 1)...};
  };
  (fill(std::type_identity<Ls>{}), ...);
  return all;
}
}  // namespace

TEST_CASE("a detour never sends less than the plan", "[layout][redistribution][law]") {
  using one = hd::mesh<hd::axis<tp>>;
  for (int p = 1; p <= 5; ++p)
    for (std::int64_t n = 0; n <= 11; ++n)
      for (std::int64_t m : {0, 1, 4, 7}) {
        CAPTURE(p, n, m);
        // Of one operator: from one to another there is a detour that sends half, but it needs a dimension to split.
        const auto cost = costs<hd::layout<one>, hd::layout<one, S0>, hd::layout<one, S1>, hd::layout<one, P>>(
            one{p}, hd::shape{n, m});
        bool ok = true;
        for (std::size_t a = 0; a < cost.size(); ++a) {
          ok = ok && cost[a][a] == 0;
          for (std::size_t b = 0; b < cost.size(); ++b)
            for (std::size_t c = 0; c < cost.size(); ++c) ok = ok && cost[a][c] <= cost[a][b] + cost[b][c];
        }
        REQUIRE(ok);
      }
}

TEST_CASE("several axes move in one plan where no order is lost", "[layout][redistribution]") {
  using from = hd::layout<mesh, hd::shard<0, dp, tp>>;
  using to = hd::layout<mesh, hd::shard<0, dp>, hd::shard<1, pp, tp>>;
  constexpr auto plan = hd::redistribution<from, to>;
  STATIC_REQUIRE(plan.steps.size() == 2);
  STATIC_REQUIRE(plan.steps[0].kind == step_kind::slice);  // what shrinks comes first
  STATIC_REQUIRE(plan.steps[1].kind == step_kind::all_to_all);
  // Gathering a nested cut starts with its minor axis.
  constexpr auto gather = hd::redistribution<from, hd::layout<mesh>>;
  STATIC_REQUIRE(gather.steps[0].axis_name == "tp");
  STATIC_REQUIRE(gather.steps[1].axis_name == "dp");
  STATIC_REQUIRE(gather.bytes_sent_per_rank(hd::shape{8, 1}, 1) == 3 + 4);
}

TEST_CASE("axes of one rank need no step and no order", "[layout][redistribution]") {
  using m = hd::mesh<hd::axis<dp, 1>, hd::axis<tp, 2>>;
  STATIC_REQUIRE(hd::redistribution<hd::layout<m, hd::partial<hd::plus, dp>>, hd::layout<m>>.steps.empty());
  STATIC_REQUIRE(
      hd::redistribution<hd::layout<m, hd::shard<0, dp, tp>>, hd::layout<m, hd::shard<0, tp, dp>>>.steps.empty());
  STATIC_REQUIRE(hd::redistribution<hd::layout<m, hd::shard<0, tp, dp>>, hd::layout<m>>.steps.size() == 1);
  const hd::mesh<hd::axis<dp>> one{1};
  using d = hd::mesh<hd::axis<dp>>;
  CHECK(hd::plan_redistribution(hd::layout<d, hd::partial<hd::plus, dp>>{one}, hd::layout<d>{one})
            .bytes_sent_per_rank(hd::shape{5}, 4) == 0);
}

TEST_CASE("a plan refuses meshes of other extents and ranks that are not there", "[layout][redistribution]") {
  using from = hd::layout<some, S0>;
  using to = hd::layout<some>;
  CHECK_THROWS_WITH(hd::plan_redistribution(from{some{2, 3}}, to{some{3, 2}}),
                    "heddle: a redistribution needs one mesh, got dp=2 x tp=3 and dp=3 x tp=2");
  CHECK(hd::plan_redistribution(from{some{2, 3}}, to{some{2, 3}}).proven);
  CHECK_THROWS_AS(hd::plan_redistribution(from{some{2, 3}}, to{some{2, 3}}).bytes_sent(hd::shape{4}, 4, 6),
                  hd::layout_error);
}

TEST_CASE("what is said of the rank that sends the most is the most of all ranks", "[layout][redistribution][law]") {
  using sums = hd::layout<mesh, hd::shard<1, dp>, hd::partial<hd::plus, pp, tp>>;
  constexpr auto gather =
      hd::redistribution<hd::layout<mesh, hd::shard<0, dp, tp>, hd::shard<1, pp>>, hd::layout<mesh>>;
  constexpr auto reduce = hd::redistribution<sums, hd::layout<mesh, hd::shard<1, dp>>>;
  constexpr auto exchange =
      hd::redistribution<hd::layout<mesh, hd::shard<0, dp, tp>>, hd::layout<mesh, hd::shard<1, tp>>>;
  for (std::int64_t n = 0; n <= 17; ++n)
    for (std::int64_t m = 0; m <= 5; ++m) {
      const auto agrees = [&](const auto& plan) {
        std::int64_t most = 0;
        for (int r = 0; r < 16; ++r) most = (std::max)(most, plan.bytes_sent(hd::shape{n, m}, 4, r));
        return plan.bytes_sent_per_rank(hd::shape{n, m}, 4) == most;
      };
      CAPTURE(n, m);
      CHECK(agrees(gather));
      CHECK(agrees(reduce));
      CHECK(agrees(exchange));
    }
}

namespace {
template <int>
struct numbered {};
using many_axes =
    hd::mesh<hd::axis<numbered<0>, 2>, hd::axis<numbered<1>, 2>, hd::axis<numbered<2>, 2>, hd::axis<numbered<3>, 2>,
             hd::axis<numbered<4>, 2>, hd::axis<numbered<5>, 2>, hd::axis<numbered<6>, 2>, hd::axis<numbered<7>, 2>>;
}  // namespace

TEST_CASE("a policy that many axes use counts once", "[layout][redistribution]") {
  using a = hd::layout<many_axes, hd::shard<0, numbered<0>, numbered<1>, numbered<2>, numbered<3>, numbered<4>,
                                            numbered<5>, numbered<6>, numbered<7>>>;
  using b = hd::layout<many_axes, hd::shard<0, numbered<0>, numbered<1>, numbered<2>, numbered<3>, numbered<4>,
                                            numbered<5>, numbered<6>, hd::split::zigzag, numbered<7>>>;
  STATIC_REQUIRE(hd::redistribution<a, b>.steps.size() == 1);
}

TEST_CASE("bytes that nobody can count are refused with the shape", "[layout][redistribution]") {
  using pair = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  using rows = hd::layout<pair, hd::shard<0, dp, tp>>;
  using whole = hd::layout<pair>;
  using sums = hd::layout<pair, hd::partial<hd::plus, dp, tp>>;
  constexpr auto gather = hd::redistribution<rows, whole>;
  constexpr auto reduce = hd::redistribution<sums, whole>;
  const hd::shape s{std::int64_t{1} << 31, std::int64_t{1} << 29};  // 2^60 elements
  const auto refused = [](const char* what, auto count) {
    CHECK_THROWS_AS(count(), hd::layout_error);
    CHECK_THROWS_WITH(
        count(), std::string("heddle: a shape of 2147483648 x 536870912 ") + what + " than a 64-bit number counts");
  };
  CHECK(rows::bytes_held(s, 4, 0) == std::int64_t{1} << 60);
  CHECK(gather.bytes_sent(s, 4, 0) == 3 * (std::int64_t{1} << 60));
  CHECK(whole::bytes_per_rank(s, 4) == std::int64_t{1} << 62);
  refused("has more bytes", [&] { return whole::bytes_held(s, 8, 0); });
  refused("has more bytes", [&] { return whole::bytes_per_rank(s, 8); });
  refused("has more bytes", [&] { return hd::layout<some>{some{2, 2}}.bytes_held(s, 8, 0); });
  refused("has more bytes", [&] { return hd::layout<some>{some{2, 2}}.bytes_per_rank(s, 8); });
  refused("sends more bytes", [&] { return gather.bytes_sent(s, 16, 0); });
  refused("sends more bytes", [&] { return gather.bytes_sent_per_rank(s, 16); });
  refused("sends more bytes", [&] { return gather.bytes_sent_in_total(s, 4); });
  refused("sends more bytes", [&] { return reduce.bytes_sent_in_total(s, 4); });
  refused("needs more bytes", [&] { return reduce.peak_bytes(s, 8); });
}
