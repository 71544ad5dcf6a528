// Tensor-parallel plans from names and shapes: known models, random lists, and the same rules in the compiler.
#include "catch.hpp"

#include <heddle/layout/name_rules.hpp>
#include <heddle/layout/named_layouts.hpp>

#include <array>
#include <concepts>
#include <cstdint>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace hd = heddle;
using Catch::Matchers::Contains;
using hd::dp, hd::tp;
using hd::named_shape, hd::name_rules, hd::name_rule, hd::rule_reason;

namespace {

// A list of parameters as the script in tests/golden/name_rules wrote it.
struct golden_list {
  std::shared_ptr<std::deque<std::string>> paths =
      std::make_shared<std::deque<std::string>>();  // views into it stay valid
  std::vector<named_shape> parameters;
  std::array<std::vector<int>, 4> dims;  // for m = 1, 2, 4, 8
};

std::vector<golden_list> read_lists(const std::string& name) {
  std::ifstream in(std::string(HEDDLE_SOURCE_DIR "/tests/golden/name_rules/") + name + ".txt");
  std::vector<golden_list> lists(1);
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) {
      lists.emplace_back();
      continue;
    }
    std::istringstream words(line);
    std::string path, extents;
    words >> path >> extents;
    golden_list& list = lists.back();
    list.paths->push_back(path);
    named_shape p(list.paths->back(), {});
    std::istringstream numbers(extents);
    for (std::string n; std::getline(numbers, n, 'x');) p.add(std::stoll(n));
    list.parameters.push_back(p);
    for (auto& d : list.dims) {
      int dim = -2;
      words >> dim;
      d.push_back(dim);
    }
  }
  if (lists.back().parameters.empty()) lists.pop_back();
  return lists;
}

// How many parameters get another dimension than the golden plan says, over m = 1, 2, 4, 8.
int differences(const golden_list& list) {
  int wrong = 0;
  for (std::size_t k = 0; k < 4; ++k) {
    const auto rules = name_rules(list.parameters, 1 << k);
    for (std::size_t i = 0; i < rules.size(); ++i) wrong += rules[i].dim != list.dims[k][i] ? 1 : 0;
  }
  return wrong;
}

// The one dimension that all parameters of this ending get; -2 if they differ or there are none.
int dim_of(const golden_list& list, int m, const std::string& ending) {
  const auto rules = name_rules(list.parameters, m);
  int dim = -2;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (!hd::detail::path_ends_with(list.parameters[i].path, ending)) continue;
    if (dim != -2 && dim != rules[i].dim) return -2;
    dim = rules[i].dim;
  }
  return dim;
}

struct toy {
  static constexpr std::array parameters{
      named_shape{"embed/embedding", {8, 4}},   named_shape{"l/0/norm/scale", {4}},
      named_shape{"l/0/attn/q/kernel", {4, 4}}, named_shape{"l/0/attn/o/kernel", {4, 4}},
      named_shape{"l/0/fc1/kernel", {4, 16}},   named_shape{"l/0/fc1/bias", {16}},
      named_shape{"l/0/fc2/kernel", {16, 4}}};
};

struct uneven {
  static constexpr std::array<hd::named_shape, 2> parameters{
      {{"mlp/fc1/kernel", {10, 15}}, {"mlp/fc2/kernel", {15, 10}}}};
};
struct fused {
  static constexpr std::array parameters{named_shape{"attn/c_attn/kernel", {4, 12}},
                                         named_shape{"attn/c_proj/kernel", {4, 4}}};
};
struct copy_fused {
  static constexpr name_rule given[]{{"c_attn/kernel", -1}};
  static constexpr auto rules(std::span<const named_shape> p, int m) { return name_rules(p, m, {.given = given}); }
};

}  // namespace

TEST_CASE("plans of known models are those of an independent program", "[layout][name_rules][golden]") {
  for (const char* model : {"gpt2", "gptj", "opt", "llama", "t5", "mixtral"}) {
    INFO(model);
    const auto lists = read_lists(model);
    REQUIRE(lists.size() == 1);
    REQUIRE(lists[0].parameters.size() > 20);
    CHECK(differences(lists[0]) == 0);
  }
}

