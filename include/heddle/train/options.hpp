// heddle/train/options.hpp: options of a training run.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/train/activations/store.hpp>
#include <heddle/train/learning_rate.hpp>
#include <heddle/train/optimizer_rule.hpp>
#include <heddle/train/optimizers/by_default.hpp>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {
struct sequence_costs;
}

namespace heddle::inline v0::train {

namespace detail {
// What is counted by 64 bits over a run.
inline constexpr std::int64_t most_steps_of_run = 1000000000000;
inline void require_steps(std::int64_t steps) {
  if (steps < 0 || steps > most_steps_of_run) refuse_setting("steps", std::to_string(steps), "0 to 1000000000000");
}
inline void require_clip_norm(double norm) {
  if (!(norm > 0)) refuse_setting("clip_norm", number_text(norm), "positive (infinity: never clip)");
}
inline void refuse_other_constants(const char* rule, const adamw_options& constants) {
  if (constants != adamw_options{})
    throw config_error(text_of({"heddle: options.adamw is set and the strategy's optimizer is ", rule,
                                "; set options.optimizer = ", rule, "::options{...}"}));
}
inline config_error other_rule_of_options(const char* rule, const std::string& got) {
  return config_error(
      text_of({"heddle: options.optimizer has the options of another rule (", got, ") than the strategy's, ", rule}));
}
// The options of the strategy's rule: of the default one `options.adamw`, of others `options.optimizer`. Errors: `config_error` where those of
// another are set.
template <class Rule, class Options>
typename Rule::options options_of_rule_in(const Options& options) {
  using of_rule = typename Rule::options;
  if constexpr (std::is_same_v<of_rule, std::remove_cvref_t<decltype(options.adamw)>>) {
    if (options.optimizer.empty()) return options.adamw;
  } else {
    refuse_other_constants(Rule::name, options.adamw);
    if (options.optimizer.empty()) return {};
    if (const of_rule* mine = options.optimizer.template target<of_rule>()) return *mine;
  }
  throw other_rule_of_options(Rule::name, to_string(options.optimizer));
}
// Gives a run options of a rule that may be any: those of the default one where its options have them.
template <class Options>
void set_options_of_rule(Options& options, const any_optimizer_options& of_rule) {
  if (const auto* of_default = of_rule.target<adamw_options>())
    options.adamw = *of_default;
  else
    options.optimizer = of_rule;
}
}  // namespace detail

/// Settings of a training run. `Config` is the model's own configuration, `Rate` the learning rate (`learning_rate`).
template <class Config, class Rate = warmup_cosine>
struct options {
  static_assert(detail::rate_checked<Rate>());
  /// The largest numbers that are accepted: samples and steps of a run are counted by 64 bits.
  static constexpr std::int64_t most_batch = 1048576, most_steps = detail::most_steps_of_run;

