// heddle/train/atomized.hpp: a training run as a divisible job: its profile, and one part of it.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/plan/atomization/calibration.hpp>
#include <heddle/plan/atomization/profile.hpp>
#include <heddle/sim/action_table.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/train/report.hpp>
#include <heddle/train/save.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <utility>

namespace heddle::inline v0::train {

/// Bytes that this rank holds while it trains: weights, gradients and moments of all its stages, their activations with
/// what microbatches share, and what waits between stages, as mesh, schedule, policies and ZeRO stage make them; what comes and goes at its most. The
/// tokens of a step, two tensors for validation, what replicas exchange and an observer's events come on top.
template <class Trainer>
std::int64_t bytes_held(Trainer& trainer) {
  std::int64_t bytes = trainer.activation_bytes().total() + trainer.boundary_bytes();
  if constexpr (requires { trainer.parameter_memory(); }) {
    bytes += trainer.parameter_memory().predicted_peak_bytes();
  } else {
    for (int k = 0; k < trainer.stages(); ++k) {
      if (model::of_stage::borrows_embedding(trainer.stage(k)))  // then its gradient is in no flat buffer
        bytes += static_cast<std::int64_t>(bytes_of_row(model::of_stage::tied_gradient(trainer.stage(k))));
      bytes += static_cast<std::int64_t>(bytes_of_row(trainer.stage(k).weights()));
      bytes += static_cast<std::int64_t>(bytes_of_row(trainer.stage(k).gradients()));
      bytes += trainer.optimizer_state(k).state_bytes();
    }
  }
  return bytes;
}

namespace detail {
// Rank 0's for all.
template <class Trainer, class... Values>
void agree(Trainer& trainer, Values&... values) {
  double all[] = {values...};
  trainer.ranks().control().broadcast(std::span<double>(all), 0);
  std::size_t i = 0;
  ((values = all[i++]), ...);
}
template <class Trainer>
std::int64_t most_bytes_held(Trainer& trainer) {
  std::int64_t bytes = bytes_held(trainer);
  trainer.ranks().control().all_reduce(std::span<std::int64_t>(&bytes, 1), maximum{});
  return bytes;
}
}  // namespace detail

/// Seconds of a step's computations in the trainer's schedule, without communication and the optimizer. `duration`: of an
/// action, such as `sim::stage_times`, measured or computed.
template <class Trainer, class Duration>
double seconds_of_schedule(const Trainer& trainer, const Duration& duration) {
  return sim::simulate(trainer.plan().table, duration).makespan;
}

/// Times of a run that is cut at steps. Units: seconds.
struct step_times {
  double step = 0;
  double step_sd = 0;
  double set_up = 0;  ///< start the ranks and bring the state back
  double finish = 0;  ///< save
};

/// The profile of a training run, for `plan::sja`: a unit is a step, memory that of the fullest rank. Called on all ranks
/// together; the same on all if `times` are.
template <class Trainer>
plan::sja::resource_profile resource_profile_of(Trainer& trainer, const step_times& times) {
  const std::int64_t bytes = detail::most_bytes_held(trainer);
  plan::sja::resource_profile p;
  p.unit = times.step;
  p.unit_sd = times.step_sd;
  p.set_up = times.set_up;
  p.finish = times.finish;
  p.phases = {{0, (std::max)(trainer.options().steps, std::int64_t{1}), static_cast<double>(bytes), 0}};
  return p;
}

/// How long a piece may be. Units: seconds.
struct piece_limits {
  std::int64_t steps = 1;
  double seconds = std::numeric_limits<double>::infinity();  ///< from the beginning of the piece to the end of its save
  double finish = 0;                                         ///< of which the save takes this much
  std::int64_t began =
      -1;  ///< what the clock said before the ranks were started; negative: starting them does not count
};

/// What a piece did, the same on all ranks: times by rank 0's clock, memory of the fullest rank. Units: seconds, bytes.
struct piece_report {
  std::int64_t first = 0;  ///< steps before the piece
  std::int64_t steps = 0;  ///< done and saved
  double set_up = 0;
  double seconds = 0;  ///< of the steps
  double finish = 0;
  std::int64_t bytes = 0;
  bool stopped = false;        ///< before the time ran out, with fewer steps than it might have done
  bool asked_to_stop = false;  ///< by the trainer's `options().stop`

