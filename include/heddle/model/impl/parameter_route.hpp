// heddle/model/impl/parameter_route.hpp: bodies of heddle/model/parameter_route.hpp.
#pragma once

#include <heddle/model/parameter_route.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

namespace detail {
// A box of a tensor without its name.
struct plain_box {
  std::vector<std::int64_t> start, extents;
  std::int64_t size() const {
    std::int64_t n = 1;
    for (const std::int64_t e : extents) n *= e;
    return n;
  }
};
inline bool boxes_meet(const plain_box& a, const plain_box& b) {
  for (std::size_t d = 0; d < a.start.size(); ++d)
    if (a.start[d] + a.extents[d] <= b.start[d] || b.start[d] + b.extents[d] <= a.start[d]) return false;
  return true;
}
// What two boxes that meet have in common.
inline plain_box common_box(const plain_box& a, const plain_box& b) {
  plain_box both = a;
  for (std::size_t d = 0; d < both.start.size(); ++d) {
    both.start[d] = (std::max)(a.start[d], b.start[d]);
    const std::int64_t end = (std::min)(a.start[d] + a.extents[d], b.start[d] + b.extents[d]);
    both.extents[d] = end - both.start[d];
  }
  return both;
}
// What is left of a box without a part of it, as boxes that have nothing in common.
inline void add_rest(plain_box whole, const plain_box& part, std::vector<plain_box>& rest) {
  for (std::size_t d = 0; d < whole.start.size(); ++d) {
    const std::int64_t begin = whole.start[d], end = begin + whole.extents[d];
    const std::int64_t first = part.start[d], last = first + part.extents[d];
    for (const auto& [from, to] : {std::pair(begin, first), std::pair(last, end)}) {
      if (from == to) continue;
      plain_box side = whole;
      side.start[d] = from;
      side.extents[d] = to - from;
      rest.push_back(std::move(side));
    }
    whole.start[d] = first;
    whole.extents[d] = part.extents[d];
  }
}
// A box in pieces of at most so many elements, in its order: f(piece).
template <class F>
void cut_box(plain_box box, std::int64_t most, std::size_t d, F&& f) {
  const std::int64_t n = box.size();
  if (n <= most) return f(box);
  while (box.extents[d] == 1) ++d;
  const std::int64_t inner = n / box.extents[d], step = (std::max)(std::int64_t{1}, most / inner);
  for (std::int64_t left = box.extents[d]; left > 0; left -= step, box.start[d] += step) {
    box.extents[d] = (std::min)(step, left);
    cut_box(box, most, d + 1, f);
  }
}
inline std::string text_of_box(const plain_box& b) {
  std::string text;
  for (std::size_t d = 0; d < b.start.size(); ++d)
    text += text_of({d == 0 ? "[" : " x [", b.start[d], ", ", b.start[d] + b.extents[d], ")"});
  return text;
}
inline std::string text_of_extents(const std::vector<std::int64_t>& extents) {
  std::string text = "[";
  for (const std::int64_t e : extents) text += (text.size() > 1 ? ", " : "") + std::to_string(e);
  return text + "]";
}
}  // namespace detail

HEDDLE_INLINE std::vector<parameter_box> parameter_boxes(std::span<const parameter> table, int row) {
  std::vector<parameter_box> all;
  all.reserve(table.size());
  for (const parameter& p : table)
    if (p.count > 0) all.push_back({p.name, p.logical, p.start, p.local, p.offset, row});
  return all;
}

