// heddle/comm/mpi/device_memory.hpp: asks MPI whether it takes addresses in the memory of devices.
#pragma once

#include <heddle/comm/mpi/api.hpp>
#include <heddle/comm/options.hpp>
#include <heddle/core/device_runtime.hpp>
#include <heddle/core/error.hpp>

#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

namespace heddle::inline v0 {

/// What MPI says: whether it takes memory of devices of this runtime in messages and collectives; nothing where it cannot be asked.
/// Source: Open MPI's extension `MPIX_Query_cuda_support` (`MPIX_Query_rocm_support` from 5.0 on), MPICH's `MPIX_GPU_query_support`.
inline std::optional<bool> mpi_takes_memory_of([[maybe_unused]] device_runtime runtime) {
#if defined(OPEN_MPI) && defined(MPIX_CUDA_AWARE_SUPPORT)
  if (runtime == device_runtime::cuda) return MPIX_Query_cuda_support() == 1;
#endif
#if defined(OPEN_MPI) && defined(MPIX_ROCM_AWARE_SUPPORT)
  if (runtime == device_runtime::hip) return MPIX_Query_rocm_support() == 1;
#endif
#if defined(MPIX_GPU_SUPPORT_CUDA) && defined(MPIX_GPU_SUPPORT_HIP)
  if (runtime != device_runtime::other) {
    int yes = 0;
    const int type = runtime == device_runtime::cuda ? MPIX_GPU_SUPPORT_CUDA : MPIX_GPU_SUPPORT_HIP;
    return MPIX_GPU_query_support(type, &yes) == MPI_SUCCESS && yes != 0;
  }
#endif
  return std::nullopt;
}

namespace detail {

// The setting of a launch; where that is automatic, the environment's.
inline device_messages wanted_device_messages(device_messages setting) {
  const char* const text = std::getenv("HEDDLE_DEVICE_MESSAGES");
  if (setting != device_messages::automatic || text == nullptr) return setting;
  const std::string_view word = text;
  if (word == "direct") return device_messages::direct;
  if (word == "staged") return device_messages::staged;
  if (word == "automatic" || word.empty()) return device_messages::automatic;
  throw config_error(
      "heddle: the environment variable HEDDLE_DEVICE_MESSAGES should be automatic, direct or staged, it is \"" +
      std::string(word) + '"');
}

// Whether MPI is given the addresses of this space, which the host cannot use, or copies on the host.
inline bool mpi_is_given(device_messages setting, device_runtime runtime, std::string_view space) {
  const device_messages wanted = wanted_device_messages(setting);
  if (wanted == device_messages::staged) return false;
  const std::optional<bool> says = mpi_takes_memory_of(runtime);
  if (wanted == device_messages::automatic) return says.value_or(false);
  if (says.value_or(true)) return true;
  throw comm_error("heddle: device_messages::direct gives MPI the memory of " + std::string(space) +
                   ", but MPI says that it takes no memory of such devices: use device_messages::automatic or staged, "
                   "which copy it to the host's memory, or an MPI that was built for these devices");
}

}  // namespace detail
}  // namespace heddle::inline v0
