// Heads of Medusa, a drafter of Falcon and their trees, written to a folder and read back.
#include "catch.hpp"

#include "../train/folder.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/infer/falcon_folder.hpp>
#include <heddle/infer/medusa_folder.hpp>
#include <heddle/model/falcon_drafter.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace inf = heddle::infer;
namespace md = heddle::model;
namespace io = heddle::io;
using Catch::Matchers::Contains;

TEST_CASE("heads and their tree are read as they were written, and what does not fit is refused", "[infer][medusa]") {
  using heads_type = inf::medusa_heads<float, heddle::compute::host<>>;
  const train_test::folder folder("medusa_folder");
  heddle::compute::host<> kernels{1};
  heads_type heads(kernels, 2, 6, 11, 1e-5), again(kernels, 2, 6, 11, 1e-5);
  heads.initialize(4, 0.5);
  const inf::token_tree tree({{0}, {2}, {0, 1}, {2, 0}});
  inf::write_medusa_folder(folder.path, heads, tree);
  const inf::medusa_folder_settings settings = inf::read_medusa_settings(folder.path);
  CHECK(settings.heads == 2);
  CHECK(settings.tree == tree);
  inf::read_medusa_heads(folder.path, again);
  for (std::int64_t k = 0; k < 2; ++k) {
    CHECK(std::ranges::equal(heads.norm(k), again.norm(k)));
    CHECK(std::ranges::equal(heads.square(k), again.square(k)));
    CHECK(std::ranges::equal(heads.words(k), again.words(k)));
  }
  heads_type wider(kernels, 2, 7, 11, 1e-5), more(kernels, 3, 6, 11, 1e-5);
  CHECK_THROWS_WITH(inf::read_medusa_heads(folder.path, wider), Contains("model of width 7"));
  CHECK_THROWS_AS(inf::read_medusa_heads(folder.path, more), heddle::io_error);
  const auto refused = [&](const char* text, const char* why) {
    std::ofstream(folder.path / "medusa_heads.json") << text;
    CHECK_THROWS_WITH(inf::read_medusa_settings(folder.path), Contains(why));
  };
  refused(R"({"heads": 0, "tree": [[0]]})", "from 1 to 64");
  refused(R"({"heads": 1, "tree": []})", "1 to 4096 paths");
  refused(R"({"heads": 1, "tree": [[0, 0]]})", "at most 1 ranks");
  refused(R"({"heads": 2, "tree": [[0, 0]]})", "without it");
  refused(R"({"heads": 1, "tree": [[0]], "nodes": 1})",
          "medusa_heads.json': should have the members 'heads', 'tree', got 'nodes'");
  refused(R"({"tree": [[0]]})", "should have the members 'heads', 'tree', 'heads' is not there");
  refused(R"({"heads": "2", "tree": [[0]]})", "'heads' should be a whole number from 1 to 64, got \"2\"");
  refused(R"([1])", "should be an object, got [1]");
}

