// refuse: heddle: this stage adds gradients as it runs forward (that of three_functions does: the loss adds them), so a step cannot run forward before the step before has used its own; leave post_validation out
#include <heddle/comm/threads.hpp>
#include <heddle/train/post_validation.hpp>
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