TEST_CASE("plans of random lists are those of an independent program", "[layout][name_rules][golden]") {
  const auto lists = read_lists("random");
  REQUIRE(lists.size() == 100);
  for (std::size_t i = 0; i < lists.size(); ++i) {
    INFO("list " << i);
    CHECK(differences(lists[i]) == 0);
  }
}

TEST_CASE("known models are cut as published", "[layout][name_rules][golden]") {
  std::map<std::string, golden_list> of;
  for (const char* model : {"gpt2", "gptj", "opt", "llama", "t5", "mixtral"}) of[model] = read_lists(model).at(0);
  struct expectation {
    const char* model;
    int dim;
    std::vector<const char*> endings;
  };
  for (const auto& [model, dim, endings] : std::vector<expectation>{
           {"gptj", 1, {"q_proj/kernel", "k_proj/kernel", "v_proj/kernel", "fc_in/kernel", "lm_head/kernel"}},
           {"gptj", 0, {"out_proj/kernel", "fc_out/kernel", "embedding"}},
           {"llama",
            1,
            {"q_proj/kernel", "k_proj/kernel", "v_proj/kernel", "gate_proj/kernel", "up_proj/kernel",
             "lm_head/kernel"}},
           {"llama", 0, {"o_proj/kernel", "down_proj/kernel", "embed_tokens/embedding"}},
           {"t5", 1, {"q/kernel", "k/kernel", "v/kernel", "wi_0/kernel", "wi_1/kernel", "lm_head/kernel"}},
           {"t5", 0, {"o/kernel", "wo/kernel", "shared/embedding"}},
           {"opt", 1, {"q_proj/kernel", "k_proj/kernel", "v_proj/kernel", "fc1/kernel"}},
           {"opt", 0, {"out_proj/kernel", "fc2/kernel"}},
           {"mixtral", 1, {"w1/kernel", "w3/kernel"}},
           {"mixtral", 0, {"w2/kernel", "o_proj/kernel"}}})
    for (const char* ending : endings)
      for (const int m : {2, 4, 8}) {
        INFO(model << " " << ending << " over " << m);
        CHECK(dim_of(of[model], m, ending) == dim);
      }
  for (const auto& [model, list] : of)
    for (const char* ending : {"bias", "scale", "weight"})
      for (const int m : {1, 2, 4, 8}) {
        INFO(model << " " << ending << " over " << m);
        CHECK(dim_of(list, m, ending) < 0);
      }
  // An odd vocabulary is cut along the width, and all embeddings share the rule.
  CHECK(dim_of(of["gpt2"], 2, "wte/embedding") == 1);
  CHECK(dim_of(of["gpt2"], 2, "wpe/embedding") == 1);
  // OPT's 2050 positions: two divides them, four does not.
  CHECK(dim_of(of["opt"], 2, "embed_tokens/embedding") == 0);
  CHECK(dim_of(of["opt"], 4, "embed_tokens/embedding") == 1);
}

TEST_CASE("the rules run in the compiler and give layouts", "[layout][name_rules][static]") {
  using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  using plan = hd::named_layouts<toy, mesh>;
  using column = hd::layout<mesh, hd::shard<1, tp>>;
  using row = hd::layout<mesh, hd::shard<0, tp>>;
  STATIC_REQUIRE(std::same_as<plan::of<"embed/embedding">, row>);
  STATIC_REQUIRE(std::same_as<plan::of<"l/0/norm/scale">, hd::layout<mesh>>);
  STATIC_REQUIRE(std::same_as<plan::of<"l/0/attn/q/kernel">, column>);
  STATIC_REQUIRE(std::same_as<plan::of<"l/0/attn/o/kernel">, row>);
  STATIC_REQUIRE(std::same_as<plan::of<"l/0/fc1/kernel">, column>);
  STATIC_REQUIRE(std::same_as<plan::at<5>, hd::layout<mesh>>);
  STATIC_REQUIRE(std::same_as<plan::of<"l/0/fc2/kernel">, row>);
  STATIC_REQUIRE(plan::rules[4].why == rule_reason::alternation);
  // On a mesh without the axis nothing is split.
  using alone = hd::mesh<hd::axis<dp, 2>>;
  STATIC_REQUIRE(std::same_as<hd::named_layouts<fused, alone>::of<"attn/c_attn/kernel">, hd::layout<alone>>);
  STATIC_REQUIRE(std::same_as<hd::named_layouts<fused, mesh, copy_fused>::of<"attn/c_attn/kernel">, hd::layout<mesh>>);
  // Known by name, but no dimension divides: copies, which is no matter of names.
  using four = hd::mesh<hd::axis<tp, 4>>;
  STATIC_REQUIRE(std::same_as<hd::named_layouts<uneven, four>::of<"mlp/fc1/kernel">, hd::layout<four>>);
  STATIC_REQUIRE(hd::named_layouts<uneven, four>::rules[0].why == rule_reason::indivisible);
  const auto now = name_rules(toy::parameters, 2);
  for (std::size_t i = 0; i < now.size(); ++i) CHECK(now[i] == plan::rules[i]);
}

