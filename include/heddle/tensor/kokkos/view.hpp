// heddle/tensor/kokkos/view.hpp: converts heddle's views and Kokkos::View without copies.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/shape.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/kokkos/memory.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0 {

/// A Kokkos::View is not laid out as a heddle view is, or has other extents than were asked for.
struct kokkos_view_error : layout_error {
  using layout_error::layout_error;
};

namespace detail {

// T**[3][4] for shape<dynamic, dynamic, 3, 4>. Kokkos has static extents behind the dynamic ones only: others are dynamic.
template <class T, class Shape>
struct kokkos_data;
template <class T>
struct kokkos_data<T, shape<>> {
  using type = T;
  static constexpr bool all_static = true;
};
template <class T, std::int64_t First, std::int64_t... Rest>
struct kokkos_data<T, shape<First, Rest...>> {
  static constexpr bool all_static = First > 0 && kokkos_data<T, shape<Rest...>>::all_static;
  static constexpr auto make() {
    if constexpr (all_static) {
      return std::type_identity<typename kokkos_data<T, shape<Rest...>>::type[First]>{};
    } else {
      // A pointer goes below the static extents of the rest.
      return std::type_identity<typename kokkos_data<T*, shape<Rest...>>::type>{};
    }
  }
  using type = typename decltype(make())::type;
};

template <class Space>
struct kokkos_space_of {
  using type = typename Space::kokkos_space;
};
template <>
struct kokkos_space_of<host_memory> {
  using type = Kokkos::HostSpace;
};

template <class View>
inline constexpr bool is_row_major_by_type =
    std::is_same_v<typename View::array_layout, Kokkos::LayoutRight> ||
    std::is_same_v<typename View::array_layout, Kokkos::LayoutStride> ||
    (std::is_same_v<typename View::array_layout, Kokkos::LayoutLeft> && static_cast<int>(View::rank) < 2);

template <class Space, class View>
inline constexpr bool is_in_space = std::is_same_v<typename kokkos_space_of<Space>::type, typename View::memory_space>;
template <class View>
inline constexpr bool is_in_space<host_memory, View> =
    Kokkos::SpaceAccessibility<Kokkos::DefaultHostExecutionSpace, typename View::memory_space>::accessible;

// These carry types and numbers into the compiler's message; the assertion's text says what to change.
template <bool Ok, class View>
inline constexpr bool kokkos_view_is_row_major = Ok;
template <bool Ok, class View, class Space>
inline constexpr bool kokkos_view_is_in_space = Ok;
template <bool Ok, class View, class Shape>
inline constexpr bool kokkos_view_has_shape = Ok;

// One more than there are, so that rank 0 has an array too.
template <std::int64_t... E>
constexpr std::array<std::int64_t, sizeof...(E) + 1> extents_of_type(std::type_identity<shape<E...>>) noexcept {
  return {E..., 0};
}
template <class View, class Shape>
constexpr bool extents_may_agree() noexcept {
  constexpr auto rank = static_cast<std::size_t>(View::rank);
  if (Shape::rank() != rank) return false;
  const auto asked = extents_of_type(std::type_identity<Shape>{});
  for (std::size_t d = 0; d < rank; ++d) {
    const auto has = static_cast<std::int64_t>(View::static_extent(static_cast<unsigned>(d)));  // 0: dynamic
    if (asked[d] != dynamic && has != 0 && has != asked[d]) return false;
  }
  return true;
}

template <std::size_t Rank>
std::string in_dimension(const std::string& label, std::size_t d, const char* what, std::int64_t expected,
                         std::int64_t got) {
  return "heddle: from_kokkos: the View '" + label + "' of rank " + std::to_string(Rank) + " should have " + what +
         " " + std::to_string(expected) + " in dimension " + std::to_string(d) + ", got " + std::to_string(got);
}

}  // namespace detail

/// The unmanaged Kokkos::View type of a heddle view: LayoutRight, in the same memory, extents static where Kokkos can say so.
template <class T, class Shape, class Space = host_memory>
using kokkos_view =
    Kokkos::View<typename detail::kokkos_data<T, Shape>::type, Kokkos::LayoutRight,
                 typename detail::kokkos_space_of<Space>::type, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// The same elements as an unmanaged Kokkos::View, which must not outlive the memory. Nothing is copied. Of the host's memory, or
/// of a `kokkos_memory`. Kokkos counts up to 8 dimensions.
template <class T, std::int64_t... E, class Space>
auto to_kokkos(const view<T, shape<E...>, Space>& x) {
  static_assert(sizeof...(E) <= 8, "heddle: to_kokkos: a Kokkos::View has at most 8 dimensions");
  if constexpr (sizeof...(E) <= 8) {
    using result = kokkos_view<T, shape<E...>, Space>;
    return [&]<std::size_t... Is>(std::index_sequence<Is...>) {  // the dynamic extents, which come first
      return result(x.address(), static_cast<std::size_t>(x.extent(Is))...);
    }(std::make_index_sequence<static_cast<std::size_t>(result::rank_dynamic)>{});
  }
}

