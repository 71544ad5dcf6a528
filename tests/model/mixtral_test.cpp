// Mixtral as a stage: against Hugging Face transformers over two steps, and from a folder that it wrote, on any mesh.
#include "golden_training.hpp"
#include "llama_golden.hpp"
#include "transport.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/model/experts_in_order.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/model/qwen3_moe.hpp>
#include <heddle/model/write_parameters.hpp>
#include HEDDLE_GEMM_HEADER
#if __has_include(<nlohmann/json.hpp>)
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/model/hugging_face/config.hpp>

#include <fstream>
#endif

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
namespace {
// A sink of tensors of the shapes that a description has.
struct kept_tensors {
  struct one {
    std::vector<std::int64_t> extents;
    std::vector<float>* values;
    std::span<const std::int64_t> shape() const { return extents; }
    std::string where() const { return "kept"; }
    void write(std::int64_t first, std::span<const float> from) const {
      std::copy(from.begin(), from.end(), values->begin() + first);
    }
  };
  std::map<std::string, std::vector<std::int64_t>> shapes;
  std::map<std::string, std::vector<float>> values;
  bool contains(std::string_view name) const { return shapes.contains(std::string(name)); }
  one tensor(std::string_view name) {
    const std::vector<std::int64_t>& shape = shapes.at(std::string(name));
    auto& to = values[std::string(name)];
    std::int64_t n = 1;
    for (const std::int64_t e : shape) n *= e;
    to.resize(static_cast<std::size_t>(n));
    return {shape, &to};
  }
};

// A folder that transformers wrote, with its experts on ranks of their own, in the file's order or another one.
template <class model>
void equals_on_ranks_of_experts(const std::string& name) {
  CAPTURE(name);
  using mesh_type = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::ep>, hd::axis<hd::tp>>;
  const std::string path = HEDDLE_SOURCE_DIR "/tests/golden/models/" + name;
  const auto read = [&](const char* file) {
    std::ifstream in(path + "/" + file);
    return nlohmann::json::parse(in);
  };
  const nlohmann::json expected = read("expected.json");
  const auto config = std::get<typename model::config>(md::from_config(read("config.json")).config);
  const auto samples = expected["samples"].get<std::vector<std::vector<std::int32_t>>>();
  const hd::io::safetensors_folder folder(path);
  CHECK_NOTHROW(md::require_all_read(model::describe(config), folder.names(), md::hugging_face_names{},
                                     [](std::string_view) { return false; }));
  for (const mesh_type& mesh : {mesh_type(1, 1, 1), mesh_type(1, 2, 1), mesh_type(1, 3, 1), mesh_type(1, 6, 1),
                                mesh_type(2, 2, 1), mesh_type(1, 2, 2)}) {
    CAPTURE(to_string(mesh));
    std::mutex mutex;
    kept_tensors written;
    for (const auto& outline : md::parameter_outlines(model::describe(config)))
      written.shapes[outline.name] = outline.shape;
    // Experts of layer k in steps of k + 1, or where these are not prime to their number backwards; the file's order on one rank.
    std::vector<std::vector<int>> orders;
    for (int k = 0; k < config.layers; ++k) {
      std::vector<int> order;
      const int n = static_cast<int>(config.experts), step = std::gcd(n, k + 1) == 1 ? k + 1 : 1;
      for (int e = 0; e < n; ++e) order.push_back(mesh.size() == 1 ? e : n - 1 - e * step % n);
      orders.push_back(order);
    }
    const md::experts_in_order<> names(model::describe(config), orders);
    double loss = 0;
    int targets = 0;
    std::vector<std::vector<float>> logits(samples.size());
    std::int64_t most_read = 0, most_held = 0, most_short = 0;
    hd::launch<hd::threads>(mesh, [&](auto& world) {
      backend kernels{1};
      typename model::template stage<std::remove_cvref_t<decltype(world)>, backend> stage(
          config, world, kernels, model::layers_of(config, 0, 1), 1, 1, 0);
      const hd::io::safetensors_reader weights(folder);
      md::read_parameters(stage, weights, names);
      {
        const std::lock_guard lock(mutex);
        md::write_parameters(stage, world, written, names);
      }
      std::int64_t held = 0;
      for (const md::parameter& p : stage.parameters()) held += p.count * 4;
      // A sample for each rank along dp and ep; who has none calls, too, for the others' tokens.
      const int ranks = mesh.template extent<hd::dp>() * mesh.template extent<hd::ep>();
      const int mine =
          world.template coordinate<hd::dp>() * mesh.template extent<hd::ep>() + world.template coordinate<hd::ep>();
      const bool first = world.template coordinate<hd::tp>() == 0;
      for (std::size_t at = 0; at < samples.size(); at += static_cast<std::size_t>(ranks)) {
        const std::size_t i = at + static_cast<std::size_t>(mine);
        const bool some = i < samples.size();
        std::vector<std::int32_t> next;
        if (some) next.assign(samples[i].begin() + 1, samples[i].end());
        if (some) next.push_back(-1);
        const typename model::batch batch{some ? std::span(samples[i]) : std::span<const std::int32_t>{}, next,
                                          some ? 1 : 0, 1, some ? static_cast<int>(samples[i].size()) : 1};
        const double sum = stage.forward_only(batch, {}, {});
        std::vector<float> last(some ? static_cast<std::size_t>(config.vocabulary) : 0);
        stage.last_logits(batch, {}, {}, last);
        const std::lock_guard lock(mutex);
        if (!some || !first) continue;
        loss += sum;
        targets += static_cast<int>(samples[i].size()) - 1;
        logits[i] = last;
      }
      const std::lock_guard lock(mutex);
      most_read = (std::max)(most_read, weights.bytes_read());
      most_held = (std::max)(most_held, held);
      most_short = (std::max)(most_short, held - weights.bytes_read());
    });
    CHECK(loss / targets == Approx(expected["loss_f32"].get<double>()).epsilon(1e-5));
    for (std::size_t i = 0; i < samples.size(); ++i)
      CHECK(relative_error(logits[i], expected["last_logits"][i].get<std::vector<double>>()) < 1e-5);
    CHECK(most_read == most_held);
    CHECK(most_short == 0);
    for (const auto& [name, values] : written.values) {  // as the file has them
      CAPTURE(name);
      std::vector<float> in_file(values.size());
      folder.tensor(name).read(0, std::span(in_file));
      CHECK(in_file == values);
    }
    CHECK(written.values.size() == written.shapes.size());
  }
  const auto refusal = [&](const std::vector<std::vector<int>>& orders) {
    return md::experts_in_order<>(model::describe(config), orders);
  };
  CHECK_THROWS_WITH(refusal({}), Catch::Contains("layers with experts, got orders for 0"));
  std::vector<std::vector<int>> few(static_cast<std::size_t>(config.layers), std::vector<int>{0});
  CHECK_THROWS_WITH(refusal(few), Catch::Contains("the order of layer 0 names each of " +
                                                  std::to_string(config.experts) + " experts once, got one of 1"));
}
}  // namespace

TEST_CASE("a Mixtral that transformers wrote, with its experts on any ranks", "[model][mixtral][ranks]") {
  equals_on_ranks_of_experts<md::mixtral<float, md::expert_parallel<>>>("mixtral");
}
TEST_CASE("Qwen-3 with experts that transformers wrote, with these on any ranks", "[model][qwen][ranks]") {
  equals_on_ranks_of_experts<md::qwen3_moe<float, md::expert_parallel<>>>("qwen3_moe");
}
#endif
