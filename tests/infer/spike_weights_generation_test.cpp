// A SpikingBrain whose products read weights for spikes: its logits do not depend on company, and a mesh has those of one rank.
#include "cached_generation.hpp"
#include "catch.hpp"

#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/compute/packed_weights.hpp>
#include <heddle/compute/spike_weights.hpp>
#include <heddle/core/random.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/model/spiking_brain.hpp>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

using namespace infer_test;

namespace {

using spike_model = md::spiking_brain<float>;
using spike_format = hd::compute::spike_weights<4, 3>;
using spike_kernels = hd::compute::packed_weights<backend, spike_format>;
using spike_runner = inf::model_runner<spike_model, world_type, spike_kernels>;

// Products along the width see whole rows on every rank. Those whose rows are split see a rank's heads, or hidden units, and take their mean: in
// this model both halves of them are alike, so that it is that of the row.
bool has_like_halves(std::string_view name) {
  for (const std::string_view part : {"q_proj.", "k_proj.", "v_proj.", "gk_proj.1.", "gate_proj.", "up_proj."})
    if (name.find(part) != std::string_view::npos) return true;
  return false;
}

struct spike_answers {
  std::vector<float> logits{};  // of a prompt's last token
  std::vector<std::vector<std::int32_t>> tokens{};
  std::int64_t packed_bytes = 0;
};

spike_answers answers_by_spikes(const mesh_type& mesh, bool packed, std::int64_t together, std::uint64_t seed,
                                bool like_halves = true) {
  md::llama_config shape{.layers = 2,
                         .heads = 4,
                         .kv_heads = 2,
                         .width = 16,
                         .ffn = 24,
                         .context = 40,
                         .vocabulary = 23,
                         .initial_deviation = 0.4};
  const auto ranks = hd::testing::on_ranks(mesh, [&](world_type& world) {
    spike_kernels kernels{1};
    spike_runner runner({shape, 6, 3}, world, kernels, {.blocks = 30, .block_rows = 4, .states = 4}, 16);
    runner.stage().initialize(seed);
    for (const md::parameter& p : runner.stage().parameters()) {
      if (!like_halves || !has_like_halves(p.name)) continue;
      const hd::counter_random random(seed, static_cast<std::uint64_t>(p.id));
      md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i)
          runner.stage().weights()[static_cast<std::size_t>(p.offset + local + i)] = static_cast<float>(
              0.3 * random.normal(static_cast<std::uint64_t>((global + i) % (p.global_count() / 2))));
      });
    }
    if (packed) kernels.pack(runner.stage().weights());
    spike_answers a;
    if (!runner.leads()) {
      runner.follow();
      return a;
    }
    inf::step step;
    step.tokens = random_tokens(9, 23, seed);
    step.sequences = {{.rows = 9, .blocks = 3, .state = 0}};
    step.blocks = {2, 0, 1};
    step.wanted = {8};
    if (together > 1) {  // another prompt in the same products
      const auto other = random_tokens(5, 23, seed + 9);
      step.tokens.insert(step.tokens.end(), other.begin(), other.end());
      step.sequences.push_back({.first_row = 9, .rows = 5, .first_block = 3, .blocks = 2, .state = 1});
      step.blocks.insert(step.blocks.end(), {4, 3});
    }
    a.logits.resize(23);
    runner.run(step, a.logits);
    inf::engine<spike_runner, inf::paged, inf::chunked_prefill<7>> engine(runner, {.max_running = together});
    std::vector<inf::request_id> ids;
    for (std::uint64_t s = 0; s < 3; ++s) {
      inf::request r;
      r.prompt = random_tokens(5 + 4 * s, 23, seed + s);
      r.max_tokens = 8;
      r.sampling.temperature = 0;
      r.ignore_end_tokens = true;
      ids.push_back(engine.submit(r));
    }
    a.tokens.resize(3);
    while (!engine.idle())
      for (const inf::event& e : engine.step())
        if (e.token)
          a.tokens[static_cast<std::size_t>(std::find(ids.begin(), ids.end(), e.id) - ids.begin())].push_back(*e.token);
    a.packed_bytes = kernels.packed_bytes();
    runner.finish();
    return a;
  });
  if (!ranks.ok()) FAIL(ranks.error);
  return ranks[0];
}

double spike_distance(const spike_answers& a, const spike_answers& b) {
  double off = 0, greatest = 0;
  for (std::size_t i = 0; i < a.logits.size(); ++i) {
    off = std::max(off, std::abs(static_cast<double>(a.logits[i]) - static_cast<double>(b.logits[i])));
    greatest = std::max(greatest, std::abs(static_cast<double>(b.logits[i])));
  }
  return off / greatest;
}

}  // namespace

TEST_CASE("a SpikingBrain with weights for spikes answers alike in any company, and on two ranks as on one",
          "[infer]") {
  const std::uint64_t seed = 808;
  CAPTURE(seed);
  const spike_answers plain = answers_by_spikes(mesh_type{1, 1}, false, 3, seed);
  const spike_answers alone = answers_by_spikes(mesh_type{1, 1}, true, 1, seed);
  CHECK(alone.packed_bytes > 0);
  const double off = spike_distance(alone, plain);
  CAPTURE(off);
  CHECK(off > 1e-3);  // rounded
  CHECK(off < 0.5);
  const spike_answers company = answers_by_spikes(mesh_type{1, 1}, true, 3, seed);
  CHECK(company.tokens == alone.tokens);
  CHECK(company.logits == alone.logits);
  for (const std::vector<std::int32_t>& t : alone.tokens) CHECK(t.size() == 8);
  for (const auto& [stages, parts] : {std::pair(1, 2), std::pair(2, 2)}) {
    CAPTURE(stages, parts);
    const spike_answers mesh = answers_by_spikes(mesh_type{stages, parts}, true, 3, seed);
    CHECK(spike_distance(mesh, alone) < 1e-5);
    CHECK(mesh.tokens == alone.tokens);
  }
  // Where halves are not alike, those products round by other thresholds.
  const spike_answers whole = answers_by_spikes(mesh_type{1, 1}, true, 3, seed, false);
  const spike_answers split = answers_by_spikes(mesh_type{1, 2}, true, 3, seed, false);
  const double apart = spike_distance(split, whole);
  CAPTURE(apart);
  CHECK(apart > 1e-5);
  CHECK(apart < 0.3);
  for (const std::vector<std::int32_t>& t : split.tokens) CHECK(t.size() == 8);
}
