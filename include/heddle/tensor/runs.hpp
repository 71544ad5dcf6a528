// heddle/tensor/runs.hpp: iterates over contiguous runs that two row-major memories share.
#pragma once

#include <heddle/core/next_index.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

/// Places along one dimension that follow each other in two memories: `count` of them, from `from` in the one and from `to`
/// in the other.
struct stretch {
  std::int64_t from = 0, to = 0, count = 0;
};

/// What two memories have in common along one dimension, in the order of the first. One stretch is kept in place: parts
/// that are intervals need no more, and no allocation.
class stretch_list {
 public:
  stretch_list() = default;
  explicit stretch_list(const stretch& only) { push_back(only); }

  void push_back(const stretch& s) {
    if (s.count == 0) return;
    total_ += s.count;
    if (size_ != 0) {
      stretch& last = more_.empty() ? one_ : more_.back();
      if (last.from + last.count == s.from && last.to + last.count == s.to) {
        last.count += s.count;
        return;
      }
      if (more_.empty()) more_.push_back(one_);
      more_.push_back(s);
    } else {
      one_ = s;
    }
    ++size_;
  }

  std::size_t size() const noexcept { return size_; }
  /// Elements, of all stretches together.
  std::int64_t total() const noexcept { return total_; }
  const stretch* begin() const noexcept { return more_.empty() ? &one_ : more_.data(); }
  const stretch* end() const noexcept { return begin() + size_; }
  const stretch& operator[](std::size_t i) const noexcept { return begin()[i]; }

 private:
  stretch one_{};
  std::vector<stretch> more_{};
  std::size_t size_ = 0;
  std::int64_t total_ = 0;
};

/// What two parts of one dimension (`dimension_part`) have in common, as places in both. The order is that of `a`'s memory,
/// so that who packs and who unpacks agree if both name the sender first.
template <class A, class B>
stretch_list common_stretches(const A& a, const B& b) {
  stretch_list out;
  const std::int64_t in_a = a.size(), in_b = b.size();
  bool ascending = true;
  std::int64_t at_a = 0, at_b = 0, seen_a = -1, seen_b = -1;
  // Both ascend in the whole, nearly always: walk them together.
  while (at_a < in_a && at_b < in_b) {
    const std::int64_t first_a = a.to_global(at_a), first_b = b.to_global(at_b);
    ascending = ascending && first_a >= seen_a && first_b >= seen_b;
    seen_a = first_a;
    seen_b = first_b;
    const std::int64_t end_a = first_a + a.run(at_a), end_b = first_b + b.run(at_b);
    const std::int64_t begin = (std::max)(first_a, first_b), end = (std::min)(end_a, end_b);
    if (begin < end) out.push_back({at_a + begin - first_a, at_b + begin - first_b, end - begin});
    if (end_a <= end_b) at_a += end_a - first_a;
    if (end_b <= end_a) at_b += end_b - first_b;
  }
  for (; ascending && at_a < in_a; at_a += a.run(at_a))
    ascending = a.to_global(at_a) >= std::exchange(seen_a, a.to_global(at_a));
  for (; ascending && at_b < in_b; at_b += b.run(at_b))
    ascending = b.to_global(at_b) >= std::exchange(seen_b, b.to_global(at_b));
  if (ascending) return out;
  out = {};
  for (std::int64_t at = 0; at < in_a;) {
    const std::int64_t first = a.to_global(at), count = a.run(at);
    for (std::int64_t i = 0; i < count;) {
      std::int64_t n = 1;
      if (b.holds(first + i)) {
        const std::int64_t there = b.to_local(first + i);
        n = (std::min)(count - i, b.run(there));
        out.push_back({at + i, there, n});
      }
      i += n;
    }
    at += count;
  }
  return out;
}

/// What two memories have in common: the product of what they have in common along each dimension.
template <std::size_t Rank>
struct memory_overlap {
  std::array<stretch_list, Rank> along{};
  bool empty = false;  // says so where no dimension can

  std::int64_t size() const {
    std::int64_t n = empty ? 0 : 1;
    for (const stretch_list& s : along) n *= s.total();
    return n;
  }
  /// Its extents when it is packed without gaps.
  std::array<std::int64_t, Rank> extents() const {
    std::array<std::int64_t, Rank> e{};
    for (std::size_t d = 0; d != Rank; ++d) e[d] = along[d].total();
    return e;
  }
};

/// The overlap of a memory with the same elements packed without gaps: `Side` says which of the two places is kept.
template <std::int64_t stretch::* Side, std::size_t Rank>
memory_overlap<Rank> with_packed(const memory_overlap<Rank>& o) {
  constexpr auto other = Side == &stretch::from ? &stretch::to : &stretch::from;
  memory_overlap<Rank> out;
  out.empty = o.empty;
  for (std::size_t d = 0; d != Rank; ++d) {
    std::int64_t at = 0;
    for (stretch s : o.along[d]) {
      s.*other = at;
      at += s.count;
      out.along[d].push_back(s);
    }
  }
  return out;
}

// A place along one dimension of an overlap: inside which stretch, and how far.
struct stretch_place {
  const stretch* in = nullptr;
  std::int64_t within = 0;
};

