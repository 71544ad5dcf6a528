// heddle/compute/launched_head_parts.hpp: copies and sums of a part of each head's elements, of backends whose kernels are launched in the order of a queue.
#pragma once

#include <heddle/compute/head_parts.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/host/head_parts.hpp>
#include <heddle/compute/kernels.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute::detail {

/// The kernels of `head_part_kernels` as members of `Backend`, whose tensors lie in `Space`.
template <class Backend, class Space>
class launched_head_parts {
 public:
  /// Errors: `layout_error` for other rows, for heads that are neither as many nor one, and for more columns than a head has.
  template <class T>
  void copy_heads(std::type_identity_t<head_rows<const T, Space>> x, std::int64_t columns, head_rows<T, Space> y) {
    if (x.heads != 1) expect("copy_heads", "heads of x", y.heads, x.heads);
    expect_head_parts("copy_heads", x.rows, x.head_dim, columns, y.rows, y.head_dim);
    launch_copy_heads(self().launcher(), x, columns, y);
  }
  /// Errors: as above, and for a y of other than one head.
  template <class T>
  void sum_heads(std::type_identity_t<head_rows<const T, Space>> x, std::int64_t columns, head_rows<T, Space> y) {
    expect("sum_heads", "heads of y", 1, y.heads);
    expect_head_parts("sum_heads", x.rows, x.head_dim, columns, y.rows, y.head_dim);
    launch_sum_heads(self().launcher(), x, columns, y);
  }

 private:
  Backend& self() noexcept { return static_cast<Backend&>(*this); }
};

}  // namespace heddle::inline v0::compute::detail
