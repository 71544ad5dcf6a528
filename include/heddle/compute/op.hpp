// heddle/compute/op.hpp: describes an operation once: checks, call, facet and cost follow.
//
// An operation is a struct with a name, the names of its arguments and a signature:
//   struct row_max : operation {
//     static constexpr const char* name = "row_max";
//     static constexpr const char* arguments[] = {"logits", "m"};
//     using dims = sizes<rows, columns>;
//     using takes = signature<in<rows, columns>, out_sums<rows>>;
//     static constexpr std::int64_t flops(const dims& n) { return n.product(); }
//   };
// A backend offers it by a body, a function that is found by argument-dependent look-up and checks nothing:
//   template <class T>
//   void body(ops::row_max, launcher&, std::int64_t rows, std::int64_t columns, const T* logits, sum_of_type<T>* m);
// It gets what `backend.launcher()` returns (the backend where it has no such member), the sizes in the order of
// `dims`, and the addresses and numbers in the order of the signature. What sizes alone do not say is checked by a member
// `check(n, addresses...)` of the operation, if it has one, and what memory holds by `check_values`, where the host can
// read it: after a wait for the queue. An operation with a member `turned`, such as a product, checks all sizes by itself:
// `expect_sizes(name, turned, sizes of arguments)`. A `sized_operation` has addresses that say their sizes (`head_rows`,
// `sized<in<...>>`): its bodies get no other sizes, and its `check(addresses...)` compares them.
#pragma once

#include <heddle/compute/check.hpp>
#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::compute {

/// The number that a kernel of sums adds to: an address on the host, a view of one element elsewhere.
template <class Space>
using number_in = std::conditional_t<std::is_same_v<Space, host_memory>, double*, scalar_view<double, Space>>;

namespace detail {
// Types follow by aliases alone: a class that is instantiated for each argument of each operation would cost all who
// compile.
struct own_element {
  template <class T>
  using of = T;
};
struct sum_element {
  template <class T>
  using of = sum_of_type<T>;
};
template <class E>
struct element_that_is {
  template <class>
  using of = E;
};
// The first type, the second or the third.
template <std::size_t>
struct typed_argument {
  template <class X, class...>
  using type = X;
};
template <>
struct typed_argument<1> {
  template <class, class X, class...>
  using type = X;
};
template <>
struct typed_argument<2> {
  template <class, class, class X>
  using type = X;
};
template <bool Writes>
struct access {
  template <class E>
  using of = E;
};
template <>
struct access<false> {
  template <class E>
  using of = const E;
};
template <std::size_t Rank>
struct view_of_rank {
  template <class E, class Space>
  using of = matrix_view<E, Space>;
};
template <>
struct view_of_rank<1> {
  template <class E, class Space>
  using of = row_view<E, Space>;
};
template <>
struct view_of_rank<3> {
  template <class E, class Space>
  using of = view<E, dynamic_shape<3>, Space>;
};

inline constexpr std::size_t most_dims = 3;
using argument_dims = std::array<const char*, most_dims>;
// Names a dimension.
template <class Dim>
inline constexpr char dimension = 0;

// A tensor that is an argument, whose element types follow from the operation's, T.
template <bool Reads, bool Writes, class Element, class... Dims>
struct tensor_argument {
  static_assert(sizeof...(Dims) >= 1 && sizeof...(Dims) <= most_dims);
  static constexpr bool has_own_elements = std::is_same_v<Element, own_element>;
  static constexpr argument_dims dims{&dimension<Dims>...};
  template <class T>
  using element = typename access<Writes>::template of<typename Element::template of<T>>;
  template <class T>
  using address = element<T>*;
  template <class T, class Space>
  using view = typename view_of_rank<sizeof...(Dims)>::template of<element<T>, Space>;
  template <class T, class Sizes>
  static constexpr std::int64_t bytes(const Sizes& n) {
    return (n[Dims{}] * ...) * static_cast<std::int64_t>(sizeof(element<T>)) * (Reads + Writes);
  }
};
// Rows of heads, whose address says how they lie.
template <bool Writes, class... Dims>
struct heads_argument {
  static constexpr bool has_own_elements = true;
  static constexpr argument_dims dims{&dimension<Dims>...};
  template <class T>
  using address = head_rows<typename access<Writes>::template of<T>>;
  template <class T, class Space>
  using view = head_rows<typename access<Writes>::template of<T>, Space>;
  template <class T, class Sizes>
  static constexpr std::int64_t bytes(const Sizes& n) {
    return (n[Dims{}] * ...) * static_cast<std::int64_t>(sizeof(T));
  }
};
// A number, which lies on the host.
template <class Element>
struct number_argument {
  static constexpr bool has_own_elements = false;
  static constexpr argument_dims dims{};
  template <class T>
  using address = typename Element::template of<T>;
  template <class T, class>
  using view = address<T>;
  template <class, class Sizes>
  static constexpr std::int64_t bytes(const Sizes&) {
    return 0;
  }
};
// A tensor whose address says its sizes; of rank 1 its elements in a row.
template <class Argument, std::size_t Rank>
struct sized_argument : Argument {
  template <class T, class Space>
  using view = typename view_of_rank<Rank>::template of<typename Argument::template element<T>, Space>;
  template <class T>
  using address = view<T, host_memory>;
};
// Where keys lie.
struct pages_argument : number_argument<element_that_is<key_pages>> {
  template <class, class Space>
  using view = key_pages_in<Space>;
};
// The number that is added to.
struct total_argument {
  static constexpr bool has_own_elements = false;
  static constexpr argument_dims dims{};
  template <class>
  using address = double*;
  template <class, class Space>
  using view = number_in<Space>;
  template <class, class Sizes>
  static constexpr std::int64_t bytes(const Sizes&) {
    return 2 * sizeof(double);
  }
};

// Its namespace is where the bodies of the host's backend are found.
struct operation_base {};
}  // namespace detail

