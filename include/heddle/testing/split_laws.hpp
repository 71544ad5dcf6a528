// heddle/testing/split_laws.hpp: laws of split policies: parts cover once, maps invert.
#pragma once

#include <heddle/core/type_name.hpp>
#include <heddle/testing/report.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0 {
namespace testing {

/// The laws of split policy `P` for one dimension of `n` elements over `p` parts (a policy as in core/split.hpp):
/// the sizes sum to n; owner, to_local and to_global are inverse; runs are consecutive; memory suffices; a policy that says
/// it is contiguous has intervals in rank order.
template <class P>
constexpr finding split(std::int64_t n, std::int64_t p) {
  finding f{problem::none, n, p};
  const auto wrong = [&](problem what, std::int64_t rank, std::int64_t at, std::int64_t expected, std::int64_t got) {
    f = {what, n, p, rank, at, expected, got, f.cases};
    return f;
  };
  std::int64_t sum = 0;
  for (std::int64_t r = 0; r < p; ++r) {
    const std::int64_t size = P::size(n, p, r);
    if (size < 0) return wrong(problem::size_is_negative, r, -1, 0, size);
    if (P::stored(n, p, r) < size) return wrong(problem::stored_less_than_size, r, -1, size, P::stored(n, p, r));
    for (std::int64_t local = 0; local < size;) {
      const std::int64_t run = P::run(n, p, r, local);
      if (run < 1 || run > size - local) return wrong(problem::run_out_of_range, r, local, size - local, run);
      const std::int64_t first = P::to_global(n, p, r, local);
      for (std::int64_t i = 0; i < run; ++i, ++local, ++f.cases) {
        const std::int64_t global = P::to_global(n, p, r, local);
        if (global < 0 || global >= n) return wrong(problem::global_out_of_range, r, local, n, global);
        if (global != first + i) return wrong(problem::run_is_not_consecutive, r, local, first + i, global);
        if (P::contiguous && global != sum + local)
          return wrong(problem::not_contiguous, r, local, sum + local, global);
        if (P::owner(n, p, global) != r)
          return wrong(problem::owner_does_not_hold, r, global, r, P::owner(n, p, global));
      }
    }
    sum += size;
  }
  if (sum != n) return wrong(problem::sizes_do_not_sum, -1, -1, n, sum);
  for (std::int64_t global = 0; global < n; ++global) {
    const std::int64_t r = P::owner(n, p, global);
    if (r < 0 || r >= p) return wrong(problem::owner_out_of_range, -1, global, p, r);
    const std::int64_t local = P::to_local(n, p, global);
    if (local < 0 || local >= P::size(n, p, r))
      return wrong(problem::local_out_of_range, r, global, P::size(n, p, r), local);
    const std::int64_t back = P::to_global(n, p, r, local);
    if (back != global) return wrong(problem::to_global_does_not_undo_to_local, r, global, global, back);
  }
  ++f.cases;
  return f;
}

/// The laws of a split policy for every size up to `most_elements` and up to `most_parts` parts that the policy fits.
/// For a static law choose small numbers: the work grows with their squares.
template <class P>
constexpr finding split_policy(std::int64_t most_elements, std::int64_t most_parts) {
  std::int64_t cases = 0;
  for (std::int64_t p = 1; p <= most_parts; ++p)
    for (std::int64_t n = 0; n <= most_elements; ++n) {
      if (!P::fits(n, p)) continue;
      finding f = split<P>(n, p);
      cases += f.cases;
      f.cases = cases;
      if (!f.ok()) return f;
    }
  if (cases == 0) return {problem::no_case, most_elements, most_parts};
  finding f;
  f.cases = cases;
  return f;
}

/// The laws of a split policy, one of heddle's or a user's own, for all sizes from 0 to 64 and 1 to 8 parts, or as told.
/// Errors: none is thrown; a policy that fits no size in range is reported.
template <class P>
[[nodiscard]] report check_split_policy(std::int64_t most_elements = 64, std::int64_t most_parts = 8) {
  std::string where = "split policy ";
  where += short_type_name<P>();
  return report_of(split_policy<P>(most_elements, most_parts), where);
}

}  // namespace testing
}  // namespace heddle::inline v0
