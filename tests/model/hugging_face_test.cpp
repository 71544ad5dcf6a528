// config.json: every key has its effect or is refused by name; models that transformers wrote become the right family.
#include "catch.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include <heddle/model/hugging_face/config.hpp>
#include <heddle/model/hugging_face/weights.hpp>
#include <heddle/model/kept_blocks.hpp>
#include <heddle/model/with_model.hpp>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
using nlohmann::json;

namespace {

json config_of(const std::string& model) {
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/golden/models/" + model + "/config.json");
  return json::parse(in);
}
// The config with one key changed, or removed where the value is discarded.
json with(json config, const std::string& key, json value) {
  if (value.is_discarded())
    config.erase(key);
  else
    config[key] = std::move(value);
  return config;
}
json without(json config, const std::string& key) {
  config.erase(key);
  return config;
}
std::string refusal(const json& config) {
  try {
    md::from_config(config);
  } catch (const hd::config_error& e) {
    return e.what();
  }
  return {};
}
md::llama_config llama_of(const json& config) {
  return std::get<md::llama_config>(md::from_config(config).config);
}

struct found_family {
  std::string name;
  template <class T>
  std::string operator()(std::type_identity<md::untied_gpt2<T>>, const md::gpt2_config&) const {
    return "untied gpt2";
  }
  template <class T>
  std::string operator()(std::type_identity<md::gpt2<T>>, const md::gpt2_config&) const {
    return "gpt2";
  }
  template <class T>
  std::string operator()(std::type_identity<md::llama<T>>, const md::llama_config&) const {
    return "llama";
  }
  template <class T>
  std::string operator()(std::type_identity<md::tied_llama<T>>, const md::llama_config&) const {
    return "tied llama";
  }
  template <class T, class How, bool Tied>
  std::string operator()(std::type_identity<md::qwen2<T, How, Tied>>, const md::qwen2_config&) const {
    return Tied ? "tied qwen2" : "qwen2";
  }
  template <class T, class How, bool Tied>
  std::string operator()(std::type_identity<md::qwen3<T, How, Tied>>, const md::qwen3_config&) const {
    return Tied ? "tied qwen3" : "qwen3";
  }
  template <class T, class How, bool LatentQueries>
  std::string operator()(std::type_identity<md::deepseek<T, How, LatentQueries>>, const md::deepseek_config&) const {
    return LatentQueries ? "deepseek" : "plain deepseek";
  }
  template <class T, class How, bool Tied>
  std::string operator()(std::type_identity<md::mistral<T, How, Tied>>, const md::mistral_config&) const {
    return Tied ? "tied mistral" : "mistral";
  }
  template <class T, class How, bool Tied>
  std::string operator()(std::type_identity<md::qwen3_moe<T, How, Tied>>, const md::qwen3_moe_config&) const {
    return Tied ? "tied qwen3_moe" : "qwen3_moe";
  }
  template <class T, class How, bool Tied>
  std::string operator()(std::type_identity<md::smollm3<T, How, Tied>>, const md::smollm3_config&) const {
    return Tied ? "tied smollm3" : "smollm3";
  }
  template <class T, class How, bool Tied>
  std::string operator()(std::type_identity<md::granite<T, How, Tied>>, const md::granite_config&) const {
    return Tied ? "tied granite" : "granite";
  }
  template <class T, class How, bool Tied>
  std::string operator()(std::type_identity<md::phi3<T, How, Tied>>, const md::phi3_config&) const {
    return Tied ? "tied phi3" : "phi3";
  }
  template <class T, class How, bool Tied>
  std::string operator()(std::type_identity<md::olmo2<T, How, Tied>>, const md::olmo2_config&) const {
    return Tied ? "tied olmo2" : "olmo2";
  }
  template <class T, class How, bool Tied>
  std::string operator()(std::type_identity<md::gemma2<T, How, Tied>>, const md::gemma2_config&) const {
    return Tied ? "tied gemma2" : "gemma2";
  }
  template <class T, class How, bool Tied>
  std::string operator()(std::type_identity<md::gpt_oss<T, How, Tied>>, const md::gpt_oss_config&) const {
    return Tied ? "tied gpt_oss" : "gpt_oss";
  }
  template <class T, class How, bool Tied>
  std::string operator()(std::type_identity<md::gemma3<T, How, Tied>>, const md::gemma3_config&) const {
    return Tied ? "tied gemma3" : "gemma3";
  }
  template <class T, class How, bool Tied>
  std::string operator()(std::type_identity<md::mixtral<T, How, Tied>>, const md::mixtral_config&) const {
    return Tied ? "tied mixtral" : "mixtral";
  }
};

// Files that have these tensors, of which only names and shapes are asked for.
struct fused_folder {
  inline static std::map<std::string, std::vector<std::int64_t>> shapes;
  struct tensor_in {
    std::string name;
    std::span<const std::int64_t> shape() const { return shapes.at(name); }
    std::string where() const { return "the tensor " + name; }
    void read(std::int64_t, std::span<float>) const {}
  };
  fused_folder(const std::filesystem::path&, const std::optional<hd::quantized_weights>&) {}
  bool contains(const std::string& name) const { return shapes.count(name) > 0; }
  bool is_scales(std::string_view) const { return false; }
  tensor_in tensor(const std::string& name) const { return {name}; }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, shape] : shapes) all.push_back(name);
    return all;
  }
};

}  // namespace

TEST_CASE("configurations that transformers wrote", "[model][hugging_face]") {
  const auto gpt2 = md::from_config(config_of("gpt2"));
  CHECK(gpt2.family() == "gpt2");
  CHECK(gpt2.tied);
  CHECK(std::get<md::gpt2_config>(gpt2.config) ==
        md::gpt2_config{.layers = 3, .heads = 4, .width = 20, .context = 17, .vocabulary = 53});
  CHECK(md::with_model<float>(gpt2, found_family{}) == "gpt2");
  const auto untied = md::from_config(config_of("gpt2_untied"));
  CHECK_FALSE(untied.tied);
  CHECK(md::with_model<float>(untied, found_family{}) == "untied gpt2");
  CHECK(md::hugging_face_names{"transformer."}("lm_head.weight").name == "lm_head.weight");
  CHECK(md::hugging_face_names{"model.transformer."}("lm_head.weight").name == "model.lm_head.weight");
  CHECK(md::hugging_face_names{"model."}("lm_head.weight").name == "model.lm_head.weight");

  const auto llama3 = md::from_config(config_of("llama3"));
  CHECK(llama3.family() == "llama");
  CHECK_FALSE(llama3.tied);
  CHECK(std::get<md::llama_config>(llama3.config) ==
        md::llama_config{.layers = 3,
                         .heads = 6,
                         .kv_heads = 2,
                         .width = 36,
                         .ffn = 29,
                         .context = 128,
                         .vocabulary = 51,
                         .theta = 500,
                         .scaling = {.factor = 8, .low = 1, .high = 4, .original = 64}});
  CHECK(md::with_model<float>(llama3, found_family{}) == "llama");

  const auto tied = md::from_config(config_of("llama_tied"));
  CHECK(tied.tied);
  CHECK(std::get<md::llama_config>(tied.config) == md::llama_config{.layers = 2,
                                                                    .heads = 4,
                                                                    .kv_heads = 4,
                                                                    .width = 24,
                                                                    .ffn = 23,
                                                                    .context = 32,
                                                                    .vocabulary = 47,
                                                                    .theta = 100,
                                                                    .scaling = hd::compute::linear_scaling(2.5),
                                                                    .epsilon = 1e-6});
  CHECK(md::with_model<double>(tied, found_family{}) == "tied llama");
}

TEST_CASE("configurations of Qwen that transformers wrote", "[model][hugging_face][qwen]") {
  const auto two = md::from_config(config_of("qwen2"));
  CHECK(two.family() == "qwen2");
  CHECK(md::with_model<float>(two, found_family{}) == "tied qwen2");
  CHECK(std::get<md::qwen2_config>(two.config).head_dim() == 4);
  const auto three = md::from_config(config_of("qwen3"));
  CHECK(md::with_model<float>(three, found_family{}) == "qwen3");
  CHECK(std::get<md::qwen3_config>(three.config).head_dim() == 6);
  CHECK(std::get<md::qwen3_config>(three.config).query_width() == 24);
  // transformers' own sizes where a file says none.
  CHECK(std::get<md::qwen3_config>(md::from_config({{"model_type", "qwen3"}}).config).head_dim() == 128);
  CHECK(refusal(with(config_of("qwen2"), "use_sliding_window", true)).find("'use_sliding_window': expected false") !=
        std::string::npos);
  CHECK(refusal(with(config_of("qwen3"), "layer_types", {"full_attention", "sliding_attention", "full_attention"}))
            .find("'layer_types'") != std::string::npos);
  CHECK(refusal(with(config_of("qwen3"), "num_hidden_layers", 2000000000))  // without a list of so many
            .find("expected \"full_attention\" for each of 2000000000 layers") != std::string::npos);
  CHECK(refusal(with(config_of("qwen3"), "attention_bias", true)).find("'attention_bias'") != std::string::npos);
}

