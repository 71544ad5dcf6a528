// heddle/infer/step_inputs.hpp: a step's tokens, positions, slices, pages in memory.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/infer/step_rows.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace heddle::inline v0::infer {

/// Token ids, positions, rows of the cache, wanted rows, slices and pages of a step in memory of `Space`. Where kernels run on cores of the host they are
/// those of the `step_rows` and the tokens themselves, which must live as long as the step. Elsewhere they are written to memory of the host that is kept
/// (pinned where the queue has such), and one copy in the order of the queue brings all of them to the device.
template <memory_space Space>
class step_inputs {
  static constexpr bool in_place = heddle::v0::detail::kernels_run_on_host<Space>();
  using queue_type = typename Space::queue;
  template <class E>
  using row = row_view<const E, Space>;

 public:
  /// Takes the memory for steps of so many rows, slices and pages at once; a step that has more takes more. Nothing where it is `step_rows`' own. Errors: `memory_error`.
  void reserve([[maybe_unused]] queue_type& queue, [[maybe_unused]] std::int64_t rows,
               [[maybe_unused]] std::int64_t slices, [[maybe_unused]] std::int64_t pages) {
    if constexpr (!in_place) make_room(queue, static_cast<std::size_t>(bytes_for(rows, slices, pages)));
  }
  /// Bytes that `reserve` takes on the device, and as many pinned ones.
  static std::int64_t bytes_for(std::int64_t rows, std::int64_t slices, std::int64_t pages) noexcept {
    if (in_place) return 0;  // else tokens, positions, places, wanted rows, and which are of few
    return slices * static_cast<std::int64_t>(sizeof(compute::attention_slice)) +
           (5 * rows + pages) * static_cast<std::int64_t>(sizeof(std::int32_t));
  }
  /// The next step's. On a device all that the queue was given before the last call must be done: the runner waits for it in each step.
  /// Errors: `memory_error`.
  void set(queue_type& queue, const step_rows& rows, std::span<const std::int32_t> tokens) {
    const compute::key_pages pages = rows.pages();
    pages_.page_rows = pages.page_rows;
    pages_.most_keys = pages.most_keys;
    pages_.few_slices = pages.few_slices;
    const compute::key_pages windowed = rows.windowed_pages();
    windowed_pages_.page_rows = windowed.page_rows;
    windowed_pages_.most_keys = windowed.most_keys;
    windowed_pages_.few_slices = windowed.few_slices;
    if constexpr (!in_place) {
      const std::size_t needed = bytes_of(rows.slices()) + bytes_of(rows.windowed()) + bytes_of(rows.positions()) + bytes_of(rows.places()) +
                                 bytes_of(rows.wanted()) + bytes_of(rows.states()) + bytes_of(pages.pages) + bytes_of(pages.few_rows) +
                                 bytes_of(tokens);
      make_room(queue, needed);
    }
    std::size_t at = 0;
    slices_ = put(rows.slices(), at);  // first: their numbers are the widest
    windowed_ = put(rows.windowed(), at);
    positions_ = put(rows.positions(), at);
    places_ = put(rows.places(), at);
    wanted_ = put(rows.wanted(), at);
    states_ = put(rows.states(), at);
    pages_.pages = put(pages.pages, at);
    pages_.few_rows = put(pages.few_rows, at);
    windowed_pages_.pages = pages_.pages;
    windowed_pages_.few_rows = pages_.few_rows;
    tokens_ = put(tokens, at);
    if constexpr (!in_place)
      queue.copy(row_at<host_space>(static_cast<const std::byte*>(on_host_.address()), static_cast<std::int64_t>(at)),
                 row_at<Space>(there_.address(), static_cast<std::int64_t>(at)));
  }
  row<std::int32_t> tokens() const noexcept { return tokens_; }
  row<std::int32_t> positions() const noexcept { return positions_; }
  row<std::int32_t> places() const noexcept { return places_; }
  row<std::int32_t> wanted() const noexcept { return wanted_; }
  row<compute::attention_slice> slices() const noexcept { return slices_; }
  compute::key_pages_in<Space> pages() const noexcept { return pages_; }
  row<compute::state_rows> states() const noexcept { return states_; }
  row<compute::attention_slice> windowed() const noexcept { return windowed_; }
  compute::key_pages_in<Space> windowed_pages() const noexcept { return windowed_pages_; }

 private:
  template <class Q>
  static auto host_space_for() {
    if constexpr (requires { typename Q::pinned; })
      return std::type_identity<typename Q::pinned>{};
    else
      return std::type_identity<host_memory>{};
  }
  using host_space = typename decltype(host_space_for<queue_type>())::type;

  template <class E>
  static std::size_t bytes_of(std::span<E> x) noexcept {
    return x.size_bytes();
  }
  void make_room(queue_type& queue, std::size_t bytes) {
    if (bytes <= there_.size()) return;
    const auto size = static_cast<std::int64_t>(there_.size() == 0 ? bytes : bytes + bytes / 2);
    constexpr const char* what = "tokens, positions and pages of a step";
    there_ = {};
    there_ = buffer<std::byte, Space>(queue, size, what);
    on_host_ = {};
    if constexpr (std::is_same_v<host_space, host_memory>) {
      on_host_ = buffer<std::byte>(size, what);
    } else {
      typename host_space::queue of_host(queue);
      on_host_ = buffer<std::byte, host_space>(of_host, size, what);
    }
  }
  template <class E>
  row<E> put(std::span<const E> x, std::size_t& at) {
    const auto count = static_cast<std::int64_t>(x.size());
    if constexpr (in_place) {
      return row_at<Space>(x.data(), count);
    } else {
      if (count > 0) std::memcpy(on_host_.address() + at, x.data(), x.size_bytes());
      const auto* const first = reinterpret_cast<const E*>(there_.address() + at);
      at += x.size_bytes();
      return row_at<Space>(first, count);
    }
  }

  struct nothing {
    static constexpr std::size_t size() noexcept { return 0; }
  };
  template <class S>
  using memory = std::conditional_t<in_place, nothing, buffer<std::byte, S>>;

  row<std::int32_t> tokens_{}, positions_{}, places_{}, wanted_{};
  compute::key_pages_in<Space> pages_{}, windowed_pages_{};
  row<compute::attention_slice> slices_{}, windowed_{};
  row<compute::state_rows> states_{};
  [[no_unique_address]] memory<Space> there_{};
  [[no_unique_address]] memory<host_space> on_host_{};
};

}  // namespace heddle::inline v0::infer
