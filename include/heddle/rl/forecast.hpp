// heddle/rl/forecast.hpp: the memory of a run of reinforcement learning on a rank, ahead of it.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/infer/memory_plan.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/parameter_route.hpp>
#include <heddle/model/paper/world.hpp>
#include <heddle/rl/objective_checks.hpp>
#include <heddle/rl/policy.hpp>
#include <heddle/rl/run_arguments.hpp>
#include <heddle/rl/settings.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/train/memory_forecast.hpp>
#include <heddle/train/paper_rank.hpp>
#include <heddle/train/trainer_setup.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::rl {

/// What a rank will hold in a run. Units: bytes of the backend's memory; 0 where the rank does not train, or generate.
struct memory_forecast {
  train::memory_forecast training{};        ///< of the trainer
  train::memory_forecast critic{};          ///< of the critic's
  std::int64_t reference = 0;               ///< weights that divergences are measured to
  std::int64_t exchanging = 0;              ///< of that, while it scores
  infer::memory_plan generation{};          ///< of the generator
  std::int64_t spare = 0;                   ///< of the generator, for weights that wait (`flow::delayed`)
  std::int64_t outgoing = 0, incoming = 0;  ///< buckets of weights on their way
  /// Weights that are there in turn (`settings.one_copy`): a trainer's while it trains, a generator's while it generates.
  std::int64_t trained_in_turn = 0, generated_in_turn = 0;

  /// In a step of the trainer, in a step of the generator, and while weights go from one to the other.
  std::int64_t while_training() const noexcept { return held() - generated_in_turn + exchanging; }
  std::int64_t while_generating() const noexcept {
    return held() - trained_in_turn + (generation.total() - generation.held());
  }
  std::int64_t in_transition() const noexcept { return held() + outgoing + incoming; }
  /// The most at a time.
  std::int64_t total() const noexcept { return (std::max)({while_training(), while_generating(), in_transition()}); }

 private:
  std::int64_t held() const noexcept {
    return training.total() + training.beside + critic.total() + critic.beside + reference + generation.held() + spare;
  }
};

/// "4096 bytes at most: 1024 of the trainer, ..."
inline std::string to_string(const memory_forecast& f) {
  const auto of = [](std::int64_t bytes, const char* what) {
    return bytes == 0 ? std::string() : ", " + std::to_string(bytes) + what;
  };
  std::string parts = of(f.training.total() + f.training.beside, " of the trainer") +
                      of(f.critic.total() + f.critic.beside, " of the critic") + of(f.reference, " of the reference") +
                      of(f.generation.held(), " of the generator") + of(f.spare, " of weights that wait") +
                      of(f.outgoing, " of a bucket to others") + of(f.incoming, " of a bucket from others") +
                      of(f.trained_in_turn, " of the trainer's weights away while it generates") +
                      of(f.generated_in_turn, " of the generator's away while it trains");
  if (!parts.empty()) parts.replace(0, 1, ":");
  return std::to_string(f.total()) + " bytes at most" + parts;
}

namespace detail {

// The rank of a generator in its own mesh, without the axes along which there are several.
template <class Mesh, class... Tags>
std::pair<decltype(std::declval<const Mesh&>().template sub<Tags...>()), int> place_in_generator(const Mesh& mesh,
                                                                                                 int rank,
                                                                                                 type_list<Tags...>) {
  return {mesh.template sub<Tags...>(), mesh.template group_index<Tags...>(rank)};
}

template <class Model, class Strategy, class Options>
train::memory_forecast training_forecast(const Options& o, const typename Strategy::mesh& mesh, int rank) {
  const std::optional<train::memory_forecast> found = train::paper_step<Model, Strategy>(o, mesh).memory(rank);
  if (!found)
    throw config_error("heddle: rl::forecast: the trainer's stages do not say their sizes before they are made");
  return *found;
}

template <class Base, class Backend, class Mesh, class Options>
infer::memory_plan generation_forecast(const Mesh& mesh, int rank, const Options& o, const generator_room& room) {
  using copies = typename Mesh::template tags_among<dp, replica>;
  const auto [own, index] = place_in_generator(mesh, rank, typename axes_beside<Mesh, copies>::type{});
  using world_type = model::paper_world<std::remove_const_t<decltype(own)>>;
  world_type world(own, index);
  auto backend = train::detail::backend_for<Backend>(o, 1);
  const auto& config = static_cast<const typename Base::config&>(o.model);
  return infer::model_runner<Base, world_type, Backend>::plan(
      config, world, backend, {.blocks = room.blocks, .block_rows = room.block_rows, .states = room.sequences},
      room.rows);
}

}  // namespace detail

