// refuse: heddle: this stage keeps its tensors in another memory than the backend computes in: a stage says where they are
// and: three_functions_stage
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/three_functions.hpp>
namespace hd = heddle;
struct model {
  static constexpr hd::named_shape parameters[]{{"fc1/kernel", {4, 4}}};
};
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using strategy = hd::strategy<mesh, hd::testing::checked_backend<hd::compute::host<>>>;
struct collate {};
struct loss {};
struct predict {};
using world_type = hd::world<hd::threads, mesh>;
using pipeline =
    hd::train::three_function_pipeline<strategy, double, model, world_type, collate, loss, predict, hd::redco_rules>;
constexpr std::size_t size = sizeof(pipeline);
