// heddle/tensor/box_table.hpp: boxes of memories in a table, for one kernel of a queue.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/launch_each.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/runs.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

// --- the table of boxes that a kernel reads, in words of 64 bits ---
//
//   boxes, then for each box the number of the units of work before it, then for each box the place of its description:
//   from, to, chunks of a row, rows of a unit, dims, then per dimension { extent, stride from, stride to, stretches, place of the stretches },
//   then the stretches of dimensions that have more than one: { place when packed, from, to }.
// Places are in words: of boxes from the table's beginning, of stretches from their box's.

/// Elements that are about one unit of work on cores of the host.
inline constexpr std::int64_t box_row_chunk = 1 << 14;
inline constexpr std::int64_t box_head = 5, box_dim = 5, box_stretch = 3;

/// Adds the place `c` of a dimension to those in both memories.
HEDDLE_HD constexpr void add_place(const std::int64_t* box, const std::int64_t* dim, std::int64_t c, std::int64_t& from,
                                   std::int64_t& to) {
  std::int64_t f = c, t = c;
  if (dim[3] > 1) {
    const std::int64_t* const all = box + dim[4];
    const std::int64_t* const s = all + box_stretch * last_not_above(all, dim[3], box_stretch, c);
    f += s[1] - s[0];
    t += s[2] - s[0];
  }
  from += f * dim[1];
  to += t * dim[2];
}

/// What kernels do with an element of a box: `act(place in the one memory, place in the other)`; cores of the host with neighbours: `act.over(.., .., n)`.
template <class T>
struct copy_element {
  const T* source;
  T* target;
  HEDDLE_HD void operator()(std::int64_t from, std::int64_t to) const { target[to] = source[from]; }
  void over(std::int64_t from, std::int64_t to, std::int64_t n) const { std::copy_n(source + from, n, target + to); }
};
template <class T, class Op>
struct combine_element {
  const T* source;
  T* target;
  HEDDLE_HD void operator()(std::int64_t from, std::int64_t to) const {
    target[to] = static_cast<T>(Op{}(target[to], source[from]));
  }
  void over(std::int64_t from, std::int64_t to, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) (*this)(from + i, to + i);
  }
};
/// A box without a source (`from` below zero) gets the value.
template <class T>
struct copy_or_fill_element {
  const T* source;
  T* target;
  T value;
  HEDDLE_HD void operator()(std::int64_t from, std::int64_t to) const { target[to] = from < 0 ? value : source[from]; }
  void over(std::int64_t from, std::int64_t to, std::int64_t n) const {
    if (from < 0)
      std::fill_n(target + to, n, value);
    else
      std::copy_n(source + from, n, target + to);
  }
};

/// Where the table lies: in the kernel's own arguments, or in memory.
template <std::size_t Words>
struct table_in_arguments {
  std::int64_t word[Words];
  HEDDLE_HD const std::int64_t* words() const { return word; }
};
struct table_in_memory {
  const std::int64_t* at;
  HEDDLE_HD const std::int64_t* words() const { return at; }
};
/// One element of the boxes. `Index` is what places inside a box are divided with: 32 bits where they suffice.
template <class Table, class Index, class Act>
struct each_box_element {
  Table table;
  Act act;
  HEDDLE_HD void operator()(std::int64_t i) const {
    const std::int64_t* const words = table.words();
    const std::int64_t boxes = words[0], b = last_not_above(words + 1, boxes, 1, i);
    const std::int64_t* const box = words + words[1 + boxes + b];
    Index rest = static_cast<Index>(i - words[1 + b]);
    std::int64_t from = box[0], to = box[1];
    for (std::int64_t d = box[4]; d-- > 0;) {
      const std::int64_t* const dim = box + box_head + box_dim * d;
      const Index extent = static_cast<Index>(dim[0]), above = d > 0 ? rest / extent : Index{0};
      add_place(box, dim, static_cast<std::int64_t>(rest - above * extent), from, to);
      rest = above;
    }
    act(from, to);
  }
};

