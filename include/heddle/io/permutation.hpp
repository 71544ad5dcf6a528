// heddle/io/permutation.hpp: a computed shuffle of [0, n): any position in constant time.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>

#include <bit>
#include <cstdint>
#include <string>

namespace heddle::inline v0::io {

/// A pseudo-random bijection of [0, size), a pure function of (seed, epoch): every rank computes any element of the
/// shuffled order on its own, without tables and without talking to others.
/// An alternating Feistel network of eight rounds over Philox on the smallest power of two that holds the range;
/// results outside the range are fed back (cycle walking), fewer than two passes on average.
/// Errors: `config_error` for a negative size.
/// Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, sections 3 and 4.
class permutation {
 public:
  constexpr permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch = 0)
      : size_(size), random_(seed, epoch ^ stream_of_orders) {
    if (size < 0) throw config_error("heddle: io::permutation of a negative size, " + std::to_string(size));
    const int bits = size <= 1 ? 0 : static_cast<int>(std::bit_width(static_cast<std::uint64_t>(size - 1)));
    low_bits_ = bits / 2;
    high_bits_ = bits - low_bits_;
  }

  constexpr std::int64_t size() const noexcept { return size_; }

  /// The element at `position`. Requires `0 <= position < size()`.
  constexpr std::int64_t operator()(std::int64_t position) const noexcept {
    auto x = static_cast<std::uint64_t>(position);
    if (size_ <= 1) return position;
    do x = forward(x);
    while (x >= static_cast<std::uint64_t>(size_));
    return static_cast<std::int64_t>(x);
  }

  /// The position of `element`: the inverse of the call operator. Requires `0 <= element < size()`.
  constexpr std::int64_t position_of(std::int64_t element) const noexcept {
    auto x = static_cast<std::uint64_t>(element);
    if (size_ <= 1) return element;
    do x = backward(x);
    while (x >= static_cast<std::uint64_t>(size_));
    return static_cast<std::int64_t>(x);
  }

 private:
  static constexpr int rounds = 8;
  // Keeps the numbers of sample orders apart from other uses of the same seed.
  static constexpr std::uint64_t stream_of_orders = 0x6f72646572206f66u;

  constexpr std::uint64_t round_bits(int round, std::uint64_t half, int bits) const noexcept {
    return random_.integer((static_cast<std::uint64_t>(round) << 32) | half) & ((std::uint64_t{1} << bits) - 1);
  }
  constexpr std::uint64_t forward(std::uint64_t x) const noexcept {
    std::uint64_t high = x >> low_bits_;
    std::uint64_t low = x & ((std::uint64_t{1} << low_bits_) - 1);
    for (int r = 0; r < rounds; ++r) {
      if (r % 2 == 0)
        high ^= round_bits(r, low, high_bits_);
      else
        low ^= round_bits(r, high, low_bits_);
    }
    return (high << low_bits_) | low;
  }
  constexpr std::uint64_t backward(std::uint64_t x) const noexcept {
    std::uint64_t high = x >> low_bits_;
    std::uint64_t low = x & ((std::uint64_t{1} << low_bits_) - 1);
    for (int r = rounds; r-- > 0;) {
      if (r % 2 == 0)
        high ^= round_bits(r, low, high_bits_);
      else
        low ^= round_bits(r, high, low_bits_);
    }
    return (high << low_bits_) | low;
  }

  std::int64_t size_;
  int low_bits_ = 0;
  int high_bits_ = 0;
  counter_random random_;
};

}  // namespace heddle::inline v0::io
