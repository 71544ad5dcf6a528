// Trains a model of Hugging Face on a text, or on the assistant's turns of conversations, across a mesh of dp x pp x ep x tp ranks, whole or by
// low-rank adapters, and writes it back.
// run: --model @SOURCE_DIR@/tests/golden/models/bytes --text @SOURCE_DIR@/README.md --bytes --out out --mesh dp=2,tp=2 --steps 40 --lr 0.02 --lora-rank 4 --context 32
// prints: llama  2 layers of width 12, adapters of rank 4: 1464 of 6972 parameters are trained
// prints: after   validation loss
// prints: merged into 'out', adapters in 'out/adapter'
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/io/checksum.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/io/output_folder.hpp>
#include <heddle/io/save_folder.hpp>
#include <heddle/io/token_targets.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/any_model.hpp>
#include <heddle/model/families.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/make_trainer.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/stop_on_signal.hpp>
#include <heddle/train/strategy_choice.hpp>
#include HEDDLE_GEMM_HEADER

#include "model_folder.hpp"
#include "offload_option.hpp"
#include "text_tokens.hpp"
#include "tool.hpp"
#include "trained_folder.hpp"
#include "training_saves.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace io = heddle::io;
namespace md = heddle::model;
using hd::dp, hd::pp, hd::tp;
using strategy =
    hd::strategy<tool_mesh, hd::schedule::named, hd::zero<1>, hd::compute::host<HEDDLE_GEMM>, offload_option::policy>;

