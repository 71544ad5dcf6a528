// heddle/model/parameters.hpp: one rank's parameters: flat buffers, and a table.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/shape.hpp>
#include <heddle/core/static_vector.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/runs.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

namespace detail {
/// Whether a parameter has elements: one without is in no table, file or save.
template <class Extents>
constexpr bool has_elements(const Extents& extents) noexcept {
  for (const auto e : extents)
    if (e == 0) return false;
  return true;
}

template <bool Ok, class Layout>
inline constexpr bool each_weight_has_one_owner = Ok;
}  // namespace detail

/// One parameter, or this rank's part of it. The whole is a row-major box `logical` (the published `shape` with its
/// dimensions split further where that makes the layout plain: `c_attn.weight` [D, 3D] is [D, 3, H, d]); this rank
/// holds the box of `local` extents that starts at `start`, row-major, at `offset` in the flat buffers.
struct parameter {
  std::string name;                   ///< Hugging Face's
  int id = 0;                         ///< position in the whole model's table: the same on every mesh
  std::vector<std::int64_t> shape;    ///< published, whole
  std::vector<std::int64_t> logical;  ///< the same elements in the same order, dimensions split
  std::vector<std::int64_t> local;    ///< extents of this rank's part of `logical`
  std::vector<std::int64_t> start;    ///< first index of this rank's part in `logical`
  std::int64_t offset = 0;            ///< first element in the flat buffers
  std::int64_t count = 0;             ///< elements this rank holds
  bool counted = true;                ///< false on all but one of the ranks (along tp and pp) that hold the same copy
  bool decay = false;                 ///< weight decay applies: published shape has two dimensions
  bool tied_copy = false;             ///< the head's copy of an embedding that another stage holds too
  double initial_mean = 0;            ///< `initialize` draws N(mean, deviation)
  double initial_deviation = 0;

  std::int64_t global_count() const noexcept {
    std::int64_t n = 1;
    for (const std::int64_t e : shape) n *= e;
    return n;
  }
};

/// Calls `f(global, local, length)` for each maximal run of elements of this rank's part that are neighbours in the
/// whole: `global` is the flat index in the published order, `local` the index in the rank's part.
template <class F>
void for_each_run(const parameter& p, F&& f) {
  if (p.count == 0) return;
  using heddle::v0::detail::stretch_list;
  std::vector<stretch_list> held;  // of each dimension: an interval of the whole
  for (std::size_t d = 0; d < p.logical.size(); ++d)
    held.push_back(stretch_list({.from = p.start[d], .to = 0, .count = p.local[d]}));
  heddle::v0::detail::for_each_run(held, p.logical, p.local, f);
}

/// The table under construction and the two flat buffers. Parts begin at multiples of 64 bytes; the elements between
/// them are zero and stay zero (a zero gradient moves no weight), so that optimizers and norms may take a buffer as
/// one array. The buffers lie in `Space`. Gradients are of `sum_of_type<T>`: float for weights of 16 bits.
template <class T, memory_space Space = host_memory>
class parameter_store {
 public:
  static constexpr std::int64_t alignment = 64 / static_cast<std::int64_t>(sizeof(T));
  using sum = sum_of_type<T>;

  /// Adds a parameter whose whole is the box `logical`, distributed by `layout` over a mesh in which this rank is
  /// `rank`; returns its place in the table.
  template <class Layout, std::size_t Rank>
  std::size_t add(parameter p, const std::array<std::int64_t, Rank>& logical, const Layout& layout, int rank) {
    static_assert(detail::each_weight_has_one_owner<!Layout::has_halo, Layout>,
                  "heddle: a parameter's layout has a halo, whose copies gradients and norms would count again; lay it "
                  "out by without_halo<layout>");
    const auto whole = make_shape(logical);
    const auto shape = layout.local_shape(whole, rank);
    const auto first = layout.local_offset(whole, rank);
    std::array<std::int64_t, Rank> local{}, start{};
    for (std::size_t d = 0; d < Rank; ++d) {
      local[d] = shape.extent(d);
      start[d] = first[d];
    }
    return add_box(std::move(p), logical, local, start);
  }

