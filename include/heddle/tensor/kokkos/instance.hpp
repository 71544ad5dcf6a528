// heddle/tensor/kokkos/instance.hpp: instances of a Kokkos space, and Kokkos' errors.
#pragma once

#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if !__has_include(<Kokkos_Core.hpp>)
#error \
    "heddle/tensor/kokkos needs Kokkos: link the CMake target heddle::kokkos, or add the folder of Kokkos_Core.hpp to the include path"
#endif
#include <Kokkos_Core.hpp>

namespace heddle::inline v0 {

/// A queue of Kokkos memory was made where Kokkos is not initialized.
struct kokkos_not_initialized : config_error {
  using config_error::config_error;
};
/// An execution space cannot launch from this thread, or has not the threads for so many instances.
struct kokkos_instance_error : config_error {
  using config_error::config_error;
};
/// What Kokkos threw, with its text and with what it was asked to do.
struct kokkos_error : error {
  using error::error;
};

namespace detail {

// Whether only the thread that initialized Kokkos can launch kernels of this execution space.
#if defined(KOKKOS_ENABLE_THREADS)
template <class ExecSpace>
inline constexpr bool kokkos_launches_from_one_thread = std::is_same_v<ExecSpace, Kokkos::Threads>;
#else
template <class ExecSpace>
inline constexpr bool kokkos_launches_from_one_thread = false;
#endif

// Whether instances of this execution space are parts of its threads.
#if defined(KOKKOS_ENABLE_OPENMP)
template <class ExecSpace>
inline constexpr bool kokkos_shares_threads = std::is_same_v<ExecSpace, Kokkos::OpenMP>;
#else
template <class ExecSpace>
inline constexpr bool kokkos_shares_threads = false;
#endif

// Whether kernels of this execution space are loops of the thread that launches them.
#if defined(KOKKOS_ENABLE_SERIAL)
template <class ExecSpace>
inline constexpr bool kokkos_is_serial = std::is_same_v<ExecSpace, Kokkos::Serial>;
#else
template <class ExecSpace>
inline constexpr bool kokkos_is_serial = false;
#endif

// For a catch of all: throws again, with what Kokkos threw under a name.
[[noreturn, gnu::noinline, gnu::cold]] inline void kokkos_failed(const char* what) {
  try {
    throw;
  } catch (const error&) {
    throw;
  } catch (const std::exception& e) {
    throw kokkos_error("heddle: " + std::string(what) + ": Kokkos says: " + e.what());
  }
}
// f(), with what Kokkos throws under a name.
template <class F>
decltype(auto) kokkos_call(const char* what, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (...) {
    kokkos_failed(what);
  }
}

struct kokkos_nothing {
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t) const {}
};

template <class ExecSpace>
std::unique_ptr<ExecSpace> kokkos_instance_of_its_own() {
#if KOKKOS_VERSION >= 40000
  return std::make_unique<ExecSpace>(Kokkos::Experimental::partition_space(ExecSpace(), 1)[0]);
#else
  return std::make_unique<ExecSpace>();
#endif
}

// An instance for this thread to launch on. The empty kernel shows whether it can, before anything is fenced: on another thread a
// fence of Threads would end the kernel that runs.
template <class ExecSpace, class Make>
std::unique_ptr<ExecSpace> kokkos_instance_for_this_thread(const Make& make) {
  std::unique_ptr<ExecSpace> exec = make();
  if constexpr (kokkos_launches_from_one_thread<ExecSpace>) {
    try {
      Kokkos::parallel_for("heddle::nothing",
                           Kokkos::RangePolicy<ExecSpace, Kokkos::IndexType<std::int64_t>>(*exec, 0, 1),
                           kokkos_nothing{});
    } catch (const std::exception& e) {
      throw kokkos_instance_error("heddle: a queue of " + std::string(ExecSpace::name()) +
                                  " works only on the thread that called Kokkos::initialize: with this execution space "
                                  "ranks are processes (MPI); "
                                  "ranks that are threads need Serial or OpenMP. Kokkos says: " +
                                  e.what());
    }
  }
  return exec;
}

}  // namespace detail

/// `count` instances of an execution space for work beside each other, such as ranks that are threads: parts of its threads,
/// where this Kokkos can divide them (`partition_space`, from 4.0 on), else copies of the default one.
/// Errors: `kokkos_not_initialized`; `kokkos_instance_error` for fewer than one, for more than the threads that a space of the
/// host with several threads has, and for more than one where one thread launches all (Threads).
template <class ExecSpace>
std::vector<ExecSpace> kokkos_instances(int count) {
  const std::string name(ExecSpace::name());
  if (!Kokkos::is_initialized())
    throw kokkos_not_initialized("heddle: instances of " + name +
                                 " need Kokkos, which is not initialized: call Kokkos::initialize first");
  if (count < 1)
    throw kokkos_instance_error("heddle: there should be at least one instance of " + name + ", got " +
                                std::to_string(count));
  if constexpr (detail::kokkos_launches_from_one_thread<ExecSpace>) {
    if (count > 1)
      throw kokkos_instance_error("heddle: " + name +
                                  " has one instance, which the thread that initialized Kokkos uses, got " +
                                  std::to_string(count) + ": let ranks be processes (MPI), or take Serial or OpenMP");
  }
  if constexpr (detail::kokkos_shares_threads<ExecSpace>) {
    const auto threads = ExecSpace().concurrency();
    if (count > threads)
      throw kokkos_instance_error(
          "heddle: " + std::to_string(count) + " instances of " + name + " need at least as many threads, Kokkos has " +
          std::to_string(threads) +
          ": set OMP_NUM_THREADS, or --kokkos-num-threads (before Kokkos 3.7: --kokkos-threads)");
  }
  return detail::kokkos_call("instances of an execution space", [&] {
#if KOKKOS_VERSION >= 40000
    return Kokkos::Experimental::partition_space(ExecSpace(), std::vector<int>(static_cast<std::size_t>(count), 1));
#else
    return std::vector<ExecSpace>(static_cast<std::size_t>(count), ExecSpace());
#endif
  });
}

}  // namespace heddle::inline v0
