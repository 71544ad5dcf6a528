// heddle/core/flight_format.hpp: layout of a flight file: the last calls of one rank.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace heddle::inline v0::detail {

// A file is a header, `groups` groups, `members` ranks, `calls` calls. It is written in place while the rank runs; numbers that others
// wait for are stored last. All in the byte order of the machine.
struct flight_header {
  static constexpr std::array<char, 8> right_magic{'h', 'd', 'f', 'l', 'i', 'g', 'h', 't'};
  static constexpr std::uint32_t right_version = 1;
  enum : std::uint32_t { running, returned, failed };

  std::array<char, 8> magic;
  std::uint32_t version;
  std::int32_t rank, ranks;
  std::uint32_t groups, members, calls;  // how many there is room for
  std::int64_t run_ns;                   // when the run began, the same on all ranks: nanoseconds since 1970
  std::int64_t clock_ahead_ns;           // of 1970's clock to that of the times below
  std::int32_t pid;
  std::uint32_t state;
  std::uint32_t groups_used, members_used;
  std::uint64_t calls_made;
  std::array<char, 64> host;
  std::array<char, 40> boot;      // which start of that host
  std::array<char, 288> problem;  // what the body threw
};
static_assert(sizeof(flight_header) == 464 && std::is_trivially_copyable_v<flight_header>);

struct flight_group {
  std::array<char, 48> name;
  std::uint32_t first_member, members;
};
static_assert(sizeof(flight_group) == 56);

struct flight_call {
  std::uint64_t number;  // of all calls of the rank, from 1 on; 0: being written
  std::int64_t call;     // of the collectives of its group, from 1 on; of a message 0
  std::int64_t count, mark;
  std::uint64_t counts_hash;
  std::int64_t entered_ns, left_ns;  // left_ns is 0 while the rank is inside
  std::uint32_t group;
  std::int32_t root, tag;
  std::uint8_t operation, started;
  std::uint16_t element_size;
  std::array<char, 24> element, combine;
};
static_assert(sizeof(flight_call) == 120);

// Texts of files and of types, cut to fit, filled up with zeros.
template <std::size_t N>
void put_text(std::array<char, N>& to, std::string_view text) noexcept {
  std::size_t i = 0;
  for (; i < text.size() && i + 1 < N; ++i) to[i] = text[i];
  for (; i < N; ++i) to[i] = 0;
}

}  // namespace heddle::inline v0::detail
