// Products of cuBLASLt over a stand-in for it: those in 8 bits with factors of rows, and what is done where cuBLASLt has none.
#include "emulated_launcher.hpp"
#include "float8_trials.hpp"

#include "catch.hpp"
#include "double.hpp"

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/cuda/lt_products.hpp>
#include <heddle/core/float8.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/buffer.hpp>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace {
namespace hd = heddle;
namespace co = heddle::compute;

/// Of products with factors of rows: it has them, is older and does not know the scale's mode, says that it has none, finds none, advises one and
/// refuses it, or advises one that fails.
enum class lt_way { has, older, none, nothing_found, refuses, fails };
struct stand_in {
  std::atomic<lt_way> way{lt_way::has};
  std::atomic<int> by_rows{0}, plain{0}, refused{0}, asked{0};
  std::atomic<int> open{0};  // descriptions and handles that were not destroyed
};
stand_in lt;
void reset_lt(lt_way way) {
  lt.way = way;
  lt.by_rows = lt.plain = lt.refused = lt.asked = 0;
}

struct product_description {
  bool transposed[2] = {false, false};
  const float* scales[2] = {nullptr, nullptr};
  bool of_rows[2] = {false, false};
};
struct layout {
  cudaDataType_t type;
  std::int64_t rows, columns, ld;
};
template <class To, class Handle>
To* own(Handle handle) {
  return reinterpret_cast<To*>(handle);
}
template <class Handle, class T>
cublasStatus_t make(Handle* out, T value) {
  ++lt.open;
  *out = reinterpret_cast<Handle>(new T(value));
  return CUBLAS_STATUS_SUCCESS;
}
template <class T, class Handle>
cublasStatus_t destroy(Handle handle) {
  --lt.open;
  delete own<T>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

float element(const void* at, cudaDataType_t type, std::int64_t i) {
  switch (type) {
    case CUDA_R_8F_E4M3:
      return static_cast<float>(static_cast<const hd::float8_e4m3*>(at)[i]);
    case CUDA_R_8F_E5M2:
      return static_cast<float>(static_cast<const hd::float8_e5m2*>(at)[i]);
    case CUDA_R_16BF:
      return static_cast<float>(static_cast<const hd::bf16*>(at)[i]);
    case CUDA_R_32F:
      return static_cast<const float*>(at)[i];
    default:
      return std::numeric_limits<float>::quiet_NaN();
  }
}
// What cuBLASLt takes of operands of 8 bits.
bool takes(const product_description& of, const layout& a, const layout& b, const layout& c) {
  return of.transposed[0] && !of.transposed[1] && a.rows % 16 == 0 && a.columns % 16 == 0 && b.columns % 16 == 0 &&
         c.rows == a.columns && c.columns == b.columns && a.rows == b.rows && of.of_rows[0] == of.of_rows[1];
}

/// Launches on the stand-in for CUDA, whose products in 8 bits are cuBLASLt's.
template <int Size>
struct with_lt : cuda_double::emulated_launcher<Size> {
  using base = cuda_double::emulated_launcher<Size>;
  using products = co::detail::on_cuda::lt_products<co::detail::on_cuda::full_floats>;
  products& library;
  with_lt(hd::cuda_memory::queue& on, products& of) : base(on, nothing(on)), library(of) {}
  bool multiplies_float8() const { return true; }
  template <class A, class B, class Out>
  void multiply_float8(std::int64_t m, std::int64_t n, std::int64_t k, const A* a, const B* b, Out* c, float beta,
                       const float* factor_a, const float* factor_b) const {
    library.template multiply_float8<false>(this->queue.stream(), m, n, k, a, b, c, beta, factor_a, factor_b);
  }
  template <class A, class B, class Out>
  bool multiply_float8_rows(std::int64_t m, std::int64_t n, std::int64_t k, const A* a, const B* b, Out* c, float beta,
                            const float* factor_a, const float* factor_b) const {
    return library.template multiply_float8<true>(this->queue.stream(), m, n, k, a, b, c, beta, factor_a, factor_b);
  }

 private:
  static typename base::products& nothing(hd::cuda_memory::queue& on) {
    static typename base::products none(on);
    return none;
  }
};
using tested = co::basic_cuda<with_lt<2>>;
}  // namespace