// The whole plan, the same on all ranks, of which a route keeps its rank's.
class parameter_route::planner {
 public:
  planner(parameter_route& route, std::span<const boxes_of_rank> ranks) : route_(route), fill_(ranks.size()) {
    if (route.sizes_.element_bytes < 1 || route.sizes_.bucket_bytes < route.sizes_.element_bytes)
      throw config_error(text_of({"heddle: bucket_bytes of a parameter_route should hold at least one element of ",
                                  route.sizes_.element_bytes, " bytes, got ", route.sizes_.bucket_bytes}));
    most_ = route.sizes_.bucket_bytes / route.sizes_.element_bytes;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      for (const parameter_box& b : ranks[r].from) add(b, static_cast<int>(r), &tensor::held);
      for (const parameter_box& b : ranks[r].to) add(b, static_cast<int>(r), &tensor::wanted);
    }
    for (auto& [name, t] : tensors_) plan(t);
    const auto before = [](const packed_box& a, const packed_box& b) {
      if (a.bucket != b.bucket) return a.bucket < b.bucket;
      return a.rank != b.rank ? a.rank < b.rank : a.number < b.number;
    };
    for (auto* list : {&route.out_, &route.in_}) std::sort(list->begin(), list->end(), before);
    for (int k = 0; k < route.buckets(); ++k) {
      for (const auto& [list, most] :
           {std::pair(&route.out_, &route.most_out_), std::pair(&route.in_, &route.most_in_)}) {
        std::int64_t n = 0;
        for (const packed_box& b : in_bucket(*list, k)) n += b.count;
        *most = (std::max)(*most, n);
      }
    }
  }

 private:
  struct owned_box {
    int rank;
    const parameter_box* box;
  };
  // Ranks that hold the same box.
  struct replicas {
    detail::plain_box box;
    std::vector<owned_box> holders;
    const owned_box* of(int rank) const {
      for (const owned_box& h : holders)
        if (h.rank == rank) return &h;
      return nullptr;
    }
  };
  struct tensor {
    std::vector<owned_box> held, wanted;
  };
  // How far a rank's outgoing and incoming buckets are filled.
  struct filled {
    int out = 0, in = 0;
    std::int64_t out_elements = 0, in_elements = 0;
  };

  void add(const parameter_box& b, int rank, std::vector<owned_box> tensor::* to) {
    if (b.logical.size() > most_dims || b.start.size() != b.logical.size() || b.extents.size() != b.logical.size())
      throw layout_error(text_of({"heddle: the parameter '", b.name, "' of rank ", rank, " has ", b.logical.size(),
                                  " dimensions and a box of ", b.start.size(), " and ", b.extents.size(),
                                  "; a parameter_route takes equally many, at most ", most_dims}));
    if (plain(b).size() == 0) return;
    tensor& t = tensors_[b.name];
    const std::vector<owned_box>& others = t.held.empty() ? t.wanted : t.held;
    if (!others.empty() && others.front().box->logical != b.logical)
      throw layout_error(text_of(
          {"heddle: the parameter '", b.name, "' has extents ", detail::text_of_extents(others.front().box->logical),
           " on rank ", others.front().rank, " and ", detail::text_of_extents(b.logical), " on rank ", rank}));
    (t.*to).push_back({rank, &b});
  }
  static detail::plain_box plain(const parameter_box& b) { return {b.start, b.extents}; }

  void plan(tensor& t) {
    std::sort(t.held.begin(), t.held.end(), [](const owned_box& a, const owned_box& b) {
      if (a.box->start != b.box->start) return a.box->start < b.box->start;
      if (a.box->extents != b.box->extents) return a.box->extents < b.box->extents;
      return a.rank != b.rank ? a.rank < b.rank : a.box < b.box;
    });
    std::vector<replicas> all;
    for (const owned_box& h : t.held) {
      if (all.empty() || all.back().box.start != h.box->start || all.back().box.extents != h.box->extents)
        all.push_back({plain(*h.box), {}});
      all.back().holders.push_back(h);
    }
    for (const owned_box& w : t.wanted) {
      std::vector<detail::plain_box> rest{plain(*w.box)};
      std::vector<const replicas*> others;
      const detail::plain_box wanted = rest.front();
      for (const replicas& group : all) {
        if (!detail::boxes_meet(group.box, wanted)) continue;
        if (const owned_box* const mine = group.of(w.rank); mine != nullptr)
          take(group, mine, w, rest);
        else
          others.push_back(&group);
      }
      for (const replicas* group : others) take(*group, nullptr, w, rest);
      for (const detail::plain_box& missing : rest)
        throw layout_error(
            text_of({"heddle: no rank holds ", detail::text_of_box(missing), " of the parameter '", w.box->name,
                     "' of extents ", detail::text_of_extents(w.box->logical), ", which rank ", w.rank, " wants"}));
    }
  }
  // Takes from a group what it has of what is left.
  void take(const replicas& group, const owned_box* mine, const owned_box& w, std::vector<detail::plain_box>& rest) {
    std::vector<detail::plain_box> left;
    const owned_box* from = mine;
    for (detail::plain_box& r : rest) {
      if (!detail::boxes_meet(r, group.box)) {
        left.push_back(std::move(r));
        continue;
      }
      const detail::plain_box both = detail::common_box(r, group.box);
      if (from == nullptr)
        from = &*std::min_element(group.holders.begin(), group.holders.end(), [&](const auto& a, const auto& b) {
          return route_.sent(a.rank) < route_.sent(b.rank);
        });
      detail::cut_box(both, most_, 0, [&](const detail::plain_box& piece) { move(*from, w, piece); });
      detail::add_rest(std::move(r), both, left);
    }
    rest = std::move(left);
  }
  void move(const owned_box& from, const owned_box& to, const detail::plain_box& piece) {
    const std::int64_t n = piece.size();
    if (from.rank == to.rank) return stay(*from.box, to, piece, n);
    filled &source = fill_[static_cast<std::size_t>(from.rank)], &target = fill_[static_cast<std::size_t>(to.rank)];
    int k = (std::max)(source.out, target.in);
    const std::int64_t out = source.out == k ? source.out_elements : 0, in = target.in == k ? target.in_elements : 0;
    const bool fits = out + n <= most_ && in + n <= most_;
    k += fits ? 0 : 1;
    source.out = target.in = k;
    source.out_elements = n + (fits ? out : 0);
    target.in_elements = n + (fits ? in : 0);
    route_.buckets_ = (std::max)(route_.buckets_, k + 1);
    route_.sent_[static_cast<std::size_t>(from.rank)] += n;
    route_.received_[static_cast<std::size_t>(to.rank)] += n;
    if (from.rank == route_.rank_)
      put(route_.out_, {k, to.rank, number_, n, side(piece, *from.box)}, route_.source_rows_);
    if (to.rank == route_.rank_) put(route_.in_, {k, from.rank, number_, n, side(piece, *to.box)}, route_.target_rows_);
    ++number_;
  }
  void stay(const parameter_box& from, const owned_box& to, const detail::plain_box& piece, std::int64_t n) {
    route_.kept_[static_cast<std::size_t>(to.rank)] += n;
    if (to.rank != route_.rank_) return;
    kept_box b{from.row, to.box->row, from.offset, to.box->offset, n, {}, {}, {}};
    for (auto* all : {&b.extents, &b.from_memory, &b.to_memory}) all->fill(1);
    std::int64_t from_stride = 1, to_stride = 1;
    for (std::size_t d = piece.extents.size(), at = most_dims; d-- > 0;) {
      b.from += (piece.start[d] - from.start[d]) * from_stride;
      b.to += (piece.start[d] - to.box->start[d]) * to_stride;
      b.extents[--at] = piece.extents[d];
      from_stride *= b.from_memory[at] = from.extents[d];
      to_stride *= b.to_memory[at] = to.box->extents[d];
    }
    route_.most_kept_ = (std::max)(route_.most_kept_, n);
    need(route_.source_rows_, from.row, b.from, b.extents, b.from_memory);
    need(route_.target_rows_, to.box->row, b.to, b.extents, b.to_memory);
    route_.stays_.push_back(b);
  }
  static void put(std::vector<packed_box>& list, const packed_box& b, std::vector<std::int64_t>& rows) {
    need(rows, b.box.row, b.box.offset, b.box.extents, b.box.memory);
    list.push_back(b);
  }
  // A row must have all elements of a box.
  static void need(std::vector<std::int64_t>& rows, int row, std::int64_t offset, const places& extents,
                   const places& memory) {
    const auto r = static_cast<std::size_t>(row);
    if (rows.size() <= r) rows.resize(r + 1, 0);
    std::int64_t last = offset, stride = 1;
    for (std::size_t d = most_dims; d-- > 0; stride *= memory[d]) last += (extents[d] - 1) * stride;
    rows[r] = (std::max)(rows[r], last + 1);
  }
  // Where a piece of a box lies in its row.
  static strided_box side(const detail::plain_box& piece, const parameter_box& in) {
    strided_box b{in.row, in.offset, {}, {}};
    b.extents.fill(1);
    b.memory.fill(1);
    std::int64_t stride = 1;
    std::size_t at = most_dims;
    bool whole = false;  // the box fills all dimensions since the last one it was split at
    for (std::size_t d = piece.extents.size(); d-- > 0;) {
      b.offset += (piece.start[d] - in.start[d]) * stride;
      stride *= in.extents[d];
      if (!whole) --at;
      b.extents[at] *= piece.extents[d];
      b.memory[at] *= in.extents[d];
      whole = b.extents[at] == b.memory[at];
    }
    // The last dimension is where the offset is: nothing may fill it, and its extent matters where there is another one only.
    if (at + 1 >= most_dims) b.memory[most_dims - 1] = b.extents[most_dims - 1] + 1;
    return b;
  }

  parameter_route& route_;
  std::int64_t most_ = 0;    // elements of a bucket
  std::int64_t number_ = 0;  // of pieces
  std::vector<filled> fill_;
  std::map<std::string_view, tensor> tensors_;
};