/// The parts of which signatures of operations are made, and the operations.
namespace ops {
struct elements {};  ///< the dimension of operations element by element
struct rows {};      ///< a dimension of operations on matrices
struct columns {};   ///< the other one
struct heads {};     ///< a dimension of rows of heads

/// A tensor [Dims...] of the operation's element type that is read.
template <class... Dims>
using in = detail::tensor_argument<true, false, detail::own_element, Dims...>;
/// One that is overwritten.
template <class... Dims>
using out = detail::tensor_argument<false, true, detail::own_element, Dims...>;
/// One that is read and written.
template <class... Dims>
using inout = detail::tensor_argument<true, true, detail::own_element, Dims...>;
/// Rows of heads that are read, or overwritten: `in_heads<rows, heads, columns>`, with the columns of a head.
template <class Rows, class Heads, class Columns>
using in_heads = detail::heads_argument<false, Rows, Heads, Columns>;
/// Rows of heads that are overwritten.
template <class Rows, class Heads, class Columns>
using out_heads = detail::heads_argument<true, Rows, Heads, Columns>;
/// An argument whose address says its sizes.
template <class Argument>
using sized = detail::sized_argument<Argument, 2>;
/// One in a row of as many elements as the argument has, whose address says how many.
template <class Argument>
using sized_row = detail::sized_argument<Argument, 1>;
/// Where keys and values lie.
using pages = detail::pages_argument;
/// Statistics or sums that are read: of `sum_of_type<T>`.
template <class... Dims>
using in_sums = detail::tensor_argument<true, false, detail::sum_element, Dims...>;
/// Those that are overwritten.
template <class... Dims>
using out_sums = detail::tensor_argument<false, true, detail::sum_element, Dims...>;
/// Those that are read and written, such as gradients of weights.
template <class... Dims>
using inout_sums = detail::tensor_argument<true, true, detail::sum_element, Dims...>;
/// Token ids that are read.
template <class... Dims>
using in_ids = detail::tensor_argument<true, false, detail::element_that_is<std::int32_t>, Dims...>;
/// A tensor of another element type E that is read, or overwritten.
template <class E, class... Dims>
using in_of = detail::tensor_argument<true, false, detail::element_that_is<E>, Dims...>;
/// A tensor of another element type E that is overwritten.
template <class E, class... Dims>
using out_of = detail::tensor_argument<false, true, detail::element_that_is<E>, Dims...>;
/// A tensor of another element type E that is read and written.
template <class E, class... Dims>
using inout_of = detail::tensor_argument<true, true, detail::element_that_is<E>, Dims...>;
/// A number of `sum_of_type<T>`.
using number = detail::number_argument<detail::sum_element>;
/// A number or setting of this type.
template <class X>
using value = detail::number_argument<detail::element_that_is<X>>;
/// A number in double, in the backend's memory, that is added to (`number_in`).
using total = detail::total_argument;
/// A count or index.
using index = value<std::int64_t>;

/// The arguments of an operation, in the order of its calls.
template <class... Arguments>
struct signature {};

/// The sizes of an operation's dimensions, `n[rows{}]`.
template <class... Dims>
struct sizes {
  std::array<std::int64_t, sizeof...(Dims)> extents{};
  template <class Dim>
  constexpr std::int64_t operator[](Dim) const {
    static_assert((... || std::is_same_v<Dim, Dims>), "heddle: the operation has no such dimension");
    std::size_t at = 0;
    static_cast<void>((... || (std::is_same_v<Dim, Dims> || (++at, false))));
    return extents[at];
  }
  constexpr std::int64_t product() const {
    std::int64_t all = 1;
    for (const std::int64_t n : extents) all *= n;
    return all;
  }
};

/// The base of descriptions.
struct operation : detail::operation_base {};
/// The base of descriptions of operations whose addresses say their sizes.
struct sized_operation : operation {
  static constexpr bool has_sized_addresses = true;
};
/// The base of descriptions of operations on rows of matrices.
struct row_operation : operation {
  using dims = sizes<rows, columns>;
};
}  // namespace ops

