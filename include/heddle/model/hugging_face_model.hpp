// heddle/model/hugging_face_model.hpp: a model by its config.json, and weight names.
#pragma once

#include <heddle/model/deepseek_config.hpp>
#include <heddle/model/gemma2_config.hpp>
#include <heddle/model/gemma3_config.hpp>
#include <heddle/model/gpt2_config.hpp>
#include <heddle/model/gpt_oss_config.hpp>
#include <heddle/model/granite_config.hpp>
#include <heddle/model/llama_config.hpp>
#include <heddle/model/mistral_config.hpp>
#include <heddle/model/phi3_config.hpp>
#include <heddle/model/mixtral_config.hpp>
#include <heddle/model/olmo2_config.hpp>
#include <heddle/model/qwen3_moe_config.hpp>
#include <heddle/model/qwen_config.hpp>
#include <heddle/model/smollm3_config.hpp>
#include <heddle/model/read_parameters.hpp>
#include <heddle/model/write_parameters.hpp>
#include <heddle/tensor/quantized_weights.hpp>
#include <heddle/tensor/tensor_source.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace heddle::inline v0::model {

/// Blocks of a file that a model has, in the order of the file: none are left out where `numbers` is empty. `all`: those of the file.
struct kept_blocks {
  std::vector<int> numbers{};
  int all = 0;
  bool leaves_out(std::int64_t block) const noexcept {
    return !numbers.empty() && block >= 0 && block < all &&
           !std::binary_search(numbers.begin(), numbers.end(), static_cast<int>(block));
  }
};

namespace detail {
// The block that the name of a tensor names, as "model.layers.61." and "transformer.h.61." do; -1 for other names, and for numbers beyond 18 digits.
struct block_in_name {
  std::int64_t number = -1;
  std::size_t begin = 0, end = 0;  // of its digits

  explicit constexpr block_in_name(std::string_view name) noexcept {
    for (const std::string_view blocks : {"model.layers.", "transformer.h.", "h."}) {
      if (name.substr(0, blocks.size()) != blocks) continue;
      const std::size_t first = blocks.size(), last = name.find('.', first);
      if (last == name.npos || last == first || last - first > 18) return;
      if (last - first > 1 && name[first] == '0') return;
      std::int64_t found = 0;
      for (const char c : name.substr(first, last - first)) {
        if (c < '0' || c > '9') return;
        found = 10 * found + (c - '0');
      }
      number = found, begin = first, end = last;
      return;
    }
  }
};
}  // namespace detail

/// The name in files of what a model of kept blocks calls so: block k of the model is block `numbers[k]` of the files.
inline std::string name_in_files(const kept_blocks& kept, std::string_view name) {
  std::string of_file(name);
  const detail::block_in_name block(name);
  if (block.number >= 0 && block.number < std::ssize(kept.numbers))
    of_file.replace(block.begin, block.end - block.begin,
                    std::to_string(kept.numbers[static_cast<std::size_t>(block.number)]));
  return of_file;
}

/// A model as its config.json describes it: the configuration says the family.
struct hugging_face_model {
  std::variant<gpt2_config, llama_config, qwen2_config, qwen3_config, mixtral_config, deepseek_config, mistral_config,
               qwen3_moe_config, smollm3_config, granite_config, phi3_config, olmo2_config, gemma3_config,
               gemma2_config, gpt_oss_config>
      config;
  bool tied = false;  ///< the token embedding is the head, too
  int more_blocks =
      0;  ///< behind the last, which predict more tokens: files may have them, and nothing is read from them
  std::optional<quantized_weights>
      scales{};  ///< how files have matrices in 2 to 8 bits; what opens the files is to be given it (`open_weights`)
  kept_blocks kept{};  ///< of the files (`with_blocks`)

  /// "gpt2", "llama", "qwen2", "qwen3", "mixtral", "deepseek_v3", "deepseek_v2", "mistral", "qwen3_moe", "smollm3", "granite", "phi3", "olmo2", "gemma3_text", "gemma2" or "gpt_oss".
  std::string_view family() const noexcept {
    constexpr std::string_view names[] = {"gpt2",        "llama",   "qwen2",       "qwen3",   "mixtral",
                                          "deepseek_v3", "mistral", "qwen3_moe",   "smollm3", "granite",
                                          "phi3",        "olmo2",   "gemma3_text", "gemma2",  "gpt_oss"};
    const auto* const deepseek = std::get_if<deepseek_config>(&config);
    return deepseek != nullptr && deepseek->softmax ? "deepseek_v2" : names[config.index()];
  }
};
/// How files have the experts of a block: each matrix by itself, or those of all experts in one tensor, as GPT-OSS: with the rows of gates and
/// their factors in turns; transposed (`numbers`), or as they are, which in files is in four bits alone (`four_bits`).
enum class stacked_experts : unsigned char { no, numbers, four_bits };