TEST_CASE("one oddly shaped layer decides for all that share its key", "[layout][name_rules]") {
  const std::vector<named_shape> odd{{"h/0/mlp/fc_in/kernel", {8, 16}}, {"h/1/mlp/fc_in/kernel", {8, 15}}};
  auto rules = name_rules(odd, 4);
  CHECK(rules[0].dim == 0);
  CHECK(rules[0].notes.fallback);
  CHECK(rules[1] == rules[0]);
  const std::vector<named_shape> ranks{{"a/fc_in/kernel", {8, 16}}, {"b/fc_in/kernel", {8, 16, 4}}};
  rules = name_rules(ranks, 4);
  CHECK(rules[0].dim == -1);
  CHECK(rules[1].why == rule_reason::indivisible);
}

TEST_CASE("a key is in attention only if all that share it are", "[layout][name_rules]") {
  const std::vector<named_shape> rwkv{{"b/0/attention/key/kernel", {64, 64}},
                                      {"b/0/attention/value/kernel", {64, 64}},
                                      {"b/0/feed_forward/key/kernel", {64, 256}},
                                      {"b/0/feed_forward/value/kernel", {256, 64}}};
  std::vector<int> dims;
  for (const auto& rule : name_rules(rwkv, 2)) {
    CHECK(rule.why == rule_reason::alternation);
    dims.push_back(rule.dim);
  }
  CHECK(dims == std::vector<int>{1, 0, 1, 0});
  const auto in_attention = name_rules(std::span(rwkv).first(2), 2);
  CHECK(in_attention[1] == hd::parameter_rule{1, rule_reason::attention_in, {}});
}

TEST_CASE("a fused matrix and few key-value heads are reported", "[layout][name_rules]") {
  const auto gpt2 = read_lists("gpt2").at(0);
  auto rules = name_rules(gpt2.parameters, 4);
  int mixed = 0;
  for (std::size_t i = 0; i < rules.size(); ++i)
    if (rules[i].notes.mixes_fused) {
      ++mixed;
      CHECK(hd::detail::path_ends_with(gpt2.parameters[i].path, "c_attn/kernel"));
      CHECK_THAT(hd::to_string(rules[i]), Contains("equal chunks mix them"));
    }
  CHECK(mixed == 2);
  rules = name_rules(gpt2.parameters, 1);
  for (const auto& rule : rules) CHECK_FALSE(rule.notes.mixes_fused);

  // Two key-value heads of four: over two ranks whole heads, over four ranks half a head each.
  const std::vector<named_shape> few{{"attn/q_proj/kernel", {16, 16}}, {"attn/k_proj/kernel", {16, 8}}};
  for (const int m : {2, 4}) {
    rules = name_rules(few, m, {.head_dim = 4});
    CHECK_FALSE(rules[0].notes.splits_heads);
    CHECK(rules[1].notes.splits_heads == (m == 4));
  }
  CHECK_THAT(hd::to_string(rules[1]), Contains("fewer key-value heads than ranks"));
}

TEST_CASE("plans of known models by PyTorch's names are those of an independent program",
          "[layout][name_rules][golden]") {
  for (const char* model : {"gpt2_torch", "opt_torch", "llama_torch", "t5_torch", "mixtral_torch", "phi3_torch"}) {
    INFO(model);
    const auto lists = read_lists(model);
    REQUIRE(lists.size() == 1);
    REQUIRE(lists[0].parameters.size() > 8);
    CHECK(differences(lists[0]) == 0);
    for (const auto& rule : name_rules(lists[0].parameters, 2)) CHECK_FALSE(rule.notes.copies_matrix);
  }
}

