// heddle/model/paper/backend.hpp: a backend that computes nothing and notes kernels.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/context_bodies.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/ops/products.hpp>
#include <heddle/core/type_name.hpp>
#include <heddle/model/paper/even_routes.hpp>
#include <heddle/model/paper/memory.hpp>
#include <heddle/model/paper/trace.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::model {

namespace detail {

// Query-key pairs that a mask leaves of so many rows of queries. Slices that nobody knows are taken to be equal causal sequences.
template <class Queue>
constexpr std::int64_t pairs_of(const Queue&, std::int64_t rows, const compute::attention_shape& s) noexcept {
  return causal_pairs(s.batch, rows);
}
template <class Queue, class Slices>
std::int64_t pairs_of(const Queue& queue, std::int64_t rows, const Slices& slices) {
  const compute::attention_slice* const first = first_element(slices);
  const auto n = static_cast<std::int64_t>(element_count(slices));
  std::int64_t pairs = 0;
  if constexpr (requires { queue.pairs_of(first, n); })
    pairs = queue.pairs_of(first, n);
  else if constexpr (space_of<Slices>::host_accessible)
    for (std::int64_t i = 0; i < n; ++i) pairs += first[i].area();
  else
    pairs = -1;
  return pairs >= 0 ? pairs : causal_pairs(n, rows);
}
// The name of an operation; of work on rows that of the template of the work.
template <class Op>
constexpr std::string_view name_of_operation() noexcept {
  if constexpr (requires { typename Op::work; }) {
    constexpr std::string_view name = short_type_name<typename Op::work>();
    return name.substr(0, name.find('<'));
  } else {
    return Op::name;
  }
}
// The operations of products, of attention and of work that says them; 0 of others.
template <class Op, class Queue, class X, class... Args>
std::int64_t operation_flops([[maybe_unused]] const Queue& queue, const X& x, const Args&... args) {
  if constexpr (std::is_base_of_v<compute::ops::product_operation, Op>) {
    return Op::flops(compute::dims_of<Op>(x, args...));
  } else if constexpr (requires { Op::mask_argument; }) {
    const auto n = compute::dims_of<Op>(x, args...);
    return Op::flops(n, pairs_of(queue, n[compute::ops::rows{}], std::get<Op::mask_argument>(std::tie(x, args...))));
  } else if constexpr (requires {
                         typename Op::work;
                         x.flops();
                       }) {
    return x.flops();
  } else {
    return 0;
  }
}
template <class T, class Space>
constexpr std::int64_t bytes_of_argument(const compute::head_numbers<T, Space>& x) noexcept {
  return x.rows * x.heads * static_cast<std::int64_t>(sizeof(T));
}
template <class X>
std::int64_t bytes_of_arguments(const X& x) noexcept {
  if constexpr (requires { x.tensors(); })
    return std::apply([](const auto&... all) { return (std::int64_t{0} + ... + bytes_of_argument(all)); }, x.tensors());
  else
    return bytes_of_argument(x);
}
}  // namespace detail

/// A backend that stands for `Like` on paper: it has the same kernels and facets, in `paper_memory`, and each call is noted
/// in `trace()`, nothing is computed. Stages take it as they are: what they hold is in `queue().bytes()`, what they compute
/// in the trace, what they send in a `paper_world`.
/// All experts of a mixture are taken to be chosen equally often (`experts` whose rows stay or `send_choices`).
template <class Like>
class paper_backend {
 public:
  using kind = compute::backend_kind;
  using space = paper_memory;
  using like = Like;

  paper_memory::queue& queue() noexcept { return queue_; }
  const kernel_trace& trace() const noexcept { return trace_; }
  kernel_trace& trace() noexcept { return trace_; }
  static constexpr int threads() noexcept { return 1; }
  static constexpr const char* gemm_name() noexcept { return "paper"; }
  static constexpr const char* half_product_name() noexcept
    requires requires(const Like& k) { k.half_product_name(); }
  {
    return "paper";
  }

  /// An operation, as `compute::run` calls it.
  template <class Op, class T, class... Args>
    requires compute::offered<Op, Like, T>
  void run(const Args&... args) {
    trace_.note(detail::name_of_operation<Op>(), detail::operation_flops<Op>(queue_, args...),
                (std::int64_t{0} + ... + detail::bytes_of_arguments(args)));
  }

 private:
  paper_memory::queue queue_;
  kernel_trace trace_;
};

}  // namespace heddle::inline v0::model
