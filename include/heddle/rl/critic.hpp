// heddle/rl/critic.hpp: a language model that says values of tokens, and its loss, for PPO.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/compute/ops/elementwise.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/described.hpp>
#include <heddle/model/layers/ends.hpp>
#include <heddle/model/layers/trained.hpp>
#include <heddle/rl/advantage.hpp>
#include <heddle/rl/objective.hpp>
#include <heddle/rl/policy.hpp>
#include <heddle/rl/sample.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::rl {

/// The loss of a value v of a token, of which `advantage` is the return R and `behaviour` the value before the step:
/// max((v - R)^2, (clip(v, old - clip, old + clip) - R)^2) / 2. `clip` 0: (v - R)^2 / 2.
/// Source: Schulman et al. 2017, arXiv:1707.06347, as in verl's `compute_value_loss`.
struct value_loss {
  double clip = .5;
  term operator()(double value, const token& t) const {
    const double d = value - t.advantage;
    if (clip == 0) return {d * d / 2, d};
    const double kept = (std::clamp)(value, t.behaviour - clip, t.behaviour + clip), c = kept - t.advantage;
    if (c * c > d * d) return {c * c / 2, kept == value ? c : 0};
    return {d * d / 2, d};
  }
  /// Errors: `config_error`.
  void validate() const { detail::require(clip >= 0, "value_loss.clip", clip, "at least 0 (0: no clip)"); }
};
/// `"value loss clip=0.2"`.
inline std::string to_string(const value_loss& o) {
  return "value loss clip=" + number_text(o.clip);
}

/// One number of each row, norm(x) w, and the loss of it. The one column of the weight is on one of the ranks that split
/// the vocabulary, and the values are on all of them.
/// Shapes: x [rows, width], w [1, width]; targets as for `rl::batch`.
template <class Norm, class Loss>
struct value_head : model::layers::language_head<Norm, false> {
  using whole_head = model::layers::language_head<Norm, false>;
  using own_loss = Loss;
  static constexpr int numbers_of_row = rl::numbers_of_row;
  Loss loss;

  constexpr value_head(const Norm& norm, const Loss& of) : whole_head(norm, 1, "value.weight", 0.02), loss(of) {}

  constexpr auto activations() const {
    namespace ml = model::layers;
    using width_row = model::dims<dim::width>;
    using words_row = model::dims<dim::vocabulary>;
    return ml::list(ml::activation<ml::normed, ml::life::until_weight, width_row>{{this->width}, this->norm.role},
                    ml::activation<ml::logits, ml::life::until_weight, words_row>{{1}, ml::detail::kept_logits},
                    typename whole_head::template of_row<ml::greatest>{},
                    typename whole_head::template of_row<slopes>{},
                    ml::activation<ml::d_normed, ml::life::deferred, width_row>{{this->width}},
                    ml::gathered_rows<ml::whole_in, ml::life::scratch, width_row, words_row>{{{this->width}}});
  }
  using needs = compute::facet_list<compute::product_facet, compute::elementwise_facet, compute::cross_entropy_facet>;

  template <class B>
  typename B::loss_type forward(const B& b, typename B::const_view x, typename B::token_ids targets) const {
    make_values(b, x);
    return b.add_loss([&](auto to) {
      const auto numbers = whole_head::on_host_of(b, targets);
      std::vector<double> values(static_cast<std::size_t>(b.rows()));
      read_values(b, numbers, values);
      detail::add_terms(b, numbers, values, loss, nullptr, 1, b.vector(slopes{}), to);
    });
  }
  /// The value before each row's target, in the place of its log-probability; 0 where there is none. Waits for the queue.
  template <class B>
  void target_log_probabilities(const B& b, typename B::const_view x, typename B::token_ids targets,
                                std::span<double> out) const {
    make_values(b, x);
    read_values(b, whole_head::on_host_of(b, targets), out);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::token_ids, typename B::sum scale,
                      typename B::view dx) const {
    static_assert(std::is_same_v<typename B::sum, typename B::scalar>,
                  "heddle: rl::critic computes in float or double");
    const auto of_rows = b.vector(slopes{}), of_logits = b.vector(model::layers::logits{});
    if (element_count(of_logits) != 0) {
      compute::run<compute::ops::scale>(b.compute(), of_rows, scale);
      compute::run<compute::ops::copy>(b.compute(), of_rows, of_logits);
    }
    return this->backward_of_logits(b, x, dx);
  }

