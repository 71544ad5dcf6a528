// heddle/compute/launched_cache.hpp: the cache facet of backends whose kernels are launched in the order of a queue: arguments are checked, then kernels are launched.
#pragma once

#include <heddle/compute/argument_checks.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/launched_indices.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::compute::detail {

/// The kernels of `cache_kernels` as members of `Backend`, whose tensors lie in `Space`. `Backend` has `queue()` and `launcher()`, whose namespace has
/// `launch_store_rows(launcher, x, rows, to)` and `launch_add_rows(launcher, rows, columns, x, table, ids)`, on addresses.
template <class Backend, class Space>
class launched_cache_members {
  using ids_row = vector_view<const std::int32_t, Space>;

 public:
  /// Errors: `layout_error` for heads of other sizes, and for rows that are not there where kernels run on the host.
  template <class T>
  void store_rows(std::type_identity_t<head_rows<const T, Space>> x, ids_row rows, head_rows<T, Space> to) {
    expect("store_rows", "rows of x", x.rows, rows.size());
    expect("store_rows", "heads of the cache", x.heads, to.heads);
    expect("store_rows", "columns of a head of the cache", x.head_dim, to.head_dim);
    rows_apart("store_rows", "x", address_of(x));
    rows_apart("store_rows", "the cache", address_of(to));
    indices_within(self().launcher(), self().queue(), "store_rows", "rows", rows, 0, to.rows);
    launch_store_rows(self().launcher(), x, rows.address(), to);
  }
  /// Errors: `layout_error` for ids that the table does not have, where kernels run on the host.
  template <class T>
  void add_rows(matrix_view<T, Space> x, std::type_identity_t<matrix_view<const T, Space>> table, ids_row ids) {
    expect("add_rows", "elements of ids", x.extent(0), ids.size());
    expect("add_rows", "columns of the table", x.extent(1), table.extent(1));
    indices_within(self().launcher(), self().queue(), "add_rows", "ids", ids, 0, table.extent(0));
    launch_add_rows(self().launcher(), x.extent(0), x.extent(1), x.address(), table.address(), ids.address());
  }

 private:
  friend Backend;
  launched_cache_members() = default;

  Backend& self() noexcept { return static_cast<Backend&>(*this); }
};

}  // namespace heddle::inline v0::compute::detail