TEST_CASE("configurations of Mistral that transformers wrote", "[model][hugging_face]") {
  const json written = config_of("mistral");
  const auto mistral = md::from_config(written);
  CHECK(mistral.family() == "mistral");
  CHECK(std::get<md::mistral_config>(mistral.config).window == 7);
  CHECK(md::with_model<float>(mistral, found_family{}) == "mistral");
  const auto later = md::from_config(with(written, "sliding_window", nullptr));  // without a window it is a Llama
  CHECK(later.family() == "llama");
  const md::llama_config shape = std::get<md::mistral_config>(mistral.config);
  CHECK(std::get<md::llama_config>(later.config) == shape);
  CHECK(std::get<md::mistral_config>(md::from_config({{"model_type", "mistral"}}).config).kv_heads == 8);
  CHECK_THROWS_WITH(md::from_config(with(written, "sliding_window", 0)),
                    Catch::Matchers::Contains("window must be 1 to 16777216, got 0"));
}
TEST_CASE("configurations of Qwen-3 with experts that transformers wrote", "[model][hugging_face][qwen]") {
  const json written = config_of("qwen3_moe");
  const auto about = md::from_config(written);
  CHECK(about.family() == "qwen3_moe");
  CHECK(md::with_model<float>(about, found_family{}) == "qwen3_moe");
  const auto config = std::get<md::qwen3_moe_config>(about.config);
  CHECK(config.normed);
  CHECK(std::tuple(config.ffn, config.experts, config.chosen, config.head_dim()) == std::tuple(11, 5, 2, 6));
  CHECK(to_string(config).find("qwen3_moe layers=3 heads=4 ") == 0);
  CHECK(md::with_model<float>(md::from_config(config_of("qwen3_moe_plain")), found_family{}) == "tied qwen3_moe");
  // transformers' own sizes where a file says none; experts under their other name.
  const auto plain = std::get<md::qwen3_moe_config>(
      md::from_config({{"model_type", "qwen3_moe"}, {"num_experts", 7}, {"num_experts_per_tok", 3}}).config);
  CHECK(std::tuple(plain.layers, plain.heads, plain.kv_heads, plain.width, plain.ffn, plain.experts, plain.normed) ==
        std::tuple(24, 32, 4, 2048, 768, 7, false));
  CHECK(to_string(plain).find(" normed=false") != std::string::npos);
  CHECK(refusal(with(written, "num_experts", 6)).find("key 'num_experts': expected 5, got 6") != std::string::npos);
  CHECK(refusal(with(written, "decoder_sparse_step", 2)).find("'decoder_sparse_step': expected 1, got 2") !=
        std::string::npos);
  CHECK(refusal(with(written, "mlp_only_layers", {0})).find("'mlp_only_layers': expected [], got [0]") !=
        std::string::npos);
}
TEST_CASE("configurations of SmolLM3 and Granite that transformers wrote", "[model][hugging_face]") {
  const json written = config_of("smollm3");
  const auto smol = md::from_config(written);
  CHECK(md::with_model<float>(smol, found_family{}) == "tied smollm3");
  CHECK(std::get<md::smollm3_config>(smol.config).still_every == 3);
  CHECK(to_string(std::get<md::smollm3_config>(smol.config)).find(" still_every=3") != std::string::npos);
  const auto left_out = md::from_config({{"model_type", "smollm3"}});
  CHECK(left_out.tied);
  CHECK(std::get<md::smollm3_config>(left_out.config).kv_heads == 4);
  CHECK(refusal(with(written, "no_rope_layers", {1, 0, 1, 1, 1}))
            .find("'no_rope_layers': expected 1 for each of 5 layers, and 0 for each 3-th") != std::string::npos);
  CHECK(refusal(with(written, "no_rope_layer_interval", 0))
            .find("'no_rope_layer_interval': expected a whole number of 1 or more") != std::string::npos);
  CHECK(refusal(with(written, "use_sliding_window", true)).find("'use_sliding_window'") != std::string::npos);
  md::smollm3_config wrong = md::smollm3_3b();
  wrong.still_every = 0;
  CHECK_THROWS_WITH(wrong.validate(), "heddle: smollm3_config.still_every must be at least 1, got 0");

  const json multiplied = config_of("granite");
  CHECK(md::with_model<float>(md::from_config(multiplied), found_family{}) == "granite");
  CHECK(md::with_model<float>(md::from_config(config_of("granite_tied")), found_family{}) == "tied granite");
  const auto granite = std::get<md::granite_config>(md::from_config(multiplied).config);
  CHECK(std::tuple(granite.embedding_multiplier, granite.score_multiplier, granite.residual_multiplier,
                   granite.logits_divisor) == std::tuple(3.5, 0.3, 0.6, 1.7));
  CHECK(to_string(granite).find(" multipliers=3.5,0.3,0.6,1.7") != std::string::npos);
  CHECK(refusal(with(multiplied, "logits_scaling", 0)).find("'logits_scaling': expected a positive number, got 0") !=
        std::string::npos);
  md::granite_config zero = granite;
  zero.residual_multiplier = 0;
  CHECK_THROWS_WITH(zero.validate(), "heddle: granite_config.residual_multiplier must be positive and finite, got 0");
}
TEST_CASE("configurations of Phi-3, OLMo-2 and YaRN that transformers wrote", "[model][hugging_face]") {
  const json written = config_of("phi3");
  const auto found = md::from_config(written);
  CHECK(md::with_model<float>(found, found_family{}) == "phi3");
  CHECK(found.family() == "phi3");
  const auto phi3 = std::get<md::phi3_config>(found.config);
  CHECK(std::tuple(phi3.window, phi3.rotating, phi3.longrope.count, phi3.longrope.original) ==
        std::tuple(0, 4, 2, 3.0));
  CHECK(phi3.longrope.extended[1] == 4.0);
  CHECK(phi3.longrope.table_factor == Approx(std::sqrt(1 + std::log(32) / std::log(3))).epsilon(1e-14));
  CHECK(to_string(phi3).find(" window=0 rotating=4 longrope=3,") != std::string::npos);
  const auto narrow = md::from_config(config_of("phi3_window"));
  CHECK(md::with_model<float>(narrow, found_family{}) == "tied phi3");
  CHECK(std::get<md::phi3_config>(narrow.config).window == 7);
  CHECK(std::get<md::phi3_config>(narrow.config).longrope.table_factor == 1);
  json rope = written["rope_parameters"];
  CHECK(refusal(with(written, "rope_parameters", with(rope, "short_factor", {1.0, 0.0})))
            .find("key 'short_factor': expected 2 positive numbers, at most 64, got [1.0,0.0]") != std::string::npos);
  CHECK(refusal(with(written, "rope_parameters", with(rope, "rope_type", "llama3"))).find("\"longrope\"") !=
        std::string::npos);
  // The part that rotates is above 0 and up to 1, and at least two of six elements, wherever it is said.
  for (const auto& [part, says] : std::vector<std::pair<double, const char*>>{
           {1e300, "expected a number above 0 and up to 1, got 1e+300"},
           {1.001, "expected a number above 0 and up to 1, got 1.001"},
           {0.0, "expected a positive number, got 0.0"},
           {-0.5, "expected a positive number, got -0.5"},
           {0.001, "expected a part of a head's 6 elements that is at least 2 of them, got 0.001"},
           {0.3, "expected a part of a head's 6 elements that is at least 2 of them, got 0.3"}}) {
    const std::string text = std::string("key 'partial_rotary_factor': ") + says;
    CHECK_THAT(refusal(with(written, "partial_rotary_factor", part)), Catch::Contains(text));
    CHECK_THAT(refusal(with(written, "rope_parameters", with(rope, "partial_rotary_factor", part))),
               Catch::Contains(text));
  }
  const json whole = {{"rope_type", "default"}, {"partial_rotary_factor", 1}};
  CHECK(std::get<md::phi3_config>(md::from_config(with(written, "rope_parameters", whole)).config).rotating == 0);
  CHECK(refusal(with(written, "lm_head_bias", true)).find("'lm_head_bias': expected false, got true") !=
        std::string::npos);
  md::phi3_config odd = phi3;
  odd.rotating = 3;
  CHECK_THROWS_WITH(odd.validate(), "heddle: phi3_config.rotating must be an even number of 0 to 6, got 3");
  odd.rotating = 6;
  CHECK_THROWS_WITH(odd.validate(),
                    "heddle: phi3_config.longrope.count must be 3, a factor for each pair that "
                    "rotates, and at most 64, got 2");

  CHECK(md::with_model<float>(md::from_config(config_of("olmo2")), found_family{}) == "olmo2");
  CHECK(refusal(with(config_of("olmo2"), "attention_bias", true)).find("'attention_bias'") != std::string::npos);
  const auto yarn = std::get<md::llama_config>(md::from_config(config_of("llama_yarn")).config);
  CHECK(yarn.yarn == hd::compute::yarn_scaling{.factor = 8, .fast = 4, .slow = 1, .original = 16});
  CHECK(to_string(yarn).find(" yarn=8,4,1,16,") != std::string::npos);
  const auto qwen = std::get<md::qwen2_config>(md::from_config(config_of("qwen2_yarn")).config);
  CHECK_FALSE(qwen.yarn.whole);
  CHECK(qwen.yarn.table_factor() == 0.9);
  CHECK(to_string(qwen).find(",parts") != std::string::npos);
  const auto dynamic = std::get<md::qwen3_config>(md::from_config(config_of("qwen3_dynamic")).config);
  CHECK(dynamic.yarn.factor == 1);
  CHECK(dynamic.scaling.factor == 1);
}
TEST_CASE("configurations of Gemma-3 that transformers wrote", "[model][hugging_face]") {
  const json written = config_of("gemma3");
  const auto found = md::from_config(written);
  CHECK(md::with_model<float>(found, found_family{}) == "tied gemma3");
  CHECK(found.family() == "gemma3_text");
  const auto c = std::get<md::gemma3_config>(found.config);
  CHECK(std::tuple(c.window, c.global_every, c.theta, c.local_theta, c.query_scalar) ==
        std::tuple(7, 3, 1000.0, 100.0, 5.0));
  CHECK(c.scaling == hd::compute::linear_scaling(2.5));
  CHECK(c.embedding_multiplier() == std::sqrt(20.0));
  constexpr double constant = md::gemma3_1b().embedding_multiplier();
  CHECK(constant == Approx(std::sqrt(1152.0)).epsilon(1e-15));
  CHECK(to_string(c).find("gemma3 layers=4 ") == 0);
  CHECK(to_string(c).find(" window=7 global_every=3 local_theta=100 query_scalar=5") != std::string::npos);
  const auto left_out = md::from_config({{"model_type", "gemma3_text"}});
  CHECK(left_out.tied);
  CHECK(std::get<md::gemma3_config>(left_out.config).global_every == 6);
  CHECK(refusal(with(written, "attn_logit_softcapping", 50.0))
            .find("'attn_logit_softcapping': expected null, got 50.0") != std::string::npos);
  CHECK(refusal(with(written, "use_bidirectional_attention", true)).find("expected false, got true") !=
        std::string::npos);
  CHECK(
      refusal(with(written, "layer_types", {"full_attention", "sliding_attention"})).find("'layer_types': expected") !=
      std::string::npos);
  const std::string near = "sliding_attention", far = "full_attention";
  CHECK(refusal(with(written, "layer_types", {near, far, far, near})).find("of 4 layers") != std::string::npos);
  json rope = written["rope_parameters"];
  rope[near] = {{"rope_type", "linear"}, {"factor", 2}};
  CHECK(refusal(with(written, "rope_parameters", rope)).find("expected rotary positions without scaling") !=
        std::string::npos);
  md::gemma3_config wrong = c;
  wrong.global_every = 0;
  CHECK_THROWS_WITH(wrong.validate(), "heddle: gemma3_config.global_every must be at least 1, got 0");
  CHECK(md::gemma3_1b().flops_per_token(512) < md::gemma3_1b().flops_per_token(1024));
  // Two of eight layers are global: counted and described operations are the same.
  md::gemma3_config small = c;
  small.layers = 8;
  small.global_every = 4;
  CHECK(md::layers::training_flops(md::describe_gemma3(small), 9) == Approx(small.flops_per_token(9)));
}
TEST_CASE("configurations of Gemma-2 that transformers wrote", "[model][hugging_face]") {
  const json written = config_of("gemma2");
  const auto found = md::from_config(written);
  CHECK(md::with_model<float>(found, found_family{}) == "tied gemma2");
  CHECK(found.family() == "gemma2");
  const auto c = std::get<md::gemma2_config>(found.config);
  CHECK(std::tuple(c.window, c.global_every, c.theta, c.query_scalar, c.score_cap, c.logit_cap) ==
        std::tuple(7, 2, 1000.0, 5.0, 2.5, 7.0));
  CHECK(to_string(c).find("gemma2 layers=4 ") == 0);
  CHECK(to_string(c).find(" window=7 global_every=2 query_scalar=5 caps=2.5,7") != std::string::npos);
  const auto left_out = md::from_config({{"model_type", "gemma2"}});
  CHECK(left_out.tied);
  CHECK(std::get<md::gemma2_config>(left_out.config) == md::gemma2_2b());
  CHECK(refusal(with(written, "attn_logit_softcapping", nullptr))
            .find("'attn_logit_softcapping': expected a positive number, got null") != std::string::npos);
  CHECK(refusal(with(written, "final_logit_softcapping", -1)).find("'final_logit_softcapping'") != std::string::npos);
  CHECK(refusal(with(written, "hidden_activation", "gelu")).find("'hidden_activation'") != std::string::npos);
  CHECK(refusal(with(written, "rope_local_base_freq", 100)).find("'rope_local_base_freq'") != std::string::npos);
  md::gemma2_config wrong = c;
  wrong.score_cap = 0;
  CHECK_THROWS_WITH(wrong.validate(), "heddle: gemma2_config.score_cap must be positive and finite, got 0");
  CHECK(md::layers::training_flops(md::describe_gemma2(c), 9) == Approx(c.flops_per_token(9)));
  CHECK(std::get<md::gemma2_config>(md::with_blocks(found, "1,3").config).global_every == 1);
}
TEST_CASE("configurations of GPT-OSS that transformers wrote", "[model][hugging_face]") {
  const json written = config_of("gpt_oss");
  const auto found = md::from_config(written);
  CHECK(md::with_model<float>(found, found_family{}) == "gpt_oss");
  CHECK(found.family() == "gpt_oss");
  const auto c = std::get<md::gpt_oss_config>(found.config);
  CHECK(std::tuple(c.window, c.global_every, c.theta, c.experts, c.chosen, c.head_dim(), c.yarn.factor, c.yarn.whole) ==
        std::tuple(7, 2, 1000.0, 6, 2, 6, 8.0, false));
  CHECK(to_string(c).find("gpt_oss layers=4 ") == 0);
  CHECK(to_string(c).find(" experts=6 chosen=2 window=7 global_every=2") != std::string::npos);
  const auto left_out = md::from_config({{"model_type", "gpt_oss"}});
  CHECK_FALSE(left_out.tied);
  CHECK(std::get<md::gpt_oss_config>(left_out.config) == md::gpt_oss_120b());
  CHECK(refusal(with(written, "swiglu_limit", 5.0)).find("'swiglu_limit': expected 7.0, got 5.0") != std::string::npos);
  CHECK(refusal(with(written, "attention_bias", false)).find("'attention_bias'") != std::string::npos);
  CHECK(refusal(with(written, "experts_per_token", 3)).find("'experts_per_token': expected 2, got 3") !=
        std::string::npos);
  CHECK(refusal(with(written, "layer_types", json::array())).find("'layer_types'") != std::string::npos);
  md::gpt_oss_config wrong = c;
  wrong.window = 0;
  CHECK_THROWS_WITH(wrong.validate(), "heddle: gpt_oss_config.window must be 1 to 16777216, got 0");
  CHECK(md::layers::count_parameters(md::describe_gpt_oss(c)) == c.parameters());
  CHECK(md::layers::training_flops(md::describe_gpt_oss(c), 9) == Approx(c.flops_per_token(9)));
  CHECK(std::get<md::gpt_oss_config>(md::with_blocks(found, "1,3").config).global_every == 1);
}
TEST_CASE("configurations of Mixtral that transformers wrote", "[model][hugging_face][mixtral]") {
  const json written = config_of("mixtral");
  const auto mixtral = md::from_config(written);
  CHECK(mixtral.family() == "mixtral");
  CHECK_FALSE(mixtral.tied);
  CHECK(std::get<md::mixtral_config>(mixtral.config) == md::mixtral_config{{.layers = 3,
                                                                            .heads = 6,
                                                                            .kv_heads = 2,
                                                                            .width = 24,
                                                                            .ffn = 11,
                                                                            .context = 32,
                                                                            .vocabulary = 43,
                                                                            .theta = 1000},
                                                                           5,
                                                                           2});
  CHECK(md::with_model<float>(mixtral, found_family{}) == "mixtral");
  CHECK(md::with_model<float, md::megatron_sequence<>>(
      mixtral, [](auto, const auto& c) { return to_string(c).rfind("mixtral ", 0) == 0; }));
  CHECK(md::with_model<float>(md::from_config(with(written, "tie_word_embeddings", true)), found_family{}) ==
        "tied mixtral");
  // transformers' own sizes where a file says none: those of Mixtral 8x7B, with another context.
  md::mixtral_config published = md::mixtral_8x7b();
  published.context = 131072;
  CHECK(std::get<md::mixtral_config>(md::from_config({{"model_type", "mixtral"}}).config) == published);
  CHECK(std::get<md::mixtral_config>(md::from_config(with(written, "num_key_value_heads", nullptr)).config).kv_heads ==
        6);
  CHECK(refusal(without(written, "router_aux_loss_coef")).empty());
  for (const auto& [key, value, says] : std::vector<std::tuple<const char*, json, const char*>>{
           {"output_router_logits", true, "expected false, got true"},
           {"router_jitter_noise", 0.1, "expected 0.0, got 0.1"},
           {"router_aux_loss_coef", "0.1", "expected a number, got \"0.1\""},
           {"sliding_window", 4096, "expected null, got 4096"},
           {"num_local_experts", -1, "expected a whole number of 0 to 2147483647, got -1"}})
    CHECK_THAT(refusal(with(written, key, value)), Catch::Contains("key '" + std::string(key) + "': " + says));
  CHECK_THAT(refusal(with(written, "num_experts", 4)), Catch::Contains("unknown key 'num_experts', which is 4 and"));
  CHECK_THAT(refusal(with(written, "num_experts_per_tok", 6)),
             Catch::Contains("mixtral_config.chosen must be 1 to 5, got 6"));
  CHECK_THAT(refusal(with(written, "num_local_experts", 0)), Catch::Contains("mixtral_config.experts must be 1 to"));
  json large = with(with(written, "num_hidden_layers", 65536), "num_local_experts", 65536);
  for (const char* key : {"hidden_size", "intermediate_size"})
    large = with(large, key, 1048572);  // a multiple of the heads
  CHECK_THAT(refusal(large), Catch::Contains("the experts of a mixtral_config must have at most 2^61 parameters"));
}

