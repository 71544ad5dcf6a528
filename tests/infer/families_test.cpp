// tests/infer/families_test.cpp: models without their types compute, and hold, what the models' own types do.
#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/families.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/families.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include HEDDLE_GEMM_HEADER

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;

namespace {

using mesh_type = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>, hd::axis<hd::ep>, hd::axis<hd::tp>>;
using world_type = hd::world<hd::threads, mesh_type>;
using backend = hd::compute::host<HEDDLE_GEMM>;

constexpr md::gpt2_config gpt2{.layers = 3, .heads = 6, .width = 24, .context = 16, .vocabulary = 61};

md::hugging_face_model described(const auto& config, bool tied) {
  md::hugging_face_model about;
  about.config = config;
  about.tied = tied;
  return about;
}

// Logits and residual streams of two steps, the second with what the first left in the cache.
template <class Runner>
std::vector<float> steps_of(Runner& runner) {
  std::vector<float> all;
  const std::vector<std::int32_t> first{3, 1, 4, 1, 5}, second{9, 2};
  std::int64_t done = 0;
  for (const auto& tokens : {first, second}) {
    inf::step s;
    s.tokens = tokens;
    s.sequences = {{.rows = static_cast<std::int64_t>(tokens.size()), .position = done, .blocks = 1}};
    s.blocks = {2};
    s.wanted = {0, static_cast<std::int64_t>(tokens.size()) - 1};
    s.streams = true;
    std::vector<float> logits(2 * 61);
    runner.run(s, logits);
    all.insert(all.end(), logits.begin(), logits.end());
    all.insert(all.end(), runner.streams().begin(), runner.streams().end());
    done += static_cast<std::int64_t>(tokens.size());
  }
  return all;
}

bool same_tables(const std::vector<md::parameter>& a, const std::vector<md::parameter>& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i)
    same = a[i].name == b[i].name && a[i].shape == b[i].shape && a[i].start == b[i].start && a[i].local == b[i].local &&
           a[i].offset == b[i].offset && a[i].counted == b[i].counted;
  return same;
}

template <class Model>
void check(const typename Model::config& config, bool tied, const std::string& mesh_text) {
  const auto about = described(config, tied);
  const md::any_config any(about);
  std::vector<float> typed, erased;
  int tables = 0, blocks = 0, ranks = 0;
  std::mutex mutex;
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(mesh_text), [&](world_type& world) {
    backend kernels(1);
    inf::model_runner<Model, world_type, backend> runner(config, world, kernels, {4, 8}, 16);
    runner.stage().initialize(5);
    if (runner.leads()) {
      typed = steps_of(runner);
      runner.finish();
    } else {
      runner.follow();
    }
    world.control().barrier();
    const auto other = inf::make_runner<float>(any, world, kernels, {4, 8}, 16);
    const auto from = runner.stage().weights();
    const bool same_table = same_tables(other->stage().parameters(), runner.stage().parameters()) &&
                            other->stage().weights().size() == from.size();
    if (same_table) std::copy(from.begin(), from.end(), other->stage().weights().begin());
    world.control().barrier();
    if (other->leads()) {
      erased = steps_of(*other);
      other->finish();
    } else {
      other->follow();
    }
    // Weights without a stage lie as those of a stage that is trained.
    const auto part = md::split_layers(config.layers, world.template coordinate<hd::pp>(),
                                       world.mesh().template extent<hd::pp>());
    const auto stage = md::make_stage<float>(any, world, kernels, part, 1, 1);
    const auto weights = md::make_weights<float>(any, world.mesh(), world.rank(), part);
    const std::lock_guard lock(mutex);
    ++ranks;
    tables += same_table && same_tables(weights->parameters(), stage->parameters()) &&
              weights->bucket_elements()[0] == stage->bucket_elements()[0] &&
              weights->copies_of_buckets()[0].index == stage->copies_of_buckets()[0].index;
    blocks += inf::cache_blocks_for<float>(any, 100000, world, kernels, 8) ==
              inf::model_runner<Model, world_type, backend>::cache_blocks_for(100000, config, world.mesh(), 8);
  });
  REQUIRE(typed.size() == static_cast<std::size_t>(2 * 2 * (61 + config.width)));
  CHECK(erased == typed);
  CHECK(tables == ranks);
  CHECK(blocks == ranks);
}

}  // namespace

TEST_CASE("runners, stages and weights of any model are those of its type", "[infer][families][ranks]") {
  for (const char* mesh : {"", "pp=2,tp=2", "pp=3", "tp=3"}) {
    CAPTURE(mesh);
    check<md::gpt2<float>>(gpt2, true, mesh);
    constexpr md::llama_config llama{
        .layers = 3, .heads = 6, .kv_heads = 3, .width = 24, .ffn = 29, .context = 16, .vocabulary = 61};
    check<md::tied_llama<float>>(llama, true, mesh);
    check<md::llama<float>>(llama, false, mesh);
  }
}

TEST_CASE("outlines name all parameters of every family", "[infer][families]") {
  const md::llama_config shape{
      .layers = 2, .heads = 4, .kv_heads = 2, .width = 16, .ffn = 12, .context = 8, .vocabulary = 31};
  md::deepseek_config deepseek;
  const auto names = [](const md::hugging_face_model& about, int rank = 0) {
    std::set<std::string> all;
    for (const auto& p : md::outlines_of<float>(md::any_config(about, 0, rank, 2.0 * rank))) all.insert(p.name);
    return all;
  };
  CHECK(names(described(gpt2, true)).count("h.2.attn.c_attn.weight") == 1);
  CHECK(names(described(shape, false)).count("lm_head.weight") == 1);
  CHECK(names(described(shape, true)).count("lm_head.weight") == 0);
  CHECK(names(described(shape, true), 4).count("model.layers.1.self_attn.q_proj.lora_A.weight") == 1);
  CHECK(names(described(md::qwen2_config(shape), true)).count("model.layers.0.self_attn.q_proj.bias") == 1);
  CHECK(names(described(md::qwen3_config(shape), true)).count("model.layers.0.self_attn.q_norm.weight") == 1);
  CHECK(names(described(md::mixtral_config(shape), false)).count("model.layers.1.block_sparse_moe.experts.7.w1.weight") ==
        1);
  deepseek.layers = 2;
  deepseek.dense = 1;
  CHECK(names(described(deepseek, false)).count("model.layers.1.mlp.experts.3.gate_proj.weight") == 1);
}