TEST_CASE("PyTorch's weights are split along the dimension that means the same", "[layout][name_rules]") {
  const std::vector<named_shape> list{{"model.embed_tokens.weight", {32, 8}},
                                      {"model.layers.0.self_attn.q_proj.weight", {8, 8}},
                                      {"model.layers.0.self_attn.o_proj.weight", {8, 8}},
                                      {"model.layers.0.mlp.up_proj.weight", {24, 8}},
                                      {"model.layers.0.mlp.down_proj.weight", {8, 24}},
                                      {"model.norm.weight", {8}}};
  std::vector<int> dims;
  for (const auto& rule : name_rules(list, 2)) dims.push_back(rule.dim);
  CHECK(dims == std::vector<int>{0, 0, 1, 0, 1, -1});
  CHECK(name_rules(list, 2)[1].why == rule_reason::attention_in);
  CHECK(name_rules(list, 2, {.weights = hd::weight_order::in_out})[1].dim == 1);
  const std::vector<named_shape> conv{{"h.0.attn.c_attn.weight", {8, 24}}};
  CHECK(name_rules(conv, 2)[0].dim == 1);
  CHECK(name_rules(conv, 2, {.weights = hd::weight_order::out_in})[0].dim == 0);
  // Heads are counted along outputs, wherever they lie; explicit rules name dimensions of the parameter itself.
  const std::vector<named_shape> few{{"self_attn.k_proj.weight", {8, 16}}};
  CHECK_FALSE(name_rules(few, 2, {.head_dim = 4})[0].notes.splits_heads);
  CHECK(name_rules(few, 4, {.head_dim = 4})[0].notes.splits_heads);
  const std::vector<name_rule> given{{"k_proj.weight", 1}};
  CHECK(name_rules(few, 2, {.given = given})[0] == hd::parameter_rule{1, rule_reason::given, {}});
  // Along data flow too, with links in either spelling.
  const std::vector<hd::linear_link> links{{"mlp.fc1", "mlp/fc2"}};
  const std::vector<named_shape> pair{{"h.0.mlp.fc1.weight", {32, 8}}, {"h.0.mlp.fc2.weight", {8, 32}}};
  const auto rules = hd::dataflow_rules(pair, 4, {.links = links});
  CHECK(rules[0] == hd::parameter_rule{0, rule_reason::column, {}});
  CHECK(rules[1] == hd::parameter_rule{1, rule_reason::row, {}});
}

TEST_CASE("fused pairs, and matrices that every rank copies, are reported", "[layout][name_rules]") {
  const std::vector<named_shape> list{{"attn.kv_proj.weight", {32, 8}},    {"mlp.gate_up_proj.weight", {48, 8}},
                                      {"attn/kv_proj/kernel", {8, 32}},    {"attn.qkv_proj.weight", {24, 8}},
                                      {"mlp.gate_proj.weight", {48, 8}},   {"attn/kv/kernel", {8, 2, 16}},
                                      {"mlp/gate_up_proj/kernel", {8, 48}}};
  const auto rules = name_rules(list, 2);
  for (const std::size_t i : {0u, 1u, 2u, 3u, 6u}) {
    CAPTURE(list[i].path);
    CHECK(rules[i].notes.mixes_fused);
    CHECK_THAT(hd::to_string(rules[i]), Contains("equal chunks mix them"));
  }
  CHECK_FALSE(rules[4].notes.mixes_fused);
  CHECK_FALSE(rules[5].notes.mixes_fused);
  const std::vector<named_shape> unknown{
      {"fc.w", {8, 8}}, {"fc.b", {8}}, {"odd.weight", {7, 9}}, {"conv.weight", {8, 8, 3}}, {"fc/bias", {3, 8}}};
  const auto copied = name_rules(unknown, 2);
  for (const std::size_t i : {0u, 2u, 3u}) {
    CAPTURE(unknown[i].path);
    CHECK(copied[i].dim == -1);
    CHECK(copied[i].notes.copies_matrix);
    CHECK_THAT(hd::to_string(copied[i]), Contains("warning: every rank holds all of this matrix"));
  }
  CHECK_FALSE(copied[1].notes.copies_matrix);
  CHECK_FALSE(copied[4].notes.copies_matrix);
  const std::vector<name_rule> given{{"*", -1}};
  CHECK_FALSE(name_rules(unknown, 2, {.given = given})[0].notes.copies_matrix);
  CHECK_FALSE(name_rules(unknown, 1)[0].notes.copies_matrix);
}

