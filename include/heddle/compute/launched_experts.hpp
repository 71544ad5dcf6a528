// heddle/compute/launched_experts.hpp: the facets for routed experts of backends whose kernels are launched in the order of a queue: arguments are checked, then they are launched.
#pragma once

#include <heddle/compute/growing_room.hpp>
#include <heddle/compute/argument_checks.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/argument_checks.hpp>
#include <heddle/compute/launched_indices.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

namespace heddle::inline v0::compute::detail {

/// The kernels of `routing_kernels`, `expert_balance_kernels` and `choice_limit_kernels` as members of `Backend`, whose tensors lie in
/// `Space`, and which has `queue()` and `launcher()`, a small value whose namespace has the kernels: `launch_permute(launcher, ...)`. Kernels are described in kernels.hpp.
/// Errors: `layout_error` if the arguments of a kernel do not fit together; for ids, sources and places that are out of range where kernels
/// run on the host, which looks at them after a wait for the queue.
template <class Backend, class Space>
class launched_experts {
  using checks = argument_checks;
  using number = scalar_view<double, Space>;
  template <class T>
  using matrix = matrix_view<T, Space>;
  template <class T>
  using in_matrix = std::type_identity_t<matrix<const T>>;
  using index_matrix = matrix<const std::int32_t>;

 public:
  template <class Rule, class T>
  void top_k(in_matrix<T> logits, matrix<std::int32_t> ids, matrix<T> weights) {
    choices<T>("top_k", logits, ids, weights);
    launch_top_k<Rule>(on(), logits.extent(0), logits.extent(1), ids.extent(1), logits.address(), ids.address(),
                       weights.address());
  }
  template <class Rule, class T>
  void top_k_backward(in_matrix<T> logits, index_matrix ids, in_matrix<T> weights, in_matrix<T> dweights,
                      matrix<T> dlogits) {
    choices<T>("top_k_backward", logits, ids, weights);
    same<T>("top_k_backward", "dweights", weights, dweights);
    same<T>("top_k_backward", "dlogits", logits, dlogits);
    within("top_k_backward", "ids", ids, 0, logits.extent(1));
    launch_top_k_backward<Rule>(on(), logits.extent(0), logits.extent(1), ids.extent(1), logits.address(),
                                ids.address(), weights.address(), dweights.address(), dlogits.address());
  }
  void route(index_matrix ids, std::int64_t first_id, vector_view<std::int64_t, Space> offsets,
             vector_view<std::int32_t, Space> sources, matrix<std::int32_t> places) {
    expect("route", "elements of sources (tokens * k)", ids.size(), sources.size());
    expect("route", "rows of places", ids.extent(0), places.extent(0));
    expect("route", "columns of places", ids.extent(1), places.extent(1));
    if (offsets.size() == 0 || ids.size() > (std::numeric_limits<std::int32_t>::max)()) [[unlikely]]
      throw layout_error(
          "heddle: route: offsets should have an element more than there are experts, and choices at most 2^31 - 1, "
          "got " +
          std::to_string(offsets.size()) + " offsets and " + std::to_string(ids.size()) + " choices");
    launch_route(on(), ids.extent(0), ids.extent(1), offsets.size() - 1, ids.address(), first_id, offsets.address(),
                 sources.address(), places.address());
  }
  template <class T>
  void permute(in_matrix<T> x, vector_view<const std::int32_t, Space> sources, matrix<T> y) {
    expect("permute", "rows of y", sources.size(), y.extent(0));
    expect("permute", "columns of y", x.extent(1), y.extent(1));
    within("permute", "sources", sources, -1, x.extent(0));
    launch_permute(on(), y.extent(0), y.extent(1), x.address(), sources.address(), y.address());
  }
  template <class T>
  void permute_backward(in_matrix<T> dy, index_matrix places, matrix<T> dx) {
    expect("permute_backward", "rows of dx", places.extent(0), dx.extent(0));
    expect("permute_backward", "columns of dx", dy.extent(1), dx.extent(1));
    within("permute_backward", "places", places, -1, dy.extent(0));
    launch_gather_rows(on(), dx.extent(0), places.extent(1), dx.extent(1), dy.address(), places.address(),
                       static_cast<const T*>(nullptr), dx.address());
  }
  template <class T>
  void unpermute(in_matrix<T> y, index_matrix places, in_matrix<T> weights, matrix<T> out) {
    moved<T>("unpermute", places, weights, out.extent(0), y.extent(0));
    expect("unpermute", "columns of out", y.extent(1), out.extent(1));
    launch_gather_rows(on(), out.extent(0), places.extent(1), out.extent(1), y.address(), places.address(),
                       weights.address(), out.address());
  }
  template <class T>
  void unpermute_backward(in_matrix<T> dout, in_matrix<T> y, index_matrix places, in_matrix<T> weights, matrix<T> dy,
                          std::type_identity_t<matrix<T>> dweights) {
    moved<T>("unpermute_backward", places, weights, dout.extent(0), y.extent(0));
    expect("unpermute_backward", "columns of dout", y.extent(1), dout.extent(1));
    same<T>("unpermute_backward", "dy", y, dy);
    same<T>("unpermute_backward", "dweights", weights, dweights);
    std::int32_t* const used = used_.of(queue(), y.extent(0), "rows that are used");
    launch_unpermute_backward(on(), dout.extent(0), places.extent(1), y.extent(0), y.extent(1), dout.address(),
                              y.address(), places.address(), weights.address(), dy.address(), dweights.address(), used);
  }

