// heddle/compute/group/attention_bodies.hpp: bodies of attention for groups of threads.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/group/attention_sinks.hpp>
#include <heddle/compute/group/attention_tiles.hpp>
#include <heddle/compute/group/half_attention.hpp>
#include <heddle/compute/group/split_matrix_attention.hpp>
#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/compute/ops/attention.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <limits>
#include <span>

namespace heddle::inline v0::compute::detail::in_groups {

// Namespaces of launchers name these bodies, with `using in_groups::body;`: launchers of groups, as compute/cuda/launcher.hpp
// describes them. Slices and pages may lie on a device and are not looked at.
template <class L>
concept launches_groups = requires(const L& on) { on.tile_bytes(); };

template <class T, class Mask>
attention_inputs<T, Mask> inputs_of(const head_rows<const T>& q, const head_rows<const T>& k,
                                    const head_rows<const T>& v, const Mask& mask, sum_of_type<T> scale,
                                    const key_pages& pages) {
  return {at(q),   at(k),
          at(v),   q.rows,
          q.heads, k.heads == 0 ? 1 : q.heads / k.heads,
          mask,    {pages.pages.data(), static_cast<std::int64_t>(pages.pages.size()), pages.page_rows},
          scale,   -(std::numeric_limits<sum_of_type<T>>::infinity)(),
          k.rows};
}
inline listed_slices listed(std::span<const attention_slice> slices) noexcept {
  return {slices.data(), static_cast<std::int64_t>(slices.size())};
}

/// Queries of which `pages` says that they are few of their sequence, as in decoding, in parts of their keys; others by tiles of queries.
template <launches_groups L, class T>
void body(ops::attention, const L& on, head_rows<const T> q, head_rows<const T> k, head_rows<const T> v,
          std::span<const attention_slice> slices, sum_of_type<T> scale, head_rows<T> out,
          std::span<sum_of_type<T>> lse, key_pages pages) {
  const auto in = inputs_of<T>(q, k, v, listed(slices), scale, pages);
  if constexpr (requires { on.multiplies_matrices(); })
    if (pages.most_keys > 0) {
      const auto few = static_cast<std::int64_t>(pages.few_rows.size());
      const split_queries of{few > 0 ? pages.few_rows.data() : nullptr, few > 0 ? few : q.rows};
      if (attend_few(on, in, of, pages.few_slices, pages.most_keys, at(out), lse.data())) return;
    }
  attend(on, in, at(out), lse.data());
}
template <launches_groups L, class T>
void body(ops::attention_backward, const L& on, head_rows<const T> dout, head_rows<const T> q, head_rows<const T> k,
          head_rows<const T> v, head_rows<const T> out, std::span<const sum_of_type<T>> lse,
          std::span<const attention_slice> slices, sum_of_type<T> scale, head_rows<T> dq, head_rows<T> dk,
          head_rows<T> dv, key_pages pages) {
  const std::int64_t keys =
      pages.page_rows == 0 ? k.rows : static_cast<std::int64_t>(pages.pages.size()) * pages.page_rows;
  attend_backward(on, inputs_of<T>(q, k, v, listed(slices), scale, pages), k.rows, k.heads, keys, at(dout), at(out),
                  lse.data(), at(dq), at(dk), at(dv));
}
template <class S>
capped<listed_slices, S> listed(std::span<const attention_slice> slices, S cap) noexcept {
  return {listed(slices), cap};
}
/// By tiles of queries, also where they are few of their sequence.
template <launches_groups L, class T>
void body(ops::capped_attention, const L& on, head_rows<const T> q, head_rows<const T> k, head_rows<const T> v,
          std::span<const attention_slice> slices, sum_of_type<T> scale, sum_of_type<T> cap, head_rows<T> out,
          std::span<sum_of_type<T>> lse, key_pages pages) {
  attend(on, inputs_of<T>(q, k, v, listed(slices, cap), scale, pages), at(out), lse.data());
}
template <launches_groups L, class T>
void body(ops::capped_attention_backward, const L& on, head_rows<const T> dout, head_rows<const T> q,
          head_rows<const T> k, head_rows<const T> v, head_rows<const T> out, std::span<const sum_of_type<T>> lse,
          std::span<const attention_slice> slices, sum_of_type<T> scale, sum_of_type<T> cap, head_rows<T> dq,
          head_rows<T> dk, head_rows<T> dv, key_pages pages) {
  const std::int64_t keys =
      pages.page_rows == 0 ? k.rows : static_cast<std::int64_t>(pages.pages.size()) * pages.page_rows;
  attend_backward(on, inputs_of<T>(q, k, v, listed(slices, cap), scale, pages), k.rows, k.heads, keys, at(dout),
                  at(out), lse.data(), at(dq), at(dk), at(dv));
}
template <launches_groups L, class T>
void body(ops::attention_sinks, const L& on, head_rows<const T> x, std::span<const T> sinks,
          std::span<sum_of_type<T>> lse, head_rows<T> y) {
  on.each_row(x.rows * x.heads, x.head_dim,
              attention_sinks_row<T>{at(x), x.rows, x.heads, sinks.data(), lse.data(), at(y)});
}
template <launches_groups L, class T>
void body(ops::attention_sinks_backward, const L& on, head_rows<const T> dout, head_rows<const T> out,
          std::span<const T> sinks, std::span<const sum_of_type<T>> lse, matrix_view<T> terms) {
  on.each_row(out.rows * out.heads, out.head_dim,
              attention_sinks_backward_row<T>{at(dout), at(out), out.rows, out.heads, sinks.data(), lse.data(),
                                              terms.address()});
}
template <launches_groups L, class T>
void body(ops::causal_attention, const L& on, matrix_view<const T> qkv, attention_shape s, matrix_view<T> out,
          std::span<sum_of_type<T>> lse) {
  attend(on,
         inputs_of<T>(third_of(qkv, s, 0), third_of(qkv, s, 1), third_of(qkv, s, 2), causal_batch{s.sequence},
                      score_scale<sum_of_type<T>>(s), {}),
         at(heads_of(out, s.heads, s.head_dim)), lse.data());
}
template <launches_groups L, class T>
void body(ops::causal_attention_backward, const L& on, matrix_view<const T> dout, matrix_view<const T> qkv,
          matrix_view<const T> out, std::span<const sum_of_type<T>> lse, attention_shape s, matrix_view<T> dqkv) {
  attend_backward(on,
                  inputs_of<T>(third_of(qkv, s, 0), third_of(qkv, s, 1), third_of(qkv, s, 2), causal_batch{s.sequence},
                               score_scale<sum_of_type<T>>(s), {}),
                  s.rows(), s.heads, s.rows(), at(heads_of(dout, s.heads, s.head_dim)),
                  at(heads_of(out, s.heads, s.head_dim)), lse.data(), at(third_of(dqkv, s, 0)),
                  at(third_of(dqkv, s, 1)), at(third_of(dqkv, s, 2)));
}

}  // namespace heddle::inline v0::compute::detail::in_groups
