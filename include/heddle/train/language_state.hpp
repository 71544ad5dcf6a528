// heddle/train/language_state.hpp: bytes of weights, gradients and moments as a formula.
#pragma once

#include <heddle/core/half_precision.hpp>
#include <heddle/core/policy.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/model/parameter_buckets.hpp>
#include <heddle/train/activations/language_memory.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/zero.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::train {

/// `language_memory` with what a stage holds from step to step, so that `schedule::fits` and `static_profile` count all of a
/// training run: what `bytes_held` counts, of the first rank, which has the most. `Shape` is a `language_shape` that may also say
/// - `dp`: ranks that share the moments under `zero<1>`, the gradients under `zero<2>`, the weights under `zero<3>`; 1
///   without. Where it has a `mesh`, those are the ranks along its axes;
/// - `ends_on_one_rank`: the rank of the head has the embedding, too, as in V shapes and in schedules with two chains;
///   a tied head then uses that weight and keeps only a gradient of its own. False without.
/// With `zero<2>` and `zero<3>` whole gradients are counted as if they stayed: a bound where a rank has several stages. With
/// `zero<3>` whole weights are `gathered_bytes`, for tables with UNSHARD (`schedule::passes::unshard`).
/// Under a `precision`: without the rooms of its optimizer (`sharded_optimizer::room_bytes`), and with the bf16 copies of weights that
/// `products_in<bf16>` keeps for the passes of a step. Units: bytes.
template <class Model, language_shape Shape, class Zero = zero<1>, policy Activations = activations::keep,
          class Precision = precision<>>
struct language_with_state : language_memory<Model, Shape, Activations> {
 private:
  template <class... Tags>
  static constexpr int extents_along(type_list<Tags...>) noexcept {
    return (1 * ... * language_memory<Model, Shape, Activations>::mesh_type::template axis_of<Tags>::fixed_size);
  }

 public:
  using activations_only = language_memory<Model, Shape, Activations>;
  using T = typename Model::scalar;

  static constexpr int dp = [] {
    if constexpr (requires { Shape::dp; })
      return Shape::dp;
    else if constexpr (detail::mesh_of_shape<Shape>::is_given)
      return extents_along(typename activations_only::layouts::row_axes{});
    else
      return 1;
  }();
  static constexpr bool ends_on_one_rank = [] {
    if constexpr (requires { Shape::ends_on_one_rank; })
      return Shape::ends_on_one_rank;
    else
      return false;
  }();

  /// The flat buffer of a stage's weights, whole; that of its gradients has as many elements, of `sum_of_type<T>`.
  static constexpr std::int64_t weight_bytes(int stage) noexcept {
    std::int64_t n = 0;
    for (std::size_t k = 0; k < buckets::count; ++k) n += elements(stage, k);
    return activations_only::in_bytes(n);
  }
  /// Weights that are frozen, whole on each rank under every `zero`: they have no gradients, moments and masters.
  static constexpr std::int64_t frozen_bytes(int stage) noexcept {
    return buckets::freezes ? activations_only::in_bytes(elements(stage, buckets::count)) : 0;
  }
  /// Two moments of each weight, of which `zero<1>` keeps a share.
  static constexpr std::int64_t moment_bytes(int stage) noexcept {
    return 2 * owned(stage) * static_cast<std::int64_t>(sizeof(typename Precision::template moment<T>));
  }
  /// Copies in bf16 of a stage's weights while these are whole and a step runs, and of its frozen weights.
  static constexpr std::int64_t rounded_bytes(int stage) noexcept { return rounded(weight_bytes(stage)); }
  static constexpr std::int64_t rounded_frozen_bytes(int stage) noexcept { return rounded(frozen_bytes(stage)); }
  /// With `zero<3>`: between UNSHARD and RESHARD of the stage; with the embedding's stage where its head uses that.
  static constexpr std::int64_t gathered_bytes(int stage) noexcept {
    if (Zero::stage < 3) return 0;
    const model::stage_layers part = activations_only::layers_of(stage);
    const bool borrows = tied && part.has_head() && !part.has_embedding() && ends_on_one_rank;
    const std::int64_t weights = weight_bytes(stage) + (borrows ? weight_bytes(0) : 0);
    return (shares ? weights : 0) + rounded(weights);
  }
  /// The master weights that a `precision` keeps, of which `zero<1>` keeps a share; 0 where weights are their own masters.
  static constexpr std::int64_t master_bytes(int stage) noexcept {
    if (!Precision::template keeps_masters<T>) return 0;
    return owned(stage) * static_cast<std::int64_t>(sizeof(typename Precision::template master<T>));
  }
  /// Weights, gradients, moments and masters, the gradient of a tied embedding that is not in the flat buffers, and copies in bf16 of weights
  /// that stay.
  static constexpr std::int64_t state_bytes(int stage) noexcept {
    const model::stage_layers part = activations_only::layers_of(stage);
    // A head that uses the embedding's weight has a gradient of its own; that of a head elsewhere comes to the embedding.
    const bool one_more =
        trains_table && part.has_embedding() != part.has_head() && part.has_head() == ends_on_one_rank;
    constexpr auto of_sums = static_cast<std::int64_t>(sizeof(sum_of_type<T>) / sizeof(T));  // gradients
    const std::int64_t share = activations_only::in_bytes(owned(stage));
    const std::int64_t weights = Zero::stage < 3 ? weight_bytes(stage) : share;
    const std::int64_t gradients =
        of_sums * (Zero::stage < 2 ? weight_bytes(stage) : share + (shares ? weight_bytes(stage) : 0));
    const std::int64_t copies = rounded_frozen_bytes(stage) + (Zero::stage < 3 ? rounded_bytes(stage) : 0);
    return weights + gradients + frozen_bytes(stage) + moment_bytes(stage) + master_bytes(stage) + copies +
           (one_more ? of_sums * activations_only::in_bytes(table()) : 0);
  }
  constexpr std::int64_t resident_bytes(int stage) const noexcept {
    return activations_only::resident_bytes(stage) + state_bytes(stage);
  }