  /// Allocates both buffers, zeroed, but those that are lent (`lend_weights`, `lend_gradients`). Call once, after the last
  /// `add`. Errors: `memory_error` naming the largest parameter.
  void allocate(typename Space::queue& queue, bool lent_weights = false, bool lent_gradients = false);
  void allocate()
    requires std::same_as<Space, host_memory>
  {
    host_memory::queue at_once;
    allocate(at_once);
  }
  /// From now on the weights, or the gradients, are these `size()` elements of the caller's; none: there are none until the
  /// next call. Own memory of the store is given back. Errors: `layout_error` for another number of elements.
  void lend_weights(row_view<T, Space> weights) {
    weights_ = fitting(weights);
    own_weights_ = {};
  }
  void lend_gradients(row_view<sum, Space> gradients) {
    gradients_ = fitting(gradients);
    own_gradients_ = {};
  }
  /// From now on each parameter, of a rank that has a part of it, is looked for where it lies in `whole`, of which both lend the weights. Errors: `config_error` naming one whose part is not one run there.
  void lie_in(const parameter_store& whole);
  /// Elements of each flat buffer, wherever it lies.
  std::int64_t size() const noexcept { return size_; }

  const std::vector<parameter>& table() const noexcept { return table_; }
  row_view<T, Space> weights() noexcept { return whole(weights_); }
  row_view<const T, Space> weights() const noexcept { return whole<const T>(weights_); }
  row_view<sum, Space> gradients() noexcept { return whole(gradients_); }
  row_view<const sum, Space> gradients() const noexcept { return whole<const sum>(gradients_); }
  row_view<T, Space> weight(std::size_t i) noexcept { return part(weights_, i); }
  row_view<sum, Space> gradient(std::size_t i) noexcept { return part(gradients_, i); }

  /// Draws every weight from counter-based random numbers addressed by (seed, parameter id, index in the whole
  /// parameter), so that every mesh starts from the same model, with any number of `threads` (0: as many as there are cores, but no
  /// more than one for each 2^20 elements). Padding stays zero. Elsewhere than on the host they are drawn there, copied, and waited for.
  void initialize(typename Space::queue& queue, std::uint64_t seed, int threads = 0) {
    if constexpr (std::same_as<Space, host_memory>) {
      draw(seed, weights(), threads);
    } else {
      std::vector<T> drawn(static_cast<std::size_t>(size_));
      draw(seed, std::span<T>(drawn), threads);
      queue.copy(drawn, weights());
      queue.wait();
    }
  }
  void initialize(std::uint64_t seed, int threads = 0)
    requires std::same_as<Space, host_memory>
  {
    draw(seed, weights(), threads);
  }

 private:
  // Adds a parameter of which this rank holds the box of `local` extents that begins at `start` of the whole.
  std::size_t add_box(parameter p, std::span<const std::int64_t> logical, std::span<const std::int64_t> local,
                      std::span<const std::int64_t> start);

  void draw(std::uint64_t seed, std::span<T> all, int threads) const;
  void draw_between(std::uint64_t seed, std::span<T> all, std::int64_t first, std::int64_t end) const;
  template <class U>
  row_view<U, Space> part(U* all, std::size_t i) noexcept {
    return row_at<Space>(all + table_[i].offset, table_[i].count);
  }
  template <class U>
  row_view<U, Space> whole(U* all) const noexcept {
    return row_at<Space>(all, all == nullptr ? 0 : size_);
  }
  template <class Row>
  auto* fitting(const Row& lent) const {
    const std::size_t n = element_count(lent);
    if (n != 0 && static_cast<std::int64_t>(n) != size_)
      throw layout_error("heddle: a stage of " + std::to_string(size_) + " parameters is lent memory for " +
                         std::to_string(n));
    auto* const first = first_element(lent);
    return n == 0 ? nullptr : first;
  }

  std::vector<parameter> table_;
  std::int64_t size_ = 0;
  buffer<T, Space> own_weights_;  // empty where they are lent
  buffer<sum, Space> own_gradients_;
  T* weights_ = nullptr;  // null where they are away
  sum* gradients_ = nullptr;
};

template <class T, memory_space Space>
std::size_t parameter_store<T, Space>::add_box(parameter p, std::span<const std::int64_t> logical,
                                               std::span<const std::int64_t> local,
                                               std::span<const std::int64_t> start) {
  p.logical.assign(logical.begin(), logical.end());
  p.local.assign(local.begin(), local.end());
  p.start.assign(start.begin(), start.end());
  p.count = 1;
  for (const std::int64_t n : local) p.count *= n;
  p.decay = p.shape.size() >= 2;
  p.offset = size_;
  const std::int64_t end = sum_of_counts(size_, sum_of_counts(p.count, alignment - 1));
  if (end < 0) heddle::v0::detail::throw_uncountable(logical.data(), logical.size(), "gives a rank more weights");
  size_ = end / alignment * alignment;
  table_.push_back(std::move(p));
  return table_.size() - 1;
}

