// heddle/core/cores.hpp: processor cores that a thread may run on, and binding to them.
#pragma once

#include <heddle/core/config.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace heddle::inline v0::detail {

inline constexpr int most_cpus = 8192;

// The system's numbers of the logical processors that the calling thread may run on; empty where it does not say.
HEDDLE_INLINE std::vector<int> allowed_cpus();

// From now on the calling thread, and the threads that it starts, run on these only. Whether the system agrees.
HEDDLE_INLINE bool bind_this_thread([[maybe_unused]] const std::vector<int>& cpus) noexcept;

// How many logical processors the calling thread may run on, at least 1.
HEDDLE_INLINE int available_cores();

// The first logical processor of the same physical core; the processor itself where the system does not say.
HEDDLE_INLINE int first_sibling(int cpu);

// The processors, at least one, cut into `parts`: whole physical cores while there are as many of them as parts, then
// logical processors, at last (more parts than processors) one that several parts share. Balanced: sizes differ by one
// core.
class cpu_shares {
 public:
  cpu_shares() = default;
  // `first(context, cpu)` names the physical core.
  cpu_shares(const std::vector<int>& cpus, int parts, int (*first)(const void* context, int cpu), const void* context);
  template <class First>
  cpu_shares(const std::vector<int>& cpus, int parts, const First& first)
      : cpu_shares(cpus, parts, [](const void* f, int cpu) { return (*static_cast<const First*>(f))(cpu); }, &first) {}
  cpu_shares(const std::vector<int>& cpus, int parts);

  std::vector<int> share(int part) const;
  // How many processors each share has at least.
  int smallest() const;

 private:
  std::pair<std::size_t, std::size_t> range(std::size_t part) const;

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
HEDDLE_INLINE int cores_per_rank(int ranks);

}  // namespace heddle::inline v0::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/core/impl/cores.hpp>
#endif
