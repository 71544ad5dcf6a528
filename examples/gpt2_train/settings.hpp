// examples/gpt2_train/settings.hpp: what the program can be told on its command line.
#pragma once

#include <heddle/model/gpt2_config.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/options.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <system_error>
#include <vector>

inline constexpr int most_nodes = 4096;

struct settings {
  std::string mesh = "dp=2,pp=2,tp=2";
  std::string schedule = "1f1b";
  std::vector<int> nodes;  // of each stage, where microbatches go ways of their own
  int skip = 0;
  std::string links;
  double forward_ms = 10;
  bool layers_by_cost = false;
  std::string recompute = "none";
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
  bool resume = false;
  std::vector<std::string> windows;
  std::int64_t print_every = 10;
  std::int64_t validate_every = 100;
  std::int64_t validation_samples = 64;
  std::string trace = "trace.json";
  std::string timeline = "timeline.svg";
  std::string prompt = "namespace heddle";
  int sample = 240;
  double temperature = 0.7;
  double timeout = 300;
  double grace = 60;

  /// Seconds that a step may go on after a signal, when the longest so far took so many.
  double grace_after(double longest) const { return grace > 0 ? std::max(grace, 10 * longest) : 0; }
};

/// For options that are whole numbers, in decimal digits: CLI11 alone takes 2^64 for 2^64 - 1.
template <class Int>
CLI::Validator whole(Int least, Int most) {
  const std::string range = std::to_string(least) + " to " + std::to_string(most);
  return {[=](const std::string& text) {
            Int value{};
            const char* const end = text.data() + text.size();
            const auto [last, problem] = std::from_chars(text.data(), end, value);
            const bool good = problem == std::errc{} && last == end && value >= least && value <= most;
            return good ? std::string() : "must be a whole number from " + range + ", got " + text;
          },
          "", "whole number"};
}

/// What the whole text says as a number; not a number otherwise.
inline double number_of(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return text.empty() || *end != '\0' ? std::numeric_limits<double>::quiet_NaN() : value;
}
inline const CLI::Validator positive(
    [](const std::string& text) { return number_of(text) > 0 ? std::string() : "must be more than 0, got " + text; },
    "", "positive");
/// For options that may be left at none.
inline const CLI::Validator not_negative(
    [](const std::string& text) { return number_of(text) >= 0 ? std::string() : "must be at least 0, got " + text; },
    "", "at least 0");

/// The words of the command line, last one first, as `CLI::App::parse` takes them. An option with nothing behind its
/// equals sign has the empty text as its value: CLI11 would take the next word for it.
inline std::vector<std::string> words_of(int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = argc; --i > 0;) {
    const std::string word = argv[i];
    if (word.size() > 3 && word.rfind("--", 0) == 0 && word.find('=') == word.size() - 1) {
      words.emplace_back();
      words.push_back(word.substr(0, word.size() - 1));
    } else {
      words.push_back(word);
    }
  }
  return words;
}

