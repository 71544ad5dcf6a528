#include <heddle/testing/gradient_laws.hpp>
#include <heddle/testing/random_cases.hpp>

#include "catch.hpp"

#include <cstdint>
#include <string>

namespace hd = heddle;
namespace ht = hd::testing;
using hd::dp, hd::tp, hd::shard, hd::partial, hd::plus;

namespace {
using one = hd::mesh<hd::axis<tp>>;
using two = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
}  // namespace

TEST_CASE("the dual of a dual is the layout", "[testing][law]") {
  STATIC_REQUIRE(ht::dual_is_an_involution<hd::layout<two>>);
  STATIC_REQUIRE(ht::dual_is_an_involution<hd::layout<two, shard<0, tp, dp>>>);
  STATIC_REQUIRE(ht::dual_is_an_involution<hd::layout<two, shard<0, hd::split::zigzag, tp>, hd::identical<dp>>>);
  STATIC_REQUIRE(ht::dual_is_an_involution<hd::layout<two, partial<plus, dp>, hd::varying<tp>>>);
  STATIC_REQUIRE(ht::dual_is_an_involution<hd::layout<two, partial<plus, dp, tp>>>);
}

TEST_CASE("backward of every move on one axis is its adjoint", "[testing][law]") {
  using all = hd::type_list<hd::layout<one>, hd::layout<one, shard<0, tp>>, hd::layout<one, shard<1, tp>>,
                            hd::layout<one, partial<plus, tp>>, hd::layout<one, hd::identical<tp>>>;
  ht::case_options options;
  options.cases = 12;
  options.most_elements = 200;
  const auto r = ht::for_random_cases<one, 2>(
      options, [](const one& m, const auto& s, std::uint64_t seed) { return ht::check_adjoints(all{}, m, s, seed); });
  INFO(to_string(r));
  CHECK(r.what == "");
  CHECK(r.cases == 12 * 25);
}

TEST_CASE("backward of moves on two axes is their adjoint", "[testing][law]") {
  using some =
      hd::type_list<hd::layout<two, shard<0, dp>, hd::identical<tp>>, hd::layout<two, shard<0, dp>, shard<1, tp>>,
                    hd::layout<two, shard<0, dp>, partial<plus, tp>>>;
  ht::case_options options;
  options.cases = 8;
  options.most_elements = 200;
  const auto r = ht::for_random_cases<two, 2>(
      options, [](const two& m, const auto& s, std::uint64_t seed) { return ht::check_adjoints(some{}, m, s, seed); });
  CHECK(r.what == "");
}
