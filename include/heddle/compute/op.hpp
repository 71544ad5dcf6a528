// heddle/compute/op.hpp: describes an operation of a backend once; checks, call, facet and cost follow.
//
// An operation is a struct with a name, the names of its arguments and a signature:
//   struct rms_norm : operation {
//     static constexpr const char* name = "rms_norm";
//     static constexpr const char* arguments[] = {"x", "w", "eps", "y", "rstd"};
//     using dims = sizes<rows, columns>;
//     using takes = signature<in<rows, columns>, in<columns>, number, out<rows, columns>, out_sums<rows>>;
//     static constexpr std::int64_t flops(const dims& n) { return 4 * n.product(); }
//   };
// A backend offers it by a body, a function that is found by argument-dependent look-up and checks nothing:
//   template <class T>
//   void body(ops::rms_norm, launcher&, std::int64_t rows, std::int64_t columns, const T* x, const T* w,
//             sum_of_type<T> eps, T* y, sum_of_type<T>* rstd);
// It gets what `backend.launcher()` returns (the backend where it has no such member), the sizes in the order of `dims`,
// and the addresses and numbers in the order of the signature.
#pragma once

#include <heddle/compute/check.hpp>
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

namespace detail {
struct own_element {};
struct sum_element {};
template <class E, class T>
struct element {
  using written = E;
  using read = const E;
};
template <class T>
struct element<own_element, T> : element<T, void> {};
template <class T>
struct element<sum_element, T> : element<sum_of_type<T>, void> {};
template <bool Writes>
struct element_access {
  template <class E>
  using type = typename E::written;
};
template <>
struct element_access<false> {
  template <class E>
  using type = typename E::read;
};
template <std::size_t Rank, class X, class Space>
struct argument_view {
  using type = view<X, dynamic_shape<Rank>, Space>;
};
template <class X, class Space>
struct argument_view<1, X, Space> {
  using type = row_view<X, Space>;
};

inline constexpr std::size_t most_dims = 2;
// Names a dimension where templates would cost more.
template <class Dim>
inline constexpr char dimension = 0;

// A tensor that is an argument, whose element types follow from the operation's, T.
template <bool Reads, bool Writes, class Element, class... Dims>
struct tensor_argument {
  static_assert(sizeof...(Dims) >= 1 && sizeof...(Dims) <= most_dims);
  static constexpr bool has_own_elements = std::is_same_v<Element, own_element>;
  static constexpr std::array<const char*, most_dims> dims{&dimension<Dims>...};
  template <class T>
  using type = typename element_access<Writes>::template type<element<Element, T>>;
  template <class T>
  using address = type<T>*;
  template <class T, class Space>
  using view = typename argument_view<sizeof...(Dims), type<T>, Space>::type;
  template <class T, class Sizes>
  static constexpr std::int64_t bytes(const Sizes& n) {
    return (n[Dims{}] * ...) * static_cast<std::int64_t>(sizeof(type<T>)) * (Reads + Writes);
  }
};
// A number, which lies on the host.
template <class Element>
struct number_argument {
  static constexpr bool has_own_elements = false;
  static constexpr std::array<const char*, most_dims> dims{};
  template <class T>
  using address = typename element<Element, T>::written;
  template <class T, class>
  using view = address<T>;
  template <class, class Sizes>
  static constexpr std::int64_t bytes(const Sizes&) {
    return 0;
  }
};

// Its namespace is where the bodies of the host's backend are found.
struct operation_base {};
}  // namespace detail

