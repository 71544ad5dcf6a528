// examples/generate/diffusion.hpp: an engine that decodes a LLaDA of a folder by diffusion.
#pragma once

#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/core/error.hpp>
#include <heddle/infer/any_engine.hpp>
#include <heddle/infer/any_runner.hpp>
#include <heddle/infer/diffusion.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/hugging_face/masked_models.hpp>
#include <heddle/model/masked.hpp>

#include "../model_ranks.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <variant>

namespace diffusion_engine {

/// `block`: 8, 16, 32 or 64 masks that are predicted at once; `threshold`: the probability at which a token is
/// committed.
struct settings {
  std::int64_t block = 32;
  double threshold = 0.9;
};

/// Calls use(engine) with an engine of the model, whose cache is `dual`, on the rank that leads. Errors: `config_error`
/// for another family, block or threshold; those of reading.
inline void with_engine(const settings& s, const model_ranks::options& o, const heddle::infer::engine_options& options,
                        const std::function<void(heddle::infer::any_engine&)>& use) {
  namespace hd = heddle;
  namespace md = heddle::model;
  namespace inf = heddle::infer;
  using mesh_type = hd::mesh<hd::axis<hd::pp>, hd::axis<hd::tp>>;
  using world_type = hd::world<hd::threads, mesh_type>;
  using steps_type = inf::any_runner<float, inf::capabilities<inf::window_rows, inf::rows_see<hd::model::everything>>>;
  const std::string file = o.model + "/config.json";
  const md::masked_model about = md::masked_from_config(hd::io::read_json(file), "'" + file + "'", o.ignored_keys);
  auto* const shape = std::get_if<md::llama_config>(&about.config);
  if (shape == nullptr)
    throw hd::config_error("heddle: --decode diffusion takes a folder of LLaDA, got one of " +
                           std::string(about.family()));
  if (s.block != 8 && s.block != 16 && s.block != 32 && s.block != 64)
    throw hd::config_error("heddle: --block should be 8, 16, 32 or 64, got " + std::to_string(s.block));
  md::llama_config config = *shape;
  if (o.context > 0) config.context = (std::min)(config.context, o.context);
  const std::int64_t tokens =
      o.cache_tokens > 0 ? o.cache_tokens : (std::min)(std::int64_t{config.context}, std::int64_t{4096});
  const hd::io::safetensors_folder files(o.model);
  hd::launch_options ranks;
  ranks.timeout = std::chrono::milliseconds(0);
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(o.mesh), ranks, [&](world_type& world) {
    auto kernels = computed::backend_of(o.threads);
    inf::model_runner<md::llada<float>, world_type, computed::by> runner(
        config, world, kernels, {(tokens + o.block_rows - 1) / o.block_rows, o.block_rows}, (std::max)(o.rows, tokens));
    md::read_parameters(runner.stage(), hd::io::safetensors_reader(files), md::llada_names{});
    world.control().barrier();  // a rank that cannot load is to end the others before anything begins
    if (!runner.leads()) {
      runner.follow();
      return;
    }
    steps_type steps(runner);
    const auto lead = [&]<std::int64_t Block>(std::integral_constant<std::int64_t, Block>) {
      using decoding = inf::diffusion<Block, inf::threshold>;
      inf::held_engine<inf::engine<steps_type, decoding>> engine(steps, options,
                                                                 decoding({.tau = s.threshold}, about.mask_token));
      use(engine);
    };
    if (s.block == 8) lead(std::integral_constant<std::int64_t, 8>{});
    if (s.block == 16) lead(std::integral_constant<std::int64_t, 16>{});
    if (s.block == 32) lead(std::integral_constant<std::int64_t, 32>{});
    if (s.block == 64) lead(std::integral_constant<std::int64_t, 64>{});
    runner.finish();
  });
}

}  // namespace diffusion_engine
