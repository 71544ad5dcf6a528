// heddle/train/three_functions.hpp: training by three functions: collate, loss, predict.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/io/permutation.hpp>
#include <heddle/train/learning_rate.hpp>
#include <heddle/train/make_trainer.hpp>
#include <heddle/train/named_context.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/strategy.hpp>
#include <heddle/train/three_functions_stage.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// Settings of `three_functions`.
struct three_functions_options {
  std::int64_t batch = 8;     ///< examples per optimizer step, over all ranks
  std::int64_t per_rank = 1;  ///< examples per micro-batch on each dp rank
  std::int64_t epochs = 1;
  warmup_cosine learning_rate{};  ///< `total_steps` 0: the steps of all epochs
  /// Of the strategy's rule, such as `adamw_options{.weight_decay = 0}`; empty: as the rule says.
  any_optimizer_options optimizer{};
  double clip_norm = 1.0;  ///< infinity: never
  std::uint64_t seed = 1;  ///< of the initial weights, of the order of examples and of `context.random()`
  /// Where it becomes true on any rank, `run` ends after the running step on all ranks, as `options::stop` of a trainer.
  const std::atomic<bool>* stop = nullptr;

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    learning_rate.validate();
    if (epochs < 0) detail::refuse_setting("epochs", std::to_string(epochs), "at least 0");
    detail::require_clip_norm(clip_norm);
    optimizer.validate();
  }
};

/// One step, the same on every rank.
struct three_functions_step {
  std::int64_t step = 0;  ///< from 0
  double loss = 0;        ///< mean over all tokens of the batch
  std::int64_t tokens = 0;
  double gradient_norm = 0;  ///< before clipping; each logical element once
  double learning_rate = 0;
};

namespace detail {

template <class S>
concept training_strategy = requires {
  typename S::mesh;
  typename S::schedule;
  typename S::backend;
};

// Places of examples in the order of a run: a permutation of the list in each epoch, whole batches only.
struct example_order {
  std::int64_t examples, batch;  // of the list, of a step
  std::int64_t origin, epoch;    // the first sample of this list, in the run, and its epoch
  std::uint64_t seed;

  static constexpr std::int64_t inputs() noexcept { return 2; }
  static constexpr std::int64_t targets() noexcept { return 1; }
  static constexpr std::int64_t validation_samples() noexcept { return 0; }
  void fill_train(io::sample_block block, std::span<std::int64_t> inputs, std::span<std::int8_t>) const {
    const std::int64_t each = examples / batch * batch;
    for (std::int64_t i = 0; i < block.count; ++i) {
      const std::int64_t at = block.first + i - origin;
      const io::permutation order(examples, seed, static_cast<std::uint64_t>(epoch + at / each));
      inputs[static_cast<std::size_t>(2 * i)] = order(at % each);
      inputs[static_cast<std::size_t>(2 * i + 1)] = at % batch;
    }
  }
  static void fill_validation(io::sample_block, std::span<std::int64_t>, std::span<std::int8_t>) noexcept {}
};

}  // namespace detail

namespace detail {
template <class T>
inline constexpr bool computes_losses = std::is_same_v<T, float> || std::is_same_v<T, double>;
template <class T>
constexpr bool loss_computed_in() {
  static_assert(
      computes_losses<T>,
      "heddle: three_functions: losses are computed in float or double; for bf16 weights with masters in float "
      "give the strategy a precision<weights_in<bf16>>, and float here");
  return computes_losses<T>;
}
}  // namespace detail

/// Trains and predicts; made by `three_functions`. `Strategy`: mesh, schedule of one stage, `zero`, backend, observer.
template <class Strategy, class T, named_model Model, class World, class Collate, class Loss, class Predict,
          class Rules>
class three_function_pipeline {
 public:
  using context = named_context<T, Model, World, Rules, typename Strategy::backend>;
  using parameters = typename context::parameters;
  using model_type = three_functions_model<T, Model, Rules, Collate, Loss>;
  using trainer_type = train::trainer<model_type, Strategy, World>;

