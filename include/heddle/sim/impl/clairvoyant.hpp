// heddle/sim/impl/clairvoyant.hpp: bodies of heddle/sim/clairvoyant.hpp.
#pragma once

#include <heddle/sim/clairvoyant.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/text.hpp>
#include <heddle/sim/slice_cluster.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::sim {
namespace detail {

HEDDLE_INLINE foresight::foresight(const slice_cluster& cluster, std::span<const cluster_job> jobs,
                                   const clairvoyant_terms& terms)
    : bytes_(cluster.bytes), jobs_(jobs), terms_(terms), reserved_(cluster.bytes.size()), plan_(jobs.size()) {
  if (!(terms.set_up >= 0 && terms.finish >= 0 && terms.unit > 0 && terms.least_efficiency >= 0) ||
      !std::isfinite(terms.set_up + terms.finish + terms.unit))
    throw schedule_error("heddle: a plan needs units that take time, and set-up and finish of 0 s or more");
  if (cluster.repartition_seconds != 0)
    throw schedule_error("heddle: a plan beforehand is made for clusters without re-partitioning, got " +
                         number_text(cluster.repartition_seconds) + " s");
  for (const reservation& r : cluster.reservations) {
    if (r.slice < 0 || r.slice >= static_cast<int>(bytes_.size()))
      throw schedule_error("heddle: slice " + std::to_string(r.slice) + " is reserved, there are " +
                           std::to_string(bytes_.size()));
    reserved_[static_cast<std::size_t>(r.slice)].emplace_back(r.start, r.end);
  }
  for (auto& list : reserved_) std::sort(list.begin(), list.end());
  busy_ = reserved_;
  for (const cluster_job& j : jobs)
    if (std::none_of(bytes_.begin(), bytes_.end(), [&](double b) { return j.bytes <= b; }))
      throw schedule_error("heddle: a job of the simulated cluster needs more memory than any slice has");
}

HEDDLE_INLINE double foresight::place(std::span<const int> order) {
  clear();
  double ends = 0;
  for (const int job : order) ends += put(job);
  return ends;
}

HEDDLE_INLINE double foresight::take_over(std::span<const cluster_piece> pieces) {
  clear();
  for (const cluster_piece& p : pieces) {
    if (p.job < 0 || p.job >= static_cast<int>(jobs_.size()) || p.slice < 0 ||
        p.slice >= static_cast<int>(bytes_.size()))
      throw schedule_error("heddle: a plan to start from has job " + std::to_string(p.job) + " on slice " +
                           std::to_string(p.slice) + ", which do not both exist");
    plan_[static_cast<std::size_t>(p.job)].push_back(p);
  }
  double ends = 0;
  for (std::size_t j = 0; j < jobs_.size(); ++j) {
    if (plan_[j].empty()) throw schedule_error("heddle: a plan to start from lacks job " + std::to_string(j));
    mark(static_cast<int>(j));
    ends += end_of(static_cast<int>(j));
  }
  return ends;
}

HEDDLE_INLINE double foresight::put_again(std::span<const int> some) {
  double before = 0, after = 0;
  undo_.clear();
  for (const int job : some) {
    before += end_of(job);
    unmark(job);
    undo_.push_back(std::move(plan_[static_cast<std::size_t>(job)]));
    plan_[static_cast<std::size_t>(job)].clear();
  }
  for (const int job : some) after += put(job);
  if (after <= before) return before - after;
  for (const int job : some) unmark(job);
  for (std::size_t i = 0; i < some.size(); ++i) {
    plan_[static_cast<std::size_t>(some[i])] = std::move(undo_[i]);
    mark(some[i]);
  }
  return 0;
}

HEDDLE_INLINE void foresight::mark(int job) {
  for (const cluster_piece& p : plan_[static_cast<std::size_t>(job)]) {
    auto& list = busy_[static_cast<std::size_t>(p.slice)];
    const taken entry(p.start, p.end);
    list.insert(std::upper_bound(list.begin(), list.end(), entry), entry);
  }
}

HEDDLE_INLINE void foresight::unmark(int job) {
  for (const cluster_piece& p : plan_[static_cast<std::size_t>(job)]) {
    auto& list = busy_[static_cast<std::size_t>(p.slice)];
    list.erase(std::lower_bound(list.begin(), list.end(), taken(p.start, p.end)));
  }
}

HEDDLE_INLINE double foresight::put(int job) {
  auto& mine = plan_[static_cast<std::size_t>(job)];
  const cluster_piece once = whole(job);
  if (!terms_.cuts || !in_pieces(job, once.end, mine)) mine.assign(1, once);
  mark(job);
  return end_of(job);
}

HEDDLE_INLINE cluster_piece foresight::whole(int job) const {
  const cluster_job& j = jobs_[static_cast<std::size_t>(job)];
  const double length = overhead() + j.work;
  cluster_piece best;
  for_each_gap(job, j.arrival, [&](int slice, double from, double to) {
    if (best.job >= 0 && from > best.start) return false;
    if (from + length > to) return true;
    if (best.job < 0 || from < best.start || is_smaller(slice, best.slice))
      best = {job, slice, from, from + length, j.work};
    return false;
  });
  return best;
}

HEDDLE_INLINE bool foresight::in_pieces(int job, double limit, std::vector<cluster_piece>& cut) const {
  const cluster_job& j = jobs_[static_cast<std::size_t>(job)];
  cut.clear();
  double left = j.work, ready = j.arrival;
  while (left > 0) {
    cluster_piece best;
    for_each_gap(job, ready, [&](int slice, double from, double to) {
      if (from >= limit || (best.job >= 0 && from > best.start)) return false;
      double work = left;
      if (from + overhead() + left > to) {
        work = std::floor((to - from - overhead()) / terms_.unit * (1 + 1e-12)) * terms_.unit;
        if (work < terms_.unit || work < terms_.least_efficiency * (overhead() + work)) return true;
      }
      const bool better =
          best.job < 0 || from < best.start || work > best.work || (work == best.work && is_smaller(slice, best.slice));
      if (better) best = {job, slice, from, (std::min)(from + overhead() + work, to), work};
      return false;
    });
    if (best.job < 0) return false;
    left = best.work < left ? left - best.work : 0;
    ready = best.end;
    cut.push_back(best);
  }
  return ready < limit;
}

}  // namespace detail
}  // namespace heddle::inline v0::sim