  Config model{};
  std::int64_t batch = 8;  ///< samples per step, over all dp ranks
  int microbatches = 0;    ///< per dp rank; 0: the schedule's own number, or 1 if that is left to run time
  std::string schedule{};  ///< for the policy `schedule::named` only, a name as it reads them; empty: "1f1b"
  std::vector<int> layers_per_stage{};  ///< blocks of each stage, in order; empty: as even as can be
  std::int64_t steps = 100;             ///< steps in the whole run, a resumed part included
  Rate learning_rate{};                 ///< its `total_steps` 0: `steps`
  adamw_options adamw{};
  any_optimizer_options
      optimizer{};          ///< of another rule than AdamW in the strategy, such as `optimizers::lion::options`;
                            ///< empty: as the rule says
  double clip_norm = 1.0;   ///< global gradient norm above which gradients are scaled down; infinity: never
  std::uint64_t seed = 1;   ///< of the initial weights
  std::string recompute{};  ///< for the policy `activations::recompute`, as `model::parse_recompute` reads
                            ///< it; empty: as the policy says
  activations::offload_settings offload{};  ///< for the policy `activations::offload`; each rank its own
  /// For a sharding with a context split: the most rows of a microbatch on a rank. 0: those of its samples if all had the whole context.
  std::int64_t rows_per_rank = 0;
  std::string context{};    ///< for `context<>` without policies: the names of a carrier and, behind a comma, of an order and a
                            ///< planner, such as "token-ring,zigzag"; empty: "kv-ring,zigzag"
  /// What planners of documents expect (`<heddle/plan/sequence_costs.hpp>`), the same on all ranks; null: from the model's sizes. It must outlive the run.
  const plan::sequence_costs* costs = nullptr;
  /// For a sharding with a context split: a thread plans for the documents of the next step while a step runs.
  bool plan_ahead = true;
  int threads_per_rank = 0;                 ///< 0: this machine's cores shared out evenly, at least one each
  std::int64_t validate_every = 0;          ///< steps between validations; 0: never
  std::int64_t validation_samples = 0;      ///< at most so many held-out samples; 0: all there are
  /// Where it becomes true on any rank, `run` ends after the running step (with `post_validation`: or the next one) on
  /// all ranks; null: nobody asks. A `stop_on_signal` has one, or the program. It must outlive the run.
  const std::atomic<bool>* stop = nullptr;

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    model.validate();
    if constexpr (train::learning_rate<Rate>) learning_rate.validate();
    using detail::refuse_setting;
    if (batch < 1 || batch > most_batch) refuse_setting("batch", std::to_string(batch), "1 to 1048576");
    if (microbatches < 0)
      refuse_setting("microbatches", std::to_string(microbatches), "at least 1, or 0 for the schedule's own number");
    detail::require_steps(steps);
    detail::require_clip_norm(clip_norm);
    adamw.validate();
    optimizer.validate();
    if (rows_per_rank < 0) refuse_setting("rows_per_rank", std::to_string(rows_per_rank), "at least 0");
    if (threads_per_rank < 0) refuse_setting("threads_per_rank", std::to_string(threads_per_rank), "at least 0");
    if (validate_every < 0) refuse_setting("validate_every", std::to_string(validate_every), "at least 0");
    if (validation_samples < 0) refuse_setting("validation_samples", std::to_string(validation_samples), "at least 0");
  }

  /// The same with any learning rate, as trainers take them.
  template <class Erased>  // a template, since nvcc warns of a conversion to the type itself
    requires(std::is_same_v<Erased, options<Config, any_learning_rate>> && !std::is_same_v<Rate, any_learning_rate>)
  operator Erased() const {
    any_learning_rate rate;
    if constexpr (train::learning_rate<Rate>) rate = learning_rate;
    return {model,
            batch,
            microbatches,
            schedule,
            layers_per_stage,
            steps,
            std::move(rate),
            adamw,
            optimizer,
            clip_norm,
            seed,
            recompute,
            offload,
            rows_per_rank,
            context,
            costs,
            plan_ahead,
            threads_per_rank,
            validate_every,
            validation_samples,
            stop};
  }
};

/// All settings, in words: what ranks compare before they start.
template <class Config, class Rate>
std::string to_string(const options<Config, Rate>& o) {
  using detail::exact_text;
  std::string text = to_string(o.model);
  const auto add = [&](const char* name, const std::string& value) {
    text += ' ';
    text += name;
    text += '=';
    text += value;
  };
  if constexpr (requires { o.model.initial_deviation; })
    add("initial_deviation", exact_text(o.model.initial_deviation));
  add("batch", std::to_string(o.batch));
  add("microbatches", std::to_string(o.microbatches));
  add("schedule", o.schedule);
  std::string counts;
  for (const int n : o.layers_per_stage) counts += (counts.empty() ? "" : ",") + std::to_string(n);
  add("layers_per_stage", counts);
  add("recompute", o.recompute);
  add("steps", std::to_string(o.steps));
  if constexpr (learning_rate<Rate>) text += ' ' + std::string(to_string(o.learning_rate));
  text += ' ' + to_string(o.adamw);
  if (!o.optimizer.empty()) add("optimizer", to_string(o.optimizer));
  add("clip_norm", exact_text(o.clip_norm));
  add("seed", std::to_string(o.seed));
  if (o.rows_per_rank != 0) add("rows_per_rank", std::to_string(o.rows_per_rank));
  if (!o.context.empty()) add("context", o.context);
  add("validate_every", std::to_string(o.validate_every));
  add("validation_samples", std::to_string(o.validation_samples));
  if (o.stop != nullptr) add("stop", "asked for after each step");
  return text;
}

}  // namespace heddle::inline v0::train
