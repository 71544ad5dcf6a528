// heddle/compute/cuda/lt_products.hpp: matrix products by cuBLASLt (not run on a GPU).
// Empty where the host's compiler finds no cublasLt.h.
#pragma once

#if defined(__CUDACC__) || __has_include(<cublasLt.h>)

#include <heddle/compute/cuda/launcher.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/float8.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/cuda/memory.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace heddle::inline v0::compute::detail::on_cuda {

/// What products of floats may be rounded to: nothing, or operands to the 10 mantissa bits of TensorFloat-32 (sums stay float).
struct full_floats {
  static constexpr const char* name = "cuBLASLt";
  static constexpr cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
};
struct tensor_floats {
  static constexpr const char* name = "cuBLASLt, TF32";
  static constexpr cublasComputeType_t compute = CUBLAS_COMPUTE_32F_FAST_TF32;
};

/// Where the device does not multiply 8 bits, the same numbers as bf16.
struct float8_in_bf16 : full_floats {
  static constexpr bool replaces_float8 = true;
};

/// cuBLASLt's handle and workspace, and what it advised for each size. `Floats`: how it multiplies floats.
template <class Floats>
class lt_products {
 public:
  static constexpr const char* name = Floats::name;
  static constexpr const char* half_name = "cuBLASLt";
  explicit lt_products(cuda_memory::queue& queue)
      : device_(queue.device()), workspace_(queue, workspace_bytes, "the workspace of matrix products") {
    const heddle::v0::detail::on_cuda_device here(device_);
    require(cublasLtCreate(&handle_), "cublasLtCreate");
  }
  lt_products(const lt_products&) = delete;
  lt_products& operator=(const lt_products&) = delete;
  ~lt_products() {
    const heddle::v0::detail::on_cuda_device here(device_, std::nothrow);
    static_cast<void>(cublasLtDestroy(handle_));
  }

  /// c[m, n] = op(a) op(b) + beta c, row-major. Operands of 16 bits are added up in float.
  template <bool TA, bool TB, class In, class Out, class Sum>
  void multiply(cudaStream_t stream, std::int64_t m, std::int64_t n, std::int64_t k, const In* a, const In* b, Out* c,
                Sum beta) {
    static_assert(std::is_same_v<Sum, std::conditional_t<std::is_same_v<In, double>, double, float>>);
    const heddle::v0::detail::on_cuda_device here(device_);
    // In memory by columns all of it is transposed: c'[n, m] = op(b)' op(a)'.
    constexpr element_types types = types_of<In, Out, Sum>;
    const described<TA, TB> of(types, m, n, k);
    const operands<In, Out, Sum> with{a, b, c, beta};
    const size_of_product size(types.in, types.in_right, types.out, TA, TB, m, n, k, with.aligned(), no_end,
                               beta == Sum(0), 0);
    const std::optional<cublasLtMatmulAlgo_t>& how = advice(of, size);
    if (!how) [[unlikely]]
      throw cuda_error("heddle: cuBLASLt has no product of " + std::to_string(m) + " x " + std::to_string(k) + " by " +
                       std::to_string(k) + " x " + std::to_string(n) + " in these types");
    require(run(of, with, *how, stream), "cublasLtMatmul");
  }
  /// The same with an epilogue, if cuBLASLt has one for this product; else nothing is done, and false returned.
  template <bool TA, bool TB, class In, class Out, class Sum>
  bool multiply_ending(cudaStream_t stream, std::int64_t m, std::int64_t n, std::int64_t k, const In* a, const In* b,
                       Out* c, Sum beta, const product_ending<Out>& with) {
    static_assert(std::is_same_v<Sum, std::conditional_t<std::is_same_v<In, double>, double, float>>);
    // What it asks of the input of GELU: rows of a multiple of 8 elements that begin at a multiple of 16 bytes.
    if (with.before != nullptr && (n % 8 != 0 || alignment_of(with.before) < 16)) return false;
    // How exact its tanh is it does not say: products that round nothing leave GELU to heddle's kernel.
    if constexpr (std::is_same_v<In, float> && Floats::compute == CUBLAS_COMPUTE_32F)
      if (with.before != nullptr) return false;
    const heddle::v0::detail::on_cuda_device here(device_);
    described<TA, TB> of(types_of<In, Out, Sum>, m, n, k);
    of.end_with(with, n);
    const operands<In, Out, Sum> given{a, b, c, beta};
    const std::uint32_t aligned =
        (std::min)(alignment_of(with.bias), alignment_of(with.sums)) * 512 + alignment_of(with.before);
    constexpr element_types types = types_of<In, Out, Sum>;
    const size_of_product size(types.in, types.in_right, types.out, TA, TB, m, n, k, given.aligned(),
                               static_cast<int>(with.end), beta == Sum(0), aligned);
    std::optional<cublasLtMatmulAlgo_t>& how = advice(of, size);
    if (!how) return false;
    const cublasStatus_t status = run(of, given, *how, stream);
    if (has_none(status))
      how.reset();  // refused before anything is queued
    else
      require(status, "cublasLtMatmul");
    return how.has_value();
  }