TEST_CASE("configurations of DeepSeek-V3 that transformers wrote", "[model][hugging_face][deepseek]") {
  const json written = config_of("deepseek");
  const auto deepseek = md::from_config(written);
  CHECK(deepseek.family() == "deepseek_v3");
  CHECK_FALSE(deepseek.tied);
  md::deepseek_config want = md::deepseek_tiny();
  want.layers = 3;
  want.heads = 6;
  want.context = 32;
  want.vocabulary = 43;
  want.epsilon = 1e-5;
  CHECK(std::get<md::deepseek_config>(deepseek.config) == want);
  CHECK(md::with_model<float>(deepseek, found_family{}) == "deepseek");
  CHECK(deepseek.more_blocks == 1);
  const auto whole = md::from_config({{"model_type", "deepseek_v3"}});  // transformers' own sizes
  CHECK(std::get<md::deepseek_config>(whole.config) == md::deepseek_config{});
  CHECK(whole.more_blocks == 0);
  for (const auto& [key, value, says] : std::vector<std::tuple<const char*, json, const char*>>{
           {"first_k_dense_replace", nullptr, "expected a whole number of 0 to 2147483647, got null"},
           {"q_lora_rank", 0, "expected null or a whole number of 1 or more, got 0"},
           {"q_lora_rank", "1", "expected a whole number of 0 to 2147483647, got \"1\""},
           {"scoring_func", "softmax", "expected \"sigmoid\", got \"softmax\""},
           {"qk_head_dim", 8, "expected 7, got 8"},
           {"num_key_value_heads", 3, "expected 6, got 3"},
           {"tie_word_embeddings", true, "expected false, got true"},
           {"attention_bias", true, "expected false, got true"}})
    CHECK_THAT(refusal(with(written, key, value)), Catch::Contains("key '" + std::string(key) + "': " + says));
  CHECK(refusal(without(written, "first_k_dense_replace")).empty());
  // Beyond the last block: all are dense.
  for (const int leading : {3, 4, 2147483647})
    CHECK(
        std::get<md::deepseek_config>(md::from_config(with(written, "first_k_dense_replace", leading)).config).dense ==
        3);
  CHECK_THAT(refusal(with(written, "num_experts_per_tok", 5)),
             Catch::Contains("deepseek_config.chosen must be 1 to 4, got 5"));
  CHECK_THAT(refusal(with(written, "n_group", 4)),
             Catch::Contains("deepseek_config.groups must divide experts = 6, got 4"));
}

