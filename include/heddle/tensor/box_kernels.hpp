// heddle/tensor/box_kernels.hpp: kernels of a redistribution: copy, pack, combine, fill.
#pragma once

#include <heddle/core/launch_each.hpp>
#include <heddle/tensor/box_table.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/runs.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

template <bool Ok, class Queue>
inline constexpr bool queue_has_kernels = Ok;
// Host code in the order of the queue.
template <class Queue>
constexpr bool can_run() {
  static_assert(
      queue_has_kernels<runs_host_code<Queue>, Queue>,
      "heddle: this queue runs no host code, so it must launch kernels (launch_each, see heddle/core/launch_each.hpp; "
      "that of a CUDA device does in files that nvcc compiles) or have those of a redistribution itself: copy_box, "
      "combine_box and fill (see heddle/tensor/box_kernels.hpp)");
  return runs_host_code<Queue>;
}
template <class Queue>
inline constexpr bool runs_at_once = std::is_same_v<Queue, host_memory::queue>;
// A queue whose kernels run on cores of the host may say that work on so many elements is for the calling thread alone
// (`is_for_this_thread(elements)`), and has `on_this_thread(work)`, which calls `work` in its turn: boxes are then copied as the host's
// are, without a table and a launch. One that says so of all work has `has_one_thread`.
template <class Queue>
constexpr bool is_for_this_thread(const Queue& q, std::int64_t elements) {
  if constexpr (requires { q.is_for_this_thread(elements); })
    return q.is_for_this_thread(elements);
  else
    return runs_at_once<Queue>;
}
// Does the work so if it is; returns whether it did.
template <class Queue, class Work>
bool done_on_this_thread([[maybe_unused]] Queue& q, [[maybe_unused]] std::int64_t elements,
                         [[maybe_unused]] const Work& work) {
  if constexpr (requires { q.on_this_thread(work); }) {
    if (!is_for_this_thread(q, elements)) return false;
    q.on_this_thread(work);
    return true;
  }
  return false;
}

// One box by a kernel.
template <class Space, std::size_t Rank, class Act>
void launch_box(typename Space::queue& q, const memory_overlap<Rank>& o, const std::array<std::int64_t, Rank>& from,
                const std::array<std::int64_t, Rank>& to, const Act& act) {
  box_table table(kernels_run_on_host<Space>());
  table.add(o, from, 0, to, 0);
  launch_boxes<Space>(q, table, act);
}

// A queue that neither launches kernels nor runs host code offers these three as members, with the same arguments behind the queue.

/// Copies what two memories have in common from one to the other.
template <class T, class Space, std::size_t Rank>
void copy_box(typename Space::queue& q, const memory_overlap<Rank>& o, vector_view<const T, Space> source,
              const std::array<std::int64_t, Rank>& from, vector_view<T, Space> target,
              const std::array<std::int64_t, Rank>& to) {
  using queue = typename Space::queue;
  if constexpr (runs_at_once<queue>)
    copy_overlap(o, source.address(), from, target.address(), to);
  else if constexpr (requires { q.copy_box(o, source, from, target, to); })
    q.copy_box(o, source, from, target, to);
  else if constexpr (launches_kernels<queue>) {
    if (!done_on_this_thread(q, o.size(), [&] { copy_overlap(o, source.address(), from, target.address(), to); }))
      launch_box<Space>(q, o, from, to, copy_element<T>{source.address(), target.address()});
  } else if constexpr (can_run<queue>())
    q.run([o, from, to](const auto& s, const auto& t) { copy_overlap(o, s.address(), from, t.address(), to); }, source,
          target);
}
/// The same for packed elements, which it combines with what is there: `op(there, packed)`.
template <class Op, class T, class Space, std::size_t Rank>
void combine_box(typename Space::queue& q, const memory_overlap<Rank>& o, vector_view<const T, Space> packed,
                 vector_view<T, Space> target, const std::array<std::int64_t, Rank>& to) {
  using queue = typename Space::queue;
  const auto work = [](const memory_overlap<Rank>& box, const T* p, T* t, const std::array<std::int64_t, Rank>& into) {
    for_each_run(with_packed<&stretch::to>(box), box.extents(), into,
                 [&](std::int64_t s, std::int64_t at, std::int64_t n) {
                   const Op op{};
                   for (std::int64_t i = 0; i < n; ++i) t[at + i] = op(t[at + i], p[s + i]);
                 });
  };
  if constexpr (runs_at_once<queue>)
    work(o, packed.address(), target.address(), to);
  else if constexpr (requires { q.template combine_box<Op>(o, packed, target, to); })
    q.template combine_box<Op>(o, packed, target, to);
  else if constexpr (launches_kernels<queue>) {
    if (!done_on_this_thread(q, o.size(), [&] { work(o, packed.address(), target.address(), to); }))
      launch_box<Space>(q, with_packed<&stretch::to>(o), o.extents(), to,
                        combine_element<T, Op>{packed.address(), target.address()});
  } else if constexpr (can_run<queue>())
    q.run([work, o, to](const auto& p, const auto& t) { work(o, p.address(), t.address(), to); }, packed, target);
}
/// Sets all elements to one value.
template <class T, class Space>
void fill(typename Space::queue& q, vector_view<T, Space> target, const T& value) {
  using queue = typename Space::queue;
  if constexpr (runs_at_once<queue>)
    std::fill_n(target.address(), target.size(), value);
  else if constexpr (requires { q.fill(target, value); })
    q.fill(target, value);
  else if constexpr (launches_kernels<queue>) {
    if (!done_on_this_thread(q, target.size(), [&] { std::fill_n(target.address(), target.size(), value); }))
      launch_each(q, target.size(), fill_each<T>{target.address(), value});
  } else if constexpr (can_run<queue>())
    q.run([value](const auto& t) { std::fill_n(t.address(), t.size(), value); }, target);
}

