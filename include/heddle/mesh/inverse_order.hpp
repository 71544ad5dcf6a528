// heddle/mesh/inverse_order.hpp: an order of ranks read backwards.
#pragma once

#include <heddle/core/error.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0 {

namespace detail {
inline std::string not_once(const char* what, int number) {
  std::string text = "heddle: an order of ranks names each physical rank once; ";
  text += what;
  text += std::to_string(number);
  return text;
}
}  // namespace detail

/// An order of ranks is a list: `order[r]` is the physical rank (of the topology, of the launch) that plays rank r of
/// the mesh. The inverse says for each physical rank which rank of the mesh it plays.
/// Errors: `mesh_error` if the list does not name `0 .. size - 1` once each.
constexpr std::vector<int> inverse_order(std::span<const int> order) {
  std::vector<int> inverse(order.size(), -1);
  for (std::size_t r = 0; r < order.size(); ++r) {
    const int p = order[r];
    if (p < 0 || static_cast<std::size_t>(p) >= order.size())
      throw mesh_error(detail::not_once("there is no rank ", p));
    int& place = inverse[static_cast<std::size_t>(p)];
    if (place >= 0) throw mesh_error(detail::not_once("it names twice rank ", p));
    place = static_cast<int>(r);
  }
  return inverse;
}

}  // namespace heddle::inline v0
