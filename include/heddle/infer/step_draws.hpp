// heddle/infer/step_draws.hpp: draws a step's tokens on the device, and brings them home.
#pragma once

#include <heddle/compute/token_draws.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0::infer {

namespace detail {
template <class Backend, class T>
inline constexpr bool draws_on_device = false;
template <class Backend, class T>
  requires(!heddle::v0::detail::kernels_run_on_host<typename Backend::space>()) &&
              compute::token_drawing_kernels<Backend, T> && requires { typename Backend::space::queue::pinned; }
inline constexpr bool draws_on_device<Backend, T> = true;
}  // namespace detail

/// The draws of a step on a device, `head_rows` rows of logits after the other, and pinned memory for what comes to the host. All goes in the order of the queue: nothing waits.
/// Empty for backends that draw none, or whose kernels run on the host.
template <class Backend, class T, bool = detail::draws_on_device<Backend, T>>
class step_draws {};

template <class Backend, class T>
class step_draws<Backend, T, true> {
  using space = typename Backend::space;
  using queue_type = typename space::queue;
  using pinned = typename queue_type::pinned;

 public:
  /// Memory for n logits. Errors: `memory_error`.
  std::span<T> logits_memory(queue_type& queue, std::size_t n) {
    make_room(queue, logits_, n, "logits of a step");
    return {logits_.address(), n};
  }

  /// Takes the memory for n draws. Errors: `memory_error`.
  void reserve(queue_type& queue, std::size_t n) {
    constexpr const char* what = "draws of a step";
    make_room(queue, asked_, n, what);
    make_room(queue, answered_, n, what);
    if (asked_there_.size() < n) {
      const auto there = static_cast<std::int64_t>(asked_.size());
      asked_there_ = {};
      asked_there_ = buffer<compute::token_draw, space>(queue, there, what);
      answered_there_ = {};
      answered_there_ = buffer<compute::token_drawn, space>(queue, there, what);
    }
  }
  /// Bytes that `reserve` takes on the device.
  static std::int64_t bytes_for(std::int64_t n) noexcept {
    return n * static_cast<std::int64_t>(sizeof(compute::token_draw) + sizeof(compute::token_drawn));
  }
  /// Before the first rows. Errors: `memory_error`.
  void begin(queue_type& queue, std::span<const compute::token_draw> draws, std::int64_t head_rows) {
    draws_ = draws;
    next_ = 0;
    if (draws.empty()) return;
    reserve(queue, draws.size());
    std::copy(draws.begin(), draws.end(), asked_.address());
    for (std::size_t i = 0; i < draws.size(); ++i) asked_.address()[i].row %= head_rows;
    queue.copy(std::span<const compute::token_draw>(asked_.address(), draws.size()), part(asked_there_, 0, count()));
  }
  /// The wanted rows from `first` on: their draws, and copies of the logits of the others. Shapes: found [rows, vocabulary], logits [wanted rows, vocabulary].
  void take(Backend& backend, std::int64_t first, std::int64_t vocabulary, matrix_view<const T, space> found,
            std::span<T> logits) {
    const std::int64_t rows = found.extent(0), begin = next_;
    const auto is_drawn = [&](std::int64_t r) {
      return next_ < count() && draws_[static_cast<std::size_t>(next_)].row == first + r;
    };
    for (std::int64_t r = 0; r < rows;) {
      if (is_drawn(r)) {
        ++next_, ++r;
        continue;
      }
      const std::int64_t from = r;
      while (r < rows && !is_drawn(r)) ++r;
      backend.queue().copy(row_at<space>(found.address() + from * vocabulary, (r - from) * vocabulary),
                           logits.subspan(static_cast<std::size_t>((first + from) * vocabulary),
                                          static_cast<std::size_t>((r - from) * vocabulary)));
    }
    if (next_ == begin) return;
    backend.draw_tokens(
        found, row_at<space>(static_cast<const compute::token_draw*>(asked_there_.address()) + begin, next_ - begin),
        part(answered_there_, begin, next_ - begin));
  }
  /// After the last rows: the tokens to the host.
  void end(queue_type& queue) {
    if (draws_.empty()) return;
    queue.copy(row_at<space>(static_cast<const compute::token_drawn*>(answered_there_.address()), count()),
               std::span<compute::token_drawn>(answered_.address(), draws_.size()));
  }
  /// The tokens, after a wait for the queue.
  std::span<const compute::token_drawn> drawn() const noexcept { return {answered_.address(), draws_.size()}; }

 private:
  std::int64_t count() const noexcept { return static_cast<std::int64_t>(draws_.size()); }
  template <class E>
  static row_view<E, space> part(buffer<E, space>& x, std::int64_t first, std::int64_t n) {
    return row_at<space>(x.address() + first, n);
  }
  template <class E>
  static void make_room(queue_type& queue, buffer<E, pinned>& x, std::size_t n, const char* what) {
    if (n <= x.size()) return;
    typename pinned::queue of_host(queue);
    const std::size_t size = x.size() == 0 ? n : n + n / 2;
    x = {};
    x = buffer<E, pinned>(of_host, static_cast<std::int64_t>(size), what);
  }

  std::span<const compute::token_draw> draws_{};
  std::int64_t next_ = 0;  // of the draws
  buffer<compute::token_draw, pinned> asked_{};
  buffer<compute::token_drawn, pinned> answered_{};
  buffer<compute::token_draw, space> asked_there_{};
  buffer<compute::token_drawn, space> answered_there_{};
  buffer<T, pinned> logits_{};
};

}  // namespace heddle::inline v0::infer
