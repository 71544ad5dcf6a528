// heddle/infer.hpp: the inference engine and its policies.
#pragma once

#include <heddle/infer/any_runner.hpp>
#include <heddle/infer/batching.hpp>
#include <heddle/infer/beam_search.hpp>
#include <heddle/infer/cache.hpp>
#include <heddle/infer/cached_stage.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/decoding.hpp>
#include <heddle/infer/draft_speculation.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/engine_policies.hpp>
#include <heddle/infer/event.hpp>
#include <heddle/infer/json_automaton.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/prefix_shared.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/sampling.hpp>
#include <heddle/infer/serve/answer_channel.hpp>
#include <heddle/infer/serve/request_queue.hpp>
#include <heddle/infer/serve/run_engine.hpp>
#include <heddle/infer/serve/statistics.hpp>
#include <heddle/infer/step.hpp>
#include <heddle/infer/step_message.hpp>
#include <heddle/infer/step_rows.hpp>
#include <heddle/infer/token_mask.hpp>