/// Some rows of a box, along its last two dimensions, or a chunk of one: for cores of the host, which would rather not divide for each element.
template <class Act>
struct some_box_rows {
  std::shared_ptr<const std::vector<std::int64_t>> table;
  Act act;
  void operator()(std::int64_t i) const {
    const std::int64_t* const words = table->data();
    const std::int64_t boxes = words[0], b = last_not_above(words + 1, boxes, 1, i);
    const std::int64_t* const box = words + words[1 + boxes + b];
    const std::int64_t *const last = box + box_head + box_dim * (box[4] - 1), *const rows = last - box_dim;
    const std::int64_t count = box[4] > 1 ? rows[0] : 1, parts = (count + box[3] - 1) / box[3];
    std::int64_t rest = i - words[1 + b], from = box[0], to = box[1];
    const std::int64_t begin = rest % box[2] * box_row_chunk, end = (std::min)(last[0], begin + box_row_chunk);
    rest /= box[2];
    const std::int64_t first = rest % parts * box[3], behind = (std::min)(count, first + box[3]);
    rest /= parts;
    for (std::int64_t d = box[4] - 2; d-- > 0;) {
      const std::int64_t* const dim = box + box_head + box_dim * d;
      add_place(box, dim, rest % dim[0], from, to);
      rest /= dim[0];
    }
    if (box[4] < 2) return row(box, last, from, to, begin, end);
    if (rows[3] == 1 && last[3] == 1)
      for (std::int64_t r = first; r < behind; ++r)
        act.over(from + r * rows[1] + begin, to + r * rows[2] + begin, end - begin);
    else
      for (std::int64_t r = first; r < behind; ++r) {
        std::int64_t row_from = from, row_to = to;
        add_place(box, rows, r, row_from, row_to);
        row(box, last, row_from, row_to, begin, end);
      }
  }

 private:
  // Elements [at, end) of the last dimension, whose neighbours are neighbours in both memories.
  void row(const std::int64_t* box, const std::int64_t* last, std::int64_t from, std::int64_t to, std::int64_t at,
           std::int64_t end) const {
    if (last[3] == 1) return act.over(from + at, to + at, end - at);
    const std::int64_t* const all = box + last[4];
    for (std::int64_t s = last_not_above(all, last[3], box_stretch, at); at < end; ++s) {
      const std::int64_t* const one = all + box_stretch * s;
      const std::int64_t next = s + 1 < last[3] ? (std::min)(one[box_stretch], end) : end;
      act.over(from + at - one[0] + one[1], to + at - one[0] + one[2], next - at);
      at = next;
    }
  }
};

/// Makes the table. Units of work: elements, or (`by_rows`) about `box_row_chunk` elements of the last two dimensions.
class box_table {
 public:
  explicit box_table(bool by_rows) : chunk_(by_rows ? box_row_chunk : 0) {}

  /// The box of an overlap; `from_at` and `to_at`: where the two memories begin. Dimensions that follow each other in both
  /// memories become one.
  template <std::size_t Rank>
  void add(const memory_overlap<Rank>& o, const std::array<std::int64_t, Rank>& from, std::int64_t from_at,
           const std::array<std::int64_t, Rank>& to, std::int64_t to_at) {
    const std::int64_t size = o.size();
    if (size == 0) return;
    if (dims_.capacity() == 0) make_room();
    std::vector<dimension>& dims = dims_;  // the last dimension first
    dims.clear();
    std::int64_t stride_from = 1, stride_to = 1;
    for (std::size_t d = Rank; d-- > 0;) {
      const stretch_list& s = o.along[d];
      const std::int64_t inner = dims.empty() ? 0 : dims.back().extent;
      if (!dims.empty() && dims.back().along == nullptr && stride_from == dims.back().stride_from * inner &&
          stride_to == dims.back().stride_to * inner) {
        if (s.size() == 1) {
          from_at += s[0].from * stride_from;
          to_at += s[0].to * stride_to;
        } else {
          dims.back().along = &s;
          dims.back().scale = inner;
        }
        dims.back().extent *= s.total();
      } else if (s.size() == 1) {
        from_at += s[0].from * stride_from;
        to_at += s[0].to * stride_to;
        if (s.total() != 1 || dims.empty()) dims.push_back({s.total(), stride_from, stride_to, nullptr, 1});
      } else {
        dims.push_back({s.total(), stride_from, stride_to, &s, 1});
      }
      stride_from *= from[d];
      stride_to *= to[d];
    }
    if (dims.empty()) dims.push_back({1, 1, 1, nullptr, 1});
    append(size, from_at, to_at);
  }

  std::int64_t boxes() const noexcept { return static_cast<std::int64_t>(begins_.size()); }
  /// Of work.
  std::int64_t units() const noexcept { return units_; }
  std::int64_t largest_box() const noexcept { return largest_; }
  std::size_t words() const noexcept { return 1 + 2 * begins_.size() + descriptions_.size(); }
  void write_to(std::int64_t* out) const {
    const std::int64_t head = 1 + 2 * boxes();
    *out++ = boxes();
    out = std::copy(begins_.begin(), begins_.end(), out);
    for (const std::int64_t p : places_) *out++ = head + p;
    std::copy(descriptions_.begin(), descriptions_.end(), out);
  }
  void clear() noexcept {
    begins_.clear();
    places_.clear();
    descriptions_.clear();
    units_ = largest_ = 0;
  }

 private:
  struct dimension {
    std::int64_t extent, stride_from, stride_to;
    const stretch_list* along;  // where there are several stretches
    std::int64_t scale;         // elements of one place of theirs
  };

