// heddle/rl/policy.hpp: a language model whose loss is an objective of reinforcement learning.
#pragma once

#include <heddle/model/batch_checks.hpp>
#include <heddle/model/described.hpp>
#include <heddle/model/layers/ends.hpp>
#include <heddle/model/layers/trained.hpp>
#include <heddle/model/pair_batch.hpp>
#include <heddle/rl/objective.hpp>
#include <heddle/rl/statistics.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::rl {

/// Numbers of each row among the targets: its id, and those of `token`.
inline constexpr int numbers_of_row = 6;

/// One microbatch of answers. `targets` hold, sample after sample, `numbers_of_row` times `sequence` numbers: the ids
/// that follow the tokens (negative: not of the answer), and the advantages, behaviour, proximal and reference
/// log-probabilities and weights, each a float in the bits of an int32. `experience` makes them of samples.
/// Shapes: tokens [samples, sequence], targets [samples, 6, sequence].
template <class T>
struct batch : model::batch<T> {};

/// What the first layer reads of a batch: its tokens.
template <class Config, class T>
compute::token_ids inputs_of(const Config&, const batch<T>& b, model::extent_of_batch) {
  return b.tokens;
}
/// The extent of a microbatch of answers. Errors: `config_error` naming what does not fit, as for `model::batch`.
template <class Config, class T>
model::extent_of_batch checked_batch(const Config& config, std::int64_t max_samples, const batch<T>& b,
                                     bool reads_tokens, bool reads_targets) {
  const model::extent_of_batch e =
      model::checked_batch(config, max_samples, static_cast<const model::batch<T>&>(b), reads_tokens, false);
  if (!reads_targets) return e;
  if (static_cast<std::int64_t>(b.targets.size()) != e.rows() * numbers_of_row)
    throw config_error("heddle: a microbatch of " + std::to_string(e.samples) + " x " + std::to_string(e.sequence) +
                       " tokens came with " + std::to_string(b.targets.size()) +
                       " targets; rl::batch has an id and five numbers for each");
  for (std::int64_t s = 0; s < e.samples; ++s)
    for (const std::int32_t id : b.targets.subspan(static_cast<std::size_t>(s * numbers_of_row * e.sequence),
                                                   static_cast<std::size_t>(e.sequence)))
      if (id >= config.vocabulary)
        throw config_error("heddle: targets hold the id " + std::to_string(id) + ", outside the vocabulary of " +
                           std::to_string(config.vocabulary));
  return e;
}

struct slopes : model::layers::statistic {};  ///< activation: of each row minus the slope of its weighted loss

namespace detail {
// Adds the loss of all rows to `to`, and leaves `factor` times each row's weighted slope in `kept`. `numbers`: the targets, and
// `of_rows` what the objective is a function of, both where the host can read them.
template <class B, class Numbers, class Objective, class Number>
void add_terms(const B& b, const Numbers& numbers, std::span<const double> of_rows, const Objective& objective,
               rl::statistics* statistics, double factor, typename B::sum_row kept, Number to) {
  const auto rows = static_cast<std::size_t>(b.rows()), n = static_cast<std::size_t>(b.run().extent.sequence);
  std::vector<typename B::sum> slopes(rows);
  double loss = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    const std::size_t at = r / n * n * numbers_of_row + r % n;
    if (numbers[at] < 0) continue;
    const auto number = [&](std::size_t c) -> double { return std::bit_cast<float>(numbers[at + c * n]); };
    const token t{number(1), number(2), number(3), number(4), number(5)};
    const term x = objective(of_rows[r], t);
    if (statistics != nullptr) statistics->add(of_rows[r], t, x);
    loss += t.weight * x.loss;
    slopes[r] = static_cast<typename B::sum>(t.weight * x.slope * factor);
  }
  if constexpr (B::on_host) {
    std::copy(slopes.begin(), slopes.end(), kept.begin());
    *to += loss;
  } else {
    double before = 0;
    b.queue().copy(std::span<const typename B::sum>(slopes), kept);
    b.queue().copy(to, std::span<double>(&before, 1));
    b.queue().wait();
    loss += before;
    b.queue().copy(std::span<const double>(&loss, 1), to);
    b.queue().wait();
  }
}
}  // namespace detail

