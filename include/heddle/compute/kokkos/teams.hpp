// heddle/compute/kokkos/teams.hpp: kernels by groups of threads as teams of Kokkos.
#pragma once

#include <heddle/compute/group/threads.hpp>
#include <heddle/compute/kokkos/launch.hpp>
#include <heddle/core/shape.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/kokkos/memory.hpp>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute {

/// Matrix products and attention as team kernels of Kokkos (`Kokkos::TeamPolicy`), in place of a library of the host:
/// `compute::kokkos<Kokkos::OpenMP, compute::teams<>>`. That is what a backend has whose memory the host cannot use. A team has up to
/// `TileBytes` (2048 and more) of scratch memory, or what Kokkos offers it if that is less; `TeamSize` threads, or as many as suit the tile for 0: on
/// cores of the host one.
template <std::int64_t TileBytes = 112 * 1024, int TeamSize = 0>
struct teams {};

namespace detail::on_kokkos {

/// A thread of a team, as one of a group.
template <class Member>
struct team_thread {
  const Member& member;
  KOKKOS_INLINE_FUNCTION int rank() const { return static_cast<int>(member.team_rank()); }
  KOKKOS_INLINE_FUNCTION int size() const { return static_cast<int>(member.team_size()); }
  KOKKOS_INLINE_FUNCTION bool leads() const { return member.team_rank() == 0; }
  KOKKOS_INLINE_FUNCTION void sync() const { member.team_barrier(); }
  template <class T>
  KOKKOS_INLINE_FUNCTION T sum(T x) const {
    member.team_reduce(Kokkos::Sum<T>(x));
    return x;
  }
};
using in_groups::lone_thread;

/// The items of a kernel, shared by teams that have `elements` of T each; no memory for void. Named, because devices have it.
template <class Exec, class Body, class T>
struct team_body {
  using member = typename Kokkos::TeamPolicy<Exec>::member_type;
  Body body;
  std::int64_t items, elements;
  KOKKOS_INLINE_FUNCTION void operator()(const member& m) const {
    team_thread<member> thread{m};
    if constexpr (std::is_void_v<T>) {
      for (std::int64_t i = m.league_rank(); i < items; i += m.league_size()) body(thread, i);
    } else {
      const Kokkos::View<T*, typename Exec::scratch_memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>> memory(
          m.team_scratch(0), static_cast<std::size_t>(elements));
      for (std::int64_t i = m.league_rank(); i < items; i += m.league_size()) body(thread, i, memory.data());
    }
  }
};

/// Whether Kokkos may have no team for kernels of a thread: on OpenMP before 3.7, for one that has not initialized Kokkos.
template <class Exec>
inline constexpr bool may_have_no_team = heddle::v0::detail::kokkos_shares_threads<Exec> && KOKKOS_VERSION < 30700;
/// Whether that is this thread.
template <class Exec>
bool has_no_team() {
  return Exec::in_parallel();
}
/// Whether all instances have one scratch memory: those of Serial before 4.0. Team kernels of ranks that are threads then take turns.
template <class Exec>
inline constexpr bool shares_scratch =
    kokkos_memory<Exec>::host_accessible && !forks_and_joins<Exec> && KOKKOS_VERSION < 40000;
inline std::mutex& scratch_of_all() {
  static std::mutex one;
  return one;
}

/// Launches groups as teams of an instance, under a name for tools. Errors: `kokkos_error` for what Kokkos throws.
template <class Exec, std::int64_t TileBytes, int TeamSize>
struct team_launcher {
  typename kokkos_memory<Exec>::queue& queue;
  const char* kernel;

  std::int64_t tile_bytes() const {
    const auto offered = static_cast<std::int64_t>(Kokkos::TeamPolicy<Exec>::scratch_size_max(0)) - 128;  // to align it
    return offered < TileBytes ? offered : TileBytes;
  }
  template <class Body>
  void each_row(std::int64_t rows, std::int64_t columns, const Body& body) const {
    launch<void>(rows, columns, 0, body);
  }
  /// Each thread has 4 x 4 elements of a product of two tiles.
  template <class T, class Body>
  void each_tile(std::int64_t items, std::int64_t edge, std::int64_t elements, const Body& body) const {
    launch<T>(items, edge * edge / 16, elements, body);
  }
  template <class T>
  buffer<T, kokkos_memory<Exec>> room(std::int64_t n) const {
    return buffer<T, kokkos_memory<Exec>>(queue, n, kernel);
  }

 private:
  // `threads`: how many of a team have work in an item.
  template <class T, class Body>
  void launch(std::int64_t items, std::int64_t threads, std::int64_t elements, const Body& body) const {
    if (items <= 0) return;
    static const std::string name(kernel);
    heddle::v0::detail::kokkos_call(kernel, [&] {
      if constexpr (may_have_no_team<Exec>)
        if (has_no_team<Exec>()) return alone<T>(name, items, elements, body);
      const team_body<Exec, Body, T> work{body, items, elements};
      constexpr std::int64_t most = std::int64_t{1} << 30;  // the size of a league is an int
      const int league = static_cast<int>(items < most ? items : most), wanted = team_size(threads);
      const auto policy_of = [&](int size) {
        Kokkos::TeamPolicy<Exec> made(queue.instance(), league, size);
        if constexpr (!std::is_void_v<T>) made.set_scratch_size(0, Kokkos::PerTeam(scratch<T>(elements)));
        return made;
      };
      const int can = wanted > 1 ? policy_of(1).team_size_max(work, Kokkos::ParallelForTag()) : 1;
      const auto policy = policy_of(wanted < can ? wanted : can);
      if constexpr (shares_scratch<Exec>) {
        const std::lock_guard<std::mutex> turn(scratch_of_all());
        Kokkos::parallel_for(name, policy, work);
      } else {
        Kokkos::parallel_for(name, policy, work);
      }
    });
  }
  template <class T>
  static int scratch(std::int64_t elements) {
    return static_cast<int>(
        Kokkos::View<T*, typename Exec::scratch_memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>::shmem_size(
            static_cast<std::size_t>(elements)));
  }
  static int team_size(std::int64_t threads) {
    if constexpr (TeamSize != 0)
      return TeamSize;
    else if constexpr (runs_on_host<Exec>)
      return 1;
    else
      return static_cast<int>(threads < 32 ? 32 : threads > 256 ? 256 : (threads + 31) / 32 * 32);
  }
  // On this thread, in memory of its own; tools are told.
  template <class T, class Body>
  void alone(const std::string& name, std::int64_t items, std::int64_t elements, const Body& body) const {
    lone_thread thread;
    const on<Exec> exec{queue.instance()};
    if constexpr (std::is_void_v<T>) {
      each_on_calling_thread(exec, name, items, [&](std::int64_t i) { body(thread, i); });
    } else {
      std::vector<T> memory(static_cast<std::size_t>(elements));
      each_on_calling_thread(exec, name, items, [&](std::int64_t i) { body(thread, i, memory.data()); });
    }
  }
};

}  // namespace detail::on_kokkos
}  // namespace heddle::inline v0::compute