TEST_CASE("q, k and v apart, and heads in a dimension of their own", "[layout][name_rules]") {
  const auto one = [](const named_shape& p, int m, std::int64_t head_dim = 0, std::span<const name_rule> given = {}) {
    const std::vector<named_shape> list{p};
    return name_rules(list, m, {.given = given, .head_dim = head_dim}).at(0);
  };
  CHECK_FALSE(one({"attn/qkv/kernel", {768, 3, 768}}, 4).notes.mixes_fused);
  CHECK_FALSE(one({"attn/qkv/kernel", {768, 3, 12, 64}}, 4).notes.mixes_fused);
  CHECK(one({"attn/qkv/kernel", {768, 2304}}, 4).notes.mixes_fused);
  CHECK(one({"attn/qkv/kernel", {64, 8, 48}}, 4).notes.mixes_fused);
  CHECK(one({"attn/qkv/kernel", {64, 8, 3}}, 3).notes.mixes_fused);
  // o by its heads is sound; by the elements of a head it is not, nor are q's.
  CHECK(one({"attn/o/kernel", {12, 64, 768}}, 4, 64) == hd::parameter_rule{0, rule_reason::attention_out, {}});
  CHECK(one({"attn/q/kernel", {768, 12, 64}}, 4, 64).notes.splits_heads);
  const std::vector<name_rule> by_heads{{"q/kernel", 1}}, by_elements{{"o/kernel", 1}}, outputs{{"k_proj/kernel", 1}};
  CHECK_FALSE(one({"attn/q/kernel", {768, 12, 64}}, 4, 64, by_heads).notes.splits_heads);
  CHECK(one({"attn/o/kernel", {12, 64, 768}}, 4, 64, by_elements).notes.splits_heads);
  CHECK(one({"attn/k_proj/kernel", {16, 8}}, 2, 8, outputs).notes.splits_heads);
  CHECK_FALSE(one({"attn/k_proj/kernel", {16, 16}}, 2, 8, outputs).notes.splits_heads);
  // The preferred dimension of a name that says nothing: outputs, or the other one than before.
  CHECK_FALSE(one({"fc1/kernel", {7, 8}}, 2).notes.fallback);
  CHECK(one({"fc1/kernel", {8, 7}}, 2).notes.fallback);
  const std::vector<named_shape> pair{{"fc1/kernel", {8, 8}}, {"fc2/kernel", {7, 8}}};
  CHECK_FALSE(name_rules(pair, 2)[0].notes.fallback);
  CHECK(name_rules(pair, 2)[1].notes.fallback);
}

TEST_CASE("explicit rules go first and the first match wins", "[layout][name_rules]") {
  const std::vector<name_rule> given{{"attn/*_proj/kernel", 0}, {"*_proj/kernel", -1}, {"nowhere", 3}};
  const std::vector<named_shape> list{
      {"h/attn/q_proj/kernel", {4, 4}}, {"h/mlp/up_proj/kernel", {4, 4}}, {"h/fc_in/kernel", {4, 4}}};
  auto rules = name_rules(list, 2, {.given = given});
  CHECK(rules[0] == hd::parameter_rule{0, rule_reason::given, {}});
  CHECK(rules[1] == hd::parameter_rule{-1, rule_reason::given, {}});
  CHECK(rules[2].dim == 1);
  CHECK_THROWS_WITH(hd::explicit_rules(list, given), Contains("no rule matches h/fc_in/kernel"));
  const std::vector<name_rule> all{{"fc_in/kernel", 1}, {"*", -1}};
  CHECK(hd::explicit_rules(list, all).at(2).dim == 1);
  CHECK(hd::explicit_rules(list, all).at(0).dim == -1);
  const std::vector<name_rule> wrong{{"fc_in/kernel", 2}};
  CHECK_THROWS_WITH(name_rules(list, 2, {.given = wrong}), Contains("a dimension that h/fc_in/kernel does not have"));
  CHECK_THROWS_AS(name_rules(list, 0), hd::layout_error);
  CHECK_THROWS_WITH(named_shape("x", {1, 1, 1, 1, 1}), Contains("at most 4"));
}

