// Searches training strategies for a model and a cluster, or explains one, before anything is started; draws a page, writes the best.
// run: --model @SOURCE_DIR@/examples/plan/llama2_7b.json --cluster @SOURCE_DIR@/examples/plan/cluster.json --batch 64 --strategy "mesh dp=2,pp=2,tp=8; schedule 1f1b; microbatches 16; recompute full" --html plan.html
// prints: dp=2 x pp=2 x tp=8: 32 of 64 devices
// prints: 6.74 G parameters, 262144 tokens a step
// prints: reduce_scatter_v
// prints: MFU
// prints: wrote plan.html
#include <heddle/core/error.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/json/hugging_face.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/explain.hpp>
#include <heddle/train/explain_page.hpp>
#include <heddle/train/json/cluster.hpp>
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
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;

namespace {

struct settings {
  std::filesystem::path model, cluster, html, write;
  std::string strategy;
  std::int64_t batch = 512;
  int context = 0, top = 10;
  std::vector<int> zero;
  bool cpp = false;
};

template <int Zero>
using strategy = hd::strategy<mesh_type, hd::schedule::named, hd::zero<Zero>, hd::activations::recompute<>>;

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

template <class Model>
int plan(typename Model::config config, const settings& s, const tr::cluster& on, output_file& page,
         output_file& chosen) {
  if (s.context > 0) config.context = s.context;
  tr::options<typename Model::config> o;
  o.model = config;
  o.batch = s.batch;
  const auto explain = [&](const tr::strategy_choice& c) { return tr::explain_choice<Model, strategy>(o, c, on); };
  const auto give = [&](const tr::strategy_choice& c) {
    chosen.write(to_string(c));
    if (s.cpp) std::printf("\n%s", to_cpp(c).c_str());
  };
  if (!s.strategy.empty()) {
    const tr::strategy_choice choice = given_strategy(s.strategy);
    const tr::explanation e = explain(choice);
    std::printf("%s", to_string(e).c_str());
    page.write(explain_page(e));
    give(choice);
    return e.fits() ? 0 : tool::failed;
  }
  tr::search_space space;
  space.axes.back().most = on.levels.front().devices;  // sums over tp stay in a node
  if (!s.zero.empty()) space.zero = s.zero;
  space.simulated = (std::max)(space.simulated, s.top);
  tr::search_result found = tr::search_on_paper<Model, strategy>(o, on, space);
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

int run(const settings& s) {
  output_file page(s.html), chosen(s.write);
  const auto file = std::filesystem::is_directory(s.model) ? s.model / "config.json" : s.model;
  const md::hugging_face_model m = md::from_config(hd::io::read_json(file), "'" + file.string() + "'");
  const tr::cluster on = tr::read_cluster(s.cluster);
  const auto go = [&]<class Model>(const typename Model::config& c) { return plan<Model>(c, s, on, page, chosen); };
  if (const auto* const c = std::get_if<md::gpt2_config>(&m.config)) return go.operator()<md::gpt2<float>>(*c);
  if (const auto* const c = std::get_if<md::llama_config>(&m.config))
    return m.tied ? go.operator()<md::tied_llama<float>>(*c) : go.operator()<md::llama<float>>(*c);
  if (const auto* const c = std::get_if<md::qwen2_config>(&m.config))
    return m.tied ? go.operator()<md::tied_qwen2<float>>(*c) : go.operator()<md::qwen2<float>>(*c);
  if (const auto* const c = std::get_if<md::qwen3_config>(&m.config))
    return m.tied ? go.operator()<md::tied_qwen3<float>>(*c) : go.operator()<md::qwen3<float>>(*c);
  throw hd::config_error("heddle: plan knows gpt2, llama, qwen2 and qwen3; this model is a " + std::string(m.family()) +
                         ", a mixture of experts, whose rows are known when it runs only");
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  tool::command_line app("Finds strategies for training a model on a cluster, or explains one, without either.",
                         "1: none fits the devices");
  app.add_option("--model", s.model, "folder with config.json, or such a file")->required();
  app.add_option("--cluster", s.cluster, "JSON: devices, memory, rates and levels of the network")->required();
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
