// heddle/plan/atomization/job.hpp: the concept of a job that offers work for windows.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/plan/atomization/calibration.hpp>
#include <heddle/plan/atomization/clearing.hpp>
#include <heddle/plan/atomization/profile.hpp>
#include <heddle/plan/atomization/safety.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan::sja {

/// A piece of a job that was granted: self-contained, runs to its end, leaves the job's state behind it.
struct subjob {
  int job = -1;
  int window = -1;
  std::vector<int> slices{};
  double start = 0;
  double end = 0;  ///< the slices are the piece's until then, or until it reports
  std::int64_t first = 0;
  std::int64_t units = 0;
};

/// What a broker needs of a job. `offers` costs little and makes nothing; `materialize` may decline, because the job has
/// moved on since it answered; `report` ends the piece.
template <class J>
concept atomizable_job = requires(J& job, const J& as_is, const window& w, const offer& o, const usage& u, int most) {
  { as_is.id() } -> std::convertible_to<int>;
  { as_is.offers(w, most) } -> std::same_as<std::vector<offer>>;
  { job.materialize(w, o) } -> std::same_as<std::optional<subjob>>;
  job.report(u);
};

/// What a job asks for. Units: seconds.
struct job_terms {
  std::int64_t units = 1;         ///< of work
  std::int64_t least_units = 1;   ///< q: a shorter piece is not worth it, unless it is the rest
  double least_efficiency = 0.8;  ///< e_min: useful part of a piece, unless the whole rest has less
  double arrival = 0;
  double deadline = std::numeric_limits<double>::infinity();
  int width = 1;          ///< slices it needs at the same time
  bool parallel = false;  ///< its units are alike and independent: several pieces may run at a time
};

/// A job that is known by its profile. `Safety` says which pieces are safe; reports calibrate the profile.
template <class Safety = normal_safety>
class profiled_job {
 public:
  /// Errors: `config_error` naming what cannot be.
  profiled_job(int id, resource_profile profile, job_terms terms, Safety safety = Safety{})
      : id_(id),
        declared_(std::move(profile)),
        corrected_(declared_),
        terms_(terms),
        safety_(std::move(safety)),
        remaining_(terms.units),
        open_{{0, terms.units}},
        progress_at_(terms.arrival) {
    if (terms.units < 1 || terms.least_units < 1 || terms.width < 1)
      throw config_error("heddle: job " + std::to_string(id) + ": units, least_units and width must be at least 1");
    if (!(terms.least_efficiency >= 0 && terms.least_efficiency <= 1) || !std::isfinite(terms.arrival) ||
        std::isnan(terms.deadline))
      throw config_error("heddle: job " + std::to_string(id) +
                         ": least_efficiency must be in [0, 1], arrival and deadline must be times");
    declared_.validate(terms.units);
  }

  int id() const noexcept { return id_; }
  const job_terms& terms() const noexcept { return terms_; }
  /// As declared, times what calibration has found.
  const resource_profile& profile() const noexcept { return corrected_; }
  const calibration& calibrated() const noexcept { return calibration_; }
  std::int64_t done() const noexcept { return done_; }
  bool finished() const noexcept { return done_ == terms_.units; }
  /// Pieces that were granted and have not reported.
  int live() const noexcept { return static_cast<int>(live_.size()); }

  /// The longest safe piece of the window, if the job is interested.
  std::optional<offer> interest(const window& w) const {
    const std::vector<offer> all = offers(w, 1);
    return all.empty() ? std::nullopt : std::optional<offer>(all.front());
  }

  /// Pieces for the window, for each of its halves, for each quarter: at most `most` of these, in this order.
  std::vector<offer> offers(const window& w, int most) const {
    std::vector<offer> made;
    if (w.width() != terms_.width || remaining_ == 0 || (live() > 0 && !terms_.parallel)) return made;
    int asked = 0;
    for (int parts = 1; parts <= 4; parts *= 2)
      for (int k = 0; k < parts && asked < most; ++k, ++asked) {
        const double length = w.length() / parts;
        const double start = k == 0 ? w.start : w.start + k * length;  // a window without an end has one part
        if (std::isfinite(start))
          if (auto o = piece(w, start, length)) made.push_back(*o);
      }
    return made;
  }