 private:
  // Of no columns the greatest is less than any.
  template <class B>
  void make_values(const B& b, typename B::const_view x) const {
    namespace ml = model::layers;
    using greatest_made = typename whole_head::template laid<typename B::layouts>::template over_words<maximum>;
    using whole = typename B::layouts::template edge<model::dims<>, model::dims<dim::vocabulary>>;
    this->project(b, x);
    compute::run<compute::ops::row_max>(b.compute(), b[ml::logits{}], b.vector(ml::greatest{}));
    b.template redistribute_in_place<greatest_made, whole>(b[ml::greatest{}]);
  }
  template <class B, class Numbers>
  static void read_values(const B& b, const Numbers& numbers, std::span<double> out) {
    const auto all = whole_head::on_host_of(b, b.vector(model::layers::greatest{}));
    const auto n = static_cast<std::size_t>(b.run().extent.sequence);
    for (std::size_t i = 0; i < static_cast<std::size_t>(b.rows()); ++i)
      out[i] = numbers[i / n * n * numbers_of_row + i % n] < 0 ? 0 : static_cast<double>(all[i]);
  }
};

/// `Base` with a `value_head` in the place of its words: what a `train::trainer` trains as a critic. Parameters but the
/// head's, and their names, are those of `Base`. `options.model.objective` is the loss.
template <class Base, class Loss = value_loss>
struct critic : model::described<critic<Base, Loss>, typename Base::scalar, batch<typename Base::scalar>,
                                 policy_config<typename Base::config, Loss>, typename Base::how> {
  using base = Base;
  static constexpr auto describe(const policy_config<typename Base::config, Loss>& c, auto... adapt)
    requires requires { Base::describe(c, adapt...); }
  {
    const auto whole = Base::describe(c, adapt...);
    using head = std::remove_cvref_t<decltype(whole.out)>;
    static_assert(detail::head_takes_objective<detail::is_language_head<head>, head>,
                  "heddle: rl::critic puts values in place of the words of a layers::language_head; this model has "
                  "another head");
    if constexpr (detail::is_language_head<head>)
      return with_head(whole, value_head<decltype(whole.out.norm), Loss>(whole.out.norm, c.objective));
    else
      return whole;
  }
};

/// Advantages of all tokens of answers by `gae`, from `reward`, which comes with the last token, and `values`; `returns`
/// take the place of what a critic is to say. Advantages are whitened over all tokens (mean 0, deviation 1), as in verl.
/// Answers without a reward are left out. Errors: `config_error` for an answer without values of all its tokens.
inline std::vector<std::vector<double>> set_gae(std::span<sample> samples, double gamma, double lambda) {
  std::vector<std::vector<double>> returns(samples.size());
  double n = 0, sum = 0, squares = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    sample& s = samples[i];
    if (!s.missing.empty() || s.tokens.empty()) continue;
    std::vector<double> rewards(s.tokens.size());
    rewards.back() = s.reward;
    gae_result found = gae(rewards, s.values, gamma, lambda);
    s.advantages = std::move(found.advantages), returns[i] = std::move(found.returns);
    for (const double a : s.advantages) ++n, sum += a;
  }
  const double mean = n > 0 ? sum / n : 0;
  for (const sample& s : samples)
    for (const double a : s.advantages) squares += (a - mean) * (a - mean);
  const double deviation = n > 1 ? std::sqrt(squares / (n - 1)) : 0;
  for (sample& s : samples)
    for (double& a : s.advantages) a = (a - mean) / (deviation + 1e-8);
  return returns;
}

}  // namespace heddle::inline v0::rl
