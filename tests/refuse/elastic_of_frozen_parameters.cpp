// refuse: heddle: elastic: all degrees lie in the trained weights of one; frozen parameters lie elsewhere: take a model that trains all
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/elastic.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/with_lora.hpp>

namespace hd = heddle;
using world = hd::world<hd::threads, hd::mesh<hd::axis<hd::tp>>>;
using model = hd::model::with_lora<hd::model::llama<float>>;
static_assert(sizeof(hd::infer::elastic<model, world, hd::compute::host<>, 1, 4>) > 0);
