// examples/model_engines.hpp: engines without their types, whatever speculates for them; their bodies are in model_engines.cpp, which is compiled once for all tools.
#pragma once

#include <heddle/compute/host/host.hpp>
#include <heddle/infer/any_engine.hpp>
#include <heddle/infer/any_runner.hpp>
#include <heddle/infer/decoding.hpp>
#include <heddle/infer/draft_speculation.hpp>
#include <heddle/infer/engine_counts.hpp>
#include <heddle/infer/engine_lane.hpp>
#include <heddle/infer/falcon_speculation.hpp>
#include <heddle/infer/medusa_heads.hpp>
#include <heddle/infer/medusa_speculation.hpp>
#include <heddle/infer/pools.hpp>
#include <heddle/model/falcon_drafter.hpp>
#include HEDDLE_GEMM_HEADER

#include <memory>

namespace model_ranks {

using host_backend = heddle::compute::host<HEDDLE_GEMM>;  // drafters compute on the host
using runner = heddle::infer::any_tree_runner<float>;
using drafter_type = heddle::model::falcon_drafter<float, host_backend>;
using heads_type = heddle::infer::medusa_heads<float, host_backend>;
using falcon = heddle::infer::falcon_speculation<drafter_type>;
using medusa = heddle::infer::medusa_speculation<heads_type>;

/// An engine that proposes tokens so; the runner must outlive it. For one_token, ngram_speculation<>, draft_speculation<runner>, falcon and medusa.
template <class Decoding>
std::unique_ptr<heddle::infer::any_engine> make_engine(runner& steps, const heddle::infer::engine_options& options,
                                                       Decoding decoding);

/// A link of pools without its type.
struct any_link {
  virtual ~any_link() = default;
  virtual void begin(const heddle::infer::row_transfer& t) = 0;
  virtual heddle::infer::row_progress progress(heddle::infer::request_id id) = 0;
  virtual void end(heddle::infer::request_id id) = 0;
  static constexpr bool stops_prompts = true;
};

/// Pools of two runners, on the thread that leads that of answers; all of these must outlive them.
std::unique_ptr<heddle::infer::any_engine> make_pools(runner& prompts, runner& answers,
                                                      const heddle::infer::engine_options& options, any_link& link,
                                                      heddle::infer::engine_lane& lane);

}  // namespace model_ranks

#if defined(HEDDLE_EXAMPLE_ONE_UNIT)  // a program that is compiled as one file
#include "model_engines.cpp"
#endif