  /// `more`: the observer, if the strategy has one.
  /// Errors: `config_error` if the batch is no whole number of micro-batches, naming the numbers, and as
  /// `three_functions_options::validate` and `trainer`.
  template <class... More>
  three_function_pipeline(World& world, Collate collate, Loss loss, Predict predict,
                          const three_functions_options& options, More&... more)
      : world_(world),
        options_(options),
        collate_(std::move(collate)),
        loss_(std::move(loss)),
        predict_(std::move(predict)),
        trainer_(world, for_trainer(), more...) {}
  three_function_pipeline(const three_function_pipeline&) = delete;
  three_function_pipeline& operator=(const three_function_pipeline&) = delete;

  parameters& all() { return stage().all(); }
  /// What `run` trains with: to save (`save(pipeline.trainer(), folder)`), to go on from a save (`resume`), to look at.
  trainer_type& trainer() noexcept { return trainer_; }
  /// Micro-batches per step.
  std::int64_t accumulate() const { return options_.batch / micro(); }

  /// Trains for all epochs, calling `report` after each step: with a `three_functions_step`, or a `step_report` where it
  /// takes that only. `after_step(trainer)` is the place to save, as in `trainer::run`. Every rank passes the same list;
  /// its order is drawn anew each epoch, the same on all ranks; what does not fill a batch is left out of that epoch.
  /// A run that was stopped, or comes from a save, goes on to its end; behind it another run goes on: epochs and steps are
  /// counted through, and a learning rate with `total_steps` 0 ends with it.
  /// Errors: as `trainer::run`.
  template <class Example, class Report, class AfterStep = detail::nothing_after_a_step>
  void run(const std::vector<Example>& examples, Report&& report, AfterStep&& after_step = {}) {
    const auto count = static_cast<std::int64_t>(examples.size());
    const std::int64_t steps = count / options_.batch, all_steps = steps * options_.epochs;
    if (all_steps == 0) return;
    if (trainer_.samples_consumed() < order_.origin) order_ = {};  // a save from before this list
    if ((trainer_.samples_consumed() - order_.origin) % options_.batch != 0)
      throw config_error("heddle: three_functions: a run of batches of " + std::to_string(options_.batch) +
                         " examples cannot go on behind " + std::to_string(trainer_.samples_consumed()) +
                         ": resume with the batch that the save was made with");
    if (order_.examples != count) {
      // Another list than before: it begins an epoch of its own.
      const bool first = order_.examples == 0;
      const std::int64_t each = first ? 1 : order_.examples / options_.batch * options_.batch;
      const std::int64_t done = first ? 0 : trainer_.samples_consumed() - order_.origin;
      order_ = {count, options_.batch, order_.origin + done, order_.epoch + (done + each - 1) / each, options_.seed};
    }
    const std::int64_t done = (trainer_.samples_consumed() - order_.origin) / options_.batch;
    const std::int64_t end = trainer_.steps_done() + all_steps - done % all_steps;
    warmup_cosine rate = options_.learning_rate;
    if (rate.total_steps == 0) rate.total_steps = end;
    trainer_.set_steps(end, rate);
    stage().read(examples, trainer_);
    const auto tell = [&](const step_report& r) {
      if constexpr (std::is_invocable_v<Report&, three_functions_step>)
        report(three_functions_step{r.step, r.loss, r.targets, r.gradient_norm, r.learning_rate});
      else
        report(r);
    };
    trainer_.run(order_, tell, after_step);
  }

  /// Loss and gradients of some examples, in whole micro-batches: afterwards each parameter's `gradient` holds this
  /// rank's contribution to the gradient of the summed loss. The result's `loss` is the mean over tokens.
  /// Errors: `config_error` if `chosen` is no whole number of micro-batches or names no example; `numeric_error` if no
  /// token counts, or the loss is not finite.
  template <class Example>
  three_functions_step loss_and_gradients(const std::vector<Example>& examples,
                                          const std::vector<std::int64_t>& chosen) {
    require_chosen(chosen, static_cast<std::int64_t>(examples.size()), micro());
    stage().read(examples, trainer_);
    stage().zero_gradients();
    std::array<double, 2> sums{};
    std::vector<std::int64_t> places;
    for (std::int64_t at = 0; at < static_cast<std::int64_t>(chosen.size()); at += micro()) {
      places.clear();
      for (std::int64_t i = at + part() * options_.per_rank; places.size() < at_once() * 2; ++i) {
        places.push_back(chosen[static_cast<std::size_t>(i)]);
        places.push_back(i);
      }
      const token_loss l = stage().loss_of({.inputs = places, .samples = static_cast<int>(options_.per_rank)}, true);
      sums[0] += l.sum;
      sums[1] += static_cast<double>(l.tokens);
    }
    world_.template control_along_if<dp>().all_reduce(std::span<double>(sums), plus{});
    if (!(sums[1] > 0)) throw numeric_error("heddle: three_functions: no token of the batch counts towards the loss");
    require_finite("loss", sums[0]);
    return {trainer_.steps_done(), sums[0] / sums[1], static_cast<std::int64_t>(sums[1]), 0, 0};
  }

