// heddle/model/hugging_face/quantization.hpp: reads matrix formats of a folder.
#pragma once

#include <heddle/model/hugging_face/config_object.hpp>
#include <heddle/tensor/quantized_weights.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace heddle::inline v0::model::detail {

// Keys of a `quantization_config` that say how it came about, how other programs compute with it, or what the files say, too.
inline void pass_keys(config_object& c, std::initializer_list<const char*> keys) {
  for (const char* key : keys) static_cast<void>(c.find(key));
}
// Columns that share a scale; 0 for -1 and null, which are all.
inline std::int64_t read_group(config_object& c, std::int64_t otherwise) {
  const nlohmann::json* const size = c.find("group_size");
  if (size == nullptr) return otherwise;
  if (size->is_null() || *size == -1) return 0;
  if (const int n = size->is_number_integer() ? c.integer("group_size") : 0; n > 0) return n;
  c.fail("group_size", "-1 or a whole number of 1 or more");
}

// Rows and columns of a block.
inline scale_blocks read_blocks(config_object& c, const std::string& key, const std::string& or_else = {}) {
  const nlohmann::json* const size = c.find(key);
  const auto block = [](const nlohmann::json& n) {
    if (n.is_number_unsigned()) return n.get<std::uint64_t>() - 1 < static_cast<std::uint64_t>(scale_blocks::most);
    return n.is_number_integer() && n.get<std::int64_t>() >= 1 && n.get<std::int64_t>() <= scale_blocks::most;
  };
  if (size == nullptr || !size->is_array() || size->size() != 2 || !std::all_of(size->begin(), size->end(), block))
    c.fail(key, or_else + "two whole numbers of 1 to " + std::to_string(scale_blocks::most));
  return {(*size)[0].get<std::int64_t>(), (*size)[1].get<std::int64_t>()};
}

// Matrices in 8 bits with a scale for each block, as DeepSeek-V3 is published, or one for all.
inline quantized_weights read_fp8(config_object& c) {
  c.only("fmt", "e4m3");
  c.text("activation_scheme", "dynamic", {"dynamic", "static"});
  c.flag("dequantize", false);
  pass_keys(c, {"scale_fmt", "modules_to_not_convert", "ignored_layers"});
  scale_blocks out;
  if (const nlohmann::json* const size = c.find("weight_block_size"); size != nullptr && size->is_null()) {
    out = {scale_blocks::whole, scale_blocks::whole};
  } else if (size != nullptr) {
    out = read_blocks(c, "weight_block_size", "null or ");
  }
  return out;
}

inline quantized_weights read_gptq(config_object& c) {
  using form = quantized_weights::form;
  quantized_weights out(form::gptq, c.integer("bits", 4), read_group(c, 128));
  if (out.bits != 2 && out.bits != 3 && out.bits != 4 && out.bits != 8) c.fail("bits", "2, 3, 4 or 8");
  out.zeros_one_less = true;
  for (const char* key : {"format", "checkpoint_format"})
    if (c.find_unless_null(key) != nullptr) out.zeros_one_less = c.text(key, "gptq", {"gptq", "gptq_v2"}) == "gptq";
  c.only_unless_null("pack_dtype", "int32");
  c.only("is_marlin_format", false);
  if (const nlohmann::json* const parts = c.find_unless_null("dynamic"); parts != nullptr && parts->is_object())
    for (const auto& [modules, says] : parts->items())
      if (modules.substr(0, 2) != "-:") c.fail("dynamic", "nothing but modules that are left as they are, \"-:NAME\"");
  pass_keys(c, {"act_group_aware",
                "backend",
                "batch_size",
                "block_name_to_quantize",
                "cache_block_outputs",
                "damp_auto_increment",
                "damp_percent",
                "dataset",
                "desc_act",
                "disable_exllama",
                "exllama_config",
                "hyb_act",
                "lm_head",
                "max_input_length",
                "meta",
                "model_file_base_name",
                "model_name_or_path",
                "model_seqlen",
                "module_name_preceding_first_block",
                "modules_in_block_to_quantize",
                "mse",
                "pad_token_id",
                "static_groups",
                "sym",
                "tokenizer",
                "true_sequential",
                "use_cuda_fp16",
                "use_exllama"});
  return out;
}