/// loss = sum over rows of weight * objective(log softmax(norm(x) W' / temperature)[target], token): what `layers::language_head`
/// has, with a function of one token for the loss. The vocabulary may be split as there: log-probabilities are whole on
/// every rank before the objective sees them. The objective is called on the host, so that a device waits for its rows
/// once for each microbatch.
/// Shapes: as for `language_head`; targets as for `rl::batch`.
template <class Norm, bool Tied, class Objective>
struct policy_head : model::layers::language_head<Norm, Tied> {
  using whole_head = model::layers::language_head<Norm, Tied>;
  /// Not a cross-entropy: heads that take the place of one do not take the place of this.
  using own_loss = Objective;
  static constexpr int numbers_of_row = rl::numbers_of_row;
  Objective objective;
  double temperature;
  rl::statistics* statistics;

  constexpr policy_head(const whole_head& of, const Objective& o, double of_logits, rl::statistics* sums)
      : whole_head(of), objective(o), temperature(of_logits), statistics(sums) {}

  constexpr auto activations() const {
    namespace ml = model::layers;
    using width_row = model::dims<dim::width>;
    using words_row = model::dims<dim::vocabulary>;
    const std::int64_t width = this->width;
    return ml::list(
        ml::activation<ml::normed, ml::life::until_weight, width_row>{{width}, this->norm.role},
        ml::activation<ml::logits, ml::life::until_weight, words_row>{{this->vocabulary}, ml::detail::kept_logits},
        typename whole_head::template of_row<ml::greatest>{},
        typename whole_head::template of_row<ml::sum_of_exponentials>{},
        typename whole_head::template of_row<ml::picked>{}, typename whole_head::template of_row<slopes>{},
        ml::activation<ml::d_normed, ml::life::deferred, width_row>{{width}},
        ml::gathered_rows<ml::whole_in, ml::life::scratch, width_row, words_row>{{{width}}});
  }
  using needs = compute::facet_list<compute::product_facet, compute::elementwise_facet, compute::cross_entropy_facet,
                                    compute::weighted_cross_entropy_facet>;

  template <class B>
  typename B::loss_type forward(const B& b, typename B::const_view x, typename B::token_ids targets) const {
    project_and_divide(b, x);
    this->template sum_up_rows<numbers_of_row>(b, targets);
    return b.add_loss([&](auto to) { add_terms(b, targets, to); });
  }
  /// As that of `language_head`, at the temperature.
  template <class B>
  void target_log_probabilities(const B& b, typename B::const_view x, typename B::token_ids targets,
                                std::span<double> out) const {
    project_and_divide(b, x);
    this->template sum_up_rows<numbers_of_row>(b, targets);
    this->template read_log_probabilities<numbers_of_row>(b, targets, out);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::token_ids targets, typename B::sum scale,
                      typename B::view dx) const {
    namespace ml = model::layers;
    auto& k = b.compute();
    const auto factors = b.vector(slopes{}), m = b.vector(ml::greatest{}), sum = b.vector(ml::sum_of_exponentials{});
    compute::run<compute::ops::scale>(k, factors, scale);
    this->template each_sample<numbers_of_row>(b, targets, [&](typename B::token_ids ids, model::row_range at) {
      compute::run<compute::ops::weighted_cross_entropy_backward>(
          k, ml::rows_of(b[ml::logits{}], at), whole_head::template part_of_row<B>(m, at),
          whole_head::template part_of_row<B>(sum, at), ids, b.run().first_word,
          whole_head::template part_of_row<B>(factors, at));
    });
    return this->backward_of_logits(b, x, dx);
  }

 private:
  template <class B>
  void project_and_divide(const B& b, typename B::const_view x) const {
    this->project(b, x);
    if (temperature != 1)
      compute::run<compute::ops::scale>(b.compute(), b.vector(model::layers::logits{}),
                                        static_cast<typename B::sum>(1 / temperature));
  }
  template <class B, class Number>
  void add_terms(const B& b, typename B::token_ids targets, Number to) const {
    std::vector<double> lp(static_cast<std::size_t>(b.rows()));
    this->template read_log_probabilities<numbers_of_row>(b, targets, lp);
    detail::add_terms(b, whole_head::on_host_of(b, targets), lp, objective, statistics, -1 / temperature,
                      b.vector(slopes{}), to);
  }
};

/// A model's configuration, and its objective. `temperature`: of the rollout; all log-probabilities are of
/// softmax(logits / temperature), the distribution that tokens were drawn from. `statistics`: this rank's, which must
/// outlive the run; null: none.
template <class Config, class Objective>
struct policy_config : Config {
  Objective objective{};
  double temperature = 1;
  rl::statistics* statistics = nullptr;

