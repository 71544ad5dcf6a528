// examples/gpt2_train/settings.hpp: what the program can be told on its command line.
#pragma once

#include <heddle/model/gpt2_config.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/strategy_choice.hpp>

#include "../offload_option.hpp"
#include "../run_store.hpp"
#include "../tool.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

inline constexpr int most_nodes = 4096;

struct settings {
  std::string plan;  // file of a strategy
  std::string mesh = "dp=2,pp=2,tp=2";
  std::string schedule = "1f1b";
  std::vector<int> nodes;  // of each stage, where microbatches go ways of their own
  int skip = 0;
  bool in_order = false;
  std::string links;
  double forward_ms = 10;
  bool layers_by_cost = false;
  std::vector<int> layers_per_stage;
  std::string recompute = "none";
  std::vector<std::string> offload;  // folders
  int microbatches = 4;
  int layers = 4, heads = 4, width = 128, context = 64;
  std::int64_t batch = 24, steps = 1000;
  double lr = 3e-3;
  double clip = 1.0;
  std::uint64_t seed = 1;
  std::string dtype = "f32";
  std::vector<std::string> data;
  std::string save;
  std::int64_t save_every = 100;
  bool save_in_background = false;
  bool resume = false;
  std::vector<std::string> windows;
  std::int64_t print_every = 10;
  std::int64_t validate_every = 100;
  std::int64_t validation_samples = 64;
  std::string trace, timeline;  // none
  std::string prompt = "namespace heddle";
  int sample = 240;
  double temperature = 0.7;
  double timeout = 300;
  double grace = 60;

  bool is_in_store() const { return tool::names_store(save); }
  /// Seconds that a step may go on after a signal, when the longest so far took so many.
  double grace_after(double longest) const { return grace > 0 ? std::max(grace, 10 * longest) : 0; }
};

/// Declares the options that fill `s`.
inline void declare(tool::command_line& app, settings& s) {
  using shape = heddle::model::gpt2_config;
  using run = heddle::train::options<shape>;
  tool::option* const plan =
      app.add_option("--plan", s.plan, "file of a strategy: mesh, schedule, microbatches, recompute, layers, dtype")
          ->otherwise("none");
  app.add_option("--mesh", s.mesh, "ranks along each axis; axes left out get one")->excludes(plan);
  std::string schedules;
  for (const auto name : heddle::schedule::named::names) (schedules += schedules.empty() ? "" : ", ") += name;
  tool::option* const schedule = app.add_option(
      "--schedule", s.schedule,
      "pipeline schedule: " + schedules + "; interleaved:4 has four stages per rank, hanayo:2 two waves");
  tool::option* const nodes =
      app.add_option("--nodes", s.nodes,
                     "pipeline ranks that hold each stage, such as 2,2,2: microbatches go ways of their own (SkipPipe) "
                     "instead of --schedule; a way may visit neighbouring stages in swapped order, with --skip 0, too")
          ->delimiter(',')
          ->take_all()
          ->range(1, most_nodes)
          ->otherwise("none");
  schedule->excludes(nodes)->excludes(plan);
  nodes->excludes(plan);
  app.add_option("--skip", s.skip, "with --nodes: stages that each microbatch skips")->range(0, 65536);
  app.add_flag("--in-order", s.in_order, "with --nodes: all ways visit their stages in the model's order")
      ->needs(nodes);
  app.add_option("--links", s.links,
                 "with --nodes: file of links, a line each: node, node, milliseconds, megabytes per second")
      ->otherwise("messages take no time");
  app.add_option("--forward-ms", s.forward_ms, "with --nodes: milliseconds of a node's forward of one microbatch")
      ->more_than(0)
      ->needs(nodes);
  tool::option* const by_cost =
      app.add_flag("--layers-by-cost", s.layers_by_cost, "fewer layers on the stages of the embedding and the head");
  by_cost->excludes(plan);
  app.add_option("--layers-per-stage", s.layers_per_stage, "transformer blocks of each stage, such as 3,3,2")
      ->delimiter(',')
      ->take_all()
      ->range(0, shape::most_layers)
      ->otherwise("as even as can be")
      ->excludes(plan)
      ->excludes(by_cost);
  app.add_option("--recompute", s.recompute,
                 "saved activations to drop and compute again: none, full, \"every <k>\" or \"first <n>\" blocks, or "
                 "names: mlp.hidden,..")
      ->excludes(plan);
  offload_option::add(app, s.offload);
  app.add_option("--microbatches", s.microbatches, "pieces of a rank's samples per step")
      ->range(1, 65536)
      ->excludes(plan);
  app.add_option("--layers", s.layers, "transformer blocks")->range(0, shape::most_layers);
  app.add_option("--heads", s.heads, "attention heads per block")->range(1, shape::most_width);
  app.add_option("--width", s.width, "elements of the residual stream")->range(1, shape::most_width);
  app.add_option("--context", s.context, "tokens a sample holds")->range(1, shape::most_tokens);
  app.add_option("--batch", s.batch, "samples per step over all ranks")->range<std::int64_t>(1, run::most_batch);
  app.add_option("--steps", s.steps, "steps in the whole run")->range<std::int64_t>(0, run::most_steps);
  app.add_option("--lr", s.lr, "peak learning rate");
  app.add_option("--clip", s.clip, "global gradient norm above which gradients are scaled down");
  app.add_option("--seed", s.seed, "seed of weights, data order and sampling");
#if defined(HEDDLE_EXAMPLE_CUDA)
  app.add_option("--dtype", s.dtype, "element type; bf16: float with products of operands in bf16")
      ->one_of({"f32", "bf16"})
      ->excludes(plan);
#else
  app.add_option("--dtype", s.dtype, "element type; bf16: float with products of operands in bf16")
      ->one_of({"f32", "f64", "bf16"})
      ->excludes(plan);
#endif
  app.add_option("--data", s.data, "files or folders to train on")
      ->take_all()
      ->otherwise("heddle's own headers and docs");
  app.add_option("--save", s.save, "folder for saves, or s3://BUCKET/PREFIX with keys in the AWS_* variables")
      ->otherwise("none are made");
  app.add_option("--save-every", s.save_every, "steps between saves; 0: only at the end")
      ->range<std::int64_t>(0, run::most_steps);
  app.add_flag("--save-in-background", s.save_in_background,
               "go on as soon as what is saved has been copied in memory; a thread of each rank writes it");
  app.add_flag("--resume", s.resume, "go on from the newest complete save in --save, if there is one");
  app.add_option("--print-every", s.print_every,
                 "steps between lines of progress; the first and the last have one, too")
      ->range<std::int64_t>(1, run::most_steps);
  app.add_option(
         "--window", s.windows,
         "START-END[:MB][@MESH]: train only while the machine is free, from START to END seconds from now (inf: no "
         "end), cut to fit")
      ->take_all();
  app.add_option("--validate-every", s.validate_every, "steps between validations; 0: never")
      ->range<std::int64_t>(0, run::most_steps);
  app.add_option("--validation-samples", s.validation_samples, "held-out samples a validation reads; 0: all")
      ->range<std::int64_t>(0, run::most_steps);
  app.add_option("--trace", s.trace, "file for a trace of the last steps, for ui.perfetto.dev")->otherwise("none");
  app.add_option("--timeline", s.timeline, "file for a picture (SVG) of the last step's pipeline")->otherwise("none");
  app.add_option("--prompt", s.prompt, "start of the sampled text");
  app.add_option("--sample", s.sample, "bytes of text to sample at the end")->range(0, 1048576);
  app.add_option("--temperature", s.temperature, "temperature of the sampled text; 0: always the likeliest byte")
      ->at_least(0);
  app.add_option("--grace", s.grace,
                 "seconds after SIGINT or SIGTERM, or ten times the longest step so far if that is more, after which a "
                 "step that has not ended is given up, unsaved; 0: never")
      ->at_least(0);
  app.add_option("--timeout", s.timeout, "seconds after which a rank that does not arrive is reported; 0: never")
      ->at_least(0);
}