  /// The piece that was offered, or nothing: the job has moved on since. A parallel job then makes a piece of as many
  /// other units, if there are so many in a row, or of those that are left there.
  std::optional<subjob> materialize(const window& w, const offer& o) {
    if (open_.empty() || (!terms_.parallel && o.epoch != epoch_)) return std::nullopt;
    auto& [first, end] = open_.front();
    const std::int64_t units = (std::min)(o.units, end - first);
    if (o.first != first && !safety_.fits(corrected_, first, units, w.bytes)) return std::nullopt;
    subjob s{id_, w.id, w.slices, o.start, o.end, first, units};
    first += units;
    if (first == end) open_.erase(open_.begin());
    remaining_ -= units;
    ++epoch_;
    live_.push_back(s);
    return s;
  }

  /// Errors: `config_error` for a piece that does not run, with more units than it was granted, or times and memory
  /// that are none: one such report would spoil the profile for ever.
  void report(const usage& u) {
    if (!(u.seconds >= 0 && u.bytes >= 0) || !std::isfinite(u.seconds + u.bytes + u.set_up + u.finish))
      throw config_error("heddle: job " + std::to_string(id_) + " reports " + number_text(u.seconds) + " s and " +
                         std::to_string(u.bytes) + " bytes for its piece in window " + std::to_string(u.window) +
                         ", which cannot be");
    const auto found = std::find_if(live_.begin(), live_.end(), [&](const subjob& s) { return s.window == u.window; });
    if (found == live_.end() || u.units < 0 || u.units > found->units)
      throw config_error("heddle: job " + std::to_string(id_) + " has no live piece in window " +
                         std::to_string(u.window) + " with " + std::to_string(u.units) + " units or more");
    calibration_.observe(declared_, found->first, u);
    corrected_ = calibration_.corrected(declared_);
    remaining_ += found->units - u.units;
    give_back(found->first + u.units, found->first + found->units);
    done_ += u.units;
    if (u.units > 0) progress_at_ = found->end;
    ++epoch_;
    live_.erase(found);
  }

 private:
  std::optional<offer> piece(const window& w, double start, double length) const {
    const auto [first, until] = open_.front();
    const std::int64_t row = until - first;
    const std::int64_t n = longest_safe_piece(safety_, corrected_, first, row, length, w.bytes);
    if (n < 1 || n < (std::min)(terms_.least_units, row)) return std::nullopt;
    const double efficiency = corrected_.efficiency(n);
    if (efficiency < terms_.least_efficiency && efficiency < corrected_.efficiency(row)) return std::nullopt;
    offer o;
    o.job = id_;
    o.epoch = epoch_;
    o.first = first;
    o.units = n;
    o.start = start;
    o.end = (std::min)(w.end, start + (std::min)(length, safety_.seconds(corrected_, n)));
    o.useful = static_cast<double>(n) * corrected_.unit;
    o.bytes = corrected_.peak_mean(first, n);
    o.rest = safety_.seconds(corrected_, remaining_);
    o.waiting = (std::max)(0.0, w.announced - progress_at_);
    if (terms_.deadline < std::numeric_limits<double>::infinity()) {
      const double left = terms_.deadline - w.start;
      o.urgency = left <= o.rest ? 1 : o.rest / left;
    }
    o.trust = calibration_.trust();
    return o;
  }

  // Units that no piece has any more.
  void give_back(std::int64_t first, std::int64_t end) {
    if (first == end) return;
    auto at = std::lower_bound(open_.begin(), open_.end(), std::pair(first, end));
    if (at != open_.end() && at->first == end) {
      at->first = first;
    } else {
      at = open_.insert(at, {first, end});
    }
    if (at != open_.begin() && std::prev(at)->second == first) {
      std::prev(at)->second = at->second;
      open_.erase(at);
    }
  }

  int id_;
  resource_profile declared_, corrected_;
  job_terms terms_;
  Safety safety_;
  calibration calibration_;
  std::int64_t remaining_;                                   // units that no piece has
  std::vector<std::pair<std::int64_t, std::int64_t>> open_;  // which: [first, end), several only of a parallel job
  std::int64_t done_ = 0;
  std::int64_t epoch_ = 0;
  double progress_at_;
  std::vector<subjob> live_;
};

}  // namespace heddle::inline v0::plan::sja
