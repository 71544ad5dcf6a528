// heddle/plan/atomization/ledger.hpp: a broker's record of promised and delivered work of each job.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/plan/atomization/calibration.hpp>
#include <heddle/plan/atomization/clearing.hpp>
#include <heddle/plan/atomization/profile.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace heddle::inline v0::plan::sja {

/// What the cluster knows of a job when it lets it in. None of it comes from the job's offers. Units: seconds.
struct admission {
  double arrival = 0;  ///< the job waits from then on
  double deadline = std::numeric_limits<double>::infinity();
  double work = 0;  ///< useful seconds in all: no piece counts for more than is left of them; 0: not stated
};

/// What a granted piece is held to. Units: seconds, bytes.
struct promise {
  double start = 0;
  double end = 0;
  double useful = 0;
  std::int64_t units = 0;
  double bytes = 0;
  double limit = 0;  ///< memory of the window; 0: none was stated
};

/// What is wrong with the numbers of an offer, or null: those that are not finite, pieces of less than `shortest` seconds,
/// units beyond what 64 bits count, more useful seconds than a piece has, a rest shorter than the piece, more memory than
/// the window has, negative waits, urgency or trust outside of [0, 1].
inline const char* fault_in(const offer& o, const window& w, double shortest) noexcept {
  const auto outside = [](double value, double low, double high) { return !(value >= low && value <= high); };
  if (!(o.start >= w.start && o.start <= o.end && o.end <= w.end)) return "offers a piece outside of the window";
  if (o.units < 1 || o.first < 0) return "offers a piece without units";
  if (o.units > (std::numeric_limits<std::int64_t>::max)() - o.first)
    return "offers units whose end no 64-bit number counts";
  if (!std::isfinite(o.start) || !std::isfinite(o.end)) return "offers a piece without an end";
  const double length = o.end - o.start, rounding = 1e-9 * (1 + std::fabs(o.end));
  if (length < shortest) return "offers a piece that is too short";
  if (outside(o.useful, 0, length + rounding))
    return "offers more useful seconds than the piece has, or none that are a number";
  if (!std::isfinite(o.bytes) || outside(o.bytes, 0, w.bytes))
    return "offers a piece of more memory than the window has";
  if (!std::isfinite(o.rest) || (o.rest != 0 && outside(o.rest, length - rounding, o.rest)))
    return "offers a piece that is longer than all its rest";
  if (!std::isfinite(o.waiting) || o.waiting < 0) return "has waited for a time that is none";
  if (outside(o.urgency, 0, 1)) return "has an urgency outside of [0, 1]";
  if (outside(o.trust, 0, 1)) return "has a trust outside of [0, 1]";
  return nullptr;
}

/// One job in the broker's books. Trust is 1 at first, falls with every piece that brings less than was promised, by as
/// much as is missing, and comes back slowly, with useful time that was delivered as promised: the useful part of the
/// time that the slices were occupied, the units, the end, the memory. The rest of work that a job claims is a promise
/// too: who, behind a granted piece, turns out to have more left than it said is believed less, and what it claims then
/// is multiplied by that.
class job_record {
 public:
  static constexpr double least = 0.05;  ///< trust is never less, so that nobody waits for ever
  static constexpr double worst = 0.25;  ///< of its trust is left to a job that delivers nothing
  static constexpr double rate = 0.1;    ///< of the trust that is lacking comes back with a full piece
  static constexpr double slack = 0.1;   ///< relative error of times and rests that is not held against a job
  static constexpr double least_candour = 0.01;

  explicit job_record(const admission& a = {}) : known_(a), since_(a.arrival) {}