/// The parts of which signatures of operations are made, and the operations.
namespace ops {
struct rows {};     ///< a dimension of operations on matrices
struct columns {};  ///< the other one

/// A tensor [Dims...] of the operation's element type that is read.
template <class... Dims>
using in = detail::tensor_argument<true, false, detail::own_element, Dims...>;
/// One that is overwritten.
template <class... Dims>
using out = detail::tensor_argument<false, true, detail::own_element, Dims...>;
/// One that is read and written.
template <class... Dims>
using inout = detail::tensor_argument<true, true, detail::own_element, Dims...>;
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
using in_ids = detail::tensor_argument<true, false, std::int32_t, Dims...>;
/// A number of `sum_of_type<T>`.
using number = detail::number_argument<detail::sum_element>;
/// A count or index.
using index = detail::number_argument<std::int64_t>;

/// The arguments of an operation, in the order of its calls.
template <class... Arguments>
struct signature {};

/// The sizes of an operation's dimensions, `n[rows{}]`.
template <class... Dims>
struct sizes {
  std::array<std::int64_t, sizeof...(Dims)> extents{};
  template <class Dim>
  constexpr std::int64_t operator[](Dim) const {
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
constexpr std::int64_t extent_at(const argument_extents* arguments, std::size_t i) noexcept {
  return arguments[i / most_dims].n[i % most_dims];
}
template <class X>
constexpr argument_extents extents_of(const X&) noexcept {
  return {};
}
template <class T>
constexpr argument_extents extents_of(const std::span<T>& x) noexcept {
  return {{static_cast<std::int64_t>(x.size())}};
}
template <class T, class Shape, class Space>
constexpr argument_extents extents_of(const view<T, Shape, Space>& x) noexcept {
  if constexpr (Shape::rank() == 1)
    return {{x.extent(0)}};
  else
    return {{x.extent(0), x.extent(1)}};
}
template <class X>
constexpr auto address_of(const X& x) noexcept {
  if constexpr (requires { x.address(); })
    return x.address();
  else if constexpr (requires { x.data(); })
    return x.data();
  else
    return x;
}

// Where each size is given first: of dimension d of argument a, number most_dims * a + d, in `first`; of each of the operation's dimensions, in `at`.
template <std::size_t Arguments, std::size_t Dims>
struct operation_layout {
  std::array<std::uint8_t, Arguments * most_dims> first{};
  std::array<std::uint8_t, Dims> at{};
  static constexpr std::size_t checked = Arguments * most_dims, dims = Dims;
  std::size_t typed = 0;  // the first argument of the operation's element type
};
template <std::size_t Arguments, std::size_t Dims>
consteval auto layout_of(const std::array<const char*, most_dims> (&arguments)[Arguments],
                         const bool (&typed)[Arguments], const char* const (&dims)[Dims]) {
  operation_layout<Arguments, Dims> found;
  while (!typed[found.typed]) ++found.typed;
  const auto named = [&](std::size_t i) { return arguments[i / most_dims][i % most_dims]; };
  const auto first = [&](const char* name) {
    std::uint8_t i = 0;
    while (named(i) != name) ++i;  // a dimension that no argument has is an error here
    return i;
  };
  for (std::uint8_t i = 0; i < found.first.size(); ++i) found.first[i] = named(i) == nullptr ? i : first(named(i));
  for (std::size_t d = 0; d < Dims; ++d) found.at[d] = first(dims[d]);
  return found;
}
template <class Takes, class Dims>
inline constexpr int layout_for = 0;
template <class... A, class... D>
inline constexpr auto layout_for<ops::signature<A...>, ops::sizes<D...>> =
    layout_of({A::dims...}, {A::has_own_elements...}, {&dimension<D>...});
template <class Op>
inline constexpr auto& operation_layout_of = layout_for<typename Op::takes, typename Op::dims>;

[[noreturn, gnu::noinline, gnu::cold]] inline void wrong_sizes(const char* name, const char* const* arguments,
                                                               const std::uint8_t* first,
                                                               std::initializer_list<argument_extents> got,
                                                               std::initializer_list<bool> matrices) {
  const auto extent = [&](std::size_t i) { return extent_at(got.begin(), i); };
  std::size_t i = 0;
  while (extent(i) == extent(first[i])) ++i;
  const char* const what = !matrices.begin()[i / most_dims] ? "elements of "
                           : i % most_dims == 0             ? "rows of "
                                                            : "columns of ";
  mismatch(name, (what + std::string(arguments[i / most_dims])).c_str(), extent(first[i]), extent(i));
}

template <class B>
constexpr decltype(auto) launcher_of(B& backend) noexcept {
  if constexpr (requires { backend.launcher(); })
    return backend.launcher();
  else
    return (backend);
}
template <class>
using extent_of = std::int64_t;

// The type of the function that is a body.
template <class Op, class T, class Launcher, class Takes = typename Op::takes, class Dims = typename Op::dims>
struct body_of;
template <class Op, class T, class Launcher, class... A, class... D>
struct body_of<Op, T, Launcher, ops::signature<A...>, ops::sizes<D...>> {
  using type = void(Op, Launcher, extent_of<D>..., typename A::template address<T>...);
};
template <class Op, class T, class Launcher>
using body_type = typename body_of<Op, T, Launcher>::type;

template <class Op, class T, class B, class Takes, class Dims>
inline constexpr bool has_body = false;
template <class Op, class T, class B, class... A, class... D>
inline constexpr bool has_body<Op, T, B, ops::signature<A...>, ops::sizes<D...>> =
    requires(B& b, typename A::template view<T, space_of<B>>... v) { b.template run<Op, T>(v...); } ||
    requires(B& b, extent_of<D>... n, typename A::template address<T>... v) { body(Op{}, launcher_of(b), n..., v...); };

template <class Op, class T, class... A, std::size_t... I, std::size_t... D, class B>
constexpr void call(ops::signature<A...>*, std::index_sequence<I...>, std::index_sequence<D...>, B& backend,
                    typename A::template view<T, space_of<B>>... v) {
  if constexpr (requires { backend.template run<Op, T>(v...); }) {
    backend.template run<Op, T>(v...);
  } else {
    constexpr auto& layout = operation_layout_of<Op>;
    const argument_extents got[] = {extents_of(v)...};
    if constexpr (checks_arguments)
      if (!((layout.first[I] == I || extent_at(got, I) == extent_at(got, layout.first[I])) && ...)) [[unlikely]]
        wrong_sizes(Op::name, Op::arguments, layout.first.data(), {extents_of(v)...}, {A::dims[1] != nullptr...});
    body(Op{}, launcher_of(backend), extent_at(got, layout.at[D])..., address_of(v)...);
  }
}
// The first argument or the second.
template <std::size_t>
struct typed_argument {
  template <class X, class>
  using type = X;
};
template <>
struct typed_argument<1> {
  template <class, class X>
  using type = X;
};
}  // namespace detail

/// Whether backend B offers a facet or operation for elements of type T.
template <class F, class B, class T>
inline constexpr bool offered = F::template offered<B, T>;
template <class Op, class B, class T>
  requires requires { typename Op::takes; }
inline constexpr bool offered<Op, B, T> = detail::has_body<Op, T, B, typename Op::takes, typename Op::dims>;

/// The facet of several operations.
template <class... Ops>
struct operations {
  template <class B, class T>
  static constexpr bool offered = (compute::offered<Ops, B, T> && ...);
};

/// Runs an operation on a backend: `run<ops::rms_norm>(backend, x, w, eps, y, rstd)`. The element type is that of the first tensor that has the
/// operation's; the other arguments convert to theirs. What is written is given as a view, not as a container.
/// A backend with a member template `run<Op, T>(arguments...)` gets the call as it is: a wrapper that counts, delays or changes operations.
/// Errors: `layout_error` if sizes of arguments differ; a compile error for an operation that the backend does not offer.
template <class Op, class B, class X, class Y, class... V>
constexpr void run(B& backend, const X& x, const Y& y, const V&... v) {
  using layout = std::remove_cvref_t<decltype(detail::operation_layout_of<Op>)>;
  using T = typename detail::typed_argument<detail::operation_layout_of<Op>.typed>::template type<X, Y>::value_type;
  static_assert(offered<Op, B, T>,
                "heddle: the backend offers no such operation: run<operation>(backend, ...) names it; give it a "
                "body(operation, launcher, sizes..., addresses...) (compute/op.hpp), or take a backend that has it");
  if constexpr (offered<Op, B, T>)
    detail::call<Op, T>(static_cast<typename Op::takes*>(nullptr), std::make_index_sequence<layout::checked>{},
                        std::make_index_sequence<layout::dims>{}, backend, x, y, v...);
}

namespace detail {
template <class T, class... A, class N>
constexpr std::int64_t bytes_of(ops::signature<A...>*, const N& n) {
  return (A::template bytes<T>(n) + ...);
}
}  // namespace detail

/// Bytes that an operation on elements of type T moves at least: each tensor once, and twice where it is read and written.
template <class Op, class T>
constexpr std::int64_t bytes_moved(const typename Op::dims& n) {
  return detail::bytes_of<T>(static_cast<typename Op::takes*>(nullptr), n);
}

}  // namespace heddle::inline v0::compute
