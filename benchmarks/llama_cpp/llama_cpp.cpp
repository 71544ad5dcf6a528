// Decoding one sequence by heddle and by llama.cpp, in one process, with the same random weights and tokens, the two taking turns: a Llama of
// 100 million weights in products, in float, bf16 and 8 bits (q8: weights; w8a8: activations, too,
// as llama.cpp has them in both). Usage: llama_cpp [threads = 1] [steps = 28] [f32|bf16|q8|w8a8]...
// `run` beside this file builds llama.cpp and this program. llama.cpp reads the weights from a GGUF file that is written first.
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/packed_weights.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/model/llama.hpp>

#include "../llama_100m.hpp"
#include "../read_bandwidth.hpp"

#include <ggml.h>
#include <gguf.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;
namespace cp = heddle::compute;

namespace {

constexpr md::llama_config shape = llama_100m;

/// The name that llama.cpp has for a parameter of Hugging Face's.
std::string gguf_name(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> parts[] = {
      {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},   {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"}, {"mlp.gate_proj", "ffn_gate"},    {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},       {"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"},
  };
  if (name == "model.embed_tokens.weight") return "token_embd.weight";
  if (name == "model.norm.weight") return "output_norm.weight";
  if (name == "lm_head.weight") return "output.weight";
  constexpr std::string_view layers = "model.layers.";
  if (name.starts_with(layers)) {
    name.remove_prefix(layers.size());
    const std::size_t dot = name.find('.');
    const std::string_view number = name.substr(0, dot), rest = name.substr(dot + 1);
    for (const auto& [from, to] : parts)
      if (rest.substr(0, rest.rfind('.')) == from)
        return "blk." + std::string(number) + "." + std::string(to) + ".weight";
  }
  throw std::runtime_error("no tensor of llama.cpp for " + std::string(name));
}

/// Rows of q and k as llama.cpp wants them: positions turn neighbours there, and halves of a head in Hugging Face's order.
std::vector<float> neighbours(std::span<const float> w, std::int64_t head_dim, std::int64_t columns) {
  std::vector<float> out(w.size());
  const auto rows = static_cast<std::int64_t>(w.size()) / columns;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t head = r / head_dim, i = r % head_dim, half = head_dim / 2;
    const std::int64_t to = head * head_dim + (i < half ? 2 * i : 2 * (i - half) + 1);
    std::copy_n(w.data() + r * columns, columns, out.data() + to * columns);
  }
  return out;
}

struct free_of_c {
  void operator()(gguf_context* x) const { gguf_free(x); }
  void operator()(ggml_context* x) const { ggml_free(x); }
  void operator()(llama_model* x) const { llama_model_free(x); }
  void operator()(llama_context* x) const { llama_free(x); }
};
template <class T>
using owned = std::unique_ptr<T, free_of_c>;

/// Matrices in `type`, the rest in float, as llama.cpp's own converter does.
void write_gguf(const std::string& path, std::span<const md::parameter> parameters, const float* weights,
                ggml_type type) {
  const owned<gguf_context> file(gguf_init_empty());
  gguf_set_val_str(file.get(), "general.architecture", "llama");
  gguf_set_val_str(file.get(), "tokenizer.ggml.model", "no_vocab");
  const auto set = [&](const char* key, std::int64_t x) {
    gguf_set_val_u32(file.get(), key, static_cast<std::uint32_t>(x));
  };
  set("llama.vocab_size", shape.vocabulary);
  set("llama.context_length", shape.context);
  set("llama.embedding_length", shape.width);
  set("llama.block_count", shape.layers);
  set("llama.feed_forward_length", shape.ffn);
  set("llama.attention.head_count", shape.heads);
  set("llama.attention.head_count_kv", shape.kv_heads);
  set("llama.rope.dimension_count", shape.head_dim());
  gguf_set_val_f32(file.get(), "llama.rope.freq_base", static_cast<float>(shape.theta));
  gguf_set_val_f32(file.get(), "llama.attention.layer_norm_rms_epsilon", static_cast<float>(shape.epsilon));
  std::size_t bytes = 0;
  for (const md::parameter& p : parameters) bytes += static_cast<std::size_t>(p.count) * 4 + 4096;
  const owned<ggml_context> tensors(ggml_init({bytes, nullptr, false}));
  for (const md::parameter& p : parameters) {
    std::span<const float> w(weights + p.offset, static_cast<std::size_t>(p.count));
    const std::int64_t columns = p.shape.back(), rows = p.count / columns;
    std::vector<float> turned;
    if (p.name.ends_with("q_proj.weight") || p.name.ends_with("k_proj.weight"))
      w = turned = neighbours(w, shape.head_dim(), columns);
    const ggml_type as = p.shape.size() == 1 ? GGML_TYPE_F32 : type;
    ggml_tensor* const t = p.shape.size() == 1 ? ggml_new_tensor_1d(tensors.get(), as, columns)
                                               : ggml_new_tensor_2d(tensors.get(), as, columns, rows);
    ggml_set_name(t, gguf_name(p.name).c_str());
    ggml_quantize_chunk(as, w.data(), t->data, 0, rows, columns, nullptr);
    gguf_add_tensor(file.get(), t);
  }
  if (!gguf_write_to_file(file.get(), path.c_str(), false)) throw std::runtime_error("cannot write " + path);
}

/// llama.cpp with keys and values in float, as heddle has them here.
class other {
 public:
  other(const std::string& path, int threads) {
    llama_model_params m = llama_model_default_params();
    m.n_gpu_layers = 0;
    model_.reset(llama_model_load_from_file(path.c_str(), m));
    if (!model_) throw std::runtime_error("llama.cpp does not read " + path);
    llama_context_params c = llama_context_default_params();
    c.n_ctx = shape.context;
    c.n_threads = c.n_threads_batch = threads;
    c.type_k = c.type_v = GGML_TYPE_F32;
    context_.reset(llama_init_from_model(model_.get(), c));
    if (!context_) throw std::runtime_error("llama.cpp makes no context");
  }
  void step(std::int32_t token) {
    if (llama_decode(context_.get(), llama_batch_get_one(&token, 1)) != 0)
      throw std::runtime_error("llama_decode failed");
  }
  std::span<const float> logits() {
    return {llama_get_logits_ith(context_.get(), -1), static_cast<std::size_t>(shape.vocabulary)};
  }

