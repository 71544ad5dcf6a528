// tests/train/paper_hybrid_test.cpp: a hybrid of linear attention and windows on paper sends, holds and computes what it does, and both kinds of its blocks are measured and planned.
#include "catch.hpp"
#include "paper_comparison.hpp"
#include "random_tokens.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/model/spiking_brain.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/explain.hpp>
#include <heddle/train/measure_machine.hpp>
#include <heddle/train/search_on_paper.hpp>
#if __has_include(<nlohmann/json.hpp>)
#include <heddle/model/hugging_face/spiking_brain.hpp>
#endif

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace {
namespace paper_hybrid_test {

namespace hd = heddle;
namespace md = heddle::model;
namespace tr = heddle::train;
using Catch::Matchers::Contains;
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using model = md::spiking_brain<float>;
template <int Zero>
using strategy = hd::strategy<mesh_type, hd::zero<Zero>, hd::schedule::named, hd::activations::recompute<>>;
constexpr int context = 12, words = 61;

md::spiking_brain_config small(int layers = 4, int vocabulary = words) {
  return {{.layers = layers,
           .heads = 8,
           .kv_heads = 4,
           .width = 32,
           .ffn = 36,
           .context = context,
           .vocabulary = vocabulary},
          5,
          3};
}
tr::options<md::spiking_brain_config> options_of(int layers, std::int64_t batch, const char* schedule) {
  tr::options<md::spiking_brain_config> o;
  o.model = small(layers, 64);  // tp divides them
  o.batch = batch;
  o.microbatches = 2;
  o.schedule = schedule;
  o.recompute = "none";
  o.learning_rate = {.peak = 1e-3, .minimum = 1e-4, .warmup_steps = 0, .total_steps = 0};
  return o;
}

TEST_CASE("a SpikingBrain on paper sends, holds and computes what it does", "[train][paper][ranks]") {
  const auto compare = [](const paper_comparison::strategy_text& s, int layers = 4) {
    paper_comparison::compare<model, strategy<1>>(
        s, small(layers), train_test::random_tokens<context, words>{},
        hd::type_list<hd::type_list<dp>, hd::type_list<tp>, hd::type_list<pp>, hd::type_list<dp, tp>>{});
  };
  compare({"dp=8", "1f1b", 2, "none"});
  compare({"dp=2,pp=4", "1f1b", 4, "none", 19});
  compare({"dp=4,pp=2", "interleaved:2", 2, "full"});
  compare({"dp=2,pp=2,tp=2", "zb-h1", 4, "full", 16, false}, 5);
  compare({"pp=2,tp=4", "1f1b", 2, "none", 8, false}, 3);
}

TEST_CASE("both kinds of blocks of a hybrid are measured, and explained with what was", "[train][profile]") {
  tr::cluster here{.devices = 2,
                   .memory = 1'000'000'000,
                   .device = {.flops = 1e9, .bytes_per_second = 1e9},
                   .levels = {{"machine", 2, 1e9, 1e-6}}};
  tr::measure_kernels<model, hd::compute::host<>>(here, small(2, 64), std::array{1, 2}, std::array{2}, 2);
  std::set<std::tuple<std::string, std::int64_t, std::int64_t>> measured;
  for (const md::measured_kernel& k : here.kernels.kernels()) measured.emplace(k.name, k.flops, k.bytes);
  const auto o = options_of(4, 4, "zb-h1");
  std::set<std::string> names;
  for (const char* of : {"dp=1", "tp=2", "pp=2"}) {
    INFO(of);
    const tr::paper_step<model, strategy<1>> step(o, hd::parse_mesh<mesh_type>(of));
    for (int r = 0; r < step.mesh().size(); ++r)
      for (const tr::paper_work& w : step.rank(r).work)
        for (const md::kernel_calls& k : w.kernels.kernels()) {
          INFO(k.name << " " << k.flops << " " << k.bytes);
          names.emplace(k.name);
          // The loss is a number on the host, and eight bytes on paper.
          const std::int64_t bytes = k.bytes - (k.name == "cross_entropy_loss" ? 8 : 0);
          CHECK(measured.count({std::string(k.name), k.flops, bytes}) == 1);
        }
    CHECK(!tr::explain<model, strategy<1>>(o, step.mesh(), here).extrapolated);
  }
  for (const char* name : {"attention", "attention_backward", "decay_forward", "decay_backward_keys",
                           "decay_backward_values", "decays_of_gates", "gates_of_decays"})
    CHECK(names.count(name) == 1);
  // The blocks of a kind take the same, and no two kinds do.
  using kernels_type = md::timed_backend<hd::compute::host<>>;
  using queue_type = std::remove_cvref_t<decltype(std::declval<kernels_type&>().queue())>;
  kernels_type kernels(1);
  md::paper_world<hd::mesh<hd::axis<tp>>, queue_type> world(hd::mesh<hd::axis<tp>>(1), 0);
  const auto costs = tr::measure_layer_costs<model>(world, small(5), kernels, 2, 2);
  REQUIRE(costs.layers.size() == 5);
  for (std::size_t l = 0; l < 5; ++l) CHECK(costs.layers[l] == costs.layers[l % 2]);
  CHECK(costs.layers[0] != costs.layers[1]);
}

TEST_CASE("a hybrid is planned with the costs of both kinds of blocks", "[train][search_on_paper]") {
  const tr::cluster on{.devices = 8,
                       .memory = 100'000'000,
                       .device = {.flops = 1e14, .bytes_per_second = 1e12, .efficiency = 0.5, .launch_seconds = 1e-6},
                       .levels = {{"node", 4, 1e11, 1e-6}, {"network", 8, 1e10, 1e-5}}};
  auto o = options_of(8, 16, "1f1b");
  // The sums of all blocks are what stages take: of both kinds, in a pipeline and alone.
  for (const char* of : {"dp=2,pp=4", "dp=8", "tp=4,pp=2"}) {
    INFO(of);
    const auto mesh = hd::parse_mesh<mesh_type>(of);
    const tr::search_costs costs = tr::paper_costs<model, strategy<1>>(o, mesh, on, 2);
    REQUIRE(costs.layers.size() == 8);
    CHECK(costs.layers[0].forward != costs.layers[1].forward);
    CHECK(costs.layers[0].saved_bytes != costs.layers[1].saved_bytes);
    for (std::size_t l = 2; l < 8; ++l) CHECK(costs.layers[l].forward == costs.layers[l - 2].forward);
    o.batch = 4 * mesh.extents()[0];
    const tr::explanation e = tr::explain<model, strategy<1>>(o, mesh, on);
    double forward = costs.first.forward + costs.last.forward, explained = 0;
    std::int64_t state = costs.first.state_bytes + costs.last.state_bytes, held = 0;
    for (const tr::search_layer& l : costs.layers) {
      forward += l.forward;
      state += l.state_bytes;
    }
    tr::explanation places;
    places.on = on;
    tr::detail::groups_of_axes groups;
    tr::detail::add_axes(places, groups, mesh, typename mesh_type::tags{});
    for (const tr::rank_class& c : e.classes) {
      held += c.member.memory->parameters.total() + c.member.memory->activations.scratch;
      state += costs.stage_bytes;
      for (const tr::paper_work& w : c.member.work)
        if (w.kind == hd::schedule::action_kind::forward)
          explained += on.seconds(w.kernels) + tr::detail::seconds_of_traffic(w.traffic, on, groups);
    }
    CHECK(forward == Approx(explained).epsilon(0.02));
    CHECK(static_cast<double>(state) == Approx(static_cast<double>(held)).epsilon(0.02));
  }
  tr::search_space space{.ranks = 8, .layers = 8, .batch = 16, .device_bytes = on.memory, .zero = {1}};
  space.most_samples = 2;
  space.schedules = {"1f1b", "zb-h1"};
  const tr::search_result found = tr::search(space, [&](const tr::search_point& p) {
    tr::search_costs costs;
    try {
      const std::string extents = "dp=" + std::to_string(p.extent("dp")) + ",pp=" + std::to_string(p.extent("pp")) +
                                  ",tp=" + std::to_string(p.extent("tp"));
      costs = tr::paper_costs<model, strategy<1>>(o, hd::parse_mesh<mesh_type>(extents), on, p.samples);
    } catch (const hd::config_error& e) {
      costs.refused = tr::search_reason{tr::reason_kind::divides, e.what()};
    }
    return costs;
  });
  REQUIRE(found.best.size() > 5);
  for (const tr::searched_strategy& s : found.best) {
    CAPTURE(to_string(s.choice));
    auto of = o;
    of.batch = 16;
    s.choice.apply(of);
    const auto e = tr::explain<model, strategy<1>>(of, hd::parse_mesh<mesh_type>(s.choice.mesh), on);
    CHECK(s.seconds == Approx(e.seconds).epsilon(0.1));
    CHECK(static_cast<double>(s.bytes) ==
          Approx(static_cast<double>(e.fullest().member.memory->total())).epsilon(0.05));
  }
}

#if __has_include(<nlohmann/json.hpp>)
TEST_CASE("a SpikingBrain's config.json is read, and what is wrong in it is said by key", "[model][json]") {
  using nlohmann::json;
  const json published = json::parse(R"({"model_type": "gla_swa", "architectures": ["GLAswaForCausalLM"],
    "vocab_size": 152064, "hidden_size": 3584, "num_hidden_layers": 28, "attn_mode": "chunk", "num_attention_heads": 28,
    "num_key_value_heads": 4, "use_short_conv": false, "conv_size": 4, "gate_logit_normalizer": 16,
    "gate_low_rank_dim": 16, "intermediate_size": 18944, "hidden_act": "swish", "max_position_embeddings": 131072,
    "sliding_window": 4096, "elementwise_affine": true, "norm_eps": 1e-6, "rope_theta": 1000000.0, "use_cache": true,
    "tie_word_embeddings": false, "initializer_range": 0.02, "fuse_cross_entropy": true, "torch_dtype": "bfloat16"})");
  CHECK(md::is_spiking_brain(published));
  CHECK(!md::is_spiking_brain(json::parse(R"({"model_type": "qwen2"})")));
  CHECK(md::spiking_brain_from_config(published) == md::spiking_brain_7b());
  const auto refused = [&](const char* key, const json& value, const std::string& text) {
    json bad = published;
    bad[key] = value;
    CHECK_THROWS_WITH(md::spiking_brain_from_config(bad, "c.json"), Contains(text));
  };
  refused("model_type", "gla", "c.json, key 'model_type': expected \"gla_swa\", got \"gla\"");
  refused("use_short_conv", true, "c.json, key 'use_short_conv': expected false, got true");
  refused("gate_low_rank_dim", -3, "key 'gate_low_rank_dim': expected a whole number of 0 to 2147483647, got -3");
  refused("sliding_window", 0, "spiking_brain_config.window");
  refused("sinks", 128, "unknown key 'sinks'");
}
#endif

}  // namespace paper_hybrid_test
}  // namespace