  /// From the beginning of the piece to the end of its save.
  double length() const noexcept { return set_up + seconds + finish; }
  plan::sja::usage usage(int window, int job) const noexcept {
    return {window, job, steps, seconds, static_cast<double>(bytes), stopped, set_up, steps > 0 ? finish : -1};
  }
};

/// Measures a training run: `steps` steps behind a first one, a save into `scratch` and a resume from it. The trainer has
/// then been trained: make another one. `began`: as in `piece_limits`. Called on all ranks together, the same on all.
/// Errors: as `save` and `resume`.
template <class Trainer, class Data>
step_times measure_step_times(Trainer& trainer, const Data& data, int steps, const std::filesystem::path& scratch,
                              std::int64_t began = -1) {
  if (steps < 1) throw config_error("heddle: measuring takes at least one step, not " + std::to_string(steps));
  std::int64_t last = now_ns();
  const auto lap = [&] {
    const std::int64_t from = std::exchange(last, now_ns());
    return static_cast<double>(last - from) / 1e9;
  };
  step_times t;
  if (began >= 0) t.set_up = static_cast<double>(last - began) / 1e9;
  trainer.step(data);
  lap();
  double sum = 0, squares = 0;
  for (int k = 0; k < steps; ++k) {
    trainer.step(data);
    const double seconds = lap();
    sum += seconds;
    squares += seconds * seconds;
  }
  t.step = sum / steps;
  if (steps > 1) t.step_sd = std::sqrt((std::max)(0.0, (squares - sum * t.step) / (steps - 1)));
  save(trainer, scratch);
  t.finish = lap();
  resume(trainer, scratch);
  t.set_up += lap();
  detail::agree(trainer, t.step, t.step_sd, t.set_up, t.finish);
  return t;
}

/// One piece of a run: `load(trainer)` brings the state back, then up to `limits.steps` steps, but none behind
/// `options().steps`, then `store(trainer)`. It stops between two steps when another one as long as the longest so far
/// would leave too little time to save (rank 0's clock says so to all), or where `options().stop` asks it to. Called on
/// all ranks together. What was not done is left to the next piece; a piece without steps stores nothing. `clock()`:
/// nanoseconds.
template <class Trainer, class Data, class Load, class Store, class Listener = quiet, class Clock = std::int64_t (*)()>
piece_report run_piece(Trainer& trainer, const Data& data, const piece_limits& limits, Load&& load, Store&& store,
                       Listener&& listener = {}, Clock&& clock = &now_ns) {
  if (limits.steps < 0)
    throw config_error("heddle: a piece has a number of steps, not " + std::to_string(limits.steps));
  if (std::isnan(limits.seconds) || !(limits.finish >= 0))
    throw config_error("heddle: a piece takes a number of seconds, and at least 0 of them to finish, not " +
                       number_text(limits.seconds) + " and " + number_text(limits.finish));
  const std::int64_t begin = limits.began < 0 ? clock() : limits.began;
  const auto since = [&](std::int64_t from) { return static_cast<double>(clock() - from) / 1e9; };
  piece_report report;
  load(trainer);
  report.set_up = since(begin);
  report.first = trainer.steps_done();
  const std::int64_t left = std::int64_t{trainer.options().steps} - report.first;
  const std::int64_t last = report.first + (std::min)(limits.steps, left);
  const std::int64_t first_step = clock();
  double longest = 0;
  while (trainer.steps_done() < last) {
    if (limits.seconds < std::numeric_limits<double>::infinity()) {
      double needed = since(begin) + longest + limits.finish;
      trainer.ranks().control().broadcast(std::span<double>(&needed, 1), 0);
      report.stopped = needed > limits.seconds;
      if (report.stopped) break;
    }
    const std::int64_t before = clock();
    listener(trainer.step(data));
    longest = (std::max)(longest, since(before));
    if constexpr (requires { trainer.stopped(); })
      if (trainer.stopped()) {
        report.stopped = report.asked_to_stop = true;
        break;
      }
  }
  report.steps = trainer.steps_done() - report.first;
  report.seconds = since(first_step);
  report.bytes = detail::most_bytes_held(trainer);
  const std::int64_t end = clock();
  if (report.steps > 0) store(trainer);
  report.finish = since(end);
  detail::agree(trainer, report.set_up, report.seconds, report.finish);
  return report;
}

/// The same from the newest save in `folder`, if there is one, to another save there; on another mesh or schedule than
/// that save's if the trainer has another. On the same mesh the cut run equals the whole one bit for bit.
/// Errors: as `resume` and `save`.
template <class Trainer, class Data, class Listener = quiet>
piece_report run_piece(Trainer& trainer, const Data& data, const piece_limits& limits,
                       const std::filesystem::path& folder, const save_facts& facts = {}, Listener&& listener = {}) {
  return run_piece(
      trainer, data, limits, [&](Trainer& t) { resume(t, folder, facts); }, [&](Trainer& t) { save(t, folder, facts); },
      listener);
}

}  // namespace heddle::inline v0::train
