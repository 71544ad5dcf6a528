// heddle/compute/token_operators.hpp: embedding and cross-entropy with split vocabulary.
#pragma once

#include <heddle/compute/operator_kernel.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/text.hpp>
#include <heddle/tensor/global_runs.hpp>
#include <heddle/tensor/redistribute.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>

namespace heddle::inline v0::compute {
namespace detail {

// Errors: `layout_error` for a number outside of [least, end) among those that this rank holds.
template <class Op, class X>
void expect_numbers(const X& ids, bool may_be_ignored, std::int64_t end) {
  const auto held = ids.elements();
  heddle::v0::detail::for_each_global_run(
      ids.shape().extents(), ids.layout().part(ids.shape(), ids.rank()),
      [&](std::int64_t, std::int64_t local, std::int64_t count) {
        for (std::int64_t i = local; i < local + count; ++i) {
          const std::int64_t id = held[static_cast<std::size_t>(i)];
          if (id < end && (id >= 0 || may_be_ignored)) continue;
          throw layout_error(
              text_of({"heddle: apply<", short_type_name<Op>(), ">: ids should be in [0, ", end, "), got ", id}));
        }
      });
}

}  // namespace detail

template <int IdsRank>
struct operator_kernel<op::embedding<IdsRank>> : detail::kernel_base {
  static constexpr unsigned reads = 2;
  template <std::size_t, std::size_t Ids>
  static constexpr std::size_t rank = Ids + 1;
  template <std::size_t Table, std::size_t Ids>
  static constexpr bool fits = Table == 2 && Ids == static_cast<std::size_t>(IdsRank);
  template <class T, class Id>
  static constexpr bool takes = std::floating_point<T> && std::is_same_v<Id, std::int32_t>;
  template <class B, class T>
  static constexpr bool runs_on = embedding_facet::offered<B, T>;
  template <class Op, class X, class Ids>
  static auto shape(const X& table, const Ids& ids) {
    detail::expect_unpadded<Op>(table);
    detail::expect_unpadded<Op>(ids);
    detail::expect_numbers<Op>(ids, false, table.shape().extent(0));
    std::array<std::int64_t, Ids::dimensions + 1> extents{};
    for (std::size_t d = 0; d < Ids::dimensions; ++d) extents[d] = ids.shape().extent(d);
    extents[Ids::dimensions] = table.shape().extent(1);
    return make_shape(extents);
  }
  template <class C, class S, class Y, class X>
  static void forward(C& c, S&, Y& y, const X& table, const auto& ids) {
    run<ops::embedding>(c.backend, ids.elements(), detail::as_rows(table), detail::offset_along<0>(table),
                        detail::as_rows(y));
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C& c, S&, const auto& dy, const Y&, G& g, const X& table, const auto& ids) {
    if constexpr (detail::is_wanted<0, G>)
      run<ops::embedding_backward>(c.backend, ids.elements(), detail::as_rows(dy), detail::offset_along<0>(table),
                                   detail::as_rows(std::get<0>(g)));
  }
};

// Where the classes are split, the ranks' maxima, sums and target logits are combined over the axes that split them.
template <int Dim>
struct operator_kernel<op::cross_entropy<Dim>> : detail::kernel_base {
  static constexpr unsigned reads = 3;
  template <class T>
  struct state {
    buffer<T> top{}, sum{};
  };
  template <std::size_t R, std::size_t>
  static constexpr std::size_t rank = R - 1;
  template <std::size_t R, std::size_t Labels>
  static constexpr bool fits = Labels + 1 == R && Dim + 1 == static_cast<int>(R);
  template <class T, class Label>
  static constexpr bool takes = std::floating_point<T> && std::is_same_v<Label, std::int32_t>;
  template <class B, class T>
  static constexpr bool runs_on = cross_entropy_facet::offered<B, T> && offered<elementwise_facet, B, T>;
  template <class Op, class X, class Labels>
  static auto shape(const X& logits, const Labels& labels) {
    std::array<std::int64_t, X::dimensions - 1> extents{};
    for (std::size_t d = 0; d + 1 < X::dimensions; ++d) extents[d] = logits.shape().extent(d);
    const auto rows = make_shape(extents);
    detail::expect_shape<Op>(1, rows, labels);
    detail::expect_unpadded<Op>(logits);
    detail::expect_numbers<Op>(labels, true, logits.shape().extent(X::dimensions - 1));
    return rows;
  }
  template <class C, class S, class Y, class X>
  static void forward(C& c, S& s, Y& y, const X& logits, const auto& labels) {
    using T = typename X::value_type;
    const std::int64_t rows = detail::rows_count(logits);
    s.top = buffer<T>(rows);
    s.sum = buffer<T>(rows);
    buffer<T> picked(rows);
    const std::span<T> top = s.top, sum = s.sum, target = picked;
    run<ops::row_max>(c.backend, detail::as_rows(logits), top);
    combine<X>(c.world, top, maximum{});
    run<ops::row_sum_exp>(c.backend, detail::as_rows(logits), top, sum);
    combine<X>(c.world, sum, plus{});
    run<ops::pick_target>(c.backend, detail::as_rows(logits), labels.elements(), detail::offset_along<Dim>(logits),
                          target);
    combine<X>(c.world, target, plus{});
    for (std::size_t r = 0; r < sum.size(); ++r)
      y.elements()[r] = labels.elements()[r] < 0 ? T(0) : std::log(sum[r]) + top[r] - target[r];
  }
  template <class C, class S, class Y, class G, class X>
  static void backward(C& c, S& s, const auto& dy, const Y&, G& g, const X& logits, const auto& labels) {
    if constexpr (detail::is_wanted<0, G>) {
      using T = typename X::value_type;
      auto& to = std::get<0>(g);
      run<ops::copy>(c.backend, logits.elements(), to.elements());
      run<ops::cross_entropy_backward>(c.backend, detail::as_rows(to), s.top, s.sum, labels.elements(),
                                       detail::offset_along<Dim>(logits), T(1));
      detail::scale_rows(detail::as_rows(to), dy.elements());
    }
  }

 private:
  template <class X, class T, class Monoid>
  static void combine(auto& world, std::span<T> values, Monoid op) {
    constexpr unsigned axes = detail::axes_splitting<typename X::layout_type, Dim>();
    using tags = typename X::layout_type::mesh_type::tags;
    if constexpr (axes != 0)
      heddle::v0::detail::communicator_along<axes>(world, tags{}, type_list<>{}).all_reduce(values, op);
  }
};

}  // namespace heddle::inline v0::compute
