// heddle/model/layers/exchange_routes.hpp: counts rows to and from experts elsewhere.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/launch_each.hpp>
#include <heddle/model/layers/exchange_tables.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::model::layers::detail {

template <bool Ok, class Queue>
inline constexpr bool queue_counts_rows = Ok;
// body(i) for each i in [0, n), in the order of the queue, where it works: on `rows` of its memory.
template <class Queue, class Body, class... Rows>
void run_each(Queue&& queue, std::int64_t n, const Body& body, [[maybe_unused]] const Rows&... rows) {
  using queue_type = std::remove_cvref_t<Queue>;
  const auto on_host = [n, body](const auto&...) {
    for (std::int64_t i = 0; i < n; ++i) body(i);
  };
  if constexpr (heddle::v0::detail::is_host_queue<queue_type>) {
    on_host();
  } else if constexpr (launches_kernels<queue_type>) {
    if (n > 0) launch_each(queue, n, body);
  } else {
    static_assert(
        queue_counts_rows<runs_host_code<queue_type>, queue_type>,
        "heddle: rows that travel to their experts are counted by kernels: this queue runs no host code, so it "
        "must launch kernels (launch_each, see heddle/core/launch_each.hpp; that of a CUDA device does in files "
        "that nvcc compiles)");
    if constexpr (runs_host_code<queue_type>) queue.run(on_host, rows...);
  }
}

// Of each choice and each copy of it: the number of its expert among those that the group's ranks hold; -1 where nobody takes it.
struct reached_expert {
  std::int64_t copies;
  const std::int32_t *ids, *reached;
  std::int32_t* numbers;
  HEDDLE_HD void operator()(std::int64_t i) const {
    const std::int64_t e = ids[i / copies];
    numbers[i] = e < 0 ? -1 : reached[e * copies + i % copies];
  }
};
struct counted_rows {
  const std::int64_t* offsets;
  std::int64_t* counts;
  HEDDLE_HD void operator()(std::int64_t e) const { counts[e] = offsets[e + 1] - offsets[e]; }
};
// Row i of those that came: one of the run of rows that begins at from[c] as they come, and at to[c] by expert.
struct row_by_expert {
  std::int64_t runs;
  const std::int64_t *from, *to;
  std::int32_t *order, *back;
  HEDDLE_HD void operator()(std::int64_t i) const {
    const std::int64_t c = last_not_above(from, runs, 1, i), row = to[c] + (i - from[c]);
    order[row] = static_cast<std::int32_t>(i);
    back[i] = static_cast<std::int32_t>(row);
  }
};
// Each number `copies` times, and the sums of so many.
template <class T>
struct copied_number {
  std::int64_t copies;
  const T* from;
  T* to;
  HEDDLE_HD void operator()(std::int64_t i) const { to[i] = from[i / copies]; }
};
template <class T>
struct summed_copies {
  std::int64_t copies;
  const T* from;
  T* to;
  HEDDLE_HD void operator()(std::int64_t i) const {
    sum_of_type<T> sum = 0;
    for (std::int64_t k = i * copies; k < (i + 1) * copies; ++k) sum += from[k];
    to[i] = static_cast<T>(sum);
  }
};

// Blocks of every member to every member, in the order of the queue; a group of one rank sends nothing.
template <class T, class Space, class Queue, class Group>
void send_blocks([[maybe_unused]] Queue&& queue, Group& group, row_view<const T, Space> from,
                 std::span<const std::int64_t> sent, row_view<T, Space> to, std::span<const std::int64_t> received) {
  if constexpr (std::is_same_v<Space, host_memory>) {
    if (group.size() > 1)
      group.all_to_all_v(from, sent, to, received);
    else
      std::copy(from.begin(), from.end(), to.begin());
  } else {
    if (group.size() > 1)
      heddle::v0::all_to_all_v(queue, group, from, sent, to, received);
    else if (from.size() > 0)
      queue.copy(from, to);
  }
}

// How many rows go to which rank and come from where: `exchange_tables` and, in `Space`, what kernels need.
template <class Space>
class exchange_routes;

// On the host, where kernels read the tables themselves.
template <>
class exchange_routes<host_memory> {
 public:
  template <class Queue>
  static void reserve(Queue&&, const routing_extents&) noexcept {}
  static constexpr std::int64_t bytes() noexcept { return 0; }

