// heddle/infer.hpp: the inference engine and its policies.
#pragma once

#include <heddle/infer/step.hpp>
