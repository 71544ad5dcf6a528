// heddle/plan/atomization/ledger.hpp: a broker's record of promised and delivered work of each job.
#pragma once

#include <heddle/core/config.hpp>
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
HEDDLE_INLINE const char* fault_in(const offer& o, const window& w, double shortest) noexcept;

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
  void believe(offer& o, double announced, double at, double untold) const noexcept;
  /// A piece was made. `rest`: as the job said, that of the piece among it; 0: it did not say.
  void granted(const promise& p, double rest, double at) noexcept;
  /// A piece was granted, and the job made another.
  void broke_off(double now) noexcept { charge(0, now); }
  /// A piece has ended. How much of the promise it kept: in [0, 1].
  double ended(const promise& p, const usage& u, double now) noexcept;

 private:
  double candour_with(double rest, double at) const noexcept {
    if (!(claimed_ > 0) || !(rest > 0)) return candour_;
    const double more = at + rest - claimed_at_ - claimed_;  // than it said
    return more > slack * claimed_ ? (std::max)(least_candour, candour_ * claimed_ / (claimed_ + more)) : candour_;
  }
  static double kept_of(const promise& p, const usage& u, double now) noexcept;
  void charge(double kept, double now, double size = 0) noexcept;

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
  void admit(int job, const admission& a);
  /// A job has ended. Errors: `config_error` if a piece of it runs.
  void retire(int job);
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

  void forget_some();

  std::map<int, job_record> records_;
  bool closed_ = false;  // to jobs that were not admitted
};

}  // namespace heddle::inline v0::plan::sja

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/atomization/ledger.hpp>
#endif
