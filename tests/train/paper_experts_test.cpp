// tests/train/paper_experts_test.cpp: mixtures of experts on paper send and hold what they do where all experts are chosen equally often.
#include "catch.hpp"
#include "paper_comparison.hpp"
#include "random_tokens.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/model/deepseek.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/trainer_weights.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace {
namespace paper_experts_test {

namespace hd = heddle;
namespace md = heddle::model;
using hd::dp, hd::ep, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<ep>, hd::axis<pp>, hd::axis<tp>>;
template <class... Tags>
using along = hd::type_list<Tags...>;
using groups = along<along<dp>, along<ep>, along<pp>, along<tp>, along<dp, ep>, along<dp, tp>, along<ep, tp>,
                     along<dp, ep, tp>>;
template <int Zero>
using strategy = hd::strategy<mesh_type, hd::zero<Zero>, hd::schedule::named, hd::activations::recompute<>>;
constexpr int context = 12, words = 61;

md::mixtral_config small_mixtral(int experts, int chosen) {
  return {{.layers = 2, .heads = 4, .kv_heads = 2, .width = 16, .ffn = 10, .context = context, .vocabulary = words},
          experts,
          chosen};
}

// Token i is i modulo 4.
struct repeated_tokens : train_test::random_tokens<context, words> {
  void fill_train(hd::io::sample_block, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = targets[i] = static_cast<std::int32_t>(i % 4);
  }
};
// The stream of token v is the unit vector v in all blocks, and its experts are v and the one before: of four as many each.
struct chooses_evenly {
  template <class Trainer>
  void operator()(Trainer& trainer) const {
    hd::train::fill_weights(trainer, [](auto& stage) {
      const auto weights = stage.weights();
      for (const md::parameter& p : stage.parameters()) {
        const auto ends = [&](const char* name) { return p.name.ends_with(name); };
        const bool embeds = ends("embed_tokens.weight"), routes = ends("block_sparse_moe.gate.weight");
        if (!embeds && !routes && !ends("o_proj.weight") && !ends("w2.weight")) continue;
        md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
          for (std::int64_t i = 0; i < length; ++i) {
            const std::int64_t row = (global + i) / 16, column = (global + i) % 16;
            const float x = embeds   ? (row % 4 == column ? 1.F : 0.F)
                            : routes ? (row == column ? 1.F : (row + 1) % 4 == column ? 0.5F : 0.F)
                                     : 0.F;
            weights[static_cast<std::size_t>(p.offset + local + i)] = x;
          }
        });
      }
    });
  }
};

TEST_CASE("a Mixtral on paper whose rows travel sends and holds what it does", "[train][paper][ranks]") {
  using model = md::mixtral<float, md::expert_parallel<>>;
  const auto evenly = [](const paper_comparison::strategy_text& s) {
    paper_comparison::compare<model, strategy<1>>(s, small_mixtral(4, 2), repeated_tokens{}, groups{},
                                                  chooses_evenly{});
  };
  evenly({"dp=2,ep=2", "1f1b", 2, "none", 16});
  evenly({"ep=4,pp=2", "1f1b", 2, "none", 16});
  evenly({"ep=2,pp=2,tp=2", "1f1b", 2, "full", 8, false});
  evenly({"dp=2,ep=2,pp=2", "zb-h1", 2, "full", 16});
}

TEST_CASE("experts over ranks of the same samples on paper send what they do whatever is chosen",
          "[train][paper][ranks]") {
  using model = md::mixtral<float>;
  const auto any = [](const paper_comparison::strategy_text& s, int experts, int chosen) {
    paper_comparison::compare<model, strategy<1>>(s, small_mixtral(experts, chosen),
                                                  train_test::random_tokens<context, words>{}, groups{});
  };
  any({"dp=2,ep=2,tp=2", "1f1b", 2, "none", 8, false}, 5, 2);
  any({"ep=3,pp=2", "interleaved:1", 2, "full", 8, false}, 5, 2);
}

TEST_CASE("a DeepSeek-V3 on paper sends and holds what it does", "[train][paper][ranks]") {
  using model = md::deepseek<float, md::expert_parallel<>>;
  md::deepseek_config c = md::deepseek_tiny();
  c.layers = 3;
  c.dense = 1;
  c.context = context;
  c.vocabulary = words;
  c.groups = 3;
  c.kept_groups = 3;
  c.chosen = c.experts;  // every row takes all of them
  paper_comparison::compare<model, strategy<1>>({"dp=2,ep=2,pp=2", "1f1b", 2, "none", 8}, c,
                                                train_test::random_tokens<context, words>{}, groups{});
}

}  // namespace paper_experts_test
}  // namespace