/// What rank `rank` of a run with these arguments will hold: nothing is sent, and no memory of the model is allocated. Buckets of
/// a route count as full, or as all the weights. What a backend keeps for itself, such as workspaces of
/// product libraries, and memory of the host beside a device are not in it. `critic`: of the run, a `with_critic`.
/// Errors: `config_error` for settings, meshes and a rank that do not go together; for a model or strategy whose memory is not
/// known before it is made.
template <class Strategy, class Generate, class Base, class Objective, class Critic = no_critic>
memory_forecast forecast(const flow& how, const meshes<typename Strategy::mesh, Generate>& where,
                         policy<Base, Objective>,
                         const train::options<typename policy<Base, Objective>::config>& options, const settings& s,
                         int rank, [[maybe_unused]] const Critic& critic = {}) {
  using backend_type = typename Strategy::backend;
  using scalar = typename Base::scalar;
  s.validate();
  how.validate();
  const int ranks = where.train.size() + (how.apart ? where.generate.size() : 0);
  if (rank < 0 || rank >= ranks)
    throw config_error("heddle: rl::forecast: this run has the ranks 0 to " + std::to_string(ranks - 1) + ", got " +
                       std::to_string(rank));
  detail::require_meshes(where.train.size(), where.generate.size(), ranks, how);
  detail::require_copies(s, how);
  detail::require_critic<Critic>(s);
  memory_forecast f;
  auto o = options;
  o.batch = s.prompts * s.answers;
  o.steps = s.steps;
  const bool trains = rank < where.train.size(), generates = !how.apart || !trains;
  if (trains) {
    f.training = detail::training_forecast<policy<Base, Objective>, Strategy>(o, where.train, rank);
    if constexpr (!std::is_same_v<Critic, no_critic>)
      f.critic = detail::training_forecast<typename Critic::model, Strategy>(critic.options_in(o), where.train, rank);
  }
  if (generates)
    f.generation = detail::generation_forecast<Base, backend_type>(
        where.generate, how.apart ? rank - where.train.size() : rank, o, room_of(s, how, o.model.context));
  const std::int64_t trained = f.training.parameters.weights - f.training.frozen,
                     generated = f.generation.parameters - f.generation.frozen;
  if (detail::knows_reference(o.model.objective)) {
    f.reference = trained;
    f.exchanging = (std::min)(trained, model::usual_bucket_bytes<space_of<backend_type>>);
  }
  if (how.delayed) f.spare = generated;
  if (ranks > 1) {
    const std::int64_t bucket =
        s.bucket_bytes / static_cast<std::int64_t>(sizeof(scalar)) * static_cast<std::int64_t>(sizeof(scalar));
    f.outgoing = (std::min)(bucket, s.one_copy ? (std::max)(trained, generated) : trained);
    f.incoming = (std::min)(bucket, s.one_copy ? (std::max)(trained, generated) : generated);
  }
  if (s.one_copy) {
    if constexpr (Strategy::zero::stage < 3) f.trained_in_turn = trained;
    f.generated_in_turn = generated;
  }
  return f;
}

}  // namespace heddle::inline v0::rl