  /// One AdamW step with the gradients of `loss_and_gradients`. The order of a `run`'s examples does not count it.
  /// Errors: `numeric_error`, the same on every rank, if the gradients' norm is not finite; `config_error` for a rate that is negative or not finite. The weights stay
  /// as they were.
  three_functions_step update(three_functions_step now, double rate) {
    warmup_cosine{.peak = rate, .minimum = rate}.validate();
    auto& optimizer = trainer_.optimizer_state();
    const auto gradients = stage().gradients();
    optimizer.reduce(trainer_.gradient_group(), gradients);
    std::array<double, 1> squares{optimizer.counted_sum_of_squares(trainer_.backend(), gradients)};
    world_.control().all_reduce(std::span<double>(squares), plus{});
    const double per_token = 1.0 / static_cast<double>(now.tokens);
    now.gradient_norm = std::sqrt(squares[0]) * per_token;
    require_finite("gradients' norm", now.gradient_norm);
    now.learning_rate = rate;
    const std::int64_t consumed = trainer_.samples_consumed();
    trainer_.set_steps(trainer_.steps_done() + 1, {.peak = rate, .minimum = rate});
    trainer_.apply_gradients({now.loss, now.gradient_norm, per_token});
    trainer_.set_position(trainer_.steps_done(), consumed);
    stage().zero_gradients();
    return now;
  }

  /// One output per example, in their order, the same on every rank. A last batch that is not full is filled up with
  /// its last example and cut again.
  /// Errors: `layout_error` if the function returns another number of outputs than it got examples.
  template <class Example>
  auto predict(const std::vector<Example>& examples) {
    context& c = stage().functions_context();
    c.set_training(false);
    c.set_loss_sum(nullptr);
    const std::int64_t count = static_cast<std::int64_t>(examples.size()), micro = this->micro();
    using outputs = decltype(predict_(c, collate_(examples)));
    using value = typename outputs::value_type;
    outputs all;
    for (std::int64_t at = 0; at < count; at += micro) {
      const std::int64_t first = at + part() * options_.per_rank;
      std::vector<Example> some;
      for (std::int64_t i = first; i < first + options_.per_rank; ++i)
        some.push_back(examples[static_cast<std::size_t>((std::min)(i, count - 1))]);
      c.set_place(options_.seed, trainer_.steps_done(), first);
      const outputs own = predict_(c, collate_(some));
      if (static_cast<std::int64_t>(own.size()) != options_.per_rank) {
        throw layout_error(text_of({"heddle: three_functions: predict got ", options_.per_rank,
                                    " examples and returned ", own.size(), " outputs"}));
      }
      outputs together(static_cast<std::size_t>(micro));
      world_.template control_along_if<dp>().all_gather(std::span<const value>(own), std::span<value>(together));
      const auto wanted = static_cast<std::ptrdiff_t>((std::min)(micro, count - at));
      all.insert(all.end(), together.begin(), together.begin() + wanted);
    }
    return all;
  }

 private:
  auto& stage() { return trainer_.stage(); }
  std::int64_t replicas() const { return world_.mesh().template extent_or_one<dp>(); }
  /// Examples of a micro-batch, on all dp ranks.
  std::int64_t micro() const { return options_.per_rank * replicas(); }
  std::size_t at_once() const { return static_cast<std::size_t>(options_.per_rank); }

