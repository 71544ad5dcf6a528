// heddle/io/manifest.hpp: the manifest of a save, as lines of text.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/checksum.hpp>
#include <heddle/io/dataset.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// What a rank says about the file it wrote. Trivially copyable: gather it over a communicator to the rank that
/// commits.
struct rank_file {
  std::int64_t rank = 0, bytes = 0;
  std::uint64_t checksum = 0;

  friend constexpr bool operator==(rank_file, rank_file) = default;
};
static_assert(std::is_trivially_copyable_v<rank_file>);

/// A save in a page of text. It is written last, so a save with a valid manifest is complete.
struct manifest {
  /// Of saves with checksums of pieces, or that were written into a store. Those of 2, with neither, and 1, without an
  /// index, are still written where they say all, and read.
  static constexpr int format = 3;
  /// More than these no run does: 10^12 steps, of 2^20 samples each, with room for as many again in 64 bits.
  static constexpr std::int64_t most_steps = 1000000000000, most_samples = std::int64_t{1} << 60;

  std::int64_t step = 0;
  std::uint64_t seed = 0;
  data_position position = {};                    ///< in the data; holds no rank count
  std::uint64_t corpus = 0;                       ///< fingerprint of the data trained on
  std::string mesh = {};                          ///< as `to_string(mesh)` prints it
  std::string config = {};                        ///< model and training settings; any text
  std::map<std::string, std::string> facts = {};  ///< whatever else the program wants to find again
  std::vector<rank_file> files = {};              ///< one per rank, in rank order
  std::int64_t index_bytes = 0;                   ///< of the file `index`; 0: there is none (format 1)
  std::uint64_t index_checksum = 0;

  friend bool operator==(const manifest&, const manifest&) = default;
};

namespace detail {

// Values may hold any text: a line break and a backslash are written as \n and \\.
HEDDLE_INLINE std::string escape_line(std::string_view text);
HEDDLE_INLINE std::string unescape_line(std::string_view text);

// All of `text` as a number, or an error that names what was read.
template <class Int>
Int parse_number(std::string_view text, int base, const std::string& what) {
  Int value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || code != std::errc{} || end != text.data() + text.size())
    throw io_error("heddle: " + what + " is not a number: '" + std::string(text) + "'");
  return value;
}

// The same, and in [0, most].
HEDDLE_INLINE std::int64_t parse_count(std::string_view text, std::int64_t most, const std::string& what);

// Cuts the text before the next `mark` off the front of `rest`.
HEDDLE_INLINE std::string_view next_field(std::string_view& rest, char mark);

inline constexpr std::string_view manifest_title = "heddle checkpoint";
// Facts that format 3 has: which attempt wrote a save that no folder has held, and the bytes of a piece, where parts
// have checksums of pieces.
inline constexpr const char *attempt_fact = "attempt", *pieces_fact = "pieces";
// Whether a text is a manifest of a format that only later programs read.
HEDDLE_INLINE bool is_of_later_format(std::string_view text);

}  // namespace detail

/// The text of a manifest: a title, `key=value` lines, and a last line with the checksum of all before it.
/// Errors: `io_error` if a fact's name is empty or holds '=' or a line break, or step or position are out of range.
HEDDLE_INLINE std::string to_text(const manifest& m);

/// Reads the text of a manifest. `where` names it in messages.
/// Errors: `io_error` that says whether it is no manifest, of another format version, cut off, damaged or incomplete;
/// or which of its numbers is out of range, whatever the checksum.
HEDDLE_INLINE manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/manifest.hpp>
#endif
