// heddle/model/deepseek_config.hpp: sizes of DeepSeek-V3 and -V2, and their counts.
#pragma once

#include <heddle/compute/ops/expert_choice.hpp>
#include <heddle/compute/rotary_table.hpp>
#include <heddle/compute/yarn_scaling.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/config_checks.hpp>
#include <heddle/model/llama_config.hpp>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

/// The shape of a DeepSeek-V3: latent attention in every block, an MLP of `dense_ffn` hidden units in the first `dense` blocks, and in the others
/// `experts` MLPs of `ffn` hidden units, of which a token takes `chosen`, and beside them one of `shared * ffn` for every token.
/// With `softmax` a DeepSeek-V2: the same but for its routers.
/// Source: DeepSeek-AI 2024, arXiv:2412.19437, and arXiv:2405.04434 (V2); Hugging Face `DeepseekV3Config` and `DeepseekV2Config`.
struct deepseek_config {
  int layers = 61;
  int heads = 128;
  int width = 7168;
  int ffn = 2048;  ///< hidden units of an expert
  int context = 4096;
  int vocabulary = 129280;
  int query_latent = 1536;  ///< elements of the latent vector of queries; 0: queries are a product of the stream
  int key_latent = 512;     ///< elements of the latent vector of keys and values
  int still = 128;          ///< elements of a query or key that do not rotate
  int rotating = 64;        ///< elements of a query or key that rotate
  int value = 128;          ///< elements of a value
  int experts = 256;
  int chosen = 8;
  int shared = 1;  ///< experts that every token takes
  int groups = 8, kept_groups = 4;
  int dense = 3;  ///< leading blocks without experts
  int dense_ffn = 18432;
  bool normed = true;      ///< the weights of a token's choices are divided by their sum
  double factor = 2.5;     ///< of the weights of choices
  bool neighbours = true;  ///< elements (2i, 2i + 1) rotate together
  double theta = 10000;    ///< base of the rotary frequencies
  compute::rotary_scaling scaling{};
  compute::yarn_scaling yarn{};  ///< instead of `scaling`
  double epsilon = 1e-6;         ///< of the norms of the stream
  double initial_deviation = 0.02;
  /// DeepSeek-V2: an expert's score is its part of the softmax over all, there is no selection bias, and a group is worth its best expert.
  /// Else the sigmoid, a bias, and the two best.
  bool softmax = false;

  constexpr compute::grouped_choice choice() const noexcept {
    return {.groups = groups, .kept = kept_groups, .best = softmax ? 1 : 2, .normed = normed, .scale = factor};
  }

 private:
  // Counted as N: a double where the number may be too large for an integer. Here because clang evaluates no template that comes later.
  template <class N = std::int64_t>
  constexpr N mlp() const noexcept {
    return N{3} * static_cast<N>(width) * static_cast<N>(ffn);
  }
  template <class N = std::int64_t>
  constexpr N attention() const noexcept {
    const N d = static_cast<N>(width), h = static_cast<N>(heads), q = static_cast<N>(query_latent);
    const N k = static_cast<N>(key_latent), s = static_cast<N>(still), r = static_cast<N>(rotating);
    const N v = static_cast<N>(value);
    return (query_latent > 0 ? d * q + q * h * (s + r) : d * h * (s + r)) + d * (k + r) + k * h * (s + v) + h * v * d;
  }
  template <class N>
  constexpr N numbers() const noexcept {
    const N d = static_cast<N>(width), e = static_cast<N>(experts), words = static_cast<N>(vocabulary);
    const N norms = d + d + static_cast<N>(query_latent) + static_cast<N>(key_latent);
    const N mixture = (e + static_cast<N>(shared)) * mlp<N>() + e * d + (softmax ? N{0} : e);
    const N leading = N{3} * d * static_cast<N>(dense_ffn), first = static_cast<N>(dense);
    return static_cast<N>(layers) * (attention<N>() + norms) + (static_cast<N>(layers) - first) * mixture +
           first * leading + (words + words) * d + d;
  }