  // The trainer's options, with all that it needs checked.
  auto for_trainer() const {
    if (options_.batch < 1 || options_.per_rank < 1 || options_.batch % micro() != 0) {
      throw config_error(text_of({"heddle: three_functions: a batch of ", options_.batch,
                                  " examples is no whole number of micro-batches of ", options_.per_rank,
                                  " on each of ", replicas(), " dp ranks; choose a multiple of ", micro()}));
    }
    if (const int ranks = world_.mesh().template extent_or_one<typename Strategy::pipeline>(); ranks != 1)
      throw config_error("heddle: three_functions are one stage: the pipeline axis must have 1 rank, got " +
                         std::to_string(ranks));
    options_.validate();
    train::options<typename model_type::config> result;
    result.model = {.collate = &collate_, .loss = &loss_};
    result.batch = options_.batch;
    result.microbatches = static_cast<int>(accumulate());
    result.steps = 0;
    result.learning_rate = options_.learning_rate;
    detail::set_options_of_rule(result, options_.optimizer);
    result.clip_norm = options_.clip_norm;
    result.seed = options_.seed;
    result.stop = options_.stop;
    return result;
  }

  std::int64_t part() const {
    if constexpr (World::mesh_type::template has<dp>) return world_.template coordinate<dp>();
    return 0;
  }

  // Every rank holds the same value, so that all of them throw.
  void require_finite(const char* what, double value) const {
    if (std::isfinite(value)) return;
    throw numeric_error(text_of({"heddle: three_functions: the ", what, " of step ", trainer_.steps_done(), " is ",
                                 number_text(value), "; the weights were not changed by it"}));
  }
  static void require_chosen(const std::vector<std::int64_t>& chosen, std::int64_t examples, std::int64_t micro) {
    const auto given = static_cast<std::int64_t>(chosen.size());
    if (given < 1 || given % micro != 0) {
      throw config_error(text_of(
          {"heddle: three_functions: ", given, " chosen examples are no whole number of micro-batches of ", micro}));
    }
    for (const std::int64_t i : chosen)
      if (i < 0 || i >= examples) {
        throw config_error(text_of({"heddle: three_functions: example ", i, " was chosen of ", examples}));
      }
  }

  World& world_;
  three_functions_options options_;
  Collate collate_;
  Loss loss_;
  Predict predict_;
  trainer_type trainer_;
  detail::example_order order_{};
};

/// A pipeline from three functions; layouts of the parameters follow from their names and shapes.
///
///     collate(std::vector<Example>) -> batch              on the host, for this dp rank's examples
///     loss(context&, batch) -> token_loss                 computes the loss, and adds gradients of the summed loss
///     predict(context&, batch) -> std::vector<Output>     one trivially copyable output per example
///
/// The same three functions run on any mesh with or without the axes dp and tp, and give the same numbers up to rounding.
/// `auto p = train::three_functions<model, double>(world, collate, loss, predict, options); p.run(examples, report);`
/// `three_functions<strategy, model, double>(world, ..., options, observer)` is told how to train: `zero<1>`, an observer,
/// `precision<weights_in<bf16>>` with a T of float for bf16 weights and masters and moments in float.
/// Errors: `config_error` if the batch is no whole number of micro-batches, or the schedule cuts the model into stages.
/// Source: Tan et al., "Redco", arXiv:2310.16355, section 3.2. Loss and gradients are weighted by tokens instead of by
/// replicas, whose means would be wrong where they hold different numbers of valid tokens.
template <detail::training_strategy Strategy, named_model Model, class T, class Rules = redco_rules, class World,
          class Collate, class Loss, class Predict, class... More>
auto three_functions(World& world, Collate collate, Loss loss, Predict predict, const three_functions_options& options,
                     More&... more) {
  if constexpr (detail::loss_computed_in<T>())
    return three_function_pipeline<Strategy, T, Model, World, Collate, Loss, Predict, Rules>(
        world, std::move(collate), std::move(loss), std::move(predict), options, more...);
}
template <named_model Model, class T, class Rules = redco_rules, class Backend = compute::host<>, class World,
          class Collate, class Loss, class Predict>
auto three_functions(World& world, Collate collate, Loss loss, Predict predict,
                     const three_functions_options& options) {
  return three_functions<strategy<typename World::mesh_type, Backend>, Model, T, Rules>(
      world, std::move(collate), std::move(loss), std::move(predict), options);
}

}  // namespace heddle::inline v0::train
