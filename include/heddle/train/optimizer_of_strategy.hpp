// heddle/train/optimizer_of_strategy.hpp: the optimizer of a strategy, and its start.
#pragma once

#include <heddle/tensor/memory_space.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/sharded_optimizer.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::train {

namespace detail {

/// The optimizer of a stage with elements T in memory space `Space` under a strategy.
template <class T, class Strategy, class Space>
struct checked_optimizer_of {
  using given = typename Strategy::precision;
  static_assert(products_checked<T, given>());
  using precision = std::conditional_t<given::template is_plain<T>, heddle::precision<>, given>;
  using type = sharded_optimizer<T, typename Strategy::optimizer, precision, typename Strategy::zero, Space>;
};
template <class T, class Strategy, class Space = space_of<typename Strategy::backend>>
using optimizer_under = typename checked_optimizer_of<T, Strategy, Space>::type;

// Behind the first weights of a stage: what its optimizer makes of them.
template <class Held, class Backend>
void start_optimizer(Held& held, Backend& backend, std::uint64_t seed) {
  for_each_bucket(held.stage, held.optimizer, [&](auto& stage, auto& optimizer, auto) {
    if constexpr (requires { optimizer.start(backend, optimizer.weights_of(stage), seed); })
      optimizer.start(backend, optimizer.weights_of(stage), seed);
  });
}

}  // namespace detail

/// After somebody has written weights of a trainer's stages (`trainer.stage(k).weights()`, with `zero<3>`
/// `trainer.optimizer_state(k).weights_of(trainer.stage(k))`): masters become what was written, and
/// weights are rounded as the strategy's `precision` says. Nothing happens without one. Not needed behind `resume`.
template <class Trainer>
void adopt_weights(Trainer& trainer) {
  for (int k = 0; k < trainer.stages(); ++k)
    detail::for_each_bucket(trainer.stage(k), trainer.optimizer_state(k), [](auto& stage, auto& optimizer, auto) {
      if constexpr (requires { optimizer.adopt(optimizer.weights_of(stage)); })
        optimizer.adopt(optimizer.weights_of(stage));
    });
}

}  // namespace heddle::inline v0::train