/// Fills `s`; throws `CLI::ParseError` (help included), which `CLI::App::exit` turns into text and an exit status.
inline void declare(CLI::App& app, settings& s) {
  app.option_defaults()->take_last();  // given twice, an option has its last value
  using shape = heddle::model::gpt2_config;
  using run = heddle::train::options<shape>;
  const auto steps = whole<std::int64_t>(0, run::most_steps);
  app.add_option("--mesh", s.mesh, "ranks along each axis; axes left out get one")->capture_default_str();
  std::string schedules;
  for (const auto name : heddle::schedule::named::names) (schedules += schedules.empty() ? "" : ", ") += name;
  CLI::Option* const schedule =
      app.add_option("--schedule", s.schedule,
                     "pipeline schedule: " + schedules + "; interleaved:4 has four stages per rank, hanayo:2 two waves")
          ->capture_default_str();
  CLI::Option* const nodes =
      app.add_option("--nodes", s.nodes,
                     "pipeline ranks that hold each stage, such as 2,2,2: microbatches go ways of their own (SkipPipe) "
                     "instead of --schedule")
          ->excludes(schedule)
          ->delimiter(',')
          ->check(whole(1, most_nodes))
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--skip", s.skip, "with --nodes: stages that each microbatch skips")
      ->check(whole(0, 65536))
      ->capture_default_str();
  app.add_option("--links", s.links,
                 "with --nodes: file of links, a line each: node, node, milliseconds, megabytes per second (default: "
                 "messages take no time)");
  app.add_option("--forward-ms", s.forward_ms, "with --nodes: milliseconds of a node's forward of one microbatch")
      ->check(positive)
      ->needs(nodes)
      ->capture_default_str();
  app.add_flag("--layers-by-cost", s.layers_by_cost, "fewer layers on the stages of the embedding and the head");
  app.add_option(
         "--recompute", s.recompute,
         "saved activations to drop and compute again: none, full, \"every <k>\" blocks, or names: mlp.hidden,..")
      ->capture_default_str();
  app.add_option("--microbatches", s.microbatches, "pieces of a rank's samples per step")
      ->check(whole(1, 65536))
      ->capture_default_str();
  app.add_option("--layers", s.layers, "transformer blocks")
      ->check(whole(0, shape::most_layers))
      ->capture_default_str();
  app.add_option("--heads", s.heads, "attention heads per block")
      ->check(whole(1, shape::most_width))
      ->capture_default_str();
  app.add_option("--width", s.width, "elements of the residual stream")
      ->check(whole(1, shape::most_width))
      ->capture_default_str();
  app.add_option("--context", s.context, "tokens a sample holds")
      ->check(whole(1, shape::most_tokens))
      ->capture_default_str();
  app.add_option("--batch", s.batch, "samples per step over all ranks")
      ->check(whole<std::int64_t>(1, run::most_batch))
      ->capture_default_str();
  app.add_option("--steps", s.steps, "steps in the whole run")->check(steps)->capture_default_str();
  app.add_option("--lr", s.lr, "peak learning rate")->capture_default_str();
  app.add_option("--clip", s.clip, "global gradient norm above which gradients are scaled down")->capture_default_str();
  app.add_option("--seed", s.seed, "of weights, data order and sampling")
      ->check(whole<std::uint64_t>(0, (std::numeric_limits<std::uint64_t>::max)()))
      ->capture_default_str();
#if defined(HEDDLE_EXAMPLE_CUDA)
  app.add_option("--dtype", s.dtype, "f32, or bf16: float with products of operands in bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
#else
  app.add_option("--dtype", s.dtype, "f32, f64, or bf16: float with products of operands in bf16")
      ->check(CLI::IsMember({"f32", "f64", "bf16"}))
      ->capture_default_str();
#endif
  app.add_option("--data", s.data, "files or folders to train on (default: heddle's own headers and docs)")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--save", s.save, "folder for saves (default: none are made)");
  app.add_option("--save-every", s.save_every, "steps between saves; 0: only at the end")
      ->check(steps)
      ->capture_default_str();
  app.add_flag("--resume", s.resume, "go on from the newest complete save in the --save folder, if there is one");
  app.add_option("--print-every", s.print_every,
                 "steps between lines of progress; the first and the last have one, too")
      ->check(whole<std::int64_t>(1, run::most_steps))
      ->capture_default_str();
  app.add_option(
         "--window", s.windows,
         "START-END[:MB][@MESH]: train only while the machine is free, from START to END seconds from now (inf: no "
         "end), cut to fit; may be given often")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--validate-every", s.validate_every, "steps between validations; 0: never")
      ->check(steps)
      ->capture_default_str();
  app.add_option("--validation-samples", s.validation_samples, "held-out samples a validation reads; 0: all")
      ->check(steps)
      ->capture_default_str();
  app.add_option("--trace", s.trace, "trace of the last steps, for ui.perfetto.dev; \"\": none")->capture_default_str();
  app.add_option("--timeline", s.timeline, "picture of the last step's pipeline; \"\": none")->capture_default_str();
  app.add_option("--prompt", s.prompt, "start of the sampled text")->capture_default_str();
  app.add_option("--sample", s.sample, "bytes of text to sample at the end")
      ->check(whole(0, 1048576))
      ->capture_default_str();
  app.add_option("--temperature", s.temperature, "of the sampled text; 0: always the likeliest byte")
      ->check(not_negative)
      ->capture_default_str();
  app.add_option("--grace", s.grace,
                 "seconds after SIGINT or SIGTERM, or ten times the longest step so far if that is more, after which a "
                 "step that has not ended is given up, unsaved; 0: never")
      ->check(not_negative)
      ->capture_default_str();
  app.add_option("--timeout", s.timeout, "seconds after which a rank that does not arrive is reported; 0: never")
      ->check(not_negative)
      ->capture_default_str();
}
