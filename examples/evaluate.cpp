// Evaluates a model of Hugging Face on a mesh of dp x pp x ep x tp ranks: mean loss, perplexity and the logits of the last position, or how
// many questions of a file it answers as it should.
// run: --model @SOURCE_DIR@/tests/golden/models/llama3 --tokens 1,2,3,4,5 --tokens 7,8 --mesh dp=2,tp=2
// prints: llama  3 layers of width 36, f32 on dp=2 x pp=1 x tp=2
// prints: perplexity
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/families.hpp>
#include HEDDLE_GEMM_HEADER

#include "model_folder.hpp"
#include "text_tokens.hpp"
#include "token_ids.hpp"
#include "tool.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace io = heddle::io;
namespace md = heddle::model;
using hd::dp, hd::pp;
using backend = hd::compute::host<HEDDLE_GEMM>;

namespace {

struct settings {
  std::string model, blocks, text, tasks, delimiter = " ", mesh = "dp=1", dtype = "f32";
  std::vector<std::string> tokens, ignored_keys;
  bool json = false, bytes = false;
};

using sample = io::token_targets;

struct evaluation {
  std::vector<double> losses;  // of each sample, the sum over its targets
  std::int64_t targets = 0;
  std::vector<std::vector<double>> last_logits;  // of each sample
  std::vector<std::int64_t> bytes_read;          // by each rank

  double loss() const { return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(targets); }
};

// A text in which each token behind the first is a target; nothing follows the last one.
sample text_sample(std::vector<std::int32_t> tokens) {
  sample one{std::move(tokens), {}};
  one.targets.assign(one.tokens.begin() + 1, one.tokens.end());
  one.targets.push_back(sample::ignored);
  return one;
}

// One sample through the stages of this rank's pipeline; the last stage keeps what it finds.
template <class World, class T>
void forward(World& world, md::any_stage<T>& stage, const sample& of, double& loss, std::vector<double>* last) {
  auto& neighbours = world.template along<pp>();
  const md::batch<T> batch{of.tokens, of.targets, 1, T(1), static_cast<int>(of.tokens.size())};
  const auto elements = static_cast<std::size_t>(stage.boundary_elements(1, batch.sequence));
  std::vector<T> in(stage.is_first() ? 0 : elements), out(stage.is_last() ? 0 : elements);
  if (!stage.is_first()) neighbours.recv(std::span<T>(in), neighbours.rank() - 1);
  const double sum = stage.forward_only(batch, in, out);
  if (!stage.is_last()) return neighbours.send(std::span<const T>(out), neighbours.rank() + 1);
  if (is_first_copy(world)) loss = sum;
  if (last == nullptr) return;
  std::vector<T> logits(static_cast<std::size_t>(stage.vocabulary()));
  stage.last_logits(batch, in, out, logits);  // what came from the stage before is still there
  if (is_first_copy(world)) last->assign(logits.begin(), logits.end());
}

// `logits`: whether those of the last positions are kept.
evaluation evaluate(const settings& s, const md::hugging_face_model& about, const std::vector<sample>& samples,
                    bool logits) {
  std::size_t longest = 1;
  for (const sample& one : samples) longest = (std::max)(longest, one.tokens.size());
  if (const int context = md::any_config(about).context; longest > static_cast<std::size_t>(context))
    throw hd::config_error("heddle: a sample of " + std::to_string(longest) + " tokens, the model's context is " +
                           std::to_string(context));
  const md::any_config config(about, static_cast<int>(longest));  // memory for no more
  const auto mesh = mesh_for(s.mesh, config);
  evaluation found;
  found.losses.resize(samples.size());
  if (logits) found.last_logits.resize(samples.size());
  found.bytes_read.resize(static_cast<std::size_t>(mesh.size()));
  const auto outlines = md::outlines_of<float>(config);
  const model_weights weights(s.model, about, outlines);
  std::optional<tool::progress> shown(std::in_place, "loading", std::ssize(outlines), "tensors");
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    const bool is_first = is_first_copy(world);
    backend kernels{1};
    const auto stage = md::make_stage<float>(
        config, world, kernels,
        md::split_layers(config.layers, world.template coordinate<pp>(), mesh.template extent<pp>()), 1, 1);
    found.bytes_read[static_cast<std::size_t>(world.rank())] =
        weights.read(*stage, *shown, is_first && world.template coordinate<dp>() == 0);
    world.control().barrier();
    if (world.rank() == 0) shown.emplace("evaluating", std::ssize(samples), "samples");
    world.control().barrier();
    const auto replicas = static_cast<std::size_t>(mesh.template extent<dp>());
    for (auto i = static_cast<std::size_t>(world.template coordinate<dp>()); i < samples.size(); i += replicas) {
      forward(world, *stage, samples[i], found.losses[i], logits ? &found.last_logits[i] : nullptr);
      if (is_first && stage->is_last()) shown->add();
    }
  });
  for (const sample& one : samples)
    found.targets += std::ranges::count_if(one.targets, [](std::int32_t id) { return id >= 0; });
  return found;
}

