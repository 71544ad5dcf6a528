// heddle/context/slices_between.hpp: the mask between a piece of queries and one of keys.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/context/pieces.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

// Far outside of any document.
inline constexpr std::int64_t beyond_documents = std::int64_t{1} << 60;

constexpr std::int64_t floor_of_quotient(std::int64_t a, std::int64_t b) noexcept {
  return a >= 0 ? a / b : -((b - 1 - a) / b);
}

// A rectangle with two diagonals: query i and key j, counted from its corner, count if lower <= j - i <= upper.
struct context_band {
  std::int64_t queries = 0, keys = 0;
  std::int64_t lower = -beyond_documents, upper = beyond_documents;

  // The first and the last but one query that sees a key.
  constexpr std::int64_t first_query() const noexcept { return (std::max)(std::int64_t{0}, -upper); }
  constexpr std::int64_t last_query() const noexcept { return (std::min)(queries, keys - lower); }
  constexpr bool empty() const noexcept { return keys <= 0 || lower > upper || first_query() >= last_query(); }
};

// The rows [begin, end) of a piece whose positions lie in [from, to).
struct context_rows {
  std::int64_t begin = 0, end = 0;
};
constexpr context_rows rows_within(const context_piece& p, std::int64_t from, std::int64_t to) noexcept {
  const auto row = [&](std::int64_t at) {
    return std::clamp(floor_of_quotient(at - p.first + p.stride - 1, p.stride), std::int64_t{0}, p.count);
  };
  const std::int64_t begin = row(from);
  return {begin, (std::max)(begin, row(to))};
}

// The band of a slice between rows of two pieces. Pieces of several rows have one stride.
constexpr context_band band_between(const compute::attention_slice& s, const context_piece& q, context_rows queries,
                                    const context_piece& k, context_rows keys) noexcept {
  context_band band{queries.end - queries.begin, keys.end - keys.begin};
  const std::int64_t stride = q.count > 1 ? q.stride : k.stride;
  const std::int64_t ahead = q.first + q.stride * queries.begin - (k.first + k.stride * keys.begin);
  if (s.ends_early()) band.upper = floor_of_quotient(s.k_end - s.q_end + ahead, stride);
  if (s.begins_late()) band.lower = -floor_of_quotient(-(s.k_begin - s.q_begin + ahead), stride);
  return band;
}

// Adds at most three slices: up to the row where the first key begins to move, between it and the one where the last
// key is the last of all, and behind both.
constexpr void add_band(const context_band& band, std::int64_t q_row, std::int64_t k_row,
                        std::vector<compute::attention_slice>& out) {
  if (band.empty()) return;
  const std::int64_t from = band.first_query(), to = band.last_query();
  std::int64_t a = std::clamp(-band.lower, from, to), b = std::clamp(band.keys - 1 - band.upper, from, to);
  if (b < a) {
    const std::int64_t c = a;
    a = b;
    b = c;
  }
  const std::int64_t cuts[] = {from, a, b, to};
  for (int i = 0; i < 3; ++i) {
    const std::int64_t begin = cuts[i], end = cuts[i + 1];
    if (begin >= end) continue;
    const bool late = begin + band.lower >= 0 && end - 1 + band.lower > 0;
    const bool early = begin + band.upper < band.keys - 1;
    using enum compute::slice_mask;
    out.push_back({q_row + begin, q_row + end, k_row + (late ? begin + band.lower : 0),
                   k_row + (early ? end + band.upper : band.keys),
                   late ? (early ? bi_causal : inverse_causal) : (early ? causal : full)});
  }
}

// Calls f(band, first query row, first key row) for what is not empty.
template <class F>
constexpr void each_band(std::span<const compute::attention_slice> mask, const context_piece& q, const context_piece& k,
                         F f) {
  for (const compute::attention_slice& s : mask) {
    const context_rows queries = rows_within(q, s.q_begin, s.q_end);
    if (queries.begin == queries.end) continue;
    const context_rows keys = rows_within(k, s.k_begin, s.k_end);
    if (keys.begin == keys.end) continue;
    if (const context_band band = band_between(s, q, queries, k, keys); !band.empty())
      f(band, queries.begin, keys.begin);
  }
}

}  // namespace detail

