// heddle/train/trainer_checks.hpp: checks of a trainer's world, table and shared options.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/split.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/train/report.hpp>
#include <heddle/train/same_options.hpp>
#include <heddle/train/stage_parts.hpp>
#include <heddle/train/step_batches.hpp>
#include <heddle/train/step_sums.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {
// These carry what was given into the compiler's message.
template <bool Ok, class Options, class Other>
inline constexpr bool is_config_of_model = Ok;
template <bool Ok, class Data, class Batch>
inline constexpr bool is_data_of_trainer = Ok;
// Refuses the world of a trainer of another one.
template <class World, class Other>
World& world_of_trainer() {
  constexpr bool same = std::is_same_v<World, Other>;
  static_assert(same,
                "heddle: this trainer is for a world of another type than it is given; "
                "write train::trainer<Model, Strategy, decltype(world)>");
  return *static_cast<World*>(nullptr);
}

// Refuses options of another model.
template <class Options, class Other>
Options options_of_trainer() {
  constexpr bool same = std::is_convertible_v<const Other&, Options>;
  static_assert(is_config_of_model<same, Options, Other>,
                "heddle: these are not the options of this model; give it train::options<Model::config>, such as "
                "train::options<model::gpt2<float>::config>");
  return {};
}
// Refuses what is no data for a model.
template <class Trainer, class Data>
constexpr void refuse_data() {
  static_assert(is_data_of_trainer<requires { Trainer::stage_type::is_refused; }, Data, typename Trainer::batch_type>,
                "heddle: this is no data for the model: a trainer takes samples such as io::dataset (tokens, for "
                "model::batch), io::pairs (x and y, for model::pair_batch) or io::basic_documents (for a context split), or what "
                "has their context(), or inputs() "
                "and targets(), validation_samples(), fill_train({first, count}, inputs, targets) and fill_validation "
                "(train::sample_source)");
}
// A concept of both, so that a compiler looks into the trainer when a function is called, not in its base (nvcc 13 would).
template <class Data, class Trainer>
concept data_of = sample_source<Data, typename Trainer::batch_type>;
// The functions of a trainer that take data, for whatever is none.
template <class Trainer>
struct takes_only_data {
  template <class Data, class... More>
    requires(!data_of<Data, Trainer>)
  void run(const Data&, const More&...) {
    refuse_data<Trainer, Data>();
  }
  template <class Data>
    requires(!data_of<Data, Trainer>)
  step_report step(const Data&) {
    refuse_data<Trainer, Data>();
    return {};
  }
  template <class Data>
    requires(!data_of<Data, Trainer>)
  std::optional<step_report> step_ahead(const Data&) {
    refuse_data<Trainer, Data>();
    return {};
  }
  template <class Data>
    requires(!data_of<Data, Trainer>)
  step_result compute_gradients(const Data&) {
    refuse_data<Trainer, Data>();
    return {};
  }
  template <class Data>
    requires(!data_of<Data, Trainer>)
  double validate(const Data&) {
    refuse_data<Trainer, Data>();
    return 0;
  }
};

// What a trainer asks of its schedule beyond being valid.
inline schedule::table_view trained(schedule::table_view t) {
  if (t.forward_only())
    throw schedule_error("heddle: the schedule has no backwards: it is for inference, a trainer needs one that trains");
  return t;
}

// Carries the stage into the compiler's message.
template <bool Ok, class Stage>
inline constexpr bool can_step_first = Ok;
// With `post_validation` a step begins with forwards while the gradients of the step before are still needed.
template <class Stage, bool StepsFirst>
constexpr bool steps_in_order() {
  if constexpr (StepsFirst && model::of_stage::adds_gradients_in_forward<Stage>)
    static_assert(can_step_first<!StepsFirst, Stage>,
                  "heddle: this stage adds gradients as it runs forward (that of three_functions does: the loss adds "
                  "them), so a step cannot run forward before the step before has used its own; leave post_validation "
                  "out");
  else
    static_assert(can_step_first<!(StepsFirst && model::of_stage::counts_targets<Stage>), Stage>,
                  "heddle: a stage with counted_targets() counts from zero_gradients() on, which post_validation calls "
                  "behind the first forwards of a step; leave post_validation out");
  return true;
}

