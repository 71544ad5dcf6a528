// heddle/context/impl/kept_tail.hpp: bodies of heddle/context/kept_tail.hpp.
#pragma once

#include <heddle/context/kept_tail.hpp>

#include <algorithm>
#include <cstddef>

namespace heddle::inline v0 {

HEDDLE_INLINE context_cut without_tail(context_cut cut, std::int64_t part, std::int64_t of) {
  for (std::size_t d = 0; d < cut.documents.size(); ++d) {
    context_document& document = cut.documents[d];
    std::vector<char> attends(static_cast<std::size_t>(document.length), 0);
    for (const context_piece& p : cut.pieces_of(static_cast<int>(d))) {
      const std::int64_t rows = cut.rows[static_cast<std::size_t>(p.home)], end = rows - rows * part / of;
      for (std::int64_t i = 0; i < p.count && p.row + i < end; ++i)
        attends[static_cast<std::size_t>(p.first + i * p.stride)] = 1;
    }
    std::vector<compute::attention_slice> mask;
    for (auto at = attends.begin(); at != attends.end();) {
      const auto begin = std::find(at, attends.end(), 1);
      at = std::find(begin, attends.end(), 0);
      for (const compute::attention_slice& s : document.mask)
        if (const auto some = s.of_queries(begin - attends.begin(), at - attends.begin()); some.area() > 0)
          mask.push_back(some);
    }
    document.mask = std::move(mask);
  }
  return cut;
}

}  // namespace heddle::inline v0
