// tests/model/with_medusa_heads_test.cpp: the joint loss of a model and its heads of Medusa is the sum of the definition, its gradients are those of central differences.
#include "catch.hpp"
#include "support.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/balance_experts.hpp>
#include <heddle/model/deepseek.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/with_chunked_loss.hpp>
#include <heddle/model/with_medusa_head.hpp>
#include <heddle/model/with_medusa_heads.hpp>
#include <heddle/train/activations/recompute.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace {

namespace hd = heddle;
namespace md = heddle::model;
using namespace model_test;
using backend = hd::compute::host<>;
struct third_and_half {
  static constexpr double first = 0.3, decay = 0.5;
};
using model_type = md::with_medusa_heads<md::llama<double>, 2, third_and_half>;
using stage_type = typename model_type::template stage<alone_world, backend>;
using base_stage = typename md::llama<double>::template stage<alone_world, backend>;

constexpr md::llama_config small{
    .layers = 1, .heads = 2, .kv_heads = 1, .width = 8, .ffn = 6, .context = 5, .vocabulary = 11, .head_elements = 4};

}  // namespace

TEST_CASE("the loss of a model and its heads is that of its definition, with gradients of central differences",
          "[model][medusa]") {
  const alone_world world;
  backend kernels{1};
  base_stage base(small, const_cast<alone_world&>(world), kernels, md::split_layers(1, 0, 1), 1, 2);
  stage_type s(small, const_cast<alone_world&>(world), kernels, md::split_layers(1, 0, 1), 1, 2);
  base.initialize(3);
  s.initialize(4);
  const auto random = random_vector(std::ssize(base.weights()), 8, 0.4);
  std::copy(random.begin(), random.end(), base.weights().begin());
  md::begin_medusa_head(s, base);
  std::vector<std::string> names;
  for (const md::parameter& p : s.parameters())
    if (p.name.starts_with("medusa_head.")) names.push_back(p.name);
  CHECK(names == std::vector<std::string>{"medusa_head.0.1.weight", "medusa_head.0.0.linear.weight",
                                          "medusa_head.1.1.weight", "medusa_head.1.0.linear.weight"});

  const auto tokens = random_ids(10, 11, 3), targets = random_ids(10, 11, 4);
  const md::batch<double> batch{tokens, targets, 2, 0.1, 5};
  const auto further = [&](std::int64_t k) {  // targets k tokens further on, in samples of 5
    std::vector<std::int32_t> t(targets.size(), -100);
    for (std::size_t i = 0; i < t.size(); ++i)
      if (i % 5 + static_cast<std::size_t>(k) < 5) t[i] = targets[i + static_cast<std::size_t>(k)];
    return t;
  };
  // Heads that begin are the model's own.
  const auto base_loss = [&](const std::vector<std::int32_t>& of) {
    return base.forward_only(md::batch<double>{tokens, of, 2, 0.1, 5}, {}, {});
  };
  const double expected = base_loss(targets) + 0.3 * 0.5 * base_loss(further(1)) + 0.3 * 0.25 * base_loss(further(2));
  const auto loss = [&] { return s.forward_only(batch, {}, {}); };
  CHECK(loss() == Approx(expected).epsilon(1e-12));

  const auto weights = random_vector(std::ssize(s.weights()), 9, 0.4);
  std::copy(weights.begin(), weights.end(), s.weights().begin());
  const double now = loss();
  for (const bool at_once : {true, false}) {
    s.zero_gradients();
    s.forward(0, batch, {}, {});
    CHECK(s.loss_sum(0) == Approx(now).epsilon(1e-12));
    if (at_once) {
      s.backward(0, batch, {}, {});
    } else {
      s.backward_input(0, batch, {}, {});
      s.backward_weight(0, batch);
    }
    for (const md::parameter& p : s.parameters()) {
      const auto of = static_cast<std::size_t>(p.offset), n = static_cast<std::size_t>(p.count);
      CAPTURE(p.name, at_once);
      CHECK(difference_error(s.weights().subspan(of, n), s.gradients().subspan(of, n), [&] { return 0.1 * loss(); }) <=
            1e-6);
    }
  }
}

