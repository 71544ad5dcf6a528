// heddle/tensor/kokkos/short_waits.hpp: lets Kokkos' OpenMP threads sleep soon.
#pragma once

#include <heddle/tensor/kokkos/memory.hpp>

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include <Kokkos_Core.hpp>

#if defined(KOKKOS_ENABLE_OPENMP) && defined(_OPENMP) && defined(__GNUC__) && !defined(__clang__)
#include <omp.h>
#endif

namespace heddle::inline v0 {

/// While one of these lives, threads of g++'s OpenMP that wait for each other sleep after about a thousand looks, where they would look
/// for milliseconds: on cores that other programs use too, they keep the core from the thread that they wait for. That is what libgomp
/// does where it has more threads than there are cores, so one more team of threads is made, which sleeps. It holds for all of
/// OpenMP in the process. Where the program has the cores to itself, a kernel may begin some microseconds later.
/// `active()`: whether that was done; not with another OpenMP, none, or where `OMP_WAIT_POLICY` or `GOMP_SPINCOUNT` say how to wait.
/// Source: libgomp's manual, GOMP_SPINCOUNT.
class kokkos_short_waits {
 public:
  kokkos_short_waits() {
#if defined(KOKKOS_ENABLE_OPENMP) && defined(_OPENMP) && defined(__GNUC__) && !defined(__clang__)
    if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
    others_ = std::thread([this] {
      const int count = omp_get_num_procs() + 1;
      int made = 0;
#pragma omp parallel num_threads(count) reduction(+ : made)
      made += 1;
      std::unique_lock<std::mutex> lock(mutex_);
      made_ = made;
      changed_.notify_all();
      changed_.wait(lock, [this] { return ends_; });
    });
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return made_ > 0; });
#endif
  }
  kokkos_short_waits(const kokkos_short_waits&) = delete;
  kokkos_short_waits& operator=(const kokkos_short_waits&) = delete;
  ~kokkos_short_waits() {
    if (!others_.joinable()) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    others_.join();
  }

  bool active() const noexcept { return others_.joinable(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int made_ = 0;
  bool ends_ = false;
  std::thread others_;
};

}  // namespace heddle::inline v0
