// heddle/rl/scorer.hpp: log-probabilities of answers by weights that are not trained.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/mesh/axis.hpp>
#include <heddle/model/language_stage.hpp>
#include <heddle/model/pipeline/boundary_memory.hpp>
#include <heddle/model/pipeline/boundary_messages.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/rl/policy.hpp>
#include <heddle/rl/sample.hpp>
#include <heddle/rl/scored_batch.hpp>
#include <heddle/tensor/space_collectives.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::rl {

/// A model on the ranks of a world, split over the axes that its sharding names and over `Pipeline`, for forward passes
/// alone: no gradients, nothing saved. `Model` is an `rl::policy`, whose temperature the log-probabilities have, so
/// that they can be compared with those of the policy in training.
/// Errors: `config_error` for a mesh whose axes split samples: give each replica a world of its own. `World` and
/// `Backend` must outlive it.
template <class Model, class World, class Backend, class Pipeline = pp>
class scorer {
 public:
  using stage_type = model::language_stage<Model, World, Backend, activations::keep, Pipeline>;
  using config_type = typename Model::config;
  using scalar = typename Model::scalar;

  /// `max_samples`: of a forward pass.
  scorer(const config_type& config, World& world, Backend& backend, std::int64_t max_samples)
      : world_(&world),
        max_samples_(max_samples),
        stage_(checked(config, world, max_samples), world, backend, layers_of(config, world), 0, max_samples, 0) {
    if (stages() > 1) between_.allocate(&stage_.queue(), 2, stage_.boundary_elements(max_samples));
  }

  /// The part of the model on this rank, whose weights are to be filled.
  stage_type& stage() noexcept { return stage_; }

  /// On all ranks, with the same samples: fills `to` of each, `&sample::reference` or `&sample::proximal`, with the
  /// log-probabilities of its tokens.
  /// Errors: `config_error` for samples that do not fit the model's context (`rl::experience`), and tokens that are not
  /// in its vocabulary.
  void score(std::span<sample> samples, std::vector<double> sample::*to = &sample::reference) {
    for (std::size_t begin = 0; begin < samples.size(); begin += static_cast<std::size_t>(max_samples_)) {
      const std::span<sample> some =
          samples.subspan(begin, (std::min)(samples.size() - begin, static_cast<std::size_t>(max_samples_)));
      detail::scored_batch<scalar> scored(some, stage_.config().context);
      forward(scored.get(), scored.of_rows());
      world_->control().broadcast(scored.of_rows(), last_rank());
      for (std::size_t i = 0; i < some.size(); ++i) {
        const auto of = scored.of_answer(i);
        (some[i].*to).assign(of.begin(), of.end());
      }
    }
  }

 private:
  using space = typename stage_type::space;
  using row = row_view<scalar, space>;

  template <class... Tags>
  static int ranks_that_split_samples(const World& world, type_list<Tags...>) {
    return (1 * ... * world.mesh().template extent_or_one<Tags>());
  }
  static const config_type& checked(const config_type& config, const World& world, std::int64_t max_samples) {
    if (max_samples < 1)
      throw config_error("heddle: rl::scorer: max_samples should be at least 1, got " + std::to_string(max_samples));
    const int replicas = ranks_that_split_samples(world, typename stage_type::layouts::row_axes{});
    if (replicas != 1)
      throw config_error("heddle: rl::scorer: samples are split over " + std::to_string(replicas) +
                         " ranks; give each replica a world of its own, world.sub<...>()");
    return config;
  }
  static model::stage_layers layers_of(const config_type& config, World& world) {
    auto&& pipeline = world.template along_if<Pipeline>();
    model::stage_layers part = Model::layers_of(config, pipeline.rank(), pipeline.size());
    part.lent_gradients = true;
    return part;
  }
  int stages() const { return world_->mesh().template extent_or_one<Pipeline>(); }
  // The first rank of the last stage.
  int last_rank() const {
    if constexpr (World::mesh_type::template has<Pipeline>) {
      int r = 0;
      while (world_->mesh().template coordinate<Pipeline>(r) != stages() - 1) ++r;
      return r;
    } else {
      return 0;
    }
  }

  void forward(const batch<scalar>& b, std::span<double> to) {
    auto&& pipeline = world_->template along_if<Pipeline>();
    using group = std::remove_cvref_t<decltype(pipeline)>;
    const auto elements = [&](bool input) {
      return static_cast<std::int64_t>(model::of_stage::boundary_elements(stage_, b, input));
    };
    const row in = stage_.is_first() ? row{} : between_.row(0, elements(true));
    const row out = stage_.is_last() ? row{} : between_.row(1, elements(false));
    const int before = pipeline.rank() - 1, next = pipeline.rank() + 1;
    constexpr bool queued = model::detail::messages_are_queued<group, space>();
    if (!stage_.is_first()) {
      if constexpr (queued) {
        recv(stage_.queue(), pipeline, in, before, tag);
      } else {
        pipeline.recv(between_.to_receive(0, elements(true)), before, tag);
        between_.received(0, elements(true));
      }
    }
    stage_.target_log_probabilities(b, row_view<const scalar, space>(in), out, stage_.is_last() ? to : std::span<double>());
    if (!stage_.is_last()) {
      if constexpr (queued)
        send(stage_.queue(), pipeline, out, next, tag);
      else
        pipeline.send(between_.to_send(1, elements(false)), next, tag);
    }
    if (stages() > 1) between_.wait();
  }

  static constexpr int tag = 7301;
  World* world_;
  std::int64_t max_samples_;
  stage_type stage_;
  model::boundary_memory<scalar, space> between_{};
};

}  // namespace heddle::inline v0::rl