  // For the boxes of a usual step, so that each list is allocated once.
  void make_room() {
    constexpr std::size_t boxes = 8, dims = 3;
    dims_.reserve(dims);
    begins_.reserve(boxes);
    places_.reserve(boxes);
    descriptions_.reserve(boxes * static_cast<std::size_t>(box_head + box_dim * static_cast<std::int64_t>(dims)));
  }
  void append(std::int64_t size, std::int64_t from_at, std::int64_t to_at) {
    const std::int64_t last = dims_.front().extent, rows = dims_.size() > 1 ? dims_[1].extent : 1;
    const std::int64_t chunks = chunk_ == 0 ? 1 : (last + chunk_ - 1) / chunk_;
    const std::int64_t together = chunk_ == 0 ? 1 : (std::max)(std::int64_t{1}, chunk_ / last);
    begins_.push_back(units_);
    places_.push_back(static_cast<std::int64_t>(descriptions_.size()));
    units_ += chunk_ == 0 ? size : size / last / rows * ((rows + together - 1) / together) * chunks;
    largest_ = (std::max)(largest_, size);
    const auto count = static_cast<std::int64_t>(dims_.size());
    descriptions_.insert(descriptions_.end(), {from_at, to_at, chunks, together, count});
    std::int64_t place = box_head + box_dim * count;
    for (std::size_t d = dims_.size(); d-- > 0;) {
      const dimension& x = dims_[d];
      const std::int64_t stretches = x.along == nullptr ? 1 : static_cast<std::int64_t>(x.along->size());
      descriptions_.insert(descriptions_.end(), {x.extent, x.stride_from, x.stride_to, stretches, place});
      if (x.along != nullptr) place += box_stretch * stretches;
    }
    for (std::size_t d = dims_.size(); d-- > 0;) {
      const dimension& x = dims_[d];
      if (x.along == nullptr) continue;
      std::int64_t packed = 0;
      for (const stretch& s : *x.along) {
        descriptions_.insert(descriptions_.end(), {packed * x.scale, s.from * x.scale, s.to * x.scale});
        packed += s.count;
      }
    }
  }

  std::int64_t chunk_;
  std::vector<std::int64_t> begins_, places_, descriptions_;
  std::vector<dimension> dims_;
  std::int64_t units_ = 0, largest_ = 0;
};

template <std::size_t Words>
struct write_words {
  table_in_arguments<Words> from;
  std::int64_t* to;
  HEDDLE_HD void operator()(std::int64_t i) const { to[i] = from.word[i]; }
};

/// `act` on all elements of the boxes, in one launch of `queue`. The table travels with the kernel's arguments, in the order of the
/// queue and without a wait of the host; a table that is larger than arguments may be is written to the device's memory before,
/// by kernels that bring it with theirs.
/// `Index` overrides the integer that kernels divide with.
template <class Space, class Index = void, class Act>
void launch_boxes(typename Space::queue& q, const box_table& table, const Act& act) {
  using queue = typename Space::queue;
  if (table.units() == 0) return;
  if constexpr (kernels_run_on_host<Space>()) {
    auto kept = std::make_shared<std::vector<std::int64_t>>(table.words());
    table.write_to(kept->data());
    launch_each(q, table.units(), some_box_rows<Act>{std::move(kept), act});
  } else {
    const auto on = [&](const auto& where) {
      using where_type = std::remove_cvref_t<decltype(where)>;
      constexpr auto most = static_cast<std::int64_t>((std::numeric_limits<std::uint32_t>::max)());
      if constexpr (!std::is_void_v<Index>)
        launch_each(q, table.units(), each_box_element<where_type, Index, Act>{where, act});
      else if (table.largest_box() <= most)
        launch_each(q, table.units(), each_box_element<where_type, std::uint32_t, Act>{where, act});
      else
        launch_each(q, table.units(), each_box_element<where_type, std::int64_t, Act>{where, act});
    };
    // Kernels take 4 KiB of arguments; those of newer devices take more.
    constexpr std::size_t few = 448, many = (std::max)(few, largest_kernel_argument<queue> / 8 - 64);
    const std::size_t words = table.words();
    if (words <= few) {
      table_in_arguments<few> here{};
      table.write_to(here.word);
      on(here);
    } else if (words <= many) {
      table_in_arguments<many> here{};
      table.write_to(here.word);
      on(here);
    } else {
      std::vector<std::int64_t> all(words);
      table.write_to(all.data());
      buffer<std::int64_t, Space> there(q, static_cast<std::int64_t>(words), "a table of boxes");
      for (std::size_t at = 0; at < words; at += many) {
        const std::size_t n = (std::min)(many, words - at);
        write_words<many> part{{}, there.address() + at};
        std::copy_n(all.data() + at, n, part.from.word);
        launch_each(q, static_cast<std::int64_t>(n), part);
      }
      on(table_in_memory{there.address()});
    }
  }
}

}  // namespace detail
}  // namespace heddle::inline v0