  double trust() const noexcept { return (std::max)(least, delivery_ * candour_); }
  /// Seconds since it came, or since a piece of it ended, whatever that brought.
  double waiting(double now) const noexcept { return (std::max)(0.0, now - since_); }
  /// 0 without a deadline; 1 if the work that is left fills the time until it. By what was admitted and delivered.
  double urgency(double now) const noexcept {
    if (known_.deadline == std::numeric_limits<double>::infinity()) return 0;
    const double left = (std::max)(0.0, known_.work - delivered_), time = known_.deadline - now;
    return time <= left ? 1 : left / time;
  }
  /// Useful seconds that its pieces brought: as they were promised, or as they were measured where that is more, so that
  /// who promises less than it does does not seem to stand still.
  double delivered() const noexcept { return delivered_; }
  int live() const noexcept { return live_; }
  double heard() const noexcept { return heard_; }
  void hear(double now) noexcept { heard_ = (std::max)(heard_, now); }

  /// Useful seconds that its pieces brought, or have promised: where the job stands in its work.
  double progress() const noexcept { return delivered_ + promised_; }

  /// Puts what the broker knows in the place of what the job says. `at`: its progress when it made the offer; `untold`:
  /// the rest of a job that states none.
  void believe(offer& o, double announced, double at, double untold) const noexcept {
    const double candour = candour_with(o.rest, at);
    o.trust = (std::max)(least, delivery_ * candour);
    o.waiting = waiting(announced);
    o.urgency = urgency(announced);
    o.rest = (std::max)(o.rest > 0 ? o.rest : untold, o.end - o.start) / candour;
    if (known_.work > 0) o.useful = (std::min)(o.useful, (std::max)(known_.work * (1 + slack) - at, least * o.useful));
    o.bytes *= held_;
  }
  /// A piece was made. `rest`: as the job said, that of the piece among it; 0: it did not say.
  void granted(const promise& p, double rest, double at) noexcept {
    if (rest > 0) {
      candour_ = candour_with(rest, at);
      claimed_ = rest;
      claimed_at_ = at;
    }
    promised_ += p.useful;
    ++live_;
  }
  /// A piece was granted, and the job made another.
  void broke_off(double now) noexcept { charge(0, now); }
  /// A piece has ended. How much of the promise it kept: in [0, 1].
  double ended(const promise& p, const usage& u, double now) noexcept {
    --live_;
    promised_ = live_ > 0 ? (std::max)(0.0, promised_ - p.useful) : 0;
    const double kept = kept_of(p, u, now);
    const double done = (std::min)(1.0, static_cast<double>(u.units) / static_cast<double>(p.units));
    delivered_ += (std::min)((std::max)(p.useful * done, u.seconds), (std::max)(0.0, now - p.start));
    if (p.bytes > 0) {
      const double used = u.units > 0 ? (std::min)(1.0, u.bytes / p.bytes) : 1;
      held_ = used < held_ ? used : held_ + rate * (used - held_);
    }
    largest_ = (std::max)(largest_, p.useful * kept);
    charge(kept, now, largest_ > 0 ? p.useful / largest_ : 0);
    return kept;
  }

 private:
  double candour_with(double rest, double at) const noexcept {
    if (!(claimed_ > 0) || !(rest > 0)) return candour_;
    const double more = at + rest - claimed_at_ - claimed_;  // than it said
    return more > slack * claimed_ ? (std::max)(least_candour, candour_ * claimed_ / (claimed_ + more)) : candour_;
  }
  static double kept_of(const promise& p, const usage& u, double now) noexcept {
    const double rounding = 1e-9 * (1 + std::fabs(p.end));
    if (u.units <= 0 || now > p.end + rounding || (p.limit > 0 && u.bytes > p.limit)) return 0;
    double kept = (std::min)(1.0, static_cast<double>(u.units) / static_cast<double>(p.units));
    const double occupied = now - p.start, length = p.end - p.start;
    if (occupied > 0 && length > 0 && p.useful > 0) {
      const double promised = p.useful / length, was = u.seconds / occupied;
      if (was < (1 - slack) * promised) kept *= was / promised;
    }
    return kept;
  }
  void charge(double kept, double now, double size = 0) noexcept {
    since_ = (std::max)(since_, now);
    if (kept < 1) {
      delivery_ = (std::max)(least, delivery_ * (std::max)(kept, worst));
    } else {
      delivery_ += rate * (std::min)(1.0, size) * (1 - delivery_);
      candour_ += rate * (std::min)(1.0, size) * (1 - candour_);
    }
  }

