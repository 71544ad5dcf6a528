// diffusion_answers: trains a small masked model and decodes it with each rule; [STEPS]; --model FOLDER TOKEN...: a LLaDA.
// run: 40
// prints: one_per_run
// prints: tokens a forward
// varies: (step|threshold|one_per_run|credit|fixed_steps|none).*
#include <heddle/heddle.hpp>
#include <heddle/infer/diffusion.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/model/hugging_face/masked_models.hpp>
#include <heddle/model/masked.hpp>
#include <heddle/train.hpp>
#include <heddle/train/masked_targets.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace hd = heddle;
namespace inf = heddle::infer;
using mesh = hd::mesh<hd::axis<hd::tp, 1>>;
using model = hd::model::llada<float>;
using runner_type = inf::model_runner<model, hd::world<hd::threads, mesh>, hd::compute::host<>>;
using tokens = std::vector<std::int32_t>;
constexpr std::int32_t mask = 27;  // of the model that is trained here: letters, a space, the mask
std::string shown(const tokens& t, bool letters) {
  std::string text;
  for (const std::int32_t id : t)
    text += letters ? std::string(1, id == 26 ? ' ' : static_cast<char>('a' + id)) : std::to_string(id) + " ";
  return text;
}

template <class Cache, class Rule>
void decode(runner_type& runner, const char* name, Rule rule, std::int32_t mask_token, const tokens& prompt,
            bool letters) {
  using decoding = inf::diffusion<16, Rule, Cache>;
  inf::engine<runner_type, decoding> engine(runner, {}, decoding(rule, mask_token));
  engine.submit({.prompt = prompt, .max_tokens = 32, .sampling = {.temperature = 0}, .log_probabilities = 0});
  tokens answer;
  double loss = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (!engine.idle())
    for (const inf::event& e : engine.step())
      if (e.token) answer.push_back(*e.token), loss -= *e.log_probability / 32;
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  const inf::diffusion_counts c = engine.decoder().counts();
  std::printf("%-22s %5.2f tokens a forward, loss %.2f, %6.0f tokens/s: %s\n", name,
              static_cast<double>(c.committed) / static_cast<double>(c.forwards), loss, 32 / time.count(),
              shown(answer, letters).c_str());
}
void decode_all(runner_type& runner, std::int32_t mask_token, const tokens& prompt, bool letters) {
  decode<inf::none>(runner, "none, threshold", inf::threshold{0.9}, mask_token, prompt, letters);
  decode<inf::dual>(runner, "threshold", inf::threshold{0.9}, mask_token, prompt, letters);
  decode<inf::dual>(runner, "one_per_run", inf::one_per_run{0.9, 0.4}, mask_token, prompt, letters);
  decode<inf::dual>(runner, "credit", inf::credit{.tau = 0.9}, mask_token, prompt, letters);
  decode<inf::dual>(runner, "fixed_steps, 4 a block", inf::fixed_steps{4}, mask_token, prompt, letters);
}

int main(int argc, char** argv) try {
  const std::string folder = argc > 3 && std::string(argv[1]) == "--model" ? argv[2] : "";
  hd::launch<hd::threads, mesh>([&](auto& world) {
    hd::compute::host<> kernels;
    if (!folder.empty()) {
      const auto about = hd::model::masked_from_config(hd::io::read_json(folder + "/config.json"));
      if (about.family() != "llada") throw hd::config_error("give a folder of LLaDA");
      runner_type runner(std::get<hd::model::llama_config>(about.config), world, kernels, {64, 16}, 1024);
      const hd::io::safetensors_folder files(folder);
      hd::model::read_parameters(runner.stage(), hd::io::safetensors_reader(files), hd::model::llada_names{});
      tokens prompt;
      for (int i = 3; i < argc; ++i) prompt.push_back(std::stoi(argv[i]));
      return decode_all(runner, about.mask_token, prompt, false);
    }
    tokens text;  // words of weaving in any order
    const std::string words[] = {"warp ", "reed ", "heddle ", "loom ", "treadle ", "beam "};
    for (std::uint64_t i = 0; i < 20000; ++i)
      for (const char c : words[hd::counter_random(1, 2).integer(i) % 6]) text.push_back(c == ' ' ? 26 : c - 'a');
    hd::train::options<model::config> options{.batch = 16, .steps = argc == 2 ? std::stoi(argv[1]) : 400};
    options.learning_rate = {.peak = 1e-2, .warmup_steps = 20};
    options.model = {.layers = 2, .heads = 4, .kv_heads = 4, .width = 32, .ffn = 64, .context = 48, .vocabulary = 28};
    const hd::io::basic_dataset<std::int32_t> data(text, {.context = 48, .batch = 16});
    auto trainer = hd::train::make_trainer<hd::strategy<mesh>>(model{}, world, options);
    for (int step = 0; step < options.steps; ++step)
      if (const auto report = trainer.step(hd::train::masked_targets{&data, mask}); step % 100 == 99)
        std::printf("step %d  loss %.3f\n", step + 1, report.loss);
    runner_type runner(options.model, world, kernels, {8, 16}, 128);
    for (const auto& to : runner.stage().parameters())  // one rank: both stages hold whole parameters
      for (const auto& from : trainer.stage(0).parameters())
        if (to.name == from.name)
          std::copy_n(trainer.stage(0).weights().data() + from.offset, from.count,
                      runner.stage().weights().data() + to.offset);
    decode_all(runner, mask, tokens(text.begin(), text.begin() + 16), true);
  });
} catch (const std::exception& problem) {
  return std::fprintf(stderr, "%s\n", problem.what()), 1;
}
