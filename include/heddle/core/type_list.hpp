// heddle/core/type_list.hpp: lists of types and the few questions heddle asks of them.
#pragma once

#include <heddle/core/config.hpp>

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {

/// A list of types; an empty object.
template <class... Ts>
struct type_list {
  static constexpr std::size_t size = sizeof...(Ts);
};

/// How often `T` occurs among `Ts`.
template <class T, class... Ts>
inline constexpr std::size_t count_of = (std::size_t{0} + ... + (std::is_same_v<T, Ts> ? 1u : 0u));

/// Whether `T` is one of `Ts`.
template <class T, class... Ts>
inline constexpr bool contains = (std::is_same_v<T, Ts> || ...);

/// Position of the first `T` among `Ts`; `sizeof...(Ts)` if there is none.
template <class T, class... Ts>
inline constexpr std::size_t index_of = [] {
  constexpr std::array<bool, sizeof...(Ts) + 1> same{std::is_same_v<T, Ts>..., true};
  std::size_t i = 0;
  while (!same[i]) ++i;
  return i;
}();

/// Whether no type occurs twice among `Ts`.
template <class... Ts>
inline constexpr bool all_distinct = ((count_of<Ts, Ts...> == 1) && ...);

namespace detail {
template <std::size_t At, class T>
struct indexed {
  using type = T;
};
template <class Indices, class... Ts>
struct indexer;
template <std::size_t... Is, class... Ts>
struct indexer<std::integer_sequence<std::size_t, Is...>, Ts...> : indexed<Is, Ts>... {};
template <std::size_t At, class T>
indexed<At, T> pick(const indexed<At, T>&);

template <class... Ts, class... Us>
type_list<Ts..., Us...> operator+(type_list<Ts...>, type_list<Us...>);
template <class... Lists>
struct join_lists {
  using type = decltype((type_list<>{} + ... + Lists{}));
};
}  // namespace detail

/// `type` is `Member<X>` where there is such a type, else `Default`.
template <class Default, template <class> class Member, class X>
struct member_or {
  using type = Default;
};
template <class Default, template <class> class Member, class X>
  requires requires { typename Member<X>; }
struct member_or<Default, Member, X> {
  using type = Member<X>;
};

/// One list with the types of all lists, in order.
template <class... Lists>
using joined_lists = typename detail::join_lists<Lists...>::type;

/// The type at place `At` of `Ts`.
template <std::size_t At, class... Ts>
using type_at =
    typename decltype(detail::pick<At>(detail::indexer<std::make_index_sequence<sizeof...(Ts)>, Ts...>{}))::type;

}  // namespace heddle::inline v0
