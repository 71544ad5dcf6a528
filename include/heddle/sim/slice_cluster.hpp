// heddle/sim/slice_cluster.hpp: jobs on slices of a cluster in virtual time.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <queue>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::sim {

/// A job that needs one slice at a time. Units: seconds; bytes.
struct cluster_job {
  double arrival = 0;
  double work = 0;  ///< useful seconds, as long on any slice
  double bytes = 0;
};

/// A slice that is somebody else's in [start, end). Units: seconds.
struct reservation {
  int slice = 0;
  double start = 0;
  double end = 0;
};

/// Slices of given memory. Reservations of a slice do not overlap.
struct slice_cluster {
  std::vector<double> bytes;
  std::vector<reservation> reservations;
  double repartition_seconds = 0;  ///< a piece begins with so many where others had its slice before
};

/// A run of a job on a slice: `work` useful seconds somewhere in [start, end), behind those of re-partitioning.
struct cluster_piece {
  int job = -1;
  int slice = -1;
  double start = 0;
  double end = 0;
  double work = 0;
};

/// What a simulated cluster did. Times are means over jobs. Units: seconds.
struct cluster_outcome {
  double utilisation = 0;  ///< useful time of free time, until the last arrival
  double wait = 0;         ///< from arrival to completion, without the job's work
  double first_wait = 0;   ///< from arrival to the first start
  double makespan = 0;
  double overhead = 0;  ///< occupied, but not useful (re-partitioning among it), of what is occupied
  int pieces = 0;
  std::vector<cluster_piece> ran;  ///< all of them, in the order they were given out
};

/// What a dispatcher sees and does at one time.
class cluster_state {
 public:
  /// Errors: `schedule_error` for a job or a reservation that cannot be, or jobs that do not come in order.
  cluster_state(const slice_cluster& cluster, std::span<const cluster_job> jobs)
      : bytes_(cluster.bytes),
        jobs_(jobs),
        repartition_(cluster.repartition_seconds),
        left_(jobs.size()),
        busy_(cluster.bytes.size()),
        had_(cluster.bytes.size()) {
    if (!(repartition_ >= 0) || !std::isfinite(repartition_))
      throw schedule_error("heddle: re-partitioning a slice of a simulated cluster takes 0 s or more, not " +
                           number_text(repartition_));
    double before = 0;
    for (std::size_t j = 0; j < jobs.size(); ++j) {
      const cluster_job& job = jobs[j];
      if (!(job.arrival >= before && job.work >= 0 && job.bytes >= 0) || !std::isfinite(job.arrival + job.work))
        throw schedule_error("heddle: job " + std::to_string(j) + " of a simulated cluster comes at " +
                             number_text(job.arrival) + " s with " + number_text(job.work) + " s of work and " +
                             number_text(job.bytes) + " bytes; give numbers from 0 on, and jobs as they come");
      before = job.arrival;
      left_[j] = job.work;
    }
    for (const reservation& r : cluster.reservations) {
      if (r.slice < 0 || r.slice >= slices() || !(r.start <= r.end))
        throw schedule_error("heddle: slice " + std::to_string(r.slice) + " of " + std::to_string(slices()) +
                             " of a simulated cluster cannot be reserved from " + number_text(r.start) + " s to " +
                             number_text(r.end) + " s");
      busy_[at(r.slice)].emplace_back(r.start, r.end);
    }
    for (std::size_t k = 0; k < busy_.size(); ++k) {
      std::sort(busy_[k].begin(), busy_[k].end());
      for (std::size_t i = 1; i < busy_[k].size(); ++i)
        if (busy_[k][i].first < busy_[k][i - 1].second)
          throw schedule_error("heddle: slice " + std::to_string(k) + " of a simulated cluster is reserved twice at " +
                               std::to_string(busy_[k][i].first) + " s");
    }
  }

  double now() const noexcept { return now_; }
  std::span<const cluster_job> jobs() const noexcept { return jobs_; }
  int slices() const noexcept { return static_cast<int>(bytes_.size()); }
  double bytes(int slice) const { return bytes_[at(slice)]; }
  /// Jobs that have arrived, have work left and no piece, in the order of their arrival.
  std::span<const int> waiting() const noexcept { return waiting_; }
  double left(int job) const { return left_[at(job)]; }

