// heddle/plan/impl/atomization/ledger.hpp: bodies of heddle/plan/atomization/ledger.hpp.
#pragma once

#include <heddle/plan/atomization/ledger.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
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

HEDDLE_INLINE const char* fault_in(const offer& o, const window& w, double shortest) noexcept {
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

HEDDLE_INLINE void job_record::believe(offer& o, double announced, double at, double untold) const noexcept {
  const double candour = candour_with(o.rest, at);
  o.trust = (std::max)(least, delivery_ * candour);
  o.waiting = waiting(announced);
  o.urgency = urgency(announced);
  o.rest = (std::max)(o.rest > 0 ? o.rest : untold, o.end - o.start) / candour;
  if (known_.work > 0) o.useful = (std::min)(o.useful, (std::max)(known_.work * (1 + slack) - at, least * o.useful));
  o.bytes *= held_;
}

HEDDLE_INLINE void job_record::granted(const promise& p, double rest, double at) noexcept {
  if (rest > 0) {
    candour_ = candour_with(rest, at);
    claimed_ = rest;
    claimed_at_ = at;
  }
  promised_ += p.useful;
  ++live_;
}

HEDDLE_INLINE double job_record::ended(const promise& p, const usage& u, double now) noexcept {
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

HEDDLE_INLINE double job_record::kept_of(const promise& p, const usage& u, double now) noexcept {
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

HEDDLE_INLINE void job_record::charge(double kept, double now, double size) noexcept {
  since_ = (std::max)(since_, now);
  if (kept < 1) {
    delivery_ = (std::max)(least, delivery_ * (std::max)(kept, worst));
  } else {
    delivery_ += rate * (std::min)(1.0, size) * (1 - delivery_);
    candour_ += rate * (std::min)(1.0, size) * (1 - candour_);
  }
}

HEDDLE_INLINE void ledger::admit(int job, const admission& a) {
  if (!std::isfinite(a.arrival) || std::isnan(a.deadline) || !std::isfinite(a.work) || a.work < 0)
    throw config_error("heddle: job " + std::to_string(job) + " is admitted with an arrival at " +
                       number_text(a.arrival) + " s, a deadline at " + number_text(a.deadline) + " s and " +
                       number_text(a.work) + " s of work; give times, and work of at least 0");
  if (records_.count(job) > 0)
    throw config_error("heddle: job " + std::to_string(job) + " has been admitted before, or has bid");
  if (!add(job, job_record(a)))
    throw config_error("heddle: job " + std::to_string(job) + " cannot be admitted: the books hold " +
                       std::to_string(most) + " jobs; retire those that have ended");
  closed_ = true;
}

HEDDLE_INLINE void ledger::retire(int job) {
  const auto found = records_.find(job);
  if (found == records_.end()) return;
  if (found->second.live() > 0)
    throw config_error("heddle: job " + std::to_string(job) + " cannot be retired while a piece of it runs");
  records_.erase(found);
}

HEDDLE_INLINE void ledger::forget_some() {
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

}  // namespace heddle::inline v0::plan::sja
