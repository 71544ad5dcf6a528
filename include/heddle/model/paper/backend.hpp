// heddle/model/paper/backend.hpp: a backend that computes nothing and notes which kernels it is called with.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/kernel_list.hpp>
#include <heddle/compute/kernels.hpp>
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

// Of which kernel the operations are counted.
enum class counted_kernel { no, product, product_with_sums, attention, product_of_groups, sums_of_groups };
constexpr counted_kernel counted(std::string_view name) noexcept {
  if (name == "matmul_add_bias_backward") return counted_kernel::product_with_sums;
  if (name.starts_with("attention")) return counted_kernel::attention;
  if (name == "grouped_matmul") return counted_kernel::product_of_groups;
  if (name == "grouped_matmul_backward_weight") return counted_kernel::sums_of_groups;
  return name.starts_with("matmul") ? counted_kernel::product : counted_kernel::no;
}

template <compute::transpose, compute::transpose Right, class A, class B, class... Rest>
constexpr std::int64_t product_flops(const A& a, const B& b, const Rest&...) noexcept {
  return 2 * a.size() * b.extent(Right == compute::transpose::yes ? 0 : 1);
}
template <class A, class B, class... Rest>
constexpr std::int64_t product_with_sums_flops(const A& a, const B& b, const Rest&...) noexcept {
  return 2 * a.size() * b.extent(1);
}
// Of rows and their experts' weights: each row is multiplied with one expert's.
template <class X, class Offsets, class W, class Y, class... Rest>
constexpr std::int64_t product_of_groups_flops(const X& x, const Offsets&, const W&, const Y& y,
                                               const Rest&...) noexcept {
  return 2 * x.size() * y.extent(1);
}
template <class X, class D, class... Rest>
constexpr std::int64_t sums_of_groups_flops(const X& x, const D& dy, const Rest&...) noexcept {
  return 2 * x.size() * dy.extent(1);
}
// Query-key pairs that a mask leaves of so many rows of queries. Slices that nobody knows are taken to be equal causal sequences.
template <class Queue>
constexpr std::int64_t pairs_of(const Queue&, std::int64_t rows, const compute::attention_shape& s) noexcept {
  return causal_pairs(s.batch, rows);
}
template <class Queue, class Slices>
std::int64_t pairs_of(const Queue& queue, std::int64_t rows, const Slices& slices) {
  const compute::attention_slice* const first = heddle::v0::detail::first_element(slices);
  const auto n = static_cast<std::int64_t>(heddle::v0::detail::count_of(slices));
  std::int64_t pairs = 0;
  if constexpr (requires { queue.pairs_of(first, n); })
    pairs = queue.pairs_of(first, n);
  else if constexpr (space_of<Slices>::host_accessible)
    for (std::int64_t i = 0; i < n; ++i) pairs += first[i].area();
  else
    pairs = -1;
  return pairs >= 0 ? pairs : causal_pairs(n, rows);
}
template <auto Op, class Queue, class... Args>
std::int64_t attention_flops(const Queue& queue, const Args&... args) {
  const auto n = compute::dims_of<decltype(Op)>(args...);
  return Op.flops(n, pairs_of(queue, n[compute::ops::rows{}], std::get<Op.mask_argument>(std::tie(args...))));
}
template <counted_kernel What, auto... Values, class Queue, class... Args>
std::int64_t kernel_flops([[maybe_unused]] const Queue& queue, const Args&... args) {
  if constexpr (What == counted_kernel::product)
    return product_flops<Values...>(args...);
  else if constexpr (What == counted_kernel::product_with_sums)
    return product_with_sums_flops(args...);
  else if constexpr (What == counted_kernel::product_of_groups)
    return product_of_groups_flops(args...);
  else if constexpr (What == counted_kernel::sums_of_groups)
    return sums_of_groups_flops(args...);
  else if constexpr (What == counted_kernel::attention)
    return attention_flops<Values...>(queue, args...);
  else
    return 0;
}
}  // namespace detail

/// A backend that stands for `Like` on paper: it has the same kernels and facets, in `paper_memory`, and each call is noted
/// in `trace()`, nothing is computed. Stages take it as they are: what they hold is in `queue().bytes()`, what they compute
/// in the trace, what they send in a `paper_world`.
/// Kernels that return a number return 0; `all_finite` is true.
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
    note<void, detail::counted(Op::name), Op{}>(Op::name, args...);
  }

#define HEDDLE_PAPER_KERNEL(HEAD, NAME, CALL, VALUES)                                                                \
  HEAD                                                                                                               \
    requires requires(Like& k, const Args&... args) { CALL(compute::detail::argument_in<space_of<Like>>(args)...); } \
  auto NAME(const Args&... args) {                                                                                   \
    using result = decltype([](Like& k, const Args&... a) {                                                          \
      return CALL(compute::detail::argument_in<space_of<Like>>(a)...);                                               \
    }(std::declval<Like&>(), args...));                                                                              \
    return note<result, detail::counted(#NAME) VALUES>(#NAME, args...);                                              \
  }
#define HEDDLE_PAPER_PLAIN(NAME) HEDDLE_PAPER_KERNEL(template <class... Args>, NAME, k.NAME, )
#define HEDDLE_PAPER_OF_VALUES(NAME)                                                                                \
  HEDDLE_PAPER_KERNEL(template <auto... Values HEDDLE_PAPER_COMMA class... Args>, NAME, k.template NAME<Values...>, \
                      HEDDLE_PAPER_COMMA Values...)
#define HEDDLE_PAPER_OF_TYPE(NAME) \
  HEDDLE_PAPER_KERNEL(template <class Of HEDDLE_PAPER_COMMA class... Args>, NAME, k.template NAME<Of>, )
#define HEDDLE_PAPER_COMMA ,
  HEDDLE_EACH_KERNEL(HEDDLE_PAPER_PLAIN, HEDDLE_PAPER_OF_VALUES, HEDDLE_PAPER_OF_TYPE)
#undef HEDDLE_PAPER_COMMA
#undef HEDDLE_PAPER_OF_TYPE
#undef HEDDLE_PAPER_OF_VALUES
#undef HEDDLE_PAPER_PLAIN
#undef HEDDLE_PAPER_KERNEL

 private:
  template <class Result, detail::counted_kernel What, auto... Values, class... Args>
  Result note(std::string_view name, const Args&... args) {
    trace_.note(name, detail::kernel_flops<What, Values...>(queue_, args...),
                (std::int64_t{0} + ... + detail::bytes_of_argument(args)));
    if constexpr (std::is_same_v<Result, bool>)
      return true;
    else if constexpr (!std::is_void_v<Result>)
      return Result{};
  }

  paper_memory::queue queue_;
  kernel_trace trace_;
};

}  // namespace heddle::inline v0::model