std::string mesh_of(const settings& s) {
  return words_of(hd::parse_mesh<tool_mesh>(s.mesh));
}
void print_head(const settings& s, const md::hugging_face_model& about) {
  const md::any_config c(about);
  std::printf("%s  %d layers of width %d, %s on %s\n", std::string(about.family()).c_str(), c.layers, c.width,
              s.dtype.c_str(), mesh_of(s).c_str());
}

void print(const settings& s, const md::hugging_face_model& about, const evaluation& e) {
  if (s.json) {
    std::printf("%s\n", json_line({{"family", std::string(about.family())},
                                   {"mesh", mesh_of(s)},
                                   {"dtype", s.dtype},
                                   {"targets", e.targets},
                                   {"loss", e.loss()},
                                   {"perplexity", std::exp(e.loss())},
                                   {"last_logits", e.last_logits},
                                   {"bytes_read", e.bytes_read}})
                            .c_str());
    return;
  }
  print_head(s, about);
  for (std::size_t i = 0; i < e.last_logits.size(); ++i) {
    std::vector<std::size_t> order(e.last_logits[i].size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const std::size_t shown = (std::min)(order.size(), std::size_t{5});
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown), order.end(),
                      [&](std::size_t a, std::size_t b) { return e.last_logits[i][a] > e.last_logits[i][b]; });
    std::printf("sample %zu  likeliest next tokens:", i);
    for (std::size_t k = 0; k < shown; ++k) std::printf(" %zu (%.4f)", order[k], e.last_logits[i][order[k]]);
    std::printf("\n");
  }
  if (e.targets == 0) return;
  std::printf("loss        %.6f, mean over %lld targets\nperplexity  %.6f\n", e.loss(),
              static_cast<long long>(e.targets), std::exp(e.loss()));
}

// How many questions are answered as they should be, by the names of lm-evaluation-harness.
void print_answers(const settings& s, const md::hugging_face_model& about, const asked_choices& asked,
                   const evaluation& e) {
  std::vector<double> likelihoods;
  for (const double loss : e.losses) likelihoods.push_back(-loss);
  const io::choice_counts found = io::count_right(asked.tasks, likelihoods);
  const std::pair<const char*, std::int64_t> all[] = {
      {"acc", found.right}, {"acc_norm", found.right_by_length}, {"acc_bytes", found.right_by_bytes}};
  if (s.json) {
    std::vector<std::pair<std::string, json_value>> line{
        {"family", std::string(about.family())}, {"mesh", mesh_of(s)}, {"dtype", s.dtype}, {"tasks", found.tasks}};
    for (const auto& [name, right] : all) {
      line.emplace_back(name, found.accuracy(right));
      line.emplace_back(std::string(name) + "_stderr", found.error(right));
    }
    std::vector<std::vector<double>> of_tasks;
    auto next = likelihoods.begin();
    for (const io::choice_task& task : asked.tasks) {
      const auto end = next + std::ssize(task.choices);
      of_tasks.emplace_back(next, end);
      next = end;
    }
    line.emplace_back("log_likelihoods", of_tasks);
    std::printf("%s\n", json_line(line).c_str());
    return;
  }
  print_head(s, about);
  std::printf("questions  %lld with %zu choices\n", static_cast<long long>(found.tasks), likelihoods.size());
  for (const auto& [name, right] : all)
    std::printf("%-9s  %.4f +- %.4f\n", name, found.accuracy(right), found.error(right));
}

