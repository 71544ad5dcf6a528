// tests/headers/two_units_one.cpp: one of two translation units that include everything and make one program.
#include <heddle/heddle.hpp>

int other_unit_version();
std::string other_unit_mesh();

int main() {
  using mesh = heddle::mesh<heddle::axis<heddle::dp, 2>, heddle::axis<heddle::tp>>;
  return other_unit_version() == HEDDLE_VERSION && other_unit_mesh() == heddle::to_string(mesh{3}) ? 0 : 1;
}
