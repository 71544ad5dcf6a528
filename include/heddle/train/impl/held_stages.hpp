// heddle/train/impl/held_stages.hpp: parts of trainers on the host in float and double, compiled here.
#pragma once

#include <heddle/train/impl/host_training.hpp>

namespace heddle::inline v0 {

HEDDLE_HOST_TRAINING(, float);
HEDDLE_HOST_TRAINING(, double);
HEDDLE_THREADS_TRAINING();

}  // namespace heddle::inline v0
