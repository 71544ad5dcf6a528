// heddle/train/online/received_steps.hpp: the steps of simulations that have arrived.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>

namespace heddle::inline v0::train {

/// A bit for each step of each simulation: one that is started again sends the steps anew that it has sent before.
/// Memory: 512 bytes for each 4,096 steps of which one has come, wherever they are.
class received_steps {
 public:
  /// Whether it is the first time.
  bool insert(std::uint32_t simulation, std::uint32_t step) {
    std::bitset<page_steps>& page = of_[simulation][step / page_steps];
    const std::size_t at = step % page_steps;
    if (page[at]) {
      ++again_;
      return false;
    }
    page[at] = true;
    ++count_;
    return true;
  }
  std::int64_t count() const noexcept { return count_; }
  /// How many came that were there.
  std::int64_t again() const noexcept { return again_; }
  std::int64_t simulations() const noexcept { return static_cast<std::int64_t>(of_.size()); }

 private:
  static constexpr std::size_t page_steps = 4096;
  std::map<std::uint32_t, std::map<std::size_t, std::bitset<page_steps>>> of_{};
  std::int64_t count_ = 0, again_ = 0;
};

}  // namespace heddle::inline v0::train