/// Packs what two memories have in common without gaps.
template <class T, class Space, std::size_t Rank>
void pack_box(typename Space::queue& q, const memory_overlap<Rank>& o, vector_view<const T, Space> source,
              const std::array<std::int64_t, Rank>& from, vector_view<T, Space> packed) {
  copy_box<T, Space>(q, with_packed<&stretch::from>(o), source, from, packed, o.extents());
}
/// Puts packed elements in their places.
template <class T, class Space, std::size_t Rank>
void unpack_box(typename Space::queue& q, const memory_overlap<Rank>& o, vector_view<const T, Space> packed,
                vector_view<T, Space> target, const std::array<std::int64_t, Rank>& to) {
  copy_box<T, Space>(q, with_packed<&stretch::to>(o), packed, o.extents(), target, to);
}
/// The elements of a memory in one of its own, new.
template <class T, class Space>
buffer<T, Space> copy_of(typename Space::queue& q, vector_view<const T, Space> x) {
  buffer<T, Space> copy(q, x.size(), "a copy of a tensor");
  q.copy(x, copy);
  return copy;
}

// --- several boxes at once: by one kernel where the queue launches kernels, otherwise one after the other, when they are named ---

// Whose boxes may wait for a launch, and whose all do.
template <class Queue>
constexpr bool batches_boxes() {
  if constexpr (requires { requires Queue::has_one_thread; })
    return false;
  else
    return launches_kernels<Queue> && !runs_at_once<Queue>;
}
template <class Queue>
constexpr bool batches_all_boxes() {
  return batches_boxes<Queue>() && !requires(const Queue& q) { q.is_for_this_thread(std::int64_t{}); };
}
template <class Space>
class waiting_boxes {
 public:
  // `elements`: the most that all boxes have.
  waiting_boxes(const typename Space::queue& q, std::int64_t elements) : wait_(!is_for_this_thread(q, elements)) {}
  bool wait() const noexcept { return wait_; }
  template <std::size_t Rank>
  void add(const memory_overlap<Rank>& o, const std::array<std::int64_t, Rank>& from, std::int64_t from_at,
           const std::array<std::int64_t, Rank>& to, std::int64_t to_at) {
    table_.add(o, from, from_at, to, to_at);
  }
  template <class Act>
  void launch(typename Space::queue& q, const Act& act) {
    launch_boxes<Space>(q, table_, act);
    table_.clear();
  }

 private:
  bool wait_;
  box_table table_{kernels_run_on_host<Space>()};
};
template <class Space>
struct no_waiting_boxes {
  no_waiting_boxes(const typename Space::queue&, std::int64_t) {}
};
template <class Space>
using boxes_for =
    std::conditional_t<batches_boxes<typename Space::queue>(), waiting_boxes<Space>, no_waiting_boxes<Space>>;

/// Copies of boxes from one memory to another, which do not overlap and live until `launch`. What is copied is there after it.
template <class T, class Space, std::size_t Rank>
class box_copies {
 public:
  using queue = typename Space::queue;
  using extents = std::array<std::int64_t, Rank>;
  box_copies(queue& q, vector_view<const T, Space> source, vector_view<T, Space> target)
      : q_(q), source_(source), target_(target), boxes_(q, target.size()) {}

  /// Packs what lies in the source to the target, from element `at` on.
  void pack(const memory_overlap<Rank>& o, const extents& from, std::int64_t at) {
    if constexpr (batches_boxes<queue>())
      if (boxes_.wait()) return boxes_.add(with_packed<&stretch::from>(o), from, 0, o.extents(), at);
    if constexpr (!batches_all_boxes<queue>()) pack_box<T, Space>(q_, o, source_, from, within(target_, at, o.size()));
  }
  /// Puts what lies packed in the source, from element `at` on, in its places in the target.
  void unpack(const memory_overlap<Rank>& o, std::int64_t at, const extents& to) {
    if constexpr (batches_boxes<queue>())
      if (boxes_.wait()) return boxes_.add(with_packed<&stretch::to>(o), o.extents(), at, to, 0);
    if constexpr (!batches_all_boxes<queue>()) unpack_box<T, Space>(q_, o, within(source_, at, o.size()), target_, to);
  }
  void launch() {
    if constexpr (batches_boxes<queue>()) boxes_.launch(q_, copy_element<T>{source_.address(), target_.address()});
  }

