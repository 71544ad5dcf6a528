// Searches training strategies for a model and a cluster, or explains one, before anything is started; draws a page, writes the best.
// run: --model @SOURCE_DIR@/examples/plan/llama2_7b.json --cluster @SOURCE_DIR@/examples/plan/cluster.json --batch 64 --strategy "mesh dp=2,pp=2,tp=8; schedule 1f1b; microbatches 16; recompute full" --html plan.html
// prints: dp=2 x pp=2 x tp=8: 32 of 64 devices
// prints: 6.74 G parameters, 262144 tokens a step
// prints: reduce_scatter_v
// prints: MFU
// prints: wrote plan.html
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/core/cores.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/hugging_face/config.hpp>
#include <heddle/model/hugging_face/spiking_brain.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/model/spiking_brain.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/cluster_file.hpp>
#include <heddle/train/explain.hpp>
#include <heddle/train/explain_page.hpp>
#include <heddle/train/measure_machine.hpp>
#include <heddle/train/products.hpp>
#include <heddle/train/search_on_paper.hpp>
#include <heddle/train/strategy_choice.hpp>

#include "tool.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <variant>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace tr = heddle::train;
using hd::dp, hd::ep, hd::pp, hd::tp;

namespace {

struct settings {
  std::filesystem::path model, cluster, here, html, write;
  std::string strategy, dtype = "f32";
  std::int64_t batch = 512;
  int context = 0, top = 10;
  std::vector<int> zero;
  bool cpp = false;
};

// What a program is compiled for: axes and the precision of products. Experts are on an axis of their own.
template <class Precision, class... Axes>
struct compiled {
  template <int Zero>
  using strategy = hd::strategy<hd::mesh<hd::axis<Axes>...>, hd::schedule::named, hd::zero<Zero>,
                                hd::activations::recompute<>, Precision>;
};
using dense = compiled<hd::precision<>, dp, pp, tp>;
using with_experts = compiled<hd::precision<>, dp, ep, pp, tp>;
using rounded = compiled<hd::precision<hd::products_in<hd::bf16>>, dp, pp, tp>;

// Opened before anything is computed.
class output_file {
 public:
  explicit output_file(std::filesystem::path path) : path_(std::move(path)) {
    if (path_.empty()) return;
    file_.open(path_, std::ios::binary | std::ios::app);  // whether it can be written; what is in it stays until then
    if (!file_) fail();
  }
  void write(const std::string& text) {
    if (path_.empty()) return;
    file_.close();
    file_.open(path_, std::ios::binary | std::ios::trunc);
    file_ << text;
    file_.close();
    if (!file_) fail();
    std::printf("wrote %s\n", path_.string().c_str());
  }
  bool asked() const { return !path_.empty(); }

