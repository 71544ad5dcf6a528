// heddle/io/tokens/token_store.hpp: what tokens of documents are read from, whatever file they lie in.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace heddle::inline v0::io {

/// Documents of tokens, by number. `length(d)`: tokens of document d. `copy(d, first, to)`: tokens [first, first + to.size()) of it.
/// `fingerprint()`: 64 bits that differ for other tokens, for `train::save_facts::corpus`.
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

}  // namespace detail
}  // namespace heddle::inline v0::io