TEST_CASE("along real chains columns and rows alternate whatever the names", "[layout][name_rules]") {
  const std::vector<hd::linear_link> links{{"attn/c_attn", "attn/c_proj"}, {"mlp/c_fc", "mlp/c_proj"}};
  const auto gpt2 = read_lists("gpt2").at(0);
  // By name, GPT-2's layers come out in the wrong order ...
  CHECK(dim_of(gpt2, 4, "mlp/c_fc/kernel") == 0);
  CHECK(dim_of(gpt2, 4, "mlp/c_proj/kernel") == 1);
  // ... by data flow, each pair is columns, then rows.
  const auto rules = hd::dataflow_rules(gpt2.parameters, 4, {.links = links});
  int seen = 0;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const auto path = gpt2.parameters[i].path;
    if (!path.ends_with("kernel")) continue;
    const bool first =
        hd::detail::path_ends_with(path, "c_attn/kernel") || hd::detail::path_ends_with(path, "c_fc/kernel");
    CHECK(rules[i].dim == (first ? 1 : 0));
    CHECK(rules[i].why == (first ? rule_reason::column : rule_reason::row));
    CHECK(rules[i].notes.mixes_fused == hd::detail::path_ends_with(path, "c_attn/kernel"));
    ++seen;
  }
  CHECK(seen == 8);

  // Four layers in a row, the third too narrow to be cut: the chain starts anew after it.
  const std::vector<named_shape> list{
      {"a/kernel", {8, 8}}, {"b/kernel", {8, 8}}, {"c/kernel", {8, 3}}, {"d/kernel", {3, 8}}};
  const std::vector<hd::linear_link> chain{{"c", "d"}, {"b", "c"}, {"a", "b"}};
  const auto cut = hd::dataflow_rules(list, 2, {.links = chain});
  CHECK(cut[0].dim == 1);
  CHECK(cut[1].dim == 0);
  CHECK(cut[2].dim == -1);
  CHECK(cut[3].dim == 1);
  const std::vector<hd::linear_link> circle{{"a", "b"}, {"b", "a"}};
  CHECK_THROWS_WITH(hd::dataflow_rules(list, 2, {.links = circle}), Contains("come back to"));
}

TEST_CASE("linked layers have roles of their own and follow explicit rules", "[layout][name_rules]") {
  const auto dims = [](const std::vector<named_shape>& list, const std::vector<hd::linear_link>& links,
                       const std::vector<name_rule>& given = {}) {
    std::vector<int> result;
    for (const auto& rule : hd::dataflow_rules(list, 2, {.given = given, .links = links})) result.push_back(rule.dim);
    return result;
  };
  using numbers = std::vector<int>;
  const std::vector<named_shape> three{{"h/fc1/kernel", {8, 8}}, {"h/fc2/kernel", {8, 8}}, {"h/fc3/kernel", {8, 8}}};
  CHECK(dims(three, {{"fc1", "fc2"}, {"fc2", "fc3"}}) == numbers{1, 0, 1});
  CHECK(dims(three, {{"fc1", "h/fc2"}, {"fc2", "fc3"}}) == numbers{1, 0, 1});  // one layer, named in two ways
  CHECK(dims(three, {{"fc1", "fc2"}, {"fc2", "fc3"}}, {{"fc1/kernel", -1}}) == numbers{-1, 1, 0});
  CHECK(dims(three, {{"fc1", "fc2"}, {"fc2", "fc3"}}, {{"fc1/kernel", 0}}) == numbers{0, 1, 0});
  CHECK_THROWS_WITH(dims(three, {{"fc1", "fc4"}}), Contains("no kernel is named by fc4"));
  CHECK_THROWS_WITH(dims(three, {{"fcl", "fc2"}}), Contains("no kernel is named by fcl"));
  // Blocks of different shapes: the second cannot be cut by the outputs of its first layer.
  const std::vector<named_shape> blocks{
      {"0/fc1/kernel", {8, 8}}, {"0/fc2/kernel", {8, 8}}, {"1/fc1/kernel", {8, 7}}, {"1/fc2/kernel", {7, 8}}};
  CHECK(dims(blocks, {{"fc1", "fc2"}}) == numbers{1, 0, -1, 1});
}
