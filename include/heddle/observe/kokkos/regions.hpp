// heddle/observe/kokkos/regions.hpp: observers with Kokkos Tools' regions or sections.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0 {

/// Two ranks of one process gave regions to Kokkos Tools, which has one stack of them.
struct kokkos_regions_error : config_error {
  using config_error::config_error;
};

namespace detail {

// Whose regions the process' one stack holds.
struct kokkos_region_stack {
  std::mutex mutex;
  std::thread::id thread;
  int rank = -1;
  std::atomic<int> depth{0};
  bool used = false;
  static kokkos_region_stack& of_process() {
    static kokkos_region_stack one;
    return one;
  }
};

// The sections that a thread has made, each of which is started again when it has been stopped, and those that run, innermost last.
struct kokkos_thread_sections {
  struct section {
    const char* name;
    int rank;
    std::uint32_t id;
    bool runs;
  };
  std::vector<section> made;
  std::vector<std::size_t> running;
  static kokkos_thread_sections& of_this_thread() {
    static thread_local kokkos_thread_sections mine;
    return mine;
  }
  // A tool's functions for sections are called by one thread at a time.
  static std::mutex& calls() {
    static std::mutex one;
    return one;
  }
  kokkos_thread_sections() = default;
  kokkos_thread_sections(const kokkos_thread_sections&) = delete;
  kokkos_thread_sections& operator=(const kokkos_thread_sections&) = delete;
  ~kokkos_thread_sections() {
    if (made.empty() || !Kokkos::is_initialized()) return;
    const std::scoped_lock one_at_a_time(calls());
    for (const section& s : made) Kokkos::Tools::destroyProfileSection(s.id);
  }
};

}  // namespace detail

/// An observer that gives each observed action to Kokkos Tools as a region with the event's name, on the thread that runs it: kernels
/// that profilers list then lie in the regions `forward`, `optimizer`, ... that launched them. Without a tool (KOKKOS_TOOLS_LIBS) a region costs a
/// comparison. A tool must not be paused while a region lasts. Actions that are reported only when they are over are no regions. Kokkos Tools has one stack of regions in a process, so this
/// is for ranks that are processes; ranks that are threads take `kokkos_sections`.
/// `hd::strategy<mesh, ..., hd::kokkos_regions>`.
/// Errors: `kokkos_regions_error` where there is a tool, and another rank of the process has given it regions, or another thread's region
/// has not ended: they would lie in each other.
struct kokkos_regions {
  using kind = observer_kind;
  static constexpr bool enabled = true;
  void begin(const event& e) const {
    if (!Kokkos::Tools::profileLibraryLoaded()) return;
    detail::kokkos_region_stack& stack = detail::kokkos_region_stack::of_process();
    const std::scoped_lock one_at_a_time(stack.mutex);
    const bool by_another = stack.used && stack.thread != std::this_thread::get_id();
    if (by_another && (stack.depth > 0 || stack.rank != e.rank))
      throw kokkos_regions_error("heddle: kokkos_regions: rank " + std::to_string(e.rank) + " begins the region '" +
                                 e.name + "' in a process where rank " + std::to_string(stack.rank) +
                                 " has given regions from another thread: Kokkos Tools has one stack of regions in a "
                                 "process; ranks that are threads take hd::kokkos_sections");
    stack.used = true;
    stack.thread = std::this_thread::get_id();
    stack.rank = e.rank;
    ++stack.depth;
    Kokkos::Tools::pushRegion(e.name);
  }
  void end(const event&) const {
    detail::kokkos_region_stack& stack = detail::kokkos_region_stack::of_process();
    if (stack.depth.load(std::memory_order_relaxed) == 0) return;
    const std::scoped_lock one_at_a_time(stack.mutex);
    if (stack.depth == 0 || stack.thread != std::this_thread::get_id()) return;  // it was refused, or there was no tool
    --stack.depth;
    Kokkos::Tools::popRegion();
  }
  void record(const event&) const noexcept {}
};

/// An observer that gives each observed action to Kokkos Tools as a profiling section of the rank: `rank 3: forward`. Sections have a
/// number each and no stack, so that those of ranks that are threads of one process do not mix. An action inside another of the same
/// name is a section of its own. A tool's functions for sections are called by one thread at a time; those for kernels are called by the threads that
/// launch them. Without a tool a section costs a comparison; one must not be paused while a section lasts.
/// `hd::strategy<mesh, ..., hd::kokkos_sections>`.
struct kokkos_sections {
  using kind = observer_kind;
  static constexpr bool enabled = true;
  void begin(const event& e) const {
    if (!Kokkos::Tools::profileLibraryLoaded()) return;
    auto& mine = detail::kokkos_thread_sections::of_this_thread();
    std::size_t at = 0;
    while (at < mine.made.size() &&
           (mine.made[at].runs || mine.made[at].rank != e.rank || mine.made[at].name != e.name))
      ++at;
    mine.running.reserve(mine.running.size() + 1);
    const std::scoped_lock one_at_a_time(detail::kokkos_thread_sections::calls());
    if (at == mine.made.size()) {
      std::uint32_t id = 0;
      mine.made.push_back({e.name, e.rank, id, false});
      const std::string name = e.rank < 0 ? std::string(e.name) : "rank " + std::to_string(e.rank) + ": " + e.name;
      Kokkos::Tools::createProfileSection(name, &id);
      mine.made[at].id = id;
    }
    mine.made[at].runs = true;
    mine.running.push_back(at);
    Kokkos::Tools::startSection(mine.made[at].id);
  }
  void end(const event&) const {
    auto& mine = detail::kokkos_thread_sections::of_this_thread();
    if (mine.running.empty()) return;  // there was no tool
    const std::size_t at = mine.running.back();
    mine.running.pop_back();
    mine.made[at].runs = false;
    const std::scoped_lock one_at_a_time(detail::kokkos_thread_sections::calls());
    Kokkos::Tools::stopSection(mine.made[at].id);
  }
  void record(const event&) const noexcept {}
};

}  // namespace heddle::inline v0
