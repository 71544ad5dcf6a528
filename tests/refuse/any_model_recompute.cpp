// refuse: heddle: model::any_model computes nothing again: take activations::keep or activations::offload, or give the trainer the model's own type
#define HEDDLE_COMPILED_FAMILIES  // no family is compiled here
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/model/any_model.hpp>
#include <heddle/train/activations/recompute.hpp>

namespace hd = heddle;
using stage = hd::model::any_model<float>::stage<hd::model::families_world, hd::model::families_backend,
                                                 hd::activations::recompute<>>;
static_assert(sizeof(stage) > 0);
