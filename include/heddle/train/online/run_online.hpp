// heddle/train/online/run_online.hpp: trains on samples while they are produced.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/train/report.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace heddle::inline v0::train {

namespace detail {

// Carries the axis into the compiler's message.
template <bool Ok, class Axis>
inline constexpr bool axis_of_online_training = Ok;

// Ranks along such axes would need the same samples, and each draws its own.
template <class Mesh, class... Axes>
void require_own_samples(const Mesh& mesh, type_list<Axes...>) {
  (..., [&] {
    if constexpr (Mesh::template has<Axes>) {
      constexpr int extent = Mesh::template axis_of<Axes>::fixed_size;
      static_assert(
          axis_of_online_training < extent == 1 || extent<0, Axes>,
          "heddle: online training draws the samples of each rank from the rank's own buffer, so no ranks may share "
          "samples: give the trainer a mesh without pipeline stages and without axes that split the model, "
          "such as mesh<axis<dp>>");
      if (mesh.template extent<Axes>() > 1)
        throw config_error("heddle: online training: " + std::to_string(mesh.template extent<Axes>()) +
                           " ranks along an axis that does not split samples would draw different ones; "
                           "use a mesh of dp alone");
    }
  }());
}

struct no_validation {};

}  // namespace detail

/// Trains with an `online_pairs` until `options().steps`, or until the buffer of one rank is closed and empty: before
/// each step all ranks agree that each has samples. `listener(const step_report&)` is called on every rank after each
/// step, with a validation after every `options().validate_every` of them and after the last. What is thrown closes the
/// rank's buffer first, so that nobody waits for room in it while other ranks wait for samples.
/// Errors: as `trainer.step`; `config_error` if ranks share samples.
template <class Trainer, class Data, class Listener = quiet>
void run_online(Trainer& trainer, const Data& data, Listener&& listener = {}) {
  using mesh_type = typename Trainer::mesh_type;
  auto& ranks = trainer.ranks();
  detail::require_own_samples(ranks.mesh(), typename Trainer::axes::beside{});
  detail::require_own_samples(ranks.mesh(), type_list<typename Trainer::pipeline>{});
  static_assert(!std::is_void_v<mesh_type>);
  const auto all_have = [&](bool mine) {
    std::array<int, 1> have{mine ? 1 : 0};
    ranks.control().all_reduce(std::span<int>(have), minimum{});
    return have[0] == 1;
  };
  try {
    bool more = trainer.steps_done() < trainer.options().steps && all_have(data.wait_ready());
    while (more) {
      step_report report = trainer.step(data);
      more = trainer.steps_done() < trainer.options().steps && all_have(data.wait_ready());
      if (const std::int64_t every = trainer.options().validate_every;
          every > 0 && (!more || trainer.steps_done() % every == 0))
        report.validation_loss = trainer.validate(data);
      listener(static_cast<const step_report&>(report));
    }
  } catch (...) {
    if constexpr (requires { data.buffer().close(); }) data.buffer().close();
    throw;
  }
}

}  // namespace heddle::inline v0::train
