// heddle/core/impl/cores.hpp: bodies of heddle/core/cores.hpp.
#pragma once

#include <heddle/core/cores.hpp>
#include <heddle/core/config.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace heddle::inline v0::detail {

HEDDLE_INLINE std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
#if defined(__linux__)
  std::array<cpu_set_t, most_cpus / CPU_SETSIZE> set{};
  if (::sched_getaffinity(0, sizeof set, set.data()) != 0) return cpus;
  for (int cpu = 0; cpu < most_cpus; ++cpu)
    if (CPU_ISSET_S(static_cast<std::size_t>(cpu), sizeof set, set.data())) cpus.push_back(cpu);
#endif
  return cpus;
}

HEDDLE_INLINE bool bind_this_thread([[maybe_unused]] const std::vector<int>& cpus) noexcept {
#if defined(__linux__)
  std::array<cpu_set_t, most_cpus / CPU_SETSIZE> set{};
  for (const int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), sizeof set, set.data());
  return ::sched_setaffinity(0, sizeof set, set.data()) == 0;
#else
  return false;
#endif
}

HEDDLE_INLINE int first_sibling(int cpu) {
  static std::array<std::atomic<int>, most_cpus> known{};  // plus 1; it never changes
  std::atomic<int>& place = known[static_cast<std::size_t>(cpu)];
  if (const int k = place.load(std::memory_order_relaxed); k != 0) return k - 1;
  int first = cpu;
#if defined(__linux__)
  char path[96];
  std::snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
  if (std::FILE* const file = std::fopen(path, "r"); file != nullptr) {
    int read = 0;
    if (std::fscanf(file, "%d", &read) == 1 && read >= 0 && read < most_cpus) first = read;
    std::fclose(file);
  }
#endif
  place.store(first + 1, std::memory_order_relaxed);
  return first;
}

HEDDLE_INLINE int available_cores() {
  const auto allowed = static_cast<int>(allowed_cpus().size());
  return (std::max)(1, allowed > 0 ? allowed : static_cast<int>(std::thread::hardware_concurrency()));
}

HEDDLE_INLINE int cores_per_rank(int ranks) {
  const int bound = cores_of_bound_rank();
  return bound > 0 ? bound : (std::max)(1, available_cores() / ranks);
}

HEDDLE_INLINE cpu_shares::cpu_shares(const std::vector<int>& cpus, int parts, int (*first)(const void*, int),
                                     const void* context)
    : parts_(static_cast<std::size_t>(parts)) {
  for (const int cpu : cpus) ordered_.emplace_back(first(context, cpu), cpu);
  std::sort(ordered_.begin(), ordered_.end());
  for (std::size_t i = 0; i < ordered_.size(); ++i)
    if (i == 0 || ordered_[i].first != ordered_[i - 1].first) begins_.push_back(i);
  if (parts_ > begins_.size()) {
    begins_.resize(ordered_.size());
    for (std::size_t i = 0; i < begins_.size(); ++i) begins_[i] = i;
  }
  begins_.push_back(ordered_.size());
}
HEDDLE_INLINE cpu_shares::cpu_shares(const std::vector<int>& cpus, int parts)
    : cpu_shares(cpus, parts, [](const void*, int cpu) { return first_sibling(cpu); }, nullptr) {}

HEDDLE_INLINE std::pair<std::size_t, std::size_t> cpu_shares::range(std::size_t part) const {
  const std::size_t units = begins_.size() - 1;
  const std::size_t from = part * units / parts_, to = (std::max)(from + 1, (part + 1) * units / parts_);
  return {begins_[from], begins_[to]};
}

HEDDLE_INLINE std::vector<int> cpu_shares::share(int part) const {
  const auto [from, to] = range(static_cast<std::size_t>(part));
  std::vector<int> cpus;
  for (std::size_t i = from; i < to; ++i) cpus.push_back(ordered_[i].second);
  return cpus;
}

HEDDLE_INLINE int cpu_shares::smallest() const {
  std::size_t least = ordered_.size();
  for (std::size_t part = 0; part < parts_; ++part) {
    const auto [from, to] = range(part);
    least = (std::min)(least, to - from);
  }
  return static_cast<int>(least);
}

}  // namespace heddle::inline v0::detail
