// tests/many_programs.hpp: examples that are compiled and linked as one program, which runs the one that it is called as
//
// Links to the program have the names of the examples. examples/CMakeLists.txt renames each `main`.
#pragma once

#include <map>
#include <string>

namespace many_programs {

using no_arguments = int();
using with_arguments = int(int, char**);

struct program {
  no_arguments* plain = nullptr;
  with_arguments* other = nullptr;
};

inline std::map<std::string, program>& by_name() {
  static std::map<std::string, program> programs;
  return programs;
}

/// A namespace-scope variable of this type enters an example.
struct entered {
  entered(const char* name, no_arguments* main) { by_name()[name].plain = main; }
  entered(const char* name, with_arguments* main) { by_name()[name].other = main; }
};

}  // namespace many_programs
