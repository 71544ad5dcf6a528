// heddle/model/paper/backend.hpp: a backend that computes nothing and notes which kernels it is called with.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/context_bodies.hpp>
#include <heddle/compute/kernel_list.hpp>
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

// Of which kernel the operations are counted.
enum class counted_kernel { no, attention, attention_backward };
constexpr counted_kernel counted(std::string_view name) noexcept {
  if (name == "attention") return counted_kernel::attention;
  return name == "attention_backward" ? counted_kernel::attention_backward : counted_kernel::no;
}
// Those of an operation with these arguments: of products.
template <class Op, class... Args>
std::int64_t operation_flops(const Args&... args) {
  if constexpr (std::is_base_of_v<compute::ops::product_operation, Op>)
    return Op::flops(compute::detail::sizes_of<Op>(args...));
  else
    return 0;
}

template <class Queue, class QKV, class... Rest>
constexpr std::int64_t attention_flops(const Queue&, const QKV&, const compute::attention_shape& s,
                                       const Rest&...) noexcept {
  return flops_of_attention(s.batch, s.rows(), s.heads, 2 * s.head_dim);
}
// Query-key pairs of slices; -1 where the host knows them not.
template <class Queue, class Slices>
std::int64_t pairs_of_slices(const Queue& queue, const Slices& slices) {
  const compute::attention_slice* const first = heddle::v0::detail::first_element(slices);
  const auto n = static_cast<std::int64_t>(heddle::v0::detail::count_of(slices));
  if constexpr (requires { queue.pairs_of(first, n); }) {
    return queue.pairs_of(first, n);
  } else if constexpr (space_of<Slices>::host_accessible) {
    std::int64_t pairs = 0;
    for (std::int64_t i = 0; i < n; ++i) pairs += first[i].area();
    return pairs;
  } else {
    return -1;
  }
}
template <class Queue, class T, class Space, class Slices, class... Rest>
std::int64_t attention_flops(const Queue& queue, const compute::head_rows<T, Space>& q,
                             const compute::head_rows<T, Space>&, const compute::head_rows<T, Space>& v,
                             const Slices& slices, const Rest&...) {
  const auto n = static_cast<std::int64_t>(heddle::v0::detail::count_of(slices));
  if (const std::int64_t pairs = pairs_of_slices(queue, slices); pairs >= 0)
    return 2 * pairs * q.heads * (q.head_dim + v.head_dim);
  // Slices that nobody knows are taken to be equal causal sequences.
  return flops_of_attention(n, q.rows, q.heads, q.head_dim + v.head_dim);
}
template <class Queue, class D, class QKV, class Out, class Lse, class... Rest>
constexpr std::int64_t attention_backward_flops(const Queue& queue, const D&, const QKV& qkv, const Out&, const Lse&,
                                                const compute::attention_shape& s, const Rest&...) noexcept {
  return 2 * attention_flops(queue, qkv, s);
}
template <class Queue, class T, class Space, class Lse, class Slices, class... Rest>
std::int64_t attention_backward_flops(const Queue& queue, const compute::head_rows<T, Space>&,
                                      const compute::head_rows<T, Space>& q, const compute::head_rows<T, Space>& k,
                                      const compute::head_rows<T, Space>& v, const compute::head_rows<T, Space>&,
                                      const Lse&, const Slices& slices, const Rest&...) {
  return 2 * attention_flops(queue, q, k, v, slices);
}
template <counted_kernel What, auto... Values, class Queue, class... Args>
std::int64_t kernel_flops([[maybe_unused]] const Queue& queue, const Args&... args) {
  if constexpr (What == counted_kernel::attention)
    return attention_flops(queue, args...);
  else if constexpr (What == counted_kernel::attention_backward)
    return attention_backward_flops(queue, args...);
  else
    return 0;
}

template <class T, class Space>
constexpr std::int64_t bytes_of_argument(const compute::head_numbers<T, Space>& x) noexcept {
  return x.rows * x.heads * static_cast<std::int64_t>(sizeof(T));
}
// A body of `compute::run_on_rows` as a kernel: the name of its template, its operations where it says them, its tensors.
template <class Body>
constexpr std::string_view name_of_body() noexcept {
  constexpr std::string_view name = short_type_name<Body>();
  return name.substr(0, name.find('<'));
}
template <class Body>
std::int64_t flops_of_body([[maybe_unused]] const Body& body) noexcept {
  if constexpr (requires { body.flops(); })
    return body.flops();
  else
    return 0;
}
template <class Body>
std::int64_t bytes_of_body(const Body& body) noexcept {
  return std::apply([](const auto&... x) { return (std::int64_t{0} + ... + bytes_of_argument(x)); }, body.tensors());
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
    trace_.note(Op::name, detail::operation_flops<Op>(args...),
                (std::int64_t{0} + ... + detail::bytes_of_argument(args)));
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

  /// See `compute::context_kernels`.
  template <class Body>
    requires requires(Like& k, std::int64_t n, const Body& body) { run_on_rows(k, n, n, body); }
  friend void run_on_rows(paper_backend& backend, std::int64_t, std::int64_t, const Body& body) {
    backend.trace_.note(detail::name_of_body<Body>(), detail::flops_of_body(body), detail::bytes_of_body(body));
  }

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
