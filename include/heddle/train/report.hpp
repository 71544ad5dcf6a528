// heddle/train/report.hpp: the report of a training step, and a printer of progress lines.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

namespace heddle::inline v0::train {

/// One finished step. The same on every rank, but for the times.
struct step_report {
  std::int64_t step = 0;   ///< counted from 0
  std::int64_t steps = 0;  ///< in the whole run
  double loss = 0;         ///< mean over the step's targets, natural logarithm
  std::optional<double> validation_loss{};
  double gradient_norm = 0;  ///< before clipping
  double learning_rate = 0;
  std::int64_t tokens = 0;       ///< trained on in this step, over all ranks; samples, where a sample has one target
  std::int64_t targets = 0;      ///< of them, those that counted in the loss
  double seconds = 0;            ///< of this step, on this rank
  double tokens_per_second = 0;  ///< average over training steps since the run was started or resumed
  double seconds_left = 0;       ///< at the average pace so far, validation and saves included
};

namespace detail {

// How fast a run goes since it was started or resumed. Units: nanoseconds in.
class pace {
 public:
  explicit pace(std::int64_t now) noexcept : start_(now) {}
  void note(step_report& r, std::int64_t now) noexcept {
    training_ += r.seconds;
    const double seconds = static_cast<double>(now - start_) * 1e-9;
    ++done_;
    r.tokens_per_second = static_cast<double>(r.tokens) * done_ / training_;
    r.seconds_left = seconds / done_ * static_cast<double>(r.steps - r.step - 1);
  }

 private:
  std::int64_t start_;
  double done_ = 0;  // steps
  double training_ = 0;
};

}  // namespace detail

/// `"1:02:03"`, `"2:03"`.
inline std::string clock_text(double seconds) {
  const auto s = static_cast<long long>(seconds + 0.5);
  char text[64];
  if (s >= 3600)
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
  else
    std::snprintf(text, sizeof text, "%lld:%02lld", s / 60, s % 60);
  return text;
}

/// The report of a step in one line.
inline std::string to_string(const step_report& r) {
  char text[256];
  std::snprintf(text, sizeof text, "step %5lld/%lld  loss %.4f  %s  grad norm %7.4f  lr %.2e  %7.0f tok/s  ETA %s",
                static_cast<long long>(r.step + 1), static_cast<long long>(r.steps), r.loss,
                r.validation_loss ? ("val " + std::to_string(*r.validation_loss).substr(0, 6)).c_str() : "          ",
                r.gradient_norm, r.learning_rate, r.tokens_per_second, clock_text(r.seconds_left).c_str());
  return text;
}

/// Listens to nothing.
struct quiet {
  void operator()(const step_report&) const noexcept {}
};

}  // namespace heddle::inline v0::train
