// Elements of NCCL's types in host memory, for the stand-ins: how wide they are, and how they are folded.
#pragma once

#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace nccl_double {

inline std::size_t width(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

template <class T, class W = T>
void fold_as(void* left, const void* right, std::size_t n, ncclRedOp_t how) {
  T* a = static_cast<T*>(left);
  const T* b = static_cast<const T*>(right);
  for (std::size_t i = 0; i < n; ++i) {
    const W x = static_cast<W>(a[i]), y = static_cast<W>(b[i]);
    const W z = how == ncclSum    ? static_cast<W>(x + y)
                : how == ncclProd ? static_cast<W>(x * y)
                : how == ncclMax  ? (std::max)(x, y)
                                  : (std::min)(x, y);
    a[i] = static_cast<T>(z);
  }
}
inline void fold(void* a, const void* b, std::size_t n, ncclDataType_t type, ncclRedOp_t how) {
  switch (type) {
    case ncclInt8:
      return fold_as<std::int8_t>(a, b, n, how);
    case ncclUint8:
      return fold_as<std::uint8_t>(a, b, n, how);
    case ncclInt32:
      return fold_as<std::int32_t>(a, b, n, how);
    case ncclUint32:
      return fold_as<std::uint32_t>(a, b, n, how);
    case ncclInt64:
      return fold_as<std::int64_t>(a, b, n, how);
    case ncclUint64:
      return fold_as<std::uint64_t>(a, b, n, how);
    case ncclFloat32:
      return fold_as<float>(a, b, n, how);
    case ncclFloat64:
      return fold_as<double>(a, b, n, how);
    case ncclFloat16:
      return fold_as<__half, float>(a, b, n, how);
    case ncclBfloat16:
      return fold_as<__nv_bfloat16, float>(a, b, n, how);
    case ncclFloat8e4m3:
      return fold_as<__nv_fp8_e4m3, float>(a, b, n, how);
    default:
      return fold_as<__nv_fp8_e5m2, float>(a, b, n, how);
  }
}

}  // namespace nccl_double
