// examples/model_ranks.hpp: a model of Hugging Face for generation, on a mesh of pp x tp ranks that are threads, without its type; and what speculates for it.
#pragma once

#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/infer/any_runner.hpp>
#include <heddle/infer/draft_speculation.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/falcon_speculation.hpp>
#include <heddle/infer/json/falcon_folder.hpp>
#include <heddle/infer/json/medusa_folder.hpp>
#include <heddle/infer/medusa_speculation.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/widened_runner.hpp>
#include <heddle/io/json/safetensors.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/falcon_drafter.hpp>
#include <heddle/model/json/hugging_face.hpp>
#include <heddle/model/json/hugging_face_weights.hpp>
#include <heddle/model/read_parameters.hpp>
#include <heddle/model/write_parameters.hpp>
#include "model_folder.hpp"
#include "gpt2_train/backend.hpp"  // what the program is compiled for: the host, or with HEDDLE_EXAMPLE_CUDA a device
#include "tool.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace model_ranks {

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;
using mesh_type = hd::mesh<hd::axis<hd::pp>, hd::axis<hd::tp>>;
using backend = computed::by;
using host_backend = hd::compute::host<HEDDLE_GEMM>;  // drafters compute on the host
using runner = inf::any_tree_runner<float>;

// Models of bf16 double what is compiled, so only programs for CUDA devices have them, and one of the tests.
#if defined(HEDDLE_EXAMPLE_CUDA) || defined(HEDDLE_EXAMPLE_BF16)
inline constexpr bool has_bf16 = true;
#else
inline constexpr bool has_bf16 = false;
#endif

/// `cache_bytes` of each rank, or, without, `cache_tokens`; at 0 these are the context, at most 4096. `context`: at 0 the model's.
/// `base`: whether the leader gathers what a drafter of Falcon has of the model. `dtype` of weights, activations and cache: f32 or, with `has_bf16`, bf16.
struct options {
  std::string model{}, mesh = "pp=1", dtype = "f32";
  std::vector<std::string> ignored_keys{};  ///< of config.json
  std::optional<std::int64_t> cache_bytes{};
  std::int64_t cache_tokens = 0, block_rows = 16, rows = 256;
  int context = 0, threads = 1;
  bool base = false;
};

struct loaded {
  runner steps;
  host_backend& kernels;
  std::string family{};
  std::string mesh{};
  std::int64_t width = 0;
  double epsilon = 0;                      ///< of the final norm
  md::falcon_base<float>* base = nullptr;  ///< where `options::base` is set
};

/// Errors: `config_error` for families whose final norm is no RMS norm, which `what` needs.
inline void require_rms_norm(std::string_view family, const std::string& what) {
  if (family == "gpt2")
    throw hd::config_error("heddle: " + what + " for models whose final norm is an RMS norm, not for gpt2");
}

/// The backend of a rank, and the host's for drafters, which are one where the model is the host's.
class kernels_of_rank {
 public:
  explicit kernels_of_rank(int threads) : model_(computed::backend_of(threads)), drafters_(threads) {}
  backend& of_model() noexcept { return model_; }
  host_backend& of_drafters() noexcept { return one_of(model_, drafters_); }

 private:
  struct nothing {
    explicit nothing(int) {}
  };
  static host_backend& one_of(host_backend& model, nothing&) noexcept { return model; }
  template <class OfModel>
  static host_backend& one_of(OfModel&, host_backend& own) noexcept {
    return own;
  }
  backend model_;
  std::conditional_t<std::is_same_v<backend, host_backend>, nothing, host_backend> drafters_;
};

/// Calls use(steps) with a runner of steps in float.
template <class Runner, class Use>
void in_float(Runner& of, Use&& use) {
  if constexpr (hd::is_half_precision<typename Runner::scalar>) {
    inf::widened_runner wide(of);
    use(runner(wide));
  } else {
    use(runner(of));
  }
}

