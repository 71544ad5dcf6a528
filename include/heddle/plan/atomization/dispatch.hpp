// heddle/plan/atomization/dispatch.hpp: hands free gaps of a cluster to divisible jobs.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/plan/atomization/broker.hpp>
#include <heddle/plan/atomization/job.hpp>
#include <heddle/plan/atomization/stagger.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan::sja {

/// What all jobs of a simulated cluster have in common. Units: seconds.
struct cut_terms {
  double set_up = 0;
  double finish = 0;
  double unit = 1;                ///< work is cut between these; the last of a job may be shorter
  std::int64_t least_units = 1;   ///< q
  double least_efficiency = 0.8;  ///< e_min
  double horizon = 1e5;           ///< no window is longer
  double stagger = 0;             ///< windows that are announced together end so far apart
};

/// Announces every gap that begins now to all jobs that wait: small slices first, of these long gaps first. Pieces are
/// cut as if their slice had to be re-partitioned; where it has not, they end earlier. A job is admitted when it first
/// waits and retired when nothing of it is left: `ledger::most` bounds those that are there at a time, not all. For
/// `sim::simulate_cluster`, or anything with its state's members.
template <class Broker = broker<>, class Safety = certain_safety>
class atomizing_dispatcher {
 public:
  explicit atomizing_dispatcher(cut_terms terms, Broker broker = Broker{}, Safety safety = Safety{})
      : terms_(terms), broker_(std::move(broker)), safety_(std::move(safety)) {}

  Broker& announcer() noexcept { return broker_; }

  template <class State>
  void decide(State& s) {
    if (s.waiting().empty()) return;
    const double repartition = s.repartition_seconds();
    std::vector<profiled_job<Safety>*> asked;
    for (const int j : s.waiting()) asked.push_back(&known(j, s.jobs()[static_cast<std::size_t>(j)], repartition));
    std::vector<window> windows;
    for (int k = 0; k < s.slices(); ++k) {
      const double end = (std::min)(s.free_until(k), s.now() + terms_.horizon);
      if (end - s.now() < repartition + terms_.set_up + terms_.unit + terms_.finish) continue;
      windows.push_back({-1, {k}, s.now(), end, s.bytes(k), s.now()});
    }
    if (terms_.stagger > 0) windows = staggered(std::move(windows), terms_.stagger);
    if (windows.empty()) return;
    std::sort(windows.begin(), windows.end(), [](const window& a, const window& b) {
      if (a.bytes != b.bytes) return a.bytes < b.bytes;
      return a.end != b.end ? a.end > b.end : a.slices < b.slices;  // all begin now
    });
    for (const subjob& p : broker_.open(std::span<const window>(windows), asked, s.now())) {
      const double useful = (std::min)(static_cast<double>(p.units) * terms_.unit, s.left(p.job));
      pieces_.push_back(p);
      const double before = s.repartition(p.slices.front(), p.job, p.start > s.now());
      s.start({p.job, p.slices.front(), p.start, p.start + before + terms_.set_up + useful + terms_.finish, useful});
    }
  }

  template <class State, class Piece>
  void ended(State& s, const Piece& piece) {
    const auto found =
        std::find_if(pieces_.begin(), pieces_.end(), [&](const subjob& p) { return p.job == piece.job; });
    auto& job = jobs_.at(piece.job);
    broker_.close(job,
                  {found->window, piece.job, found->units, piece.work,
                   s.jobs()[static_cast<std::size_t>(piece.job)].bytes, false},
                  s.now());
    pieces_.erase(found);
    if (s.left(piece.job) > 0) return;
    broker_.retire(piece.job);
    jobs_.erase(piece.job);
  }

 private:
  // A job is in the books from when it first waits until it has ended.
  template <class Job>
  profiled_job<Safety>& known(int id, const Job& j, double repartition) {
    const auto found = jobs_.find(id);
    if (found != jobs_.end()) return found->second;
    profiled_job<Safety> made = make_job(id, j, repartition);
    broker_.admit(id, {.arrival = j.arrival, .work = j.work});
    return jobs_.emplace(id, std::move(made)).first->second;
  }
  template <class Job>
  profiled_job<Safety> make_job(int id, const Job& j, double repartition) const {
    const double units = (std::max)(std::ceil(j.work / terms_.unit * (1 - 1e-12)), 1.0);
    if (!(units < 0x1p63))
      throw config_error("heddle: job " + std::to_string(id) + " has " + number_text(j.work) +
                         " s of work in units of " + number_text(terms_.unit) +
                         " s; give so many units that a 64-bit number counts them");
    resource_profile p;
    p.set_up = repartition + terms_.set_up;
    p.finish = terms_.finish;
    p.unit = terms_.unit;
    job_terms t;
    t.units = static_cast<std::int64_t>(units);
    t.least_units = terms_.least_units;
    t.least_efficiency = terms_.least_efficiency;
    t.arrival = j.arrival;
    p.phases = {{0, t.units, j.bytes, 0}};
    return profiled_job<Safety>(id, std::move(p), t, safety_);
  }

  cut_terms terms_;
  Broker broker_;
  Safety safety_;
  std::map<int, profiled_job<Safety>> jobs_;  // that have come and not ended
  std::vector<subjob> pieces_;                // that run, or are booked
};

}  // namespace heddle::inline v0::plan::sja
