// DeepSeek-V3 as a stage: against Hugging Face transformers over two steps, and the load of its experts.
#include "deepseek_golden.hpp"
#include "golden_training.hpp"
#include "parallel_training.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/model/balance_experts.hpp>
#include <heddle/model/deepseek.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/model/read_parameters.hpp>
#include <heddle/model/write_parameters.hpp>
#include <heddle/train/language_state.hpp>
#include HEDDLE_GEMM_HEADER

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

using namespace model_test;

namespace {
using backend = hd::compute::host<HEDDLE_GEMM>;
// Over dp and tp only, as formulas of memory take it.
using deepseek = md::deepseek<float, md::megatron<>>;
}  // namespace

namespace {}  // namespace

TEST_CASE("DeepSeek-V3: two steps in float equal those of transformers to 1e-5", "[model][golden][deepseek]") {
  const golden_file golden(HEDDLE_SOURCE_DIR "/tests/golden/deepseek_golden.bin");
  two_steps_in_float<deepseek, backend>(golden, deepseek_of(golden));
}
TEST_CASE("leading blocks without experts and YaRN: two steps in float equal those of transformers to 1e-5",
          "[model][golden][deepseek]") {
  const golden_file golden(HEDDLE_SOURCE_DIR "/tests/golden/deepseek_dense_golden.bin");
  const auto config =
      deepseek_of(golden, {.factor = 4, .fast = 2, .slow = 0.5, .original = 8, .mscale = 0.7, .mscale_all = 1.2});
  REQUIRE(config.dense == 1);
  REQUIRE(config.layers == 3);
  two_steps_in_float<deepseek, backend>(golden, config);
}
TEST_CASE("queries without a latent vector: two steps in float equal those of transformers to 1e-5",
          "[model][golden][deepseek]") {
  const golden_file golden(HEDDLE_SOURCE_DIR "/tests/golden/deepseek_plain_golden.bin");
  const auto config = deepseek_of(golden);
  REQUIRE(config.dense == 2);
  REQUIRE(config.query_latent == 0);
  two_steps_in_float<md::plain_query_deepseek<float>, backend>(golden, config);
}

TEST_CASE("DeepSeek-V2: two steps in float equal those of transformers to 1e-5, with no bias in tables and names",
          "[model][golden][deepseek]") {
  const golden_file golden(HEDDLE_SOURCE_DIR "/tests/golden/deepseek_v2_golden.bin");
  auto config =
      deepseek_of(golden, {.factor = 4, .fast = 2, .slow = 0.5, .original = 8, .mscale = 0.7, .mscale_all = 1.2});
  config.softmax = true;
  config.normed = false;
  REQUIRE(config.dense == 1);
  two_steps_in_float<deepseek, backend>(golden, config);
  const auto described = md::describe_deepseek(config);
  CHECK(config.parameters() == md::layers::count_parameters(described));
  CHECK(to_string(config).rfind("deepseek_v2 layers=3 ", 0) == 0);
  std::int64_t elements = 0;
  for (const auto& outline : md::parameter_outlines(described)) {
    CHECK(outline.name.find("bias") == std::string::npos);
    std::int64_t of_one = 1;
    for (const std::int64_t e : outline.shape) of_one *= e;
    elements += of_one;
  }
  CHECK(elements == config.parameters());
  for (const std::string& name : md::parameter_names(described)) CHECK(name.find("bias") == std::string::npos);
  backend kernels{1};
  alone_world world;
  deepseek::stage<alone_world, backend> s(config, world, kernels, md::split_layers(config.layers, 0, 1), 1, 2);
  CHECK(s.frozen_parameters().empty());
  s.initialize(1);
  s.zero_gradients();
  const auto tokens = random_ids(18, config.vocabulary, 1), targets = random_ids(18, config.vocabulary, 2);
  const md::batch<float> batch{tokens, targets, 2, 1.0f / 18};
  s.forward(0, batch, {}, {});
  s.backward(0, batch, {}, {});
  const std::vector<float> before(s.weights().begin(), s.weights().end());
  md::balance_experts(s, world, kernels, 0.1);  // there is nothing that it may move
  CHECK(std::equal(before.begin(), before.end(), s.weights().begin(), s.weights().end()));
}