  /// Whether the device multiplies 8 bits; false where bf16 stands in. Errors: `config_error` where it does not, and nothing does.
  bool multiplies_float8() {
    if (capability_[0] == 0) {
      const auto ask = [&](cudaDeviceAttr what) {
        int value = 0;
        heddle::v0::detail::require_cuda(cudaDeviceGetAttribute(&value, what, device_), "cudaDeviceGetAttribute",
                                         device_);
        return value;
      };
      capability_ = {ask(cudaDevAttrComputeCapabilityMajor), ask(cudaDevAttrComputeCapabilityMinor)};
    }
    const bool has = capability_ >= std::array{8, 9};
    if constexpr (!requires { Floats::replaces_float8; })
      if (!has) refuse_float8(device_, capability_[0], capability_[1]);
    return has;
  }
  /// c[m, n] = factor_a[0] factor_b[0] a[m, k] b[n, k]' + beta c, row-major, added up in float: both operands lie along k, the one order that cuBLASLt
  /// has for 8 bits on every chip ("TN"). Factors are read on the device; null: 1. `ByRows`: factor_a[i] factor_b[j] instead
  /// (`CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F`); false where cuBLASLt has no such product, and then nothing is done.
  template <bool ByRows, class A, class B, class Out>
  bool multiply_float8(cudaStream_t stream, std::int64_t m, std::int64_t n, std::int64_t k, const A* a, const B* b,
                       Out* c, float beta, const float* factor_a, const float* factor_b) {
    const heddle::v0::detail::on_cuda_device here(device_);
    constexpr element_types types{type_of<A>, type_of<B>, type_of<Out>, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    described<false, true> of(types, m, n, k);
    if (factor_a != nullptr) of.scale(factor_a, factor_b);
    if constexpr (ByRows) {
      if (!of.scales_rows()) return false;
    }
    struct {
      const A* a;
      const B* b;
      Out* c;
      float beta;
    } const with{a, b, c, beta};
    const std::array aligned{alignment_of(b), alignment_of(a), alignment_of(c)};
    const size_of_product size(types.in, types.in_right, types.out, false, true, m, n, k, aligned,
                               ByRows ? by_rows : no_end, beta == 0, factor_a != nullptr ? 1 : 0);
    std::optional<cublasLtMatmulAlgo_t>& how = advice(of, size);
    if constexpr (ByRows) {
      if (!how) return false;
      const cublasStatus_t status = run(of, with, *how, stream);
      if (!has_none(status)) require(status, "cublasLtMatmul");
      if (has_none(status)) how.reset();  // refused before anything is queued, as it will be again
      return how.has_value();
    }
    if (!how) [[unlikely]]
      throw cuda_error("heddle: cuBLASLt has no product in 8 bits of " + std::to_string(m) + " x " + std::to_string(k) +
                       " by " + std::to_string(k) + " x " + std::to_string(n) + " on this device");
    require(run(of, with, *how, stream), "cublasLtMatmul");
    return true;
  }

 private:
  static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

  struct element_types {
    cudaDataType_t in, in_right, out, scale;
    cublasComputeType_t compute;
  };
  template <class T>
  static constexpr cudaDataType_t type_of = std::is_same_v<T, double>        ? CUDA_R_64F
                                            : std::is_same_v<T, float>       ? CUDA_R_32F
                                            : std::is_same_v<T, bf16>        ? CUDA_R_16BF
                                            : std::is_same_v<T, float8_e4m3> ? CUDA_R_8F_E4M3
                                            : std::is_same_v<T, float8_e5m2> ? CUDA_R_8F_E5M2
                                                                             : CUDA_R_16F;

  template <class In, class Out, class Sum>
  static constexpr element_types types_of{type_of<In>, type_of<In>, type_of<Out>, type_of<Sum>,
                                          std::is_same_v<In, double>  ? CUBLAS_COMPUTE_64F
                                          : std::is_same_v<In, float> ? Floats::compute
                                                                      : CUBLAS_COMPUTE_32F};
  template <class In, class Out, class Sum>
  struct operands {
    const In *a, *b;
    Out* c;
    Sum beta;
    std::array<std::uint32_t, 3> aligned() const { return {alignment_of(b), alignment_of(a), alignment_of(c)}; }
  };

  // Of an address, as far as cuBLASLt asks: it would take 256 bytes for granted.
  static std::uint32_t alignment_of(const void* address) {
    const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256;
    return static_cast<std::uint32_t>(bits & (~bits + 1));
  }
  static void require(cublasStatus_t status, const char* call) {
    if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]]
      throw cuda_error(std::string("heddle: ") + call + ": " + cublasLtGetStatusString(status));
  }
  // What it returns where it does not have what is asked for, also where it is older than the header and does not know it.
  static bool has_none(cublasStatus_t status) noexcept {
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
  }
  // cuBLASLt's descriptions of things, destroyed with their owner.
  template <class Handle, cublasStatus_t (*Destroy)(Handle)>
  struct destroyer {
    void operator()(std::remove_pointer_t<Handle>* x) const noexcept { static_cast<void>(Destroy(x)); }
  };
  template <class Handle, cublasStatus_t (*Destroy)(Handle)>
  using owned = std::unique_ptr<std::remove_pointer_t<Handle>, destroyer<Handle, Destroy>>;
  using matrix_layout = owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

  template <bool TA, bool TB>
  struct described {
    owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product;
    matrix_layout left, right, out;

    described(const element_types& types, std::int64_t m, std::int64_t n, std::int64_t k)
        : left(layout(types.in_right, TB ? k : n, TB ? n : k)),
          right(layout(types.in, TA ? m : k, TA ? k : m)),
          out(layout(types.out, n, m)) {
      cublasLtMatmulDesc_t made = nullptr;
      require(cublasLtMatmulDescCreate(&made, types.compute, types.scale), "cublasLtMatmulDescCreate");
      product.reset(made);
      const cublasOperation_t of_left = TB ? CUBLAS_OP_T : CUBLAS_OP_N, of_right = TA ? CUBLAS_OP_T : CUBLAS_OP_N;
      require(cublasLtMatmulDescSetAttribute(made, CUBLASLT_MATMUL_DESC_TRANSA, &of_left, sizeof of_left),
              "cublasLtMatmulDescSetAttribute");
      require(cublasLtMatmulDescSetAttribute(made, CUBLASLT_MATMUL_DESC_TRANSB, &of_right, sizeof of_right),
              "cublasLtMatmulDescSetAttribute");
    }
    // In memory by columns the operands are exchanged: its A is our right one.
    void scale(const float* of_our_left, const float* of_our_right) {
      const auto set = [&](cublasLtMatmulDescAttributes_t what, const float* value) {
        require(cublasLtMatmulDescSetAttribute(product.get(), what, &value, sizeof value),
                "cublasLtMatmulDescSetAttribute");
      };
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_our_right);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_our_left);
    }
    // The factors are those of rows and columns, if the cuBLASLt of the header and that of the run know such (12.9 and later).
    bool scales_rows() {
#if CUBLAS_VERSION >= 120900
      const std::int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
      for (const auto what : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE}) {
        const cublasStatus_t status = cublasLtMatmulDescSetAttribute(product.get(), what, &mode, sizeof mode);
        if (has_none(status)) return false;
        require(status, "cublasLtMatmulDescSetAttribute");
      }
      return true;
