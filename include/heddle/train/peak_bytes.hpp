// heddle/train/peak_bytes.hpp: the most memory of a rank of a static strategy, as a constant.
#pragma once

#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/lower/storage.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/train/activations/language_memory.hpp>
#include <heddle/train/language_state.hpp>
#include <heddle/train/trainer_checks.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::train {

namespace detail {

// A language shape of a strategy: what the mesh and the table say is not said twice.
template <class Strategy, class Shape>
struct shape_of_strategy {
  static constexpr schedule::table_view table =
      schedule::lowered_to_run_of<typename Strategy::schedule, schedule::pipeline_ranks<typename Strategy::mesh>>;
  static constexpr auto config = Shape::config;
  static constexpr std::int64_t samples = Shape::samples;
  static constexpr int stages = table.stages();
  static constexpr bool ends_on_one_rank = table.ranks() > 1 && table.rank_of(0) == table.rank_of(stages - 1);
  using mesh = typename Strategy::mesh;
};
template <bool Ok, class Strategy>
inline constexpr bool strategy_is_static = Ok;
template <class Model, class Strategy, class Shape>
consteval std::int64_t peak_bytes_of() {
  using when = typename Strategy::schedule;
  using mesh_type = typename Strategy::mesh;
  constexpr bool is_static = when::is_static && mesh_type::is_static && std::is_same_v<typename Strategy::pipeline, pp>;
  static_assert(
      strategy_is_static<is_static, Strategy>,
      "heddle: peak_bytes<Model, Strategy, Shape> is a constant: each axis of the mesh, its pipeline along pp, and "
      "the schedule's microbatches are static; at run time take train::explain");
  if constexpr (is_static && schedule::require<when, mesh_type>()) {
    using shape = shape_of_strategy<Strategy, Shape>;
    constexpr bool one_chain = shape::table.chains() == 1 && !shape::table.has_paths();
    static_assert(strategy_is_static<one_chain, Strategy>,
                  "heddle: peak_bytes counts tables of one chain: for schedules with two, or with paths, take "
                  "train::explain");
    using memory_type = language_with_state<Model, shape, typename Strategy::zero, typename Strategy::activations,
                                            typename Strategy::precision>;
    constexpr memory_type memory{};
    const schedule::storage_view storage = schedule::storage_of<when, schedule::pipeline_ranks<mesh_type>>;
    std::int64_t most = 0;
    for (int r = 0; r < shape::table.ranks(); ++r) {
      std::int64_t bytes = storage.buffers(r) * memory.boundary_bytes(), gathered = 0, largest = 0;
      int stages = 0;
      for (int s = 0; s < shape::stages; ++s) {
        if (shape::table.rank_of(s) != r) continue;
        bytes += memory.resident_bytes(s) + storage.slots(s) * memory.activation_bytes(s) +
                 most_deferred(shape::table.list(r), s) * memory.deferred_bytes(s);
        gathered += memory_type::gathered_bytes(s);
        largest = (std::max)(largest, memory_type::gathered_bytes(s));
        ++stages;
      }
      bytes += Strategy::zero::resident < stages ? Strategy::zero::resident * largest : gathered;
      most = (std::max)(most, bytes);
    }
    return most;
  } else {
    return 0;
  }
}

}  // namespace detail

/// The most bytes that a rank of this strategy holds in a step, from types alone: weights, gradients, optimizer state,
/// activations and tensors between stages of the first rank of each stage, which has most. `Shape` has `config` and
/// `samples`, of the largest microbatch of one rank:
/// `static_assert(peak_bytes<llama<float>, strategy<mesh, one_f_one_b<microbatches<16>>, zero<1>>, shape> < 80'000'000'000);`
/// As `language_with_state` counts: with `zero<2>` and `zero<3>` and several stages on a rank it is a bound.
/// Does not compile for a mesh or a schedule that is known at run time only, or that is wrong.
template <class Model, class Strategy, class Shape>
inline constexpr std::int64_t peak_bytes = detail::peak_bytes_of<Model, Strategy, Shape>();

}  // namespace heddle::inline v0::train
