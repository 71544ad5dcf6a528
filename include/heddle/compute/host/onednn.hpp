// heddle/compute/host/onednn.hpp: matrix products by oneDNN (float), other types by another library.
#pragma once

#if !__has_include(<dnnl.h>)
#error \
    "heddle/compute/host/onednn.hpp needs oneDNN: install libdnnl-dev and link dnnl, or use heddle/compute/host/cblas.hpp or portable.hpp"
#endif

#include <heddle/compute/host/gemm.hpp>
#include <heddle/compute/host/portable.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>

#include <dlfcn.h>
#include <dnnl.h>

#include <cstdint>
#include <string>
#include <type_traits>

namespace heddle::inline v0::compute {

namespace detail {

/// While it lives, OpenMP regions entered by this thread have one thread. oneDNN asks OpenMP how many threads to use;
/// the team has already shared the work out. The setting is the calling thread's own and is put back. The OpenMP
/// runtime is the one oneDNN brought into the process, looked up by name, so that nothing more has to be linked;
/// without one (oneDNN built on another runtime) nothing is set.
class one_openmp_thread {
 public:
  one_openmp_thread() : before_(runtime().get ? runtime().get() : 0) {
    if (before_ > 1) runtime().set(1);
  }
  ~one_openmp_thread() {
    if (before_ > 1) runtime().set(before_);
  }
  one_openmp_thread(const one_openmp_thread&) = delete;
  one_openmp_thread& operator=(const one_openmp_thread&) = delete;

 private:
  struct functions {
    int (*get)() = nullptr;
    void (*set)(int) = nullptr;
  };
  static const functions& runtime() {
    static const functions found = [] {
      functions f;
      void* get = ::dlsym(RTLD_DEFAULT, "omp_get_max_threads");
      void* set = ::dlsym(RTLD_DEFAULT, "omp_set_num_threads");
      if (get != nullptr && set != nullptr) {
        f.get = reinterpret_cast<int (*)()>(get);
        f.set = reinterpret_cast<void (*)(int)>(set);
      }
      return f;
    }();
    return found;
  }
  int before_;
};

}  // namespace detail

/// float by oneDNN's `dnnl_sgemm`, which picks kernels for the machine it runs on, whatever this program was compiled
/// for; every other type by `Others`, because oneDNN has no double product.
/// Errors: `error` with oneDNN's status if it refuses a call.
template <class Others>
struct basic_onednn {
  static const char* name() noexcept { return "oneDNN"; }

  template <transpose TA, transpose TB, class T>
  static void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b,
                       std::int64_t ldb, T beta, T* c, std::int64_t ldc) {
    if constexpr (std::is_same_v<T, float>) {
      const detail::one_openmp_thread alone;
      const dnnl_status_t status = ::dnnl_sgemm(TA == transpose::no ? 'N' : 'T', TB == transpose::no ? 'N' : 'T', m, n,
                                                k, 1.0f, a, lda, b, ldb, beta, c, ldc);
      if (status != dnnl_success)
        throw error("heddle: oneDNN refused a product of " + std::to_string(m) + " x " + std::to_string(k) + " by " +
                    std::to_string(k) + " x " + std::to_string(n) + ": status " +
                    std::to_string(static_cast<int>(status)));
    } else {
      Others::template multiply<TA, TB>(m, n, k, a, lda, b, ldb, beta, c, ldc);
    }
  }
};

/// oneDNN for float, heddle's own kernel for double. `basic_onednn<cblas>` leaves double to a CBLAS instead.
using onednn = basic_onednn<portable>;

}  // namespace heddle::inline v0::compute