 private:
  queue& q_;
  vector_view<const T, Space> source_;
  vector_view<T, Space> target_;
  [[no_unique_address]] boxes_for<Space> boxes_;
};

/// Folds of packed boxes into a memory, `op(there, packed)`, in the order in which they are named. Boxes that may have elements
/// in common are of different kernels.
template <class Op, class T, class Space, std::size_t Rank>
class box_folds {
 public:
  using queue = typename Space::queue;
  using extents = std::array<std::int64_t, Rank>;
  box_folds(queue& q, vector_view<const T, Space> packed, vector_view<T, Space> target)
      : q_(q), packed_(packed), target_(target), boxes_(q, packed.size()) {}

  /// The packed elements begin at element `at`.
  void fold(const memory_overlap<Rank>& o, std::int64_t at, const extents& to) {
    if constexpr (batches_boxes<queue>())
      if (boxes_.wait()) return add(o, at, to);
    if constexpr (!batches_all_boxes<queue>())
      combine_box<Op, T, Space>(q_, o, within(packed_, at, o.size()), target_, to);
  }
  void launch() {
    if constexpr (batches_boxes<queue>()) {
      boxes_.launch(q_, combine_element<T, Op>{packed_.address(), target_.address()});
      named_.clear();
    }
  }

 private:
  void add(const memory_overlap<Rank>& o, std::int64_t at, const extents& to) {
    if (o.size() == 0) return;
    const bounds mine(o);
    if (std::any_of(named_.begin(), named_.end(), [&](const bounds& other) { return mine.meets(other); })) launch();
    named_.push_back(mine);
    boxes_.add(with_packed<&stretch::to>(o), o.extents(), at, to, 0);
  }
  // The interval of the target along each dimension that an overlap lies in.
  struct bounds {
    explicit bounds(const memory_overlap<Rank>& o) {
      for (std::size_t d = 0; d < Rank; ++d) {
        begin[d] = (std::numeric_limits<std::int64_t>::max)();
        for (const stretch& s : o.along[d]) {
          begin[d] = (std::min)(begin[d], s.to);
          end[d] = (std::max)(end[d], s.to + s.count);
        }
      }
    }
    bool meets(const bounds& other) const {
      for (std::size_t d = 0; d < Rank; ++d)
        if (end[d] <= other.begin[d] || other.end[d] <= begin[d]) return false;
      return true;
    }
    std::array<std::int64_t, Rank> begin{}, end{};
  };
  queue& q_;
  vector_view<const T, Space> packed_;
  vector_view<T, Space> target_;
  [[no_unique_address]] boxes_for<Space> boxes_;
  std::vector<bounds> named_;
};

// What an overlap leaves out of a memory of these extents, as boxes of which no two have an element in common.
template <std::size_t Rank, class Box>
void for_each_gap(const memory_overlap<Rank>& o, const std::array<std::int64_t, Rank>& extents, Box&& box) {
  memory_overlap<Rank> gap;
  for (std::size_t d = 0; d < Rank; ++d) gap.along[d] = stretch_list(stretch{0, 0, extents[d]});
  if (o.size() == 0) {
    box(gap);
    return;
  }
  // Between the places of one dimension, at the places of those before it, everywhere along those after it.
  for (std::size_t d = 0; d < Rank; ++d) {
    std::vector<stretch> places(o.along[d].begin(), o.along[d].end());
    std::sort(places.begin(), places.end(), [](const stretch& a, const stretch& b) { return a.to < b.to; });
    stretch_list between, taken;
    std::int64_t at = 0;
    for (const stretch& s : places) {
      between.push_back({at, at, s.to - at});
      taken.push_back({s.to, s.to, s.count});
      at = s.to + s.count;
    }
    between.push_back({at, at, extents[d] - at});
    gap.along[d] = between;
    box(gap);
    gap.along[d] = taken;
  }
}

/// Copies what two memories have in common and sets all else of the target to `value`.
template <class T, class Space, std::size_t Rank>
void copy_box_and_fill(typename Space::queue& q, const memory_overlap<Rank>& o, vector_view<const T, Space> source,
                       const std::array<std::int64_t, Rank>& from, vector_view<T, Space> target,
                       const std::array<std::int64_t, Rank>& to, const T& value) {
  if constexpr (batches_boxes<typename Space::queue>()) {
    waiting_boxes<Space> boxes(q, target.size());
    if (boxes.wait()) {
      boxes.add(o, from, 0, to, 0);
      constexpr std::int64_t nowhere = (std::numeric_limits<std::int64_t>::min)() / 2;
      for_each_gap(o, to, [&](const memory_overlap<Rank>& gap) { boxes.add(gap, to, nowhere, to, 0); });
      return boxes.launch(q, copy_or_fill_element<T>{source.address(), target.address(), value});
    }
  }
  if constexpr (!batches_all_boxes<typename Space::queue>()) {
    fill<T, Space>(q, target, value);
    copy_box<T, Space>(q, o, source, from, target, to);
  }
}

}  // namespace detail
}  // namespace heddle::inline v0