/// Takes what the file of --plan says. Errors: `config_error` for what it asks for and the program does not have, or a bad file.
inline void take_plan(settings& s) {
  if (s.plan.empty()) return;
  const heddle::train::strategy_choice plan = heddle::train::read_strategy_file(s.plan);
#if defined(HEDDLE_EXAMPLE_CUDA)
  const std::vector<std::string> dtypes{"f32", "bf16"};
#elif defined(HEDDLE_EXAMPLE_F32_ONLY)
  const std::vector<std::string> dtypes{"f32"};
#else
  const std::vector<std::string> dtypes{"f32", "f64", "bf16"};
#endif
  heddle::train::require_compiled(plan, {.zero = {1}, .dtypes = dtypes}, "'" + s.plan + "'");
  s.mesh = plan.mesh;
  s.schedule = plan.schedule;
  s.microbatches = plan.microbatches;
  s.recompute = plan.recompute;
  s.layers_per_stage = plan.layers;
  s.dtype = plan.dtype;
}

/// What options must not say together. Errors: `usage_error`.
inline void require_together(const settings& s) {
  namespace fs = std::filesystem;
  if (s.save.empty() && (s.resume || !s.windows.empty() || s.save_in_background))
    throw tool::usage_error("heddle: " +
                            std::string(s.resume             ? "--resume"
                                        : !s.windows.empty() ? "--window"
                                                             : "--save-in-background") +
                            " needs --save, the folder or bucket of the saves");
  if (s.is_in_store() && !s.windows.empty())
    throw tool::usage_error("heddle: --window needs a folder for --save, got '" + s.save + "'");
  if (s.save_in_background && !s.windows.empty())
    throw tool::usage_error("heddle: --save-in-background does not go with --window, whose ends are waited for");
  if (s.trace.empty() || s.timeline.empty()) return;
  std::error_code unknown;  // a path that cannot be looked at is refused where it is written
  const fs::path one = fs::weakly_canonical(fs::absolute(s.trace, unknown), unknown),
                 other = fs::weakly_canonical(fs::absolute(s.timeline, unknown), unknown);
  if (s.trace == s.timeline || (!unknown && one == other))
    throw tool::usage_error("heddle: --trace and --timeline are one file, '" + s.trace + "'; give each its own");
}