TEST_CASE("configurations of DeepSeek-V2", "[model][hugging_face][deepseek]") {
  const json written = config_of("deepseek_v2"), lite = config_of("deepseek_v2_lite");
  const auto second = md::from_config(written);
  CHECK(second.family() == "deepseek_v2");
  CHECK(md::with_model<float>(second, found_family{}) == "deepseek");
  CHECK(md::with_model<float>(md::from_config(lite), found_family{}) == "plain deepseek");
  const auto& c = std::get<md::deepseek_config>(second.config);
  CHECK(c.softmax);
  CHECK(c.choice() == hd::compute::grouped_choice{.groups = 3, .kept = 2, .best = 1, .normed = false, .scale = 1.7});
  CHECK(c.yarn.table_factor() == Approx((0.07 * std::log(8) + 1) / (0.12 * std::log(8) + 1)));
  CHECK(c.yarn.score_factor() == Approx(std::pow(0.12 * std::log(8) + 1, 2)));
  CHECK(std::get<md::deepseek_config>(md::from_config(lite).config).choice() ==
        hd::compute::grouped_choice{.groups = 1, .kept = 1, .best = 1, .normed = false, .scale = 1});
  // No groups, whatever n_group says, where experts are chosen from all of them.
  const json greedy = with(written, "topk_method", "greedy");
  CHECK(std::get<md::deepseek_config>(md::from_config(greedy).config).groups == 1);
  CHECK(md::from_config(without(greedy, "n_group")).config == md::from_config(with(greedy, "n_group", nullptr)).config);
  CHECK(refusal(with(written, "norm_topk_prob", nullptr)).empty());
  for (const auto& [key, value, says] : std::vector<std::tuple<const char*, json, const char*>>{
           {"norm_topk_prob", true, "expected false, got true"},
           {"topk_method", "noaux_tc", "expected \"greedy\" or \"group_limited_greedy\", got \"noaux_tc\""},
           {"scoring_func", "sigmoid", "expected \"softmax\", got \"sigmoid\""},
           {"num_experts_per_tok", nullptr, "expected a whole number of 0 to 2147483647, got null"},
           {"n_group", nullptr, "expected a whole number of 0 to 2147483647, got null"},
           {"topk_group", "1", "expected a whole number of 0 to 2147483647, got \"1\""},
           {"mlp_bias", true, "expected false, got true"},
           {"attention_bias", true, "expected false, got true"},
           {"moe_layer_freq", 2, "expected 1, got 2"},
           {"architectures", {"DeepseekV3ForCausalLM"}, "expected [\"DeepseekV2ForCausalLM\"], got"}})
    CHECK_THAT(refusal(with(written, key, value)), Catch::Contains("key '" + std::string(key) + "': " + says));
  CHECK_THAT(refusal(with(written, "rope_interleave", true)), Catch::Contains("unknown key 'rope_interleave'"));
  CHECK_THAT(refusal(with(written, "num_nextn_predict_layers", 1)),
             Catch::Contains("unknown key 'num_nextn_predict_layers', which is 1 and"));
  CHECK(refusal(with(with(written, "head_dim", nullptr), "qk_head_dim", nullptr)).empty());
  CHECK_THAT(refusal(without(written, "num_experts_per_tok")),
             Catch::Contains("key 'num_experts_per_tok': expected a whole number"));
  // Those of deepseek-ai/DeepSeek-V2-Lite and DeepSeek-V2, of 15.7 and 236 billion parameters.
  json published = json::parse(R"({
    "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"}, "aux_loss_alpha": 0.001, "bos_token_id": 100000,
    "eos_token_id": 100001, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "norm_topk_prob": false, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
    "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": true,
    "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy", "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1", "use_cache": true, "v_head_dim": 128, "vocab_size": 102400})");
  CHECK(std::get<md::deepseek_config>(md::from_config(published).config).parameters() == 15706484224);
  published.update({{"hidden_size", 5120},
                    {"intermediate_size", 12288},
                    {"moe_intermediate_size", 1536},
                    {"n_group", 8},
                    {"n_routed_experts", 160},
                    {"num_attention_heads", 128},
                    {"num_hidden_layers", 60},
                    {"num_key_value_heads", 128},
                    {"q_lora_rank", 1536},
                    {"routed_scaling_factor", 16.0},
                    {"topk_group", 3},
                    {"topk_method", "group_limited_greedy"}});
  CHECK(std::get<md::deepseek_config>(md::from_config(published).config).parameters() == 235741434880);
}

TEST_CASE("leading blocks, queries without latent vectors, and YaRN", "[model][hugging_face][deepseek]") {
  const json dense = config_of("deepseek_dense"), plain = config_of("deepseek_plain");
  const auto first = std::get<md::deepseek_config>(md::from_config(dense).config);
  CHECK(first.dense == 2);
  CHECK(first.dense_ffn == 17);
  const hd::compute::yarn_scaling yarn{
      .factor = 8, .fast = 8, .slow = 1, .original = 16, .mscale = 0.7, .mscale_all = 1.2};
  CHECK(first.yarn == yarn);
  CHECK(first.theta == 10000);
  CHECK(md::with_model<float>(md::from_config(dense), found_family{}) == "deepseek");
  CHECK(to_string(first).find(" dense=2 dense_ffn=17 ") != std::string::npos);
  CHECK(to_string(first).find(" yarn=8 fast=8 slow=1 original=16 ") != std::string::npos);
  const auto second = std::get<md::deepseek_config>(md::from_config(plain).config);
  CHECK(second.query_latent == 0);
  CHECK(second.dense == 1);
  CHECK(md::with_model<float>(md::from_config(plain), found_family{}) == "plain deepseek");
  CHECK_THROWS_AS(md::describe_deepseek(second), hd::config_error);
  CHECK_THROWS_AS((md::describe_deepseek<false>(first)), hd::config_error);
  const json older = with(without(dense, "rope_parameters"), "rope_scaling",
                          {{"type", "yarn"},
                           {"factor", 8},
                           {"beta_fast", 8},
                           {"mscale", 0.7},
                           {"mscale_all_dim", 1.2},
                           {"original_max_position_embeddings", 16}});
  CHECK(std::get<md::deepseek_config>(md::from_config(older).config) == first);
  const auto rope = [&](const char* key, json value) {
    return with(dense, "rope_parameters", with(dense.at("rope_parameters"), key, std::move(value)));
  };
  CHECK_THAT(refusal(rope("factor", -1)), Catch::Contains("rope_parameters, key 'factor': expected a positive number"));
  CHECK_THAT(refusal(rope("beta_slow", 9)), Catch::Contains("yarn.fast must be at least yarn.slow = 9, got 8"));
  for (const char* const key : {"mscale", "mscale_all_dim", "attention_factor"}) {
    CHECK_THAT(refusal(rope(key, -0.5)), Catch::Contains("rope_parameters, key '" + std::string(key) +
                                                         "': expected a number of 0 or more, got -0.5"));
    CHECK_THAT(refusal(rope(key, "1")), Catch::Contains("expected a number of 0 or more"));
    CHECK_THAT(refusal(rope(key, 1e13)), Catch::Contains("must be 0 to 1e12, got 1e+13"));
    CHECK(refusal(rope(key, nullptr)).empty());
  }
  const auto yarn_with = [&](const char* key, json value) {
    return std::get<md::deepseek_config>(md::from_config(rope(key, std::move(value))).config).yarn;
  };
  CHECK(yarn_with("mscale", 0) == yarn_with("mscale", nullptr));  // 0 and null are no mscale
  CHECK(yarn_with("mscale_all_dim", 0) == yarn_with("mscale_all_dim", nullptr));
  CHECK_FALSE(yarn_with("attention_factor", nullptr).attention_factor.has_value());
  CHECK(yarn_with("attention_factor", 0).attention_factor == 0.0);  // given as it is
  CHECK(yarn_with("attention_factor", 0.5).table_factor() == 0.5);
  CHECK_THAT(refusal(rope("stretch", 9)),
             Catch::Contains("heddle: config.json, rope_parameters: unknown key 'stretch', which is 9 and") &&
                 Catch::Contains("give --ignore-key rope_parameters.stretch"));
  CHECK_THAT(refusal(with(dense, "rope_scaling", {{"type", "linear"}, {"factor", 2}})),
             Catch::Contains("key 'rope_scaling': expected nothing beside rope_parameters"));
}

