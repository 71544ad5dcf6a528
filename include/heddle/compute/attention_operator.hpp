// heddle/compute/attention_operator.hpp: attention of q, k, v [batch, heads, sequence, size].
#pragma once

#include <heddle/compute/operator_kernel.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace heddle::inline v0::compute {

/// Scores are scaled by 1 / sqrt(head_dim). The setting is the mask: `slice_mask::causal` (the default: the last query
/// sees all keys) or `slice_mask::full`. Queries may be split along the sequence. There may be fewer heads of keys and values than
/// of queries: a divisor, and query head h reads key-value head h * key-value heads / query heads.
/// Errors: `layout_error` also where heads that share keys and values lie on several ranks.
template <>
struct operator_kernel<op::attention> : detail::kernel_base {
  static constexpr unsigned reads = 7;
  static constexpr bool reads_result = true;
  using setting_type = slice_mask;
  static constexpr slice_mask default_value = slice_mask::causal;
  template <class T>
  struct state {
    buffer<sum_of_type<T>> lse{};
    std::vector<attention_slice> slices{};
  };
  template <std::size_t...>
  static constexpr std::size_t rank = 4;
  template <std::size_t... R>
  static constexpr bool fits = ((R == 4) && ...);
  template <class B, class T>
  static constexpr bool runs_on = sliced_attention_facet::offered<B, T>;
  template <class Op, class X>
  static auto shape(const X& q, const auto& k, const auto& v) {
    const auto e = q.shape().extents();
    const std::int64_t keys = k.shape().extent(2), width = v.shape().extent(3), shared = k.shape().extent(1);
    const bool grouped = shared > 0 && e[1] % shared == 0;
    detail::expect_shape<Op>(1, make_shape(std::array{e[0], grouped ? shared : e[1], keys, e[3]}), k);
    detail::expect_shape<Op>(2, make_shape(std::array{e[0], k.shape().extent(1), keys, width}), v);
    if (grouped && shared != e[1]) require_whole_groups(q, k, e[1] / shared);
    detail::expect_unpadded<Op>(q);
    detail::expect_unpadded<Op>(k);
    detail::expect_unpadded<Op>(v);
    return make_shape(std::array{e[0], e[1], e[2], width});
  }
  // The query heads that share a head of keys and values must lie where that head does.
  static void require_whole_groups(const auto& q, const auto& k, std::int64_t group) {
    const std::int64_t first = detail::offset_along<1>(q), count = q.local_shape().extent(1);
    const std::int64_t first_shared = detail::offset_along<1>(k), shared = k.local_shape().extent(1);
    if (count == group * shared && (count == 0 || first == group * first_shared)) return;
    const auto heads = [](std::int64_t from, std::int64_t n) {
      return "[" + std::to_string(from) + ", " + std::to_string(from + n) + ")";
    };
    throw layout_error(
        "heddle: apply<attention>: rank " + std::to_string(q.rank()) + " holds query heads " + heads(first, count) +
        " and key-value heads " + heads(first_shared, shared) + ", but each " + std::to_string(group) +
        " query heads share one of keys and values: the split cuts a group of heads; split heads over an "
        "axis whose ranks divide the key-value heads (" +
        std::to_string(k.shape().extent(1)) + "), or redistribute q, k and v to whole heads");
  }
  // Each head of each sample is a sequence of rows with one head.
  template <class X>
  static auto heads(X& x) {
    const auto rows = detail::as_rows(x);
    using element = std::remove_pointer_t<decltype(rows.data())>;
    return head_rows<element>{rows.data(), rows.extent(0), 1, rows.extent(1), rows.extent(1)};
  }
  static std::vector<attention_slice> slices_of(slice_mask mask, const auto& q, const auto& k) {
    if (mask != slice_mask::full && mask != slice_mask::causal)
      throw layout_error(std::string("heddle: apply<attention>: the mask should be causal or full, got ") +
                         to_string(mask));
    const auto mine = q.local_shape(), seen = k.local_shape();
    const std::int64_t queries = mine.extent(2), keys = seen.extent(2), sequences = mine.extent(0) * mine.extent(1);
    const std::int64_t first = k.shape().extent(2) - q.shape().extent(2) + detail::offset_along<2>(q);
    const std::int64_t group =
        seen.extent(1) == 0 ? 1 : mine.extent(1) / seen.extent(1);  // samples follow each other in both
    std::vector<attention_slice> slices;
    for (std::int64_t i = 0; i < sequences; ++i) {
      const std::int64_t from = i * queries, at = i / group * keys;
      if (mask == slice_mask::full)
        slices.push_back({from, from + queries, at, at + keys, slice_mask::full});
      else
        for (const attention_slice& s : causal_at(from, from + queries, first, at, at + keys, 0)) slices.push_back(s);
    }
    return slices;
  }
  template <class X>
  static auto scale_of(const X& q) {
    using S = sum_of_type<typename X::value_type>;
    return S(1) / std::sqrt(static_cast<S>(q.shape().extent(3)));
  }
  template <class C, class S, class Y, class X>
  static void forward(C& c, S& s, Y& y, const X& q, const auto& k, const auto& v) {
    using T = typename X::value_type;
    s.lse = buffer<sum_of_type<T>>(detail::rows_count(q));
    s.slices = slices_of(c.setting, q, k);
    run<ops::attention>(c.backend, heads(q), heads(k), heads(v), std::span<const attention_slice>(s.slices),
                        scale_of(q), heads(y), std::span<sum_of_type<T>>(s.lse), key_pages{});
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C& c, S& s, const auto& dy, const Y& y, G& g, const X& q, const auto& k, const auto& v) {
    using T = typename X::value_type;
    buffer<T> rest[3];
    const auto to = [&]<std::size_t At>(std::integral_constant<std::size_t, At>, const auto& x) {
      if constexpr (detail::is_wanted<At, G>) {
        return heads(std::get<At>(g));
      } else {
        rest[At] = buffer<T>(static_cast<std::int64_t>(x.elements().size()));
        const auto rows = detail::as_rows(x);
        return head_rows<T>{rest[At].data(), rows.extent(0), 1, rows.extent(1), rows.extent(1)};
      }
    };
    run<ops::attention_backward>(
        c.backend, heads(dy), heads(q), heads(k), heads(v), heads(y), s.lse, std::span<const attention_slice>(s.slices),
        scale_of(q), to(std::integral_constant<std::size_t, 0>{}, q), to(std::integral_constant<std::size_t, 1>{}, k),
        to(std::integral_constant<std::size_t, 2>{}, v), key_pages{});
  }
};

}  // namespace heddle::inline v0::compute
