// heddle/train/training_job.hpp: a run that bids for windows and trains in those it gets.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/plan/atomization/job.hpp>
#include <heddle/plan/atomization/profile.hpp>
#include <heddle/train/atomized.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// An `atomizable_job` whose pieces are really trained. A unit is a step. `Run` starts the ranks that a piece's slices
/// are, and calls `run_piece` on them: `run(const plan::sja::subjob&, const piece_limits&) -> piece_report`. The limits
/// are those of the piece: its steps, its time from `began` (now) on, what the profile leaves of it for the save.
template <class Run, class Safety = plan::sja::normal_safety>
class training_job {
 public:
  /// `terms.units`: steps in the whole run. Errors: `config_error` naming what cannot be.
  training_job(int id, plan::sja::resource_profile profile, plan::sja::job_terms terms, Run run,
               Safety safety = Safety{})
      : job_(id, std::move(profile), terms, std::move(safety)), run_(std::move(run)) {}

  int id() const noexcept { return job_.id(); }
  std::vector<plan::sja::offer> offers(const plan::sja::window& w, int most) const { return job_.offers(w, most); }
  std::optional<plan::sja::subjob> materialize(const plan::sja::window& w, const plan::sja::offer& o) {
    return job_.materialize(w, o);
  }
  void report(const plan::sja::usage& u) { job_.report(u); }

  /// What has been done, calibrated and left.
  const plan::sja::profiled_job<Safety>& planned() const noexcept { return job_; }
  std::int64_t done() const noexcept { return job_.done(); }
  bool finished() const noexcept { return job_.finished(); }

  /// Trains a piece that was granted; the broker's `close` takes what this returns.
  /// Errors: `config_error` if the run is at another step than the job.
  piece_report run(const plan::sja::subjob& piece) {
    const piece_report report = run_(piece, piece_limits{.steps = piece.units,
                                                         .seconds = piece.end - piece.start,
                                                         .finish = job_.profile().finish,
                                                         .began = now_ns()});
    if (report.first != piece.first)
      throw config_error("heddle: job " + std::to_string(id()) + " was to go on after step " +
                         std::to_string(piece.first) + ", but its run has done " + std::to_string(report.first) +
                         "; are its saves in the folder?");
    return report;
  }

 private:
  plan::sja::profiled_job<Safety> job_;
  Run run_;
};

/// Offers a window to one job until it is used up: a piece is granted and trained, what it left of the window is
/// announced again. Returns when the job wants no more of it, or a piece was asked to stop. The protocol's time goes on
/// by what pieces took. `told(const subjob&, const piece_report&)` is called behind each piece.
template <class Broker, class Job, class Told>
void train_in_window(Broker& broker, Job& job, plan::sja::window w, Told&& told) {
  while (w.start < w.end) {
    const auto pieces = broker.open(std::span<const plan::sja::window>(&w, 1), std::span<Job>(&job, 1), w.start);
    if (pieces.empty()) return;
    for (const plan::sja::subjob& piece : pieces) {
      const piece_report did = job.run(piece);
      w.start = piece.start + did.length();
      broker.close(job, did.usage(piece.window, piece.job), w.start);
      told(piece, did);
      if (did.steps == 0 || did.asked_to_stop) return;
    }
  }
}

}  // namespace heddle::inline v0::train
