// Trains a Llama or Qwen of Hugging Face by reinforcement learning: prompts from JSON lines, rewards by a command, a
// published system's pipeline on any ranks; docs/tutorial/rl.md shows its output.
// run: --model @SOURCE_DIR@/tests/golden/models/bytes --bytes --prompts @SOURCE_DIR@/examples/rl_finetune/sums.jsonl --reward "python3 -SE @SOURCE_DIR@/examples/rl_finetune/judge.py" --system april --train dp=2 --generate tp=2 --steps 10 --batch-prompts 2 --answers 4 --max-tokens 3 --kl 0.01 --lr 0.01 --out out
// prints: april: colocated, synchronous, interrupted, 2 batches begun
// prints: llama  2 layers of width 12, whole: 5508 of 5508 parameters are trained
// prints: step    10/10
// prints: wrote 'out'
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/cores.hpp>
#include <heddle/infer/generation_config.hpp>
#include <heddle/io/output_folder.hpp>
#include <heddle/io/permutation.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/model/with_lora.hpp>
#include <heddle/rl/run.hpp>
#include <heddle/rl/save.hpp>
#include <heddle/rl/subprocess.hpp>
#include HEDDLE_GEMM_HEADER

#include "model_folder.hpp"
#include "rl_finetune/prompts.hpp"
#include "text_tokens.hpp"
#include "tool.hpp"
#include "trained_folder.hpp"
#include "training_saves.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace hd = heddle;
namespace io = heddle::io;
namespace md = heddle::model;
namespace rl = heddle::rl;
using hd::dp, hd::pp, hd::tp;
using train_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using generate_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>, hd::axis<rl::replica>>;
using strategy = hd::strategy<train_mesh, hd::zero<1>, hd::compute::host<HEDDLE_GEMM>>;

namespace {

struct settings {
  std::string model, prompts, reward, out, save, system = "hybridflow", objective = "ppo", train = "dp=1",
                                                 generate = "dp=1";
  std::vector<std::string> ignored_keys;
  std::int64_t steps = 100, batch_prompts = 16, answers = 8, max_tokens = 128, sequences = 64, save_every = 0,
               judge_memory = 512, most_bytes = 5000000000;
  int microbatches = 1, lora = 0, judges = 0, judge_cpu = 10;
  double lr = 1e-5, kl = 0, temperature = 1, alpha = 0, judge_seconds = 20;
  std::uint64_t seed = 1;
  bool bytes = false, resume = false;
};

rl::any_objective objective_of(const settings& s) {
  const auto with = [&](const auto& o) -> rl::any_objective {
    using type = std::remove_cvref_t<decltype(o)>;
    if (s.kl > 0) return rl::with_kl<type>{o, s.kl};
    return o;
  };
  if (s.objective == "ppo") return with(rl::ppo{});
  if (s.objective == "aipo") return with(rl::aipo{});
  return with(rl::reinforce{});
}

// What is said of each step, and written at the end.
template <class Config>
struct reporter {
  const settings& s;
  const trained_folder& folder;
  const Config& config;
  const std::filesystem::path& out;
  bool speaks;
  int& stopped_by;  // the signal that ended the run before its last batch; of rank 0
  std::int64_t batches = 0;

