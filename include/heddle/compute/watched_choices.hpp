// heddle/compute/watched_choices.hpp: a host backend that reports the experts its routers choose.
#pragma once

#include <heddle/compute/expert_choice.hpp>
#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <concepts>
#include <cstdint>
#include <functional>

namespace heddle::inline v0::compute {

/// `Backend`, a `compute::host`, with a call of `chosen` for each choice of experts: row i of its argument, [rows, chosen], has the experts
/// of row i of the batch. Layers choose in their order, once for each forward of a microbatch; what is computed again is told again.
///
///     compute::watched_choices<compute::host<>> kernels{1};
///     kernels.chosen = [&](matrix_view<const std::int32_t> ids) { ... };
template <class Backend>
  requires std::same_as<space_of<Backend>, host_memory>
class watched_choices : public Backend {
 public:
  using Backend::Backend;

  std::function<void(matrix_view<const std::int32_t> ids)> chosen;

  template <class Rule, class T>
  void top_k(input_matrix<T> logits, matrix_view<std::int32_t> ids, matrix_view<T> weights) {
    Backend::template top_k<Rule>(logits, ids, weights);
    if (chosen) chosen(ids);
  }
  template <class Scores, class T>
  void choose_experts(input_matrix<T> logits, input_vector<T> bias, const grouped_choice& rule,
                      matrix_view<std::int32_t> ids, matrix_view<T> weights) {
    Backend::template choose_experts<Scores>(logits, bias, rule, ids, weights);
    if (chosen) chosen(ids);
  }
};

}  // namespace heddle::inline v0::compute
