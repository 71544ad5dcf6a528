// heddle/train/registered_parameters.hpp: weights and gradients in registered memory.
#pragma once

#include <heddle/core/half_precision.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/buckets.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// A communicator that registers memory of its own for collectives that come again, where its transport is asked to
/// (`registers_memory()`): `comm.registered_memory(stream, bytes)` owns it, its `register_with(other.channel())` adds another communicator, and
/// `comm.greatest(stream, {x, y})` has the greatest of all ranks' x and of their y. All three are called by all ranks of the communicator together.
template <class C, class Queue>
concept registers_memory_for = requires(C& c, Queue& q, std::size_t bytes) {
  { c.registers_memory() } -> std::same_as<bool>;
  c.registered_memory(q.stream(), bytes);
  { c.greatest(q.stream(), std::array<std::int64_t, 2>{}) } -> std::same_as<std::array<std::int64_t, 2>>;
};

namespace detail {

template <class Communicator, class Queue>
struct registered_memory_of {
  struct type {};
};
template <class Communicator, class Queue>
  requires registers_memory_for<Communicator, Queue>
struct registered_memory_of<Communicator, Queue> {
  using type =
      decltype(std::declval<Communicator&>().registered_memory(std::declval<Queue&>().stream(), std::size_t{}));
};

}  // namespace detail

/// Puts what the communicators of a rank's stages sum and gather into memory that they have registered, once. Nothing where the communicators do not register
/// memory, or each of them has one rank.
///
/// | | in windows |
/// |---|---|
/// | `zero<0>` | the gradients of each stage that can be lent them |
/// | `zero<1>` | these, and its weights, where it can be lent weights |
/// | `zero<2>` | the weights; each bucket's share of gradients; whole gradients, parts of one window for all stages |
/// | `zero<3>` | each bucket's shares of gradients and weights; whole gradients and weights, parts of one window for all stages (of two where their types differ) |
///
/// The memory is the stages' until this ends. A rank's part of a window begins at the same byte on all ranks of a communicator, and windows have one size on all of
/// them: that of the largest share. So a stage whose ranks hold different numbers of elements, such as those of experts or hidden units that the ranks do not
/// divide, has its shares in windows alone, and so have all stages of its ranks under `zero<2>` and `zero<3>`.
template <class HeldStages, class Data>
class registered_parameters {
  using stage_type = typename HeldStages::stage_type;
  using weight = typename HeldStages::scalar;
  using gradient = sum_of_type<weight>;
  using space = typename HeldStages::space;
  using queue_type = typename space::queue;
  using held_type = typename HeldStages::held;
  using optimizer_type = std::remove_reference_t<decltype(std::declval<held_type&>().optimizer)>;
  using group_type = std::remove_reference_t<decltype(detail::group_of_bucket<0>(std::declval<Data&>()))>;
  static constexpr int buckets = detail::buckets_of_optimizer<optimizer_type>;
  static constexpr int zero = optimizer_type::zero_stage;
  static constexpr bool registers = registers_memory_for<group_type, queue_type>;
  static constexpr bool of_gradients = zero < 2 && model::of_stage::can_lend_gradients<stage_type>;
  static constexpr bool of_weights = (zero == 1 || zero == 2) && model::of_stage::can_lend_weights<stage_type>;
  static constexpr bool of_shares = zero >= 2;

 public:
  /// Whether there is anything to do, where the transport asks for it.
  static constexpr bool can = registers && (of_gradients || of_weights || of_shares);
  /// Whether the transport of a bucket's communicator with several ranks asks for it.
  static bool is_asked([[maybe_unused]] Data& data) {
    bool asked = false;
    if constexpr (can) each_group(data, [&](auto&) { asked = true; });
    return asked;
  }

  /// Called on all ranks together.
  registered_parameters(HeldStages& held, Data& data) {
    if constexpr (can) {
      held.for_each([&](auto& h) {
        if constexpr (of_gradients || of_weights) put_stage(h.stage, data);
        if constexpr (of_shares) put_shares(h, data);
      });
      if constexpr (of_shares) put_whole(held, data);
    }
  }
  /// Of all stages here, without what windows are rounded up by.
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  using memory_type = typename detail::registered_memory_of<group_type, queue_type>::type;
  // Bytes in units that all types are aligned to on the device.
  template <class T>
  static std::size_t room_for(std::int64_t elements) noexcept {
    return (static_cast<std::size_t>(elements) * sizeof(T) + 255) / 256 * 256;
  }

