// heddle/infer/cut_step.hpp: cuts a step between sequences into steps that may overlap.
#pragma once

#include <heddle/infer/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

namespace heddle::inline v0::infer {

namespace detail {
// Of each number of sequences, from 0 to all, whether a step may be cut behind so many: nobody writes a block of the cache that the
// other side reads or writes.
inline std::vector<char> possible_cuts(const step& s, std::int64_t block_rows) {
  const std::size_t n = s.sequences.size();
  constexpr std::size_t nobody = static_cast<std::size_t>(-1);
  struct writers {
    std::size_t first = nobody, last = nobody;
  };
  std::vector<writers> of(
      s.blocks.empty() ? 0 : static_cast<std::size_t>(*std::max_element(s.blocks.begin(), s.blocks.end())) + 1);
  const auto block = [&](std::int64_t entry) {
    return static_cast<std::size_t>(s.blocks[static_cast<std::size_t>(entry)]);
  };
  for (std::size_t i = 0; i < n; ++i) {
    const sequence_rows& q = s.sequences[i];
    for (std::int64_t b = q.position / block_rows; b <= (q.position + q.rows - 1) / block_rows; ++b) {
      writers& w = of[block(q.first_block + b)];
      if (w.first == nobody) w.first = i;
      w.last = i;
    }
  }
  std::vector<std::ptrdiff_t> within(n + 2, 0);  // begins less ends of runs of sequences that stay together
  for (std::size_t i = 0; i < n; ++i)
    for (std::int64_t b = 0; b < s.sequences[i].blocks; ++b) {
      const writers& w = of[block(s.sequences[i].first_block + b)];
      if (w.first == nobody) continue;
      ++within[(std::min)(i, w.first) + 1];
      --within[(std::max)(i, w.last) + 1];
    }
  std::vector<char> possible(n + 1, 0);
  std::ptrdiff_t open = 0;
  for (std::size_t i = 1; i < n; ++i) {
    open += within[i];
    possible[i] = open == 0;
  }
  return possible;
}
}  // namespace detail

/// Cuts a step that `require_step` accepts between sequences, each time as near to the end of one of `rows` as is possible: the parts are
/// of those rows together, in order, and there are fewer where a cut is not possible. Sequences stay together where one writes a block of
/// the cache that the other reads. Moves and copies, also those of states, are left out: they come before all parts. Logits of a part are those of the
/// whole step, one part behind the other.
inline std::vector<step> cut_step(const step& s, std::span<const std::int64_t> rows, std::int64_t block_rows) {
  const std::vector<char> possible = detail::possible_cuts(s, block_rows);
  std::vector<step> parts;
  std::size_t begin = 0;
  std::int64_t wished = 0;
  for (std::size_t k = 0; k < rows.size() && begin < s.sequences.size(); ++k) {
    wished += rows[k];
    std::size_t end = s.sequences.size();
    if (k + 1 < rows.size()) {
      const auto off = [&](std::size_t i) {
        return std::abs((i == s.sequences.size() ? s.rows() : s.sequences[i].first_row) - wished);
      };
      for (std::size_t i = begin + 1; i < s.sequences.size(); ++i)
        if (possible[i] != 0 && off(i) < off(end)) end = i;
    }
    const std::int64_t first = s.sequences[begin].first_row;
    const std::int64_t last = end == s.sequences.size() ? s.rows() : s.sequences[end].first_row;
    step& part = parts.emplace_back();
    part.streams = s.streams;
    part.everywhere = s.everywhere;
    part.tokens.assign(s.tokens.begin() + first, s.tokens.begin() + last);
    if (!s.parents.empty()) part.parents.assign(s.parents.begin() + first, s.parents.begin() + last);
    for (; begin < end; ++begin) {
      sequence_rows q = s.sequences[begin];
      const auto blocks = s.blocks.begin() + q.first_block;
      q.first_row -= first;
      q.first_block = std::ssize(part.blocks);
      part.blocks.insert(part.blocks.end(), blocks, blocks + q.blocks);
      part.sequences.push_back(q);
    }
    for (auto w = std::lower_bound(s.wanted.begin(), s.wanted.end(), first); w != s.wanted.end() && *w < last; ++w)
      part.wanted.push_back(*w - first);
  }
  return parts;
}

}  // namespace heddle::inline v0::infer