 private:
  [[noreturn]] void fail() const { throw hd::io_error("heddle: cannot write '" + path_.string() + "'"); }
  std::filesystem::path path_;
  std::ofstream file_;
};

// A file, or its lines with semicolons between them and without the version.
tr::strategy_choice given_strategy(const std::string& text) {
  std::error_code none;  // a text may be longer than a name of a file can be
  if (std::filesystem::is_regular_file(text, none)) return tr::read_strategy_file(text);
  std::string lines = "version 1\n" + text;
  std::replace(lines.begin(), lines.end(), ';', '\n');
  return tr::read_strategy(lines, "--strategy");
}

template <class Model, class Compiled = dense>
int plan(typename Model::config config, const settings& s, const tr::cluster& on, output_file& page,
         output_file& chosen) {
  if (s.context > 0) config.context = s.context;
  tr::options<typename Model::config> o;
  o.model = config;
  o.batch = s.batch;
  const auto explain = [&](const tr::strategy_choice& c) {
    return tr::explain_choice<Model, Compiled::template strategy>(o, c, on);
  };
  const auto give = [&](const tr::strategy_choice& c) {
    chosen.write(to_string(c));
    if (s.cpp) std::printf("\n%s", to_cpp(c).c_str());
  };
  if (!s.strategy.empty()) {
    tr::strategy_choice choice = given_strategy(s.strategy);
    if (s.dtype == "bf16" && choice.dtype == "f32") choice.dtype = s.dtype;
    const tr::explanation e = explain(choice);
    std::printf("%s", to_string(e).c_str());
    page.write(explain_page(e));
    give(choice);
    return e.fits() ? 0 : tool::failed;
  }
  tr::search_space space;
  space.axes.back().most = on.levels.front().devices;  // sums over tp stay in a node
  if constexpr (requires { config.experts; })
    space.axes.push_back({"ep", (std::min)(config.experts, on.levels.front().devices)});
  if (!s.zero.empty()) space.zero = s.zero;
  space.simulated = (std::max)(space.simulated, s.top);
  tr::search_result found = tr::search_on_paper<Model, Compiled::template strategy>(o, on, space);
  found.best.resize((std::min)(found.best.size(), static_cast<std::size_t>(s.top)));
  const std::string text = to_string(found);
  std::printf("%s, %d devices\n%s", to_string(config).c_str(), on.devices, text.c_str());
  if (page.asked()) {
    const auto* const shown = !found.best.empty()      ? &found.best.front().choice
                              : !found.nearest.empty() ? &found.nearest.front().choice
                                                       : nullptr;
    page.write(shown == nullptr ? tr::text_page("No strategy", text) : explain_page(explain(*shown), text));
  }
  if (found.best.empty()) return tool::failed;
  give(found.best.front().choice);
  return 0;
}

// This machine: a rank on each core, and the kernels of the model's blocks.
template <class Model>
int measure(typename Model::config config, const settings& s, output_file& here) {
  if (s.context > 0) config.context = s.context;
  using backend = hd::compute::host<>;
  const int cores = hd::detail::available_cores();
  tr::cluster machine = tr::measure_machine<backend>(cores, hd::memory_limit() / cores);
  std::vector<int> ranks, samples;
  for (int n = 1; n <= cores; n *= 2) ranks.push_back(n);
  for (int n = 1; n <= 4 && n <= s.batch; n *= 2) samples.push_back(n);
  tr::measure_kernels<Model, backend>(machine, config, ranks, samples);
  std::printf("%d cores of %.3g FLOP/s and %.3g bytes/s; %d kernels of %s\n", cores, machine.device.flops,
              machine.device.bytes_per_second, static_cast<int>(machine.kernels.kernels().size()),
              to_string(config).c_str());
  here.write(tr::json_of_cluster(machine).dump(1) + "\n");
  return 0;
}

tr::cluster read_cluster(const settings& s) {
  if (s.cluster.empty()) throw tool::usage_error("plan needs --cluster FILE, or --here FILE to measure this machine");
  return tr::read_cluster(s.cluster);
}

int run(const settings& s) {
  output_file page(s.html), chosen(s.write), here(s.here);
  const auto file = std::filesystem::is_directory(s.model) ? s.model / "config.json" : s.model;
  const auto json = hd::io::read_json(file);
  const std::string what = "'" + file.string() + "'";
  if (md::is_spiking_brain(json)) {
    using model = md::spiking_brain<float>;
    const auto config = md::spiking_brain_from_config(json, what);
    if (here.asked()) return measure<model>(config, s, here);
    const tr::cluster on = read_cluster(s);
    if (s.dtype == "bf16" || (!s.strategy.empty() && given_strategy(s.strategy).dtype == "bf16"))
      throw hd::config_error("heddle: plan knows gpt2, llama and qwen3 in bf16; this model is a gla_swa");
    return plan<model>(config, s, on, page, chosen);
  }
  const md::hugging_face_model m = md::from_config(json, what);
  const auto* const gpt2 = std::get_if<md::gpt2_config>(&m.config);
  const auto* const llama = std::get_if<md::llama_config>(&m.config);
  const auto* const qwen2 = std::get_if<md::qwen2_config>(&m.config);
  const auto* const qwen3 = std::get_if<md::qwen3_config>(&m.config);
  const auto* const mixtral = std::get_if<md::mixtral_config>(&m.config);
  const auto unknown = [&](const std::string& those) {
    throw hd::config_error("heddle: plan " + those + "; this model is a " + (m.tied ? "tied " : "") +
                           std::string(m.family()));
  };
  if (here.asked()) {  // blocks of a Qwen have the kernels of a Llama's, but for biases and norms of heads
    if (gpt2 != nullptr) return measure<md::gpt2<float>>(*gpt2, s, here);
    const md::llama_config* const like = llama != nullptr   ? llama
                                         : qwen2 != nullptr ? qwen2
                                         : qwen3 != nullptr ? qwen3
                                                            : static_cast<const md::llama_config*>(nullptr);
    if (like == nullptr) unknown("--here measures gpt2, llama, qwen2 and qwen3");
    return measure<md::llama<float>>(*like, s, here);
  }
  const tr::cluster on = read_cluster(s);
  const auto go = [&]<class Model, class Compiled = dense>(const typename Model::config& c) {
    return plan<Model, Compiled>(c, s, on, page, chosen);
  };
  if (s.dtype == "bf16" || (!s.strategy.empty() && given_strategy(s.strategy).dtype == "bf16")) {
    if (gpt2 != nullptr) return go.operator()<md::gpt2<float>, rounded>(*gpt2);
    if (llama != nullptr && !m.tied) return go.operator()<md::llama<float>, rounded>(*llama);
    if (qwen3 != nullptr && !m.tied) return go.operator()<md::qwen3<float>, rounded>(*qwen3);
    unknown("knows gpt2, llama and qwen3 in bf16, of the last two those whose head is not tied");
  }
  if (gpt2 != nullptr) return go.operator()<md::gpt2<float>>(*gpt2);
  if (llama != nullptr)
    return m.tied ? go.operator()<md::tied_llama<float>>(*llama) : go.operator()<md::llama<float>>(*llama);
  if (qwen2 != nullptr)
    return m.tied ? go.operator()<md::tied_qwen2<float>>(*qwen2) : go.operator()<md::qwen2<float>>(*qwen2);
  if (qwen3 != nullptr)
    return m.tied ? go.operator()<md::tied_qwen3<float>>(*qwen3) : go.operator()<md::qwen3<float>>(*qwen3);
  if (mixtral != nullptr && !m.tied) return go.operator()<md::mixtral<float>, with_experts>(*mixtral);
  unknown("knows gpt2, llama, qwen2, qwen3, mixtral and gla_swa (SpikingBrain)");
  return tool::failed;
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  tool::command_line app("Finds strategies for training a model on a cluster, or explains one, without either.",
                         "1: none fits the devices");
  app.add_option("--model", s.model, "folder with config.json, or such a file")->required();
  auto* const cluster =
      app.add_option("--cluster", s.cluster, "JSON: devices, memory, rates and levels of the network");
  app.add_option("--here", s.here, "measures this machine and kernels of the model, and writes such a file")
      ->excludes(cluster);
  app.add_option("--dtype", s.dtype, "of products: f32, or bf16 (operands rounded, sums in float)")
      ->one_of({"f32", "bf16"});
  auto* const given = app.add_option("--strategy", s.strategy,
                                     "explains this one: a file, or 'mesh dp=2,pp=2,tp=2; schedule 1f1b; zero 1'");
  app.add_option("--batch", s.batch, "samples of a step")->range(1, 1048576);
  app.add_option("--context", s.context, "tokens of a sample; 0: as the model has it")->range(0, 1 << 24);
  app.add_option("--zero", s.zero, "ZeRO stages that are tried")
      ->delimiter(',')
      ->range(0, 3)
      ->otherwise("0,1,2,3")
      ->excludes(given);
  app.add_option("--top", s.top, "strategies that are shown")->range(1, 1000)->excludes(given);
  app.add_option("--html", s.html, "page with pictures, written here");
  app.add_option("--write", s.write, "the best strategy, written here for gpt2_train --plan");
  app.add_flag("--cpp", s.cpp, "prints the best as C++");
  return tool::run(app, argc, argv, [&] { return run(s); });
}