HEDDLE_INLINE parameter_route::parameter_route(std::span<const boxes_of_rank> ranks, int rank, route_sizes sizes)
    : rank_(rank), sizes_(sizes), received_(ranks.size(), 0), kept_(ranks.size(), 0), sent_(ranks.size(), 0) {
  planner(*this, ranks);
}

HEDDLE_INLINE std::vector<std::int64_t> parameter_route::words_of(const boxes_of_rank& boxes) {
  std::vector<std::int64_t> words;
  for (const auto* list : {&boxes.from, &boxes.to}) {
    words.push_back(std::ssize(*list));
    for (const parameter_box& b : *list) {
      words.insert(words.end(), {b.row, b.offset, std::ssize(b.logical), std::ssize(b.name)});
      for (const auto* extents : {&b.logical, &b.start, &b.extents})
        words.insert(words.end(), extents->begin(), extents->end());
      const std::size_t at = words.size();
      words.resize(at + (b.name.size() + 7) / 8, 0);
      if (!b.name.empty()) std::memcpy(words.data() + at, b.name.data(), b.name.size());
    }
  }
  return words;
}

HEDDLE_INLINE std::vector<boxes_of_rank> parameter_route::from_words(std::span<const std::int64_t> words,
                                                                     std::span<const std::int64_t> counts) {
  std::vector<boxes_of_rank> all(counts.size());
  auto at = words.begin();
  for (boxes_of_rank& rank : all)
    for (auto* list : {&rank.from, &rank.to}) {
      list->resize(static_cast<std::size_t>(*at++));
      for (parameter_box& b : *list) {
        b.row = static_cast<int>(at[0]);
        b.offset = at[1];
        const std::int64_t dims = at[2], length = at[3];
        at += 4;
        for (auto* extents : {&b.logical, &b.start, &b.extents}) {
          extents->assign(at, at + dims);
          at += dims;
        }
        b.name.assign(reinterpret_cast<const char*>(words.data() + (at - words.begin())),
                      static_cast<std::size_t>(length));
        at += (length + 7) / 8;
      }
    }
  return all;
}

HEDDLE_INLINE void parameter_route::require_elements(const char* what, std::span<const std::int64_t> wanted,
                                                     std::span<const std::size_t> given) const {
  for (std::size_t r = 0; r < wanted.size(); ++r)
    if (const std::int64_t n = r < given.size() ? static_cast<std::int64_t>(given[r]) : 0; n < wanted[r])
      throw layout_error(
          text_of({"heddle: row ", r, " of a route's ", what, " on rank ", rank_, " should have at least ", wanted[r],
                   " elements, it has ", n, "; give what the route was made of, with its weights there"}));
}

HEDDLE_INLINE std::string to_string(const parameter_route& r) {
  return text_of({"rank ", r.rank(), " of ", r.ranks(), " keeps ", r.kept(), " parameters, receives ", r.received(),
                  " and sends ", r.sent(), " (", r.bytes(), " bytes) in ", r.buckets(),
                  r.buckets() == 1 ? " bucket" : " buckets"});
}

}  // namespace heddle::inline v0::model
