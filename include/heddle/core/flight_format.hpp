// heddle/core/flight_format.hpp: layout of a flight file: the last calls of one rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace heddle::inline v0::detail {

// A file is a header, `groups` groups, `members` ranks, `calls` calls. It is written in place while the rank runs; numbers that others
// wait for are stored last. All in the byte order of the machine.
struct flight_header {
  static constexpr std::uint64_t right_magic = 0x746867696c666468;  // "hdflight" where the lowest byte comes first
  static constexpr std::uint32_t right_version = 1;
  enum : std::uint32_t { running, returned, failed };

  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t rank, ranks;
  std::uint32_t groups, members, calls;  // how many there is room for
  std::int64_t run_ns;                   // when the run began, the same on all ranks: nanoseconds since 1970
  std::int64_t clock_ahead_ns;           // of 1970's clock to that of the times below
  std::int32_t pid;
  std::uint32_t state;
  std::uint32_t groups_used, members_used;
  std::uint64_t calls_made;
  char host[64];
  char boot[40];      // which start of that host
  char problem[288];  // what the body threw
};
static_assert(sizeof(flight_header) == 464);

struct flight_group {
  char name[48];
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
  char element[24], combine[24];
};
static_assert(sizeof(flight_call) == 120);

// Texts of files and of types, cut to fit in `room` bytes with a zero behind, filled up with zeros.
inline void put_text(char* to, std::size_t room, std::string_view text) noexcept {
  for (std::size_t i = 0; i < room; ++i) to[i] = i < text.size() && i + 1 < room ? text[i] : '\0';
}

}  // namespace heddle::inline v0::detail