extern "C" {
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return make(handle, 0);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return destroy<int>(handle);
}
const char* cublasLtGetStatusString(cublasStatus_t) {
  return "an error of the stand-in";
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* out, cublasComputeType_t, cudaDataType_t) {
  return make(out, product_description{});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t x) {
  return destroy<product_description>(x);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t x, cublasLtMatmulDescAttributes_t what,
                                              const void* value, std::size_t bytes) {
  product_description& of = *own<product_description>(x);
  std::int32_t number = 0;
  const float* address = nullptr;
  if (bytes == sizeof number) std::memcpy(&number, value, bytes);
  if (bytes == sizeof address) std::memcpy(&address, value, bytes);
  switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      of.transposed[0] = number == CUBLAS_OP_T;
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      of.transposed[1] = number == CUBLAS_OP_T;
      break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      of.scales[0] = address;
      break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      of.scales[1] = address;
      break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      if (lt.way == lt_way::older) return CUBLAS_STATUS_INVALID_VALUE;
      of.of_rows[what == CUBLASLT_MATMUL_DESC_A_SCALE_MODE ? 0 : 1] =
          number == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
      break;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* out, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t ld) {
  return make(out, layout{type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), ld});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t x) {
  return destroy<layout>(x);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* out) {
  return make(out, 0);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t x) {
  return destroy<int>(x);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, std::size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t of, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t* found, int* count) {
  ++lt.asked;
  const auto& product = *own<product_description>(of);
  *count = 0;
  if (!takes(product, *own<layout>(a), *own<layout>(b), *own<layout>(c))) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (product.of_rows[0] && lt.way == lt_way::none) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (product.of_rows[0] && lt.way == lt_way::nothing_found) return CUBLAS_STATUS_SUCCESS;
  *found = {};
  found->state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t of_a, const void* b, cublasLtMatrixLayout_t of_b, const void* beta,
                              const void*, cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t of_d,
                              const cublasLtMatmulAlgo_t*, void*, std::size_t, cudaStream_t stream) {
  const product_description of = *own<product_description>(description);
  if (of.of_rows[0] && lt.way == lt_way::refuses) {
    ++lt.refused;
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (of.of_rows[0] && lt.way == lt_way::fails) return CUBLAS_STATUS_EXECUTION_FAILED;
  ++(of.of_rows[0] ? lt.by_rows : lt.plain);
  const layout left = *own<layout>(of_a), right = *own<layout>(of_b), out = *own<layout>(of_d);
  const float one = *static_cast<const float*>(alpha), old = *static_cast<const float*>(beta);
  cuda_double::enqueue(stream, [=] {
    for (std::int64_t j = 0; j < out.columns; ++j)
      for (std::int64_t i = 0; i < out.rows; ++i) {
        float sum = 0;
        for (std::int64_t p = 0; p < left.rows; ++p)
          sum += element(a, left.type, i * left.ld + p) * element(b, right.type, j * right.ld + p);
        if (of.scales[0] != nullptr) sum *= of.scales[0][of.of_rows[0] ? i : 0] * of.scales[1][of.of_rows[1] ? j : 0];
        const std::int64_t at = j * out.ld + i;
        const float v = one * sum + (old == 0 ? 0 : old * element(d, out.type, at));
        if (out.type == CUDA_R_32F)
          static_cast<float*>(d)[at] = v;
        else
          static_cast<hd::bf16*>(d)[at] = hd::bf16(v);
      }
  });
  return CUBLAS_STATUS_SUCCESS;
}
}

TEST_CASE("products in 8 bits with factors of rows are the host's where cuBLASLt has them, and where it has none",
          "[cuda][float8]") {
  for (const lt_way way : {lt_way::has, lt_way::older, lt_way::none, lt_way::nothing_found, lt_way::refuses}) {
    CAPTURE(static_cast<int>(way));
    reset_lt(way);
    CHECK(float8_trials::worst_float8_difference<tested, float, true>() < 2e-5);
    CHECK(float8_trials::worst_float8_difference<tested, hd::bf16, true>() < 0.1);
    CHECK((lt.by_rows > 0) == (way == lt_way::has));
    CHECK((lt.plain > 0) == (way != lt_way::has));  // with a kernel behind it for the factors
    CHECK(lt.refused == (way == lt_way::refuses ? lt.plain.load() : 0));
  }
  reset_lt(lt_way::has);
  CHECK(float8_trials::worst_float8_difference<tested, float>() < 2e-5);  // one factor for each operand
  CHECK(lt.by_rows == 0);
  CHECK(lt.open == 0);
}

TEST_CASE("what cuBLASLt has no product for is asked once, what fails is an error", "[cuda][float8]") {
  hd::cuda_memory::queue queue;
  {
    co::detail::on_cuda::lt_products<co::detail::on_cuda::full_floats> library(queue);
    hd::buffer<hd::float8_e4m3, hd::cuda_memory> a(queue, 256), b(queue, 256);
    hd::buffer<float, hd::cuda_memory> c(queue, 256), factors(queue, 32);
    const auto multiply = [&] {
      return library.multiply_float8<true>(queue.stream(), 16, 16, 16, a.address(), b.address(), c.address(), 0.0f,
                                           factors.address(), factors.address() + 16);
    };
    reset_lt(lt_way::refuses);
    CHECK_FALSE(multiply());
    CHECK_FALSE(multiply());
    CHECK(lt.refused == 1);  // it would be refused again
    CHECK(lt.asked == 1);
    co::detail::on_cuda::lt_products<co::detail::on_cuda::full_floats> another(queue);
    reset_lt(lt_way::fails);
    CHECK_THROWS_WITH(another.multiply_float8<true>(queue.stream(), 16, 16, 16, a.address(), b.address(), c.address(),
                                                    0.0f, factors.address(), factors.address() + 16),
                      "heddle: cublasLtMatmul: an error of the stand-in");
    reset_lt(lt_way::has);
    CHECK_THROWS_WITH(another.multiply_float8<false>(queue.stream(), 8, 16, 16, a.address(), b.address(), c.address(),
                                                     0.0f, factors.address(), factors.address() + 16),
                      "heddle: cuBLASLt has no product in 8 bits of 8 x 16 by 16 x 16 on this device");
    queue.wait();
  }
  CHECK(lt.open == 0);
}
