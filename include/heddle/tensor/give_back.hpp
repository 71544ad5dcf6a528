// heddle/tensor/give_back.hpp: gives pages of memory back to the system, whose addresses stay.
#pragma once

#include <heddle/core/config.hpp>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <cstddef>
#include <cstdint>

namespace heddle::inline v0::detail {

/// Gives back the whole pages of [begin, begin + bytes), which read as zeros until they are written again. Returns their bytes; 0 where the system does not do it.
inline std::size_t give_back_pages([[maybe_unused]] void* begin, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(__linux__)
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  const std::uintptr_t from = (first + page - 1) / page * page, to = (first + bytes) / page * page;
  if (to <= from || ::madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED) != 0) return 0;
  return to - from;
#else
  return 0;
#endif
}

}  // namespace heddle::inline v0::detail
