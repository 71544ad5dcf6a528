// heddle/train/static_profile.hpp: memory and traffic of a run, computed from types.
#pragma once

#include <heddle/mesh/mesh.hpp>
#include <heddle/plan/atomization/profile.hpp>
#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/check/memory.hpp>
#include <heddle/sim/action_table.hpp>
#include <heddle/train/atomized.hpp>

#include <cstdint>

namespace heddle::inline v0::train {

/// Memory and time of a step from schedule, mesh and memory model, all of them types: `train::gpt2_with_state`, which
/// counts all that a training run holds, or any other `schedule::memory_model`. `Passes` lower the schedule, the usual
/// ones if there are none.
/// Errors: does not compile if the schedule is wrong on the mesh, as `schedule::require` says it.
template <schedule::schedule_policy When, mesh_like Mesh, class Model,
          schedule::lowering_pass... Passes>
struct static_profile {
  static_assert(schedule::require<When, Mesh, Passes...>());
  static constexpr bool runs = schedule::deadlock_free<When, Mesh, Passes...>;  // or it has been said why not
  static constexpr int ranks = schedule::pipeline_ranks<Mesh>;

  /// Of the rank that needs most, what the memory model counts. Units: bytes.
  static constexpr std::int64_t bytes = [] {
    if constexpr (runs)
      return schedule::memory_of<When, ranks, Model, Passes...>.bytes;
    else
      return std::int64_t{0};
  }();

  /// A step's computations, without communication and the optimizer. `duration`: of an action, such as
  /// `sim::stage_times`. Units: seconds.
  template <class Duration>
  static constexpr double seconds(const Duration& duration) {
    if constexpr (runs)
      return sim::simulate(schedule::lowered_to_run_of<When, ranks, Passes...>, duration).makespan;
    else
      return 0;
  }

  /// For `plan::sja`. `state_bytes`: what the model does not count, such as weights in `train::gpt2_memory`; `around`:
  /// what comes on top of the computations (`step`), its deviation, set-up and finish.
  template <class Duration>
  static plan::sja::resource_profile profile(std::int64_t steps, const Duration& duration, std::int64_t state_bytes = 0,
                                             const step_times& around = {}) {
    plan::sja::resource_profile p;
    p.unit = seconds(duration) + around.step;
    p.unit_sd = around.step_sd;
    p.set_up = around.set_up;
    p.finish = around.finish;
    p.phases = {{0, steps, static_cast<double>(bytes + state_bytes), 0}};
    p.validate(steps);
    return p;
  }
};

}  // namespace heddle::inline v0::train