// Tokens of a text, cut into samples of the model's context. Each sample but the first begins with the last token of the one before
// it, so that every token but the first is a target once.
std::vector<sample> samples_of_text(const settings& s, int vocabulary, int context) {
  const auto ids = text_tokens(s.model, s.text, vocabulary, s.bytes);
  if (ids.size() < 2) throw hd::config_error("heddle: '" + s.text + "' has fewer than two tokens");
  if (context < 2) throw hd::config_error("heddle: --text takes a model with a context of at least two tokens");
  std::vector<sample> samples;
  for (std::size_t first = 0; first + 1 < ids.size(); first += static_cast<std::size_t>(context) - 1) {
    const auto from = ids.begin() + static_cast<std::ptrdiff_t>(first);
    const auto count = (std::min)(static_cast<std::size_t>(context), ids.size() - first);
    samples.push_back(text_sample({from, from + static_cast<std::ptrdiff_t>(count)}));
  }
  return samples;
}

void run(const settings& s) {
  if (s.tokens.empty() && s.text.empty() && s.tasks.empty())
    throw hd::config_error("heddle: --tokens is required, or --text, or --tasks");
  tool::require_model(s.model);
  std::vector<sample> samples;
  for (const std::string& text : s.tokens) samples.push_back(text_sample(parse_tokens(text)));
  const auto about = read_model_folder(s.model, s.ignored_keys, s.blocks).about;
  if (!s.tasks.empty()) {
    const asked_choices asked = ask_choices(s.model, s.tasks, s.delimiter, md::any_config(about).context, s.bytes);
    return print_answers(s, about, asked, evaluate(s, about, asked.samples, false));
  }
  if (!s.text.empty()) {
    const md::any_config c(about);
    const auto more = samples_of_text(s, c.vocabulary, c.context);
    samples.insert(samples.end(), more.begin(), more.end());
  }
  print(s, about, evaluate(s, about, samples, true));
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  tool::command_line app("Evaluates a model of Hugging Face on a mesh of dp x pp x ep x tp ranks.");
  app.add_option("--model", s.model, "folder with config.json and safetensors")->required();
  tool::option* const tokens =
      app.add_option("--tokens", s.tokens, "a sample: ids with commas between them")->take_all();
  tool::option* const text = app.add_option("--text", s.text, "text file, as tokens of the folder's tokenizer");
  tool::option* const tasks =
      app.add_option("--tasks", s.tasks, "questions, a line of JSON each: context, choices, answer")
          ->excludes(tokens)
          ->excludes(text);
  app.add_option("--delimiter", s.delimiter, "text between a context and a choice")->otherwise("a space")->needs(tasks);
  app.add_flag("--bytes", s.bytes, bytes_help);
  app.add_option("--mesh", s.mesh, "ranks along dp, pp, ep (of models with experts) and tp, as in pp=2,tp=2");
  app.add_option("--dtype", s.dtype, "type of weights and arithmetic")->one_of({"f32"});
  app.add_flag("--json", s.json, "print one line of JSON, with all logits");
  add_blocks(app, s.blocks);
  add_ignored_keys(app, s.ignored_keys);
  return tool::run(app, argc, argv, [&] { run(s); });
}
