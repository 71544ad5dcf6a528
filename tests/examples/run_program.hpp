// tests/examples/run_program.hpp: runs a program and keeps what it prints.
#pragma once

#include <array>
#include <cstddef>
#include <cstdio>
#include <string>

#include <sys/wait.h>

namespace examples_test {

struct answer {
  int status = -1;  // -1: it did not start, or a signal ended it
  std::string text;
};

/// A line of the shell; `text` is what goes to its output.
inline answer shell(const std::string& line) {
  answer a;
  std::FILE* const out = ::popen(line.c_str(), "r");
  if (out == nullptr) return a;
  std::array<char, 4096> piece{};
  while (const std::size_t n = std::fread(piece.data(), 1, piece.size(), out)) a.text.append(piece.data(), n);
  const int status = ::pclose(out);
  a.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return a;
}

/// An example: its name and arguments; `text` is of both outputs.
inline answer run(const std::string& command) {
  return shell(HEDDLE_EXAMPLES_DIR "/" + command + " 2>&1");
}

}  // namespace examples_test
