// heddle/compute/host/cblas.hpp: matrix products by any library with the CBLAS interface.
#pragma once

#if !__has_include(<cblas.h>)
#error \
    "heddle/compute/host/cblas.hpp needs a CBLAS: install libopenblas-dev and link it, or use heddle/compute/host/portable.hpp"
#endif

#include <heddle/compute/host/gemm.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>

#include <cblas.h>
#include <dlfcn.h>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

namespace heddle::inline v0::compute {

/// float and double by `cblas_sgemm` and `cblas_dgemm`. The first use tells OpenBLAS, if that is what was linked, to
/// use one thread per call: the team has already shared the work out. OpenBLAS has only one such setting per process,
/// so a program that calls OpenBLAS itself and wants its threads back must set them again.
/// Errors: `error` if an extent does not fit CBLAS's 32-bit integers.
struct cblas {
  static const char* name() noexcept { return "CBLAS"; }

  template <transpose TA, transpose TB, class T>
  static void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b,
                       std::int64_t ldb, T beta, T* c, std::int64_t ldc) {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>,
                  "heddle: compute::cblas multiplies float and double");
    use_one_thread();
    constexpr CBLAS_TRANSPOSE ta = TA == transpose::no ? CblasNoTrans : CblasTrans;
    constexpr CBLAS_TRANSPOSE tb = TB == transpose::no ? CblasNoTrans : CblasTrans;
    if constexpr (std::is_same_v<T, float>)
      ::cblas_sgemm(CblasRowMajor, ta, tb, narrow(m), narrow(n), narrow(k), 1.0f, a, narrow(lda), b, narrow(ldb), beta,
                    c, narrow(ldc));
    else
      ::cblas_dgemm(CblasRowMajor, ta, tb, narrow(m), narrow(n), narrow(k), 1.0, a, narrow(lda), b, narrow(ldb), beta,
                    c, narrow(ldc));
  }

 private:
  static int narrow(std::int64_t n) {
    if (n > (std::numeric_limits<int>::max)())
      throw error("heddle: CBLAS takes 32-bit extents, got " + std::to_string(n));
    return static_cast<int>(n);
  }
  static void use_one_thread() {
    [[maybe_unused]] static const bool done = [] {
      // By name, because the interface is OpenBLAS's own and other libraries do not have it.
      if (void* set = ::dlsym(RTLD_DEFAULT, "openblas_set_num_threads")) reinterpret_cast<void (*)(int)>(set)(1);
      return true;
    }();
  }
};

}  // namespace heddle::inline v0::compute
