// heddle/compute/ops/embedding.hpp: operations on token and position embeddings.
#pragma once

#include <heddle/compute/op.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::compute {
namespace detail {
[[noreturn, gnu::noinline, gnu::cold]] inline void wrong_sequence(const char* name, std::int64_t rows,
                                                                  std::int64_t positions, std::int64_t sequence) {
  if (rows > 0 && (sequence < 1 || rows % sequence != 0))
    throw layout_error("heddle: " + std::string(name) + ": " + std::to_string(rows) +
                       " rows are not whole sequences of " + std::to_string(sequence));
  throw layout_error("heddle: " + std::string(name) + ": a sequence of " + std::to_string(sequence) +
                     " does not fit a position table of " + std::to_string(positions) + " rows");
}
}  // namespace detail

namespace ops {
struct words {};      ///< a dimension: rows of an embedding
struct positions {};  ///< rows of an embedding of positions

/// out = rows of a table that holds the ids from `first_id` on; other ids give rows of zeros.
struct embedding : operation {
  static constexpr const char* name = "embedding";
  static constexpr const char* arguments[] = {"ids", "table", "first_id", "out"};
  using dims = sizes<rows, words, columns>;
  using takes = signature<in_ids<rows>, in<words, columns>, index, out<rows, columns>>;
  static constexpr std::int64_t flops(const dims&) { return 0; }
};
/// Adds to dtable.
struct embedding_backward : operation {
  static constexpr const char* name = "embedding_backward";
  static constexpr const char* arguments[] = {"ids", "dout", "first_id", "dtable"};
  using dims = sizes<rows, words, columns>;
  using takes = signature<in_ids<rows>, in<rows, columns>, index, inout_sums<words, columns>>;
  static constexpr std::int64_t flops(const dims& n) { return n[rows{}] * n[columns{}]; }
};
/// The base of operations on rows of whole sequences, whose row s is at position s.
/// Errors: `layout_error` for rows that are not whole sequences, or a sequence that is longer than the table.
struct position_operation : operation {
  using dims = sizes<rows, positions, columns>;
  static constexpr std::int64_t flops(const dims& n) { return n[rows{}] * n[columns{}]; }

 protected:
  static void check_sequence(const char* name, const dims& n, std::int64_t sequence) {
    const std::int64_t all = n[rows{}], most = n[positions{}];
    if ((all > 0 && (sequence < 1 || all % sequence != 0)) || sequence > most) [[unlikely]]
      detail::wrong_sequence(name, all, most, sequence);
  }
};
/// x[b * sequence + s] += wpe[s].
struct add_positions : position_operation {
  static constexpr const char* name = "add_positions";
  static constexpr const char* arguments[] = {"x", "wpe", "sequence"};
  using takes = signature<inout<rows, columns>, in<positions, columns>, index>;
  static void check(const dims& n, const void*, const void*, std::int64_t sequence) {
    check_sequence(name, n, sequence);
  }
};
/// Adds to dwpe.
struct add_positions_backward : position_operation {
  static constexpr const char* name = "add_positions_backward";
  static constexpr const char* arguments[] = {"dx", "sequence", "dwpe"};
  using takes = signature<in<rows, columns>, index, inout_sums<positions, columns>>;
  static void check(const dims& n, const void*, std::int64_t sequence, const void*) {
    check_sequence(name, n, sequence);
  }
};
}  // namespace ops

/// Look-ups in an embedding.
struct embedding_facet
    : operations<ops::embedding, ops::embedding_backward, ops::add_positions, ops::add_positions_backward> {};

}  // namespace heddle::inline v0::compute
