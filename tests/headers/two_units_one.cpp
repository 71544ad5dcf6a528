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
#include <heddle/train/activations/default_file_store.hpp>
#include <heddle/train/language_state.hpp>
#include <heddle/train/measure_layers.hpp>
#include <heddle/train/measured_schedule.hpp>
#include <heddle/train/named_parameters.hpp>
#include <heddle/train/static_profile.hpp>
#include <heddle/train/three_functions.hpp>
#include <heddle/train/training_job.hpp>

int other_unit_version();
std::string other_unit_mesh();

int main() {
  using mesh = heddle::mesh<heddle::axis<heddle::dp, 2>, heddle::axis<heddle::tp>>;
  return other_unit_version() == HEDDLE_VERSION && other_unit_mesh() == heddle::to_string(mesh{3}) ? 0 : 1;
}