template <class Model, class Config>
void run_model(const options& o, const md::hugging_face_model& about, Config config,
               const std::function<void(const loaded&)>& lead) {
  if (o.context > 0) config.context = (std::min)(config.context, o.context);
  const auto mesh = hd::parse_mesh<mesh_type>(o.mesh);
  const auto [folder, names] = md::open_weights<hd::io::safetensors_folder>(o.model, about, Model::describe(config));
  const std::int64_t tokens =
      o.cache_tokens > 0 ? o.cache_tokens : (std::min)(std::int64_t{config.context}, std::int64_t{4096});
  const auto tensors = md::parameter_outlines(Model::describe(config)).size();
  std::optional<tool::progress> loading(std::in_place, "loading", static_cast<std::int64_t>(tensors), "tensors");
  hd::launch_options ranks;
  ranks.timeout = std::chrono::milliseconds(0);  // those that follow wait for as long as there is nothing to do
  hd::launch<hd::threads>(mesh, ranks, [&](auto& world) {
    using runner_type = inf::model_runner<Model, std::remove_cvref_t<decltype(world)>, backend>;
    kernels_of_rank kernels(o.threads);
    const std::int64_t blocks = o.cache_bytes
                                    ? runner_type::cache_blocks_for(*o.cache_bytes, config, world.mesh(), o.block_rows)
                                    : (tokens + o.block_rows - 1) / o.block_rows;
    runner_type on_ranks(config, world, kernels.of_model(), {blocks, o.block_rows}, o.rows);
    md::read_parameters(on_ranks.stage(), hd::io::safetensors_reader(folder),
                        tool::counted(names, *loading, world.template coordinate<hd::tp>() == 0));
    world.control().barrier();  // a rank that cannot load is to end the others before anything begins
    md::falcon_base<float> base;
    if constexpr (std::is_same_v<typename Model::scalar, float>)
      if (o.base) base = md::gather_falcon_base(on_ranks.stage(), world);
    if (!on_ranks.leads()) return on_ranks.follow();
    loading.reset();
    in_float(on_ranks, [&](const runner& steps) {
      lead({steps, kernels.of_drafters(), std::string(about.family()), hd::to_string(mesh), config.width,
            config.epsilon, o.base ? &base : nullptr});
    });
    on_ranks.finish();
  });
}

/// Loads the model on all ranks, and calls `lead` on the one that leads.
inline void with_model(const options& o, const std::function<void(const loaded&)>& lead) {
  const auto about = read_model_folder(o.model, o.ignored_keys).about;
  if (o.base) require_rms_norm(about.family(), "drafters of Falcon are");
  const auto run = [&]<class Model>(std::type_identity<Model>, const auto& config) {
    using scalar = typename Model::scalar;
    if constexpr (hd::is_half_precision<scalar> && std::is_same_v<typename Model::config, md::deepseek_config>)
      throw hd::config_error("heddle: --dtype bf16 is not for DeepSeek, whose experts are chosen in float: take f32");
    else
      run_model<Model>(o, about, config, lead);
  };
#if defined(HEDDLE_EXAMPLE_CUDA) || defined(HEDDLE_EXAMPLE_BF16)
  if (o.dtype == "bf16") return md::with_model<hd::bf16>(about, run);
#endif
  md::with_model<float>(about, run);
}

/// How tokens are proposed. `by`: "ngram", "draft", "medusa", "falcon", or "none".
struct speculation {
  std::string by = "none", heads{}, draft{};
};

inline void add_options(tool::command_line& app, speculation& s, options& o) {
  add_ignored_keys(app, o.ignored_keys);
  app.add_option("--dtype", o.dtype,
                 has_bf16 ? "type of weights, activations and cache: f32 or bf16"
                          : "type of weights, activations and cache: f32; programs for CUDA devices have bf16, too");
  app.add_option("--speculate", s.by,
                 "propose tokens, which leaves answers the same: ngram (what followed the same words), draft, medusa, "
                 "falcon or none");
  app.add_option("--draft", s.draft,
                 "folder of a smaller model with the same tokens, for --speculate draft; it has a cache of its own, of "
                 "the same size");
  app.add_option("--heads", s.heads,
                 "folder that train_heads wrote: heads, for --speculate medusa, or a drafter, for --speculate falcon");
}

