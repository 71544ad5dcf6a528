// heddle/train/online/received_steps.hpp: which steps of which simulations have arrived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace heddle::inline v0::train {

/// A bit for each step of each simulation: one that is started again sends the steps anew that it has sent before.
class received_steps {
 public:
  /// Whether it is the first time.
  bool insert(std::uint32_t simulation, std::uint32_t step) {
    std::vector<bool>& steps = of_[simulation];
    if (steps.size() <= step) steps.resize(static_cast<std::size_t>(step) + 1, false);
    if (steps[step]) {
      ++again_;
      return false;
    }
    steps[step] = true;
    ++count_;
    return true;
  }
  std::int64_t count() const noexcept { return count_; }
  /// How many came that were there.
  std::int64_t again() const noexcept { return again_; }
  std::int64_t simulations() const noexcept { return static_cast<std::int64_t>(of_.size()); }

 private:
  std::map<std::uint32_t, std::vector<bool>> of_{};
  std::int64_t count_ = 0, again_ = 0;
};

}  // namespace heddle::inline v0::train
