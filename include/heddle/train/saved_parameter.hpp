// heddle/train/saved_parameter.hpp: the part of a parameter record that saves read.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/model/parameters.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::train::detail {

// A parameter, or this rank's part of it: where that lies in the flat buffers, and which box of the whole tensor it is.
struct saved_parameter {
  std::string name;
  std::int64_t offset = 0;
  std::int64_t count = 0;
  bool counted = true;
  std::vector<std::int64_t> logical{}, local{}, start{};
};

// Whether a record says which box of the whole tensor its elements are.
template <class Parameter>
concept lies_in_box = requires(const Parameter& p) {
  std::vector<std::int64_t>(p.logical.begin(), p.logical.end());
  std::vector<std::int64_t>(p.local.begin(), p.local.end());
  std::vector<std::int64_t>(p.start.begin(), p.start.end());
};
template <bool Ok, class Parameter>
inline constexpr bool parameter_says_its_box = Ok;

HEDDLE_INLINE std::vector<saved_parameter> saved_parameters(std::span<const model::parameter> table);
// Those of a stage, in its order. Records of its own that lie in no box of a tensor are checked, and cannot be saved
// (`parameters_to_save`).
template <class Stage>
std::vector<saved_parameter> saved_parameters(const Stage& stage) {
  const auto& table = stage.parameters();
  if constexpr (std::is_convertible_v<decltype(table), std::span<const model::parameter>>) {
    return saved_parameters(std::span<const model::parameter>(table));
  } else {
    std::vector<saved_parameter> all;
    for (const auto& p : table) {
      saved_parameter& mine = all.emplace_back(saved_parameter{.name = std::string(p.name)});
      mine.offset = static_cast<std::int64_t>(p.offset);
      mine.count = static_cast<std::int64_t>(p.count);
      mine.counted = p.counted;
      if constexpr (lies_in_box<std::remove_cvref_t<decltype(p)>>) {
        mine.logical.assign(p.logical.begin(), p.logical.end());
        mine.local.assign(p.local.begin(), p.local.end());
        mine.start.assign(p.start.begin(), p.start.end());
      }
    }
    return all;
  }
}

// One function for each type of record, so that a stage that cannot be saved is one error, however many functions save it.
template <class Parameter>
constexpr void require_boxes() {
  static_assert(
      parameter_says_its_box<lies_in_box<Parameter>, Parameter>,
      "heddle: a stage that is saved needs parameters with logical, local and start, the box of the whole tensor "
      "that they are (model::parameter has them)");
}
// The same for a save or a resume: a parameter without its box would be written nowhere, and read from nowhere.
template <class Stage>
std::vector<saved_parameter> parameters_to_save(const Stage& stage) {
  if constexpr (!requires { Stage::is_refused; })  // it has had its error
    require_boxes<std::remove_cvref_t<decltype(*stage.parameters().begin())>>();
  return saved_parameters(stage);
}

// The elements of a parameter that a buffer has: from element `first` of the parameter on, at element `at` of the buffer.
struct kept_part {
  std::int64_t first = 0;
  std::size_t at = 0;
  std::size_t count = 0;
};
// In a buffer of `elements` that begins at element `begin` of the flat one, of which the parameter has [offset, offset + count).
constexpr kept_part part_in(std::int64_t offset, std::int64_t count, std::int64_t begin,
                            std::size_t elements) noexcept {
  const std::int64_t first = (std::max)(offset, begin);
  const std::int64_t last = (std::min)(offset + count, begin + static_cast<std::int64_t>(elements));
  if (first >= last) return {};
  return {first - offset, static_cast<std::size_t>(first - begin), static_cast<std::size_t>(last - first)};
}

// f(parameter, first element) of moment k of a parameter: where it is in a buffer of which the optimizer has the elements from the first on.
template <class Optimizer, class F>
void with_moment(const Optimizer& optimizer, const saved_parameter& p, [[maybe_unused]] int k, F&& f) {
  if constexpr (requires { optimizer.moment_of(p, k); })
    f(optimizer.moment_of(p, k), optimizer.moment_begin(k));
  else
    f(p, optimizer.owned_begin());
}

// A box of consecutive elements, `first` the first of them in the flat order.
struct flat_box {
  std::vector<std::int64_t> start, extents;
  std::int64_t first = 0;
  std::int64_t count = 0;
};
// Elements [begin, end) of a row-major box with these extents, in order: at most two boxes per dimension, one at either end,
// and one between them.
HEDDLE_INLINE std::vector<flat_box> boxes_of(std::span<const std::int64_t> extents, std::int64_t begin,
                                             std::int64_t end);

}  // namespace heddle::inline v0::train::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/saved_parameter.hpp>
#endif
