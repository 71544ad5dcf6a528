// heddle/infer.hpp: the inference engine and its policies.
#pragma once

#include <heddle/infer/cached_stage.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/step.hpp>
#include <heddle/infer/step_message.hpp>
#include <heddle/infer/step_rows.hpp>
