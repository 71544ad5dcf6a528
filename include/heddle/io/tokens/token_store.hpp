// heddle/io/tokens/token_store.hpp: documents of tokens, whatever file they lie in.
#pragma once

#include <heddle/io/checksum.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace heddle::inline v0::io {

/// Documents of tokens, by number. `length(d)`: tokens of document d. `copy(d, first, to)`: tokens [first, first +
/// to.size()) of it. `fingerprint()`: 64 bits that differ for other tokens, for `train::save_facts::corpus`.
template <class S>
concept token_store = requires(const S& s, std::int64_t n, std::span<std::int32_t> to) {
  { s.documents() } -> std::convertible_to<std::int64_t>;
  { s.length(n) } -> std::convertible_to<std::int64_t>;
  s.copy(n, n, to);
  { s.fingerprint() } -> std::convertible_to<std::uint64_t>;
};

namespace detail {

// A number at any place in a file; files of tokens are little-endian.
template <class T>
T number_at(std::span<const std::byte> bytes, std::size_t at) noexcept {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}
// As token ids: `count` numbers of type T.
template <class T, class Id>
void copy_tokens(const std::byte* from, std::span<Id> to) noexcept {
  for (std::size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    to[i] = static_cast<Id>(value);
  }
}

// A checksum of a file's bytes, and of 64 of another's pages.
inline std::uint64_t fingerprint_of(std::span<const std::byte> index, std::span<const std::byte> tokens) noexcept {
  constexpr std::size_t page = 4096, pages = 64;
  checksum64 sum;
  sum.update(index);
  const std::uint64_t size = tokens.size();
  sum.update(std::as_bytes(std::span<const std::uint64_t>(&size, 1)));
  if (tokens.size() <= page * pages) return sum.update(tokens).value();
  for (std::size_t i = 0; i < pages; ++i) sum.update(tokens.subspan((tokens.size() - page) / (pages - 1) * i, page));
  return sum.value();
}

}  // namespace detail
}  // namespace heddle::inline v0::io