// Calls `run(from_index, to_index, count)` for each run of elements that is contiguous in both row-major memories, whose extents
// are given. Dimensions that the overlap fills on both sides are merged, so that a whole tensor is one run. `at` has a place per
// dimension, at least one. The one walk over what two boxes share: of fixed and of dynamic rank (arrays, vectors).
template <class Stretches, class Extents, class Places, class Run>
void walk_runs(const Stretches& along, const Extents& from, const Extents& to, Places at, Run&& run) {
  for (const stretch_list& s : along)
    if (s.size() == 0) return;
  std::int64_t inner = 1;  // elements of the dimensions after `last`, which are whole
  std::size_t last = at.size() - 1;
  for (; last > 0 && along[last].total() == from[last] && along[last].total() == to[last] && along[last].size() == 1;
       --last)
    inner *= from[last];
  for (std::size_t d = 0; d < last; ++d) at[d].in = along[d].begin();
  const stretch *const row_begin = along[last].begin(), *const row_end = along[last].end();
  do {
    std::int64_t source = 0, target = 0;
    for (std::size_t d = 0; d < last; ++d) {
      source = source * from[d] + at[d].in->from + at[d].within;
      target = target * to[d] + at[d].in->to + at[d].within;
    }
    for (const stretch* s = row_begin; s != row_end; ++s)
      run((source * from[last] + s->from) * inner, (target * to[last] + s->to) * inner, s->count * inner);
  } while (next_index(last, [&](std::size_t d) {
    if (++at[d].within < at[d].in->count) return true;
    at[d].within = 0;
    if (++at[d].in != along[d].end()) return true;
    at[d].in = along[d].begin();
    return false;
  }));
}

/// Calls `run(from_index, to_index, count)` for each run of elements that is contiguous in both memories, whose extents are
/// given. Dimensions that the overlap fills on both sides are merged, so that a whole tensor is one run.
template <std::size_t Rank, class Run>
void for_each_run(const memory_overlap<Rank>& o, [[maybe_unused]] const std::array<std::int64_t, Rank>& from,
                  [[maybe_unused]] const std::array<std::int64_t, Rank>& to, Run&& run) {
  if (o.empty) return;
  if constexpr (Rank == 0)
    run(std::int64_t{0}, std::int64_t{0}, std::int64_t{1});
  else
    walk_runs(o.along, from, to, std::array<stretch_place, Rank>{}, run);
}
/// The same for numbers of dimensions that only run time knows.
template <class Run>
void for_each_run(const std::vector<stretch_list>& along, const std::vector<std::int64_t>& from,
                  const std::vector<std::int64_t>& to, Run&& run) {
  if (along.empty())
    run(std::int64_t{0}, std::int64_t{0}, std::int64_t{1});
  else
    walk_runs(along, from, to, std::vector<stretch_place>(along.size()), run);
}

/// Where the elements begin, if they already lie in the memory as they would when packed; -1 if they do not.
template <std::int64_t stretch::* Side, std::size_t Rank>
std::int64_t packed_start(const memory_overlap<Rank>& o, const std::array<std::int64_t, Rank>& memory) {
  bool whole = true;  // so far, from the last dimension on, the elements fill the memory
  if (o.size() == 0) return -1;
  for (std::size_t d = Rank; d-- > 0;) {
    const stretch_list& s = o.along[d];
    for (std::size_t i = 1; i < s.size(); ++i)
      if (s[i].*Side != s[i - 1].*Side + s[i - 1].count) return -1;
    if (!whole && s.total() != 1) return -1;  // further dimensions may have one place only
    if (s.total() != memory[d]) whole = false;
  }
  std::int64_t index = 0;
  for (std::size_t d = 0; d != Rank; ++d) index = index * memory[d] + o.along[d][0].*Side;
  return index;
}
/// Whether they lie so from index `start` on.
template <std::int64_t stretch::* Side, std::size_t Rank>
bool lies_packed(const memory_overlap<Rank>& o, const std::array<std::int64_t, Rank>& memory, std::int64_t start) {
  return o.size() == 0 || packed_start<Side>(o, memory) == start;
}

/// Copies an overlap from one memory to another.
template <class T, std::size_t Rank>
void copy_overlap(const memory_overlap<Rank>& o, const T* source, const std::array<std::int64_t, Rank>& from, T* target,
                  const std::array<std::int64_t, Rank>& to) {
  for_each_run(o, from, to,
               [&](std::int64_t s, std::int64_t t, std::int64_t n) { std::copy_n(source + s, n, target + t); });
}
/// Packs it without gaps.
template <class T, std::size_t Rank>
void pack_overlap(const memory_overlap<Rank>& o, const T* source, const std::array<std::int64_t, Rank>& from,
                  T* packed) {
  copy_overlap(with_packed<&stretch::from>(o), source, from, packed, o.extents());
}
/// Puts packed elements in their places.
template <class T, std::size_t Rank>
void unpack_overlap(const memory_overlap<Rank>& o, const T* packed, T* target,
                    const std::array<std::int64_t, Rank>& to) {
  copy_overlap(with_packed<&stretch::to>(o), packed, o.extents(), target, to);
}

// Calls f(r, i, height, c, j, width) for each tile of at most `tall` rows and `wide` columns of a matrix whose rows and columns are named
// by stretches: those of rows and of columns, and where in them the tile begins. Tiles of the same columns follow one another.
template <class Stretches, class F>
void for_each_tile(const Stretches& rows, const Stretches& cols, std::int64_t tall, std::int64_t wide, F&& f) {
  for (const stretch& c : cols)
    for (std::int64_t j = 0; j < c.count; j += wide)
      for (const stretch& r : rows)
        for (std::int64_t i = 0; i < r.count; i += tall)
          f(r, i, (std::min)(tall, r.count - i), c, j, (std::min)(wide, c.count - j));
}

}  // namespace detail
}  // namespace heddle::inline v0
