// heddle/train/activations/pooled_layers.hpp: memory of offloaded layers, and stores.
#pragma once

#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/activations/cache.hpp>
#include <heddle/train/activations/memory.hpp>
#include <heddle/train/activations/store.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::activations::detail {

// Whether a store is the copies on the host by which activations leave a device (`host_store`).
template <class Store>
inline constexpr bool keeps_host_copies = requires { requires Store::keeps_host_copies; };
template <bool Ok, class Store>
inline constexpr bool leaves_to_other_memory = Ok;

template <class T>
std::span<T> elements_of(std::span<std::byte> bytes) noexcept {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

// Rows of a memory that are lent out and used again, by work in the order of one queue: who gets a row need not wait for who had it.
template <class T, memory_space Space>
class row_pool {
 public:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  // The number of a row of so many elements; what it holds is undefined. Errors: `memory_error`.
  std::size_t take(typename Space::queue& queue, std::int64_t elements) {
    const auto n = static_cast<std::size_t>(elements);
    std::size_t i = 0;
    while (i < rows_.size() && (rows_[i].lent || rows_[i].memory.size() != n)) ++i;
    if (i == rows_.size()) rows_.push_back({buffer<T, Space>(queue, elements, "the saved activations of a layer")});
    rows_[i].lent = true;
    now_ += bytes_of(i);
    peak_ = (std::max)(peak_, now_);
    return i;
  }
  void give_back(std::size_t row) noexcept {
    rows_[row].lent = false;
    now_ -= bytes_of(row);
  }
  row_view<T, Space> operator[](std::size_t row) noexcept {
    buffer<T, Space>& b = rows_[row].memory;
    return row_at<Space>(b.address(), static_cast<std::int64_t>(b.size()));
  }
  std::int64_t bytes_of(std::size_t row) const noexcept {
    return static_cast<std::int64_t>(rows_[row].memory.size() * sizeof(T));
  }
  std::int64_t peak_bytes() const noexcept { return peak_; }
  std::int64_t allocated_bytes() const noexcept {
    std::int64_t all = 0;
    for (std::size_t i = 0; i < rows_.size(); ++i) all += bytes_of(i);
    return all;
  }
  void reset_peak() noexcept { peak_ = now_; }

 private:
  struct lent_row {
    buffer<T, Space> memory;
    bool lent = false;
  };
  std::vector<lent_row> rows_{};
  std::int64_t now_ = 0, peak_ = 0;
};

// The memory of layers of microbatches, each with a number (`at`): taken for a forward, kept or given to a store behind it, there again
// for the backward. A store writes and reads memory of the host. Elsewhere a layer is copied there when its forward ends, for which the
// host waits, and back in the order of the queue; before the next one is, the host waits for the queue, so that copies stay only of what
// the store is at, of what was asked for ahead, of the layer that is computed with, and, where backwards are split, of layers that
// wait for the second part. The queue must outlive this object.
template <class T, activation_store Store, memory_space Space>
class pooled_layers {
 public:
  using queue = typename Space::queue;

  pooled_layers(queue& q, const offload_settings& given, std::size_t places, std::int64_t min_bytes)
      : queue_(q),
        min_bytes_(min_bytes),
        store_(given.store),
        cache_(store_, copies_, 0, given.verify),
        places_(places) {}
  pooled_layers(const pooled_layers&) = delete;
  pooled_layers& operator=(const pooled_layers&) = delete;
  /// While an exception unwinds the stack the queue may still read what came back.
  ~pooled_layers() {
    try {
      if (is_read_) wait();
    } catch (...) {  // an error is on its way already
    }
  }

  void collect() { cache_.collect(); }
  row_view<T, Space> take(std::size_t at, std::int64_t bytes) {
    place& p = places_[at];
    p.row = rows_.take(queue_, bytes / static_cast<std::int64_t>(sizeof(T)));
    return rows_[p.row];
  }
  void save(std::size_t at, bool stays) {
    place& p = places_[at];
    const std::int64_t bytes = rows_.bytes_of(p.row);
    if (stays || bytes < min_bytes_) {
      ++kept_;
      bytes_kept_ += bytes;
      return;
    }
    const memory::lease there = copies_.take(bytes);
    queue_.copy(rows_[p.row], elements_of<T>(there.bytes()));
    wait();
    p.id = cache_.save(there, there.bytes(), static_cast<int>(at), keeps_host_copies<Store>);
    rows_.give_back(std::exchange(p.row, none));
  }
  // Waits for the queue, if a layer has been copied back since it did and this one must be, too. Before `use`.
  void wait_for_turn(std::size_t at) {
    if (is_read_ && places_[at].row == none) wait();
  }
  row_view<T, Space> use(std::size_t at) {
    place& p = places_[at];
    if (p.row == none) {
      const std::span<T> came = elements_of<T>(cache_.use(p.id));
      p.row = rows_.take(queue_, static_cast<std::int64_t>(came.size()));
      queue_.copy(came, rows_[p.row]);
      is_read_ = true;
    }
    return rows_[p.row];
  }
  void end(std::size_t at) {
    place& p = places_[at];
    if (p.row != none) rows_.give_back(std::exchange(p.row, none));
    if (p.id < 0) return;
    if (is_read_) read_.push_back(cache_.holding(std::exchange(p.id, -1)));
    p.id = -1;
    cache_.end(static_cast<int>(at));
  }
  void drop(std::size_t at) { end(at); }
  void prefetch(std::size_t at) { cache_.prefetch(static_cast<int>(at)); }

  cache_counters counters() const noexcept {
    cache_counters all = cache_.counters();
    if constexpr (keeps_host_copies<Store>) {  // the cache keeps what has left, and it comes back from there
      all.stored = all.forwarded = std::exchange(all.kept, 0);
      all.bytes_stored = all.bytes_forwarded = std::exchange(all.bytes_kept, 0);
    }
    all.kept += kept_;
    all.bytes_kept += bytes_kept_;
    return all;
  }
  store_counters store() const { return store_.counters(); }
  std::int64_t waiting_bytes() const noexcept { return cache_.waiting_bytes(); }
  std::int64_t peak_bytes() const noexcept { return rows_.peak_bytes(); }
  std::int64_t allocated_bytes() const noexcept { return rows_.allocated_bytes(); }
  std::int64_t peak_copied_bytes() const noexcept { return copies_.peak_bytes(); }
  void reset_peak() noexcept {
    rows_.reset_peak();
    copies_.reset_peak();
  }

 private:
  static constexpr std::size_t none = row_pool<T, Space>::none;
  struct place {
    std::size_t row = none;
    int id = -1;  // in the cache
  };
  void wait() {
    is_read_ = false;
    queue_.wait();
    read_.clear();
  }

  queue& queue_;
  std::int64_t min_bytes_;
  row_pool<T, Space> rows_{};
  memory copies_{};  // on the host
  Store store_;
  cache<Store> cache_;
  std::vector<place> places_;
  std::vector<memory::lease> read_{};  // not needed any more, but the queue may still read them
  bool is_read_ = false;
  std::int64_t kept_ = 0, bytes_kept_ = 0;
};
template <class T, activation_store Store>
class pooled_layers<T, Store, host_memory> {
  static_assert(leaves_to_other_memory<!keeps_host_copies<Store>, Store>,
                "heddle: activations::host_store keeps on the host what leaves a device's memory; these activations "
                "are on the host: take "
                "activations::keep, or a store that is elsewhere, such as file_store");

 public:
  pooled_layers(host_memory::queue&, const offload_settings& given, std::size_t places, std::int64_t min_bytes)
      : store_(given.store), cache_(store_, memory_, min_bytes, given.verify), leases_(places), ids_(places, -1) {}

  void collect() { cache_.collect(); }
  std::span<T> take(std::size_t at, std::int64_t bytes) {
    leases_[at] = memory_.take(bytes);
    return elements_of<T>(leases_[at].bytes());
  }
  void save(std::size_t at, bool stays) {
    const memory::lease l = std::exchange(leases_[at], {});
    ids_[at] = cache_.save(l, l.bytes(), static_cast<int>(at), stays);
  }
  static void wait_for_turn(std::size_t) noexcept {}
  std::span<T> use(std::size_t at) { return elements_of<T>(cache_.use(ids_[at])); }
  void end(std::size_t at) { cache_.end(static_cast<int>(at)); }
  // Also what is being computed.
  void drop(std::size_t at) {
    leases_[at] = {};
    end(at);
  }
  void prefetch(std::size_t at) { cache_.prefetch(static_cast<int>(at)); }

  const cache_counters& counters() const noexcept { return cache_.counters(); }
  store_counters store() const { return store_.counters(); }
  std::int64_t waiting_bytes() const noexcept { return cache_.waiting_bytes(); }
  std::int64_t peak_bytes() const noexcept { return memory_.peak_bytes(); }
  std::int64_t allocated_bytes() const noexcept { return memory_.allocated_bytes(); }
  static constexpr std::int64_t peak_copied_bytes() noexcept { return 0; }
  void reset_peak() noexcept { memory_.reset_peak(); }

 private:
  memory memory_{};
  Store store_;
  cache<Store> cache_;
  std::vector<memory::lease> leases_;  // of layers whose forward runs
  std::vector<int> ids_;
};

}  // namespace heddle::inline v0::activations::detail
