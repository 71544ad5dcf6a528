#include <heddle/testing/random_cases.hpp>
#include <heddle/testing/tensor_laws.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace hd = heddle;
namespace ht = hd::testing;
namespace split = hd::split;
using hd::cp, hd::dp, hd::tp, hd::shard, hd::partial, hd::plus;

namespace {
using one = hd::mesh<hd::axis<tp>>;
using two = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
using three = hd::mesh<hd::axis<dp>, hd::axis<cp>, hd::axis<tp>>;

ht::case_options cases(std::uint64_t seed, std::int64_t n, std::int64_t most_elements) {
  ht::case_options o;
  o.seed = seed;
  o.cases = n;
  o.most_elements = most_elements;
  return o;
}
}  // namespace

TEST_CASE("gathering what was scattered gives the tensor, for random meshes and shapes", "[testing][law]") {
  const auto r1 = ht::for_random_cases<one, 1>(cases(1, 60, 64), [](const one& m, const auto& s, std::uint64_t seed) {
    ht::report all = ht::check_round_trip(hd::layout<one, shard<0, tp>>{m}, s, seed);
    all += ht::check_round_trip(hd::layout<one, shard<0, split::zigzag, tp>>{m}, s, seed);
    all += ht::check_round_trip(hd::layout<one, shard<0, split::padded<>, tp>>{m}, s, seed);
    all += ht::check_round_trip(hd::layout<one, partial<hd::minimum, tp>>{m}, s, seed);
    return all;
  });
  CHECK(r1.what == "");
  const auto r2 = ht::for_random_cases<two, 2>(cases(2, 40, 1000), [](const two& m, const auto& s, std::uint64_t seed) {
    ht::report all = ht::check_round_trip(hd::layout<two, shard<1, tp, dp>>{m}, s, seed);
    all += ht::check_round_trip(hd::layout<two, shard<0, split::block_cyclic<2>, tp>, shard<1, split::ceil, dp>>{m}, s,
                                seed);
    all += ht::check_round_trip(hd::layout<two, shard<0, split::zigzag, tp>, partial<plus, dp>>{m}, s, seed);
    all += ht::check_round_trip(hd::layout<two, shard<1, dp>, hd::identical<tp>>{m}, s, seed);
    return all;
  });
  CHECK(r2.what == "");
  const auto r3 =
      ht::for_random_cases<three, 3>(cases(3, 20, 500), [](const three& m, const auto& s, std::uint64_t seed) {
        return ht::check_round_trip(hd::layout<three, shard<2, cp, tp>, shard<0, dp>>{m}, s, seed);
      });
  CHECK(r3.what == "");
}

TEST_CASE("every pair on one axis keeps the tensor and sends what is planned", "[testing][law]") {
  using all = hd::type_list<hd::layout<one>, hd::layout<one, shard<0, tp>>, hd::layout<one, shard<1, tp>>,
                            hd::layout<one, partial<plus, tp>>, hd::layout<one, partial<hd::maximum, tp>>>;
  const auto r = ht::for_random_cases<one, 2>(cases(4, 12, 300), [](const one& m, const auto& s, std::uint64_t seed) {
    return ht::check_redistributions(all{}, m, s, seed);
  });
  INFO(to_string(r));
  CHECK(r.what == "");
}

TEST_CASE("pairs on two and three axes keep the tensor and send what is planned", "[testing][law]") {
  using some =
      hd::type_list<hd::layout<two>, hd::layout<two, shard<0, dp, tp>>, hd::layout<two, shard<0, dp>, shard<1, tp>>,
                    hd::layout<two, shard<1, dp>, partial<plus, tp>>>;
  const auto r2 = ht::for_random_cases<two, 2>(cases(5, 10, 300), [](const two& m, const auto& s, std::uint64_t seed) {
    return ht::check_redistributions(some{}, m, s, seed);
  });
  CHECK(r2.what == "");
  // Orders change places, policies change, and what is identical is a copy.
  using first =
      hd::type_list<hd::layout<two, shard<0, tp, dp>>, hd::layout<two, shard<0, split::zigzag, tp>, hd::identical<dp>>>;
  using second = hd::type_list<hd::layout<two, shard<0, dp, tp>>, hd::layout<two, shard<0, split::block_cyclic<2>, dp>>,
                               hd::layout<two, shard<1, split::padded<>, tp>>>;
  const auto orders =
      ht::for_random_cases<two, 2>(cases(8, 10, 300), [](const two& m, const auto& s, std::uint64_t seed) {
        ht::report all = ht::check_redistributions(first{}, second{}, m, s, seed);
        all += ht::check_redistributions(second{}, first{}, m, s, seed);
        return all;
      });
  CHECK(orders.what == "");
  using from = hd::type_list<hd::layout<three, shard<0, dp, cp>, shard<1, tp>>,
                             hd::layout<three, shard<0, dp>, partial<plus, cp, tp>>>;
  using to = hd::type_list<hd::layout<three>, hd::layout<three, shard<0, dp>>>;
  const auto r3 =
      ht::for_random_cases<three, 2>(cases(6, 8, 200), [](const three& m, const auto& s, std::uint64_t seed) {
        return ht::check_redistributions(from{}, to{}, m, s, seed);
      });
  CHECK(r3.what == "");
}

