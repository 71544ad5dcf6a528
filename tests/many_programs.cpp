// tests/many_programs.cpp: the main function of several examples in one program: runs the one that the program is called as
#include "many_programs.hpp"

#include <cstdio>

int main(int argc, char** argv) {
  const std::string path = argc > 0 ? argv[0] : "";
  const std::string name = path.substr(path.rfind('/') + 1);
  const auto found = many_programs::by_name().find(name);
  if (found == many_programs::by_name().end()) {
    std::fprintf(stderr, "heddle: no example '%s' in this program; it has:", name.c_str());
    for (const auto& [other, program] : many_programs::by_name()) std::fprintf(stderr, " %s", other.c_str());
    std::fputs("\n", stderr);
    return 1;
  }
  return found->second.plain != nullptr ? found->second.plain() : found->second.other(argc, argv);
}
