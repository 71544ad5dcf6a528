// heddle/compute/group/attention_members.hpp: the attention facets of backends that launch groups of threads: arguments are checked, then kernels are launched.
#pragma once

#include <heddle/compute/group/attention_tiles.hpp>
#include <heddle/compute/group/half_attention.hpp>
#include <heddle/compute/argument_checks.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/view.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

namespace heddle::inline v0::compute::detail::in_groups {

/// `attention` and `attention_backward` of kernels.hpp as members of `Backend`, whose tensors lie in `Space`.
/// `Backend::group_launcher(name)` launches kernels of that name on groups: `each_row`, `each_tile`, `tile_bytes` and `room`, as
/// compute/cuda/launcher.hpp describes them.
/// Slices and pages may lie on a device and are not looked at. Errors: `layout_error` if arguments do not fit together.
template <class Backend, class Space>
class attention_members {
  template <class T>
  using statistics_in = std::type_identity_t<row_view<const sum_of_type<T>, Space>>;
  template <class T>
  using statistics = std::type_identity_t<row_view<sum_of_type<T>, Space>>;
  template <class T>
  using heads = head_rows<T, Space>;
  template <class T>
  using in_heads = std::type_identity_t<heads<const T>>;
  template <class T>
  using matrix = matrix_view<T, Space>;
  template <class T>
  using in_matrix = std::type_identity_t<matrix<const T>>;
  using slices_row = row_view<const attention_slice, Space>;
  using pages_in = key_pages_in<Space>;

 public:
  template <class T>
  void attention(in_heads<T> q, in_heads<T> k, in_heads<T> v, slices_row slices, sum_of_type<T> scale, heads<T> out,
                 statistics<T> lse, pages_in pages = {}) {
    check_heads<T>("attention", q, k, v, scale, out, lse.size(), pages);
    attend(launcher("heddle::attention"), inputs<T>(q, k, v, listed(slices), scale, pages), at(out), lse.address());
  }
  template <class T>
  void attention_backward(in_heads<T> dout, in_heads<T> q, in_heads<T> k, in_heads<T> v, in_heads<T> out,
                          statistics_in<T> lse, slices_row slices, sum_of_type<T> scale, heads<T> dq,
                          std::type_identity_t<heads<T>> dk, std::type_identity_t<heads<T>> dv, pages_in pages = {}) {
    using checks = argument_checks;
    constexpr const char* kernel = "attention_backward";
    check_heads<T>(kernel, q, k, v, scale, out, lse.size(), pages);
    checks::same_heads<T>(kernel, "dout", addresses(out), addresses(dout));
    checks::same_heads<T>(kernel, "dq", addresses(q), addresses(dq));
    checks::same_heads<T>(kernel, "dk", addresses(k), addresses(dk));
    checks::same_heads<T>(kernel, "dv", addresses(v), addresses(dv));
    const std::int64_t keys = pages.page_rows == 0 ? k.rows : pages.pages.size() * pages.page_rows;
    backward<T>(inputs<T>(q, k, v, listed(slices), scale, pages), k.rows, k.heads, keys, dout, out, lse, dq, dk, dv);
  }
  template <class T>
  void attention(in_matrix<T> qkv, attention_shape s, matrix<T> out, statistics<T> lse) {
    check_sizes<T>("attention", s, qkv, out, lse.size());
    attend(launcher("heddle::attention"),
           inputs<T>(third(qkv, s, 0), third(qkv, s, 1), third(qkv, s, 2), causal_batch{s.sequence}, score_scale<T>(s),
                     {}),
           at(heads_of(out, s.heads, s.head_dim)), lse.address());
  }
  template <class T>
  void attention_backward(in_matrix<T> dout, in_matrix<T> qkv, in_matrix<T> out, statistics_in<T> lse,
                          attention_shape s, matrix<T> dqkv) {
    constexpr const char* kernel = "attention_backward";
    check_sizes<T>(kernel, s, qkv, out, lse.size());
    check_sizes<T>(kernel, s, matrix<const T>(dqkv), dout, lse.size());
    const heads<const T> of_out = heads_of(out, s.heads, s.head_dim), d_out = heads_of(dout, s.heads, s.head_dim);
    backward<T>(inputs<T>(third(qkv, s, 0), third(qkv, s, 1), third(qkv, s, 2), causal_batch{s.sequence},
                          score_scale<T>(s), {}),
                s.rows(), s.heads, s.rows(), d_out, of_out, lse, third(dqkv, s, 0), third(dqkv, s, 1),
                third(dqkv, s, 2));
  }