TEST_CASE("what heads of Medusa keep of the final norm can be computed again", "[model][medusa][recompute]") {
  const auto check = [](auto of) {
    using model = typename decltype(of)::type;
    using policy = hd::activations::recompute<hd::activations::none>;
    using stage = typename model::template stage<alone_world, backend, policy>;
    alone_world world;
    backend kernels{1};
    const auto tokens = random_ids(20, 11, 3), targets = random_ids(20, 11, 4);
    const auto batch = [&](int i) {
      const std::size_t at = static_cast<std::size_t>(i) * 10;
      return md::batch<double>{std::span(tokens).subspan(at, 10), std::span(targets).subspan(at, 10), 2, 0.1, 5};
    };
    std::vector<std::vector<double>> gradients;
    std::vector<std::int64_t> bytes;
    for (const char* const text : {"none", "ln_f.out", "ln_f.out,head.logits"}) {
      typename policy::template layers<double>::settings saving;
      saving.again = md::parse_recompute(text);
      stage s(small, world, kernels, md::split_layers(1, 0, 1), 2, 2, 2, nullptr, saving);
      s.initialize(2);
      const auto weights = random_vector(std::ssize(s.weights()), 9, 0.4);
      std::copy(weights.begin(), weights.end(), s.weights().begin());
      s.zero_gradients();
      for (int i = 0; i < 2; ++i) s.forward(i, batch(i), {}, {});
      for (int i = 0; i < 2; ++i) s.backward_input(i, batch(i), {}, {});
      for (int i = 0; i < 2; ++i) s.backward_weight(i, batch(i));
      gradients.emplace_back(s.gradients().begin(), s.gradients().end());
      bytes.push_back(s.saved_bytes_per_slot());
    }
    CHECK(gradients[1] == gradients[0]);
    CHECK(gradients[2] == gradients[0]);
    CHECK(bytes[1] < bytes[0]);
    CHECK(bytes[2] < bytes[1]);
  };
  check(std::type_identity<md::with_medusa_head<md::llama<double>>>{});
  check(std::type_identity<model_type>{});
}

TEST_CASE("one head of Medusa trains as usual where logits are made some words at a time", "[model][medusa]") {
  const auto of = [](auto what) {
    using model = typename decltype(what)::type;
    alone_world world;
    backend kernels{1};
    typename model::template stage<alone_world, backend> s(small, world, kernels, md::split_layers(1, 0, 1), 1, 2);
    s.initialize(2);
    const auto weights = random_vector(std::ssize(s.weights()), 9, 0.4);
    std::copy(weights.begin(), weights.end(), s.weights().begin());
    const auto tokens = random_ids(10, 11, 3), targets = random_ids(10, 11, 4);
    const md::batch<double> batch{tokens, targets, 2, 0.1, 5};
    s.zero_gradients();
    s.forward(0, batch, {}, {});
    std::vector<double> numbers{s.loss_sum(0)};
    s.backward_input(0, batch, {}, {});
    s.backward_weight(0, batch);
    numbers.insert(numbers.end(), s.gradients().begin(), s.gradients().end());
    return numbers;
  };
  using plain = md::with_medusa_head<md::llama<double>>;
  const auto expected = of(std::type_identity<plain>{}),
             got = of(std::type_identity<md::with_chunked_loss<plain, 3>>{});
  REQUIRE(got.size() == expected.size());
  CHECK(std::any_of(expected.begin() + 1, expected.end(), [](double g) { return g != 0; }));
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i] == Approx(expected[i]).epsilon(1e-10).margin(1e-14));
  }
}

