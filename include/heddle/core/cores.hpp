// heddle/core/cores.hpp: the processor cores that a thread may run on, and threads that are bound to a share of them.
#pragma once

#include <heddle/core/config.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace heddle::inline v0::detail {

inline constexpr int most_cpus = 8192;

// The system's numbers of the logical processors that the calling thread may run on; empty where it does not say.
HEDDLE_INLINE std::vector<int> allowed_cpus();

// From now on the calling thread, and the threads that it starts, run on these only. Whether the system agrees.
HEDDLE_INLINE bool bind_this_thread([[maybe_unused]] const std::vector<int>& cpus) noexcept;

// How many logical processors the calling thread may run on, at least 1.
inline int available_cores() {
  const auto allowed = static_cast<int>(allowed_cpus().size());
  return (std::max)(1, allowed > 0 ? allowed : static_cast<int>(std::thread::hardware_concurrency()));
}

// The first logical processor of the same physical core; the processor itself where the system does not say.
HEDDLE_INLINE int first_sibling(int cpu);

// The processors, at least one, cut into `parts`: whole physical cores while there are as many of them as parts, then
// logical processors, at last (more parts than processors) one that several parts share. Balanced: sizes differ by one
// core. `first(cpu)` names the physical core.
class cpu_shares {
 public:
  cpu_shares() = default;
  template <class First>
  cpu_shares(const std::vector<int>& cpus, int parts, const First& first) : parts_(static_cast<std::size_t>(parts)) {
    for (const int cpu : cpus) ordered_.emplace_back(first(cpu), cpu);
    std::sort(ordered_.begin(), ordered_.end());
    for (std::size_t i = 0; i < ordered_.size(); ++i)
      if (i == 0 || ordered_[i].first != ordered_[i - 1].first) begins_.push_back(i);
    if (parts_ > begins_.size()) {
      begins_.resize(ordered_.size());
      for (std::size_t i = 0; i < begins_.size(); ++i) begins_[i] = i;
    }
    begins_.push_back(ordered_.size());
  }
  cpu_shares(const std::vector<int>& cpus, int parts) : cpu_shares(cpus, parts, first_sibling) {}

  std::vector<int> share(int part) const;
  // How many processors each share has at least.
  int smallest() const;

 private:
  std::pair<std::size_t, std::size_t> range(std::size_t part) const {
    const std::size_t units = begins_.size() - 1;
    const std::size_t from = part * units / parts_, to = (std::max)(from + 1, (part + 1) * units / parts_);
    return {begins_[from], begins_[to]};
  }

  std::size_t parts_ = 0;
  std::vector<std::pair<int, int>> ordered_;  // those of a core next to each other
  std::vector<std::size_t> begins_;           // of what is not cut, and the end
};

// Of a thread that is a rank of a launch with bound ranks: how many processors each share has at least, the same on all
// of its ranks; 0 of all other threads.
inline int& cores_of_bound_rank() noexcept {
  thread_local int cores = 0;
  return cores;
}

// How many threads a rank of so many in this process can compute with: its share of the processors, at least 1, the
// same on every rank.
inline int cores_per_rank(int ranks) {
  const int bound = cores_of_bound_rank();
  return bound > 0 ? bound : (std::max)(1, available_cores() / ranks);
}

}  // namespace heddle::inline v0::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/core/impl/cores.hpp>
#endif