TEST_CASE("a drafter is read as it was written, drafts the same, and what does not fit is refused", "[infer][falcon]") {
  using drafter_type = md::falcon_drafter<float, heddle::compute::host<>>;
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  const train_test::folder folder("falcon_folder"), second("falcon_folder_again");
  heddle::compute::host<> kernels{1};
  const md::falcon_shape shape{.width = 8,
                               .heads = 2,
                               .ffn = 5,
                               .vocabulary = 11,
                               .block = 3,
                               .context = 30,
                               .epsilon = 1e-6,
                               .theta = 12345.678};
  std::mt19937 random(seed);
  const auto normal = [&](std::span<float> to) {
    for (float& x : to) x = std::normal_distribution<float>()(random);
  };
  drafter_type drafter(kernels, shape);
  drafter.initialize(seed, 0.4);
  md::falcon_base<float> base{std::vector<float>(88), std::vector<float>(88), std::vector<float>(8)};
  for (std::vector<float>* x : {&base.embedding, &base.head, &base.final_norm}) normal(*x);
  drafter.take(base);
  const inf::token_tree tree({{0}, {2}, {0, 1}, {2, 0}});
  inf::write_falcon_weights(folder.path, drafter, tree);

  const inf::falcon_folder_settings settings = inf::read_falcon_settings(folder.path);
  CHECK(settings.tree == tree);
  inf::require_falcon_fits(folder.path, settings.shape, 8, 11, 1e-6);
  drafter_type again(kernels, settings.shape);
  inf::read_falcon_weights(folder.path, again);
  again.take(base);
  CHECK(std::ranges::equal(drafter.weights(), again.weights()));
  // Written once more, all bytes are the same.
  inf::write_falcon_weights(second.path, again, settings.tree);
  const auto bytes = [](const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  for (const char* name : {"falcon_drafter.json", "falcon_drafter.safetensors"}) {
    CHECK(bytes(folder.path / name).size() > 100);
    CHECK(bytes(folder.path / name) == bytes(second.path / name));
  }
  std::vector<std::int32_t> next;
  std::vector<float> features(7 * 8);
  for (int i = 0; i < 7; ++i) next.push_back(static_cast<std::int32_t>(random() % 11));
  normal(features);
  const auto drafts = [&](drafter_type& d) {
    typename drafter_type::prefix p;
    d.append(p, next, features);
    auto blocks = d.begin_drafts(p);
    const std::int64_t first = 0;
    d.draft(p, blocks, std::span(&first, 1), std::span<const std::int32_t>(next).first(3));
    return std::pair(blocks[0].logits, blocks[1].logits);
  };
  CHECK(drafts(drafter) == drafts(again));

  // Another model.
  const auto fits = [&](std::int64_t width, std::int64_t vocabulary, double epsilon) {
    inf::require_falcon_fits(folder.path, settings.shape, width, vocabulary, epsilon);
  };
  CHECK_THROWS_WITH(fits(16, 11, 1e-6), Contains("falcon_drafter.json': 'width' should be 16 as the model's, got 8"));
  CHECK_THROWS_WITH(fits(8, 12, 1e-6), Contains("'vocabulary' should be 12 as the model's, got 11"));
  CHECK_THROWS_WITH(fits(8, 11, 1e-5), Contains("'epsilon' should be 1e-05 as the model's, got 1e-06"));
  md::falcon_shape other = shape;
  other.ffn = 1 << 24;  // before a drafter of it is made
  CHECK_THROWS_WITH(inf::require_falcon_fits(folder.path, other, 8, 11, 1e-6),
                    Contains("falcon_drafter.json': 'ffn' should be the columns of 'mlp.down_proj.weight' of '") &&
                        Contains("[8, 5], got 16777216"));
  other = shape;
  other.width = 12;
  drafter_type wider(kernels, other);
  CHECK_THROWS_WITH(inf::read_falcon_weights(folder.path, wider),
                    Contains("falcon_drafter.safetensors', tensor 'lstm.weight_ih_l0': should have the shape [48, 24], "
                             "got [32, 16]"));
  md::falcon_base<float> foreign = base;
  foreign.embedding.resize(96);
  CHECK_THROWS_WITH(again.take(foreign), Contains("'model.embed_tokens.weight' should have 88 elements, got 96"));

  // Tensors that are not there, too many, or of another shape; a drafter that is refused keeps its weights.
  const auto refused_tensors = [&](auto&& change, const std::string& why) {
    std::vector<io::safetensors_output> tensors;
    inf::detail::each_falcon_tensor(
        drafter, [&](const std::string& name, std::span<float> values, std::vector<std::int64_t> of) {
          tensors.push_back(io::safetensors_of(name, std::move(of), std::span<const float>(values)));
        });
    change(tensors);
    io::write_safetensors(second.path / "falcon_drafter.safetensors", tensors);
    drafter_type untouched(kernels, shape);
    CHECK_THROWS_WITH(inf::read_falcon_weights(second.path, untouched),
                      Contains("falcon_drafter.safetensors', tensor '" + why));
    CHECK(std::ranges::all_of(untouched.weights(), [](float x) { return x == 0; }));
  };
  using outputs = std::vector<io::safetensors_output>;
  refused_tensors([](outputs& t) { t.erase(t.begin() + drafter_type::down); },
                  "mlp.down_proj.weight': should be there with the shape [8, 5], the file has 14 others");
  refused_tensors(
      [&](outputs& t) {
        t.push_back(io::safetensors_of("lm_head.weight", {11, 8}, std::span<const float>(base.head)));
      },
      "lm_head.weight': a drafter has none of this name, but 15 others");
  refused_tensors([](outputs& t) { t[drafter_type::bias_2].shape = {1, 32}; },
                  "lstm.bias_l1': should have the shape [32], got [1, 32]");

  // Settings: each member, one by one.
  const nlohmann::json good = nlohmann::json::parse(bytes(folder.path / "falcon_drafter.json"));
  const auto refused = [&](const char* member, const nlohmann::json& value, const std::string& why) {
    nlohmann::json changed = good;
    changed[member] = value;
    std::ofstream(second.path / "falcon_drafter.json") << changed;
    CAPTURE(member, value.dump());
    CHECK_THROWS_WITH(inf::read_falcon_settings(second.path), Contains("falcon_drafter.json': " + why));
    changed = good;
    changed.erase(member);
    std::ofstream(second.path / "falcon_drafter.json") << changed;
    if (good.contains(member))
      CHECK_THROWS_WITH(inf::read_falcon_settings(second.path), Contains("'" + std::string(member) + "' is not there"));
  };
  refused("width", 0, "'width' should be a whole number from 1 to 65536, got 0");
  refused("width", 9, "'width' should be an even number for each of 'heads', got 9 and 2");
  refused("heads", 2.0, "'heads' should be a whole number from 1 to 65536, got 2.0");
  refused("ffn", "5", "'ffn' should be a whole number from 1 to 16777216, got \"5\"");
  refused("vocabulary", nullptr, "'vocabulary' should be a whole number from 1 to 16777216, got null");
  refused("block", 65, "'block' should be a whole number from 1 to 64, got 65");
  refused("context", -1, "'context' should be a whole number from 1 to 1048576, got -1");
  refused("epsilon", 0, "'epsilon' should be a number above 0, got 0");
  refused("theta", "x", "'theta' should be a number above 0, got \"x\"");
  refused("tree", nlohmann::json::parse("[[0, 0]]"),
          "'tree': a node of a token tree should have its parent there, got");
  refused("tree", nlohmann::json::parse("[[-1]]"), "a path of 'tree' should be an array of at most 30 ranks, got [-1]");
  refused("passes", 3,
          "should have the members 'width', 'heads', 'ffn', 'vocabulary', 'block', 'context', 'epsilon', "
          "'theta', 'tree', got 'passes'");
  std::ofstream(second.path / "falcon_drafter.json") << good;
  CHECK(inf::read_falcon_settings(second.path).tree == tree);
}
