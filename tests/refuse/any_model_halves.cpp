// refuse: heddle: model::any_model offloads whole blocks: take granularity::blocks, or give the trainer the model's own type
#define HEDDLE_COMPILED_FAMILIES  // no family is compiled here
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/model/any_model.hpp>
#include <heddle/train/activations/offload.hpp>

namespace hd = heddle;
namespace act = hd::activations;
using halves = act::offload<act::file_store, act::amount::all, act::prefetch::ahead<2>, act::min_bytes<0>,
                            act::granularity::halves>;
using stage = hd::model::any_model<float>::stage<hd::model::families_world, hd::model::families_backend, halves>;
static_assert(sizeof(stage) > 0);
