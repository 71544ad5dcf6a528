// heddle/compute/argument_checks.hpp: checks of sizes and indices, shared by the kernels of all backends.
#pragma once

#include <heddle/compute/check.hpp>
#include <heddle/compute/kernels.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace heddle::inline v0::compute::detail {

/// None without `checks_arguments`. Each throws a `layout_error` that names the kernel, the argument, what was expected and what came.
struct argument_checks {
  /// Arguments of one size: `sizes(kernel, columns, "elements of w", w.size(), "elements of b", b.size())`.
  template <class Size, class... More>
  static void sizes(const char* kernel, std::int64_t expected, const char* what, Size got, More... more) {
    expect(kernel, what, expected, got);
    if constexpr (sizeof...(More) > 0) sizes(kernel, expected, more...);
  }
  struct product_size {
    std::int64_t rows, columns, depth;
  };
  /// The size of c = op(a) op(b).
  template <bool TransposeA, bool TransposeB>
  static product_size product_size_of(const char* kernel, const auto& a, const auto& b, const auto& c) {
    const product_size size{c.extent(0), c.extent(1), a.extent(TransposeA ? 0 : 1)};
    expect(kernel, "rows of op(a)", size.rows, a.extent(TransposeA ? 1 : 0));
    expect(kernel, "rows of op(b)", size.depth, b.extent(TransposeB ? 1 : 0));
    expect(kernel, "columns of op(b)", size.columns, b.extent(TransposeB ? 0 : 1));
    return size;
  }
  static void groups(const char* kernel, std::span<const std::int64_t> offsets, std::int64_t count, std::int64_t rows) {
    if constexpr (!checks_arguments) return;
    expect(kernel, "elements of offsets (matrices + 1)", count + 1, offsets.size());
    for (std::size_t e = 0; e < offsets.size(); ++e)
      if (offsets[e] < (e == 0 ? 0 : offsets[e - 1]) || offsets[e] > rows) [[unlikely]]
        throw layout_error("heddle: " + std::string(kernel) + ": offsets should not descend and be from 0 to " +
                           std::to_string(rows) + ", the rows of x, got " + std::to_string(offsets[e]) + " at " +
                           std::to_string(e));
  }
  static void choices(const char* kernel, std::int64_t tokens, std::int64_t experts,
                      matrix_view<const std::int32_t> ids, std::int64_t rows, std::int64_t columns) {
    if constexpr (!checks_arguments) return;
    expect(kernel, "rows of ids", tokens, ids.extent(0));
    expect(kernel, "rows of weights", tokens, rows);
    expect(kernel, "columns of weights", ids.extent(1), columns);
    expect_choices(kernel, ids.extent(1), experts);
  }
  static void within(const char* kernel, const char* what, token_ids values, std::int64_t first, std::int64_t end) {
    indices_within(kernel, what, values, first, end);
  }
};

}  // namespace heddle::inline v0::compute::detail