/// The elements of a Kokkos::View as a heddle view, which must not outlive the memory. Nothing is copied. `Space` is a
/// `kokkos_memory` of the View's memory space, or `host_memory` where the host can use that; the View's own if none is named.
/// `Shape` has the extents that are asked for: all dynamic if none is named.
/// Errors: at compile time for another rank, another memory, other static extents, or a LayoutLeft of two dimensions or more;
/// `kokkos_view_error` for other extents, and for strides that are not those of rows behind each other without gaps.
template <class Space = void, class Shape = void, class... Parameters>
auto from_kokkos(const Kokkos::View<Parameters...>& x) {
  using source = Kokkos::View<Parameters...>;
  constexpr auto rank = static_cast<std::size_t>(source::rank);
  using space = std::conditional_t<std::is_void_v<Space>, kokkos_memory<typename source::execution_space>, Space>;
  using extents = std::conditional_t<std::is_void_v<Shape>, dynamic_shape<rank>, Shape>;
  using result = view<typename source::value_type, extents, space>;
  static_assert(detail::kokkos_view_is_row_major<detail::is_row_major_by_type<source>, source>,
                "heddle: from_kokkos: heddle's views are row-major: give it a View of LayoutRight (or LayoutStride, "
                "which is checked when it is given), or copy this one to a View of LayoutRight");
  static_assert(detail::kokkos_view_is_in_space<detail::is_in_space<space, source>, source, space>,
                "heddle: from_kokkos: the View is not in this memory space: name the kokkos_memory of the View's "
                "execution space, or host_memory where the host can use its memory");
  static_assert(detail::kokkos_view_has_shape<detail::extents_may_agree<source, extents>(), source, extents>,
                "heddle: from_kokkos: the View has another rank, or other static extents, than the shape that is "
                "asked for");
  if constexpr (detail::is_row_major_by_type<source> && detail::is_in_space<space, source> &&
                detail::extents_may_agree<source, extents>()) {
    std::array<std::int64_t, rank + 1> strides{};
    x.stride(strides.data());
    std::array<std::int64_t, rank> sizes{};
    std::int64_t expected = 1;
    bool empty = false;
    for (std::size_t d = 0; d < rank; ++d) {
      sizes[d] = static_cast<std::int64_t>(x.extent(static_cast<int>(d)));
      empty = empty || sizes[d] == 0;
    }
    for (std::size_t d = rank; d-- > 0;) {
      if (!empty && sizes[d] != 1 && strides[d] != expected)
        throw kokkos_view_error(detail::in_dimension<rank>(x.label(), d, "the stride", expected, strides[d]) +
                                "; copy it to a View without gaps first");
      expected *= sizes[d];
    }
    if constexpr (extents::dynamic_count != rank) {
      const auto asked = detail::extents_of_type(std::type_identity<extents>{});
      for (std::size_t d = 0; d < rank; ++d)
        if (asked[d] != dynamic && asked[d] != sizes[d])
          throw kokkos_view_error(detail::in_dimension<rank>(x.label(), d, "the extent", asked[d], sizes[d]));
    }
    return [&]<std::size_t... Is>(std::index_sequence<Is...>) {
      if constexpr (rank == 0)
        return result(x.data(), extents{});
      else
        return result(x.data(), extents(sizes[Is]...));
    }(std::make_index_sequence<rank>{});
  } else {
    return result{};
  }
}

namespace detail {
// Buffers on the memory of Kokkos' Views.
struct adopting {
  template <class T, class Space>
  static buffer<T, Space> adopt(typename Space::queue& queue, T* memory, std::size_t size,
                                std::shared_ptr<void> owner) {
    buffer<T, Space> adopted;
    if (size == 0) return adopted;
    adopted.memory_.instance_ = queue.instance_;
    adopted.memory_.memory_ = memory;
    adopted.memory_.owner_ = std::move(owner);
    adopted.size_ = size;
    return adopted;
  }
};
}  // namespace detail

/// The elements of a program's own Kokkos::View as a buffer, such as one rank's part of a sharded tensor. Nothing is copied: the
/// buffer shares the View's memory, and holds on to it until the queue has done what it was given. An unmanaged View's memory has
/// to outlive the buffer. `queue` is one of a `kokkos_memory`.
/// Errors: those of `from_kokkos`; `kokkos_view_error` where the first element is not aligned as a buffer's is (64 bytes: Kokkos'
/// own allocations are).
template <class Queue, class... Parameters>
auto buffer_of_view(Queue& queue, const Kokkos::View<Parameters...>& x) {
  using space = kokkos_memory<std::remove_cvref_t<decltype(queue.instance())>>;
  const auto elements = from_kokkos<space>(x);
  using element = typename Kokkos::View<Parameters...>::value_type;
  constexpr std::size_t alignment = buffer<element, space>::alignment;
  if (const auto beyond = reinterpret_cast<std::uintptr_t>(elements.address()) % alignment; beyond != 0)
    throw kokkos_view_error("heddle: buffer_of_view: the View '" + std::string(x.label()) +
                            "' should begin at a multiple of " + std::to_string(alignment) + " bytes, got one " +
                            std::to_string(beyond) + " bytes behind it");
  return detail::adopting::adopt<element, space>(queue, elements.address(), static_cast<std::size_t>(elements.size()),
                                                 std::make_shared<Kokkos::View<Parameters...>>(x));
}

}  // namespace heddle::inline v0