 private:
  friend Backend;
  attention_members() = default;

  auto launcher(const char* kernel) { return static_cast<Backend&>(*this).group_launcher(kernel); }

  // Sizes are checked by the host's functions, which look at no element.
  template <class T>
  static head_rows<T> addresses(const heads<T>& x) noexcept {
    return {x.data, x.rows, x.heads, x.head_dim, x.stride};
  }
  template <class T>
  static matrix_view<const T> addresses(const matrix<const T>& x) noexcept {
    return {x.address(), x.shape()};
  }
  template <class T>
  static void check_heads(const char* kernel, const heads<const T>& q, const heads<const T>& k, const heads<const T>& v,
                          sum_of_type<T> scale, const heads<const T>& out, std::int64_t lse, const pages_in& pages) {
    argument_checks::attention_arguments<T>(kernel, addresses(q), addresses(k), addresses(v), {}, scale, addresses(out),
                                            static_cast<std::size_t>(lse), key_pages{{}, pages.page_rows});
    if (checks_arguments && pages.page_rows == 0 && pages.pages.size() != 0) [[unlikely]]
      throw layout_error("heddle: " + std::string(kernel) + ": a table of " + std::to_string(pages.pages.size()) +
                         " pages needs the number of rows in a page, got 0");
  }
  template <class T>
  static void check_sizes(const char* kernel, const attention_shape& s, const matrix<const T>& qkv,
                          const std::type_identity_t<matrix<const T>>& out, std::int64_t lse) {
    argument_checks::attention_sizes<T>(kernel, s, addresses(qkv), addresses(out), static_cast<std::size_t>(lse));
  }
  template <class T, class Mask>
  static attention_inputs<T, Mask> inputs(const heads<const T>& q, const heads<const T>& k, const heads<const T>& v,
                                          const Mask& mask, sum_of_type<T> scale, const pages_in& pages) {
    return {at(q),   at(k),
            at(v),   q.rows,
            q.heads, k.heads == 0 ? 1 : q.heads / k.heads,
            mask,    {pages.pages.address(), pages.pages.size(), pages.page_rows},
            scale,   -(std::numeric_limits<sum_of_type<T>>::infinity)(),
            k.rows};
  }
  template <class T, class Mask>
  void backward(const attention_inputs<T, Mask>& in, std::int64_t rows, std::int64_t kv_heads, std::int64_t keys,
                const heads<const T>& dout, const heads<const T>& out, const statistics_in<T>& lse, const heads<T>& dq,
                const heads<T>& dk, const heads<T>& dv) {
    attend_backward(launcher("heddle::attention_backward"), in, rows, kv_heads, keys, at(dout), at(out), lse.address(),
                    at(dq), at(dk), at(dv));
  }
  static listed_slices listed(const slices_row& slices) noexcept { return {slices.address(), slices.size()}; }
  template <class T>
  static heads<T> third(const matrix<T>& qkv, const attention_shape& s, std::int64_t i) {
    return heads_of(qkv, s.heads, s.head_dim, i * s.width());
  }
  template <class T>
  static sum_of_type<T> score_scale(const attention_shape& s) {
    using S = sum_of_type<T>;
    return s.head_dim == 0 ? S(1) : S(1) / std::sqrt(static_cast<S>(s.head_dim));
  }
};

}  // namespace heddle::inline v0::compute::detail::in_groups
