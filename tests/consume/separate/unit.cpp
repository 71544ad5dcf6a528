// tests/consume/separate/unit.cpp: a unit of some program that is compiled otherwise than the rest.
#include <heddle/core/config.hpp>

int other_unit() {
  return 0;
}
