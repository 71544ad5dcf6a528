// heddle/testing/report.hpp: the result of a checked law, for any test framework.
#pragma once

#include <heddle/core/config.hpp>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace heddle::inline v0 {
namespace testing {

/// The answer of a law: whether it held, in how many cases, and if not, the first case in which it did not: seed, mesh, layout,
/// shape, index, expected and got. `what` is empty when the law held.
/// `INFO(to_string(r)); CHECK(r.ok())`, `EXPECT_TRUE(r.ok()) << to_string(r)`, or `if (!r.ok()) ...`.
struct report {
  bool held = true;
  std::string what{};
  std::int64_t cases = 0;

  bool ok() const noexcept { return held; }
  /// Adds another law's answer: the first failure stays.
  report& operator+=(report other) {
    cases += other.cases;
    if (held && !other.held) {
      held = false;
      what = std::move(other.what);
    }
    return *this;
  }
};

/// A report that the law did not hold, after `cases` cases that were looked at.
inline report failure(std::string text, std::int64_t cases = 1) {
  return {false, std::move(text), cases};
}

namespace detail {
/// What is being thrown, for a report; to be called in a handler.
HEDDLE_INLINE std::string thrown_text();
}  // namespace detail

/// `"holds in 1234 cases"`, or what went wrong.
HEDDLE_INLINE std::string to_string(const report& r);

/// What can be wrong with the arithmetic of a split, a layout or an operator.
enum class problem : unsigned char {
  none,
  no_case,
  size_is_negative,
  sizes_do_not_sum,
  owner_out_of_range,
  local_out_of_range,
  global_out_of_range,
  to_global_does_not_undo_to_local,
  owner_does_not_hold,
  run_out_of_range,
  run_is_not_consecutive,
  stored_less_than_size,
  not_contiguous,
  another_number_of_holders,
  another_number_of_primaries,
  owner_is_not_the_lowest_holder,
  another_number_of_elements,
  held_in_one_layout_only,
  in_another_place,
  left_identity,
  right_identity,
  associativity,
  commutativity,
};

constexpr std::string_view to_string(problem p) noexcept {
  constexpr std::string_view names[]{
      "nothing",
      "no case was checked",
      "the size of a part is negative",
      "the sizes of the parts do not sum to the whole",
      "owner is not one of the parts",
      "to_local is outside of the owner's part",
      "to_global is outside of the whole",
      "to_global(to_local(x)) is not x",
      "the owner of to_global(local) is another part",
      "run does not fit its part",
      "the elements of a run are not consecutive in the whole",
      "stored is less than size",
      "a contiguous split has parts that are not intervals in rank order",
      "an element has another number of holders than the layout promises",
      "an element has another number of primary holders than one per contribution",
      "owner is not the lowest rank that holds the element",
      "a rank holds another number of elements than its local shape has",
      "a rank holds an element in one of two layouts only",
      "a rank holds an element in another place than in the other layout",
      "identity on the left changes a value",
      "identity on the right changes a value",
      "op(a, op(b, c)) is not op(op(a, b), c)",
      "op(a, b) is not op(b, a), though the operator is declared commutative",
  };
  return names[static_cast<unsigned>(p)];
}

/// The first mistake in numbers, or none; a constexpr value, which a compiler prints where a static law fails (`law_holds`).
/// A place that does not apply is -1. Where something is out of range, `expected` is the end of the range. Units: elements and ranks.
struct finding {
  problem what = problem::none;
  std::int64_t extent = -1;  ///< elements of the whole (or of the dimension)
  std::int64_t parts = -1;   ///< ranks
  std::int64_t rank = -1;
  std::int64_t at = -1;  ///< index of the element, row-major
  std::int64_t expected = -1;
  std::int64_t got = -1;
  std::int64_t cases = 0;

  constexpr bool ok() const noexcept { return what == problem::none; }
};

/// `"extent 7 over 3 parts, part 1, index 4: to_global(to_local(x)) is not x: expected 4, got 5"`.
HEDDLE_INLINE std::string to_string(const finding& f);

/// The report of a finding; `where` says what was looked at.
HEDDLE_INLINE report report_of(const finding& f, std::string_view where);

/// Carries a finding into the compiler's message: see `HEDDLE_STATIC_LAW`.
template <finding Finding>
struct law_holds {
  static_assert(Finding.ok(),
                "heddle: a law does not hold; the finding in this message says what, where, expected and got");
  static constexpr bool value = true;
};

}  // namespace testing
}  // namespace heddle::inline v0

/// Checks a law at compile time: `HEDDLE_STATIC_LAW(heddle::testing::partition(weight{}, heddle::shape<7, 5>{}));`
/// Where it does not hold, the compiler's message shows the finding: what, rank, index, expected, got.
#define HEDDLE_STATIC_LAW(...) static_assert(::heddle::testing::law_holds<(__VA_ARGS__)>::value)

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/testing/impl/report.hpp>
#endif