inline quantized_weights read_awq(config_object& c) {
  quantized_weights out(quantized_weights::form::awq, 4, read_group(c, 128));
  c.only("bits", 4);
  c.only("zero_point", true);
  for (const char* key : {"version", "format", "checkpoint_format"}) c.text(key, "gemm", {"gemm", "GEMM"});
  pass_keys(c,
            {"backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse", "modules_to_not_convert"});
  return out;
}

// The one kind of matrices of a model that compressed-tensors wrote. Which ones they are, the files say.
inline quantized_weights read_compressed(config_object& c) {
  using form = quantized_weights::form;
  c.only_unless_null("kv_cache_scheme", nullptr);
  if (c.find_unless_null("sparsity_config") != nullptr) {
    config_object sparse = c.inside("sparsity_config");
    sparse.only("format", "dense");
  }
  pass_keys(c, {"global_compression_ratio", "ignore", "quantization_status", "version"});
  const std::string format =
      c.text("format", "dense",
             {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mxfp4-pack-quantized"});
  const nlohmann::json* const groups = c.find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->size() != 1)
    c.fail("config_groups", "one group of matrices that are quantised alike");
  config_object group = c.inside("config_groups").inside(groups->begin().key());
  group.only_unless_null("format", format);
  group.only_unless_null("output_activations", nullptr);
  pass_keys(group, {"targets", "input_activations"});
  if (group.find_unless_null("weights") == nullptr) group.fail("weights", "an object");
  config_object w = group.inside("weights");
  const int bits = w.integer("num_bits", 8);
  const bool floats = w.text("type", "int", {"int", "float"}) == "float";
  const bool symmetric = w.flag("symmetric", true);
  w.only("dynamic", false);
  pass_keys(w, {"actorder", "observer", "observer_kwargs", "scale_dtype", "zp_dtype"});
  quantized_weights out;
  if (format == "pack-quantized") {
    w.only("type", "int");
    if (bits != 4 && bits != 8) w.fail("num_bits", "4 or 8");
    const bool in_groups = w.text("strategy", "channel", {"group", "channel"}) == "group";
    out = {form::packed, bits, in_groups ? read_group(w, 0) : 0};
    if (!in_groups) pass_keys(w, {"group_size"});
  } else if (format == "mxfp4-pack-quantized") {
    w.only("num_bits", 4);
    w.only("type", "float");
    w.only("strategy", "group");
    w.only("group_size", 32);
    if (!symmetric) w.fail("symmetric", "true, as floating-point numbers are");
    out = {form::mxfp4, 4, 32};
  } else {
    if (format != "naive-quantized") w.only("type", format == "int-quantized" ? "int" : "float");
    w.only("num_bits", 8);
    if (!floats && !symmetric) w.fail("symmetric", "true, where integers are not packed");
    const std::string strategy = w.text("strategy", "tensor", {"tensor", "channel", "group", "block"});
    out.blocks = {strategy == "tensor" ? scale_blocks::whole : 1, scale_blocks::whole};
    if (strategy == "group") {
      const std::int64_t columns = read_group(w, 0);
      if (columns > 0) out.blocks.columns = columns;
    }
    if (strategy == "block") out.blocks = read_blocks(w, "block_structure");
    pass_keys(w, {"group_size"});
  }
  pass_keys(w, {"block_structure"});
  w.no_others();
  group.no_others();
  return out;
}

// How files have matrices in fewer bits. Which matrices, the files say. Activations are not brought to fewer bits, as with transformers'
// `dequantize`.
inline quantized_weights read_quantization(config_object c) {
  const std::string method =
      c.text("quant_method", "", {"fp8", "fbgemm_fp8", "gptq", "awq", "compressed-tensors", "mxfp4"});
  quantized_weights out;
  if (method == "fp8") {
    out = read_fp8(c);
  } else if (method == "gptq") {
    out = read_gptq(c);
  } else if (method == "awq") {
    out = read_awq(c);
  } else if (method == "mxfp4") {
    c.flag("dequantize", false);
    pass_keys(c, {"modules_to_not_convert"});
    out = {quantized_weights::form::stacked_mxfp4, 4, 32};
  } else if (method == "fbgemm_fp8") {
    pass_keys(c, {"activation_scale_ub", "modules_to_not_convert"});
    out.blocks = {1, scale_blocks::whole};
  } else {
    out = read_compressed(c);
  }
  c.no_others();
  return out;
}

}  // namespace heddle::inline v0::model::detail
