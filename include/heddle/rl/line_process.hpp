// heddle/rl/line_process.hpp: runs a command for each line, with limits, and reads a line.
#pragma once

#include <heddle/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::rl {

/// A command and what one run of it may use. Errors of `validate`: `config_error`.
struct process_limits {
  std::vector<std::string> command{};                   ///< program and arguments; looked for in PATH
  int cpu_seconds = 10;                                 ///< of each process
  std::int64_t memory_bytes = std::int64_t{512} << 20;  ///< addresses of each process
  double wall_seconds = 20;                             ///< of the whole run
  std::int64_t output_bytes = std::int64_t{1} << 16;    ///< of the line
  int at_once = 1;                                      ///< runs beside each other
  HEDDLE_INLINE void validate() const;
};

/// The first line that a run printed, without its end, or why there is none.
struct process_line {
  std::string text{}, failure{};  ///< `failure` empty: there is a line
};

/// Runs the command once for each line, which it finds in its standard input, and reads the first line that it prints.
/// Then, or when a limit is passed, its process group is killed, so that processes which it started do not stay; one
/// that leaves the group (setsid) does. Limits of CPU and addresses are set by `ulimit` of /bin/sh before the command
/// begins. What it says on its standard error goes, cut, into the failure. Errors: `config_error` for limits.
HEDDLE_INLINE std::vector<process_line> run_lines(const process_limits& limits, std::span<const std::string> lines);

}  // namespace heddle::inline v0::rl

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/rl/impl/line_process.hpp>
#endif
