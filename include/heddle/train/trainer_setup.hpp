// heddle/train/trainer_setup.hpp: the parts of a trainer that are made from its options alone.
#pragma once

#include <heddle/core/cores.hpp>
#include <heddle/core/error.hpp>
#include <heddle/train/activations/stage_for.hpp>
#include <heddle/train/determined.hpp>
#include <heddle/train/learning_rate.hpp>
#include <heddle/train/optimizer_steps.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/trainable.hpp>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::schedule {
class named;  // a policy of those who include schedule/named.hpp, with all generators
}

namespace heddle::inline v0::train::detail {

// Options of the rule under which steps can be taken back, where the strategy does that. Errors: `config_error`.
template <class Strategy, class Options>
void require_rule_to_fit(const Options& o) {
  using rule = typename Strategy::optimizer;
  [[maybe_unused]] const auto constants = options_of_rule_in<rule>(o);
  if constexpr (Strategy::norm_check::steps_first && !Strategy::norm_check::copies)
    if constexpr (requires { rule::require_reversible(constants, o.learning_rate.greatest()); })
      rule::require_reversible(constants, o.learning_rate.greatest());
}

// The options with what they leave out. Errors: `config_error`.
template <class Strategy, class Options>
Options checked_options(Options o) {
  o.validate();
  require_rule_to_fit<Strategy>(o);
  o.learning_rate = o.learning_rate.over(o.steps);
  o.learning_rate.validate();  // with the steps of the run
  if constexpr (!std::is_same_v<typename Strategy::schedule, schedule::named>) {
    if (!o.schedule.empty())
      throw config_error("heddle: options.schedule is \"" + o.schedule +
                         "\", but this strategy has a schedule of its own; use schedule::named to choose at start-up");
  }
  return o;
}
// The same of options with another length of the run.
template <class Strategy, class Options>
Options with_steps(Options o, std::int64_t steps, const any_learning_rate& rate) {
  o.steps = steps;
  o.learning_rate = rate;
  return checked_options<Strategy>(std::move(o));
}

template <class Options>
int threads_for(const Options& o, int ranks) {
  if (o.threads_per_rank > 0) return o.threads_per_rank;
  return heddle::detail::cores_per_rank(ranks);
}

// A backend for a rank: with that many threads, where it computes with threads of the host.
template <class Backend, class Options>
Backend backend_for(const Options& o, int ranks) {
  if constexpr (std::is_constructible_v<Backend, int>)
    return Backend(threads_for(o, ranks));
  else
    return Backend();
}

// Another of them, which stays where it is made: backends need not be movable.
template <class Backend, class Options>
Backend& one_more_backend(std::deque<Backend>& to, const Options& o, int ranks) {
  if constexpr (std::is_constructible_v<Backend, int>)
    return to.emplace_back(threads_for(o, ranks));
  else
    return to.emplace_back();
}

// The microbatches of a step. Errors: `config_error` if the options say another number than the schedule.
template <class Options>
int checked_microbatches(const Options& o, int of_schedule) {
  if (o.microbatches != 0 && o.microbatches != of_schedule)
    throw config_error("heddle: the schedule has " + std::to_string(of_schedule) +
                       " microbatches; microbatches must be that or 0, got " + std::to_string(o.microbatches));
  return of_schedule;
}

template <class When, class Options>
When make_schedule(const Options& o) {
  const int microbatches = o.microbatches == 0 ? 1 : o.microbatches;
  if constexpr (When::is_static)
    return When{};
  else if constexpr (std::is_same_v<When, schedule::named>)
    return When{o.schedule.empty() ? std::string_view("1f1b") : std::string_view(o.schedule), microbatches};
  else if constexpr (std::is_constructible_v<When, int>)
    return When{microbatches};
  else
    throw config_error("heddle: this schedule is not made from a number of microbatches; pass it to the trainer");
}

// The stage of a model under a strategy, whose members are checked.
template <class Model, class World, class Strategy>
struct stage_of {
  using backend = typename Strategy::backend;
  using config = typename Model::config;
  using layers = decltype(Model::layers_of(std::declval<const config&>(), 0, 1));
  using type =
      checked_stage<typename Strategy::mesh,
                    typename determined<typename Strategy::determinism>::template stage<
                        stage_for<Model, World, backend, typename Strategy::activations, typename Strategy::pipeline>>,
                    typename Model::batch, const config&, World&, backend&, const layers&, int, std::int64_t, int>;
};
template <class Model, class World, class Strategy>
using stage_of_trainer = typename stage_of<Model, World, Strategy>::type;

}  // namespace heddle::inline v0::train::detail
