// heddle/nccl/types.hpp: NCCL's element types and operators (not run on a GPU).
#pragma once

#if !__has_include(<nccl.h>) || !__has_include(<cuda_runtime.h>)
#error \
    "heddle/nccl/nccl.hpp needs NCCL and the CUDA runtime: link heddle::nccl (component nccl), or use heddle/comm/threads.hpp"
#endif

#include <heddle/comm/communicator.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/monoid.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0 {

namespace detail {
template <class T>
consteval ncclDataType_t nccl_type_of() {
  using std::is_same_v;
  if constexpr (is_same_v<T, float>)
    return ncclFloat32;
  else if constexpr (is_same_v<T, double>)
    return ncclFloat64;
  else if constexpr (is_same_v<T, f16> || is_same_v<T, __half>)
    return ncclFloat16;
  else if constexpr (is_same_v<T, bf16> || is_same_v<T, __nv_bfloat16>)
    return ncclBfloat16;
  else if constexpr (is_same_v<T, __nv_fp8_e4m3>)
    return ncclFloat8e4m3;
  else if constexpr (is_same_v<T, __nv_fp8_e5m2>)
    return ncclFloat8e5m2;
  else if constexpr (!std::is_integral_v<T> || is_same_v<T, bool>)  // a sum of bools is an "or" in C++, not in NCCL
    return ncclNumTypes;
  else if constexpr (sizeof(T) == 1)
    return std::is_signed_v<T> ? ncclInt8 : ncclUint8;
  else if constexpr (sizeof(T) == 4)
    return std::is_signed_v<T> ? ncclInt32 : ncclUint32;
  else if constexpr (sizeof(T) == 8)
    return std::is_signed_v<T> ? ncclInt64 : ncclUint64;
  else
    return ncclNumTypes;
}
}  // namespace detail

/// NCCL's name for an element type: integers of 1, 4 and 8 bytes, float, double, `bf16` and `f16`, `__half`,
/// `__nv_bfloat16`, the two fp8 types. `ncclNumTypes` for all others, which travel as bytes and are not folded. A program
/// that has a float type of its own specialises it:
/// `template <> inline constexpr ncclDataType_t heddle::nccl_type<mine> = ncclBfloat16;`
template <class T>
inline constexpr ncclDataType_t nccl_type = detail::nccl_type_of<T>();

/// NCCL's name for an operator: `plus`, `multiplies`, `maximum`, `minimum`. `ncclNumOps` for all others.
template <class Op>
inline constexpr ncclRedOp_t nccl_operator = std::is_same_v<Op, plus>         ? ncclSum
                                             : std::is_same_v<Op, multiplies> ? ncclProd
                                             : std::is_same_v<Op, maximum>    ? ncclMax
                                             : std::is_same_v<Op, minimum>    ? ncclMin
                                                                              : ncclNumOps;

namespace detail {

template <class T, class Op>
consteval bool nccl_can_reduce() {
  constexpr bool known_op = nccl_operator<Op> != ncclNumOps;
  constexpr bool known_type = nccl_type<T> != ncclNumTypes;
  static_assert(known_op,
                "heddle: NCCL folds with plus, multiplies, maximum and minimum only; gather the values and fold them "
                "with other operators in a kernel of your own");
  static_assert(
      !known_op || known_type,
      "heddle: NCCL folds integers of 1, 4 or 8 bytes, float, double, __half, __nv_bfloat16 and fp8 only; convert the "
      "elements, or name their type with nccl_type");
  return known_op && known_type;
}

/// How elements travel when nobody folds them: as themselves, or as bytes.
struct nccl_elements {
  std::size_t count;
  ncclDataType_t type;
};
template <class T>
constexpr nccl_elements nccl_moved(std::int64_t count) {
  if constexpr (nccl_type<T> != ncclNumTypes)
    return {static_cast<std::size_t>(count), nccl_type<T>};
  else
    return {static_cast<std::size_t>(count) * sizeof(T), ncclUint8};
}

}  // namespace detail
}  // namespace heddle::inline v0
