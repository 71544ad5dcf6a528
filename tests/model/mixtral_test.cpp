// Mixtral as a stage: against Hugging Face transformers over two steps, and from a folder that it wrote, on any mesh.
#include "expert_folders.hpp"
#include "golden_training.hpp"
#include "llama_golden.hpp"
#include "transport.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/model/experts_in_order.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/model/qwen3_moe.hpp>
#include <heddle/model/write_parameters.hpp>
#include HEDDLE_GEMM_HEADER

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

using namespace model_test;

namespace {
using backend = hd::compute::host<HEDDLE_GEMM>;
}

TEST_CASE("Mixtral: two steps in float equal those of transformers to 1e-5", "[model][golden][mixtral]") {
  const golden_file golden(HEDDLE_SOURCE_DIR "/tests/golden/mixtral_golden.bin");
  two_steps_in_float<md::mixtral<float>, backend>(golden, mixtral_of(golden));
}

TEST_CASE("the balance of experts and its gradient are those of transformers to 1e-5", "[model][golden][mixtral]") {
  const golden_file golden(HEDDLE_SOURCE_DIR "/tests/golden/mixtral_golden.bin");
  const auto& logits = golden.values("balance.logits");
  hd::compute::host<> b{1};
  std::vector<std::int32_t> ids(14);
  std::vector<double> weights(14), gradient(35);
  const hd::matrix_view<const double> seen = md::as_matrix(std::span(logits), 7, 5);
  hd::compute::run<hd::compute::ops::top_k<hd::compute::softmax_of_chosen>>(
      b, seen, md::as_matrix(std::span(ids), 7, 2), md::as_matrix(std::span(weights), 7, 2));
  double sum = 0;
  hd::compute::run<hd::compute::ops::expert_balance>(b, seen, md::as_matrix(std::span(std::as_const(ids)), 7, 2), &sum);
  CHECK(5 * sum / 49 == Approx(golden.values("balance.loss")[0]).epsilon(1e-5));
  hd::compute::run<hd::compute::ops::expert_balance_backward>(
      b, seen, md::as_matrix(std::span(std::as_const(ids)), 7, 2), 5.0 / 49, md::as_matrix(std::span(gradient), 7, 5));
  CHECK(relative_error(gradient, golden.values("balance.gradient")) < 1e-5);
  // Chosen alike: transformers' loss is the number of choices.
  const std::vector<double> zero(10);
  const std::vector<std::int32_t> alike{0, 1, 2, 3, 4, 0, 1, 2, 3, 4};
  sum = 0;
  hd::compute::run<hd::compute::ops::expert_balance>(b, md::as_matrix(std::span(zero), 2, 5),
                                                     md::as_matrix(std::span(alike), 2, 5), &sum);
  CHECK(5 * sum / 4 == Approx(5));
}

TEST_CASE("a stage gives the balance of experts the weight that its rows have in the loss", "[model][mixtral]") {
  const auto tokens = random_ids(26, 61, 1), targets = random_ids(26, 61, 2);
  const auto router_gradient = [&](double balance, float loss_scale) {
    md::mixtral_config config = md::mixtral_tiny();
    config.initial_deviation = 0.5;
    config.balance = balance;
    backend b{1};
    alone_world world;
    md::mixtral<float>::stage<alone_world, backend> s(config, world, b, md::split_layers(2, 0, 1), 1, 2);
    s.initialize(1);
    s.zero_gradients();
    const md::batch<float> batch{tokens, targets, 2, loss_scale};
    s.forward(0, batch, {}, {});
    s.backward(0, batch, {}, {});
    for (const md::parameter& p : s.parameters())
      if (p.name == "model.layers.1.block_sparse_moe.gate.weight") {
        const auto g = part(s.gradients(), p);
        return std::vector<double>(g.begin(), g.end());
      }
    return std::vector<double>{};
  };
  const auto difference = [&](double balance, float loss_scale) {
    auto with = router_gradient(balance, loss_scale);
    const auto without = router_gradient(0, loss_scale);
    for (std::size_t i = 0; i < with.size(); ++i) with[i] -= without[i];
    return with;
  };
  const auto once = difference(20, 0.5f);
  auto twice = difference(40, 0.5f), longer = difference(20, 1.0f);
  REQUIRE(once.size() == 5 * 24);
  double greatest = 0;
  for (std::size_t i = 0; i < once.size(); ++i) {
    twice[i] /= 2;
    longer[i] /= 2;
    greatest = (std::max)(greatest, std::abs(once[i]));
  }
  CHECK(greatest > 1e-2);
  CHECK(relative_error(twice, once) < 1e-3);  // of the last block: what enters its router is the same
  CHECK(relative_error(longer, once) < 1e-3);
}

TEST_CASE("configurations of Mixtral", "[model][mixtral]") {
  const md::mixtral_config tiny = md::mixtral_tiny();
  CHECK(to_string(tiny).rfind("mixtral layers=2 heads=6 ", 0) == 0);
  CHECK(to_string(tiny).find(" experts=5 chosen=2") != std::string::npos);
  CHECK(tiny.parameters() == md::layers::count_parameters(md::describe_mixtral(tiny)));
  // What planners count of a block is what the configuration counts.
  const double blocks = tiny.flops_per_token(9) - 6.0 * tiny.vocabulary * tiny.width;
  CHECK(md::layers::training_flops(md::describe_mixtral(tiny).block, 9) * tiny.layers == Approx(blocks).epsilon(1e-12));
  STATIC_REQUIRE(md::mixtral_8x7b() == md::mixtral_8x7b());
  md::mixtral_config wrong = tiny;
  wrong.chosen = 6;
  CHECK_THROWS_WITH(wrong.validate(), "heddle: mixtral_config.chosen must be 1 to 5, got 6");
  wrong = tiny;
  wrong.balance = -1;
  CHECK_THROWS_WITH(wrong.validate(), "heddle: mixtral_config.balance must be a number >= 0, got -1");
  wrong = tiny;
  wrong.experts = 0;
  CHECK_THROWS_WITH(wrong.validate(), "heddle: mixtral_config.experts must be 1 to 65536, got 0");
}

#if __has_include(<nlohmann/json.hpp>)
TEST_CASE("a Mixtral that transformers wrote, with its experts on any ranks", "[model][mixtral][ranks]") {
  expert_folders::equals_on_ranks_of_experts<md::mixtral<float, md::expert_parallel<>>>("mixtral");
}
TEST_CASE("Qwen-3 with experts that transformers wrote, with these on any ranks", "[model][qwen][ranks]") {
  expert_folders::equals_on_ranks_of_experts<md::qwen3_moe<float, md::expert_parallel<>>>("qwen3_moe");
}
#endif