namespace {

struct settings {
  std::string model, text, chat, out, save, mesh = "dp=1", plan;
  std::vector<std::string> ignored_keys, offload;
  std::int64_t steps = 100, batch = 8, most_bytes = 5000000000;
  int microbatches = 1, rank = 0, context = 128, print_every = 10;
  std::int64_t save_every = 0;
  bool resume = false, saves_when_done = false;
  double lr = 1e-4, alpha = 0;
  std::uint64_t seed = 1;
  bool bytes = false;
  hd::train::strategy_choice chosen;  // what `plan` says
};

// Returns the signal that ended the training, or 0.
int finetune(const settings& s, const model_folder& of, io::output_folder& out) {
  const md::hugging_face_model& about = of.about;
  const md::any_config config(about, s.context, s.rank, s.alpha > 0 ? s.alpha : 2.0 * s.rank);
  const tool_mesh mesh = mesh_for(s.mesh, config);
  const bool adapts = s.rank > 0;
  const trained_folder folder(s.model, of, md::outlines_of<float>(config), s.most_bytes);
  out.require_room(folder.bytes_to_write());
  std::printf("%s  %d layers of width %d, %s: %lld of %lld parameters are trained\n",
              std::string(about.family()).c_str(), config.layers, config.width,
              adapts ? ("adapters of rank " + std::to_string(s.rank)).c_str() : "whole",
              static_cast<long long>(folder.trained()), static_cast<long long>(folder.parameters()));
  io::token_targets corpus;  // a text has no targets of its own
  const io::dataset_options samples{.context = config.context, .batch = s.batch, .seed = s.seed};
  if (s.chat.empty()) {
    corpus.tokens = text_tokens(s.model, s.text, config.vocabulary, s.bytes);
  } else {
    chat_targets turns = chat_targets_of(s.model, s.chat, config.context, config.vocabulary);
    std::printf("%s\n", turns.about.c_str());
    corpus = std::move(turns.rows);
  }
  using dataset = io::basic_dataset<std::int32_t>;
  const dataset data =
      s.chat.empty() ? dataset(corpus.tokens, samples) : dataset(corpus.tokens, corpus.targets, samples);
  io::checksum64 fingerprint;
  fingerprint.update(std::as_bytes(std::span(corpus.tokens)));
  fingerprint.update(std::as_bytes(std::span(corpus.targets)));
  const hd::train::save_facts facts{.corpus = fingerprint.value(),
                                    .order = "seed " + std::to_string(s.seed) + ", context " +
                                             std::to_string(config.context) + ", model " +
                                             io::to_hex(training_saves::fingerprint_of_weights(s.model))};
  static_cast<void>(training_saves::steps_saved(s.save, s.resume, s.steps, false));
  io::save_folder claimed;  // until the end; saves that only a signal makes are beside `out`, which keeps others away
  if (s.saves_when_done || s.save_every > 0 || s.resume) claimed = io::save_folder(s.save);

  hd::train::options<md::any_config> options;
  options.model = config;
  options.batch = s.batch;
  options.microbatches = s.microbatches;
  if (!s.plan.empty()) s.chosen.apply(options);
  options.steps = s.steps;
  options.offload.store.directories = s.offload;
  options.learning_rate = {.peak = s.lr,
                           .minimum = s.lr / 10,
                           .warmup_steps = s.steps / 20,
                           .total_steps = (std::max)(s.steps, std::int64_t{1})};
  options.seed = s.seed;
  options.stop = &hd::train::stop_on_signal::flag();
  hd::train::copy_side_files(s.model, out.path());
  int stopped_by = 0;
  std::optional<tool::progress> loading(std::in_place, "loading", folder.tensors(), "tensors");
  hd::launch_options ranks;
  ranks.timeout =
      std::chrono::milliseconds(0);  // a rank may wait as long as others compute, which is minutes on a slow machine
  hd::launch<hd::threads>(mesh, ranks, [&](auto& world) {
    const bool speaks = world.rank() == 0;
    auto trainer = hd::train::make_trainer<strategy>(md::any_model<float>{}, world, options);
    const bool counts = world.template coordinate<dp>() == 0 && is_first_copy(world);
    for (int k = 0; k < trainer.stages(); ++k)
      folder.read(trainer.stage(k), tool::counted(folder.names(), *loading, counts));
    world.control().barrier();
    if (speaks) loading.reset();
    const auto validate = [&](const char* when) {
      const double loss = trainer.validate(data);
      if (speaks) std::printf("%s validation loss %.6f\n", when, loss);
    };
    if (s.resume) training_saves::go_on(trainer, s.save, facts);
    std::optional<hd::train::stop_on_signal> signals;  // one for all ranks
    if (speaks) signals.emplace();
    world.control().barrier();
    validate("before ");
    std::int64_t saved = -1;
    const auto save = [&] {
      if (saved != trainer.steps_done()) hd::train::save(trainer, s.save, facts);
      saved = trainer.steps_done();
    };
    trainer.run(
        data,
        [&](const hd::train::step_report& r) {
          if (speaks && (r.step == 0 || r.step + 1 == r.steps || (r.step + 1) % s.print_every == 0))
            std::printf("%s\n", hd::train::to_string(r).c_str()), std::fflush(stdout);
        },
        [&](auto& t) {
          if (signals && t.stopped()) signals->step_ended();
          const bool only_done = t.steps_done() == s.steps && !s.saves_when_done && s.save_every == 0;
          if (!only_done && training_saves::is_due(t, s.save_every)) save();
        });
    if (const int number = training_saves::signal_that_stopped(trainer, s.save); number != 0) {
      if (speaks) stopped_by = number;
      return;
    }
    signals.reset();
    offload_option::say(trainer, s.offload);
    validate("after  ");
    std::string fault;
    try {
      folder.write(trainer, out.path(), config);
    } catch (const hd::io_error& e) {  // on all ranks
      fault = e.what();
    }
    if (fault.empty()) return;
    try {  // nothing that was trained is lost
      save();
    } catch (const hd::io_error& e) {
      throw hd::io_error(fault + "; nor is it saved: " + e.what());
    }
    throw hd::io_error(fault + "; the training is saved in '" + s.save + "': with --resume it is written again");
  });
  if (stopped_by != 0) return stopped_by;
  out.finish();
  std::printf("%s '%s'%s\n", adapts ? "merged into" : "wrote", s.out.c_str(),
              folder.writes_adapter() ? (", adapters in '" + s.out + "/adapter'").c_str() : "");
  return 0;
}

int run(settings s) {
  if (s.text.empty() && s.chat.empty()) throw tool::usage_error("heddle: --text is required, or --chat");
  tool::require_model(s.model);
  offload_option::require_written(s.offload);
  if (!s.plan.empty()) {
    s.chosen = hd::train::read_strategy_file(s.plan);
    hd::train::require_compiled(s.chosen, {.zero = {1}, .axes = {"dp", "pp", "ep", "tp"}, .recomputes = false},
                                "'" + s.plan + "'");
    s.mesh = s.chosen.mesh;
  }
  io::output_folder out(s.out);  // before anything is read
  s.saves_when_done = !s.save.empty();
  if (s.save.empty()) s.save = out.name().string() + ".saves";
  const model_folder from = read_model_folder(s.model, s.ignored_keys);
  return finetune(s, from, out);
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  tool::command_line app(
      "Trains a model of Hugging Face on a text or on conversations, whole or by low-rank adapters, and writes it "
      "back.");
  app.add_option("--model", s.model, "folder with config.json and safetensors")->required();
  tool::option* const text = app.add_option("--text", s.text, "file, or folder of text files");
  tool::option* const bytes = app.add_flag("--bytes", s.bytes, bytes_help);
  app.add_option("--chat", s.chat,
                 "conversations, a line of JSON each with 'messages': the assistant's turns are learned")
      ->excludes(text)
      ->excludes(bytes);
  app.add_option("--out", s.out, "folder to write; not there yet, or empty")->required();
  tool::option* const plan =
      app.add_option("--plan", s.plan, "file of a strategy: mesh, schedule, microbatches, layers")->otherwise("none");
  app.add_option("--mesh", s.mesh, "ranks along dp, pp, ep (of models with experts) and tp, as in pp=2,tp=2")
      ->excludes(plan);
  app.add_option("--steps", s.steps, "steps in the whole run")->at_least(0);
  app.add_option("--lr", s.lr, "the greatest learning rate");
  app.add_option("--lora-rank", s.rank, "rank of adapters; 0: all weights are trained")->at_least(0);
  app.add_option("--lora-alpha", s.alpha, "adapters count alpha / rank times; 0: twice the rank");
  app.add_option("--batch", s.batch, "samples per step");
  app.add_option("--microbatches", s.microbatches, "pieces of a dp rank's samples per step")->excludes(plan);
  offload_option::add(app, s.offload);
  app.add_option("--context", s.context, "tokens per sample, at most (GPT-2: the model's)");
  app.add_option("--seed", s.seed, "seed of adapters and of the order of samples");
  app.add_option("--save", s.save, "folder for saves")->otherwise("OUT.saves, for what a signal ends");
  app.add_option("--save-every", s.save_every, "steps between saves; 0: none but the last")->at_least(0);
  app.add_flag("--resume", s.resume, "go on from the newest complete save in the --save folder, if there is one");
  app.add_option("--max-file-bytes", s.most_bytes, "most bytes of weights in a safetensors file");
  add_ignored_keys(app, s.ignored_keys);
  return tool::run(app, argc, argv, [&] { return training_saves::status_of(run(s)); });
}
