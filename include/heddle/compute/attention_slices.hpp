// heddle/compute/attention_slices.hpp: attention masks as lists of slices of queries and keys.
#pragma once

#include <heddle/core/error.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::compute {

/// Which keys a query of a slice sees. With nq queries, nk keys, query i and key j counted from the slice's own corner:
/// `full`: all; `causal` (aligned at the bottom right): j - i <= nk - nq; `inverse_causal` (aligned at the top left):
/// j >= i; `bi_causal`: both.
enum class slice_mask : std::uint8_t { full, causal, inverse_causal, bi_causal };

/// `"causal"` for `slice_mask::causal`.
constexpr const char* to_string(slice_mask m) noexcept {
  constexpr const char* names[] = {"full", "causal", "inverse_causal", "bi_causal"};
  return names[static_cast<std::size_t>(m)];
}

/// A rectangle of the score matrix with the part of it that counts. Units: rows of q and rows of k.
/// Source: the mask container of Bu et al. 2025, arXiv:2510.17896, section 3.
struct attention_slice {
  std::int64_t q_begin = 0;
  std::int64_t q_end = 0;
  std::int64_t k_begin = 0;
  std::int64_t k_end = 0;
  slice_mask mask = slice_mask::full;

  constexpr std::int64_t queries() const noexcept { return q_end - q_begin; }
  constexpr std::int64_t keys() const noexcept { return k_end - k_begin; }
  constexpr bool ends_early() const noexcept { return mask == slice_mask::causal || mask == slice_mask::bi_causal; }
  constexpr bool begins_late() const noexcept {
    return mask == slice_mask::inverse_causal || mask == slice_mask::bi_causal;
  }
  /// The keys that the query in row `q` sees: [first_key, last_key), within [k_begin, k_end]; empty if not below.
  constexpr std::int64_t first_key(std::int64_t q) const noexcept {
    return begins_late() ? (std::min)(k_end, k_begin + (q - q_begin)) : k_begin;
  }
  constexpr std::int64_t last_key(std::int64_t q) const noexcept {
    return ends_early() ? (std::max)(k_begin, k_end - (q_end - 1 - q)) : k_end;
  }
  /// Query-key pairs that count: the attention of a head takes 4 * area * head_dim floating-point operations forward.
  constexpr std::int64_t area() const noexcept {
    const std::int64_t nq = queries(), nk = keys();
    if (nq <= 0 || nk <= 0) return 0;
    if (mask == slice_mask::full) return nq * nk;
    if (mask == slice_mask::bi_causal) return (std::max)(std::int64_t{0}, nk - nq + 1) * nq;
    const std::int64_t h = (std::min)(nq, nk);
    return (2 * nk - h + 1) * h / 2;
  }
  /// The part of the slice with queries in [begin, end): a slice again.
  constexpr attention_slice of_queries(std::int64_t begin, std::int64_t end) const noexcept {
    attention_slice part = *this;
    part.q_begin = (std::max)(q_begin, begin);
    part.q_end = (std::min)(q_end, end);
    if (part.q_begin >= part.q_end) return {part.q_begin, part.q_begin, k_begin, k_begin, mask};
    if (ends_early()) part.k_end -= q_end - part.q_end;
    if (begins_late()) part.k_begin += part.q_begin - q_begin;
    if (part.k_begin < part.k_end) return part;
    return {part.q_begin, part.q_begin, k_begin, k_begin, mask};  // none of these queries sees a key
  }
  friend constexpr bool operator==(const attention_slice&, const attention_slice&) = default;
};

inline std::string to_string(const attention_slice& s) {
  return std::string("queries [") + std::to_string(s.q_begin) + ", " + std::to_string(s.q_end) + ") by keys [" +
         std::to_string(s.k_begin) + ", " + std::to_string(s.k_end) + "), " + to_string(s.mask);
}