  // The choices `kept` as numbers among the experts of the group; negative where nobody takes them.
  template <class Queue, class Ids>
  static matrix_view<const std::int32_t> numbers_of(Queue&&, exchange_tables& t, const Ids& kept) {
    t.choices.resize(static_cast<std::size_t>(kept.size() * t.copies));
    const reached_expert each{t.copies, kept.address(), t.reached.data(), t.choices.data()};
    for (std::int64_t i = 0; i < kept.size() * t.copies; ++i) each(i);
    return {t.choices.data(), dynamic_shape<2>(kept.extent(0), kept.extent(1) * t.copies)};
  }
  // Fills in `t.wanted`, from the `offsets` of this rank's rows by expert of the group, `t.sent` and `t.counts`. `asks`: whether the other ranks are asked what they
  // send; the answer is written to `kept`, as bytes, which are read there otherwise.
  template <class Queue, class Group, class T>
  static void count(Queue&& queue, Group& group, exchange_tables& t, std::span<const std::int64_t> offsets, bool asks,
                    matrix_view<T> kept, std::int64_t own) {
    for (std::size_t e = 0; e < t.wanted.size(); ++e) t.wanted[e] = offsets[e + 1] - offsets[e];
    t.count_sent();
    t.counts.resize(t.first.size() * static_cast<std::size_t>(own));
    const std::size_t bytes = t.counts.size() * sizeof(std::int64_t);
    if (asks) {
      t.in.assign(t.first.size(), own);
      send_blocks<std::int64_t, host_memory>(queue, group, t.wanted, t.held, t.counts, t.in);
      if (bytes > 0) std::memcpy(kept.address(), t.counts.data(), bytes);
    } else if (bytes > 0) {
      std::memcpy(t.counts.data(), kept.address(), bytes);
    }
  }
  // Where rows of own experts begin when they lie by expert; `least`: see `exchange_tables::arrange`.
  template <class Queue>
  static std::span<const std::int64_t> arrange(Queue&&, exchange_tables& t, std::int64_t own, std::int64_t least) {
    t.arrange(own, least);
    return t.offsets;
  }
  // Of rows that came: by expert, and back.
  static std::span<const std::int32_t> order(const exchange_tables& t) noexcept { return t.order; }
  static std::span<const std::int32_t> back(const exchange_tables& t) noexcept { return t.back; }
};

// The memory of the host that a queue copies to and from best.
template <class Queue>
struct host_side {
  using type = host_memory;
};
template <class Queue>
  requires requires { typename Queue::pinned; }
struct host_side<Queue> {
  using type = typename Queue::pinned;
};

// Elsewhere: counts come to the host by one copy, which it waits for, once in each verb of a layer; the tables on the host are written after that wait.
template <class Space>
class exchange_routes {
  using queue_type = typename Space::queue;
  using host = typename host_side<queue_type>::type;
  template <class T>
  static row_view<T, Space> row(T* at, std::int64_t n) noexcept {
    return row_at<Space>(at, n);
  }
  template <class T>
  static row_view<T, host> host_row(T* at, std::int64_t n) noexcept {
    return row_at<host>(at, n);
  }

 public:
  void reserve(queue_type& queue, const routing_extents& most) {
    routing_extents all = extents_;
    all.cover(most);
    if (most.senders == 0 || all == extents_) return;
    extents_ = {};  // until all of it is there
    uploaded_ = nullptr;
    constexpr const char* what = "tables of rows that travel between ranks";
    numbers_ = {}, counts_ = {};
    numbers_ = buffer<std::int32_t, Space>(queue, all.exchange_numbers(), what);
    counts_ = buffer<std::int64_t, Space>(queue, all.exchange_counts(), what);
    queue.wait();  // what was queued with the memory on the host that goes now
    const auto on_host = [&]<class T>(buffer<T, host>& x, std::int64_t n) {
      if constexpr (std::is_same_v<host, host_memory>) {
        x = buffer<T, host>(n, what);
      } else {
        typename host::queue of_host(queue);
        x = buffer<T, host>(of_host, n, what);
      }
    };
    on_host(host_numbers_, all.experts);
    on_host(host_counts_, all.exchange_counts());
    extents_ = all;
  }
  std::int64_t bytes() const noexcept { return extents_.exchange_numbers() * 4 + extents_.exchange_counts() * 8; }

  template <class Ids>
  matrix_view<const std::int32_t, Space> numbers_of(queue_type& queue, const exchange_tables& t, const Ids& kept) {
    const auto entries = static_cast<std::int64_t>(t.reached.size());
    std::int32_t *const reached = numbers_.address(), *const numbers = reached + extents_.experts;
    if (uploaded_ != t.of || uploaded_entries_ != entries) {
      if (entries > 0) std::memcpy(host_numbers_.address(), t.reached.data(), t.reached.size() * sizeof(std::int32_t));
      queue.copy(host_row<const std::int32_t>(host_numbers_.address(), entries), row(reached, entries));
      uploaded_ = t.of;
      uploaded_entries_ = entries;
    }
    const std::int64_t n = kept.size() * t.copies;
    run_each(queue, n, reached_expert{t.copies, kept.address(), reached, numbers}, row(kept.address(), kept.size()),
             row<const std::int32_t>(reached, entries), row(numbers, n));
    return {numbers, dynamic_shape<2>(kept.extent(0), kept.extent(1) * t.copies)};
  }