 private:
  owned<llama_model> model_;
  owned<llama_context> context_;
};

std::size_t likeliest(std::span<const float> x) {
  return static_cast<std::size_t>(std::max_element(x.begin(), x.end()) - x.begin());
}

template <class Format>
void compare(const char* name, ggml_type type, int threads, int steps) {
  using backend = cp::packed_weights<cp::host<>, Format>;
  hd::launch<hd::threads, hd::mesh<hd::axis<hd::tp, 1>>>([&](auto& world) {
    using world_type = std::remove_cvref_t<decltype(world)>;
    backend kernels{threads};
    constexpr std::int64_t block_rows = 16, blocks = shape.context / block_rows;
    inf::model_runner<md::llama<float>, world_type, backend> runner(shape, world, kernels, {blocks, block_rows}, 16);
    runner.stage().initialize(1);
    const std::string path =
        (std::filesystem::temp_directory_path() / ("heddle_llama_cpp_" + std::string(name) + ".gguf")).string();
    write_gguf(path, runner.stage().parameters(), runner.stage().weights().data(), type);
    other theirs(path, threads);
    std::filesystem::remove(path);
    kernels.pack(runner.stage().weights());

    std::vector<float> logits(static_cast<std::size_t>(shape.vocabulary));
    inf::step s;
    for (std::int64_t b = 0; b < blocks; ++b) s.blocks.push_back(static_cast<std::int32_t>(b));
    s.wanted = {0};
    std::vector<double> ours_wall, theirs_wall, ratio, ratio_of_processor;
    int same = 0;
    double largest = 0, apart = 0;
    for (int i = 0; i < steps + 4; ++i) {
      const auto token = static_cast<std::int32_t>((29 * i + 5) % shape.vocabulary);
      s.sequences = {{0, 1, i, 0, blocks}};
      s.tokens = {token};
      spent a, b;
      const auto ours = [&] { a = time_of([&] { runner.run(s, std::span<float>(logits)); }); };
      const auto yours = [&] { b = time_of([&] { theirs.step(token); }); };
      if (i % 2 == 0)
        ours(), yours();
      else
        yours(), ours();
      const std::span<const float> their_logits = theirs.logits();
      same += likeliest(logits) == likeliest(their_logits) ? 1 : 0;
      for (std::size_t j = 0; j < logits.size(); ++j) {
        largest = (std::max)(largest, static_cast<double>(std::abs(their_logits[j])));
        apart = (std::max)(apart, static_cast<double>(std::abs(their_logits[j] - logits[j])));
      }
      if (i < 4) continue;  // warm up
      ours_wall.push_back(a.wall * 1e3);
      theirs_wall.push_back(b.wall * 1e3);
      ratio.push_back(b.wall / a.wall);
      ratio_of_processor.push_back(b.processor / a.processor);
    }
    std::printf(
        "%-5s heddle %6.2f ms a token, llama.cpp %6.2f; speed against llama.cpp %.2f by the clock, %.2f of the "
        "processor; same likeliest token %d of %d, logits at most %.1e of the largest apart\n",
        name, median(ours_wall), median(theirs_wall), median(ratio), median(ratio_of_processor), same, steps + 4,
        apart / largest);
    std::fflush(stdout);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1, steps = argc > 2 ? std::atoi(argv[2]) : 28;
  if (threads < 1 || steps < 1 || steps > shape.context - 4) {
    std::fprintf(stderr, "usage: llama_cpp [threads >= 1] [1 <= steps <= %d] [f32|bf16|q8|w8a8]...\n",
                 shape.context - 4);
    return 2;
  }
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  const auto wanted = [&](std::string_view name) {
    return argc < 4 || std::find(argv + 3, argv + argc, name) != argv + argc;
  };
  if (wanted("f32")) compare<cp::f32_weights>("f32", GGML_TYPE_F32, threads, steps);
  if (wanted("bf16")) compare<cp::bf16_weights>("bf16", GGML_TYPE_BF16, threads, steps);
  if (wanted("q8")) compare<cp::q8_weights<32>>("q8", GGML_TYPE_Q8_0, threads, steps);
  if (wanted("w8a8")) compare<cp::w8a8_weights<32>>("w8a8", GGML_TYPE_Q8_0, threads, steps);
}
