// heddle/model/block_halves.hpp: blocks kept as two halves each, with an address for each half.
#pragma once

#include <heddle/layout/gradient.hpp>
#include <heddle/model/language_checks.hpp>
#include <heddle/model/layers/block_kinds.hpp>
#include <heddle/model/layers/combinators.hpp>
#include <heddle/model/layers/placed.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::model {

namespace detail {

template <class Block>
inline constexpr bool is_in_halves = false;
template <class First, class Second>
inline constexpr bool is_in_halves<layers::pair_of_layers<First, Second>> = true;
template <>
inline constexpr bool is_in_halves<layers::no_block> = true;
template <bool Ok, class... Blocks>
inline constexpr bool halves_are_possible = Ok;

// Whether this memory of saved activations has two scopes for each block.
template <class Memory>
inline constexpr bool memory_of_halves = requires { requires Memory::halves; };
template <class Memory>
inline constexpr bool memory_recomputes = requires(const typename Memory::settings& s) { s.again; };
template <class Places, class Memory>
constexpr bool halves_checked() {
  if constexpr (memory_of_halves<Memory>) {
    using main = typename Places::main_block;
    using other = typename Places::other_block;
    static_assert(halves_are_possible < is_in_halves<main> && is_in_halves<other>, main, other >,
                  "heddle: granularity::halves is for blocks that are a sequence of two layers, such as attention and "
                  "MLP; take granularity::blocks");
    static_assert(halves_are_possible<!memory_recomputes<Memory>, Memory>,
                  "heddle: granularity::halves keeps all that a block saves: leave recompute out, or take "
                  "granularity::blocks");
  }
  return true;
}

// Where the first tensor lies that a layer and its children save; `none` where they save nothing.
template <class Layer>
constexpr std::int64_t first_saved(const layers::placed<Layer>& p, std::int64_t none) {
  p.layer.activations().each([&](auto index, const auto& described) {
    using layers::life;
    constexpr life lives = std::remove_cvref_t<decltype(described)>::lives;
    if (lives == life::until_input || lives == life::until_weight)
      none = (std::min)(none, p.activations[index].saved[0]);
  });
  p.children.each([&](auto, const auto& child) { none = first_saved(child, none); });
  return none;
}

}  // namespace detail

/// How what a block of two layers saves is divided: in one piece it is the tensor between the layers, what the first
/// one saves and what the second one saves. In two, the first half has the block's input and what the first layer
/// saves, the second half the rest, so that each layer's backward needs one of them. Units: elements.
struct block_halves {
  std::int64_t stream = 0, between = 0, first = 0, second = 0;  ///< input; between the layers; saved by each

  template <class Block>
  constexpr block_halves(const layers::placed<Block>& block, std::int64_t input, std::int64_t saved) : stream(input) {
    if constexpr (detail::is_in_halves<Block> && !std::is_same_v<Block, layers::no_block>) {
      const std::int64_t end = detail::first_saved(block.children.template get<1>(), saved);
      between = detail::first_saved(block.children.template get<0>(), end);
      first = end - between;
      second = saved - end;
    }
  }
  constexpr std::array<std::int64_t, 2> elements() const noexcept { return {stream + first, between + second}; }
};
/// Those of block `layer` of a model that computes nothing again.
template <class Places>
constexpr block_halves halves_of_block(const Places& at, int layer) {
  return at.with_block(layer,
                       [&](const auto& block) { return block_halves(block, at.stream, at.sizes_of(layer).saved[0]); });
}

namespace detail {

/// The verbs of a block in halves. Offsets of saved tensors are those of one piece: `layer_run::saved` is where that
/// piece would begin for the half at work. `Call`: of a `layers::pair_of_layers`.
template <class Call>
class halves_at_work {
  using T = typename Call::scalar;
  using view = typename Call::view;
  using const_view = typename Call::const_view;
  using stream = typename Call::layouts::template edge<dims<dim::width>>;
  using block = std::remove_cvref_t<decltype(std::declval<const Call&>().layer())>;
  using first_layer = decltype(block::first);
  using second_layer = decltype(block::second);