  template <class Group, class T>
  void count(queue_type& queue, Group& group, exchange_tables& t, row_view<const std::int64_t, Space> offsets,
             bool asks, matrix_view<T, Space> kept, std::int64_t own) {
    const auto reached = static_cast<std::int64_t>(t.wanted.size());
    const std::int64_t come = static_cast<std::int64_t>(t.first.size()) * own;
    const auto sent = row(counts_.address(), reached), received = row(counts_.address() + reached, come);
    const auto bytes_there = row(reinterpret_cast<std::byte*>(received.address()), come * 8);
    const auto bytes_kept = row(reinterpret_cast<std::byte*>(kept.address()), come * 8);
    run_each(queue, reached, counted_rows{offsets.address(), sent.address()}, offsets, sent);
    if (asks) {
      t.in.assign(t.first.size(), own);
      send_blocks<std::int64_t, Space>(queue, group, sent, t.held, received, t.in);
      queue.copy(row_view<const std::byte, Space>(bytes_there), bytes_kept);
    } else {
      queue.copy(row_view<const std::byte, Space>(bytes_kept), bytes_there);
    }
    const std::int64_t* const on_host = host_counts_.address();
    queue.copy(row<const std::int64_t>(counts_.address(), reached + come),
               host_row(host_counts_.address(), reached + come));
    queue.wait();
    std::copy(on_host, on_host + reached, t.wanted.begin());
    t.counts.assign(on_host + reached, on_host + reached + come);
    t.count_sent();
  }

  // All rows of an expert are multiplied at once, whatever `least` is.
  row_view<const std::int64_t, Space> arrange(queue_type& queue, exchange_tables& t, std::int64_t own,
                                              std::int64_t /*least*/) {
    t.count_received(own);
    const std::size_t n = t.offsets.size(), experts = n - 1, runs = t.stays() ? 0 : t.counts.size();
    std::int64_t *const offsets = host_counts_.address(), *const from = offsets + n, *const to = from + runs;
    std::copy(t.offsets.begin(), t.offsets.end(), offsets);
    if (runs > 0) {
      std::vector<std::int64_t> next(t.offsets.begin(), t.offsets.end());
      std::int64_t before = 0;
      for (std::size_t c = 0; c < runs; ++c) {
        from[c] = before;
        to[c] = next[c % experts];
        before += t.counts[c];
        next[c % experts] += t.counts[c];
      }
    }
    const auto all = static_cast<std::int64_t>(n + 2 * runs);
    std::int64_t* const there = counts_.address();
    const auto tables = row<const std::int64_t>(there, all);
    queue.copy(host_row<const std::int64_t>(offsets, all), row(there, all));
    if (runs > 0) {
      const std::int64_t rows = t.rows_received();
      const auto entries = static_cast<std::int64_t>(n), count = static_cast<std::int64_t>(runs);
      run_each(queue, rows, row_by_expert{count, there + entries, there + entries + count, order_at(), back_at()},
               tables, row(order_at(), rows), row(back_at(), rows));
    }
    return row<const std::int64_t>(there, static_cast<std::int64_t>(n));
  }
  row_view<const std::int32_t, Space> order(const exchange_tables& t) noexcept {
    return row<const std::int32_t>(order_at(), t.rows_received());
  }
  row_view<const std::int32_t, Space> back(const exchange_tables& t) noexcept {
    return row<const std::int32_t>(back_at(), t.rows_received());
  }

 private:
  std::int32_t* order_at() noexcept { return numbers_.address() + extents_.experts + extents_.choices; }
  std::int32_t* back_at() noexcept { return order_at() + extents_.received; }

  routing_extents extents_{};
  buffer<std::int32_t, Space> numbers_{};  // reached experts, choices, order, back
  buffer<std::int64_t, Space> counts_{};   // counts of rows, then what `arrange` makes of them
  buffer<std::int32_t, host> host_numbers_{};
  buffer<std::int64_t, host> host_counts_{};
  const void* uploaded_ = nullptr;
  std::int64_t uploaded_entries_ = 0;
};

}  // namespace heddle::inline v0::model::layers::detail