  admission known_;
  double since_;  // it has waited
  double heard_ = -std::numeric_limits<double>::infinity();
  double delivery_ = 1;  // trust in its pieces
  double candour_ = 1;   // trust in its rest
  double held_ = 1;      // of the memory it said
  double delivered_ = 0, promised_ = 0, largest_ = 0;
  double claimed_ = 0, claimed_at_ = 0;  // the rest it stated with its last grant, and its progress then
  int live_ = 0;
};

/// The records of all jobs that a broker has heard of, `most` of them. Where there is no room for another, those that have
/// been silent for longest and owe nothing are forgotten, a quarter of them at a time: full trust, no piece, not admitted.
class ledger {
 public:
  static constexpr std::size_t most = 1 << 16;

  /// Lets a job in; from now on only such jobs may bid. Errors: `config_error` for one that is in, times that are none,
  /// or a full ledger.
  void admit(int job, const admission& a) {
    if (!std::isfinite(a.arrival) || std::isnan(a.deadline) || !std::isfinite(a.work) || a.work < 0)
      throw config_error("heddle: job " + std::to_string(job) + " is admitted with an arrival at " +
                         std::to_string(a.arrival) + " s, a deadline at " + std::to_string(a.deadline) + " s and " +
                         std::to_string(a.work) + " s of work; give times, and work of at least 0");
    if (records_.count(job) > 0)
      throw config_error("heddle: job " + std::to_string(job) + " has been admitted before, or has bid");
    if (!add(job, job_record(a)))
      throw config_error("heddle: job " + std::to_string(job) + " cannot be admitted: the books hold " +
                         std::to_string(most) + " jobs; retire those that have ended");
    closed_ = true;
  }
  /// A job has ended. Errors: `config_error` if a piece of it runs.
  void retire(int job) {
    const auto found = records_.find(job);
    if (found == records_.end()) return;
    if (found->second.live() > 0)
      throw config_error("heddle: job " + std::to_string(job) + " cannot be retired while a piece of it runs");
    records_.erase(found);
  }
  /// Null if it may not bid: not admitted, or no room.
  job_record* find_or_add(int job, double now) {
    if (job_record* r = find(job)) return r;
    return closed_ ? nullptr : add(job, job_record({.arrival = now}));
  }
  job_record* find(int job) noexcept {
    const auto found = records_.find(job);
    return found == records_.end() ? nullptr : &found->second;
  }
  const job_record* find(int job) const noexcept { return const_cast<ledger*>(this)->find(job); }
  bool admits_all() const noexcept { return !closed_; }
  std::size_t size() const noexcept { return records_.size(); }

 private:
  job_record* add(int job, const job_record& r) {
    if (records_.size() >= most) forget_some();
    if (records_.size() >= most) return nullptr;
    return &records_.emplace(job, r).first->second;
  }

  void forget_some() {
    if (closed_) return;
    const auto owes_nothing = [](const job_record& r) { return r.live() == 0 && r.trust() > 0.99; };
    std::vector<double> heard;
    for (const auto& [job, r] : records_)
      if (owes_nothing(r)) heard.push_back(r.heard());
    if (heard.empty()) return;
    std::size_t some = heard.size() / 4 + 1;
    std::nth_element(heard.begin(), heard.begin() + static_cast<std::ptrdiff_t>(some - 1), heard.end());
    const double until = heard[some - 1];
    std::erase_if(records_, [&](const auto& entry) {
      return some > 0 && owes_nothing(entry.second) && entry.second.heard() <= until && some-- > 0;
    });
  }

  std::map<int, job_record> records_;
  bool closed_ = false;  // to jobs that were not admitted
};

}  // namespace heddle::inline v0::plan::sja