/// Names of parameters in the files of Hugging Face: those of the descriptions, behind `prefix`, with the numbers of `kept` blocks.
struct hugging_face_names {
  std::string prefix{};
  bool fused =
      false;  ///< queries, keys and values are rows of one tensor, gates and their factors of another, as files of Phi-3 have them
  kept_blocks kept{};
  stacked_experts stacked = stacked_experts::no;

  /// The names in files that are written: of numbers, not of four bits.
  hugging_face_names written() const {
    hugging_face_names names = *this;
    if (stacked == stacked_experts::four_bits) names.stacked = stacked_experts::numbers;
    return names;
  }
  source_name operator()(std::string_view of_model) const {
    const std::string in_files = name_in_files(kept, of_model);
    std::string_view parameter = in_files;
    if (parameter == "lm_head.weight") {  // beside "transformer", not in it
      constexpr std::string_view inside = "transformer.";
      std::string_view before = prefix;
      if (before.ends_with(inside)) before.remove_suffix(inside.size());
      return {std::string(before) + in_files};
    }
    if (stacked != stacked_experts::no)
      if (const auto of_expert = name_in_stack_of_experts(parameter)) return *of_expert;
    if (fused)
      for (const auto& [part, whole, rows] : parts)
        if (parameter.ends_with(part)) {
          parameter.remove_suffix(part.size());
          return {prefix + std::string(parameter) + whole, stored_as::is, rows};
        }
    return {prefix + std::string(parameter)};
  }

 private:
  // "BLOCK.mlp.experts.3.gate_proj.weight" is number 3 of "BLOCK.mlp.experts.gate_up_proj".
  std::optional<source_name> name_in_stack_of_experts(std::string_view parameter) const {
    constexpr std::string_view experts = ".mlp.experts.";
    const std::size_t at = parameter.find(experts);
    if (at == parameter.npos) return {};
    const std::string_view before = parameter.substr(0, at + experts.size());
    std::string_view rest = parameter.substr(before.size());
    std::int64_t index = 0;
    for (; !rest.empty() && rest[0] >= '0' && rest[0] <= '9' && index < (std::int64_t{1} << 32); rest.remove_prefix(1))
      index = 10 * index + (rest[0] - '0');
    const std::size_t dot = rest.find('.', 1);
    if (rest.empty() || rest[0] != '.' || dot == rest.npos) return {};
    const std::string_view product = rest.substr(1, dot - 1), kind = rest.substr(dot + 1);
    source_name to{prefix + std::string(before), stored_as::is, rows_in_tensor::all, {}, index};
    to.name += product == "down_proj" ? "down_proj" : "gate_up_proj";
    if (product != "down_proj") to.rows = product == "gate_proj" ? rows_in_tensor::even : rows_in_tensor::odd;
    if (kind == "bias")
      to.name += "_bias";
    else if (stacked == stacked_experts::numbers)
      to.how = stored_as::transposed;
    return to;
  }
  struct part_of_tensor {
    std::string_view part;
    const char* whole;
    rows_in_tensor rows;
  };
  static constexpr part_of_tensor parts[] = {{".q_proj.weight", ".qkv_proj.weight", rows_in_tensor::first},
                                             {".k_proj.weight", ".qkv_proj.weight", rows_in_tensor::before_last},
                                             {".v_proj.weight", ".qkv_proj.weight", rows_in_tensor::last},
                                             {".gate_proj.weight", ".gate_up_proj.weight", rows_in_tensor::first},
                                             {".up_proj.weight", ".gate_up_proj.weight", rows_in_tensor::last}};
};

/// The names in a source: files of GPT-2 have them with "transformer." before them, or without; those of Phi-3 are fused.
template <class Source>
hugging_face_names names_in(const Source& source) {
  hugging_face_names names{source.contains("transformer.wte.weight") ? "transformer." : "",
                           source.contains("model.layers.0.self_attn.qkv_proj.weight")};
  if (source.contains("model.layers.0.mlp.experts.gate_up_proj_blocks"))
    names.stacked = stacked_experts::four_bits;
  else if (source.contains("model.layers.0.mlp.experts.gate_up_proj"))
    names.stacked = stacked_experts::numbers;
  return names;
}
/// The same for a model's family: only GPT-OSS has gates in turn with their factors, so that others' stacks of experts name no parameter.
template <class Source>
hugging_face_names names_in(const Source& source, const hugging_face_model& m) {
  hugging_face_names names = names_in(source);
  if (m.family() != "gpt_oss") names.stacked = stacked_experts::no;
  return names;
}
/// The names in files that are written for a model.
inline hugging_face_names names_of(const hugging_face_model& m) {
  hugging_face_names names{m.family() == "gpt2" ? "transformer." : "", m.family() == "phi3"};
  if (m.family() == "gpt_oss") names.stacked = stacked_experts::numbers;
  return names;
}

