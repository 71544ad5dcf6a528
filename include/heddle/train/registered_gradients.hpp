// heddle/train/registered_gradients.hpp: memory for the gradients of a rank's stages that the communicators which sum them have registered.
#pragma once

#include <heddle/core/half_precision.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/buckets.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// A communicator that registers memory of its own for collectives that come again, where its transport is asked to
/// (`registers_memory()`): `comm.registered_memory(stream, bytes)` owns it, its `register_with(other.channel())` adds another communicator. Both are called by
/// all ranks of the communicator together.
template <class C, class Queue>
concept registers_memory_for = requires(C& c, Queue& q, std::size_t bytes) {
  { c.registers_memory() } -> std::same_as<bool>;
  c.registered_memory(q.stream(), bytes);
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

/// Puts the gradients of stages that keep them all the time (`zero<0>`, `zero<1>`) and can be lent gradients into memory that the communicators of
/// their buckets have registered, once for each stage; the memory is the stages' until this ends. Nothing where the communicators do not register
/// memory, or each of them has one rank.
template <class HeldStages, class Data>
class registered_gradients {
  using stage_type = typename HeldStages::stage_type;
  using scalar = sum_of_type<typename HeldStages::scalar>;
  using space = typename HeldStages::space;
  using queue_type = typename space::queue;
  using optimizer_type = std::remove_reference_t<decltype(std::declval<typename HeldStages::held&>().optimizer)>;
  using group_type = std::remove_reference_t<decltype(detail::group_of_bucket<0>(std::declval<Data&>()))>;
  static constexpr int buckets = detail::buckets_of_optimizer<optimizer_type>;

 public:
  /// Whether there is anything to do, where the transport asks for it.
  static constexpr bool can = registers_memory_for<group_type, queue_type> && optimizer_type::zero_stage < 2 &&
                              model::of_stage::can_lend_gradients<stage_type>;

  /// Called on all ranks together.
  registered_gradients(HeldStages& held, Data& data) {
    if constexpr (can) held.for_each([&](auto& h) { put_stage(h.stage, data); });
  }
  /// Of all stages here.
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  void put_stage(stage_type& stage, Data& data) {
    const std::int64_t elements = stage.flat_elements();
    if (elements == 0) return;
    memory_type memory{};
    queue_type& queue = detail::queue_of_stage(stage);
    [&]<int... K>(std::integer_sequence<int, K...>) {
      (register_with(memory, detail::group_of_bucket<K>(data), stage, queue, elements), ...);
    }(std::make_integer_sequence<int, buckets>{});
    if (memory == nullptr) return;
    const auto row = heddle::v0::detail::row_at<space>(static_cast<scalar*>(memory->memory()), elements);
    queue.zero(row);
    stage.lend_gradients(row);
    bytes_ += static_cast<std::size_t>(elements) * sizeof(scalar);
    all_.push_back(std::move(memory));
  }
  template <class Memory, class Group>
  void register_with(Memory& memory, Group& group, stage_type& stage, queue_type& queue, std::int64_t elements) {
    if constexpr (registers_memory_for<Group, queue_type>) {
      if (group.size() == 1 || !group.registers_memory()) return;
      if (memory != nullptr) return memory->register_with(group.channel());
      stage.lend_gradients({});  // its own memory is given back first
      queue.wait();
      memory = group.registered_memory(queue.stream(), static_cast<std::size_t>(elements) * sizeof(scalar));
    }
  }

  using memory_type = typename detail::registered_memory_of<group_type, queue_type>::type;
  std::vector<memory_type> all_{};
  std::size_t bytes_ = 0;
};

}  // namespace heddle::inline v0::train
