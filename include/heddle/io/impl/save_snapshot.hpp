// heddle/io/impl/save_snapshot.hpp: bodies of heddle/io/save_snapshot.hpp.
#pragma once

#include <heddle/io/save_snapshot.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <sys/mman.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace heddle::inline v0::io {
namespace detail {

// Copies past the caches, which keep what the next step needs; and a line that is written whole need not be read first,
// a third of the traffic. `to` lies at a multiple of 64 bytes.
inline void copy_past_caches(std::byte* to, std::span<const std::byte> from) noexcept {
  std::size_t done = 0;
#if defined(__SSE2__)
  for (; done + 64 <= from.size(); done += 64)
    for (std::size_t i = 0; i < 64; i += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + done + i),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from.data() + done + i)));
  _mm_sfence();
#endif
  if (done < from.size()) std::memcpy(to + done, from.data() + done, from.size() - done);
}

}  // namespace detail

HEDDLE_INLINE save_snapshot::~save_snapshot() {
  if (memory_ != nullptr) ::munmap(memory_, static_cast<std::size_t>(capacity_));
}

HEDDLE_INLINE void save_snapshot::reserve(std::int64_t bytes) {
  if (bytes <= capacity_) return;
  constexpr std::int64_t page = std::int64_t{1} << 21;  // of the large ones
  const std::int64_t room = (bytes + page - 1) / page * page;
  void* const there =
      ::mmap(nullptr, static_cast<std::size_t>(room), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (there == MAP_FAILED)
    throw memory_error("heddle: no memory for the copy of what a rank saves, " + std::to_string(bytes) + " bytes");
#if defined(MADV_HUGEPAGE)
  ::madvise(there, static_cast<std::size_t>(room), MADV_HUGEPAGE);
#endif
  if (bytes_ > 0) std::memcpy(there, memory_, static_cast<std::size_t>(bytes_));
  if (memory_ != nullptr) ::munmap(memory_, static_cast<std::size_t>(capacity_));
  memory_ = static_cast<std::byte*>(there);
  capacity_ = room;
}

HEDDLE_INLINE void save_snapshot::touch() noexcept {
  constexpr std::int64_t page = 4096;
  volatile std::byte* const all = memory_;
  for (std::int64_t at = bytes_ == 0 ? 0 : capacity_; at < capacity_; at += page) all[at] = std::byte{0};
}

HEDDLE_INLINE void save_snapshot::add_part(std::string_view name, std::string_view dtype,
                                           std::span<const std::byte> bytes, const tensor_region& region) {
  const auto count = static_cast<std::int64_t>(bytes.size());
  if (bytes_ + count > capacity_) reserve((std::max)(bytes_ + count, capacity_ + capacity_ / 2));
  if (parts_ == all_.size()) all_.emplace_back();
  part& p = all_[parts_++];
  // The same part as at the last copy has its name already.
  if (p.name != name) p.name = name;
  if (p.dtype != dtype) p.dtype = dtype;
  if (p.region != region) p.region = region;
  p.at = bytes_;
  p.bytes = count;
  detail::copy_past_caches(memory_ + bytes_, bytes);
  bytes_ += part_sizes::padded(count);
}

HEDDLE_INLINE void save_snapshot::write(part_writer& to) const {
  each([&](std::string_view name, std::string_view dtype, std::span<const std::byte> bytes,
           const tensor_region& region) { to.add_part(name, dtype, bytes, region); });
}

}  // namespace heddle::inline v0::io
