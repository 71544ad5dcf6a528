// heddle/compute/kokkos/host_threads.hpp: a Kokkos instance's threads, lent to the host.
#pragma once

#include <heddle/compute/host/team.hpp>
#include <heddle/compute/kokkos/launch.hpp>
#include <heddle/core/error.hpp>
#include <heddle/tensor/kokkos/memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute::detail::on_kokkos {

// Named, since a lambda for devices may not be in a private function; these run on the host only.
struct part_body {
  void (*call)(void*, int);
  void* context;
  void operator()(std::int64_t w) const { call(context, static_cast<int>(w)); }
};
struct who_body {
  std::thread::id* who;
  void operator()(std::int64_t w) const { who[w] = std::this_thread::get_id(); }
};

/// `call(context, w)` for each w in [0, parts), by the threads of an instance.
template <class Exec>
void run_parts(void* instance, int parts, void (*call)(void*, int), void* context) {
  static const std::string name("heddle::parts of a host kernel");
  heddle::v0::detail::kokkos_call("a kernel of the host", [&] {
    Kokkos::parallel_for(
        name, Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(*static_cast<const Exec*>(instance), 0, parts),
        part_body{call, context});
  });
}

/// Whether so many items of a kernel run on as many threads of this instance: not where it has fewer, and not on OpenMP before
/// Kokkos 3.7 on a thread that has not initialized Kokkos, where a kernel runs on that thread alone.
template <class Exec>
bool has_threads_for(const Exec& instance, int parts) {
  if (parts < 2) return false;
  std::vector<std::thread::id> who(static_cast<std::size_t>(parts));
  heddle::v0::detail::kokkos_call("threads of an instance", [&] {
    Kokkos::parallel_for("heddle::threads",
                         Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(instance, 0, parts),
                         who_body{who.data()});
    instance.fence();
  });
  std::sort(who.begin(), who.end());
  return std::adjacent_find(who.begin(), who.end()) == who.end();
}

/// The threads of an instance for the host's kernels, if it has that many; else none. `instance` outlives who takes them.
template <class Exec>
lent_threads threads_of(const Exec& instance, int threads) {
  if constexpr (forks_and_joins<Exec>)
    if (has_threads_for(instance, threads)) return {&run_parts<Exec>, const_cast<Exec*>(&instance)};
  return {};
}

}  // namespace heddle::inline v0::compute::detail::on_kokkos