#else
      return false;
#endif
    }
    template <class T>
    void end_with(const product_ending<T>& with, std::int64_t columns) {
      const auto set = [&](cublasLtMatmulDescAttributes_t what, const auto& value) {
        require(cublasLtMatmulDescSetAttribute(product.get(), what, &value, sizeof value),
                "cublasLtMatmulDescSetAttribute");
      };
      // In memory by columns the operands are exchanged: its A is our right one.
      const cublasLtEpilogue_t end = with.end == product_end::bias              ? CUBLASLT_EPILOGUE_BIAS
                                     : with.end == product_end::gelu_of_bias    ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                                     : with.end == product_end::gelu_derivative ? CUBLASLT_EPILOGUE_DGELU
                                     : with.end == product_end::sums_of_left    ? CUBLASLT_EPILOGUE_BGRADB
                                                                                : CUBLASLT_EPILOGUE_BGRADA;
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, end);
      if (with.bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, with.bias);
      if (with.sums != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, with.sums);
      if (with.before != nullptr) {
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, with.before);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, columns);
      }
    }
    // Nothing where cuBLASLt has no such product.
    std::optional<cublasLtMatmulAlgo_t> advice(cublasLtHandle_t handle,
                                               const std::array<std::uint32_t, 3>& aligned) const {
      cublasLtMatmulPreference_t made = nullptr;
      require(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
      const owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> wish(made);
      const auto ask = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
        require(cublasLtMatmulPreferenceSetAttribute(made, what, &value, sizeof value),
                "cublasLtMatmulPreferenceSetAttribute");
      };
      ask(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
      // Parts of a sum are added up in float, too: otherwise it may store them in the type of the result.
      ask(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
      ask(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned[0]);
      ask(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned[1]);
      ask(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned[2]);
      ask(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned[2]);
      cublasLtMatmulHeuristicResult_t found{};
      int count = 0;
      const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, product.get(), left.get(), right.get(),
                                                                   out.get(), out.get(), made, 1, &found, &count);
      if (has_none(status)) return std::nullopt;
      require(status, "cublasLtMatmulAlgoGetHeuristic");
      if (count == 0 || found.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
      return found.algo;
    }

   private:
    static matrix_layout layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns) {
      cublasLtMatrixLayout_t made = nullptr;
      require(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(rows),
                                         static_cast<std::uint64_t>(columns), rows),
              "cublasLtMatrixLayoutCreate");
      return matrix_layout(made);
    }
  };
  // Types, operations, sizes and alignments of operands; the end, whether c is overwritten, the alignments of what the end reads or makes.
  using size_of_product =
      std::tuple<cudaDataType_t, cudaDataType_t, cudaDataType_t, bool, bool, std::int64_t, std::int64_t, std::int64_t,
                 std::array<std::uint32_t, 3>, int, bool, std::uint32_t>;
  static constexpr int no_end = -1, by_rows = -2;

  template <class Described>
  std::optional<cublasLtMatmulAlgo_t>& advice(const Described& of, const size_of_product& size) {
    auto at = advised_.find(size);
    if (at == advised_.end()) at = advised_.emplace(size, of.advice(handle_, std::get<8>(size))).first;
    return at->second;
  }
  template <class Described, class Operands>
  cublasStatus_t run(const Described& of, const Operands& with, const cublasLtMatmulAlgo_t& how, cudaStream_t stream) {
    const std::remove_const_t<decltype(with.beta)> one = 1;
    return cublasLtMatmul(handle_, of.product.get(), &one, with.b, of.left.get(), with.a, of.right.get(), &with.beta,
                          with.c, of.out.get(), with.c, of.out.get(), &how, workspace_.address(), workspace_bytes,
                          stream);
  }

  int device_;
  std::array<int, 2> capability_{};
  cublasLtHandle_t handle_ = nullptr;
  buffer<std::byte, cuda_memory> workspace_;
  std::map<size_of_product, std::optional<cublasLtMatmulAlgo_t>> advised_;
};

}  // namespace heddle::inline v0::compute::detail::on_cuda

#endif
