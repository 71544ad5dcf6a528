// heddle/core/impl/cores.hpp: bodies of heddle/core/cores.hpp.
#pragma once

#include <heddle/core/cores.hpp>
#include <heddle/core/config.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>
#include <sched.h>

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