/// Appends what a mask says between the queries of one piece and the keys of another: slices whose rows are counted
/// from `q_row` and `k_row`, the rows of the pieces' first positions; nothing if no query sees a key. At most three for
/// each slice of the mask. Requires pieces of one document, of one stride where they have more than one row, as
/// `cut_documents` makes them.
constexpr void slices_between(std::span<const compute::attention_slice> mask, const context_piece& queries,
                              const context_piece& keys, std::int64_t q_row, std::int64_t k_row,
                              std::vector<compute::attention_slice>& out) {
  detail::each_band(mask, queries, keys, [&](const detail::context_band& band, std::int64_t q, std::int64_t k) {
    detail::add_band(band, q_row + q, k_row + k, out);
  });
}

/// Whether a query of one piece sees a key of the other.
constexpr bool sees(std::span<const compute::attention_slice> mask, const context_piece& queries,
                    const context_piece& keys) {
  bool any = false;
  detail::each_band(mask, queries, keys, [&](const detail::context_band&, std::int64_t, std::int64_t) { any = true; });
  return any;
}

/// How many pairs of a query of one piece and a key of the other count.
constexpr std::int64_t area_between(std::span<const compute::attention_slice> mask, const context_piece& queries,
                                    const context_piece& keys) {
  std::vector<compute::attention_slice> slices;
  slices_between(mask, queries, keys, 0, 0, slices);
  std::int64_t area = 0;
  for (const compute::attention_slice& s : slices) area += s.area();
  return area;
}

/// Cuts pieces where the set of ranks that need their rows changes, as far as that saves a sixteenth of what would
/// travel: of a document with a window of W keys only the last W - 1 rows of a piece are needed elsewhere.
constexpr context_cut refined(const context_cut& cut) {
  context_cut out = cut;
  out.pieces.clear();
  out.first_piece.assign(1, 0);
  for (std::size_t d = 0; d < cut.documents.size(); ++d) {
    const std::span<const context_piece> pieces = cut.pieces_of(static_cast<int>(d));
    const std::span<const compute::attention_slice> mask = cut.documents[d].mask;
    for (const context_piece& own : pieces) {
      std::vector<std::int64_t> points{0, own.count};
      for (const bool as_keys :
           {true, false}) {  // rows that another rank's queries need, or whose queries need another rank's keys
        std::vector<std::int64_t> found;
        std::int64_t needed = 0, sent = 0, begin = own.count, end = 0;
        for (std::size_t i = 0; i < pieces.size(); ++i) {
          if (pieces[i].home != own.home)
            detail::each_band(
                mask, as_keys ? pieces[i] : own, as_keys ? own : pieces[i],
                [&](const detail::context_band& band, std::int64_t q, std::int64_t k) {
                  const std::int64_t q_first = band.first_query(), q_last = band.last_query();
                  begin =
                      (std::min)(begin, as_keys ? k + (std::max)(std::int64_t{0}, q_first + band.lower) : q + q_first);
                  end = (std::max)(end, as_keys ? k + (std::min)(band.keys, q_last + band.upper) : q + q_last);
                });
          if (i + 1 < pieces.size() && pieces[i + 1].home == pieces[i].home) continue;
          if (begin < end) {
            sent += own.count;
            needed += end - begin;
            found.push_back(begin);
            found.push_back(end);
          }
          begin = own.count;
          end = 0;
        }
        if ((sent - needed) * 16 >= sent && sent > 0) points.insert(points.end(), found.begin(), found.end());
      }
      std::sort(points.begin(), points.end());
      for (std::size_t i = 1; i < points.size(); ++i)
        if (points[i - 1] < points[i])
          out.pieces.push_back({own.document, own.first + own.stride * points[i - 1], own.stride,
                                points[i] - points[i - 1], own.home, own.row + points[i - 1]});
    }
    out.first_piece.push_back(static_cast<int>(out.pieces.size()));
  }
  return out;
}

}  // namespace heddle::inline v0
