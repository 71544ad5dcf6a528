// heddle/infer/serve/statistics.hpp: counts and latencies of a served engine, as Prometheus text.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/infer/engine_counts.hpp>
#include <heddle/infer/event.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Numbers of observations in buckets with upper bounds, and their sum: a histogram of Prometheus.
class histogram {
 public:
  /// `bounds`: of the buckets, ascending; one without a bound follows them.
  explicit histogram(std::initializer_list<double> bounds) : bounds_(bounds), counts_(bounds_.size() + 1) {}
  void observe(double value, std::int64_t times = 1);
  std::int64_t count() const noexcept;
  double sum() const noexcept { return sum_; }
  /// Observations of at most each bound, then of all.
  std::vector<std::int64_t> cumulative() const;
  const std::vector<double>& bounds() const noexcept { return bounds_; }

 private:
  std::vector<double> bounds_;
  std::vector<std::int64_t> counts_;
  double sum_ = 0;
};

/// What a served engine did. Threads may use it at the same time. Units: seconds, tokens, requests.
class serve_statistics {
 public:
  void first_token(double seconds);
  void next_token(double seconds);
  /// A request ended. `seconds`: since it was submitted.
  void ended(finish_reason reason, double seconds, std::int64_t prompt_tokens, std::int64_t answer_tokens);
  /// A call was told to come again: too many requests wait, or constrained answers take too much.
  void refused();
  void publish(const engine_counts& counts);
  engine_counts counts() const;
  /// Conditions that are watched for, by name, and whether they hold now: `condition` in the text (`serve_watch`).
  void set_conditions(std::vector<std::pair<std::string, bool>> conditions);
  /// Requests that ended with a reason.
  std::int64_t ended(finish_reason reason) const;
  /// Text in Prometheus' exposition format 0.0.4. Names are vLLM's with the prefix `heddle:`. `waiting`: requests that did not begin.
  std::string to_text(std::string_view model, std::int64_t waiting) const;

 private:
  mutable std::mutex mutex_{};
  engine_counts counts_{};
  std::array<std::int64_t, 5> reasons_{};  // by finish_reason
  std::int64_t refused_ = 0;
  std::vector<std::pair<std::string, bool>> conditions_{};
  histogram first_{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
  histogram next_{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10};
  histogram whole_{0.01, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240};
  histogram prompt_{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
  histogram answer_{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
};

}  // namespace heddle::inline v0::infer

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/infer/impl/serve/statistics.hpp>
#endif
