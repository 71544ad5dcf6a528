// tests/headers/two_units_two.cpp: the other of two translation units that include everything.
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

int other_unit_version() { return HEDDLE_VERSION; }
std::string other_unit_mesh() {
  using mesh = heddle::mesh<heddle::axis<heddle::dp, 2>, heddle::axis<heddle::tp>>;
  return heddle::to_string(mesh{3});
}