 public:
  halves_at_work(const Call& call, const block_halves& at, T* second) : call_(call), at_(at), second_(second) {}

  /// `x`: the first half; `next()`: where the output goes, called when the first half is complete.
  template <class Next>
  void forward(T* x, const_view in, Next&& next) const {
    auto [p, q] = call_.children();
    const view mid = between();
    at_first(x);
    layers::detail::require_settled<first_layer, stream>(p.forward(in, mid));
    const view y = next();
    at_second();
    layers::detail::require_settled<second_layer, stream>(q.forward(mid, y));
  }
  /// The gradient of the input where `inputs`, those of weights where `weights`. `input(view)`: the first half and the
  /// block's input in it, called when the second half is not needed any more.
  template <class Input>
  void backward(bool inputs, bool weights, const_view dy, view dx, Input&& input) const {
    auto [p, q] = call_.children();
    const view mid = between(), d_mid = call_[layers::d_between{}];
    at_second();
    if (inputs) layers::detail::require_settled<second_layer, dual<stream>>(q.backward_input(mid, dy, d_mid));
    if (weights) q.backward_weight(mid, dy);
    const auto [x, in] = input();
    at_first(x);
    if (inputs) layers::detail::require_settled<first_layer, dual<stream>>(p.backward_input(in, d_mid, dx));
    if (weights) p.backward_weight(in, d_mid);
  }

 private:
  void at_first(T* x) const noexcept { call_.run().saved = x + at_.stream - at_.between; }
  void at_second() const noexcept { call_.run().saved = second_ - at_.first; }
  view between() const {
    call_.run().saved = second_;
    return call_[layers::between{}];
  }

  const Call& call_;
  const block_halves& at_;
  T* second_;
};

/// The parts of a `language_stage` whose memory of saved activations has two scopes for each block: 2 l and 2 l + 1 of
/// block l.
template <class Stage>
struct stage_in_halves {
  using T = typename Stage::scalar;

  /// `next()`: where the output goes, which is returned. `x`: the first half, which is begun.
  template <class Run, class Next>
  static T* forward(Stage& s, Run& c, int slot, int layer, T* x, Next&& next) {
    T* y = nullptr;
    c.deferred = nullptr;
    at_work(s, c, layer, s.saved_layers_.begin(slot, 2 * layer + 1), [&](const auto& halves) {
      halves.forward(x, s.const_matrix(x, c.extent), [&] {
        s.saved_layers_.saved(slot, 2 * layer);
        y = next();
        return s.matrix(y, c.extent);
      });
    });
    s.saved_layers_.saved(slot, 2 * layer + 1);
    return y;
  }
  /// The gradient of the output lies before what is deferred.
  template <class Run>
  static void backward(Stage& s, Run& c, int slot, int layer, T* dx, bool inputs, bool weights) {
    T* const dy = c.deferred - s.at_.stream;
    at_work(s, c, layer, s.saved_layers_.need(slot, 2 * layer + 1), [&](const auto& halves) {
      halves.backward(inputs, weights, s.const_matrix(dy, c.extent), s.matrix(dx, c.extent), [&] {
        if (weights) s.saved_layers_.done(slot, 2 * layer + 1);
        T* const x = Stage::start_of(s.saved_layers_.need(slot, 2 * layer));
        return std::pair(x, s.const_matrix(x, c.extent));
      });
    });
    if (weights) s.saved_layers_.done(slot, 2 * layer);
  }

 private:
  template <class Run, class Row, class F>
  static void at_work(Stage& s, Run& c, int layer, const Row& second, F&& f) {
    s.at_block(c, layer, nullptr, c.deferred);
    const block_halves at = halves_of_block(s.at_, s.part_.first + layer);
    s.on_block(c, layer, [&]<class Call>(const Call& b) { f(halves_at_work<Call>(b, at, Stage::start_of(second))); });
  }
};

}  // namespace detail
}  // namespace heddle::inline v0::model
