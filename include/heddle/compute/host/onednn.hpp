// heddle/compute/host/onednn.hpp: float matrix products by oneDNN, others by another library.
#pragma once

#if !__has_include(<dnnl.h>)
#error \
    "heddle/compute/host/onednn.hpp needs oneDNN: install libdnnl-dev and link dnnl, or use heddle/compute/host/cblas.hpp or portable.hpp"
#endif

#include <heddle/compute/host/gemm.hpp>
#include <heddle/compute/host/portable.hpp>
#include <heddle/compute/host/tile_products.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>

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

/// oneDNN's product of bf16 matrices into float, of the same form as `dnnl_sgemm`. The library exports it without
/// declaring it in its headers: it is looked up by name, and null where it is not there.
using onednn_bf16_product = dnnl_status_t (*)(char, char, dnnl_dim_t, dnnl_dim_t, dnnl_dim_t, float, const bf16*,
                                              dnnl_dim_t, const bf16*, dnnl_dim_t, float, float*, dnnl_dim_t);
inline onednn_bf16_product onednn_bf16() {
  static const auto found = reinterpret_cast<onednn_bf16_product>(::dlsym(RTLD_DEFAULT, "dnnl_gemm_bf16bf16f32"));
  return found;
}

/// Whether the processor is one of Intel's.
inline bool is_intel() noexcept {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__CUDACC__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

}  // namespace detail

/// float by oneDNN's `dnnl_sgemm`, which picks kernels for the machine it runs on, whatever this program was compiled
/// for; every other type by `Others`, because oneDNN has no double product.
/// bf16 operands by oneDNN too, on processors with instructions for them.
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
      if (status != dnnl_success) refused(m, n, k, status);
    } else {
      Others::template multiply<TA, TB>(m, n, k, a, lda, b, ldb, beta, c, ldc);
    }
  }

  /// Whether the processor multiplies bf16 (AVX-512 BF16 or AMX) and the library uses that.
  static bool has_bf16_products() {
    constexpr auto needed = static_cast<unsigned>(dnnl_cpu_isa_avx512_core_bf16);
    return detail::onednn_bf16() != nullptr &&
           (static_cast<unsigned>(::dnnl_get_effective_cpu_isa()) & needed) == needed;
  }
  /// Whether a product of bf16 operands with so many rows, on all threads, takes less time after conversion to float: on Intel's processors without AMX, whose
  /// instruction for bf16 multiplies at half the rate of float, from 32 rows; fewer are bound by reading the operands.
  static bool converts_bf16_products(std::int64_t rows) {
    constexpr auto tiles = static_cast<unsigned>(dnnl_cpu_isa_avx512_core_amx);
    static const bool slow = detail::is_intel() && has_bf16_products() &&
                             (static_cast<unsigned>(::dnnl_get_effective_cpu_isa()) & tiles) != tiles;
    return slow && rows >= 32;
  }
  /// Whether heddle may multiply floats that it rounds to bf16 in tile registers: with AMX, unless oneDNN is told to keep to less (`ONEDNN_MAX_CPU_ISA`).
  static bool has_tile_products() {
    constexpr auto needed = static_cast<unsigned>(dnnl_cpu_isa_avx512_core_amx);
    return (static_cast<unsigned>(::dnnl_get_effective_cpu_isa()) & needed) == needed && detail::has_tiles();
  }
  /// c in float = op(a) op(b) + beta c for bf16 operands, summed in float. Requires `has_bf16_products()`.
  template <transpose TA, transpose TB>
  static void multiply_bf16(std::int64_t m, std::int64_t n, std::int64_t k, const bf16* a, std::int64_t lda,
                            const bf16* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
    const detail::one_openmp_thread alone;
    const dnnl_status_t status = detail::onednn_bf16()(TA == transpose::no ? 'N' : 'T', TB == transpose::no ? 'N' : 'T',
                                                       m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc);
    if (status != dnnl_success) refused(m, n, k, status);
  }

 private:
  [[noreturn]] static void refused(std::int64_t m, std::int64_t n, std::int64_t k, dnnl_status_t status) {
    throw error("heddle: oneDNN refused a product of " + std::to_string(m) + " x " + std::to_string(k) + " by " +
                std::to_string(k) + " x " + std::to_string(n) + ": status " + std::to_string(static_cast<int>(status)));
  }
};

/// oneDNN for float, heddle's own kernel for double. `basic_onednn<cblas>` leaves double to a CBLAS instead.
using onednn = basic_onednn<portable>;

}  // namespace heddle::inline v0::compute
