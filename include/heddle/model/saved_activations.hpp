// heddle/model/saved_activations.hpp: memory of activations saved for the backward.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace heddle::inline v0 {

/// Policies that say what happens to saved activations between forward and backward.
struct activations_kind {};

namespace model {

/// Memory for what layers save, so many elements for each layer of each slot: made from settings, slots, layers and the
/// elements of the largest, or from settings, slots and the elements of each. A slot is one microbatch on its way. For
/// every microbatch and layer a stage calls, in this order:
/// - `begin(slot, layer)` before anything is written, for memory that stays where it is until
/// - `saved(slot, layer)`, when the layer's forward has ended;
/// - `need(slot, layer)` before the backward, for the memory that has it: another than before, where `moves` says so;
///   twice with a `recompute` before the backward;
/// - `done(slot, layer)` when the backward has ended, with the gradients of the weights.
/// The layers' forwards come in order, the backwards in reverse; `begin` of a layer may come before `saved` of the one
/// before it. `forget(slot)`: the microbatch's backward will not come. `M::settings` is what it is told at start-up. Elsewhere
/// than on the host the queue comes before the settings, and `begin` and `need` give a `row_view<T, Space>`.
template <class M, class T, class Space = host_memory>
concept layer_memory = (std::constructible_from<M, typename Space::queue&, const typename M::settings&, int,
                                                std::span<const std::int64_t>> ||
                        std::constructible_from<M, const typename M::settings&, int, int, std::int64_t> ||
                        std::constructible_from<M, const typename M::settings&, int, std::span<const std::int64_t>>) &&
                       requires(M& m, const M& c) {
                         { M::moves } -> std::convertible_to<bool>;
                         { m.begin(0, 0) } -> std::same_as<row_view<T, Space>>;
                         m.saved(0, 0);
                         { m.need(0, 0) } -> std::same_as<row_view<T, Space>>;
                         m.done(0, 0);
                         m.forget(0);
                         { c.bytes_per_slot() } -> std::convertible_to<std::int64_t>;
                       };

/// Memory of its own for every slot and layer, from the beginning to the end.
template <class T, memory_space Space = host_memory>
class resident_layers {
 public:
  struct settings {};
  static constexpr bool moves = false;

  resident_layers(typename Space::queue& queue, const settings& /*none*/, int slots,
                  std::span<const std::int64_t> elements) {
    for (const std::int64_t n : elements) ends_.push_back(slot_elements_ += n);
    memory_ = buffer<T, Space>(queue, slot_elements_ * slots, "the saved activations of a stage's layers");
  }

  row_view<T, Space> begin(int slot, int layer) noexcept { return need(slot, layer); }
  void saved(int /*slot*/, int /*layer*/) noexcept {}
  row_view<T, Space> need(int slot, int layer) noexcept {
    const std::int64_t begin = layer > 0 ? ends_[static_cast<std::size_t>(layer) - 1] : 0;
    return row_at<Space>(memory_.address() + slot * slot_elements_ + begin,
                         ends_[static_cast<std::size_t>(layer)] - begin);
  }
  void done(int /*slot*/, int /*layer*/) noexcept {}
  void forget(int /*slot*/) noexcept {}
  std::int64_t bytes_per_slot() const noexcept { return slot_elements_ * static_cast<std::int64_t>(sizeof(T)); }

 private:
  std::vector<std::int64_t> ends_{};  // of each layer in a slot
  std::int64_t slot_elements_ = 0;
  buffer<T, Space> memory_{};
};

/// Whether what a layer saves is elsewhere between forward and backward: known at run time of memories with `moves_now()`.
template <class M>
constexpr bool moves_now(const M& memory) noexcept {
  if constexpr (requires { memory.moves_now(); })
    return memory.moves_now();
  else
    return M::moves;
}

/// Memory of this kind for so many elements in each layer.
template <class M, class Queue>
M make_layer_memory(Queue& queue, const typename M::settings& how, int slots, std::span<const std::int64_t> elements) {
  if constexpr (std::constructible_from<M, Queue&, const typename M::settings&, int, std::span<const std::int64_t>>) {
    return M(queue, how, slots, elements);
  } else if constexpr (std::constructible_from<M, const typename M::settings&, int, std::span<const std::int64_t>>) {
    return M(how, slots, elements);
  } else {
    std::int64_t largest = 0;
    for (const std::int64_t n : elements) largest = (std::max)(largest, n);
    return M(how, slots, static_cast<int>(elements.size()), largest);
  }
}

}  // namespace model

namespace activations {

/// All saved activations stay in memory: the default.
struct keep {
  using kind = activations_kind;
  template <class T>
  using layers = model::resident_layers<T>;
  template <class T, class Space>
  using layers_in = model::resident_layers<T, Space>;
};

}  // namespace activations

namespace model::detail {

template <bool Ok, class Activations, class Space>
inline constexpr bool keeps_activations_in = Ok;
template <class Activations, class T, class Space>
struct layers_of_policy {
  static constexpr bool there = false;
  using type = resident_layers<T, Space>;  // after the sentence that refuses the policy
};
template <class Activations, class T, class Space>
  requires requires { typename Activations::template layers_in<T, Space>; }
struct layers_of_policy<Activations, T, Space> {
  static constexpr bool there = true;
  using type = typename Activations::template layers_in<T, Space>;
};
template <class Activations, class T>
struct layers_of_policy<Activations, T, host_memory> {
  static constexpr bool there = true;
  using type = typename Activations::template layers<T>;
};

}  // namespace model::detail

}  // namespace heddle::inline v0