namespace heddle::inline v0::sim {

HEDDLE_INLINE std::vector<cluster_piece> plan_clairvoyantly(const slice_cluster& cluster,
                                                            std::span<const cluster_job> jobs,
                                                            const clairvoyant_terms& terms,
                                                            std::span<const cluster_piece> start) {
  detail::foresight plan(cluster, jobs, terms);
  std::vector<int> order(jobs.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<cluster_piece> best(start.begin(), start.end());
  double least = start.empty() ? std::numeric_limits<double>::infinity() : plan.take_over(start);
  const auto consider = [&](double ends) {
    if (ends >= least) return;
    least = ends;
    best = plan.pieces();
  };
  if (jobs.size() <= 6) {
    do consider(plan.place(order));
    while (std::next_permutation(order.begin(), order.end()));
    return best;
  }
  for (const double lengths : {0.0, 1.0, 4.0, 16.0, 1e6}) {
    const auto key = [&](int j) {
      const cluster_job& job = jobs[static_cast<std::size_t>(j)];
      return std::pair(job.arrival + lengths * job.work, j);
    };
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int a, int b) { return key(a) < key(b); });
    consider(plan.place(order));
  }
  easy_backfilling rigid;
  rigid.set_up = terms.set_up;
  rigid.finish = terms.finish;
  consider(plan.take_over(simulate_cluster(cluster, jobs, rigid).ran));
  plan.take_over(best);