namespace {
constexpr md::deepseek_config of_two_kinds = [] {
  md::deepseek_config c = md::deepseek_tiny();
  c.layers = 5;
  c.dense = 2;
  return c;
}();
template <int Stages>
struct shape {
  static constexpr md::deepseek_config config = of_two_kinds;
  static constexpr int stages = Stages;
  static constexpr std::int64_t samples = 2;
};
// What stages of a pipeline hold of a model with blocks of two kinds, by formula and counted.
template <int Stages>
void check_memory() {
  using formula = hd::train::language_with_state<deepseek, shape<Stages>>;
  const formula by;
  backend kernels{1};
  alone_world world;
  std::int64_t weights = 0;
  for (int i = 0; i < Stages; ++i) {
    CAPTURE(Stages, i);
    const auto part = md::split_layers(of_two_kinds.layers, i, Stages);
    const deepseek::stage<alone_world, backend> s(of_two_kinds, world, kernels, part, 1, 2);
    CHECK(s.saved_bytes_per_slot() == by.activation_bytes(i));
    CHECK(s.deferred_bytes() == by.deferred_bytes(i));
    CHECK(s.workspace_bytes() + formula::state_bytes(i) == by.resident_bytes(i));
    CHECK(s.flat_elements() * 4 == formula::weight_bytes(i));
    for (const md::parameter& p : s.parameters()) weights += p.count;
    for (const md::parameter& p : s.frozen_parameters()) weights += p.count;
  }
  CHECK(weights == of_two_kinds.parameters());
}
}  // namespace

TEST_CASE("stages with blocks of two kinds hold what the formulas of memory say", "[model][deepseek]") {
  check_memory<1>();
  check_memory<2>();  // both kinds on the first stage
  check_memory<3>();  // one kind on each stage
}

TEST_CASE("the load of experts is what rows choose in training, and moves selection biases", "[model][deepseek]") {
  md::deepseek_config config = md::deepseek_tiny();
  config.initial_deviation = 0.3;
  const auto tokens = random_ids(18, config.vocabulary, 1), targets = random_ids(18, config.vocabulary, 2);
  backend kernels{1};
  alone_world world;
  deepseek::stage<alone_world, backend> s(config, world, kernels, md::split_layers(config.layers, 0, 1), 1, 2);
  s.initialize(1);
  s.zero_gradients();
  const md::batch<float> batch{tokens, targets, 2, 1.0f / 18};
  s.forward_only(batch, {}, {});  // held-out samples do not count
  s.forward(0, batch, {}, {});
  s.backward(0, batch, {}, {});
  REQUIRE(s.frozen_parameters().size() == 2);
  std::vector<float> expected;
  for (const md::parameter& p : s.frozen_parameters()) {
    CHECK(p.name.find(".mlp.gate.e_score_correction_bias") != std::string::npos);
    const auto load = s.routing().load_of(part(s.frozen_weights(), p).data(), p.count);
    double sum = 0;
    for (const double n : load) sum += n;
    CHECK(sum == 18 * config.chosen);
    for (const double n : load) expected.push_back(n < 9 ? 0.125f : n > 9 ? -0.125f : 0.0f);
  }
  md::balance_experts(s, world, kernels, 0.125);
  std::vector<float> got;
  for (const md::parameter& p : s.frozen_parameters())
    for (const float b : part(s.frozen_weights(), p)) got.push_back(b);
  CHECK(got == expected);
  md::balance_experts(s, world, kernels, 0.125);  // no row since the last call
  std::vector<float> after;
  for (const md::parameter& p : s.frozen_parameters())
    for (const float b : part(s.frozen_weights(), p)) after.push_back(b);
  CHECK(after == expected);
}

