// heddle/mesh/topology_file.hpp: a topology as text that people and programs read and write.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/file_size_signal.hpp>
#include <heddle/core/line_reader.hpp>
#include <heddle/core/text.hpp>
#include <heddle/mesh/topology.hpp>

#include <charconv>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// The most ranks that a topology's text may have: each takes memory, though it need not have a line.
inline constexpr int most_ranks_in_text = 1 << 20;

namespace detail {
inline void append_number(std::string& text, double x) {
  char digits[32];
  const auto written = std::to_chars(digits, digits + sizeof digits, x);  // as short as reads back exactly
  text.append(digits, written.ptr);
}

// Reads the directives of a topology's text, line by line.
class topology_reader : line_reader<mesh_error> {
 public:
  using line_reader::line_reader;

  topology read();

 private:
  void checked_directive();

  void directive();

  link_kind link_kind_of(std::size_t word) {
    return static_cast<link_kind>(position(word, link_kind_names, "kind of link"));
  }

  bool counted_ = false;
  topology result_;
};
}  // namespace detail

/// The topology as text, one line for each rank's place, vertex and link; `both` for two links that differ in their
/// direction only. `parse_topology` reads it back to the same value, bit by bit.
///
///     heddle topology 1
///     ranks 2
///     forward ranks yes
///     place 0 gpu 0 node 0 rail 0 pod 0 nic infiniband
///     place 1 gpu 1 node 1 rail 0 pod 0 nic infiniband
///     vertex 2 switch
///     both 0 2 seconds 1e-06 bytes_per_second 2.5e+10 infiniband    # a comment
///     link 2 1 seconds 1e-06 bytes_per_second 2.5e+10 infiniband
HEDDLE_INLINE std::string to_text(const topology& t);

/// Reads what `to_text` writes, of at most `most_ranks_in_text` ranks. `ranks` comes first; ranks without `place` keep
/// the place of a new topology.
/// Errors: `mesh_error` naming `source`, the line and what was expected there.
inline topology parse_topology(std::string_view text, std::string_view source = "the topology's text") {
  return detail::topology_reader(text, source).read();
}

/// Writes a topology to a file, in the text form that `load_topology` reads.
/// Errors: `io_error` if the file cannot be written.
HEDDLE_INLINE void save_topology(const topology& t, const std::string& path);

/// Reads a topology from a file that `save_topology` wrote, or that is written in its form.
/// Errors: `io_error` if the file cannot be read; `mesh_error` naming file and line if it holds no topology.
HEDDLE_INLINE topology load_topology(const std::string& path);

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/mesh/impl/topology_file.hpp>
#endif
