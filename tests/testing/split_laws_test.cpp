#include <heddle/core/split.hpp>
#include <heddle/testing/split_laws.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

namespace hd = heddle;
namespace ht = hd::testing;

namespace {
// A right policy with one mistake in it, for one size: the laws must find each.
enum class mistake { none, negative, sum, owner, local, global, back, run, consecutive, stored, contiguous, never };

template <mistake M>
struct flawed {
  using kind = hd::split_kind;
  using right = hd::split::balanced;
  static constexpr bool contiguous = true;
  static constexpr bool here(std::int64_t n, std::int64_t p) { return n == 7 && p == 3; }
  static constexpr bool fits(std::int64_t, std::int64_t) { return M != mistake::never; }
  static constexpr std::int64_t size(std::int64_t n, std::int64_t p, std::int64_t r) {
    if (M == mistake::negative && here(n, p) && r == 1) return -1;
    if (M == mistake::sum && here(n, p) && r == 2) return 1;
    return right::size(n, p, r);
  }
  static constexpr std::int64_t stored(std::int64_t n, std::int64_t p, std::int64_t r) {
    return right::stored(n, p, r) - (M == mistake::stored && here(n, p) && r == 2 ? 1 : 0);
  }
  static constexpr std::int64_t owner(std::int64_t n, std::int64_t p, std::int64_t g) {
    return right::owner(n, p, g) + (M == mistake::owner && here(n, p) && g == 6 ? 1 : 0);
  }
  static constexpr std::int64_t to_local(std::int64_t n, std::int64_t p, std::int64_t g) {
    if (M == mistake::local && here(n, p) && g == 6) return 2;
    if (M == mistake::back && here(n, p) && g == 6) return 0;
    return right::to_local(n, p, g);
  }
  static constexpr std::int64_t to_global(std::int64_t n, std::int64_t p, std::int64_t r, std::int64_t l) {
    if (M == mistake::global && here(n, p) && r == 2 && l == 1) return 7;
    if (M == mistake::consecutive && here(n, p) && r == 2 && l == 1) return 4;
    if (M == mistake::contiguous && here(n, p)) return right::to_global(n, p, r, l) + (r == 1 ? 2 : r == 2 ? -2 : 0);
    return right::to_global(n, p, r, l);
  }
  static constexpr std::int64_t run(std::int64_t n, std::int64_t p, std::int64_t r, std::int64_t l) {
    return right::run(n, p, r, l) + (M == mistake::run && here(n, p) && r == 2 ? 1 : 0);
  }
};
template <mistake M>
bool finds(ht::problem what) {
  const ht::finding f = ht::split_policy<flawed<M>>(12, 4);
  const ht::report r = ht::check_split_policy<flawed<M>>(12, 4);
  UNSCOPED_INFO(r.what);
  return f.what == what && !r.ok() && (M == mistake::never || (f.extent == 7 && f.parts == 3));
}
}  // namespace

TEST_CASE("every split policy covers the whole once, with inverse maps", "[testing][law]") {
  CHECK(ht::check_split_policy<hd::split::balanced>().what == "");
  CHECK(ht::check_split_policy<hd::split::ceil>().what == "");
  CHECK(ht::check_split_policy<hd::split::zigzag>().what == "");
  CHECK(ht::check_split_policy<hd::split::block_cyclic<1>>().what == "");
  CHECK(ht::check_split_policy<hd::split::block_cyclic<3>>().what == "");
  CHECK(ht::check_split_policy<hd::split::block_cyclic<64>>().what == "");
  CHECK(ht::check_split_policy<hd::split::padded<>>().what == "");
  CHECK(ht::check_split_policy<hd::split::padded<hd::split::balanced>>().what == "");
  CHECK(ht::check_split_policy<hd::split::ragged<3, 0, 5, 1>>().what == "");
  CHECK(ht::check_split_policy<hd::split::balanced>().cases > 17'000);
}

TEST_CASE("the laws of splits hold at compile time", "[testing][law]") {
  HEDDLE_STATIC_LAW(ht::split_policy<hd::split::balanced>(12, 4));
  HEDDLE_STATIC_LAW(ht::split_policy<hd::split::ceil>(12, 4));
  HEDDLE_STATIC_LAW(ht::split_policy<hd::split::zigzag>(12, 3));
  HEDDLE_STATIC_LAW(ht::split_policy<hd::split::block_cyclic<2>>(12, 3));
  HEDDLE_STATIC_LAW(ht::split_policy<hd::split::padded<>>(9, 4));
  HEDDLE_STATIC_LAW((ht::split_policy<hd::split::ragged<2, 0, 5>>(7, 3)));
  STATIC_REQUIRE(ht::split_policy<flawed<mistake::back>>(8, 3).got == 5);
  SUCCEED();
}

TEST_CASE("each mistake of a split policy is found where it is", "[testing]") {
  CHECK(finds<mistake::negative>(ht::problem::size_is_negative));
  CHECK(finds<mistake::sum>(ht::problem::run_out_of_range));  // the run still counts the elements that are missing
  CHECK(finds<mistake::owner>(ht::problem::owner_does_not_hold));
  CHECK(finds<mistake::local>(ht::problem::local_out_of_range));
  CHECK(finds<mistake::back>(ht::problem::to_global_does_not_undo_to_local));
  CHECK(finds<mistake::global>(ht::problem::global_out_of_range));
  CHECK(finds<mistake::run>(ht::problem::run_out_of_range));
  CHECK(finds<mistake::consecutive>(ht::problem::run_is_not_consecutive));
  CHECK(finds<mistake::stored>(ht::problem::stored_less_than_size));
  CHECK(finds<mistake::contiguous>(ht::problem::not_contiguous));
  CHECK(finds<mistake::never>(ht::problem::no_case));
  CHECK(ht::check_split_policy<flawed<mistake::none>>().what == "");
  CHECK_THAT(ht::check_split_policy<flawed<mistake::back>>().what,
             Catch::Matchers::Contains(
                 "extent 7, parts 3, rank 2, index 6: to_global(to_local(x)) is not x: expected 6, got 5"));
}

TEST_CASE("balanced and ceil have the same largest part, and ceil leaves ranks empty", "[testing][law]") {
  for (std::int64_t n = 0; n <= 64; ++n)
    for (std::int64_t p = 1; p <= 8; ++p) {
      std::int64_t a = 0, b = 0;
      for (std::int64_t r = 0; r < p; ++r) {
        a = (std::max)(a, hd::split::balanced::size(n, p, r));
        b = (std::max)(b, hd::split::ceil::size(n, p, r));
      }
      REQUIRE(a == b);
    }
  const auto empty = [](std::int64_t n, std::int64_t p) {
    int ranks = 0;
    for (std::int64_t r = 0; r < p; ++r) ranks += hd::split::ceil::size(n, p, r) == 0 ? 1 : 0;
    return ranks;
  };
  CHECK(empty(9, 8) == 3);
  CHECK(empty(17, 16) == 7);
}
