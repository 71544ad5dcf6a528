// heddle/train/memory_forecast.hpp: a strategy's memory on a rank, before any is taken.
#pragma once

#include <heddle/compute/rounded_weights.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/model/stage_sizes.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/train/activations/bytes.hpp>
#include <heddle/train/activations/stage_for.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/held_parts.hpp>
#include <heddle/train/layer_assignment.hpp>
#include <heddle/train/optimizer_of_strategy.hpp>
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
  std::int64_t frozen = 0;          ///< of the weights, those that are not trained
  /// Not in `total()`: on a device, what a microbatch is told, and tensors between stages of passes outside of steps.
  std::int64_t beside = 0;
  std::int64_t total() const noexcept { return parameters.total() + activations.total() + between_stages; }
  /// The most that an allocator counts in a step on a device.
  std::int64_t peak() const noexcept { return total() + beside; }
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

}  // namespace detail

/// What the forecast of one rank follows from. A trainer has it of itself; a plan fills it from a mesh and a rank,
/// with no trainer and no launch.
template <class Options, class Ranks, class Groups>
struct forecast_facts {
  const Options& options;               ///< a trainer's, checked
  schedule::plan_view plan;             ///< the lowered table and the storage of its actions
  const stage_parts& parts;             ///< of the model, on the stages of that table
  Ranks& ranks;                         ///< `mesh()` and `rank()`: a world or a paper world
  Groups& shares;                       ///< `rank()` and `size()` among those that sum gradients, or `bucket_groups`
  int pipeline_rank = 0;                ///< of the table
  std::int64_t max_samples = 0;         ///< of one microbatch
  bool by_size = false;                 ///< what comes and goes has a place for each size (captured or registered)
  std::int64_t rounded_per_weight = 0;  ///< bytes that the backend keeps of each weight that stays
};

