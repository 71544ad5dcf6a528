// refuse: heddle: three_functions: the loss function adds gradients as it runs forward, so a step cannot run forward before
#include <heddle/comm/threads.hpp>
#include <heddle/train/three_functions.hpp>
namespace hd = heddle;
struct model {
  static constexpr hd::named_shape parameters[]{{"fc1/kernel", {4, 4}}};
};
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using strategy = hd::strategy<mesh, hd::post_validation>;
struct collate {};
struct loss {};
struct predict {};
using world_type = hd::world<hd::threads, mesh>;
using pipeline =
    hd::train::three_function_pipeline<strategy, double, model, world_type, collate, loss, predict, hd::redco_rules>;
constexpr std::size_t size = sizeof(pipeline);
