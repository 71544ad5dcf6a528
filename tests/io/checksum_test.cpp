// The checksum has the published values, and does not depend on how the bytes come.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/io/checksum.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace io = heddle::io;

namespace {
std::uint64_t of(std::string_view text) {
  return io::checksum(std::as_bytes(std::span<const char>(text)));
}
}  // namespace

TEST_CASE("XXH64 of known texts", "[io][checksum]") {
  CHECK(io::to_hex(of("")) == "ef46db3751d8e999");
  CHECK(io::to_hex(of("a")) == "d24ec4f1a98c6e5b");
  CHECK(io::to_hex(of("abc")) == "44bc2cf5ad770999");
  CHECK(io::to_hex(of("Nobody inspects the spammish repetition")) ==
        "fbcea83c8a378bf1");  // 39 bytes: more than a stripe
  CHECK(io::to_hex(0x1u) == "0000000000000001");
}

TEST_CASE("pieces give the checksum of the whole", "[io][checksum]") {
  const heddle::counter_random random(5, 0);
  INFO("seed 5");
  std::vector<std::byte> bytes(1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(random.integer(i));
  const std::span<const std::byte> all(bytes);
  for (std::uint64_t round = 0; round < 200; ++round) {
    const std::size_t n = random.integer(5000 + round) % 1001;
    io::checksum64 sum;
    std::uint64_t draw = 9000 + round * 1000;
    for (std::size_t at = 0; at < n;) {  // empty pieces included
      const std::size_t piece = (std::min)(n - at, static_cast<std::size_t>(random.integer(draw++) % 70));
      sum.update(all.subspan(at, piece));
      at += piece;
    }
    CHECK(sum.value() == io::checksum(all.first(n)));
  }
}

TEST_CASE("every flipped bit changes the checksum", "[io][checksum]") {
  std::vector<std::byte> bytes(100, std::byte{7});
  const std::uint64_t before = io::checksum(bytes);
  for (std::size_t bit = 0; bit < 800; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    CHECK(io::checksum(bytes) != before);
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
  }
}
