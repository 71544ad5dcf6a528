// heddle/train/report.hpp: the report of a training step, and a printer of progress lines.
#pragma once

#include <heddle/core/text.hpp>

#include <cstddef>
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

/// `"1:02:03"`, `"2:03"`; `"unknown"` for what is no time, or beyond 10^15 seconds.
inline std::string clock_text(double seconds) {
  if (!(seconds >= 0 && seconds < 1e15)) return "unknown";
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
  const auto wide = [](std::string text, std::size_t width) {
    if (text.size() < width) text.insert(0, width - text.size(), ' ');
    return text;
  };
  char rate[32];
  std::snprintf(rate, sizeof rate, "%.2e", r.learning_rate);
  return "step " + wide(std::to_string(r.step + 1), 5) + "/" + std::to_string(r.steps) + "  loss " +
         rounded_text(r.loss, 4) + "  " +
         (r.validation_loss ? "val " + rounded_text(*r.validation_loss, 4) : std::string(10, ' ')) + "  grad norm " +
         wide(rounded_text(r.gradient_norm, 4), 7) + "  lr " + rate + "  " +
         wide(rounded_text(r.tokens_per_second, 0), 7) + " tok/s  ETA " + clock_text(r.seconds_left);
}

/// Listens to nothing.
struct quiet {
  void operator()(const step_report&) const noexcept {}
};

}  // namespace heddle::inline v0::train