// The most microbatches of a stage that wait between I and W.
constexpr int most_deferred(std::span<const schedule::action> list, int stage) {
  int waiting = 0, most = 0;
  for (const schedule::action& a : list) {
    if (a.stage != stage) continue;
    if (a.kind == schedule::action_kind::backward_input) most = (std::max)(most, ++waiting);
    if (a.kind == schedule::action_kind::backward_weight) --waiting;
  }
  return most;
}
// What the gradients of a part are multiplied with; they are sums over the samples that visited it, divided by all
// samples of the step, which are cut into `shares`.
template <class Scale>
double gradient_factor(schedule::table_view t, const stage_parts& parts, int part, std::int64_t samples, int shares) {
  if (!t.has_paths()) return 1;
  std::int64_t visited = 0;
  for (int d = 0; d < shares; ++d) {
    const balanced_split cut{balanced_split{samples, shares}.size(d), t.microbatches()};
    for (const int s : parts.stages_of(part))
      for (int i = 0; i < t.microbatches(); ++i)
        if (t.handles(s, i)) visited += cut.size(i);
  }
  return static_cast<double>(samples) / Scale::divisor(static_cast<int>(visited), static_cast<int>(samples));
}

inline bool has_pairs(std::span<const schedule::action> list) {
  return std::any_of(list.begin(), list.end(), [](const schedule::action& a) { return a.overlaps_next; });
}

// Adds a parameter's name, and a line's end, with `*` for each number between dots, unless the text has it.
HEDDLE_INLINE void add_name(std::string& names, std::string_view name);
HEDDLE_INLINE void note_name(std::vector<std::string>& names, std::string_view name);
// The `config_error` for a rate of this text; `names`: those of all ranks, a line each.
HEDDLE_INLINE config_error no_parameter_of_rate(const std::string& text, std::string_view names);

// Refuses rates that no parameter of any rank has. Called on all ranks of `all` together, with the same rates.
// `here`: the names of this rank's parameters.
template <communicator Communicator, class Rates>
void require_parameters_of_rates(Communicator& all, const Rates& rates, const std::vector<std::string>& here) {
  if (rates.empty()) return;
  std::vector<std::int64_t> uses(rates.size(), 0);
  for (const std::string& name : here)
    for (std::size_t i = 0; i < rates.size(); ++i) uses[i] += name.starts_with(rates[i].first) ? 1 : 0;
  all.all_reduce(std::span<std::int64_t>(uses), plus{});
  const auto unused = static_cast<std::size_t>(std::find(uses.begin(), uses.end(), 0) - uses.begin());
  if (unused == uses.size()) return;
  std::string mine;
  for (const std::string& name : here) add_name(mine, name);
  const auto length = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(all.size()));
  all.all_gather(std::span<const std::int64_t>(&length, 1), std::span<std::int64_t>(lengths));
  std::size_t sum = 0;
  for (const std::int64_t n : lengths) sum += static_cast<std::size_t>(n);
  std::string names(sum, '\0');
  all.all_gather_v(std::span<const char>(mine), std::span<char>(names), std::span<const std::int64_t>(lengths));
  throw no_parameter_of_rate(rates[unused].first, names);
}

// Refuses gradients that a loop without a step between would compute on the same samples for ever.
HEDDLE_INLINE void refuse_gradients_of_same_step(bool same, std::int64_t step);

// Refuses options that are not the same on all ranks of `all`, and rates that no parameter has.
template <communicator Communicator, class Options, class Rates>
void require_same_options_and_rates(Communicator& all, const Options& o, const Rates& rates, schedule::table_view table,
                                    const std::vector<std::string>& names) {
  require_same_options(all, to_string(o) + " table=" + std::to_string(fingerprint(table)));
  require_parameters_of_rates(all, rates, names);
}
template <communicator Communicator, class Options, class Rates, class Held>
void require_options_that_fit(Communicator& all, const Options& o, const Rates& rates, schedule::table_view table,
                              Held& held) {
  std::vector<std::string> names;
  if (!rates.empty())
    held.for_each([&](auto& h) {
      for (const auto& p : h.stage.parameters()) note_name(names, p.name);
    });
  require_same_options_and_rates(all, o, rates, table, names);
}

}  // namespace detail

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/trainer_checks.hpp>
#endif