template <class T, memory_space Space>
void parameter_store<T, Space>::lie_in(const parameter_store& whole) {
  for (std::size_t i = 0; i < table_.size(); ++i) {
    parameter& p = table_[i];
    const parameter* const of = i < whole.table_.size() ? &whole.table_[i] : nullptr;
    if (of == nullptr || of->id != p.id || of->logical != p.logical || of->count != p.global_count())
      throw config_error("heddle: " + p.name + " should lie in the weights of a stage that has the same layers whole");
    std::int64_t runs = 0, begin = 0;
    for_each_run(p, [&](std::int64_t global, std::int64_t, std::int64_t) {
      if (runs++ == 0) begin = global;
    });
    if (runs > 1)
      throw config_error("heddle: a rank's part of " + p.name +
                         " should be one run of the whole, so that both lie in one memory; got " +
                         std::to_string(runs) + " runs: store it the other way round (elastic_llama)");
    p.offset = of->offset + begin;
  }
  size_ = whole.size_;
}

template <class T, memory_space Space>
void parameter_store<T, Space>::allocate(typename Space::queue& queue, bool lent_weights, bool lent_gradients) {
  std::string of = " of " + std::to_string(table_.size()) + " parameters";
  const parameter* largest = nullptr;
  for (const parameter& p : table_)
    if (largest == nullptr || p.count > largest->count) largest = &p;
  if (largest != nullptr) of += ", the largest " + largest->name + " with " + std::to_string(largest->count);
  if (!lent_weights) own_weights_ = buffer<T, Space>(queue, size_, "the weights" + of);
  if (!lent_gradients) own_gradients_ = buffer<sum, Space>(queue, size_, "the gradients" + of);
  weights_ = own_weights_.address();
  gradients_ = own_gradients_.address();
}

// The elements from `first` to `end` of the flat buffer.
template <class T, memory_space Space>
void parameter_store<T, Space>::draw_between(std::uint64_t seed, std::span<T> all, std::int64_t first,
                                             std::int64_t end) const {
  for (const parameter& p : table_) {
    if (p.offset + p.count <= first || p.offset >= end) continue;
    const counter_random random(seed, static_cast<std::uint64_t>(p.id));
    for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
      const std::int64_t at = p.offset + local, last = (std::min)(length, end - at);
      for (std::int64_t k = (std::max)(std::int64_t{0}, first - at); k < last; ++k) {
        double value = p.initial_mean;
        if (p.initial_deviation > 0)
          value += p.initial_deviation * random.normal(static_cast<std::uint64_t>(global + k));
        all[static_cast<std::size_t>(at + k)] = converted<T>(value);
      }
    });
  }
}

template <class T, memory_space Space>
void parameter_store<T, Space>::draw(std::uint64_t seed, std::span<T> all, int threads) const {
  const auto size = static_cast<std::int64_t>(all.size());
  if (threads <= 0)
    threads = static_cast<int>((std::min)(static_cast<std::int64_t>(std::thread::hardware_concurrency()), size >> 20));
  if (threads <= 1) return draw_between(seed, all, 0, size);
  std::vector<std::exception_ptr> failed(static_cast<std::size_t>(threads));
  const auto part = [&](int i) {
    try {
      draw_between(seed, all, size / threads * i, i + 1 == threads ? size : size / threads * (i + 1));
    } catch (...) {
      failed[static_cast<std::size_t>(i)] = std::current_exception();
    }
  };
  std::vector<std::jthread> others;
  int begun = 1;
  try {
    for (; begun < threads; ++begun) others.emplace_back(part, begun);
  } catch (const std::system_error&) {  // no more threads: this one draws the rest
  }
  part(0);
  for (; begun < threads; ++begun) part(begun);
  others.clear();
  for (const std::exception_ptr& f : failed)
    if (f) std::rethrow_exception(f);
}

namespace detail {
// Errors: `config_error` where a stage has lent its weights away (`zero<3>` between their uses); `what` is called.
template <class Stage>
void require_weights_here(const Stage& stage, const char* what) {
  if constexpr (requires { stage.flat_elements(); })
    if (stage.flat_elements() > 0 && stage.weights().size() == 0) [[unlikely]]
      throw config_error(std::string("heddle: ") + what +
                         ": the stage's weights are not here (zero<3>): call it inside of "
                         "trainer.parameter_memory().with_weights(...)");
}
}  // namespace detail

}  // namespace heddle::inline v0::model
