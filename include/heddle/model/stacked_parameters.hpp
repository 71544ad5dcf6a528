// heddle/model/stacked_parameters.hpp: parameters that files hold stacked in one.
#pragma once

#include <heddle/model/parameters.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::inline v0::model {

/// Whether a name stands for several tensors: one that has a `*`, as `experts.*.w1.weight` of all experts.
constexpr bool is_stacked(std::string_view name) noexcept {
  return name.find('*') != std::string_view::npos;
}

/// The name of one of these tensors: `experts.3.w1.weight`.
inline std::string name_in_stack(std::string_view name, std::int64_t index) {
  const std::size_t at = name.find('*');
  std::string one(name.substr(0, at));
  if (at != std::string_view::npos) (one += std::to_string(index)) += name.substr(at + 1);
  return one;
}

/// One of these tensors as a parameter of its own: of `p`, of which this rank holds the indices [start[0], start[0] + local[0]).
/// `offset` and `count` are those of its elements in the rank's flat buffers.
inline parameter parameter_in_stack(const parameter& p, std::int64_t index) {
  parameter one = p;
  one.name = name_in_stack(p.name, index);
  one.shape[0] = p.logical[0] > 0 ? p.shape[0] / p.logical[0] : 0;
  one.logical.erase(one.logical.begin());
  one.local.erase(one.local.begin());
  one.start.erase(one.start.begin());
  one.count = p.local[0] > 0 ? p.count / p.local[0] : 0;
  one.offset = p.offset + (index - p.start[0]) * one.count;
  return one;
}

/// Calls `f(parameter)` for each tensor of a file that holds elements of this rank's part of `p`: for `p` itself, or for those that its name
/// stands for.
template <class F>
void for_each_tensor(const parameter& p, F&& f) {
  if (!is_stacked(p.name)) return f(p);
  for (std::int64_t i = 0; i < p.local[0]; ++i) f(parameter_in_stack(p, p.start[0] + i));
}

}  // namespace heddle::inline v0::model
