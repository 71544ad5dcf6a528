// heddle/sim/reliability.hpp: checkpoint intervals (Young, Daly) and simulated failures.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/text.hpp>

#include <cmath>
#include <cstdint>
#include <limits>

namespace heddle::inline v0::sim {

/// A job that fails and goes on from its last save. Failures come at random, one in `between_failures` on average. Units: seconds.
struct failing_job {
  double between_failures = std::numeric_limits<double>::infinity();  ///< of the whole job: a device's over the devices
  double save = 0;                                                    ///< that the job stands still for a save
  double restart = 0;  ///< from a failure until it computes again: detection, replacement, reading the save
};

namespace detail {
inline void require_failing_job(const failing_job& job, double interval, double work = 1) {
  const auto good = [](double x) { return x >= 0 && x < std::numeric_limits<double>::infinity(); };
  if (!(job.between_failures > 0) || !good(job.save) || !good(job.restart) || !(interval > 0) || !good(work))
    throw config_error(text_of(
        {"heddle: a job needs times between failures and between saves above 0, and a save, a restart and work that "
         "are finite and not "
         "negative; got ",
         number_text(job.between_failures), ", ", number_text(interval), ", ", number_text(job.save), ", ",
         number_text(job.restart), " and ", number_text(work), " seconds"}));
}
}  // namespace detail

/// Seconds of work between saves that cost least, to first order: sqrt(2 save between_failures).
/// Source: Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.
inline double young_interval(const failing_job& job) {
  detail::require_failing_job(job, 1);
  return std::sqrt(2 * job.save * job.between_failures);
}

/// The same to higher order; `between_failures` where a save takes twice as long or longer.
/// Source: Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006, equation 37.
inline double daly_interval(const failing_job& job) {
  detail::require_failing_job(job, 1);
  if (!(job.save < 2 * job.between_failures)) return job.between_failures;
  const double x = job.save / (2 * job.between_failures);
  return std::sqrt(2 * job.save * job.between_failures) * (1 + std::sqrt(x) / 3 + x / 9) - job.save;
}

/// Expected seconds for `work` seconds of computation with a save after every `interval` of it, where failures come at any time, also in
/// saves and restarts: M e^(R/M) (e^((interval + save)/M) - 1) work / interval. Source: Daly 2006, equation 20.
inline double expected_seconds(const failing_job& job, double interval, double work) {
  detail::require_failing_job(job, interval, work);
  const double m = job.between_failures;
  if (!(m < std::numeric_limits<double>::infinity())) return work * (1 + job.save / interval);
  return m * std::exp(job.restart / m) * std::expm1((interval + job.save) / m) * (work / interval);
}

/// Expected share of the time in which the job makes progress that is not lost.
inline double effective_share(const failing_job& job, double interval) {
  return 1 / expected_seconds(job, interval, 1);
}

/// What became of a job. Units: seconds.
struct job_history {
  double seconds = 0;     ///< from begin to end
  double lost = 0;        ///< computed since the last save, or spent on one, and lost with a failure
  double restarting = 0;  ///< in restarts, those that failed among them
  double saving = 0;      ///< in saves that were finished
  std::int64_t failures = 0;
};

/// One run of the job with failures drawn at random (exponential times between them), by the rules of `expected_seconds`; the last
/// save comes at the end of the work. Errors: `config_error` for times that make no sense, and for a job that would not end: one that is
/// expected to take a million times its work.
inline job_history simulate_failures(const failing_job& job, double interval, double work, std::uint64_t seed) {
  detail::require_failing_job(job, interval, work);
  if (!(expected_seconds(job, interval, work) <= 1e6 * work))
    throw config_error(text_of({"heddle: a job that fails every ", number_text(job.between_failures),
                                " seconds hardly ever gets through ", number_text(interval + job.save),
                                " seconds between saves and a restart of ", number_text(job.restart)}));
  if (!(work / interval <= 1e9))
    throw config_error(text_of({"heddle: ", number_text(work), " seconds of work are more than 10^9 intervals of ",
                                number_text(interval), " seconds between saves"}));
  const counter_random random(seed, 0);
  std::uint64_t draw = 0;
  job_history h;
  const auto until_failure = [&] { return -std::log1p(-random.uniform(draw++)) * job.between_failures; };
  double healthy = until_failure();
  // Goes on for so long or until the next failure, and adds the seconds of what failed to `failed`.
  const auto lasts = [&](double seconds, double& failed) {
    const bool fails = healthy < seconds;
    const double spent = fails ? healthy : seconds;
    h.seconds += spent;
    h.failures += fails;
    failed += fails ? spent : 0;
    healthy = fails ? until_failure() : healthy - spent;
    return !fails;
  };
  for (double done = 0; done < work;) {
    const double part = done + interval < work ? interval : work - done;
    while (!lasts(part + job.save, h.lost)) {
      while (!lasts(job.restart, h.restarting)) {
      }
      h.restarting += job.restart;
    }
    h.saving += job.save;
    done = done + interval < work ? done + interval : work;
  }
  return h;
}

}  // namespace heddle::inline v0::sim