// The config.json of deepseek-ai/DeepSeek-V3.
TEST_CASE("the published DeepSeek-V3 has 671,026,419,200 parameters", "[model][hugging_face][deepseek]") {
  json published = json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "aux_loss_alpha": 0.001, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3,
    "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432,
    "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "pretraining_tp": 1,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                            "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": true,
    "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1", "use_cache": true, "v_head_dim": 128, "vocab_size": 129280})");
  const auto model = md::from_config(published);
  const auto& c = std::get<md::deepseek_config>(model.config);
  md::deepseek_config want;
  want.context = 163840;
  want.yarn = {.factor = 40, .original = 4096, .mscale = 1, .mscale_all = 1};
  CHECK(c == want);
  // Of 61 blocks, embedding and head, with the selection biases of 58 routers, without the module that predicts one more token.
  CHECK(c.parameters() == 671026419200);
  CHECK(md::layers::count_parameters(md::describe_deepseek(c)) == 671026419200);
  CHECK(c.parameters() - 58 * 256 == 671026404352);
  CHECK(c.yarn.table_factor() == 1);
  CHECK(c.yarn.score_factor() == Approx(1.36888794541139 * 1.36888794541139).epsilon(1e-12));
  CHECK(model.scales == hd::scale_blocks{128, 128});
  CHECK(model.more_blocks == 1);
  CHECK(md::is_saved_constant(model, "model.layers.61.eh_proj.weight"));
  CHECK_FALSE(md::is_saved_constant(model, "model.layers.6.mlp.gate.weight"));
  CHECK_FALSE(md::is_saved_constant(model, "model.layers.62.mlp.gate.weight"));
  // As many more as a number can say: each name is compared once.
  published["num_nextn_predict_layers"] = (std::numeric_limits<int>::max)();
  const auto many = md::from_config(published);
  CHECK(md::is_saved_constant(many, "model.layers.2147483707.eh_proj.weight"));
  CHECK(md::is_saved_constant(many, "model.layers.61.eh_proj.weight"));
  for (const char* const name :
       {"model.layers.60.eh_proj.weight", "model.layers.2147483708.eh_proj.weight", "model.layers.061.eh_proj.weight",
        "model.layers.61", "model.layers..eh_proj.weight", "model.layers.-62.eh_proj.weight",
        "model.layers.18446744073709551677.eh_proj.weight", "model.layers.61x.eh_proj.weight", "model.layers.", ""}) {
    CAPTURE(name);
    CHECK_FALSE(md::is_saved_constant(many, name));
  }
}

TEST_CASE("blocks of a model, by their numbers in files", "[model][hugging_face][blocks]") {
  using Catch::Matchers::Contains;
  CHECK(md::parse_blocks("0-3,8-11", 12).numbers == std::vector<int>{0, 1, 2, 3, 8, 9, 10, 11});
  CHECK(md::parse_blocks("5", 6).numbers == std::vector<int>{5});
  CHECK(md::parse_blocks("0-0,2", 3).numbers == std::vector<int>{0, 2});
  const auto refused = [](const char* text) -> std::string {
    try {
      static_cast<void>(md::parse_blocks(text, 12));
    } catch (const hd::config_error& e) {
      return e.what();
    }
    return "taken";
  };
  for (const char* text : {"", "a", "1,", ",1", "1-", "-1", "1--2", "1-2-3", "1 ,2", "+1", "0x1", "1.5"}) {
    CAPTURE(text);
    CHECK_THAT(refused(text), Contains("expected numbers and ranges with commas between them, as in 0-3,8-11, got '"));
  }
  for (const char* text : {"12", "0-12", "99999999999999999999", "3,4-2147483648"}) {
    CAPTURE(text);
    CHECK_THAT(refused(text), Contains(" is beyond the model, whose 12 blocks are 0 to 11"));
  }
  CHECK_THAT(refused("1,1"), Contains("block 1 is named twice"));
  CHECK_THAT(refused("0-3,3-5"), Contains("block 3 is named twice"));
  CHECK_THAT(refused("4-6,2-9"), Contains("block 4 is named twice"));
  CHECK_THAT(refused("8,4-6"), Contains("block 4 is named behind block 8; blocks keep their order"));
  CHECK_THAT(refused("3-1"), Contains("block 1 is named behind block 3; blocks keep their order"));

  const auto llama = md::with_blocks(md::from_config(config_of("llama3")), "0,2");
  CHECK(std::get<md::llama_config>(llama.config).layers == 2);
  const md::hugging_face_names names{"", false, llama.kept};
  CHECK(names("model.layers.1.mlp.up_proj.weight").name == "model.layers.2.mlp.up_proj.weight");
  CHECK(names("model.norm.weight").name == "model.norm.weight");
  CHECK(md::is_saved_constant(llama, "model.layers.1.mlp.up_proj.weight"));
  CHECK_FALSE(md::is_saved_constant(llama, "model.layers.2.mlp.up_proj.weight"));
  CHECK_FALSE(md::is_saved_constant(llama, "model.layers.3.mlp.up_proj.weight"));  // no block of the file
  const auto gpt2 = md::with_blocks(md::from_config(config_of("gpt2")), "2");
  CHECK(md::hugging_face_names{"transformer.", false, gpt2.kept}("h.0.attn.c_attn.bias").name ==
        "transformer.h.2.attn.c_attn.bias");
  CHECK(md::is_saved_constant(gpt2, "transformer.h.1.attn.c_attn.bias"));
  // Blocks keep their kinds: of four of this Gemma-3 the third sees all tokens.
  const auto gemma = md::from_config(config_of("gemma3"));
  CHECK(std::get<md::gemma3_config>(md::with_blocks(gemma, "0,2").config).global_every == 2);
  CHECK(std::get<md::gemma3_config>(md::with_blocks(gemma, "0-1,3").config).global_every == 4);
  CHECK_THROWS_WITH(md::with_blocks(gemma, "2-3"), Contains("one block in 3 of this model is of a kind of its own") &&
                                                       Contains("block 3 would be number 1, of the other kind"));
  CHECK(std::get<md::deepseek_config>(md::with_blocks(md::from_config(config_of("deepseek_dense")), "1-3").config)
            .dense == 1);
}

TEST_CASE("matrices in 8 bits with scales of blocks, of every family", "[model][hugging_face][float8]") {
  const json given = {{"quant_method", "fp8"}, {"weight_block_size", {64, 32}}};
  for (const char* model : {"gpt2", "llama3", "qwen2", "qwen3", "mixtral", "deepseek"}) {
    const json config = config_of(model);
    CAPTURE(model);
    CHECK_FALSE(md::from_config(config).scales);
    CHECK_FALSE(md::from_config(with(config, "quantization_config", nullptr)).scales);
    const auto in_8_bits = md::from_config(with(config, "quantization_config", given));
    CHECK(in_8_bits.scales == hd::scale_blocks{64, 32});
    CHECK(in_8_bits.config == md::from_config(config).config);
  }
  const json qwen = config_of("qwen3");
  const auto scales_of = [&](const json& quantization) {
    return md::from_config(with(qwen, "quantization_config", quantization)).scales;
  };
  CHECK(scales_of(without(given, "weight_block_size")) == hd::scale_blocks{128, 128});
  json more = given;
  more.update({{"fmt", "e4m3"},
               {"activation_scheme", "dynamic"},
               {"dequantize", true},
               {"scale_fmt", "ue8m0"},
               {"modules_to_not_convert", {"lm_head"}}});
  CHECK(scales_of(more) == hd::scale_blocks{64, 32});
  const auto error_of = [&](const json& quantization) {
    return refusal(with(qwen, "quantization_config", quantization));
  };
  CHECK_THAT(error_of(8), Catch::Contains("config.json, quantization_config should be an object, got 8"));
  CHECK_THAT(
      error_of(json::object()),
      Catch::Contains(
          "quantization_config, key 'quant_method': expected \"fp8\" or \"fbgemm_fp8\" or \"gptq\" or \"awq\" or "
          "\"compressed-tensors\" or \"mxfp4\", got nothing"));
  for (const auto& [key, value, says] : std::vector<std::tuple<const char*, json, const char*>>{
           {"quant_method", "bitsandbytes",
            "expected \"fp8\" or \"fbgemm_fp8\" or \"gptq\" or \"awq\" or \"compressed-tensors\" or \"mxfp4\", got "
            "\"bitsandbytes\""},
           {"fmt", "e5m2", "expected \"e4m3\", got \"e5m2\""},
           {"activation_scheme", "none", "expected \"dynamic\" or \"static\", got \"none\""},
           {"dequantize", 1, "expected true or false, got 1"},
           {"weight_block_size", {128}, "expected null or two whole numbers of 1 to 1048576, got [128]"},
           {"weight_block_size", {128, 0}, "expected null or two whole numbers of 1 to 1048576, got [128,0]"},
           {"weight_block_size", {-128, 128}, "expected null or two whole numbers"},
           {"weight_block_size", {128, 1.5}, "expected null or two whole numbers"},
           {"weight_block_size", {128, 1048577}, "expected null or two whole numbers"},
           {"weight_block_size", {18446744073709551615u, 128}, "expected null or two whole numbers"}})
    CHECK_THAT(error_of(with(given, key, value)), Catch::Contains("key '" + std::string(key) + "': " + says));
  CHECK_THAT(error_of(with(given, "bits", 4)),
             Catch::Contains("config.json, quantization_config: unknown key 'bits', which is 4 and"));
}

