#include <heddle/layout/transfer.hpp>

#include "catch.hpp"

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::tp;

namespace {
using one = hd::mesh<hd::axis<tp>>;
template <class... Ps>
using on = hd::layout<one, Ps...>;
using R = on<>;
using S0 = on<hd::shard<0, tp>>;
using S1 = on<hd::shard<1, tp>>;
using P = on<hd::partial<hd::plus, tp>>;
}  // namespace

TEST_CASE("disjoint ranks send what OneFlow's table says", "[layout][transfer][law]") {
  for (int p1 = 1; p1 <= 4; ++p1)
    for (int p2 = 1; p2 <= 4; ++p2) {
      CAPTURE(p1, p2);
      const hd::shape s{7, 5};
      const std::int64_t T = 35 * 4;
      const auto bytes = [&]<class From, class To>(std::type_identity<From>, std::type_identity<To>) {
        return hd::plan_transfer(From{one{p1}}, hd::rank_range{0, p1}, To{one{p2}}, hd::rank_range{p1, p2})
            .bytes_sent_in_total(s, 4);
      };
      const auto all_from = [&]<class From>(std::type_identity<From> from, std::int64_t copies) {
        CHECK(bytes(from, std::type_identity<S0>{}) == T * copies);
        CHECK(bytes(from, std::type_identity<S1>{}) == T * copies);
        CHECK(bytes(from, std::type_identity<P>{}) == T * copies);
      };
      all_from(std::type_identity<S0>{}, 1);
      all_from(std::type_identity<R>{}, 1);
      all_from(std::type_identity<P>{}, p1);
      CHECK(bytes(std::type_identity<S0>{}, std::type_identity<R>{}) == p2 * T);
      CHECK(bytes(std::type_identity<R>{}, std::type_identity<R>{}) == p2 * T);
      CHECK(bytes(std::type_identity<P>{}, std::type_identity<R>{}) == (p1 + p2 - 1) * T);
    }
}

TEST_CASE("contributions reach copies by way of parts, whatever the sizes", "[layout][transfer][law]") {
  for (const std::int64_t n : {0, 1, 2, 5})
    for (const std::int64_t m : {1, 3, 7})
      for (int p1 = 1; p1 <= 5; ++p1)
        for (int p2 = 1; p2 <= 5; ++p2)
          for (int shift = 0; shift <= p1; ++shift) {
            CAPTURE(n, m, p1, p2, shift);
            const hd::shape s{n, m};
            const std::int64_t T = n * m;
            const auto plan =
                hd::plan_transfer(P{one{p1}}, hd::rank_range{0, p1}, R{one{p2}}, hd::rank_range{shift, p2});
            std::int64_t own = 0, sent = 0;
            bool whole = true;
            for (int t = 0; t < p2; ++t) {
              std::int64_t landed = 0, gathered = 0;
              for (int r = 0; r < p1; ++r) landed += plan.elements(s, r, t);
              for (int u = 0; u < p2; ++u) gathered += plan.gathered_elements(s, u, t);
              whole = whole && landed == p1 * plan.landing_part(s, t).size() &&
                      (plan.gathers(2) ? gathered : landed / p1) == T;
              if (plan.source_of(shift + t) >= 0) own += plan.landing_part(s, t).size();
            }
            for (int r = 0; r < shift + p2 + p1; ++r) sent += plan.bytes_sent(s, 1, r);
            CHECK(whole);
            CHECK(sent == plan.bytes_sent_in_total(s, 1));
            if (p1 == 1) continue;  // no sum: straight to every rank
            CHECK(sent == (p1 + p2 - 1) * T - own);
            CHECK(sent <= p1 * p2 * T - T * (p1 - shift < p2 ? p1 - shift : p2));  // never more than one exchange
          }
  // No dimension to split: every rank gets every contribution.
  CHECK(hd::plan_transfer(P{one{2}}, hd::rank_range{0, 2}, R{one{3}}, hd::rank_range{2, 3})
            .bytes_sent_in_total(hd::shape<>{}, 1) == 6);
}

TEST_CASE("every element reaches every rank that holds it, from one rank", "[layout][transfer][law]") {
  using two = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
  const two a{2, 3}, b{2, 2};
  const hd::layout<two, hd::shard<0, tp>> from{a};
  const hd::layout<two, hd::shard<0, hd::split::zigzag, dp>, hd::shard<1, tp>> to{b};
  const hd::shape s{7, 5};
  for (int shift = 0; shift <= 6; ++shift) {  // from overlapping to disjoint
    CAPTURE(shift);
    const auto plan = hd::plan_transfer(from, hd::rank_range{0, 6}, to, hd::rank_range{shift, 4});
    std::int64_t lacking = 0, sent = 0;
    for (int t = 0; t < 4; ++t) {
      std::int64_t got = 0;
      for (int r = 0; r < 6; ++r) got += plan.elements(s, r, t);
      CHECK(got == to.local_size(s, t));
      const int self = plan.source_of(shift + t);
      for (std::int64_t i = 0; i < 7; ++i)
        for (std::int64_t j = 0; j < 5; ++j)
          lacking += to.owns(s, t, {i, j}) && !(self >= 0 && from.owns(s, self, {i, j})) ? 1 : 0;
    }
    for (int r = 0; r < 6; ++r) sent += plan.bytes_sent(s, 1, r);
    CHECK(sent == lacking);
    CHECK(sent == plan.bytes_sent_in_total(s, 1));
  }
}

TEST_CASE("a transfer refuses lists that are no ranks of its meshes", "[layout][transfer]") {
  CHECK_THROWS_WITH(
      hd::plan_transfer(R{one{2}}, std::vector<int>{0}, S0{one{2}}, std::vector<int>{1, 2}),
      "heddle: plan_transfer: the source's mesh has 2 ranks, so its list must name as many, each once; it names 1");
  CHECK_THROWS_AS(hd::plan_transfer(R{one{2}}, std::vector<int>{0, 1}, S0{one{2}}, std::vector<int>{1, 1}),
                  hd::layout_error);
}

TEST_CASE("a transfer of bytes that nobody can count is refused with the shape", "[layout][transfer]") {
  const auto plan = hd::plan_transfer(S0{one{2}}, hd::rank_range{0, 2}, R{one{2}}, hd::rank_range{2, 2});
  const hd::shape s{std::int64_t{1} << 31, std::int64_t{1} << 29};
  CHECK(plan.bytes_sent_in_total(s, 2) == std::int64_t{1} << 62);
  CHECK_THROWS_WITH(plan.bytes_sent_in_total(s, 4),
                    "heddle: a shape of 2147483648 x 536870912 sends more bytes than a 64-bit number counts");
  CHECK_THROWS_AS(plan.bytes_sent(s, 8, 0), hd::layout_error);
}
