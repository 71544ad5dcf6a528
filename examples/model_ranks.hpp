// examples/model_ranks.hpp: a model of Hugging Face for generation, on a mesh of pp x ep x tp ranks that are threads, without its type; and what speculates for it. The
// bodies are in model_ranks.cpp, which is compiled once for all tools.
#pragma once

#include <heddle/infer/any_engine.hpp>
#include <heddle/infer/engine_counts.hpp>
#include <heddle/infer/step.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/mesh/parse.hpp>
#include "gpt2_train/backend.hpp"  // what the program is compiled for: the host, or with HEDDLE_EXAMPLE_CUDA a device
#include "tool.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace model_ranks {

using mesh_type = heddle::mesh<heddle::axis<heddle::pp>, heddle::axis<heddle::ep>, heddle::axis<heddle::tp>>;

/// `cache_bytes` of each rank, or, without, `cache_tokens`; at 0 these are the context, at most 4096. `context`: at 0 the model's.
/// `prefill` and `decode`: meshes of pools of prompts and of answers, instead of `mesh`.
/// `base`: whether the leader gathers what a drafter of Falcon has of the model. `dtype` of weights, activations and cache: f32 or, with `has_bf16`, bf16.
struct options {
  std::string model{}, blocks{}, mesh = "pp=1", dtype = "f32";
  std::string prefill{}, decode{};
  std::vector<std::string> ignored_keys{};  ///< of config.json
  std::optional<std::int64_t> cache_bytes{};
  std::int64_t cache_tokens = 0, block_rows = 16, rows = 256;
  int context = 0, threads = 1;
  bool base = false;
};

/// How tokens are proposed. `by`: "ngram", "draft", "medusa", "falcon", or "none". A draft may be some blocks of a folder's model, also of the one it drafts for.
struct speculation {
  std::string by = "none", heads{}, draft{}, draft_blocks{};
};

void add_options(tool::command_line& app, speculation& s, options& o);

/// Whether these words go together, before a model is loaded. Errors: `config_error` that says what is missing.
void require_speculation(const speculation& s);

/// What a model is to be loaded with, for this speculation. Errors: as `require_speculation`.
options options_for(const speculation& s, options o);

/// Ranks of all meshes. Errors: `config_error` for one pool without the other.
int ranks_of(const options& o);

/// What an engine runs on.
struct loaded {
  std::string family{}, mesh{};
  heddle::infer::step_limits limits{};
};

/// Loads the model, with `options_for`, on all ranks, and calls `use` with an engine of it on the one that leads. Errors: `config_error` for folders that do not fit.
void with_engine(const speculation& s, const options& o, const heddle::infer::engine_options& engine,
                 const std::function<void(heddle::infer::any_engine&, const loaded&)>& use);

}  // namespace model_ranks

#if defined(HEDDLE_EXAMPLE_ONE_UNIT)  // a program that is compiled as one file
#include "model_ranks.cpp"
#endif
