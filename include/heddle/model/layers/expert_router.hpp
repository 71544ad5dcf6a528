// heddle/model/layers/expert_router.hpp: routers: a linear layer and a rule of choice.
#pragma once

#include <heddle/compute/ops/expert_choice.hpp>
#include <heddle/model/layers/linear.hpp>

#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::model::layers {

struct selection_bias {
};  ///< parameter: added to the scores of experts where they are chosen, not to the weights of choices

/// Rule of a router whose experts are chosen by `compute::ops::choose_experts<Scores>`: `compute::sigmoid_scores` as DeepSeek-V3 has it, or
/// `compute::softmax_scores`.
template <class Scores = compute::sigmoid_scores>
struct grouped_scores {};

/// Scores of a router that says in its value which they are (`expert_router::softmax`), and whether it has a selection bias.
struct sigmoid_or_softmax {};

/// Trains all parameters but the selection biases of routers, which are no function of the loss: for `train_only`. Saves have them, as they change
/// between steps.
struct all_but_selection_bias {
  static constexpr bool saves_frozen = true;
  template <class Parameter>
  static constexpr bool trains = !std::is_same_v<typename Parameter::tag, selection_bias>;
};

/// Rule of a router whose logits have a bias, as GPT-OSS: logits = x W' + b, and the choice that `Rule` makes of them.
/// Source: Hugging Face `GptOssTopKRouter`.
template <class Rule = compute::softmax_of_chosen>
struct with_bias {};

namespace detail {
template <bool Bias>
using logits_of_experts = linear<dims<dim::width>, dims<dim::candidates>, Bias, storage::out_in>;
using router_base = logits_of_experts<false>;
template <class Rule>
struct rule_of_logits {
  using type = Rule;
  static constexpr bool has_bias = false;
};
template <class Rule>
struct rule_of_logits<with_bias<Rule>> {
  using type = Rule;
  static constexpr bool has_bias = true;
};
}  // namespace detail

/// logits = x W', and the choice that `Rule`, `compute::softmax_of_chosen` or `softmax_of_all`, makes of them; `with_bias<Rule>`: logits have a bias.
/// Shapes: x [rows, width], logits [rows, candidates], ids and weights [rows, chosen].
template <class Rule>
struct expert_router : detail::logits_of_experts<detail::rule_of_logits<Rule>::has_bias> {
  using choice = typename detail::rule_of_logits<Rule>::type;
  using detail::logits_of_experts<detail::rule_of_logits<Rule>::has_bias>::logits_of_experts;
  /// Whether the host counts choices, and waits for the queue to do so.
  template <class Space>
  static constexpr bool counts_on_host = false;

  /// The experts of each row, and the weights of these choices.
  template <class B>
  void choose(const B& b, typename B::const_view logits, matrix_view<std::int32_t, typename B::space> ids,
              typename B::view weights) const {
    compute::run<compute::ops::top_k<choice>>(b.compute(), logits, ids, weights);
  }
  /// Overwrites the gradient of the logits.
  template <class B>
  void choose_backward(const B& b, typename B::const_view logits,
                       matrix_view<const std::int32_t, typename B::space> ids, typename B::const_view weights,
                       typename B::const_view d_weights, typename B::view d_logits) const {
    compute::run<compute::ops::top_k_backward<choice>>(b.compute(), logits, ids, weights, d_weights, d_logits);
  }
};

/// Rule of a router whose weights of choices are their parts of the softmax, over all experts or, `normed`, over the chosen: its value says which.
struct softmax_choice {};

/// logits = x W', and the choice by the greatest logits.
/// Source: Yang et al. 2025, arXiv:2505.09388; Hugging Face `Qwen3MoeTopKRouter`, `norm_topk_prob`.
template <>
struct expert_router<softmax_choice> : detail::router_base {
  using detail::router_base::router_base;
  bool normed = true;
  template <class Space>
  static constexpr bool counts_on_host = false;

