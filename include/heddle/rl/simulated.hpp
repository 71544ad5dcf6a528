// heddle/rl/simulated.hpp: a run of reinforcement learning as its simulation takes it.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/rl/flow.hpp>
#include <heddle/rl/settings.hpp>
#include <heddle/sim/rl_flow.hpp>

#include <string>

namespace heddle::inline v0::rl {

/// What `run` does by `how` and `s` with so many generators, for `sim::simulate`; `rl_times` say what it takes. Simulated
/// groups are never given up (`least_share`, `most_age`), generators that take weights in turn do so inside answers, and
/// engines that are ahead by more than a batch do not hold up a trainer that has its next one. Where weights wait beside
/// those in use (`delayed`), they are simulated as loaded at once.
/// Errors: `config_error` for answers that are interrupted with weights that are not sent after each step, or with
/// generators that are ahead, which have no simulation.
inline sim::rl_flow simulated(const flow& how, const settings& s, int generators) {
  if (how.over > 1 && (how.in_flight || how.ahead > 0 || how.updates > 1))
    throw config_error("heddle: rl: interrupted answers are simulated with synchronous weights after each step, got " +
                       to_string(how));
  sim::rl_flow f;
  f.engines = generators;
  f.slots = static_cast<int>(how.slots > 0 ? how.slots : s.sequences);
  f.groups = static_cast<int>(s.prompts);
  f.of_group = static_cast<int>(s.answers);
  f.steps_per_sync = static_cast<int>(how.updates);
  f.in_order = !how.overtakes();
  f.recompute = how.in_flight && how.cache == infer::kv::recompute;
  if (how.over > 1) {
    f.completion = sim::rl_completion::partial;
    f.started = static_cast<int>(how.may_begin(0, s.prompts));
  } else if (how.in_flight) {
    f.rule = sim::rl_rule::in_flight;
    f.window = static_cast<int>(how.may_begin(0, s.prompts));
  } else if (how.ahead == how.of && how.updates == 1 && (how.rolling == 0 || how.delayed)) {
    f.rule = sim::rl_rule::one_step_off;
  } else if (how.ahead > 0) {
    f.rule = sim::rl_rule::bounded_stale;
    f.eta = static_cast<double>(how.ahead) / static_cast<double>(how.of);
    f.load = how.rolling > 0 && !how.delayed ? sim::rl_load::rolling : sim::rl_load::drain;
    f.at_once = how.rolling > 0 ? static_cast<int>(how.rolling) : 1;
  }
  return f;
}

}  // namespace heddle::inline v0::rl
