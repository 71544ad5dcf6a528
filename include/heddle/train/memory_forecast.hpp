// heddle/train/memory_forecast.hpp: the memory that a strategy takes on a rank, computed before any of it is allocated.
#pragma once

#include <heddle/compute/rounded_weights.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/model/stage_sizes.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/tensor/expected_memory.hpp>
#include <heddle/train/activations/bytes.hpp>
#include <heddle/train/activations/stage_for.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/held_parts.hpp>
#include <heddle/train/layer_assignment.hpp>
#include <heddle/train/optimizer_rule.hpp>
#include <heddle/train/registered_parameters.hpp>
#include <heddle/train/sharded_stages.hpp>
#include <heddle/train/stage_parts.hpp>
#include <heddle/train/trainer_checks.hpp>
#include <heddle/train/weight_forecast.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// What a rank will hold while it trains: what `bytes_held` says of the trainer once it is made. Units: bytes.
struct memory_forecast {
  parameter_bytes parameters{};
  activation_bytes activations{};
  std::int64_t between_stages = 0;  ///< tensors between stages, and the head's share of a tied gradient
  std::int64_t total() const noexcept { return parameters.total() + activations.total() + between_stages; }
};

/// "the strategy predicted 4096 bytes on this rank: ..."
inline std::string to_string(const memory_forecast& f) {
  const auto of = [](std::int64_t bytes, const char* what) {
    return bytes == 0 ? std::string() : ", " + std::to_string(bytes) + what;
  };
  std::string parts = of(f.parameters.weights, " of weights") + of(f.parameters.gradients, " of gradients") +
                      of(f.parameters.moments, " of optimizer state") +
                      of(f.parameters.lent, " of whole weights and gradients that come and go") +
                      of(f.parameters.rounded, " of rounded weights") + of(f.activations.total(), " of activations") +
                      of(f.between_stages, " between stages");
  if (!parts.empty()) parts.replace(0, 1, ":");
  return "the strategy predicted " + std::to_string(f.total()) + " bytes on this rank" + parts;
}

namespace detail {

// State and share of the optimizers of a stage's buckets.
template <class Optimizer, class Groups, class Elements, int... K>
void forecast_optimizers(memory_forecast& f, std::int64_t& owned, Groups& groups, const Elements& elements, bool copies,
                         std::integer_sequence<int, K...>) {
  const auto add = [&](auto& group, std::int64_t n) {
    owned += Optimizer::owned_of(n, group.rank(), group.size());
    f.parameters.moments += Optimizer::state_bytes_of(n, group.rank(), group.size(), copies);
  };
  (..., add(group_of_bucket<K>(groups), elements[K]));
}
template <class Optimizer>
struct one_bucket_of {
  using type = Optimizer;
};
template <class Optimizer, int Buckets>
struct one_bucket_of<bucketed_optimizer<Optimizer, Buckets>> {
  using type = Optimizer;
};

}  // namespace detail

/// What this rank of the trainer is predicted to hold, from its options alone; nothing where the stage type does not say its sizes ahead
/// (`model::sizes_of_stage`). A trainer says it in errors of memory, while it is made, too.
template <class Trainer>
std::optional<memory_forecast> predicted_memory(Trainer& trainer) {
  using Stage = typename Trainer::stage_type;
  using sizes_type = model::sizes_of_stage<Stage>;
  if constexpr (!sizes_type::known || detail::acts_on_whole_tensors<typename Trainer::strategy::optimizer>) {
    return std::nullopt;  // of the latter shares follow from the tensors
  } else {
    using scalar = typename Stage::scalar;
    using optimizer_type = typename detail::one_bucket_of<typename Trainer::optimizer_type>::type;
    using strategy = typename Trainer::strategy;
    constexpr int zero = Trainer::zero_stage;
    const auto bytes = [](std::int64_t n) { return n * static_cast<std::int64_t>(sizeof(scalar)); };
    const auto bytes_of_sums = [](std::int64_t n) {
      return n * static_cast<std::int64_t>(sizeof(sum_of_type<scalar>));
    };
    const auto& options = trainer.options();
    const stage_parts& parts = trainer.parts();
    const schedule::plan_view plan = trainer.plan();
    const int rank = trainer.pipeline_group().rank();
    auto& groups = trainer.gradient_group();
    const held_parts here(plan.table, parts, rank);
    const auto list = plan.table.list(rank);
    memory_forecast f;
    std::vector<detail::whole_stage> whole;
    std::int64_t largest = 0, tied = 0, stay = 0;
    for (const int s : here.stages()) {
      auto layers = detail::assigned_layers<typename strategy::layers, typename Trainer::model_type>(
          options.model, parts.part_of(s), parts.parts(), parts.parts_with_layers(), options.layers_per_stage);
      detail::complete_layers<zero>(layers, parts.replica_of(s));
      const sizes_type of(options.model, trainer.ranks(), layers, trainer.max_samples(), here.lender_of(s) >= 0,
                          detail::settings_of<Stage>(options, list, s));
      const model::stage_sizes& n = of.sizes;
      std::int64_t owned = 0;
      detail::forecast_optimizers<optimizer_type>(f, owned, groups, of.bucket_elements, strategy::norm_check::copies,
                                                  std::make_integer_sequence<int, sizes_type::buckets>{});
      f.parameters.weights += bytes((zero >= 3 ? owned : n.flat_elements) + n.frozen_elements);
      f.parameters.gradients +=
          bytes_of_sums((zero >= 2 ? owned : n.flat_elements) + (n.borrows_embedding ? n.tied_elements : 0));
      f.activations.saved += plan.storage.slots(s) * n.saved_bytes_per_slot;
      f.activations.waiting += detail::most_deferred(list, s) * n.deferred_bytes;
      f.activations.scratch += n.workspace_bytes;
      largest = (std::max)(largest, n.boundary_elements);
      if (!n.borrows_embedding) tied = (std::max)(tied, n.tied_elements);
      stay += n.frozen_elements + (zero >= 3 ? 0 : n.flat_elements);
      const bool alone = !here.has_replicas(s) && (parts.parts() == 1 || n.tied_elements == 0);
      whole.push_back({s, parts.part_of(s), n.flat_elements, n.borrows_embedding, alone});
    }
    if (zero >= 2 && !(sizes_type::buckets == 1 && groups.size() == 1)) {
      using registered =
          registered_parameters<typename Trainer::stages_type, std::remove_reference_t<decltype(groups)>>;
      const bool by_size = strategy::steps::captured || registered::is_asked(groups);
      f.parameters.lent = detail::most_bytes_lent<scalar>(plan.table, rank, whole, zero >= 3, by_size).total();
    }
    const compute::kept_weight_memory kept = compute::kept_weights_of<scalar>(trainer.backend());
    if (zero >= 3) stay += detail::most_whole_weights(plan.table, rank, whole);
    if (kept.of != nullptr) f.parameters.rounded = kept.bytes_per_weight * stay;
    f.between_stages = bytes(plan.storage.buffers(rank) * largest);
    if (here.ties_two_ranks() && here.has_embedding()) f.between_stages += bytes_of_sums(tied);
    return f;
  }
}

namespace detail {
template <class Trainer>
std::string text_of_forecast(Trainer& trainer) {
  const std::optional<memory_forecast> predicted = predicted_memory(trainer);
  return predicted ? to_string(*predicted) : std::string();
}
}  // namespace detail

}  // namespace heddle::inline v0::train
