// heddle/mesh/parse.hpp: a mesh from text, "dp=2,pp=2,tp=2", as a command line gives it.
#pragma once

#include <heddle/mesh/mesh.hpp>

#include <array>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

namespace heddle::inline v0 {

namespace detail {
// The number that the text is, of digits alone; 0 for all else, and for what an int does not hold.
constexpr int whole_number(std::string_view digits) noexcept {
  int n = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return 0;
    const int digit = c - '0';
    if (n > ((std::numeric_limits<int>::max)() - digit) / 10) return 0;
    n = 10 * n + digit;
  }
  return n;
}
}  // namespace detail

/// Reads `name=size` pairs separated by commas, in any order. Axes that are not named keep their static size, or get 1.
/// Errors: `mesh_error` for an unknown or repeated axis, a size that is not a positive number, or one that contradicts
/// a static extent; the message names the pair and what was expected.
template <mesh_like Mesh>
Mesh parse_mesh(std::string_view text) {
  const auto names = axis_names(typename Mesh::tags{});
  std::array<int, Mesh::rank> extents = Mesh{}.extents();
  std::array<bool, Mesh::rank> given{};
  std::string known;
  for (const auto& name : names) known += (known.empty() ? "" : ", ") + name;

  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view pair = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    const std::size_t equals = pair.find('=');
    const std::string name(pair.substr(0, equals));
    std::size_t i = 0;
    while (i < names.size() && names[i] != name) ++i;
    if (i == names.size())
      throw mesh_error("heddle: the mesh text \"" + std::string(pair) +
                       "\" names no axis of this program (known: " + known + ")");
    if (given[i]) throw mesh_error("heddle: the mesh text names the axis " + name + " twice");
    const std::string_view number = equals == std::string_view::npos ? std::string_view{} : pair.substr(equals + 1);
    const int size = detail::whole_number(number);
    if (size == 0)
      throw mesh_error("heddle: the mesh text \"" + std::string(pair) + "\" needs a positive whole number after " +
                       name + "=");
    if constexpr (Mesh::is_static) {
      if (extents[i] != size)
        throw mesh_error("heddle: axis " + name + " is fixed at " + std::to_string(extents[i]) + ", got " +
                         std::to_string(size));
    }
    extents[i] = size;
    given[i] = true;
  }
  if constexpr (Mesh::is_static)
    return Mesh{};
  else
    return Mesh::from_extents(extents);
}

}  // namespace heddle::inline v0
