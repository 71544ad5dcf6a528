// heddle/train/options.hpp: options of a training run.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/train/activations/store.hpp>
#include <heddle/train/learning_rate.hpp>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {
[[noreturn]] inline void refuse_setting(const char* name, const std::string& got, const char* accepted) {
  throw config_error(heddle::detail::text_of({"heddle: ", name, " must be ", accepted, ", got ", got}));
}
// What is counted by 64 bits over a run.
inline constexpr std::int64_t most_steps_of_run = 1000000000000;
inline void require_steps(std::int64_t steps) {
  if (steps < 0 || steps > most_steps_of_run) refuse_setting("steps", std::to_string(steps), "0 to 1000000000000");
}
inline void require_clip_norm(double norm) {
  if (!(norm > 0)) refuse_setting("clip_norm", number_text(norm), "positive (infinity: never clip)");
}
}  // namespace detail

/// AdamW's constants. Source: Loshchilov and Hutter, arXiv:1711.05101; epsilon as in PyTorch, outside the root.
struct adamw_options {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  ///< on tensors of two and more dimensions only
  /// Learning rates of some parameters: that of the step times the factor of the first entry whose text the parameter's name begins with.
  /// A trainer refuses an entry that no trained parameter's name begins with.
  std::vector<std::pair<std::string, double>> rates{};

  /// The greatest factor of a learning rate: 1, or that of an entry. Which parameters decay, and have an entry, is not asked.
  double greatest_rate() const noexcept {
    double greatest = 1;
    for (const auto& entry : rates)
      if (entry.second > greatest) greatest = entry.second;
    return greatest;
  }

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    if (!(beta1 >= 0 && beta1 < 1)) detail::refuse_setting("beta1", number_text(beta1), "in [0, 1)");
    if (!(beta2 >= 0 && beta2 < 1)) detail::refuse_setting("beta2", number_text(beta2), "in [0, 1)");
    if (!(epsilon > 0 && std::isfinite(epsilon)))
      detail::refuse_setting("epsilon", number_text(epsilon), "positive and finite");
    if (!(weight_decay >= 0 && std::isfinite(weight_decay)))
      detail::refuse_setting("weight_decay", number_text(weight_decay), "at least 0 and finite");
    for (const auto& [name, factor] : rates)
      if (!(factor >= 0 && std::isfinite(factor)))
        detail::refuse_setting("rates", number_text(factor) + " for '" + name + "'", "at least 0 and finite");
  }
};

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
  double clip_norm = 1.0;   ///< global gradient norm above which gradients are scaled down; infinity: never
  std::uint64_t seed = 1;   ///< of the initial weights
  std::string recompute{};  ///< for the policy `activations::recompute`, as `model::parse_recompute` reads
                            ///< it; empty: as the policy says
  activations::offload_settings offload{};  ///< for the policy `activations::offload`; each rank its own
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
    if (threads_per_rank < 0) refuse_setting("threads_per_rank", std::to_string(threads_per_rank), "at least 0");
    if (validate_every < 0) refuse_setting("validate_every", std::to_string(validate_every), "at least 0");
    if (validation_samples < 0) refuse_setting("validation_samples", std::to_string(validation_samples), "at least 0");
  }

  /// The same with any learning rate, as trainers take them.
  operator options<Config, any_learning_rate>() const
    requires(!std::is_same_v<Rate, any_learning_rate>)
  {
    any_learning_rate rate;
    if constexpr (train::learning_rate<Rate>) rate = learning_rate;
    return {model,     batch, microbatches, schedule, layers_per_stage, steps,          std::move(rate),    adamw,
            clip_norm, seed,  recompute,    offload,  threads_per_rank, validate_every, validation_samples, stop};
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
  add("beta1", exact_text(o.adamw.beta1));
  add("beta2", exact_text(o.adamw.beta2));
  add("epsilon", exact_text(o.adamw.epsilon));
  add("weight_decay", exact_text(o.adamw.weight_decay));
  for (const auto& [name, factor] : o.adamw.rates) add(("lr*" + name).c_str(), exact_text(factor));
  add("clip_norm", exact_text(o.clip_norm));
  add("seed", std::to_string(o.seed));
  add("validate_every", std::to_string(o.validate_every));
  add("validation_samples", std::to_string(o.validation_samples));
  if (o.stop != nullptr) add("stop", "asked for after each step");
  return text;
}

}  // namespace heddle::inline v0::train
