// heddle/rl/planned.hpp: a pipeline whose placement a plan has chosen (RLinf).
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/plan/m2flow.hpp>
#include <heddle/rl/flow.hpp>

#include <algorithm>
#include <string>
#include <string_view>

namespace heddle::inline v0::rl {

/// Where a plan puts a run: its `flow`, and the ranks of the meshes that train and that generate.
struct planned {
  rl::flow flow{};
  int train = 0, generate = 0;
};

/// The run that a plan of a workflow with tasks of these names means: in turn on the same ranks, or each on its own.
/// Other tasks, such as the inference of a reference, have no ranks in a run. `how`: the other choices, such as how far
/// generators may be ahead; it is synchronous without.
/// Errors: `config_error` for a name that is no task, and for tasks that share some devices only, and for
/// choices that the placement does not have.
/// Source: Yu et al. 2025, arXiv:2509.15965 (RLinf).
inline planned planned_run(const plan::flow_plan& by, const plan::workflow& work, std::string_view training,
                           std::string_view generation, rl::flow how = {}) {
  const auto step_of = [&](std::string_view name) -> const plan::flow_step& {
    const auto at = std::find(work.tasks.begin(), work.tasks.end(), name);
    if (at == work.tasks.end())
      throw config_error("heddle: rl::planned_run: the workflow has no task \"" + std::string(name) + "\"");
    return by.of(static_cast<int>(at - work.tasks.begin()));
  };
  const plan::flow_step &t = step_of(training), &g = step_of(generation);
  const bool same = t.first == g.first && t.devices == g.devices;
  if (!same && t.first < g.first + g.devices && g.first < t.first + t.devices)
    throw config_error("heddle: rl::planned_run: " + std::string(training) + " and " + std::string(generation) +
                       " share some of their devices in this plan: " + to_string(by, work) +
                       "; a run has both on the same ranks, or each on its own");
  how.apart = !same;
  how.validate();
  return {how, t.devices, g.devices};
}

}  // namespace heddle::inline v0::rl
