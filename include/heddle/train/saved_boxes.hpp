// heddle/train/saved_boxes.hpp: boxes of whole tensors that a rank's part of a parameter is.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/io/tensor_file.hpp>
#include <heddle/train/saved_parameter.hpp>

#include <cstddef>
#include <vector>

namespace heddle::inline v0::train::detail {

// A box of a whole tensor, and where its elements are in a buffer.
struct saved_box {
  io::tensor_region region;
  std::size_t at = 0;
  std::size_t count = 0;
};
// What `part` has of a parameter, box by box.
HEDDLE_INLINE std::vector<saved_box> saved_boxes(const saved_parameter& p, const kept_part& part);

}  // namespace heddle::inline v0::train::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/saved_boxes.hpp>
#endif