  /// The experts of each row, and the weights of these choices.
  template <class B>
  void choose(const B& b, typename B::const_view logits, matrix_view<std::int32_t, typename B::space> ids,
              typename B::view weights) const {
    if (normed)
      compute::run<compute::ops::top_k<compute::softmax_of_chosen>>(b.compute(), logits, ids, weights);
    else
      compute::run<compute::ops::top_k<compute::softmax_of_all>>(b.compute(), logits, ids, weights);
  }
  /// Overwrites the gradient of the logits.
  template <class B>
  void choose_backward(const B& b, typename B::const_view logits,
                       matrix_view<const std::int32_t, typename B::space> ids, typename B::const_view weights,
                       typename B::const_view d_weights, typename B::view d_logits) const {
    if (normed)
      compute::run<compute::ops::top_k_backward<compute::softmax_of_chosen>>(b.compute(), logits, ids, weights,
                                                                             d_weights, d_logits);
    else
      compute::run<compute::ops::top_k_backward<compute::softmax_of_all>>(b.compute(), logits, ids, weights, d_weights,
                                                                          d_logits);
  }
};

/// logits = x W', and the choice by `rule` of their scores and a bias that is added for the choice alone. The bias gets no gradient:
/// describe a model with `train_only<all_but_selection_bias>`, and update it between steps (`model::balance_experts`).
/// A router without a bias (`biased`) has that parameter with no elements: files have no tensor of it.
/// Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2; arXiv:2405.04434, section 2.2 (without bias); Wang et al. 2024, arXiv:2408.15664.
template <class Scores>
struct expert_router<grouped_scores<Scores>> : detail::router_base {
  using detail::router_base::router_base;
  compute::grouped_choice rule{};
  bool softmax = false;  ///< of `sigmoid_or_softmax`: which
  bool biased = true;
  template <class Space>
  static constexpr bool counts_on_host = host_accessible_space<Space>;

  constexpr auto parameters() const {
    const auto all = detail::router_base::parameters();
    return list(all.template get<0>(),
                parameter<selection_bias, dims<dim::candidates>>{"e_score_correction_bias", {biased ? out[0] : 0}});
  }
  using needs = compute::facet_list<compute::product_facet, compute::expert_choice_facet>;

  /// The experts of each row, and the weights of these choices.
  template <class B>
  void choose(const B& b, typename B::const_view logits, matrix_view<std::int32_t, typename B::space> ids,
              typename B::view weights) const {
    with_scores([&](auto of) {
      compute::run<compute::ops::choose_experts<decltype(of)>>(b.compute(), logits, b.vector(selection_bias{}), rule,
                                                               ids, weights);
    });
  }
  /// Overwrites the gradient of the logits. Choices are counted where the host can use the memory, for `balance_experts`.
  template <class B>
  void choose_backward(const B& b, typename B::const_view logits,
                       matrix_view<const std::int32_t, typename B::space> ids, typename B::const_view /*weights*/,
                       typename B::const_view d_weights, typename B::view d_logits) const {
    with_scores([&](auto of) {
      compute::run<compute::ops::choose_experts_backward<decltype(of)>>(b.compute(), logits, ids, rule, d_weights,
                                                                        d_logits);
    });
    if constexpr (counts_on_host<typename B::space>) {
      if (!biased) return;
      if constexpr (!B::on_host) b.queue().wait();
      const auto load = b.run().routing->load_of(b[selection_bias{}].address(), out[0]);
      for (const std::int32_t e : ids.elements()) ++load[static_cast<std::size_t>(e)];
    }
  }

 private:
  template <class F>
  void with_scores(F&& f) const {
    if constexpr (std::is_same_v<Scores, sigmoid_or_softmax>)
      softmax ? f(compute::softmax_scores{}) : f(compute::sigmoid_scores{});
    else
      f(Scores{});
  }
};

}  // namespace heddle::inline v0::model::layers
