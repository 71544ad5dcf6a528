// heddle/compute/launched_expert_choice.hpp: choice of experts by biased scores in groups, of backends whose kernels are launched in the order of a queue: arguments are checked, then they are launched.
#pragma once

#include <heddle/compute/expert_choice.hpp>
#include <heddle/compute/growing_room.hpp>
#include <heddle/compute/argument_checks.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/host/expert_choice.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/launched_indices.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <tuple>
#include <type_traits>

namespace heddle::inline v0::compute::detail {

/// The kernels of `expert_choice_kernels` as members of `Backend`, whose tensors lie in `Space`.
template <class Backend, class Space>
class launched_expert_choice {
  using checks = argument_checks;
  template <class T>
  using in_row = std::type_identity_t<vector_view<const T, Space>>;
  template <class T>
  using matrix = matrix_view<T, Space>;
  template <class T>
  using in_matrix = std::type_identity_t<matrix<const T>>;

 public:
  /// Errors: `layout_error` for sizes that do not fit, for groups that do not divide the experts, and for fewer experts in the kept groups
  /// than are chosen.
  template <class Scores, class T>
  void choose_experts(in_matrix<T> logits, in_row<T> bias, const grouped_choice& rule, matrix<std::int32_t> ids,
                      matrix<T> weights) {
    const std::int64_t tokens = logits.extent(0), experts = logits.extent(1), k = ids.extent(1);
    checks::choices("choose_experts", tokens, experts, {ids.address(), ids.shape()}, weights.extent(0),
                    weights.extent(1));
    if (bias.size() > 0) expect("choose_experts", "elements of the bias", experts, bias.size());
    expect_groups(experts, k, rule);
    T* scratch = nullptr;
    if constexpr (!decltype(self().launcher())::host_can_read) {
      auto& room = std::get<growing_room<T, Space>>(scratch_);
      scratch = room.of(self().queue(), tokens * (experts + rule.groups), "biased scores of experts");
    }
    launch_choose_experts<Scores>(self().launcher(), tokens, experts, k, rule, logits.address(),
                                  bias.size() > 0 ? bias.address() : nullptr, ids.address(), weights.address(),
                                  scratch);
  }
  /// Errors: `layout_error` for sizes that do not fit, and for ids that are out of range where kernels run on the host.
  template <class Scores, class T>
  void choose_experts_backward(in_matrix<T> logits, matrix<const std::int32_t> ids, const grouped_choice& rule,
                               in_matrix<T> dweights, matrix<T> dlogits) {
    const std::int64_t tokens = logits.extent(0), experts = logits.extent(1);
    checks::choices("choose_experts_backward", tokens, experts, {ids.address(), ids.shape()}, dweights.extent(0),
                    dweights.extent(1));
    checks::same_shape<T>("choose_experts_backward", "dlogits", {logits.address(), logits.shape()},
                          {dlogits.address(), dlogits.shape()});
    indices_within(self().launcher(), self().queue(), "choose_experts_backward", "ids", ids, 0, experts);
    launch_choose_experts_backward<Scores>(self().launcher(), tokens, experts, ids.extent(1), rule, logits.address(),
                                           ids.address(), dweights.address(), dlogits.address());
  }
  /// Errors: `layout_error` for another number of counts than of biases.
  template <class T>
  void balance_bias(in_row<T> counts, std::type_identity_t<T> rate, vector_view<T, Space> bias) {
    expect("balance_bias", "elements of the bias", counts.size(), bias.size());
    launch_balance_bias(self().launcher(), bias.size(), counts.address(), rate, bias.address());
  }

 private:
  Backend& self() noexcept { return static_cast<Backend&>(*this); }

  std::tuple<growing_room<float, Space>, growing_room<double, Space>> scratch_{};
};

}  // namespace heddle::inline v0::compute::detail