  /// Until when a slice is free; now, if it is not. Infinity: for ever.
  double free_until(int slice) const {
    for (const auto& [start, end] : busy_[at(slice)]) {
      if (end <= now_) continue;
      return start <= now_ ? now_ : start;
    }
    return std::numeric_limits<double>::infinity();
  }
  /// The earliest time from now on when a slice is free for so long.
  double earliest(int slice, double seconds) const {
    double from = now_;
    for (const auto& [start, end] : busy_[at(slice)]) {
      if (end <= from) continue;
      if (from + seconds <= start * (1 + 1e-12)) return from;
      from = end;
    }
    return from;
  }
  /// What re-partitioning takes.
  double repartition_seconds() const noexcept { return repartition_; }
  /// What it takes before a job can use a slice that is free now: nothing if that job was the last to have it, or nobody
  /// has had it; booked for `later`, always all, as others may come before.
  double repartition(int slice, int job, bool later = false) const {
    const holder& h = had_[at(slice)];
    return later || (h.job != job && h.job != nobody) ? repartition_ : 0;
  }
  /// Starts a piece, or books one for later. Errors: `schedule_error` if the slice is not free then, the job does not
  /// wait or fit, or the piece is too short for re-partitioning and its work.
  void start(const cluster_piece& p) {
    const auto found = std::find(waiting_.begin(), waiting_.end(), p.job);
    bool free = found != waiting_.end() && jobs_[at(p.job)].bytes <= bytes_[at(p.slice)] && p.start >= now_;
    auto& list = busy_[at(p.slice)];
    for (const auto& [start, end] : list) free = free && (p.end <= start * (1 + 1e-12) || end <= p.start * (1 + 1e-12));
    if (!free)
      throw schedule_error("heddle: at " + number_text(now_) + " s job " + std::to_string(p.job) +
                           " cannot have slice " + std::to_string(p.slice) + " from " + number_text(p.start) +
                           " s to " + number_text(p.end) + " s");
    const double before = repartition(p.slice, p.job, p.start > now_);
    if (before > 0 && p.end - p.start < (before + p.work) * (1 - 1e-12) - 1e-9 * p.end)
      throw schedule_error("heddle: job " + std::to_string(p.job) + " is given slice " + std::to_string(p.slice) +
                           " for " + number_text(p.end - p.start) + " s, too short for " + number_text(before) +
                           " s of re-partitioning and " + number_text(p.work) + " s of work");
    const std::pair<double, double> entry(p.start, p.end);
    list.insert(std::upper_bound(list.begin(), list.end(), entry), entry);
    waiting_.erase(found);
    running_.push_back(p);
  }

 private:
  template <class Dispatcher>
  friend cluster_outcome simulate_cluster(const slice_cluster&, std::span<const cluster_job>, Dispatcher&&);
  static std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }
  static constexpr int nobody = -2, somebody_else = -1;
  struct holder {  // the last one of a slice, and until when
    int job = nobody;
    double end = -std::numeric_limits<double>::infinity();
  };
  void hold(int slice, int job, double end) {
    holder& h = had_[at(slice)];
    if (end > h.end) h = {job, end};
  }

  std::vector<double> bytes_;
  std::span<const cluster_job> jobs_;
  double repartition_;
  std::vector<double> left_;
  std::vector<std::vector<std::pair<double, double>>> busy_;  // per slice, by time: reserved or given
  std::vector<holder> had_;
  std::vector<int> waiting_;
  std::vector<cluster_piece> running_;
  double now_ = 0;
};

