// heddle/model/balance_experts.hpp: updates selection biases of routers by load.
#pragma once

#include <heddle/core/monoid.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/compute/facets.hpp>
#include <heddle/model/layers/expert_router.hpp>
#include <heddle/model/sharding.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

namespace detail {
template <bool Ok, class Trained>
inline constexpr bool freezes_selection_biases = Ok;
template <class World, class... Tags>
void sum_along([[maybe_unused]] World& world, [[maybe_unused]] std::span<double> values, type_list<Tags...>) {
  [[maybe_unused]] const auto along = [&](auto&& group) {
    if (group.size() > 1) group.all_reduce(values, plus{});
  };
  (along(world.template along_if<Tags>()), ...);
}
}  // namespace detail

/// Adds rate * sign(mean load - load) to the selection bias of each expert of the stage's routers, with its load the choices of all rows since the
/// last call, and forgets these. Call it after each optimizer step, on all ranks of `world` alike: the loads are summed over the
/// axes that split samples or sequences, so all ranks that have a bias move it alike. Experts get an even load without a term of the loss.
/// Source: Wang et al. 2024, arXiv:2408.15664, algorithm 1; DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2 (rate 0.001).
template <class Stage, class World, class Backend>
void balance_experts(Stage& stage, World& world, Backend& kernels, double rate) {
  using trained = typename Stage::trained;
  static_assert(detail::freezes_selection_biases<std::is_same_v<trained, layers::all_but_selection_bias>, trained>,
                "heddle: balance_experts takes all frozen parameters for selection biases: describe the model with "
                "train_only<all_but_selection_bias>");
  using space = typename Stage::space;
  static_assert(host_accessible_space<space>, "heddle: balance_experts counts in memory that the host can use");
  using T = typename Stage::scalar;
  using axes = typename detail::axes_of_ranks<
      typename Stage::mesh_type,
      joined_lists<typename Stage::layouts::row_axes, typename Stage::layouts::sequence_splits>>::type;
  auto& queue = compute::queue_of(kernels);
  const row_view<T, space> biases = stage.frozen_weights();
  for (const auto& p : stage.frozen_parameters()) {
    const auto bias = part_of_row<space>(biases, p.offset, p.count);
    const std::span<double> load = stage.routing().load_of(first_element(bias), p.count);
    detail::sum_along(world, load, axes{});
    const std::vector<T> on_host(load.begin(), load.end());
    buffer<T, space> counts(queue, p.count, "loads of experts");
    queue.copy(on_host, counts);
    compute::run<compute::ops::balance_bias>(kernels, elements_of(std::as_const(counts).view()), static_cast<T>(rate),
                                             bias);
    queue.wait();
  }
  stage.routing().clear_loads();
}

}  // namespace heddle::inline v0::model
