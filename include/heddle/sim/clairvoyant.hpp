// heddle/sim/clairvoyant.hpp: the clairvoyant plan of all jobs, and a bound on any plan.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/random.hpp>
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

/// What a piece costs, and how long to search. Units: seconds.
struct clairvoyant_terms {
  double set_up = 0;
  double finish = 0;
  double unit = 1;                ///< a cut leaves whole units behind it
  double least_efficiency = 0.8;  ///< useful part of a piece that is not the rest of its job
  bool cuts = true;               ///< without: every job runs once and whole
  int tries = 5000;               ///< changes of the plan that are tried
  std::uint64_t seed = 1;
};

namespace detail {

// A plan that grows job by job, each put where those before it have left the slices free, as early as can be: a job that
// comes later may be put first.
class foresight {
 public:
  foresight(const slice_cluster& cluster, std::span<const cluster_job> jobs, const clairvoyant_terms& terms);

  // The sum of all ends if jobs are put in this order.
  double place(std::span<const int> order);
  double take_over(std::span<const cluster_piece> pieces);
  // Takes some jobs out and puts them back in this order, if they end no later in sum. Returns what was gained.
  double put_again(std::span<const int> some);
  std::vector<cluster_piece> pieces() const {
    std::vector<cluster_piece> all;
    for (const auto& of_job : plan_) all.insert(all.end(), of_job.begin(), of_job.end());
    return all;
  }

 private:
  using taken = std::pair<double, double>;

  void clear() {
    busy_ = reserved_;
    for (auto& of_job : plan_) of_job.clear();
  }
  double end_of(int job) const { return plan_[static_cast<std::size_t>(job)].back().end; }
  void mark(int job);
  void unmark(int job);
  double put(int job);

  double overhead() const noexcept { return terms_.set_up + terms_.finish; }

  // Calls `f(slice, from, to)` for the free times that reach beyond `ready` of slices with the memory, until it says
  // false for a slice.
  template <class F>
  void for_each_gap(int job, double ready, F&& f) const {
    for (std::size_t k = 0; k < bytes_.size(); ++k) {
      if (jobs_[static_cast<std::size_t>(job)].bytes > bytes_[k]) continue;
      double from = ready;
      bool more = true;
      const auto& list = busy_[k];
      const auto reaches = [](const taken& t, double time) { return t.second <= time; };
      for (auto t = std::lower_bound(list.begin(), list.end(), ready, reaches); t != list.end() && more; ++t) {
        if (t->first > from) more = f(static_cast<int>(k), from, t->first);
        from = (std::max)(from, t->second);
      }
      if (more) f(static_cast<int>(k), from, std::numeric_limits<double>::infinity());
    }
  }
  bool is_smaller(int slice, int than) const {
    return bytes_[static_cast<std::size_t>(slice)] < bytes_[static_cast<std::size_t>(than)];
  }

  cluster_piece whole(int job) const;
  // In pieces, each as early as can be, the longest of these; false unless the job ends before `limit`.
  bool in_pieces(int job, double limit, std::vector<cluster_piece>& cut) const;

  std::vector<double> bytes_;
  std::span<const cluster_job> jobs_;
  clairvoyant_terms terms_;
  std::vector<std::vector<taken>> reserved_, busy_;  // per slice, by time
  std::vector<std::vector<cluster_piece>> plan_;     // per job, by time
  std::vector<std::vector<cluster_piece>> undo_;
};

}  // namespace detail

/// A plan of pieces for all jobs, with little mean wait, by one who knows every arrival, length and reservation
/// beforehand. Jobs are placed one after the other, each as early as can be, whole or cut. From the best of several
/// orders, of EASY backfilling and of the pieces `start` of another run, a search takes a few neighbours out of the plan
/// again and again and puts them back in another order if that is no worse. Up to six jobs: the best of all orders.
/// What it finds can be carried out (`planned_dispatcher`) and is no worse than `start`; a better plan may exist.
/// Errors: `schedule_error` if a job has no slice with its memory, `start` has not all jobs or others, a reservation is of
/// no slice, the terms are no times, or slices have to be re-partitioned.
HEDDLE_INLINE std::vector<cluster_piece> plan_clairvoyantly(const slice_cluster& cluster,
                                                            std::span<const cluster_job> jobs,
                                                            const clairvoyant_terms& terms = {},
                                                            std::span<const cluster_piece> start = {});

/// Carries out a plan: books each job's next piece as soon as the one before it has ended.
class planned_dispatcher {
 public:
  explicit planned_dispatcher(std::vector<cluster_piece> pieces) : pieces_(std::move(pieces)) {
    std::sort(pieces_.begin(), pieces_.end(), [](const cluster_piece& a, const cluster_piece& b) {
      return a.start != b.start ? a.start < b.start : a.job < b.job;
    });
  }

  void decide(cluster_state& s);

 private:
  std::vector<cluster_piece> pieces_;
};

/// Useful seconds until `until` that no dispatcher exceeds: as if cuts cost nothing, a job could have several slices at
/// once, and nothing had to be decided before it is known. Large slices serve first what fits nowhere else.
HEDDLE_INLINE double most_work(const slice_cluster& cluster, std::span<const cluster_job> jobs, double until);

/// The largest `cluster_outcome::utilisation` of any dispatcher.
HEDDLE_INLINE double most_utilisation(const slice_cluster& cluster, std::span<const cluster_job> jobs);

}  // namespace heddle::inline v0::sim

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/sim/impl/clairvoyant.hpp>
#endif
