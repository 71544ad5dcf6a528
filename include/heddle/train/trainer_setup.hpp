// heddle/train/trainer_setup.hpp: what a trainer makes of its options before it has anything else.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/schedule/named.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::train::detail {

// The options with what they leave out. Errors: `config_error`.
template <class Strategy, class Options>
Options checked_options(Options o) {
  o.validate();
  if (Strategy::norm_check::steps_first && !Strategy::norm_check::copies &&
      o.learning_rate.peak * o.adamw.weight_decay >= 1)
    throw config_error(
        "heddle: post_validation takes steps back, which cannot be done where learning rate times weight "
        "decay is 1 or more; post_validation_with_copy can");
  if (o.learning_rate.total_steps == 0) o.learning_rate.total_steps = o.steps;
  if constexpr (!std::is_same_v<typename Strategy::schedule, schedule::named>) {
    if (!o.schedule.empty())
      throw config_error("heddle: options.schedule is \"" + o.schedule +
                         "\", but this strategy has a schedule of its own; use schedule::named to choose at start-up");
  }
  return o;
}

template <class Options>
int threads_for(const Options& o, int ranks) {
  if (o.threads_per_rank > 0) return o.threads_per_rank;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return (std::max)(1, cores / ranks);
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

}  // namespace heddle::inline v0::train::detail
