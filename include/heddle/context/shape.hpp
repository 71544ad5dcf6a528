// heddle/context/shape.hpp: sizes of heads in a context table, and of rows that travel.
#pragma once

#include <heddle/context/table.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace heddle::inline v0 {

/// The heads of attention, and the bytes of an element and of what is added up (`sum_of_type`: 4 for elements of 2).
struct context_shape {
  std::int64_t query_heads = 1;
  std::int64_t key_heads = 1;
  std::int64_t head_dim = 64;   ///< of queries and keys
  std::int64_t value_dim = 64;  ///< of values and outputs
  std::int64_t element_bytes = 4;
  std::int64_t sum_bytes = 4;

  /// Heads of one of `parts` parts. Where there are fewer key heads than parts, several parts have the same one.
  constexpr std::int64_t queries_in(int parts) const noexcept { return query_heads / parts; }
  constexpr std::int64_t keys_in(int parts) const noexcept { return (std::max)(std::int64_t{1}, key_heads / parts); }
  /// The first key head of a part.
  constexpr std::int64_t first_key_head(int part, int parts) const noexcept { return part * key_heads / parts; }

  /// The bytes in front of the numbers in a row of queries that travels backward: those of the row's heads, to a whole number
  /// of sums.
  constexpr std::int64_t numbers_at(int parts) const noexcept {
    return (queries_in(parts) * (head_dim + value_dim) * element_bytes + sum_bytes - 1) / sum_bytes * sum_bytes;
  }
  /// The bytes of a row of one part of the heads. Forward: keys are keys and values; results an output and the
  /// logarithm of a sum for each head. Backward: queries bring the gradient of the output, that logarithm and the
  /// product of output and gradient.
  constexpr std::int64_t row_bytes(context_kind what, context_pass pass, int parts = 1) const noexcept {
    const std::int64_t q = queries_in(parts), k = keys_in(parts);
    const bool forward = pass == context_pass::forward;
    switch (what) {
      case context_kind::keys:
        return k * (head_dim + value_dim) * element_bytes;
      case context_kind::queries:
        return forward ? q * head_dim * element_bytes : numbers_at(parts) + 2 * q * sum_bytes;
      case context_kind::of_queries:
        return (forward ? q * (value_dim + 1) : q * head_dim) * sum_bytes;
      case context_kind::of_keys:
        break;
    }
    return k * (head_dim + value_dim) * sum_bytes;
  }
};

/// Throws unless the heads can be cut into the parts that a table needs.
/// Errors: `config_error`.
inline void require_parts(const context_shape& shape, int parts) {
  if (shape.query_heads % parts != 0 || (shape.key_heads % parts != 0 && parts % shape.key_heads != 0)) {
    throw config_error(
        text_of({"heddle: ", shape.query_heads, " query heads and ", shape.key_heads, " key heads cannot be cut into ",
                 parts, " parts: the parts should divide the query heads, and the key heads or a multiple of them"}));
  }
}

/// The bytes of each block of a table: what `round_table::sizes` wants for costs and simulation, with elements of one
/// byte.
constexpr std::vector<std::int64_t> context_sizes(const context_table& t, const context_shape& shape) {
  std::vector<std::int64_t> sizes;
  for (int kind = 0; kind < 4; ++kind)
    for (const context_piece& p : t.cut.pieces)
      sizes.push_back(p.count * t.parts() * shape.row_bytes(static_cast<context_kind>(kind), t.pass, t.parts()));
  if (sizes.empty()) sizes.assign(4, 0);
  return sizes;
}

}  // namespace heddle::inline v0
