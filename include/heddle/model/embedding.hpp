// heddle/model/embedding.hpp: token embedding with its vocabulary split over tp, plus learned positions.
#pragma once

#include <heddle/model/layer.hpp>
#include <heddle/model/tensor_parallel.hpp>

#include <cstdint>

namespace heddle::inline v0::model {

/// x[b, s] = wte[token(b, s)] + wpe[s]. This rank holds the rows of wte from `first_id` on and looks up what it has;
/// the rest is zero, and the sum over tp is the embedding. Positions are replicated and added after the sum.
/// Tokens have no gradient, so backward_input does nothing; forward saves nothing (the batch comes again).
/// Shapes: tokens [samples, sequence], x [samples * sequence, width], wte [local vocabulary, width],
/// wpe [context, width].
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
template <class T, class Plan>
struct vocabulary_embedding {
  struct saved {};
  matrix_view<const T> wte{};
  matrix_view<T> wte_gradient{};
  std::int64_t first_id = 0;
  matrix_view<const T> wpe{};
  matrix_view<T> wpe_gradient{};

  template <class Context>
  void forward(Context& c, compute::token_ids tokens, std::int64_t sequence, matrix_view<T> x) const {
    c.compute.embedding(tokens, wte, first_id, x);
    settle<typename Plan::embedding_output, typename Plan::rows>(c.tp_group, x.elements());
    c.compute.add_positions(x, wpe, sequence);
  }
  template <class Context>
  void backward_input(Context&) const noexcept {}
  template <class Context>
  void backward_weight(Context& c, compute::token_ids tokens, std::int64_t sequence, matrix_view<const T> dx) const {
    c.compute.embedding_backward(tokens, dx, first_id, wte_gradient);
    c.compute.add_positions_backward(dx, sequence, wpe_gradient);
  }
};

}  // namespace heddle::inline v0::model
