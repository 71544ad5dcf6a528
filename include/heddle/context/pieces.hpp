// heddle/context/pieces.hpp: documents of a batch, and the pieces that ranks hold of them.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace heddle::inline v0 {

/// A document of a batch: its tokens lie on the ranks of a list, in this order, and attend to each other as the mask
/// says. Tokens of different documents never do. A document without tokens takes no part. Units: tokens; slices count
/// the document's own positions.
struct context_document {
  std::int64_t length = 0;
  std::vector<int> ranks{};
  std::vector<compute::attention_slice> mask{};
};

/// A run of positions of a document that lies in consecutive rows of one rank: position first + i * stride is row `row`
/// + i.
struct context_piece {
  int document = 0;
  std::int64_t first = 0;
  std::int64_t stride = 1;
  std::int64_t count = 0;
  int home = 0;          ///< the rank that holds it
  std::int64_t row = 0;  ///< of its first position, among the rows of that rank
  friend constexpr bool operator==(const context_piece&, const context_piece&) = default;
};

/// Documents cut into pieces: which rank holds which rows. Pieces are sorted by document, then by the document's ranks.
struct context_cut {
  int ranks = 1;
  std::vector<context_document> documents{};
  std::vector<context_piece> pieces{};
  std::vector<int> first_piece{0};   ///< of each document, and the end
  std::vector<std::int64_t> rows{};  ///< of each rank

  /// The numbers of a document's pieces are [first_piece[d], first_piece[d + 1]).
  constexpr std::span<const context_piece> pieces_of(int document) const noexcept {
    const auto d = static_cast<std::size_t>(document);
    return std::span(pieces).subspan(static_cast<std::size_t>(first_piece[d]),
                                     static_cast<std::size_t>(first_piece[d + 1] - first_piece[d]));
  }
  constexpr const context_piece& operator[](int piece) const noexcept {
    return pieces[static_cast<std::size_t>(piece)];
  }
};

namespace detail {

constexpr void check_document(const context_document& d, int number, int ranks) {
  const auto refuse = [&](const char* what, std::int64_t value) {
    throw config_error(text_of({"heddle: document ", number, " ", what, " ", value}));
  };
  if (d.length < 0) refuse("has a negative length:", d.length);
  if (d.length > 0 && d.ranks.empty()) refuse("lies on no rank; its tokens:", d.length);
  std::vector<char> seen(static_cast<std::size_t>(ranks), 0);
  for (const int r : d.ranks) {
    if (r < 0 || r >= ranks) refuse("names a rank outside of the context axis:", r);
    if (seen[static_cast<std::size_t>(r)]++ != 0) refuse("names a rank twice:", r);
  }
  for (const compute::attention_slice& s : d.mask)
    if (s.q_begin < 0 || s.k_begin < 0 || s.q_end > d.length || s.k_end > d.length)
      refuse("has a mask with slices beyond its tokens, which are", d.length);
}

// The pieces of one rank's part; rows are not known yet.
template <split_policy Order>
constexpr std::vector<context_piece> pieces_of_part(std::int64_t length, std::int64_t parts, std::int64_t part) {
  std::vector<context_piece> found;
  for (std::int64_t at = 0, n = Order::size(length, parts, part); at < n;) {
    const std::int64_t run = Order::run(length, parts, part, at);
    const std::int64_t first = Order::to_global(length, parts, part, at);
    if (!found.empty() && found.back().first + found.back().count == first)
      found.back().count += run;
    else
      found.push_back({0, first, 1, run, 0, 0});
    at += run;
  }
  return found;
}

// The distance of single positions that lie equally far from each other in every part; 0 where they do not.
constexpr std::int64_t common_stride(const std::vector<std::vector<context_piece>>& parts) {
  std::int64_t stride = 0;
  for (const std::vector<context_piece>& pieces : parts)
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].count != 1) return 0;
      if (i == 0) continue;
      const std::int64_t step = pieces[i].first - pieces[i - 1].first;
      if (step <= 0 || (stride != 0 && step != stride)) return 0;
      stride = step;
    }
  return stride;
}

}  // namespace detail

