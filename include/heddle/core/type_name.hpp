// heddle/core/type_name.hpp: the name of a type as text, for messages and printed tables.
#pragma once

#include <heddle/core/config.hpp>

#include <string_view>

namespace heddle::inline v0 {
namespace detail {

template <class T>
constexpr std::string_view signature() {
#if defined(__clang__) || defined(__GNUC__)
  return __PRETTY_FUNCTION__;
#else
  return __FUNCSIG__;
#endif
}

// The text around the type is the same for every T: measure it once on a type whose spelling is known.
inline constexpr std::string_view probe = signature<double>();
inline constexpr std::size_t name_begin = probe.find("double");
inline constexpr std::size_t name_suffix = probe.size() - name_begin - std::string_view("double").size();

}  // namespace detail

/// The compiler's spelling of `T`, with namespaces. For people to read, not to compare across compilers.
template <class T>
constexpr std::string_view type_name() {
  constexpr std::string_view s = detail::signature<T>();
  // g++ appends further template bindings after "; " when the signature mentions an alias; T itself ends there.
  return s.substr(detail::name_begin, s.size() - detail::name_begin - detail::name_suffix);
}

/// The last component of `type_name`: `tp` for `heddle::v0::tp`. What messages call an axis.
template <class T>
constexpr std::string_view short_type_name() {
  constexpr std::string_view s = type_name<T>();
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '<' || s[i] == '(') ++depth;
    if (s[i] == '>' || s[i] == ')') --depth;
    if (depth == 0 && s[i] == ':') begin = i + 1;
  }
  return s.substr(begin);
}

}  // namespace heddle::inline v0