 private:
  using activations_only::place;
  using buckets = model::trained_buckets<
      typename activations_only::layouts, model::layers::trained_of<decltype(activations_only::description)>,
      typename activations_only::places::in_layer, typename activations_only::places::block_layer,
      typename activations_only::places::out_layer>;
  // Whether some of a stage's state is shared: over dp, or that of a bucket which is summed over other axes, too.
  static constexpr bool shares = dp > 1 || buckets::count > 1;
  // Of the copies of so many bytes of weights.
  static constexpr std::int64_t rounded(std::int64_t weights) noexcept {
    if (!Precision::rounds_products || !std::is_same_v<T, float>) return 0;
    return weights / static_cast<std::int64_t>(sizeof(T)) * static_cast<std::int64_t>(sizeof(bf16));
  }
  // Elements of a bucket in the flat buffer of a stage's weights.
  static constexpr std::int64_t elements(int stage, std::size_t bucket) noexcept {
    const model::stage_layers part = activations_only::layers_of(stage);
    const auto& all = activations_only::description;
    std::int64_t n = 0;
    for (int l = part.first; l < part.first + part.count; ++l)
      n += all.with_block(l,
                          [&](const auto& block) { return place.template parameter_elements<buckets>(block, bucket); });
    if (part.has_embedding()) n += place.template parameter_elements<buckets>(all.in, bucket);
    if (part.has_head()) n += place.template parameter_elements<buckets>(all.out, bucket);
    if constexpr (tied) {
      using table_type = std::remove_cvref_t<decltype(all.in.parameters().template get<0>())>;
      const bool copies = part.has_head() && !part.has_embedding() && !ends_on_one_rank;
      if (copies && bucket == buckets::template of<table_type>) n += lines_of_table();
    }
    return n;
  }
  // Ranks that share a bucket: those along the axes over which its gradients are summed.
  template <class... Summed>
  static constexpr int ranks_along(type_list<Summed...>) noexcept {
    if constexpr (detail::mesh_of_shape<Shape>::is_given) return extents_along(type_list<Summed...>{});
    using rows = typename activations_only::layouts::row_axes;
    const bool all_samples = (model::detail::list_has<rows, Summed> || ... || false);
    return ((model::detail::list_has<rows, Summed>
                 ? 1
                 : activations_only::mesh_type::template axis_of<Summed>::fixed_size) *
            ... * (all_samples ? dp : 1));
  }
  template <class... Sets>
  static constexpr std::array<int, sizeof...(Sets)> ranks_of_buckets(type_list<Sets...>) noexcept {
    return {ranks_along(Sets{})...};
  }
  // Elements whose state the first rank along dp and tp keeps.
  static constexpr std::int64_t owned(int stage) noexcept {
    std::int64_t n = 0;
    for (std::size_t k = 0; k < buckets::count; ++k) {
      const int ranks = Zero::stage == 0 ? 1 : ranks_of_buckets(typename buckets::axes{})[k];
      n += balanced_split{elements(stage, k), ranks}.largest();
    }
    return n;
  }
  static constexpr bool tied = [] {
    constexpr const auto& out = activations_only::description.out;
    if constexpr (requires { out.is_tied; })
      return out.is_tied;
    else
      return std::remove_cvref_t<decltype(out)>::tied;
  }();
  static constexpr bool trains_table = [] {
    if constexpr (tied) {
      using table_type = std::remove_cvref_t<decltype(activations_only::description.in.parameters().template get<0>())>;
      return buckets::template of<table_type> < buckets::count;
    } else {
      return false;
    }
  }();
  // The token embedding on this rank.
  static constexpr std::int64_t table() noexcept {
    return place.local_parameter(activations_only::description.in.parameters().template get<0>());
  }
  static constexpr std::int64_t lines_of_table() noexcept { return activations_only::places::in_lines(table()); }
};

/// The `language_with_state` of a GPT-2 with elements `T`.
template <class T, language_shape Shape, class Zero = zero<1>, policy Activations = activations::keep,
          class Precision = precision<>>
using gpt2_with_state = language_with_state<model::gpt2<T>, Shape, Zero, Activations, Precision>;

}  // namespace heddle::inline v0::train
