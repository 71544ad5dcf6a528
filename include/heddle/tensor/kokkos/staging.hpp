// heddle/tensor/kokkos/staging.hpp: host memory for messages, pinned where possible.
#pragma once

#include <heddle/core/device_runtime.hpp>
#include <heddle/core/error.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::detail {

/// Memory of the host that devices of this execution space copy from and to beside other work, and the runtime of these devices.
template <class ExecSpace>
struct kokkos_device {
  using pinned = Kokkos::HostSpace;
  static constexpr device_runtime runtime = device_runtime::other;
};
#if defined(KOKKOS_ENABLE_CUDA)
template <>
struct kokkos_device<Kokkos::Cuda> {
  using pinned = Kokkos::CudaHostPinnedSpace;
  static constexpr device_runtime runtime = device_runtime::cuda;
};
#endif
#if defined(KOKKOS_ENABLE_HIP) && KOKKOS_VERSION >= 40000
template <>
struct kokkos_device<Kokkos::HIP> {
  using pinned = Kokkos::HIPHostPinnedSpace;
  static constexpr device_runtime runtime = device_runtime::hip;
};
#endif

// Two rooms that grow, each for one user at a time. What Kokkos no longer frees stays where it is.
template <class Pinned>
class kokkos_staging {
 public:
  kokkos_staging() = default;
  kokkos_staging(kokkos_staging&& other) noexcept : rooms_(std::exchange(other.rooms_, {})) {}
  kokkos_staging& operator=(kokkos_staging&& other) noexcept {
    std::swap(rooms_, other.rooms_);
    return *this;
  }
  ~kokkos_staging() {
    for (room& r : rooms_) release(r);
  }
  void* at(std::size_t slot, std::size_t bytes) {
    room& r = rooms_.at(slot);
    if (r.bytes >= bytes) return r.memory;
    release(r);
    r.memory = Kokkos::kokkos_malloc<Pinned>("heddle, messages", bytes);
    if (r.memory == nullptr)
      throw memory_error("heddle: " + std::to_string(bytes) + " bytes of " + std::string(Pinned::name()) +
                         " for messages: no memory");
    r.bytes = bytes;
    return r.memory;
  }

 private:
  struct room {
    void* memory = nullptr;
    std::size_t bytes = 0;
  };
  static void release(room& r) noexcept {
    if (r.memory != nullptr && Kokkos::is_initialized()) Kokkos::kokkos_free<Pinned>(r.memory);
    r = {};
  }
  std::array<room, 2> rooms_{};
};

}  // namespace heddle::inline v0::detail
