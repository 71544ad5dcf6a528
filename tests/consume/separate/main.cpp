// tests/consume/separate/main.cpp: the other unit of that program.
#include <heddle/core/config.hpp>

int other_unit();
int main() {
  return other_unit();
}