  void operator()(const rl::run_report& r) {
    batches = r.batch + 1;
    if (!speaks) return;
    std::printf("step %5lld/%lld  reward %.3f  lag %.2f (most %lld)  ess %.3f", static_cast<long long>(r.batch + 1),
                static_cast<long long>(s.steps), r.reward, r.mean_lag, static_cast<long long>(r.greatest_lag),
                r.statistics.effective_share());
    if (s.kl > 0) std::printf("  kl %.5f", r.statistics.reference_divergence());
    std::printf("  %.0f tok/s%s\n", static_cast<double>(r.tokens) / r.seconds,
                r.training.steps == 0 ? "  no step: rewards of each group are equal" : "");
    if (r.missing > 0)
      std::printf("  %lld rewards are missing; the first: %s\n", static_cast<long long>(r.missing),
                  r.why_missing.c_str());
    std::fflush(stdout);
  }
  template <class Trainer>
  void finished(Trainer& trainer) const {
    if (batches < s.steps)
      if (const int number = training_saves::signal_that_stopped(trainer, s.save); number != 0) {
        if (speaks) stopped_by = number;
        return;
      }
    folder.write(trainer, out, config);
  }
};

// Returns the signal that ended the training, or 0.
template <class Base>
int finetune(const settings& s, const model_folder& of, const typename Base::config& config,
              const std::vector<prompt>& prompts, const io::tokenizer& tokenizer, io::output_folder& out) {
  const rl::flow how = rl::flow_named(s.system);
  const rl::meshes<train_mesh, generate_mesh> where{hd::parse_mesh<train_mesh>(s.train),
                                                    hd::parse_mesh<generate_mesh>(s.generate)};
  const trained_folder folder(s.model, of, md::parameter_outlines(Base::describe(config)), s.most_bytes);
  out.require_room(folder.bytes_to_write());
  hd::train::copy_side_files(s.model, out.path());
  using policy = rl::policy<Base, rl::any_objective>;
  hd::train::options<typename policy::config> options;
  static_cast<typename Base::config&>(options.model) = config;
  options.model.objective = objective_of(s);
  options.microbatches = s.microbatches;
  options.learning_rate = {.peak = s.lr, .minimum = s.lr, .warmup_steps = 0};
  options.seed = s.seed;
  options.stop = &hd::train::stop_on_signal::flag();
  rl::settings of_run{.prompts = s.batch_prompts,
                      .answers = s.answers,
                      .steps = s.steps,
                      .most_tokens = s.max_tokens,
                      .temperature = s.temperature};
  of_run.end_tokens = hd::infer::read_end_tokens(s.model).ids;
  of_run.seed = s.seed;
  of_run.sequences = s.sequences;
  const rl::subprocess judge({.command = {"/bin/sh", "-c", s.reward},
                              .cpu_seconds = s.judge_cpu,
                              .memory_bytes = s.judge_memory << 20,
                              .wall_seconds = s.judge_seconds,
                              .at_once = s.judges > 0 ? s.judges : hd::detail::available_cores()});
  const auto prompt_of = [&](std::int64_t group) -> const prompt& {  // all of them in each epoch, in another order
    const std::int64_t n = std::ssize(prompts);
    return prompts[static_cast<std::size_t>(
        io::permutation(n, s.seed, static_cast<std::uint64_t>(group / n))(group % n))];
  };
  const rl::task task{.prompt = [&](std::int64_t group) { return prompt_of(group).tokens; },
                      .reward =
                          [&](std::span<const rl::question> answers) {
                            std::vector<rl::question> asked(answers.begin(), answers.end());
                            for (rl::question& q : asked) {
                              const prompt& p = prompt_of(q.group);
                              q.prompt_text = p.text;
                              q.facts = p.facts;
                              q.answer_text =
                                  tokenizer.decode(q.answer, {.skip_special_tokens = true, .skip_unknown_ids = true});
                            }
                            return judge(asked);
                          }};
  const int ranks = how.apart ? where.train.size() + where.generate.size() : where.train.size();
  std::printf(
      "%s: %s\ntrain %s, generate %s: %d ranks\n%s  %d layers of width %d, %s: %lld of %lld parameters are trained\n",
      s.system.c_str(), to_string(how).c_str(), hd::to_string(where.train).c_str(),
      hd::to_string(where.generate).c_str(), ranks, std::string(of.about.family()).c_str(), config.layers, config.width,
      s.lora > 0 ? ("adapters of rank " + std::to_string(s.lora)).c_str() : "whole",
      static_cast<long long>(folder.trained()), static_cast<long long>(folder.parameters()));
  const auto fill = [&](auto& stage, md::which_parameters) { folder.read(stage, folder.names()); };
  io::checksum64 of_prompts;
  for (const prompt& p : prompts) {
    of_prompts.update(std::as_bytes(std::span(p.tokens)));
    of_prompts.update(std::as_bytes(std::span(p.facts)));
  }
  const std::vector<rl::fixed_setting> facts{{"prompts", io::to_hex(of_prompts.value())},
                                             {"model", io::to_hex(training_saves::fingerprint_of_weights(s.model))}};
  int stopped_by = 0;
  hd::launch_options launched;
  launched.timeout = std::chrono::milliseconds(0);  // ranks wait for others' answers and steps, which may take long
  hd::launch<hd::threads>(hd::mesh<hd::axis<dp>>{ranks}, launched, [&](auto& world) {
    const bool speaks = world.rank() == 0;
    std::optional<hd::train::stop_on_signal> signals;  // one for all ranks
    if (speaks) signals.emplace();
    world.control().barrier();
    reporter<typename Base::config> report{s, folder, config, out.path(), speaks, stopped_by};
    const rl::saves saves{.folder = s.save,
                          .every = s.save_every,
                          .resume = s.resume,
                          .facts = facts,
                          .note = [](const std::string& text) { std::printf("%s\n", text.c_str()); }};
    rl::run<strategy>(world, how, where, policy{}, options, of_run, task, report, saves, fill);
  });
  if (stopped_by != 0) return stopped_by;
  out.finish();
  std::printf("%s '%s'%s\n", s.lora > 0 ? "merged into" : "wrote", s.out.c_str(),
              s.lora > 0 ? (", adapters in '" + s.out + "/adapter'").c_str() : "");
  return 0;
}

// f(model, its configuration). Each family is a trainer and an engine to compile, whole and with adapters.
template <class F>
void with_trained_model(const settings& s, const md::hugging_face_model& m, F&& f) {
  const auto either = [&]<class Config, class Tied, class Own>(const Config& c, std::type_identity<Tied> tied,
                                                               std::type_identity<Own> own) {
    m.tied ? f(tied, c) : f(own, c);
  };
  if (const auto* const llama = std::get_if<md::llama_config>(&m.config))
    return either(*llama, std::type_identity<md::tied_llama<float>>{}, std::type_identity<md::llama<float>>{});
  if (const auto* const qwen = std::get_if<md::qwen2_config>(&m.config))
    return either(*qwen, std::type_identity<md::tied_qwen2<float>>{}, std::type_identity<md::qwen2<float>>{});
  if (const auto* const qwen = std::get_if<md::qwen3_config>(&m.config))
    return either(*qwen, std::type_identity<md::tied_qwen3<float>>{}, std::type_identity<md::qwen3<float>>{});
  throw hd::config_error("heddle: '" + s.model + "' is a " + std::string(m.family()) +
                         "; rl_finetune trains models of the families llama, qwen2 and qwen3, in float");
}

int run(const settings& s) {
  tool::require_model(s.model);
  io::output_folder out(s.out);  // before anything is read
  const model_folder of = read_model_folder(s.model, s.ignored_keys);
  int stopped_by = 0;
  with_trained_model(s, of.about, [&]<class Model, class Config>(std::type_identity<Model>, Config config) {
    const io::tokenizer tokenizer = s.bytes ? byte_tokenizer() : tokenizer_of(s.model);
    const std::vector<prompt> prompts = read_prompts(s.prompts, tokenizer, config.vocabulary);
    std::int64_t longest = 0;
    for (const prompt& p : prompts) longest = (std::max)(longest, std::ssize(p.tokens));
    if (longest + s.max_tokens > config.context)
      throw hd::config_error("heddle: a prompt of " + std::to_string(longest) + " tokens and an answer of " +
                             std::to_string(s.max_tokens) + " (--max-tokens) are more than the model's context of " +
                             std::to_string(config.context));
    config.context = static_cast<int>(longest + s.max_tokens);
    if (s.lora == 0) {
      stopped_by = finetune<Model>(s, of, config, prompts, tokenizer, out);
      return;
    }
    const md::lora_config<Config> adapted{config, s.lora, s.alpha > 0 ? s.alpha : 2.0 * s.lora};
    stopped_by = finetune<md::with_lora<Model>>(s, of, adapted, prompts, tokenizer, out);
  });
  return stopped_by;
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  tool::command_line app("Trains a model of Hugging Face by reinforcement learning, and writes it back.");
  app.add_option("--model", s.model, "folder with config.json and safetensors of a Llama, Qwen 2 or Qwen 3")
      ->required();
  app.add_option("--prompts", s.prompts, "file of JSON lines, {\"prompt\": text, ...}")->required();
  app.add_option(
         "--reward", s.reward,
         "command of a shell that reads a line {\"prompt\", \"answer\", \"facts\": the prompt's line} and prints "
         "{\"reward\": x}")
      ->required();
  app.add_option("--out", s.out, "folder to write; not there yet, or empty")->required();
  app.add_flag("--bytes", s.bytes, bytes_help);
  app.add_option("--system", s.system, "whose pipeline")
      ->one_of({"hybridflow", "llamarl", "asyncflow", "april", "pipelinerl"});
  app.add_option("--train", s.train, "ranks that train, along dp, pp and tp");
  app.add_option("--generate", s.generate, "ranks that generate, along dp, pp, tp and replica; apart: further ones");
  app.add_option("--steps", s.steps, "batches in the whole run")->at_least(0);
  app.add_option("--batch-prompts", s.batch_prompts, "prompts of a batch")->range(1, 1 << 20);
  app.add_option("--answers", s.answers, "to each prompt")->range(2, 1 << 16);
  app.add_option("--max-tokens", s.max_tokens, "of an answer")->range(1, 1 << 20);
  app.add_option("--temperature", s.temperature, "of what is drawn, and of the policy that learns")->more_than(0);
  app.add_option("--objective", s.objective, "loss of a token; advantages compare the answers to a prompt")
      ->one_of({"ppo", "aipo", "reinforce"});
  app.add_option("--kl", s.kl, "times the divergence from the model as it was")->at_least(0);
  app.add_option("--lr", s.lr, "learning rate")->more_than(0);
  app.add_option("--microbatches", s.microbatches, "pieces of a dp rank's samples per step")->range(1, 1 << 16);
  app.add_option("--lora", s.lora, "rank of adapters; 0: all weights are trained")->at_least(0);
  app.add_option("--lora-alpha", s.alpha, "adapters count alpha / rank times; 0: twice the rank");
  app.add_option("--sequences", s.sequences, "of a generator, written at once")->range(1, 1 << 20);
  app.add_option("--judges", s.judges,
                 "runs of the command beside each other, of a generator; 0: as many as there are cores")
      ->range(0, 1 << 10);
  app.add_option("--judge-seconds", s.judge_seconds, "of a run of the command")->more_than(0);
  app.add_option("--judge-cpu", s.judge_cpu, "seconds of CPU of a run of the command")->range(1, 1 << 20);
  app.add_option("--judge-memory", s.judge_memory, "MiB of addresses of a run of the command")->range(1, 1 << 20);
  app.add_option("--seed", s.seed, "of adapters, answers and the order of prompts");
  tool::option* const save = app.add_option("--save", s.save, "folder for saves")->otherwise("none");
  app.add_option("--save-every", s.save_every, "batches between saves; 0: the last only")->at_least(0)->needs(save);
  app.add_flag("--resume", s.resume, "go on from the newest complete save in the --save folder")->needs(save);
  app.add_option("--max-file-bytes", s.most_bytes, "most bytes of weights in a safetensors file");
  add_ignored_keys(app, s.ignored_keys);
  return tool::run(app, argc, argv, [&] { return training_saves::status_of(run(s)); });
}