/// Causal self-attention of sequences that lie behind each other: `starts` holds where each begins, and the end of the
/// last (the cumulative lengths of variable-length attention).
/// Errors: `layout_error` if the starts are not in order.
inline std::vector<attention_slice> causal_sequences(std::span<const std::int64_t> starts) {
  std::vector<attention_slice> slices;
  for (std::size_t i = 1; i < starts.size(); ++i) {
    if (starts[i] < starts[i - 1] || starts[i - 1] < 0) [[unlikely]]
      throw layout_error("heddle: causal_sequences: starts of sequences should be in order from 0 on, got " +
                         std::to_string(starts[i - 1]) + " before " + std::to_string(starts[i]));
    slices.push_back({starts[i - 1], starts[i], starts[i - 1], starts[i], slice_mask::causal});
  }
  return slices;
}

/// The same for `batch` sequences of one length.
inline std::vector<attention_slice> causal_sequences(std::int64_t batch, std::int64_t sequence) {
  std::vector<attention_slice> slices;
  slices.reserve(static_cast<std::size_t>((std::max)(std::int64_t{0}, batch)));
  for (std::int64_t b = 0; b < batch; ++b)
    slices.push_back({b * sequence, (b + 1) * sequence, b * sequence, (b + 1) * sequence, slice_mask::causal});
  return slices;
}

/// Causal attention of the queries in rows [q_begin, q_end), the first of which stands at position `q_position` of its
/// sequence, to the keys in rows [k_begin, k_end), whose first stands at `k_position`: at most a full and a causal
/// slice. What context parallelism and decoding need.
struct offset_slices {
  std::array<attention_slice, 2> slices{};
  std::size_t count = 0;
  constexpr const attention_slice* begin() const noexcept { return slices.data(); }
  constexpr const attention_slice* end() const noexcept { return slices.data() + count; }
  constexpr const attention_slice* data() const noexcept { return slices.data(); }
  constexpr std::size_t size() const noexcept { return count; }
};
/// The slices of causal attention between a part of the queries and a part of the keys: see `offset_slices`.
constexpr offset_slices causal_at(std::int64_t q_begin, std::int64_t q_end, std::int64_t q_position,
                                  std::int64_t k_begin, std::int64_t k_end, std::int64_t k_position) noexcept {
  offset_slices out;
  const std::int64_t nq = q_end - q_begin, nk = k_end - k_begin, ahead = q_position - k_position;
  if (nq <= 0 || nk <= 0) return out;
  // Query i sees keys j <= i + ahead: rows below `some` see none, rows from `all` on see every key.
  const auto inside = [nq](std::int64_t row) { return (std::min)(nq, (std::max)(std::int64_t{0}, row)); };
  const std::int64_t some = inside(-ahead), all = inside(nk - 1 - ahead);
  if (some < all)
    out.slices[out.count++] = {q_begin + some, q_begin + all, k_begin, k_begin + all + ahead, slice_mask::causal};
  if (all < nq) out.slices[out.count++] = {q_begin + all, q_end, k_begin, k_end, slice_mask::full};
  return out;
}

/// Causal attention of the queries in rows [q_begin, q_end), the first of which stands at position `q_position` of its sequence, to the last `window` tokens up to their own; 0:
/// to all. The key of the sequence's first token is row `k_begin`. At most a causal slice and, behind it, a bi_causal one; with a window that nothing leaves the causal one alone.
constexpr offset_slices causal_window(std::int64_t q_begin, std::int64_t q_end, std::int64_t q_position,
                                      std::int64_t k_begin, std::int64_t window) noexcept {
  offset_slices out;
  const std::int64_t nq = q_end - q_begin, last = k_begin + q_position + nq;
  if (nq <= 0) return out;
  const std::int64_t inside =  // queries that see all before them
      window <= 0 ? nq : (std::min)(nq, (std::max)(std::int64_t{0}, window - q_position));
  if (inside > 0)
    out.slices[out.count++] = {q_begin, q_begin + inside, k_begin, k_begin + q_position + inside, slice_mask::causal};
  if (inside < nq)
    out.slices[out.count++] = {q_begin + inside, q_end, k_begin + q_position + inside - window + 1, last,
                               nq - inside == 1 ? slice_mask::causal : slice_mask::bi_causal};
  return out;
}

}  // namespace heddle::inline v0::compute
