// tests/consume/families/header_only.cpp: a unit that must not be linked with heddle::families: it is compiled header-only.
#include <heddle/core/config.hpp>

int other_unit() {
  return 0;
}