  template <class T>
  void expert_balance(matrix<T> logits, index_matrix ids, number out) {
    using element = std::remove_const_t<T>;
    const std::int64_t tokens = logits.extent(0), experts = logits.extent(1);
    expect("expert_balance", "rows of ids", tokens, ids.extent(0));
    double* const counts = counted("expert_balance", experts, ids);
    launch_expert_balance(on(), tokens, experts, static_cast<const element*>(logits.address()), counts, out.address());
  }
  template <class T>
  void expert_balance_backward(in_matrix<T> logits, index_matrix ids, std::type_identity_t<sum_of_type<T>> scale,
                               matrix<T> dlogits) {
    same<T>("expert_balance_backward", "dlogits", logits, dlogits);
    expect("expert_balance_backward", "rows of ids", logits.extent(0), ids.extent(0));
    const double* const counts = counted("expert_balance_backward", logits.extent(1), ids);
    launch_expert_balance_backward(on(), logits.extent(0), logits.extent(1), logits.address(), counts, scale,
                                   dlogits.address());
  }
  template <class Rule, class T>
  void limit_choices(index_matrix ids, matrix<T> weights, std::int64_t experts, std::int64_t most,
                     matrix<std::int32_t> kept) {
    expect("limit_choices", "rows of weights", ids.extent(0), weights.extent(0));
    expect("limit_choices", "columns of weights", ids.extent(1), weights.extent(1));
    expect("limit_choices", "elements of kept", ids.size(), kept.size());
    if (ids.size() > (std::numeric_limits<std::int32_t>::max)()) [[unlikely]]
      throw layout_error("heddle: limit_choices: choices should be at most 2^31 - 1, got " +
                         std::to_string(ids.size()));
    within("limit_choices", "ids", ids, -1, experts);
    launch_limit_choices<Rule>(on(), ids.size(), experts, most, ids.address(),
                               static_cast<const std::remove_const_t<T>*>(weights.address()), kept.address());
  }

 private:
  Backend& self() noexcept { return static_cast<Backend&>(*this); }
  auto& queue() noexcept { return self().queue(); }
  auto on() noexcept { return self().launcher(); }
  template <class Indices>
  void within(const char* kernel, const char* what, const Indices& indices, std::int64_t first, std::int64_t end) {
    indices_within(on(), queue(), kernel, what, indices, first, end);
  }
  // Sizes are checked by the host's functions, which look at no element.
  template <class T>
  static matrix_view<const T> sizes(const matrix<const T>& x) noexcept {
    return {x.address(), x.shape()};
  }
  template <class T>
  static void same(const char* kernel, const char* what, const matrix<const T>& x, const matrix<const T>& y) {
    checks::same_shape<T>(kernel, what, sizes<T>(x), sizes<T>(y));
  }
  template <class T>
  static void choices(const char* kernel, const matrix<const T>& logits, const index_matrix& ids,
                      const matrix<const T>& weights) {
    checks::choices(kernel, logits.extent(0), logits.extent(1), sizes<std::int32_t>(ids), weights.extent(0),
                    weights.extent(1));
  }
  template <class T>
  void moved(const char* kernel, const index_matrix& places, const matrix<const T>& weights, std::int64_t tokens,
             std::int64_t rows) {
    expect(kernel, "rows of weights", places.extent(0), weights.extent(0));
    expect(kernel, "columns of weights", places.extent(1), weights.extent(1));
    expect(kernel, "tokens", places.extent(0), tokens);
    within(kernel, "places", places, -1, rows);
  }
  // How often each expert is chosen.
  double* counted(const char* kernel, std::int64_t experts, const index_matrix& ids) {
    within(kernel, "ids", ids, -1, experts);
    double* const counts = counts_.of(queue(), experts, "choices of experts");
    launch_count_choices(on(), ids.size(), experts, ids.address(), counts);
    return counts;
  }

  growing_room<std::int32_t, Space> used_{};
  growing_room<double, Space> counts_{};
};

}  // namespace heddle::inline v0::compute::detail