 public:
  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    const detail::config_checks check{"deepseek_config"};
    constexpr int wide = llama_config::most_width, tokens = llama_config::most_tokens, most = 65536;
    check.in_range(1, llama_config::most_layers, {{"layers", layers}});
    check.in_range(1, wide, {{"heads", heads}, {"width", width}, {"ffn", ffn}});
    check.in_range(1, tokens, {{"context", context}, {"vocabulary", vocabulary}});
    check.in_range(0, wide, {{"query_latent", query_latent}});
    check.in_range(1, wide, {{"key_latent", key_latent}});
    check.in_range(0, most, {{"still", still}});
    check.in_range(2, most, {{"rotating", rotating}});
    check.in_range(1, most, {{"value", value}, {"experts", experts}});
    check.in_range(1, experts, {{"groups", groups}});
    check.in_range(1, groups, {{"kept_groups", kept_groups}});
    check.in_range(1, most, {{"shared", shared}});
    if (rotating % 2 != 0)
      throw config_error("heddle: deepseek_config.rotating must be even, got " + std::to_string(rotating));
    if (experts % groups != 0)
      throw config_error("heddle: deepseek_config.groups must divide experts = " + std::to_string(experts) + ", got " +
                         std::to_string(groups));
    check.in_range(1, experts / groups * kept_groups, {{"chosen", chosen}});
    check.in_range(1, wide / ffn, {{"shared", shared}});
    check.in_range(0, layers, {{"dense", dense}});
    if (dense > 0) check.in_range(1, wide, {{"dense_ffn", dense_ffn}});
    const auto positive = [](const char* name, double value) {
      if (!(value > 0 && value <= 1e12))
        throw config_error("heddle: deepseek_config." + std::string(name) + " must be a positive number, got " +
                           number_text(value));
    };
    positive("factor", factor);
    positive("theta", theta);
    positive("epsilon", epsilon);
    check.yarn(yarn, scaling.factor, theta);
    check.deviation(initial_deviation);
    if (const double all = numbers<double>(); all > 0x1p62)
      throw config_error("heddle: a deepseek_config must have at most 2^62 parameters, got " + number_text(all));
  }

  /// Numbers that enter a matrix product for each token.
  constexpr std::int64_t matmul_parameters() const noexcept {
    const std::int64_t d = width;
    return layers * attention() + (layers - dense) * ((chosen + shared) * mlp() + experts * d) +
           dense * 3 * d * dense_ffn + vocabulary * d;
  }
  /// Numbers of all parameters, those of the selection biases among them.
  constexpr std::int64_t parameters() const noexcept { return numbers<std::int64_t>(); }
  /// Floating-point operations of one training step per token, forward and backward, with unmasked pairs of attention alone.
  constexpr double flops_per_token(int sequence = 0) const noexcept {
    const double s = sequence > 0 ? sequence : context;
    return 6.0 * static_cast<double>(matmul_parameters()) +
           3.0 * layers * static_cast<double>(heads) * (still + rotating + value) * (s + 1.0);
  }

  friend constexpr bool operator==(const deepseek_config&, const deepseek_config&) = default;
};

/// `"deepseek_v3 layers=61 heads=128 ..."`: what two configurations must share so that the weights of one are those of the other.
inline std::string to_string(const deepseek_config& c) {
  std::string out = c.softmax ? "deepseek_v2" : "deepseek_v3";
  const auto add = [&](const char* name, auto value) {  // the fewest digits that tell it from others
    char text[64];
    out += " " + std::string(name) + "=" + std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
  };
  add("layers", c.layers);
  add("heads", c.heads);
  add("width", c.width);
  add("ffn", c.ffn);
  add("context", c.context);
  add("vocabulary", c.vocabulary);
  add("query_latent", c.query_latent);
  add("key_latent", c.key_latent);
  add("still", c.still);
  add("rotating", c.rotating);
  add("value", c.value);
  add("experts", c.experts);
  add("chosen", c.chosen);
  add("shared", c.shared);
  add("groups", c.groups);
  add("kept_groups", c.kept_groups);
  if (c.dense > 0) {
    add("dense", c.dense);
    add("dense_ffn", c.dense_ffn);
  }
  add("normed", c.normed ? 1 : 0);
  add("neighbours", c.neighbours ? 1 : 0);
  add("factor", c.factor);
  add("theta", c.theta);
  if (c.scaling.factor != 1) {
    add("scaling", c.scaling.factor);
    add("low", c.scaling.low);
    add("high", c.scaling.high);
    add("original", c.scaling.original);
  }
  if (c.yarn.factor != 1 || c.yarn.table_factor() != 1) {
    add("yarn", c.yarn.factor);
    add("fast", c.yarn.fast);
    add("slow", c.yarn.slow);
    add("original", c.yarn.original);
    add("table_factor", c.yarn.table_factor());
    add("score_factor", c.yarn.score_factor());
    add("whole", c.yarn.whole ? 1 : 0);
  }
  if (c.epsilon != deepseek_config{}.epsilon) add("epsilon", c.epsilon);
  return out;
}

/// For tests: sizes that divide by little, six experts in three groups, no block without experts.
constexpr deepseek_config deepseek_tiny() noexcept {
  return {.layers = 2,
          .heads = 3,
          .width = 22,
          .ffn = 9,
          .context = 9,
          .vocabulary = 37,
          .query_latent = 10,
          .key_latent = 7,
          .still = 3,
          .rotating = 4,
          .value = 5,
          .experts = 6,
          .chosen = 3,
          .shared = 2,
          .groups = 3,
          .kept_groups = 2,
          .dense = 0,
          .dense_ffn = 17,
          .factor = 1.7,
          .theta = 1000};
}

}  // namespace heddle::inline v0::model