namespace detail {
// Of one block, from `begin` on: expert by expert. The router of a `block_sparse_moe` comes before its experts, that of an `mlp` behind them, unless it
// is called router, and an expert of an `mlp` has its down projection last.
inline void put_experts_in_order(std::vector<parameter_outline>::iterator begin,
                                 std::vector<parameter_outline>::iterator end) {
  const auto number = [&](const parameter_outline& p) {
    for (const std::string_view experts : {".block_sparse_moe.experts.", ".mlp.experts."})
      if (const std::size_t at = p.name.find(experts); at != std::string::npos)
        return std::strtol(p.name.c_str() + at + experts.size(), nullptr, 10);
    return -1L;
  };
  const auto is_down = [](const parameter_outline& p) { return p.name.find(".down_proj.") != std::string::npos; };
  const auto first = std::find_if(begin, end, [&](const parameter_outline& p) { return number(p) >= 0; });
  const auto last = std::find_if(first, end, [&](const parameter_outline& p) { return number(p) < 0; });
  std::vector<std::tuple<long, bool, std::ptrdiff_t>> order;  // number of the expert, whether it is last, place
  for (auto p = first; p != last; ++p) order.emplace_back(number(*p), is_down(*p), p - first);
  std::sort(order.begin(), order.end());
  std::vector<parameter_outline> sorted;
  sorted.reserve(order.size());
  for (const auto& [expert, down, place] : order) sorted.push_back(std::move(first[place]));
  std::move(sorted.begin(), sorted.end(), first);
  const auto is_router = [](const parameter_outline& p) {
    return p.name.find(".block_sparse_moe.gate.") != std::string::npos ||
           p.name.find(".mlp.router.") != std::string::npos;
  };
  if (first != last) std::rotate(first, last, std::find_if_not(last, end, is_router));
}
}  // namespace detail

/// Parameters in the order of transformers' state dict: where names say that, the norms of a block behind its other parameters, a head
/// behind the final norm, and expert by expert, with the router of a Mixtral before them and that of a DeepSeek-V3 behind them.
inline std::vector<parameter_outline> hugging_face_order(std::vector<parameter_outline> all) {
  const auto block_of = [](const std::string& name) {
    constexpr std::string_view blocks = "model.layers.";
    if (name.compare(0, blocks.size(), blocks) != 0) return name.substr(0, 0);
    return name.substr(0, name.find('.', blocks.size()));
  };
  for (auto at = all.begin(); at != all.end();) {
    const std::string block = block_of(at->name);
    auto end = std::find_if(at, all.end(), [&](const parameter_outline& p) { return block_of(p.name) != block; });
    const auto is_last = [&](const parameter_outline& p) {
      return block.empty() ? p.name == "lm_head.weight"
                           : p.name == block + ".input_layernorm.weight" ||
                                 p.name == block + ".post_attention_layernorm.weight" ||
                                 p.name == block + ".pre_feedforward_layernorm.weight" ||
                                 p.name == block + ".post_feedforward_layernorm.weight";
    };
    detail::put_experts_in_order(at, end);
    std::vector<parameter_outline> last;
    auto to = at;
    for (; at != end; ++at)
      if (is_last(*at))
        last.push_back(std::move(*at));
      else if (to++ != at)
        *std::prev(to) = std::move(*at);
    std::move(last.begin(), last.end(), to);
  }
  return all;
}

/// Whether a tensor of a file is no weight of the model: masks and frequencies, which older versions of transformers
/// saved, a copy of the tied embedding, those of `more_blocks` behind the last block, and those of blocks that are not kept.
inline bool is_saved_constant(const hugging_face_model& m, std::string_view name) {
  const auto ends = [&](std::string_view with) {
    return name.size() >= with.size() && name.substr(name.size() - with.size()) == with;
  };
  if (m.tied && name == "lm_head.weight") return true;
  const std::int64_t block = detail::block_in_name(name).number;
  if (m.kept.leaves_out(block)) return true;
  if (const auto* const c = std::get_if<deepseek_config>(&m.config); c != nullptr) {
    const std::int64_t all = m.kept.numbers.empty() ? c->layers : m.kept.all;
    if (block >= all && block - all < std::int64_t{m.more_blocks}) return true;
  }
  return m.config.index() == 0 ? ends(".attn.bias") || ends(".attn.masked_bias") : ends(".rotary_emb.inv_freq");
}
}  // namespace heddle::inline v0::model