/// What a rank is predicted to hold, from its facts alone; nothing where the stage type does not say its sizes ahead
/// (`model::sizes_of_stage`), or where the optimizer's shares follow from whole tensors.
template <class Model, class Strategy, class Stage, class Options, class Ranks, class Groups>
std::optional<memory_forecast> predicted_memory(const forecast_facts<Options, Ranks, Groups>& facts) {
  using sizes_type = model::sizes_of_stage<Stage>;
  if constexpr (!sizes_type::known || detail::acts_on_whole_tensors<typename Strategy::optimizer>) {
    return std::nullopt;
  } else {
    using scalar = typename Stage::scalar;
    using optimizer_type = detail::optimizer_under<scalar, Strategy, space_of<Stage>>;
    constexpr int zero = Strategy::zero::stage;
    const auto bytes = [](std::int64_t n) { return n * static_cast<std::int64_t>(sizeof(scalar)); };
    const auto bytes_of_sums = [](std::int64_t n) {
      return n * static_cast<std::int64_t>(sizeof(sum_of_type<scalar>));
    };
    const Options& options = facts.options;
    const stage_parts& parts = facts.parts;
    const schedule::plan_view& plan = facts.plan;
    const int rank = facts.pipeline_rank;
    const held_parts here(plan.table, parts, rank);
    const auto list = plan.table.list(rank);
    memory_forecast f;
    std::vector<detail::whole_stage> whole;
    std::int64_t largest = 0, tied = 0, stay = 0, first_boundary = 0;
    for (const int s : here.stages()) {
      auto layers = detail::assigned_layers<typename Strategy::layers, Model>(
          options.model, parts.part_of(s), parts.parts(), parts.parts_with_layers(), options.layers_per_stage);
      using determined = detail::determined<typename Strategy::determinism>;
      detail::complete_layers<zero, determined::in_trees>(layers, parts.replica_of(s));
      const sizes_type of(options.model, facts.ranks, layers, facts.max_samples, here.lender_of(s) >= 0,
                          detail::settings_of<Stage>(options, list, s));
      const model::stage_sizes& n = of.sizes;
      std::int64_t owned = 0;
      detail::forecast_optimizers<optimizer_type>(f, owned, facts.shares, of.bucket_elements,
                                                  Strategy::norm_check::copies,
                                                  std::make_integer_sequence<int, sizes_type::buckets>{});
      f.parameters.weights += bytes((zero >= 3 ? owned : n.flat_elements) + n.frozen_elements);
      f.frozen += bytes(n.frozen_elements);
      f.parameters.gradients +=
          bytes_of_sums((zero >= 2 ? owned : n.flat_elements) + (n.borrows_embedding ? n.tied_elements : 0));
      if constexpr (determined::in_trees) {
        const bool apart = layers.has_embedding() && layers.has_head();
        f.parameters.gradients += bytes_of_sums(determined::elements_of(n, apart, plan.table.microbatches()));
      }
      f.activations.saved += plan.storage.slots(s) * n.saved_bytes_per_slot;
      f.activations.waiting += detail::most_deferred(list, s) * n.deferred_bytes;
      f.activations.scratch += n.workspace_bytes;
      largest = (std::max)(largest, n.boundary_elements);
      if (whole.empty()) first_boundary = n.boundary_elements;
      if constexpr (!std::is_same_v<space_of<Stage>, host_memory> && std::is_base_of_v<model::batch<scalar>, typename Model::batch>) {
        const model::sample_extents one = model::extents_of_model<Model>(options.model);
        f.beside += (plan.storage.slots(s) + 1) * facts.max_samples * static_cast<std::int64_t>(sizeof(std::int32_t)) *
                    ((layers.has_embedding() ? one.inputs : 0) + (layers.has_head() ? one.targets : 0));
      }
      if (!n.borrows_embedding) tied = (std::max)(tied, n.tied_elements);
      stay += n.frozen_elements + (zero >= 3 ? 0 : n.flat_elements);
      const bool alone = !Strategy::reductions::beside && !here.has_replicas(s) &&
                         (parts.parts() == 1 || n.tied_elements == 0);
      whole.push_back({s, parts.part_of(s), n.flat_elements, n.borrows_embedding, alone});
    }
    if (zero >= 2 && !(sizes_type::buckets == 1 && facts.shares.size() == 1))
      f.parameters.lent = detail::most_bytes_lent<scalar>(plan.table, rank, whole, zero >= 3, facts.by_size).total();
    if (zero >= 3) stay += detail::most_whole_weights(plan.table, rank, whole);
    f.parameters.rounded = facts.rounded_per_weight * stay;
    f.between_stages = bytes(plan.storage.buffers(rank) * largest);
    if (parts.parts() > 1) f.beside += bytes(2 * first_boundary);
    if (here.ties_two_ranks() && here.has_embedding()) f.between_stages += bytes_of_sums(tied);
    return f;
  }
}

/// What this rank of the trainer is predicted to hold: what `bytes_held` says after a step. A trainer says it in errors
/// of memory, while it is made, too.
template <class Trainer>
std::optional<memory_forecast> predicted_memory(Trainer& trainer) {
  using stage_type = typename Trainer::stage_type;
  using strategy = typename Trainer::strategy;
  auto& shares = trainer.gradient_group();
  using groups = std::remove_reference_t<decltype(shares)>;
  using registered = registered_parameters<typename Trainer::stages_type, groups>;
  const auto kept = compute::kept_weights_of<typename stage_type::scalar>(trainer.backend());
  const forecast_facts<typename Trainer::options_type, std::remove_reference_t<decltype(trainer.ranks())>, groups>
      facts{trainer.options(),
            trainer.plan(),
            trainer.parts(),
            trainer.ranks(),
            shares,
            trainer.pipeline_group().rank(),
            trainer.max_samples(),
            strategy::steps::captured || registered::is_asked(shares),
            kept.of == nullptr ? 0 : kept.bytes_per_weight};
  return predicted_memory<typename Trainer::model_type, strategy, stage_type>(facts);
}

namespace detail {
// The forecast of a trainer in words, without the trainer's type: programs of several meshes compile what holds it once.
struct text_of_forecast {
  template <class Trainer>
  explicit text_of_forecast(Trainer* trainer)
      : of(trainer), text([](void* t) {
          const std::optional<memory_forecast> predicted = predicted_memory(*static_cast<Trainer*>(t));
          return predicted ? to_string(*predicted) : std::string();
        }) {}
  std::string operator()() const { return text(of); }
  void* of;
  std::string (*text)(void*);
};
}  // namespace detail

}  // namespace heddle::inline v0::train
