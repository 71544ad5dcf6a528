// heddle/train/progress.hpp: the progress, identity and stop request of a training run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace heddle::inline v0::train {

namespace detail {
// Where a run is.
struct run_position {
  std::int64_t step = 0;
  std::int64_t consumed = 0;
  std::int64_t gradients_of = -1;  // the step whose gradients were asked for
  bool stopped = false;
};
}  // namespace detail

/// What a trainer and its saves know of the run beside weights and moments.
class progress {
 public:
  /// Steps done so far, those before a save included.
  std::int64_t steps_done() const noexcept { return at_.step; }
  /// Position in the data: training samples consumed, over all ranks.
  std::int64_t samples_consumed() const noexcept { return at_.consumed; }
  /// Where a save left off. The rest of the state (weights, moments) is the caller's to bring.
  void set_position(std::int64_t steps_done, std::int64_t samples_consumed) noexcept {
    at_ = {.step = steps_done, .consumed = samples_consumed};
  }
  /// The name that all saves of one run have in their manifests, from the first on and through every `resume`; nothing
  /// before the first. Saves of other runs are never removed.
  const std::optional<std::string>& run_name() const noexcept { return run_; }
  void set_run_name(std::string name) { run_ = std::move(name); }
  /// Whether `options.stop` has ended the run after its last step, until it goes on from a save or by another `run`. The
  /// same on all ranks.
  bool stopped() const noexcept { return at_.stopped; }

 protected:
  detail::run_position at_{};

 private:
  std::optional<std::string> run_;
};

}  // namespace heddle::inline v0::train
