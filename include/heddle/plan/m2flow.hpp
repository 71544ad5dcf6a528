// heddle/plan/m2flow.hpp: plans of workflows whose tasks share devices or form pipelines.
#pragma once

#include <heddle/core/config.hpp>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {

/// Weights that go from one task to another once per iteration, as from training to generation. Units: seconds, where
/// the tasks share devices, and where they have devices of their own.
struct flow_weights {
  int from = 0, to = 0;
  double together = 0, apart = 0;
};

/// A workflow: tasks, and what each reads of others. A circle of tasks, as of a model and its environment, is one task.
struct workflow {
  std::vector<std::string> tasks{};
  std::vector<std::pair<int, int>> edges{};  ///< from, to
  std::vector<flow_weights> weights{};
  /// Seconds of a task for the whole batch of an iteration on so many devices; infinite where it cannot have so many.
  std::function<double(int task, int devices)> seconds{};
  /// Seconds to load a task and to put it away again where others have its devices in the meantime; none: 0.
  std::function<double(int task, int devices)> switching{};
};

/// What a search may do.
struct flow_options {
  int chunks = 64;      ///< parts of a batch that go through a pipeline: groups over granularity
  bool hybrids = true;  ///< without: all tasks share all devices, or all have devices of their own
};

/// A task on devices, or two plans, one after the other on the same devices or as a pipeline on their own.
struct flow_step {
  enum class kind { task, temporal, spatial } what = kind::task;
  int task = -1;
  int first = 0, devices = 0;
  int left = -1, right = -1;  ///< numbers of the steps that it consists of, before it
};

/// A plan, its last step the whole. Units: seconds of an iteration.
struct flow_plan {
  std::vector<flow_step> steps{};
  double seconds = 0;
  /// The step of a task.
  HEDDLE_INLINE const flow_step& of(int task) const;
};
/// "rollout [0-2] | inference [3] | training [4-7]"; `;` for one after the other.
HEDDLE_INLINE std::string to_string(const flow_plan& plan, const workflow& flow);

/// The fastest plan for so many devices, of all that cut the tasks again and again into those before (a set that reads
/// of no other) and those behind.
/// - Temporal: the second part begins when the first has ended; each task's `switching` is added.
/// - Spatial: parts go through as `chunks`; a pipeline takes the seconds of a chunk in all its tasks, and of the slowest
///   task for each further chunk. Parts that do not read of each other run beside each other. Of a temporal part on one
///   side of a pipeline only the last task before it, or the first behind it, works beside the other side.
/// So no plan is faster than the work of any of its devices, which is not so in RLinf's formula for hybrids. Found
/// exactly: of partial plans all are kept that are not worse in everything.
/// Errors: `config_error` for a circle, edges and weights of unknown tasks, no devices, more than 16 tasks, and where
/// no plan exists.
/// Source: Yu et al. 2025, arXiv:2509.15965 (RLinf), algorithm 1, with all down-sets in the place of one order.
HEDDLE_INLINE flow_plan m2flow(const workflow& flow, int devices, const flow_options& options = {});

/// The seconds of an iteration that the model of `m2flow` gives a plan. Errors: `config_error` for a plan of other tasks.
HEDDLE_INLINE double seconds_of(const flow_plan& plan, const workflow& flow, const flow_options& options = {});

/// Seconds on fewer devices of a task that was measured on more, by the rule of RLinf's tool for training and
/// inference: with s times fewer devices s times as long, divided by 1 + s / 10, of which s / 10 is at least 0.1 and at
/// most 0.9.
constexpr double fewer_devices(double seconds, int measured_on, int devices) {
  const double s = static_cast<double>(measured_on) / devices;
  const double gain = s / 10 < 0.1 ? 0.1 : s / 10 > 0.9 ? 0.9 : s / 10;
  return devices == measured_on ? seconds : seconds * s / (1 + gain);
}

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/m2flow.hpp>
#endif