/// Whether these words go together, before a model is loaded. Errors: `config_error` that says what is missing.
inline void require_speculation(const speculation& s) {
  if (s.by != "none" && s.by != "ngram" && s.by != "draft" && s.by != "medusa" && s.by != "falcon")
    throw hd::config_error("heddle: --speculate should be ngram, draft, medusa, falcon or none, got '" + s.by + "'");
  if (s.by == "draft" && s.draft.empty())
    throw hd::config_error("heddle: --speculate draft needs a model: --draft FOLDER");
  if (s.by == "medusa" && s.heads.empty())
    throw hd::config_error("heddle: --speculate medusa needs heads: --heads FOLDER");
  if (s.by == "falcon" && s.heads.empty())
    throw hd::config_error("heddle: --speculate falcon needs a drafter: --heads FOLDER");
}

/// What a model is to be loaded with, for this speculation. Errors: as `require_speculation`.
inline options options_for(const speculation& s, options o) {
  require_speculation(s);
  if (o.dtype != "f32" && !(has_bf16 && o.dtype == "bf16"))
    throw hd::config_error("heddle: --dtype should be f32" + std::string(has_bf16 ? " or bf16" : " in this program") +
                           ", got '" + o.dtype + "'");
  if (o.dtype == "bf16" && s.by == "falcon")
    throw hd::config_error(
        "heddle: --speculate falcon is for models of f32: its drafter has the model's embedding and "
        "head in float; take --dtype f32");
  o.base = s.by == "falcon";
  return o;
}

/// Calls `use(decoding policy)` with what speculates for a model that was loaded with `options_for`. Errors: `config_error` for folders that do not fit.
template <class Use>
void with_speculation(const speculation& s, const options& o, const loaded& of, Use&& use) {
  require_speculation(s);
  const inf::step_limits limits = of.steps.limits();
  if (s.by == "none") return use(inf::one_token{});
  if (s.by == "ngram") return use(inf::ngram_speculation<>{});
  if (s.by == "draft") {
    options own = o;
    own.model = s.draft;
    own.mesh = "pp=1";
    own.base = false;
    return with_model(own, [&](const loaded& draft) {
      runner steps = draft.steps;
      if (steps.limits().vocabulary != limits.vocabulary)
        throw hd::config_error("heddle: a draft should have the model's vocabulary of " +
                               std::to_string(limits.vocabulary) + " tokens, got " +
                               std::to_string(steps.limits().vocabulary));
      use(inf::draft_speculation<runner>(steps));
    });
  }
  if (s.by == "falcon") {
    const inf::falcon_folder_settings settings = inf::read_falcon_settings(s.heads);
    inf::require_falcon_fits(s.heads, settings.shape, of.width, limits.vocabulary, of.epsilon);
    md::falcon_drafter<float, host_backend> drafter(of.kernels, settings.shape);
    inf::read_falcon_weights(s.heads, drafter);
    if (of.base == nullptr) throw hd::config_error("heddle: a model that Falcon drafts for is loaded with options_for");
    drafter.take(std::move(*of.base));
    return use(inf::falcon_speculation(drafter, settings.tree));
  }
  require_rms_norm(of.family, "heads of Medusa are");
  const inf::medusa_folder_settings settings = inf::read_medusa_settings(s.heads);
  inf::medusa_heads<float, host_backend> heads(of.kernels, settings.heads, of.width, limits.vocabulary, of.epsilon);
  inf::read_medusa_heads(s.heads, heads);
  use(inf::medusa_speculation(heads, settings.tree));
}

}  // namespace model_ranks