namespace detail {
// Sizes of one argument.
struct argument_extents {
  std::int64_t n[most_dims] = {};
};
template <class Number>
constexpr argument_extents extents_of(const Number&) noexcept {
  return {};
}
template <class T>
constexpr argument_extents extents_of(const std::span<T>& x) noexcept {
  return {{static_cast<std::int64_t>(x.size())}};
}
template <class T, class Space>
constexpr argument_extents extents_of(const vector_view<T, Space>& x) noexcept {
  return {{x.extent(0)}};
}
template <class T, class Space>
constexpr argument_extents extents_of(const matrix_view<T, Space>& x) noexcept {
  return {{x.extent(0), x.extent(1)}};
}
template <class T, class Space>
constexpr argument_extents extents_of(const view<T, dynamic_shape<3>, Space>& x) noexcept {
  return {{x.extent(0), x.extent(1), x.extent(2)}};
}
template <class T, class Space>
constexpr argument_extents extents_of(const head_rows<T, Space>& x) noexcept {
  return {{x.rows, x.heads, x.head_dim}};
}
template <class Number>
constexpr const Number& address_of(const Number& x) noexcept {
  return x;
}
template <class T>
constexpr T* address_of(const std::span<T>& x) noexcept {
  return x.data();
}
template <class T, class Shape, class Space>
constexpr T* address_of(const view<T, Shape, Space>& x) noexcept {
  return x.address();
}
template <class T, class Space>
constexpr head_rows<T> address_of(const head_rows<T, Space>& x) noexcept {
  return {x.data, x.rows, x.heads, x.head_dim, x.stride, x.head_step};
}
// Errors: `layout_error` for an index that is not in [first, end).
inline void indices_within(const char* kernel, const char* what, std::span<const std::int32_t> indices,
                           std::int64_t first, std::int64_t end) {
  if constexpr (!checks_arguments) return;
  for (const std::int32_t x : indices)
    if (x < first || x >= end) [[unlikely]]
      throw layout_error("heddle: " + std::string(kernel) + ": " + what + " should be from " + std::to_string(first) +
                         " to " + std::to_string(end - 1) + ", got " + std::to_string(x));
}
template <class T>
void rows_apart(const char* kernel, const char* what, const head_rows<T>& x) {
  if constexpr (!checks_arguments) return;
  if (x.rows > 1 && x.stride < (x.lies_by_head() ? x.head_dim : x.width())) [[unlikely]]
    throw layout_error("heddle: " + std::string(kernel) + ": rows of " + what + " should be at least " +
                       std::to_string(x.width()) + " elements apart, got " + std::to_string(x.stride));
}

// The dimensions of all arguments, and where each size is given first: that of dimension d of argument a is number
// most_dims * a + d.
struct operation_layout {
  static constexpr std::size_t most_arguments = 13;
  const char* dims[most_arguments * most_dims] = {};
  std::uint8_t first[most_arguments * most_dims] = {};
  std::size_t typed = 0;  // the first argument of the operation's element type; 0 if all are sums
  unsigned compared = 0;  // bit a: argument a has a size that another one has given before
  consteval operation_layout(std::initializer_list<argument_dims> arguments, std::initializer_list<bool> own_elements) {
    for (std::size_t i = 0; i < most_dims * arguments.size(); ++i) {
      dims[i] = arguments.begin()[i / most_dims][i % most_dims];
      first[i] = dims[i] == nullptr ? static_cast<std::uint8_t>(i) : position(dims[i]);
      if (first[i] != i) compared |= 1u << i / most_dims;
    }
    for (std::size_t a = arguments.size(); a-- > 0;)
      if (own_elements.begin()[a]) typed = a;
  }
  consteval std::uint8_t position(const char* dim) const {  // an error here: a dimension that no argument has
    std::uint8_t i = 0;
    while (dims[i] != dim) ++i;
    return i;
  }
};
template <class Takes>
inline constexpr int layout_of = 0;
template <class... A>
inline constexpr operation_layout layout_of<ops::signature<A...>>{{A::dims...}, {A::has_own_elements...}};

constexpr std::int64_t extent_at(const argument_extents* arguments, std::size_t i) noexcept {
  return arguments[i / most_dims].n[i % most_dims];
}
constexpr bool fits(const operation_layout& layout, const argument_extents* got, std::size_t argument) noexcept {
  for (std::size_t i = most_dims * argument; i < most_dims * (argument + 1); ++i)
    if (extent_at(got, i) != extent_at(got, layout.first[i])) return false;
  return true;
}
[[gnu::always_inline]] constexpr bool fits_where_compared(const operation_layout& layout, const argument_extents* got,
                                                          std::size_t argument) noexcept {
  return (layout.compared >> argument & 1) == 0 || fits(layout, got, argument);
}
[[noreturn, gnu::noinline, gnu::cold]] inline void wrong_sizes(const char* name, const char* const* arguments,
                                                               const operation_layout& layout,
                                                               std::initializer_list<argument_extents> got) {
  std::size_t i = 0;
  const auto expected = [&] { return extent_at(got.begin(), layout.first[i]); };
  while (extent_at(got.begin(), i) == expected()) ++i;
  const std::size_t first = i / most_dims * most_dims;
  const char* const what = layout.dims[first + 1] == nullptr                     ? "elements of "
                           : i == first                                          ? "rows of "
                           : layout.dims[first + 2] == nullptr || i == first + 2 ? "columns of "
                                                                                 : "heads of ";
  mismatch(name, (what + std::string(arguments[i / most_dims])).c_str(), expected(), extent_at(got.begin(), i));
}

template <class Op>
concept is_sized = requires { Op::has_sized_addresses; };
template <class B>
constexpr decltype(auto) launcher_of(B& backend) noexcept {
  if constexpr (requires { backend.launcher(); })
    return backend.launcher();
  else
    return (backend);
}
template <class>
using extent_of = std::int64_t;
// Whether the host can read what arguments hold, once a queue of the launcher is done.
template <class Space, class Launcher>
inline constexpr bool host_reads = std::is_same_v<Space, host_memory>;
template <class Space, class Launcher>
  requires requires { Launcher::host_can_read; }
inline constexpr bool host_reads<Space, Launcher> = Launcher::host_can_read;

// The type of the function that is a body.
template <class Op, class T, class Launcher, class Takes = typename Op::takes, class Dims = typename Op::dims>
struct body_of;
template <class Op, class T, class Launcher, class... A, class... D>
struct body_of<Op, T, Launcher, ops::signature<A...>, ops::sizes<D...>> {
  using type = void(Op, Launcher, extent_of<D>..., typename A::template address<T>...);
};
template <is_sized Op, class T, class Launcher, class... A, class... D>
struct body_of<Op, T, Launcher, ops::signature<A...>, ops::sizes<D...>> {
  using type = void(Op, Launcher, typename A::template address<T>...);
};
template <class Op, class T, class Launcher>
using body_type = typename body_of<Op, T, Launcher>::type;

// Whether a backend takes an operation with such arguments as it is.
template <class B, class Op, class T, class... V>
concept has_run = requires(B& b, const V&... v) { b.template run<Op, T>(v...); };
template <class Op, class T, class B, class Takes>
inline constexpr bool runs_itself = false;
template <class Op, class T, class B, class... A>
inline constexpr bool runs_itself<Op, T, B, ops::signature<A...>> =
    requires(B& b, typename A::template view<T, space_of<B>>... v) { b.template run<Op, T>(v...); };
template <class Op, class T, class B, class Takes, class Dims>
inline constexpr bool has_body = false;
template <class Op, class T, class B, class... A, class... D>
inline constexpr bool has_body<Op, T, B, ops::signature<A...>, ops::sizes<D...>> =
    requires(B& b, extent_of<D>... n, typename A::template address<T>... v) { body(Op{}, launcher_of(b), n..., v...); };
template <is_sized Op, class T, class B, class... A, class... D>
inline constexpr bool has_body<Op, T, B, ops::signature<A...>, ops::sizes<D...>> =
    requires(B& b, typename A::template address<T>... v) { body(Op{}, launcher_of(b), v...); };

// The same for all backends with this launcher.
template <class Op, class T, class Space, class... A, class... D, class Launcher>
constexpr void call(ops::signature<A...>*, ops::sizes<D...>*, Launcher&& launcher,
                    typename A::template view<T, Space>... v) {
  constexpr const operation_layout& layout = layout_of<ops::signature<A...>>;
  const argument_extents got[] = {extents_of(v)...};
  if constexpr (checks_arguments && requires { Op::turned; }) {
    Op::expect_sizes(Op::name, Op::turned, got);
  } else if constexpr (checks_arguments) {
    std::size_t a = 0;
    if (!((static_cast<void>(v), fits_where_compared(layout, got, a++)) && ...)) [[unlikely]]
      wrong_sizes(Op::name, Op::arguments, layout, {extents_of(v)...});
  }
  if constexpr (checks_arguments && requires(const typename Op::dims& n) { Op::check(n, address_of(v)...); })
    Op::check({{extent_at(got, layout.position(&dimension<D>))...}}, address_of(v)...);
  if constexpr (checks_arguments && host_reads<Space, std::remove_cvref_t<Launcher>> &&
                requires(const typename Op::dims& n) { Op::check_values(n, address_of(v)...); }) {
    if constexpr (requires { launcher.queue.wait(); }) launcher.queue.wait();
    Op::check_values({{extent_at(got, layout.position(&dimension<D>))...}}, address_of(v)...);
  }
  body(Op{}, launcher, extent_at(got, layout.position(&dimension<D>))..., address_of(v)...);
}
// The same of operations whose addresses say their sizes.
template <class Op, class T, class Space, class... A, class Launcher>
constexpr void call_sized(ops::signature<A...>*, Launcher&& launcher, typename A::template view<T, Space>... v) {
  if constexpr (checks_arguments) {
    Op::check(argument_in<host_memory>(v)...);
    if constexpr (host_reads<Space, std::remove_cvref_t<Launcher>> &&
                  requires { Op::check_values(argument_in<host_memory>(v)...); }) {
      if constexpr (requires { launcher.queue.wait(); }) launcher.queue.wait();
      Op::check_values(argument_in<host_memory>(v)...);
    }
  }
  body(Op{}, launcher, argument_in<host_memory>(v)...);
}
// Which argument names the element type; 2: the operation does.
template <class Op>
inline constexpr std::size_t typed_argument_of = layout_of<typename Op::takes>.typed;
template <class Op>
  requires requires { typename Op::value_type; }
inline constexpr std::size_t typed_argument_of<Op> = 2;
}  // namespace detail

