// heddle/rl/run_arguments.hpp: meshes, and what a run may be given: saves, weights, a critic.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/rl/flow.hpp>
#include <heddle/rl/settings.hpp>

#include <string>
#include <type_traits>

namespace heddle::inline v0::rl {

/// The axis of generators that share the ranks of one model-parallel group of a trainer, beside `dp`: a place in a mesh,
/// such as `mesh<axis<dp>, axis<tp>, axis<replica>>`, whose order decides which weights a rank has already.
struct replica {};

/// Meshes of a run: of the ranks that train, and of those that generate.
template <class Train, class Generate>
struct meshes {
  Train train{};
  Generate generate{};
};

/// A run that is not saved: `run` takes `saves` (heddle/rl/save.hpp) in its place.
struct no_saves {};

/// A run whose weights begin by the seed of the trainer's options. `run` takes a function in its place, `fill(stage,
/// which)`, which is called on each rank and fills what that holds of the weights (`model::read_parameters`): of a
/// stage that trains with `model::which_parameters::all`, and of one that generates with `frozen`, as its trained
/// weights come from the trainer.
struct seeded_weights {};

/// A run without a critic: advantages follow from rewards alone. `run` takes `with_critic` (heddle/rl/with_critic.hpp) in
/// its place.
struct no_critic {};
/// `"none"`.
inline std::string to_string(const no_critic&) {
  return "none";
}

namespace detail {

// The critic of a session. Without: nothing, and nothing is compiled.
template <class Critic, class Policy, class Strategy, class World>
class session_critic;
template <class Policy, class Strategy, class World>
class session_critic<no_critic, Policy, Strategy, World> {};

// Errors: `config_error`.
inline void require_meshes(int train, int generate, int ranks, const flow& how) {
  const bool fits = how.apart ? train + generate == ranks : train == ranks && generate == ranks;
  if (!fits)
    throw config_error(
        "heddle: rl: meshes of " + std::to_string(train) + " ranks that train and " + std::to_string(generate) +
        " that generate " +
        (how.apart ? "side by side should have the world's " : "in turn should each have all of the world's ") +
        std::to_string(ranks) + " ranks");
}
template <class Critic>
void require_critic(const settings& s) {
  if (!std::is_same_v<Critic, no_critic> && s.advantage != advantage_of::reward)
    throw config_error("heddle: rl: advantages come from the critic: settings.advantage must be advantage_of::reward");
}
inline void require_copies(const settings& s, const flow& how) {
  if (s.one_copy && how.apart)
    throw config_error("heddle: rl::settings.one_copy is for pipelines whose ranks train and generate in turn");
}

// What a session does for its saves. Without: nothing, and nothing is compiled.
template <class Session, class Saves>
class run_saver;
template <class Session>
class run_saver<Session, no_saves> {
 public:
  constexpr run_saver(Session&, const no_saves&) noexcept {}
  static constexpr bool resumed() noexcept { return false; }
  static constexpr bool is_due() noexcept { return false; }
  static constexpr void save() noexcept {}
};

template <class Mesh, class Split>
struct axes_beside;
template <class Mesh, class... Split>
struct axes_beside<Mesh, type_list<Split...>> {
  template <class... Tags>
  static auto without(type_list<Tags...>)
      -> joined_lists<std::conditional_t<contains<Tags, Split...>, type_list<>, type_list<Tags>>...>;
  using type = decltype(without(typename Mesh::tags{}));
};

}  // namespace detail

}  // namespace heddle::inline v0::rl
