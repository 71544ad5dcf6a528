// heddle/plan/atomization/dispatch.hpp: hands the free gaps of a cluster to jobs that cut themselves, for a simulator or a real cluster.
#pragma once

#include <heddle/plan/atomization/broker.hpp>
#include <heddle/plan/atomization/job.hpp>
#include <heddle/plan/atomization/stagger.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
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

/// Announces every gap that begins now to all jobs that wait: small slices first, of these long gaps first. For
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
    for (auto j = jobs_.size(); j < s.jobs().size(); ++j) jobs_.push_back(make_job(static_cast<int>(j), s.jobs()[j]));
    std::vector<window> windows;
    for (int k = 0; k < s.slices(); ++k) {
      const double end = (std::min)(s.free_until(k), s.now() + terms_.horizon);
      if (end - s.now() < terms_.set_up + terms_.unit + terms_.finish) continue;
      windows.push_back({-1, {k}, s.now(), end, s.bytes(k), s.now()});
    }
    if (terms_.stagger > 0) windows = staggered(std::move(windows), terms_.stagger);
    if (windows.empty()) return;
    std::sort(windows.begin(), windows.end(), [](const window& a, const window& b) {
      if (a.bytes != b.bytes) return a.bytes < b.bytes;
      return a.end != b.end ? a.end > b.end : a.slices < b.slices;  // all begin now
    });
    std::vector<profiled_job<Safety>*> asked;
    for (const int j : s.waiting()) asked.push_back(&jobs_[static_cast<std::size_t>(j)]);
    for (const subjob& p : broker_.open(std::span<const window>(windows), asked, s.now())) {
      const double useful = (std::min)(static_cast<double>(p.units) * terms_.unit, s.left(p.job));
      pieces_.push_back(p);
      s.start({p.job, p.slices.front(), p.start, p.start + terms_.set_up + useful + terms_.finish, useful});
    }
  }

  template <class State, class Piece>
  void ended(State& s, const Piece& piece) {
    const auto found =
        std::find_if(pieces_.begin(), pieces_.end(), [&](const subjob& p) { return p.job == piece.job; });
    auto& job = jobs_[static_cast<std::size_t>(piece.job)];
    broker_.close(job,
                  {found->window, piece.job, found->units, piece.work,
                   s.jobs()[static_cast<std::size_t>(piece.job)].bytes, false},
                  s.now());
    pieces_.erase(found);
  }

 private:
  template <class Job>
  profiled_job<Safety> make_job(int id, const Job& j) const {
    resource_profile p;
    p.set_up = terms_.set_up;
    p.finish = terms_.finish;
    p.unit = terms_.unit;
    job_terms t;
    t.units = static_cast<std::int64_t>((std::max)(std::ceil(j.work / terms_.unit * (1 - 1e-12)), 1.0));
    t.least_units = terms_.least_units;
    t.least_efficiency = terms_.least_efficiency;
    t.arrival = j.arrival;
    p.phases = {{0, t.units, j.bytes, 0}};
    return profiled_job<Safety>(id, std::move(p), t, safety_);
  }

  cut_terms terms_;
  Broker broker_;
  Safety safety_;
  std::vector<profiled_job<Safety>> jobs_;
  std::vector<subjob> pieces_;  // that run, or are booked
};

}  // namespace heddle::inline v0::plan::sja