  const counter_random random(terms.seed, 0);
  std::uint64_t next = 0;
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random.integer(next++) % n); };
  const std::size_t reach = (std::min)(jobs.size(), std::size_t{40});
  for (int t = 0; t < terms.tries; ++t) {
    const std::size_t first = below(jobs.size() - reach + 1);
    std::vector<int> some;
    for (std::size_t n = 2 + below(5); some.size() < n;) {
      const int job = static_cast<int>(first + below(reach));
      if (std::find(some.begin(), some.end(), job) == some.end()) some.push_back(job);
    }
    if (below(2) == 0)
      std::sort(some.begin(), some.end(), [&](int a, int b) {
        return jobs[static_cast<std::size_t>(a)].work < jobs[static_cast<std::size_t>(b)].work;
      });
    plan.put_again(some);
  }
  return plan.pieces();
}

HEDDLE_INLINE void planned_dispatcher::decide(cluster_state& s) {
  const std::vector<int> waiting(s.waiting().begin(), s.waiting().end());
  for (const int job : waiting) {
    const auto next =
        std::find_if(pieces_.begin(), pieces_.end(), [&](const cluster_piece& p) { return p.job == job; });
    if (next == pieces_.end()) continue;
    const cluster_piece p = *next;
    pieces_.erase(next);
    s.start(p);
  }
}

HEDDLE_INLINE double most_work(const slice_cluster& cluster, std::span<const cluster_job> jobs, double until) {
  std::vector<double> kinds = cluster.bytes;  // of slices, by memory, the largest first
  std::sort(kinds.begin(), kinds.end(), std::greater<>());
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  auto free = std::vector<double>(kinds.size(), 0.0), backlog = free;
  const auto kind_of = [&](double bytes) {  // the smallest that will do
    std::size_t k = kinds.size();
    while (k > 0 && kinds[k - 1] < bytes) --k;
    return k;  // 0: none
  };
  struct change {
    double at = 0;
    std::size_t kind = 0;
    double slices = 0, work = 0;
  };
  std::vector<change> changes{{until, 0, 0, 0}};
  for (const double b : cluster.bytes) free[kind_of(b) - 1] += 1;
  for (const reservation& r : cluster.reservations) {
    const std::size_t k = kind_of(cluster.bytes.at(static_cast<std::size_t>(r.slice))) - 1;
    changes.push_back({r.start, k, -1, 0});
    changes.push_back({r.end, k, 1, 0});
  }
  for (const cluster_job& j : jobs)
    if (const std::size_t k = kind_of(j.bytes); k > 0 && j.arrival < until)
      changes.push_back({j.arrival, k - 1, 0, (std::min)(j.work, until - j.arrival)});
  std::sort(changes.begin(), changes.end(), [](const change& a, const change& b) { return a.at < b.at; });
  double now = 0, done = 0;
  for (const change& c : changes) {
    if (c.at > now) {
      const double seconds = (std::min)(c.at, until) - now;
      for (std::size_t k = 0; k < kinds.size(); ++k) {
        double left = seconds * free[k];
        for (std::size_t j = k; j < kinds.size() && left > 0; ++j) {
          const double served = (std::min)(left, backlog[j]);
          backlog[j] -= served;
          left -= served;
          done += served;
        }
      }
      now = c.at;
    }
    if (c.at >= until) break;
    free[c.kind] += c.slices;
    backlog[c.kind] += c.work;
  }
  return done;
}

HEDDLE_INLINE double most_utilisation(const slice_cluster& cluster, std::span<const cluster_job> jobs) {
  const double last = jobs.empty() ? 0 : jobs.back().arrival;
  double free = last * static_cast<double>(cluster.bytes.size());
  for (const reservation& r : cluster.reservations)
    free -= (std::max)(0.0, (std::min)(r.end, last) - (std::max)(r.start, 0.0));
  return free > 0 ? most_work(cluster, jobs, last) / free : 0;
}

}  // namespace heddle::inline v0::sim