TEST_CASE("configurations of DeepSeek-V3", "[model][deepseek]") {
  const md::deepseek_config tiny = md::deepseek_tiny();
  CHECK(to_string(tiny).rfind("deepseek_v3 layers=2 heads=3 ", 0) == 0);
  CHECK(to_string(tiny).find(" factor=1.7 theta=1000") != std::string::npos);
  CHECK(tiny.parameters() == md::layers::count_parameters(md::describe_deepseek(tiny)));
  const double blocks = tiny.flops_per_token(9) - 6.0 * tiny.vocabulary * tiny.width;
  CHECK(md::layers::training_flops(md::describe_deepseek(tiny).block, 9) * tiny.layers ==
        Approx(blocks).epsilon(1e-12));
  const auto described = md::describe_deepseek(of_two_kinds);
  CHECK(described.count_others() == 2);
  CHECK(md::layers::training_flops(described, 9) == Approx(of_two_kinds.flops_per_token(9)).epsilon(1e-12));
  const auto costs = md::operations_by_layer(described, 9);
  REQUIRE(costs.layers.size() == 5);
  CHECK(costs.layers[1] == md::layers::training_flops(described.other, 9));
  CHECK(costs.layers[2] == md::layers::training_flops(described.block, 9));
  CHECK(costs.layers[1] != costs.layers[2]);
  md::deepseek_config wrong = tiny;
  wrong.dense = 3;
  CHECK_THROWS_WITH(wrong.validate(), "heddle: deepseek_config.dense must be 0 to 2, got 3");
  wrong = tiny;
  wrong.yarn.fast = 0.5;
  CHECK_THROWS_WITH(wrong.validate(), Catch::Contains("deepseek_config.yarn.fast must be at least yarn.slow = 1"));
  wrong = tiny;
  wrong.rotating = 3;
  CHECK_THROWS_WITH(wrong.validate(), "heddle: deepseek_config.rotating must be even, got 3");
  wrong = tiny;
  wrong.kept_groups = 4;
  CHECK_THROWS_WITH(wrong.validate(), "heddle: deepseek_config.kept_groups must be 1 to 3, got 4");
  wrong = tiny;
  wrong.layers = wrong.experts = 65536;
  wrong.groups = wrong.kept_groups = wrong.shared = 1;
  wrong.width = wrong.ffn = 1 << 20;
  CHECK_THROWS_WITH(wrong.validate(), Catch::Contains("a deepseek_config must have at most 2^62 parameters, got 1.416"));
}

TEST_CASE("numbers of YaRN are checked, and a given factor of the tables is used without scaling, too",
          "[model][deepseek]") {
  const auto refused = [](auto change) -> std::string {
    md::deepseek_config c = md::deepseek_tiny();
    c.yarn.factor = 4;
    change(c.yarn);
    try {
      c.validate();
    } catch (const hd::config_error& e) {
      return e.what();
    }
    return "";
  };
  using yarn = hd::compute::yarn_scaling;
  for (const double wrong : {-1.0, std::nan(""), HUGE_VAL}) {
    CAPTURE(wrong);
    CHECK_THAT(refused([&](yarn& y) { y.mscale = wrong; }),
               Catch::Contains("heddle: deepseek_config.yarn.mscale must be 0 to 1e12, got "));
    CHECK_THAT(refused([&](yarn& y) { y.mscale_all = wrong; }),
               Catch::Contains("heddle: deepseek_config.yarn.mscale_all must be 0 to 1e12, got "));
    CHECK_THAT(refused([&](yarn& y) { y.attention_factor = wrong; }),
               Catch::Contains("heddle: deepseek_config.yarn.attention_factor must be 0 to 1e12, got "));
  }
  CHECK(refused([](yarn& y) { y.mscale = y.mscale_all = 0, y.attention_factor = 0.0; }).empty());
  CHECK(yarn{.factor = 4, .attention_factor = 0.0}.table_factor() == 0);
  CHECK_THAT(refused([](yarn& y) { y.factor = 0; }), Catch::Contains("deepseek_config.yarn.factor must be a positive"));

  // Cosines and sines have the factor where no frequency is scaled, as in transformers.
  const auto loss = [](const yarn& y) {
    md::deepseek_config config = md::deepseek_tiny();
    config.initial_deviation = 0.3;
    config.yarn = y;
    config.validate();
    const auto tokens = random_ids(18, config.vocabulary, 1), targets = random_ids(18, config.vocabulary, 2);
    backend kernels{1};
    alone_world world;
    deepseek::stage<alone_world, backend> s(config, world, kernels, md::split_layers(config.layers, 0, 1), 1, 2);
    s.initialize(1);
    return s.forward_only(md::batch<float>{tokens, targets, 2, 1.0f / 18}, {}, {});
  };
  const double plain = loss({}), half = loss({.attention_factor = 0.5});
  CHECK(half == Approx(loss({.factor = 1 + 1e-14, .attention_factor = 0.5})).epsilon(1e-6));
  CHECK(std::abs(half - plain) > 1e-3 * plain);
  CHECK(loss({.attention_factor = 1.0}) == plain);
  md::deepseek_config both = md::deepseek_tiny();
  both.yarn.attention_factor = 0.5;
  CHECK(to_string(both).find(" table_factor=0.5 ") != std::string::npos);
  both.scaling = hd::compute::linear_scaling(2);
  CHECK_THROWS_WITH(both.validate(), Catch::Contains("a deepseek_config with yarn must have scaling.factor 1"));
}