/// Cuts documents into pieces by a split policy, document by document: `split::balanced` (contiguous), `split::zigzag`,
/// `split::block_cyclic<B>`, or your own. Lengths need not be divisible by anything; nothing is padded.
/// The rows of a rank: the first pieces of its documents, then the second ones, and so on, so that the late halves of a
/// zigzag order are one range.
/// Errors: `config_error` for ranks that do not exist or appear twice, negative lengths, and masks beyond the document.
template <split_policy Order>
constexpr context_cut cut_documents(std::vector<context_document> documents, int ranks) {
  context_cut cut;
  cut.ranks = ranks;
  cut.rows.assign(static_cast<std::size_t>(ranks), 0);
  std::vector<int> ordinals;  // the how manieth of its part each piece is
  int most = 0;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const context_document& document = documents[d];
    detail::check_document(document, static_cast<int>(d), ranks);
    const auto p = static_cast<std::int64_t>(document.ranks.size());
    std::vector<std::vector<context_piece>> parts;
    for (std::int64_t r = 0; r < p && document.length > 0; ++r)
      parts.push_back(detail::pieces_of_part<Order>(document.length, p, r));
    const std::int64_t stride = detail::common_stride(parts);
    for (std::size_t r = 0; r < parts.size(); ++r) {
      std::vector<context_piece>& pieces = parts[r];
      if (stride > 0 && !pieces.empty())
        pieces = {{0, pieces[0].first, stride, static_cast<std::int64_t>(pieces.size()), 0, 0}};
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        pieces[i].document = static_cast<int>(d);
        pieces[i].home = document.ranks[r];
        cut.pieces.push_back(pieces[i]);
        ordinals.push_back(static_cast<int>(i));
        most = (std::max)(most, static_cast<int>(i) + 1);
      }
    }
    cut.first_piece.push_back(static_cast<int>(cut.pieces.size()));
  }
  std::vector<std::vector<std::size_t>> by_ordinal(static_cast<std::size_t>(most));
  for (std::size_t i = 0; i < cut.pieces.size(); ++i) by_ordinal[static_cast<std::size_t>(ordinals[i])].push_back(i);
  for (const std::vector<std::size_t>& pieces : by_ordinal)
    for (const std::size_t i : pieces) {
      std::int64_t& rows = cut.rows[static_cast<std::size_t>(cut.pieces[i].home)];
      cut.pieces[i].row = rows;
      rows += cut.pieces[i].count;
    }
  cut.documents = static_cast<std::vector<context_document>&&>(documents);
  return cut;
}

/// Calls f(document, position, row) for each row of a rank: where its tokens come from.
template <class F>
constexpr void each_row_of(const context_cut& cut, int rank, F f) {
  for (const context_piece& p : cut.pieces)
    for (std::int64_t i = 0; i < p.count && p.home == rank; ++i) f(p.document, p.first + i * p.stride, p.row + i);
}

/// A token order chosen at run time.
struct context_order {
  std::string_view name;
  context_cut (*cut)(std::vector<context_document> documents, int ranks) = nullptr;
};

namespace detail {
inline constexpr context_order known_context_orders[] = {{"contiguous", &cut_documents<split::balanced>},
                                                         {"zigzag", &cut_documents<split::zigzag>},
                                                         {"striped", &cut_documents<split::block_cyclic<1>>}};
}  // namespace detail

/// The orders that have a name: "contiguous" (`split::balanced`), "zigzag", and "striped" (`split::block_cyclic<1>`).
constexpr std::span<const context_order> context_orders() noexcept {
  return detail::known_context_orders;
}

/// The order of that name.
/// Errors: `config_error` that lists the known ones.
HEDDLE_INLINE const context_order& named_context_order(std::string_view name);

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/context/impl/pieces.hpp>
#endif
