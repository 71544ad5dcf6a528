// refuse: heddle: held_runner: an any_model_runner is of a causal model that keeps rows of tokens; take a model_runner of this model with its type
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/any_model_runner.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/model/masked.hpp>

namespace hd = heddle;
using world_type = hd::world<hd::threads, hd::mesh<hd::axis<hd::pp>, hd::axis<hd::tp>>>;
using runner = hd::infer::model_runner<hd::model::llada<float>, world_type, hd::compute::host<>>;
constexpr auto size = sizeof(hd::infer::held_runner<runner>);