namespace {
// A Llama whose mixtures have routers with selection biases; with `megatron_sequence` each rank of tp routes rows of its own.
struct biased : md::described<biased, double, md::batch<double>, md::mixtral_config, md::megatron_sequence<dp, tp>> {
  static constexpr auto describe(const md::mixtral_config& c) {
    using mixture = md::layers::experts<md::layers::grouped_scores<>>;
    const mixture experts("block_sparse_moe", "gate", c.experts, c.chosen, c.width, c.ffn, c.initial_deviation);
    return md::layers::train_only<md::layers::all_but_selection_bias>(
        md::layers::describe_llama_with<md::layers::grouped_attention<>, false>(c, experts, md::layers::no_adapter{}));
  }
};
}  // namespace

TEST_CASE("selection biases are those of one rank where sequences are split", "[model][deepseek][ranks]") {
  const md::mixtral_config c{{.layers = 1,
                              .heads = 2,
                              .kv_heads = 2,
                              .width = 8,
                              .ffn = 6,
                              .context = 6,
                              .vocabulary = 17,
                              .initial_deviation = 0.5,
                              .head_elements = 4},
                             6,
                             1};
  const auto tokens = random_ids(18, c.vocabulary, 1), targets = random_ids(18, c.vocabulary, 2);
  const auto biases = [&](int ranks) {
    std::vector<std::vector<double>> of_rank(static_cast<std::size_t>(ranks));
    hd::launch<hd::threads>(any_mesh(1, 1, ranks), [&](auto& world) {
      parallel_backend kernels{1};
      biased::stage<std::remove_cvref_t<decltype(world)>, parallel_backend> s(c, world, kernels,
                                                                              md::split_layers(1, 0, 1), 1, 3, 0);
      s.initialize(1);
      const md::batch<double> batch{tokens, targets, 3, 1.0 / 18};
      s.forward(0, batch, {}, {});
      s.backward(0, batch, {}, {});
      md::balance_experts(s, world, kernels, 0.125);
      const auto here = s.frozen_weights();
      of_rank[static_cast<std::size_t>(world.rank())].assign(here.begin(), here.end());
    });
    return of_rank;
  };
  const std::vector<double> serial = biases(1)[0];
  REQUIRE(std::count(serial.begin(), serial.end(), 0.125) > 0);
  REQUIRE(std::count(serial.begin(), serial.end(), -0.125) > 0);
  for (const int ranks : {2, 3})
    for (const std::vector<double>& b : biases(ranks)) CHECK(b == serial);
}