/// Runs all jobs on simulated slices. Whenever a job arrives, a piece ends or a reservation ends,
/// `dispatcher.decide(state)` may start pieces; `dispatcher.ended(state, piece)`, if it has that, is told first. Jobs
/// are in the order of their arrival.
/// Errors: `schedule_error` for jobs and reservations that cannot be, or if jobs are left that nobody starts.
template <class Dispatcher>
cluster_outcome simulate_cluster(const slice_cluster& cluster, std::span<const cluster_job> jobs,
                                 Dispatcher&& dispatcher) {
  cluster_state s(cluster, jobs);
  cluster_outcome out;
  if (jobs.empty()) return out;
  const double last = jobs.back().arrival;
  std::priority_queue<double, std::vector<double>, std::greater<double>> times;
  for (const cluster_job& j : jobs) times.push(j.arrival);
  double free = last * static_cast<double>(s.slices());
  for (const reservation& r : cluster.reservations) {
    times.push(r.end);
    free -= (std::max)(0.0, (std::min)(r.end, last) - (std::max)(r.start, 0.0));
  }
  std::vector<reservation> ending = cluster.reservations;
  std::sort(ending.begin(), ending.end(), [](const reservation& a, const reservation& b) { return a.end < b.end; });
  std::size_t ended = 0;
  std::vector<bool> started(jobs.size());
  std::size_t arrived = 0;
  int finished = 0;
  double useful = 0, occupied = 0, work = 0;
  const auto n = static_cast<double>(jobs.size());
  while (!times.empty() && finished < static_cast<int>(jobs.size())) {
    s.now_ = times.top();
    while (!times.empty() && times.top() == s.now_) times.pop();
    for (; ended < ending.size() && ending[ended].end <= s.now_; ++ended)
      if (ending[ended].start < ending[ended].end)
        s.hold(ending[ended].slice, cluster_state::somebody_else, ending[ended].end);
    for (std::size_t k = 0; k < s.running_.size();) {
      const cluster_piece p = s.running_[k];
      if (p.end > s.now_) {
        ++k;
        continue;
      }
      s.running_.erase(s.running_.begin() + static_cast<std::ptrdiff_t>(k));
      s.hold(p.slice, p.job, p.end);
      const auto j = static_cast<std::size_t>(p.job);
      s.left_[j] -= p.work;
      if (s.left_[j] <= 1e-9 * jobs[j].work) {
        ++finished;
        s.left_[j] = 0;
        out.wait += (p.end - jobs[j].arrival - jobs[j].work) / n;
        out.makespan = (std::max)(out.makespan, p.end);
      } else {
        s.waiting_.insert(std::lower_bound(s.waiting_.begin(), s.waiting_.end(), p.job), p.job);
      }
      if constexpr (requires { dispatcher.ended(s, p); }) dispatcher.ended(s, p);
    }
    for (; arrived < jobs.size() && jobs[arrived].arrival <= s.now_; ++arrived)
      s.waiting_.push_back(static_cast<int>(arrived));
    const std::size_t before = s.running_.size();
    dispatcher.decide(s);
    for (std::size_t k = before; k < s.running_.size(); ++k) {
      const cluster_piece& p = s.running_[k];
      times.push(p.end);
      ++out.pieces;
      out.ran.push_back(p);
      occupied += p.end - p.start;
      work += p.work;
      const double before_last = (std::max)(0.0, (std::min)(p.end, last) - p.start);
      if (before_last > 0) useful += p.work * before_last / (p.end - p.start);
      if (const auto j = static_cast<std::size_t>(p.job); !started[j]) {
        started[j] = true;
        out.first_wait += (p.start - jobs[j].arrival) / n;
      }
    }
    for (auto& list : s.busy_)  // what is past
      list.erase(list.begin(),
                 std::find_if(list.begin(), list.end(), [&](const auto& b) { return b.second > s.now_; }));
  }
  if (finished < static_cast<int>(jobs.size()))
    throw schedule_error("heddle: " + std::to_string(jobs.size() - static_cast<std::size_t>(finished)) +
                         " jobs of the simulated cluster never end; has a slice the memory they need?");
  out.utilisation = free > 0 ? useful / free : 0;
  out.overhead = occupied > 0 ? 1 - work / occupied : 0;
  return out;
}

/// Rigid jobs, first come first served: each runs once, from set-up to finish, without interruption; none starts before
/// those that came earlier. On the smallest free slice that will do, of these in the shortest gap.
struct first_come {
  double set_up = 0;
  double finish = 0;

  void decide(cluster_state& s) const {
    while (!s.waiting().empty() && start_now(s, s.waiting().front(), -1, 0)) {
    }
  }

 protected:
  double seconds(const cluster_state& s, int job) const { return set_up + s.left(job) + finish; }  // on its slice
  // On slice `kept` only what ends by `until`.
  bool start_now(cluster_state& s, int job, int kept, double until) const {
    const double own = seconds(s, job);
    int best = -1;
    for (int k = 0; k < s.slices(); ++k) {
      if (s.bytes(k) < s.jobs()[static_cast<std::size_t>(job)].bytes) continue;
      const double length = s.repartition(k, job) + own, end = s.now() + length;
      if (s.free_until(k) <= s.now() || s.earliest(k, length) > s.now()) continue;
      if (k == kept && end > until) continue;
      if (best < 0 || s.bytes(k) < s.bytes(best) ||
          (s.bytes(k) == s.bytes(best) && s.free_until(k) < s.free_until(best)))
        best = k;
    }
    if (best >= 0) s.start({job, best, s.now(), s.now() + s.repartition(best, job) + own, s.left(job)});
    return best >= 0;
  }
};

/// EASY backfilling: as first come first served, but when the first job must wait, its earliest slice and time are kept
/// for it, and later jobs start now where they do not delay it. All know how long they take.
/// Source: Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
struct easy_backfilling : first_come {
  void decide(cluster_state& s) const {
    first_come::decide(s);
    if (s.waiting().empty()) return;
    const int head = s.waiting().front();
    int kept = -1;
    double from = std::numeric_limits<double>::infinity();
    for (int k = 0; k < s.slices(); ++k) {
      if (s.bytes(k) < s.jobs()[static_cast<std::size_t>(head)].bytes) continue;
      if (const double t = s.earliest(k, s.repartition_seconds() + seconds(s, head)); t < from) {
        from = t;
        kept = k;
      }
    }
    const std::vector<int> others(s.waiting().begin() + 1, s.waiting().end());
    for (const int job : others) start_now(s, job, kept, from);
  }
};

}  // namespace heddle::inline v0::sim
