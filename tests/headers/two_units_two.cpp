// tests/headers/two_units_two.cpp: the other of two translation units that include everything.
#include <heddle/heddle.hpp>

int other_unit_version() { return HEDDLE_VERSION; }
std::string other_unit_mesh() {
  using mesh = heddle::mesh<heddle::axis<heddle::dp, 2>, heddle::axis<heddle::tp>>;
  return heddle::to_string(mesh{3});
}