  /// Errors: `config_error` naming what does not fit.
  void validate() const {
    Config::validate();
    detail::validate_objective(objective);
    detail::require(temperature > 0 && std::isfinite(temperature), "policy.temperature", temperature,
                    "a finite number above 0");
  }
};
/// In words, as for the model alone.
template <class Config, class Objective>
std::string to_string(const policy_config<Config, Objective>& c) {
  return to_string(static_cast<const Config&>(c)) + ", objective " + to_string(c.objective) +
         (c.temperature == 1 ? "" : ", temperature " + number_text(c.temperature));
}

namespace detail {
template <bool Ok, class Head>
inline constexpr bool head_takes_objective = Ok;
template <class Objective, class Norm, bool Tied>
constexpr auto with_objective(const model::layers::language_head<Norm, Tied>& head, const Objective& o,
                              double temperature, rl::statistics* sums) {
  return policy_head<Norm, Tied, Objective>(head, o, temperature, sums);
}
template <class Head>
inline constexpr bool is_language_head = false;
template <class Norm, bool Tied>
inline constexpr bool is_language_head<model::layers::language_head<Norm, Tied>> = true;
}  // namespace detail

/// `Base` (`gpt2`, `llama`, `mixtral`, ..., also inside or around `with_lora`) that is trained by an objective in place
/// of cross-entropy: a `train::trainer` of it takes `rl::experience`, and all strategies stay. Parameters, their names,
/// saves and sharding are those of `Base`. `Objective` is such as `ppo`, or `any_objective` to choose one at run time,
/// in `options.model.objective`.
///
/// `auto trainer = hd::train::make_trainer<strategy>(hd::rl::policy<hd::model::gpt2<float>, hd::rl::ppo>{}, world,
/// options);`
template <class Base, class Objective>
struct policy : model::described<policy<Base, Objective>, typename Base::scalar, batch<typename Base::scalar>,
                                 policy_config<typename Base::config, Objective>, typename Base::how> {
  using base = Base;
  static_assert(objective<Objective>,
                "heddle: an objective has `rl::term operator()(double log_probability, const rl::token&) const` and "
                "`std::string to_string(const Objective&)`");
  /// `adapt`: adapters, for `with_lora`; or nothing.
  static constexpr auto describe(const policy_config<typename Base::config, Objective>& c, auto... adapt)
    requires requires { Base::describe(c, adapt...); }
  {
    const auto whole = Base::describe(c, adapt...);
    using head = std::remove_cvref_t<decltype(whole.out)>;
    constexpr bool has_objective = requires { typename head::own_loss; };
    static_assert(detail::head_takes_objective<!has_objective, head>,
                  "heddle: rl::policy: this model has an objective already; join objectives as rl::with_kl does, not "
                  "policies");
    constexpr bool possible = detail::is_language_head<head>;
    static_assert(detail::head_takes_objective < possible || has_objective, head >,
                  "heddle: rl::policy puts an objective in place of the cross-entropy of a layers::language_head; this "
                  "model has another head");
    if constexpr (possible)
      return with_head(whole, detail::with_objective(whole.out, c.objective, c.temperature, c.statistics));
    else
      return whole;
  }
};

}  // namespace heddle::inline v0::rl

namespace heddle::inline v0::model {

/// The samples of `rl::batch`: a context of tokens, and six numbers for each.
template <class T>
struct batch_contents<rl::batch<T>> {
  using input = std::int32_t;
  using target = std::int32_t;
  template <class Config>
  static constexpr sample_extents extents(const Config& c) {
    return {c.context, std::int64_t{rl::numbers_of_row} * c.context, 1, rl::numbers_of_row};
  }
  static void give(rl::batch<T>& b, std::span<const input> inputs, std::span<const target> targets) {
    b.tokens = inputs;
    b.targets = targets;
  }
  /// Ids that are not negative; what is behind the ids of a sample are no ids.
  static double counted(std::span<const target> targets, sample_extents one) {
    double n = 0;
    for (std::size_t i = 0; i < targets.size(); ++i)
      if (static_cast<std::int64_t>(i) % one.targets < one.inputs && targets[i] >= 0) ++n;
    return n;
  }
};

}  // namespace heddle::inline v0::model
