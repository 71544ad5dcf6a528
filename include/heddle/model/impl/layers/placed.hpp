// heddle/model/impl/layers/placed.hpp: bodies of heddle/model/layers/placed.hpp.
#pragma once

#include <heddle/model/layers/placed.hpp>
#include <heddle/model/parameters.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace heddle::inline v0::model::layers::detail {

HEDDLE_INLINE model::parameter named_matrix(const std::string& path, const char* name,
                                            std::span<const std::int64_t> extents, std::size_t row_dims,
                                            bool is_vector) {
  std::int64_t rows = 1, columns = 1;
  for (std::size_t i = 0; i < extents.size(); ++i) (i < row_dims ? rows : columns) *= extents[i];
  model::parameter p;
  p.name = path;
  p.name += name;
  p.shape.push_back(rows);
  if (!is_vector) p.shape.push_back(columns);
  return p;
}

HEDDLE_INLINE parameter_place place_of_matrix(const model::parameter& p, std::size_t row_dims) noexcept {
  parameter_place place{p.offset, 1, 1, 0};
  for (std::size_t i = 0; i < p.local.size(); ++i) (i < row_dims ? place.rows : place.columns) *= p.local[i];
  return place;
}

}  // namespace heddle::inline v0::model::layers::detail
