// tests/headers/two_units_one.cpp: one of two translation units that include everything and make one program.
#include <heddle/comm.hpp>
#include <heddle/compute.hpp>
#include <heddle/core.hpp>
#include <heddle/heddle.hpp>
#include <heddle/io.hpp>
#include <heddle/layout.hpp>
#include <heddle/mesh.hpp>
#include <heddle/model.hpp>
#include <heddle/observe.hpp>
#include <heddle/plan.hpp>
#include <heddle/schedule.hpp>
#include <heddle/sim.hpp>
#include <heddle/tensor.hpp>
#include <heddle/testing.hpp>
#include <heddle/train.hpp>

int other_unit_version();
std::string other_unit_mesh();

int main() {
  using mesh = heddle::mesh<heddle::axis<heddle::dp, 2>, heddle::axis<heddle::tp>>;
  return other_unit_version() == HEDDLE_VERSION && other_unit_mesh() == heddle::to_string(mesh{3}) ? 0 : 1;
}