TEST_CASE("how files have matrices in fewer bits, by method, and what is not read", "[model][hugging_face]") {
  using form = hd::quantized_weights::form;
  constexpr std::int64_t all = hd::scale_blocks::whole;
  const json qwen = config_of("qwen3");
  const auto read = [&](const json& quantization) {
    return md::from_config(with(qwen, "quantization_config", quantization)).scales.value();
  };
  json gptq = {{"quant_method", "gptq"}, {"bits", 3}, {"group_size", 64}, {"desc_act", true}, {"meta", {{"x", 1}}}};
  hd::quantized_weights want(form::gptq, 3, 64);
  want.zeros_one_less = true;
  CHECK(read(gptq) == want);
  CHECK(read(with(with(gptq, "group_size", -1), "dynamic", {{"-:lm_head", json::object()}})).group == 0);
  CHECK_FALSE(read(with(gptq, "checkpoint_format", "gptq_v2")).zeros_one_less);
  const json awq = {
      {"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}, {"version", "GEMM"}, {"zero_point", true}};
  CHECK(read(awq) == hd::quantized_weights(form::awq, 4, 128));
  CHECK(read({{"quant_method", "fbgemm_fp8"}, {"activation_scale_ub", 1200.0}}) == hd::scale_blocks{1, all});
  CHECK(read({{"quant_method", "fp8"}, {"weight_block_size", nullptr}}) == hd::scale_blocks{all, all});
  const auto compressed = [](const char* format, const json& weights) {
    return json{{"quant_method", "compressed-tensors"},
                {"format", format},
                {"sparsity_config", {{"format", "dense"}}},
                {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
  };
  const json in_4 = {{"num_bits", 4}, {"type", "int"}, {"strategy", "group"}, {"group_size", 32}, {"symmetric", false}};
  const json in_8 = {{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}, {"symmetric", true}};
  CHECK(read(compressed("pack-quantized", in_4)) == hd::quantized_weights(form::packed, 4, 32));
  CHECK(read(compressed("pack-quantized", in_8)) == hd::quantized_weights(form::packed, 8, 0));
  CHECK(read(compressed("int-quantized", in_8)) == hd::scale_blocks{1, all});
  CHECK(read(compressed("float-quantized", {{"type", "float"}, {"strategy", "tensor"}})) == hd::scale_blocks{all, all});
  CHECK(
      read(compressed("float-quantized", {{"type", "float"}, {"strategy", "block"}, {"block_structure", {128, 64}}})) ==
      hd::scale_blocks{128, 64});
  CHECK(read(compressed("naive-quantized", {{"strategy", "group"}, {"group_size", 16}})) == hd::scale_blocks{1, 16});
  const json mx = {{"num_bits", 4}, {"type", "float"}, {"strategy", "group"}, {"group_size", 32}, {"symmetric", true}};
  CHECK(read(compressed("mxfp4-pack-quantized", mx)) == hd::quantized_weights(form::mxfp4, 4, 32));
  json two = compressed("pack-quantized", in_4);
  two["config_groups"]["group_1"] = two["config_groups"]["group_0"];
  for (const auto& [quantization, says] : std::vector<std::pair<json, const char*>>{
           {with(gptq, "bits", 5), "key 'bits': expected 2, 3, 4 or 8, got 5"},
           {with(gptq, "group_size", 0), "key 'group_size': expected -1 or a whole number of 1 or more, got 0"},
           {with(gptq, "checkpoint_format", "marlin"), "expected \"gptq\" or \"gptq_v2\", got \"marlin\""},
           {with(gptq, "dynamic", {{"+:mlp", {{"bits", 8}}}}), "key 'dynamic': expected nothing but modules"},
           {with(awq, "version", "gemv"), "key 'version': expected \"gemm\" or \"GEMM\", got \"gemv\""},
           {with(awq, "zero_point", false), "key 'zero_point': expected true, got false"},
           {compressed("marlin-24", in_4), "key 'format': expected \"pack-quantized\" or \"int-quantized\" or"},
           {two, "key 'config_groups': expected one group of matrices that are quantised alike"},
           {compressed("pack-quantized", with(in_4, "num_bits", 2)), "weights, key 'num_bits': expected 4 or 8, got 2"},
           {compressed("mxfp4-pack-quantized", with(mx, "group_size", 16)), "key 'group_size': expected 32, got 16"},
           {compressed("int-quantized", with(in_8, "symmetric", false)), "key 'symmetric': expected true, where"},
           {compressed("int-quantized", with(in_8, "type", "float")), "key 'type': expected \"int\", got \"float\""}}) {
    CAPTURE(says);
    CHECK_THAT(refusal(with(qwen, "quantization_config", quantization)), Catch::Contains(says));
  }
  CHECK_THAT(refusal(with(config_of("gpt2"), "quantization_config", gptq)),
             Catch::Contains("packed matrices are [out, in], those of a gpt2 [in, out]"));
}

TEST_CASE("what a key leaves out is what transformers takes", "[model][hugging_face]") {
  CHECK(std::get<md::gpt2_config>(md::from_config({{"model_type", "gpt2"}}).config) == md::gpt2_124m());
  const md::llama_config llama = llama_of({{"model_type", "llama"}});
  CHECK(llama == md::llama_config{.context = 2048, .epsilon = 1e-6});
  const json base = config_of("llama3");
  CHECK(llama_of(without(base, "num_key_value_heads")).kv_heads == 6);
  CHECK(llama_of(with(base, "num_key_value_heads", nullptr)).kv_heads == 6);
  CHECK(llama_of(without(base, "rope_parameters")).theta == 10000);
  CHECK(llama_of(without(base, "rope_parameters")).scaling.factor == 1);
}

TEST_CASE("null is a missing key where transformers lets it be, and refused elsewhere", "[model][hugging_face]") {
  const json llama = config_of("llama_tied"), gpt2 = config_of("gpt2");
  for (const char* key : {"num_key_value_heads", "head_dim", "rope_scaling", "pretraining_tp", "partial_rotary_factor",
                          "architectures", "bos_token_id", "eos_token_id", "pad_token_id"}) {
    CAPTURE(key);
    const auto null = md::from_config(with(llama, key, nullptr)), missing = md::from_config(without(llama, key));
    CHECK(null.config == missing.config);
    CHECK(null.tied);
  }
  for (const char* key : {"n_inner", "n_ctx", "architectures", "pad_token_id"}) {
    CAPTURE(key);
    CHECK(md::from_config(with(gpt2, key, nullptr)).config == md::from_config(without(gpt2, key)).config);
  }
  for (const char* key : {"tie_word_embeddings", "hidden_act", "attention_bias", "mlp_bias", "vocab_size",
                          "hidden_size", "rms_norm_eps", "initializer_range", "rope_theta"}) {
    CAPTURE(key);
    CHECK(refusal(without(llama, key)).empty());
    const std::string text = refusal(with(llama, key, nullptr));
    CHECK(text.find("key '" + std::string(key) + "': expected ") != std::string::npos);
    CHECK(text.find(", got null") != std::string::npos);
  }
  for (const char* family : {"qwen2", "qwen3"}) {
    const json qwen = config_of(family);
    CAPTURE(family);
    for (const char* key : {"layer_types", "sliding_window", "num_key_value_heads"}) {
      CAPTURE(key);
      CHECK(md::from_config(with(qwen, key, nullptr)).config == md::from_config(without(qwen, key)).config);
    }
    CHECK(refusal(with(qwen, "use_sliding_window", nullptr)).find("got null") != std::string::npos);
    CHECK(refusal(with(qwen, "head_dim", nullptr)).empty() == (family == std::string_view("qwen2")));
  }
  for (const char* key : {"tie_word_embeddings", "activation_function", "scale_attn_weights", "add_cross_attention",
                          "layer_norm_epsilon", "scale_attn_by_inverse_layer_idx", "n_layer"}) {
    CAPTURE(key);
    const std::string text = refusal(with(gpt2, key, nullptr));
    CHECK(text.find("key '" + std::string(key) + "': expected ") != std::string::npos);
    CHECK(text.find(", got null") != std::string::npos);
  }
}

TEST_CASE("rotary positions in the words of older and newer versions", "[model][hugging_face]") {
  const json base = without(config_of("llama3"), "rope_parameters");
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  const md::llama_config older = llama_of(with(with(base, "rope_scaling", llama3), "rope_theta", 500000.0));
  CHECK(older.theta == 500000);
  CHECK(older.scaling == md::llama3_1(md::llama3_8b()).scaling);
  CHECK(llama_of(with(base, "rope_parameters", with(llama3, "rope_theta", 500000.0))) == older);
  CHECK(llama_of(with(base, "rope_scaling", {{"type", "linear"}, {"factor", 4}})).scaling ==
        hd::compute::linear_scaling(4));
  CHECK(llama_of(with(base, "rope_scaling", nullptr)).scaling.factor == 1);
  CHECK(llama_of(with(base, "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7.5}})).theta == 7.5);

  const auto whole = hd::compute::rotary_frequencies(8, 100, hd::compute::linear_scaling(4));
  const auto plain = hd::compute::rotary_frequencies(8, 100);
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(whole[i] == plain[i] / 4);
  const auto long_heads = hd::compute::rotary_frequencies(128, 1e9, hd::compute::linear_scaling(3));
  const auto of_long_heads = hd::compute::rotary_frequencies(128, 1e9);
  for (std::size_t i = 0; i < long_heads.size(); ++i) CHECK(long_heads[i] == of_long_heads[i] / 3);
}

TEST_CASE("unsupported values are refused by key, expected and got", "[model][hugging_face]") {
  const json gpt2 = config_of("gpt2"), llama = config_of("llama3");
  struct damage {
    json config;
    const char* says;
  };
  const auto rope = [&](json value) { return with(llama, "rope_parameters", std::move(value)); };
  const std::vector<damage> table{
      {json::array(), "heddle: config.json should be an object, got []"},
      {json::object(),
       R"(key 'model_type': expected "gpt2" or "llama" or "qwen2" or "qwen3" or "mistral" or "mixtral" or "deepseek_v3" or "deepseek_v2" or "qwen3_moe" or "smollm3" or "granite" or "phi3" or "olmo2" or "gemma3_text" or "gemma2" or "gpt_oss", got nothing)"},
      {with(gpt2, "model_type", "mamba"),
       R"(key 'model_type': expected "gpt2" or "llama" or "qwen2" or "qwen3" or "mistral" or "mixtral" or "deepseek_v3" or "deepseek_v2" or "qwen3_moe" or "smollm3" or "granite" or "phi3" or "olmo2" or "gemma3_text" or "gemma2" or "gpt_oss", got "mamba")"},
      {with(gpt2, "activation_function", "relu"), R"(key 'activation_function': expected "gelu_new", got "relu")"},
      {with(gpt2, "n_inner", 81), "key 'n_inner': expected 80, got 81"},
      {with(gpt2, "n_ctx", 16), "key 'n_ctx': expected 17, got 16"},
      {with(gpt2, "n_layer", -3), "key 'n_layer': expected a whole number of 0 to 2147483647, got -3"},
      {with(gpt2, "n_layer", 3.5), "key 'n_layer': expected a whole number of 0 to 2147483647, got 3.5"},
      {with(gpt2, "n_layer", 4294967299u), "got 4294967299"},
      {with(gpt2, "n_layer", "3"), "got \"3\""},
      {with(gpt2, "n_head", 3), "gpt2_config.width = 20 is not a multiple of heads = 3"},
      {with(gpt2, "n_head", 0), "gpt2_config.heads must be 1 to"},
      {with(gpt2, "layer_norm_epsilon", 0), "key 'layer_norm_epsilon': expected a positive number, got 0"},
      {with(gpt2, "scale_attn_weights", false), "key 'scale_attn_weights': expected true, got false"},
      {with(gpt2, "scale_attn_by_inverse_layer_idx", true), "expected false, got true"},
      {with(gpt2, "add_cross_attention", true), "key 'add_cross_attention': expected false, got true"},
      {with(gpt2, "tie_word_embeddings", 0), "key 'tie_word_embeddings': expected true or false, got 0"},
      {with(gpt2, "architectures", {"GPT2ForSequenceClassification"}),
       R"(key 'architectures': expected ["GPT2LMHeadModel"], got ["GPT2ForSequenceClassification"])"},
      {with(gpt2, "alibi", true), "unknown key 'alibi', which is true and may change"},
      {with(gpt2, "hidden_size", 20), "unknown key 'hidden_size', which is 20 and"},
      {with(llama, "hidden_act", "gelu"), R"(key 'hidden_act': expected "silu", got "gelu")"},
      {with(llama, "attention_bias", true), "key 'attention_bias': expected false, got true"},
      {with(llama, "mlp_bias", true), "key 'mlp_bias': expected false, got true"},
      {with(llama, "head_dim", 7), "head_elements = 7 must be even"},
      {with(llama, "num_key_value_heads", 4), "llama_config.heads = 6 is not a multiple of kv_heads = 4"},
      {with(llama, "tie_word_embeddings", 1), "key 'tie_word_embeddings': expected true or false, got 1"},
      {with(llama, "sliding_window", 128), "unknown key 'sliding_window', which is 128 and"},
      {with(llama, "rope_scaling", {{"type", "linear"}, {"factor", 2}}),
       "key 'rope_scaling': expected nothing beside rope_parameters"},
      {rope(7), "heddle: config.json, rope_parameters should be an object, got 7"},
      {rope({{"rope_type", "longrope"}, {"factor", 2}}),
       R"(key 'rope_type': expected "default" or "linear" or "llama3" or "yarn" or "dynamic", got "longrope")"},
      {rope({{"rope_type", "yarn"}, {"factor", 2}}),
       "key 'original_max_position_embeddings': expected a positive number, got nothing"},
      {rope({{"rope_type", "yarn"}, {"factor", 2}, {"original_max_position_embeddings", 64}, {"beta_fast", 0.5}}),
       "llama_config.yarn.fast must be at least yarn.slow = 1, got 0.5"},
      {rope({{"rope_type", "dynamic"}}), "key 'factor': expected a positive number, got nothing"},
      {rope({{"rope_type", "linear"}}), "key 'factor': expected a positive number, got nothing"},
      {rope({{"rope_type", "linear"}, {"factor", -2}}), "key 'factor': expected a positive number, got -2"},
      {rope({{"rope_type", "llama3"}, {"factor", 2}}),
       "key 'low_freq_factor': expected a positive number, got nothing"},
      {rope({{"type", "linear"}, {"rope_type", "llama3"}, {"factor", 2}}),
       R"(key 'rope_type': expected "linear", got "llama3")"},
      {rope({{"rope_type", "linear"}, {"factor", 2}, {"beta_fast", 32}}),
       "rope_parameters: unknown key 'beta_fast', which is 32 and"},
      {rope({{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}),
       "key 'partial_rotary_factor': expected 1.0, got 0.5"},
      {rope({{"rope_type", "llama3"},
             {"factor", 8},
             {"low_freq_factor", 4},
             {"high_freq_factor", 1},
             {"original_max_position_embeddings", 64}}),
       "llama_config.scaling.low = 4 must be less than scaling.high = 1"},
  };
  REQUIRE(refusal(gpt2).empty());
  REQUIRE(refusal(llama).empty());
  for (const damage& d : table) {
    const std::string text = refusal(d.config);
    CHECK_THAT(text, Catch::Contains(d.says));
    CHECK(text.rfind("heddle: ", 0) == 0);
  }
}

TEST_CASE("every key that transformers wrote is looked at", "[model][hugging_face]") {
  // A value of another kind is refused for each key that has an effect.
  for (const char* model :
       {"gpt2", "llama3", "llama_tied", "mixtral", "deepseek", "deepseek_dense", "deepseek_plain"}) {
    const json config = config_of(model);
    int effects = 0;
    for (const auto& [key, value] : config.items()) {
      CAPTURE(model, key);
      const bool without_effect = key != "model_type" && md::detail::is_without_effect(key, config);
      const std::string text = refusal(with(config, key, json::array({"other"})));
      CHECK(text.empty() == without_effect);
      effects += !text.empty();
      if (!text.empty()) CHECK(text.find(key) != std::string::npos);
    }
    CHECK(effects >= 13);
  }
}

TEST_CASE("a key that is not known passes where it says nothing, has no effect, or is ignored by name",
          "[model][hugging_face]") {
  for (const char* model : {"gpt2", "llama3", "qwen2", "qwen3", "mixtral", "deepseek", "deepseek_v2"}) {
    const json config = config_of(model);
    const auto same = [&](const char* key, const json& value) {
      CAPTURE(model, key, value);
      CHECK(md::from_config(with(config, key, value)).config == md::from_config(config).config);
    };
    for (const json& nothing : {json(nullptr), json(false), json(""), json::array(), json::object()})
      for (const char* key : {"use_mrope", "rope_interleaved", "some_key"}) same(key, nothing);
    for (const auto& [key, value] :
         std::vector<std::pair<const char*, json>>{{"_attn_implementation_autoset", true},
                                                   {"_attn_implementation", "sdpa"},
                                                   {"tokenizer_class", "LlamaTokenizer"},
                                                   {"temperature", 0.6},
                                                   {"hidden_dropout_prob", 0.1},
                                                   {"classifier_dropout", 0.1},
                                                   {"transformers.js_config", {{"dtype", "q4"}}},
                                                   {"auto_map", {{"AutoConfig", "a.B"}}},
                                                   {"is_decoder", true},
                                                   {"pretraining_tp", 2}})
      same(key, value);
    const json marked = with(with(config, "some_tool_fixed", true), "some_tool_version", "2025.3");
    CHECK(md::from_config(marked).config == md::from_config(config).config);
    // Values that say something, of keys that may change what is computed, whatever their names remind of.
    for (const auto& [key, value] : std::vector<std::pair<std::string, json>>{{"use_mrope", true},
                                                                              {"rope_interleaved", true},
                                                                              {"attention_bias_everywhere", true},
                                                                              {"rope_version", "2.0"},
                                                                              {"rope_fixed", true},
                                                                              {"dropout_free_gate", 1},
                                                                              {"logit_scale", 0},
                                                                              {"some_key", json::array({nullptr})},
                                                                              {"some_key", " "}}) {
      CAPTURE(model, key, value);
      const json changed = with(config, key, value);
      CHECK_THAT(refusal(changed), Catch::Contains("heddle: config.json: unknown key '" + key + "', which is ") &&
                                       Catch::Contains("if it changes nothing, give --ignore-key " + key));
      const std::vector<std::string> ignored{"another", key}, others{"another", key + "s", "rope_parameters." + key};
      CHECK(md::from_config(changed, "x", ignored).config == md::from_config(config).config);
      CHECK_THROWS_WITH(md::from_config(changed, "x", others), Catch::Contains("heddle: x: unknown key '" + key + "'"));
    }
    for (const json& other : {json(false), json(nullptr)})
      CHECK_THAT(refusal(with(config, "is_causal", other)), Catch::Contains("key 'is_causal': expected true, got "));
  }
  const json llama = config_of("llama3");
  const std::vector<std::string> known{"attention_bias"}, inside{"rope_parameters.stretch"};
  CHECK_THROWS_WITH(md::from_config(llama, "x", known),
                    Catch::Contains("heddle: x: the key 'attention_bias' is known, and has its effect"));
  const json stretched = with(llama, "rope_parameters", with(llama.at("rope_parameters"), "stretch", 2));
  CHECK_THAT(refusal(stretched), Catch::Contains("give --ignore-key rope_parameters.stretch"));
  CHECK(llama_of(llama) == std::get<md::llama_config>(md::from_config(stretched, "x", inside).config));
  CHECK_THAT(refusal(with(config_of("gpt2"), "n_special", 3)), Catch::Contains("key 'n_special': expected 0, got 3"));
  CHECK_THAT(refusal(with(llama, "a\nb", 1)), Catch::Contains("unknown key 'a?b'"));
}

// Written from the published files, with small sizes, and from the keys that versions of transformers save.
TEST_CASE("published configurations are taken, or refused for the right reason", "[model][hugging_face]") {
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/golden/published_configs.json");
  const json published = json::parse(in);
  REQUIRE(published.at("loaded").size() >= 20);
  for (const auto& [name, config] : published.at("loaded").items()) {
    CAPTURE(name);
    CHECK(refusal(config).empty());
    const auto about = md::from_config(config);
    const bool no_window = config.at("model_type") == "mistral" && config.at("sliding_window").is_null();
    CHECK(about.family() == (no_window ? std::string("llama") : config.at("model_type").get<std::string>()));
    CHECK(about.tied ==
          (config.value("tie_word_embeddings", about.family().starts_with("gemma")) || about.family() == "gpt2"));
    std::visit(
        [&](const auto& c) {
          CHECK(c.layers == 2);
          CHECK(c.width == 32);
          CHECK(c.vocabulary == 64);
        },
        about.config);
  }
  REQUIRE(published.at("refused").size() >= 6);
  for (const auto& [name, one] : published.at("refused").items()) {
    CAPTURE(name);
    const std::string text = refusal(one.at("config"));
    CHECK_THAT(text, Catch::Contains(one.at("says").get<std::string>()));
    CHECK(text.rfind("heddle: ", 0) == 0);
  }
}

TEST_CASE("names of weights, and tensors that are none", "[model][hugging_face]") {
  struct names {
    bool prefixed;
    bool contains(std::string_view name) const { return prefixed && name == "transformer.wte.weight"; }
  };
  CHECK(md::names_in(names{true})("wpe.weight").name == "transformer.wpe.weight");
  CHECK(md::names_in(names{false})("wpe.weight").name == "wpe.weight");
  struct stacks {
    bool contains(std::string_view name) const { return name == "model.layers.0.mlp.experts.gate_up_proj"; }
  };
  CHECK(md::names_in(stacks{}, md::from_config({{"model_type", "gpt_oss"}})).stacked == md::stacked_experts::numbers);
  CHECK(md::names_in(stacks{}, md::from_config(config_of("phi3"))).stacked == md::stacked_experts::no);
  const md::hugging_face_names fused = md::names_of(md::from_config(config_of("phi3")));
  const md::source_name keys = fused("model.layers.1.self_attn.k_proj.weight");
  CHECK(keys.name == "model.layers.1.self_attn.qkv_proj.weight");
  CHECK(keys.rows == md::rows_in_tensor::before_last);
  CHECK(fused("model.layers.1.mlp.up_proj.weight").name == "model.layers.1.mlp.gate_up_proj.weight");
  CHECK(fused("model.layers.1.mlp.down_proj.weight").rows == md::rows_in_tensor::all);
  const auto gpt2 = md::from_config(config_of("gpt2")), llama = md::from_config(config_of("llama3"));
  const auto tied = md::from_config(config_of("llama_tied"));
  CHECK(md::is_saved_constant(gpt2, "h.0.attn.bias"));
  CHECK(md::is_saved_constant(gpt2, "transformer.h.11.attn.masked_bias"));
  CHECK(md::is_saved_constant(gpt2, "lm_head.weight"));
  CHECK_FALSE(md::is_saved_constant(gpt2, "h.0.attn.c_attn.bias"));
  CHECK_FALSE(md::is_saved_constant(llama, "lm_head.weight"));
  CHECK(md::is_saved_constant(tied, "lm_head.weight"));
  CHECK(md::is_saved_constant(llama, "model.layers.0.self_attn.rotary_emb.inv_freq"));
  CHECK_FALSE(md::is_saved_constant(llama, "h.0.attn.bias"));
}
TEST_CASE("a tensor with several parameters has the rows of all of them, or its folder is refused",
          "[model][hugging_face]") {
  const auto about = md::from_config(config_of("phi3"));
  const auto config = std::get<md::phi3_config>(about.config);
  const md::hugging_face_names names = md::names_of(about);
  auto& tensors = fused_folder::shapes;
  tensors.clear();
  for (const md::parameter_outline& p : md::parameter_outlines(md::describe_phi3<false>(config))) {
    const auto [at, is_first] = tensors.try_emplace(names(p.name).name, p.shape);
    if (!is_first) at->second[0] += p.shape[0];
  }
  const auto opened = [&](const md::phi3_config& of) {
    return md::open_weights<fused_folder>("nowhere", about, md::describe_phi3<false>(of)).names.fused;
  };
  CHECK(opened(config));
  const std::string queries = "model.layers.0.self_attn.qkv_proj.weight",
                    gates = "model.layers.0.mlp.gate_up_proj.weight";
  const auto refused = [&](const std::string& name, std::int64_t rows, const md::phi3_config& of) {
    CHECK_THROWS_MATCHES(
        opened(of), hd::layout_error,
        Catch::Matchers::Message("heddle: the tensor " + name + ": the parameters in it have together the shape " +
                                 hd::shown_extents(std::vector<std::int64_t>{rows, config.width}) + ", the tensor " +
                                 hd::shown_extents(tensors.at(name))));
  };
  const std::int64_t all = tensors.at(queries)[0];
  for (const int heads : {1, 3}) {  // the files have 2
    md::phi3_config other = config;
    other.kv_heads = heads;
    refused(queries, all + 2 * (heads - config.kv_heads) * config.head_dim(), other);
  }
  for (const int more : {-1, 1}) {
    md::phi3_config other = config;
    other.ffn += more;
    refused(gates, 2 * other.ffn, other);
  }
  tensors.erase(gates);  // reading says that
  CHECK(opened(config));
}
TEST_CASE("tensors of a Mixtral are in the order of transformers' state dict", "[model][mixtral]") {
  const auto described =
      md::describe_mixtral(std::get<md::mixtral_config>(md::from_config(config_of("mixtral")).config));
  std::vector<std::string> names;
  for (const auto& p : md::hugging_face_order(md::parameter_outlines(described)))
    if (p.name.rfind("model.layers.1.", 0) == 0) names.push_back(p.name.substr(15));
  std::vector<std::string> expected{"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
                                    "self_attn.o_proj.weight", "block_sparse_moe.gate.weight"};
  for (int e = 0; e < 5; ++e)
    for (const char* w : {"w1", "w2", "w3"})
      expected.push_back("block_sparse_moe.experts." + std::to_string(e) + "." + w + ".weight");
  expected.insert(expected.end(), {"input_layernorm.weight", "post_attention_layernorm.weight"});
  CHECK(names == expected);
}
TEST_CASE("tensors of a DeepSeek-V3 are in the order of transformers' modules", "[model][deepseek]") {
  const auto described =
      md::describe_deepseek(std::get<md::deepseek_config>(md::from_config(config_of("deepseek_dense")).config));
  const auto names_of = [&](const std::string& block) {
    std::vector<std::string> names;
    for (const auto& p : md::hugging_face_order(md::parameter_outlines(described)))
      if (p.name.rfind(block, 0) == 0) names.push_back(p.name.substr(block.size()));
    return names;
  };
  std::vector<std::string> attention, norms{"input_layernorm.weight", "post_attention_layernorm.weight"};
  for (const char* name :
       {"q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"})
    attention.push_back("self_attn." + std::string(name) + ".weight");
  std::vector<std::string> expected = attention;
  for (const char* w : {"gate_proj", "up_proj", "down_proj"}) expected.push_back("mlp." + std::string(w) + ".weight");
  expected.insert(expected.end(), norms.begin(), norms.end());
  CHECK(names_of("model.layers.0.") == expected);
  CHECK(names_of("model.layers.1.") == expected);
  expected = attention;
  for (int e = 0; e < 6; ++e)
    for (const char* w : {"gate_proj", "up_proj", "down_proj"})
      expected.push_back("mlp.experts." + std::to_string(e) + "." + w + ".weight");
  expected.insert(expected.end(), {"mlp.gate.weight", "mlp.gate.e_score_correction_bias"});
  for (const char* w : {"gate_proj", "up_proj", "down_proj"})
    expected.push_back("mlp.shared_experts." + std::string(w) + ".weight");
  expected.insert(expected.end(), norms.begin(), norms.end());
  CHECK(names_of("model.layers.2.") == expected);
  CHECK(names_of("model.layers.3.") == expected);
}
#endif
