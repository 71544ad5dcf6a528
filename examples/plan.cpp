// Explains a training strategy before anything is started: memory of each rank, what is sent, times, a page with pictures.
// run: --model @SOURCE_DIR@/examples/plan/llama2_7b.json --cluster @SOURCE_DIR@/examples/plan/cluster.json --batch 64 --strategy "mesh dp=2 pp=2 tp=8; schedule 1f1b; microbatches 16; zero 1; recompute full" --html plan.html
// prints: dp=2 x pp=2 x tp=8: 32 of 64 devices
// prints: 6.74 G parameters, 262144 tokens a step
// prints: reduce_scatter_v
// prints: MFU
// prints: wrote plan.html
#include <heddle/core/error.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/json/hugging_face.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/explain.hpp>
#include <heddle/train/explain_page.hpp>
#include <heddle/train/json/cluster.hpp>

#include "plan/strategy_text.hpp"
#include "tool.hpp"

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <type_traits>
#include <variant>

namespace hd = heddle;
namespace md = heddle::model;
namespace tr = heddle::train;
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;

namespace {

struct settings {
  std::filesystem::path model, cluster, html;
  std::string strategy;
  std::int64_t batch = 512;
  int context = 0;
};

template <int Zero>
using strategy = hd::strategy<mesh_type, hd::schedule::named, hd::zero<Zero>, hd::activations::recompute<>>;

// The ZeRO stage is a type, the rest is known when the program runs.
template <class Model>
tr::explanation explain(typename Model::config config, const settings& s, const strategy_text& text,
                        const tr::cluster& on) {
  if (s.context > 0) config.context = s.context;
  tr::options<typename Model::config> o;
  o.model = config;
  o.batch = s.batch;
  o.microbatches = text.microbatches;
  o.schedule = text.schedule;
  o.recompute = text.recompute;
  o.layers_per_stage = text.layers;
  const auto mesh = hd::parse_mesh<mesh_type>(text.mesh);
  switch (text.zero) {
    case 0:
      return tr::explain<Model, strategy<0>>(o, mesh, on);
    case 1:
      return tr::explain<Model, strategy<1>>(o, mesh, on);
    case 2:
      return tr::explain<Model, strategy<2>>(o, mesh, on);
    default:
      return tr::explain<Model, strategy<3>>(o, mesh, on);
  }
}

template <class T>
tr::explanation explain(const md::hugging_face_model& m, const settings& s, const strategy_text& text,
                        const tr::cluster& on) {
  if (const auto* const c = std::get_if<md::gpt2_config>(&m.config)) return explain<md::gpt2<T>>(*c, s, text, on);
  if (const auto* const c = std::get_if<md::llama_config>(&m.config))
    return m.tied ? explain<md::tied_llama<T>>(*c, s, text, on) : explain<md::llama<T>>(*c, s, text, on);
  if (const auto* const c = std::get_if<md::qwen2_config>(&m.config))
    return m.tied ? explain<md::tied_qwen2<T>>(*c, s, text, on) : explain<md::qwen2<T>>(*c, s, text, on);
  if (const auto* const c = std::get_if<md::qwen3_config>(&m.config))
    return m.tied ? explain<md::tied_qwen3<T>>(*c, s, text, on) : explain<md::qwen3<T>>(*c, s, text, on);
  throw hd::config_error("heddle: plan explains gpt2, llama, qwen2 and qwen3; this model is a " +
                         std::string(m.family()) + ", a mixture of experts, whose rows are known when it runs only");
}

int run(const settings& s) {
  std::ofstream page;
  if (!s.html.empty()) {
    page.open(s.html);
    if (!page) throw hd::io_error("heddle: cannot write '" + s.html.string() + "'");
  }
  const auto file = std::filesystem::is_directory(s.model) ? s.model / "config.json" : s.model;
  const md::hugging_face_model model = md::from_config(hd::io::read_json(file), "'" + file.string() + "'");
  const tr::explanation e = explain<float>(model, s, parse_strategy(s.strategy), tr::read_cluster(s.cluster));
  std::printf("%s", to_string(e).c_str());
  if (!s.html.empty()) {
    page << tr::explain_page(e);
    page.close();
    if (!page) throw hd::io_error("heddle: cannot write '" + s.html.string() + "'");
    std::printf("wrote %s\n", s.html.string().c_str());
  }
  return e.fits() ? 0 : tool::failed;
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  tool::command_line app("Explains a strategy for training a model on a cluster, without either.",
                         "1: it does not fit the devices");
  app.add_option("--model", s.model, "folder with config.json, or such a file")->required();
  app.add_option("--cluster", s.cluster, "JSON: devices, memory, rates and levels of the network")->required();
  app.add_option("--strategy", s.strategy, "such as 'mesh dp=2 pp=2 tp=2; schedule 1f1b; zero 1'")->required();
  app.add_option("--batch", s.batch, "samples of a step")->range(1, 1048576);
  app.add_option("--context", s.context, "tokens of a sample; 0: as the model has it")->range(0, 1 << 24);
  app.add_option("--html", s.html, "page with pictures, written here");
  return tool::run(app, argc, argv, [&] { return run(s); });
}