TEST_CASE("any way round gives the same tensor", "[testing][law]") {
  using R = hd::layout<two>;
  using A = hd::layout<two, shard<0, tp>>;
  using B = hd::layout<two, shard<1, tp>>;
  using P = hd::layout<two, partial<plus, tp>>;
  const auto r = ht::for_random_cases<two, 2>(cases(7, 10, 300), [](const two& m, const auto& s, std::uint64_t seed) {
    ht::report all = ht::check_path<A, B, R, A>(m, s, seed);
    all += ht::check_path<P, B, A, R>(m, s, seed);
    all += ht::check_path<P, R, P, B>(m, s, seed);
    return all;
  });
  CHECK(r.what == "");
}

TEST_CASE("no detour sends less than a plan", "[testing][law]") {
  using all =
      hd::type_list<hd::layout<two>, hd::layout<two, shard<0, dp, tp>>, hd::layout<two, shard<0, dp>, shard<1, tp>>,
                    hd::layout<two, shard<0, dp>>, hd::layout<two, shard<0, dp>, partial<plus, tp>>>;
  for (int a : {1, 2, 3})
    for (int b : {1, 2, 4}) {
      const auto r = ht::check_costs(all{}, two{a, b}, hd::shape{a * b * 4, b * 6});
      CHECK(r.what == "");
      CHECK(r.cases == 125);
    }
}

TEST_CASE("a wrong plan or a wrong move would be found", "[testing]") {
  // The pieces that a law is made of, on wrong numbers.
  const hd::layout<one, shard<0, tp>> l{one{2}};
  const hd::shape s{3};
  CHECK(ht::detail::wrong_part(l, s, {1, 2, 3}, 0, {1, 2}) == "");
  CHECK(ht::detail::wrong_part(l, s, {1, 2, 3}, 0, {1, 3}) == "element 1: expected 2, got 3");
  CHECK(ht::detail::wrong_part(l, s, {1, 2, 3}, 1, {1, 2}) == "a part of the wrong size");
  CHECK(ht::detail::difference({1, 2}, {1}) == "1 elements instead of 2");
  CHECK(ht::some_part(l, s, 1, 5).elements()[0] == ht::some_part(hd::layout<one>{one{2}}, s, 0, 5).elements()[2]);
  // A rank of a partial layout that lost its contribution, where another rank has a copy of it.
  const hd::layout<two, partial<plus, dp>> sums{two{2, 2}};
  CHECK(ht::detail::lowest_copy(sums, 1) == 0);
  CHECK(ht::detail::lowest_copy(sums, 2) == 2);
  CHECK(ht::detail::lowest_copy(sums, 3) == 2);
  CHECK(ht::detail::wrong_copy(sums, s, 3, {4, 5, 6}, {4, 5, 6}) == "");
  CHECK(ht::detail::wrong_copy(sums, s, 2, {0, 0, 0}, {4, 5, 6}) == "");
  CHECK(ht::detail::wrong_copy(sums, s, 3, {4, 5, 6}, {4, 0, 6}) ==
        "not the copy that rank 2 holds: element 1: expected 5, got 0");
  CHECK(ht::detail::difference({0.1}, {0.1 + 0.2}) ==
        "element 0: expected 0.10000000000000001, got 0.30000000000000004");
}

namespace {
// log(exp(a) + exp(b)): rounds.
struct log_sum {
  static constexpr bool commutative = true;
  template <class T>
  static constexpr T identity() {
    return -std::numeric_limits<T>::infinity();
  }
  template <class T>
  T operator()(const T& a, const T& b) const {
    const T high = (std::max)(a, b), low = (std::min)(a, b);
    return low == identity<T>() ? high : high + std::log1p(std::exp(low - high));
  }
};
struct nearly {
  bool operator()(double a, double b) const { return a == b || std::abs(a - b) < 1e-12; }
};
}  // namespace

TEST_CASE("laws of products are exact, and of operators that round hold with a tolerance", "[testing][law]") {
  using R = hd::layout<two>;
  using both = hd::layout<two, partial<hd::multiplies, dp, tp>>;
  using left = hd::layout<two, partial<hd::multiplies, dp>>;
  for (std::uint64_t seed = 1; seed < 4; ++seed) {
    CHECK(ht::check_path<both, left, R>(two{4, 4}, hd::shape{8, 8}, seed).what == "");
    CHECK(ht::check_redistribution<R>(both{two{4, 4}}, hd::shape{8, 8}, seed).what == "");
    CHECK(ht::check_redistribution<left>(both{two{4, 4}}, hd::shape{8, 8}, seed).what == "");
  }
  using soft = hd::layout<two, partial<log_sum, dp, tp>>;
  using soft_left = hd::layout<two, partial<log_sum, dp>>;
  const two m{2, 3};
  CHECK(ht::check_redistribution<R>(soft{m}, hd::shape{4, 3}, 1, nearly{}).what == "");
  CHECK(ht::check_path<soft, soft_left, R>(m, hd::shape{4, 3}, 1, nearly{}).what == "");
  CHECK(ht::check_round_trip(soft_left{m}, hd::shape{4, 3}, 1, nearly{}).what == "");
}

TEST_CASE("a law that looks at nothing fails, and so does one that throws whatever it likes", "[testing]") {
  const auto none = ht::for_random_cases<two, 1>(cases(1, 5, 10),
                                                 [](const two&, const auto&, std::uint64_t) { return ht::report{}; });
  CHECK_FALSE(none.ok());
  CHECK(none.what == "no case was checked: the law left every drawn one out");
  const auto thrown = ht::for_random_cases<two, 1>(
      cases(1, 5, 10), [](const two&, const auto&, std::uint64_t) -> ht::report { throw 3; });
  CHECK(thrown.what.find("threw: an exception that is not a std::exception") != std::string::npos);
  CHECK_FALSE(ht::check_redistributions(hd::type_list<>{}, two{1, 1}, hd::shape{2}).ok());
}
