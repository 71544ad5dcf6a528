// heddle/io/checksum.hpp: 64-bit checksums of bytes, in one go or piece by piece.
#pragma once

#include <heddle/core/config.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace heddle::inline v0::io {

/// XXH64 with seed 0: finds accidental damage (not made against an adversary), at several bytes per cycle. The command
/// `xxhsum -H64` prints the same numbers. Feeding pieces gives the value of their concatenation.
/// Source: the XXH64 algorithm description of the xxHash project (doc/xxhash_spec.md).
class checksum64 {
 public:
  checksum64& update(std::span<const std::byte> bytes) noexcept {
    total_ += bytes.size();
    if (held_ > 0) {
      const std::size_t n = (std::min)(bytes.size(), stripe - held_);
      if (n > 0) std::memcpy(hold_.data() + held_, bytes.data(), n);
      held_ += n;
      bytes = bytes.subspan(n);
      if (held_ < stripe) return *this;
      consume(hold_.data());
      held_ = 0;
    }
    while (bytes.size() >= stripe) {
      consume(bytes.data());
      bytes = bytes.subspan(stripe);
    }
    if (!bytes.empty()) std::memcpy(hold_.data(), bytes.data(), bytes.size());
    held_ = bytes.size();
    return *this;
  }

  std::uint64_t value() const noexcept {
    std::uint64_t h = p5;
    if (total_ >= stripe) {
      h = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
      for (const std::uint64_t l : lanes_) h = (h ^ step(0, l)) * p1 + p4;
    }
    h += total_;
    std::size_t at = 0;
    for (; at + 8 <= held_; at += 8) h = std::rotl(h ^ step(0, load<8>(hold_.data() + at)), 27) * p1 + p4;
    if (at + 4 <= held_) {
      h = std::rotl(h ^ (load<4>(hold_.data() + at) * p1), 23) * p2 + p3;
      at += 4;
    }
    for (; at < held_; ++at) h = std::rotl(h ^ (load<1>(hold_.data() + at) * p5), 11) * p1;
    h = (h ^ (h >> 33)) * p2;
    h = (h ^ (h >> 29)) * p3;
    return h ^ (h >> 32);
  }

 private:
  static constexpr std::size_t stripe = 32;
  static constexpr std::uint64_t p1 = 0x9E3779B185EBCA87u, p2 = 0xC2B2AE3D27D4EB4Fu, p3 = 0x165667B19E3779F9u,
                                 p4 = 0x85EBCA77C2B2AE63u, p5 = 0x27D4EB2F165667C5u;

  static std::uint64_t step(std::uint64_t lane, std::uint64_t word) noexcept {
    return std::rotl(lane + word * p2, 31) * p1;
  }
  // Little-endian whatever the machine.
  template <std::size_t Bytes>
  static std::uint64_t load(const std::byte* from) noexcept {
    std::uint64_t word = 0;
    if constexpr (std::endian::native == std::endian::little) {
      std::memcpy(&word, from, Bytes);
    } else {
      for (std::size_t i = 0; i < Bytes; ++i) word |= static_cast<std::uint64_t>(from[i]) << (8 * i);
    }
    return word;
  }
  void consume(const std::byte* from) noexcept {
    for (std::size_t i = 0; i < 4; ++i) lanes_[i] = step(lanes_[i], load<8>(from + 8 * i));
  }

  std::array<std::uint64_t, 4> lanes_{p1 + p2, p2, 0, std::uint64_t{0} - p1};
  std::array<std::byte, stripe> hold_{};
  std::size_t held_ = 0;
  std::uint64_t total_ = 0;
};

/// The checksum of some bytes.
inline std::uint64_t checksum(std::span<const std::byte> bytes) noexcept {
  return checksum64{}.update(bytes).value();
}

/// Sixteen hexadecimal digits, as `xxhsum` prints.
inline std::string to_hex(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

}  // namespace heddle::inline v0::io