namespace {
std::vector<std::string> names_without_heads(const std::vector<md::parameter>& table) {
  std::vector<std::string> names;
  for (const md::parameter& p : table)
    if (!p.name.starts_with("medusa_head.")) names.push_back(p.name);
  std::sort(names.begin(), names.end());
  return names;
}
std::int64_t elements_in(const std::vector<md::parameter>& table) {
  std::int64_t n = 0;
  for (const md::parameter& p : table) n += p.count;
  return n;
}
}  // namespace

TEST_CASE("a DeepSeek-V3 with heads has the blocks of both kinds and the frozen selection biases of the one without",
          "[model][medusa][deepseek]") {
  using deepseek = md::deepseek<double, md::megatron<>>;
  md::deepseek_config config = md::deepseek_tiny();
  config.layers = 3;
  config.dense = 1;
  config.initial_deviation = 0.3;
  alone_world world;
  backend kernels{1};
  const auto of = [&](auto model) {
    using stage = typename decltype(model)::type::template stage<alone_world, backend>;
    return stage(config, world, kernels, md::split_layers(3, 0, 1), 1, 2);
  };
  auto base = of(std::type_identity<deepseek>{});
  auto joint = of(std::type_identity<md::with_medusa_heads<deepseek, 2, third_and_half>>{});
  auto single = of(std::type_identity<md::with_medusa_head<deepseek>>{});
  base.initialize(3);
  double bias = 0;
  for (double& b : base.frozen_weights()) b = bias += 0.01;
  REQUIRE(base.frozen_parameters().size() == 2);  // of the blocks with experts

  CHECK(names_without_heads(joint.parameters()) == names_without_heads(base.parameters()));
  CHECK(joint.parameters().size() == base.parameters().size() + 4);
  CHECK(names_without_heads(joint.frozen_parameters()) == names_without_heads(base.frozen_parameters()));
  const std::int64_t head = std::int64_t{config.width} * (config.width + config.vocabulary);
  CHECK(elements_in(joint.parameters()) == elements_in(base.parameters()) + 2 * head);
  CHECK(elements_in(single.parameters()) == head);
  // Its own head is gone, all else is there.
  CHECK(single.frozen_parameters().size() == base.parameters().size() + 2 - 1);

  joint.initialize(4);
  md::begin_medusa_head(joint, base);
  single.initialize(5);
  md::begin_medusa_head(single, base);
  const auto tokens = random_ids(10, config.vocabulary, 3), targets = random_ids(10, config.vocabulary, 4);
  const auto loss = [&](auto& s, std::int64_t ahead) {
    std::vector<std::int32_t> t(targets.size(), -100);
    for (std::size_t i = 0; i < t.size(); ++i)
      if (i % 5 + static_cast<std::size_t>(ahead) < 5) t[i] = targets[i + static_cast<std::size_t>(ahead)];
    return s.forward_only(md::batch<double>{tokens, t, 2, 0.1, 5}, {}, {});
  };
  CHECK(loss(joint, 0) ==
        Approx(loss(base, 0) + 0.3 * 0.5 * loss(base, 1) + 0.3 * 0.25 * loss(base, 2)).epsilon(1e-12));
  CHECK(loss(single, 1) == Approx(loss(base, 1)).epsilon(1e-12));

  // A step of training leaves selection biases to `balance_experts`.
  const std::vector<double> before(joint.frozen_weights().begin(), joint.frozen_weights().end());
  const md::batch<double> batch{tokens, targets, 2, 0.1, 5};
  joint.zero_gradients();
  joint.forward(0, batch, {}, {});
  joint.backward(0, batch, {}, {});
  CHECK(std::all_of(joint.gradients().begin(), joint.gradients().end(), [](double g) { return std::isfinite(g); }));
  CHECK(std::equal(before.begin(), before.end(), joint.frozen_weights().begin()));
  md::balance_experts(joint, world, kernels, 0.125);
  CHECK_FALSE(std::equal(before.begin(), before.end(), joint.frozen_weights().begin()));
}