  // f(group) for each bucket's group that registers memory.
  template <class F>
  static void each_group(Data& data, F&& f) {
    [&]<int... K>(std::integer_sequence<int, K...>) {
      (with_group(detail::group_of_bucket<K>(data), f), ...);
    }(std::make_integer_sequence<int, buckets>{});
  }
  template <class Group, class F>
  static void with_group(Group& group, F& f) {
    if constexpr (registers_memory_for<Group, queue_type>)
      if (group.size() > 1 && group.registers_memory()) f(group);
  }
  // Whether n is the same on all ranks of all of those; all of them get the same answer, as the axes of groups commute.
  static bool same_on_all(Data& data, queue_type& queue, std::int64_t n) {
    std::array<std::int64_t, 2> most{n, -n};
    each_group(data, [&](auto& group) { most = group.greatest(queue.stream(), most); });
    return most[0] == -most[1];
  }
  // A window of all of those, zeroed; null where there is none. `give_back()` comes before it: what the memory replaces goes first.
  template <class GiveBack>
  std::byte* window_of_all(Data& data, queue_type& queue, std::size_t bytes, const GiveBack& give_back) {
    memory_type memory{};
    each_group(data, [&](auto& group) {
      if (memory != nullptr) return memory->register_with(group.channel());
      give_back();
      queue.wait();
      memory = group.registered_memory(queue.stream(), bytes);
    });
    return kept(std::move(memory), queue, bytes);
  }
  std::byte* kept(memory_type memory, queue_type& queue, std::size_t bytes) {
    if (memory == nullptr) return nullptr;
    auto* const first = static_cast<std::byte*>(memory->memory());
    queue.zero(row_at<space>(first, static_cast<std::int64_t>(bytes)));
    all_.push_back(std::move(memory));
    return first;
  }
  template <class T>
  auto row_of(std::byte* first, std::int64_t elements) {
    bytes_ += static_cast<std::size_t>(elements) * sizeof(T);
    return row_at<space>(reinterpret_cast<T*>(first), elements);
  }

  void put_stage(stage_type& stage, Data& data) {
    const std::int64_t elements = stage.flat_elements();
    if (!same_on_all(data, detail::queue_of_stage(stage), elements) || elements == 0) return;
    const std::size_t gradients = of_gradients ? room_for<gradient>(elements) : 0;
    const std::size_t weights = of_weights ? room_for<weight>(elements) : 0;
    std::byte* const first = window_of_all(data, detail::queue_of_stage(stage), gradients + weights, [&] {
      if constexpr (of_gradients) stage.lend_gradients({});
      if constexpr (of_weights) stage.lend_weights({});
    });
    if (first == nullptr) return;
    if constexpr (of_gradients) stage.lend_gradients(row_of<gradient>(first, elements));
    if constexpr (of_weights) stage.lend_weights(row_of<weight>(first + gradients, elements));
  }
  void put_shares(held_type& h, Data& data) {
    detail::for_each_bucket(h.stage, h.optimizer, [&](auto&, auto& optimizer, auto bucket) {
      const auto put = [&](auto& group) {
        const std::int64_t elements = optimizer.largest_share(), mine = optimizer.owned_end() - optimizer.owned_begin();
        if (elements == 0) return;
        const std::size_t gradients = room_for<gradient>(elements);
        const std::size_t bytes = gradients + (zero >= 3 ? room_for<weight>(elements) : 0);
        queue_type& queue = detail::queue_of_stage(h.stage);
        std::byte* const first = kept(group.registered_memory(queue.stream(), bytes), queue, bytes);
        optimizer.lie_in(reinterpret_cast<weight*>(first + gradients), reinterpret_cast<gradient*>(first));
        bytes_ += static_cast<std::size_t>(mine) * (sizeof(gradient) + (zero >= 3 ? sizeof(weight) : 0));
      };
      with_group(detail::group_of_bucket<decltype(bucket)::value>(data), put);
    });
  }
  // What is lent to the stages, all at one time as predicted, each buffer rounded up.
  void put_whole(HeldStages& held, Data& data) {
    if (held.size() == 0) return;
    bool same = true;
    held.for_each([&](auto& h) {
      const bool here = same_on_all(data, detail::queue_of_stage(h.stage), h.stage.flat_elements());
      same = same && here;
    });
    if (!same) return;
    auto& memory = held.memory();
    put_lent(held, data, memory.of_gradients());
    if constexpr (!std::is_same_v<weight, gradient> && zero >= 3) put_lent(held, data, memory.of_weights());
  }
  template <class Lent>
  void put_lent(HeldStages& held, Data& data, Lent& lent) {
    using T = typename Lent::element_type;
    const std::size_t rounded = 256 * 2 * static_cast<std::size_t>(held.size());
    const std::size_t bytes = (static_cast<std::size_t>(lent.limit()) + 255) / 256 * 256 + rounded;
    if (lent.limit() == 0) return;
    std::byte* const first = window_of_all(data, detail::queue_of_stage(held[0].stage), bytes, [] {});
    if (first == nullptr) return;
    lent.lie_in(reinterpret_cast<T*>(first), static_cast<std::int64_t>(bytes / sizeof(T)));
    bytes_ += static_cast<std::size_t>(lent.limit());
  }

  std::vector<memory_type> all_{};
  std::size_t bytes_ = 0;
};

}  // namespace heddle::inline v0::train