/// Whether backend B offers a facet or operation for elements of type T.
template <class F, class B, class T>
inline constexpr bool offered = F::template offered<B, T>;
template <class Op, class B, class T>
  requires requires { typename Op::takes; }
inline constexpr bool offered<Op, B, T> = detail::runs_itself<Op, T, B, typename Op::takes> ||
                                          detail::has_body<Op, T, B, typename Op::takes, typename Op::dims>;

/// The facet of several operations.
template <class... Ops>
struct operations {
  template <class B, class T>
  static constexpr bool offered = (compute::offered<Ops, B, T> && ...);
};

/// Runs an operation on a backend: `run<ops::row_max>(backend, logits, m)`. The element type is that of the
/// first tensor that has the operation's; the other arguments convert to theirs. What is written is given as a view,
/// not as a container. A backend with a member template `run<Op, T>(arguments...)` gets the call as it is: a wrapper
/// that counts, delays or changes operations.
/// Errors: `layout_error` if sizes of arguments differ; a compile error for an operation that the backend does not
/// offer.
template <class Op, class B, class X, class Y, class... V>
constexpr void run(B& backend, const X& x, const Y& y, const V&... v) {
  using takes = typename Op::takes;
  using dims = typename Op::dims;
  using T = typename detail::typed_argument<detail::typed_argument_of<Op>>::template type<X, Y, Op>::value_type;
  static_assert(offered<Op, B, T>,
                "heddle: the backend offers no such operation: run<operation>(backend, ...) names it; give it a "
                "body(operation, launcher, sizes..., addresses...) (compute/op.hpp), or take a backend that has it");
  if constexpr (detail::runs_itself<Op, T, B, takes>)
    backend.template run<Op, T>(x, y, v...);
  else if constexpr (offered<Op, B, T> && detail::is_sized<Op>)
    detail::call_sized<Op, T, space_of<B>>(static_cast<takes*>(nullptr), detail::launcher_of(backend), x, y, v...);
  else if constexpr (offered<Op, B, T>)
    detail::call<Op, T, space_of<B>>(static_cast<takes*>(nullptr), static_cast<dims*>(nullptr),
                                     detail::launcher_of(backend), x, y, v...);
}

namespace detail {
template <class Op, class... D, class... V>
constexpr ops::sizes<D...> dims_of(ops::sizes<D...>*, const V&... v) {
  const argument_extents got[] = {extents_of(v)...};
  return {{extent_at(got, layout_of<typename Op::takes>.position(&dimension<D>))...}};
}
template <class T, class... A, class N>
constexpr std::int64_t bytes_of(ops::signature<A...>*, const N& n) {
  return (A::template bytes<T>(n) + ...);
}
}  // namespace detail

/// The sizes of a call's dimensions, from its views.
template <class Op, class... V>
constexpr typename Op::dims dims_of(const V&... v) {
  return detail::dims_of<Op>(static_cast<typename Op::dims*>(nullptr), v...);
}

/// Bytes that an operation on elements of type T moves at least: each tensor once, and twice where it is read and
/// written.
template <class Op, class T>
constexpr std::int64_t bytes_moved(const typename Op::dims& n) {
  return detail::bytes_of<T>(static_cast<typename Op::takes*>(nullptr), n);
}

}  // namespace heddle::inline v0::compute
