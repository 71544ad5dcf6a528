// heddle/model/head.hpp: logits against the token embedding, and cross-entropy over a vocabulary split over tp.
#pragma once

#include <heddle/model/layer.hpp>
#include <heddle/model/tensor_parallel.hpp>

#include <cmath>
#include <cstdint>
#include <span>

namespace heddle::inline v0::model {

/// loss = sum over targets of -log softmax(h wte')[target]. This rank computes the logits of its own words; over tp
/// travel three numbers per token (greatest logit, sum of exponentials, the target's logit) and in backward_input the
/// gradient of h. Negative targets are ignored.
/// Shapes: h [rows, width], wte [local vocabulary, width], logits [rows, local vocabulary].
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3 (parallel cross-entropy).
template <class T, class Plan>
struct tied_head {
  struct saved {
    matrix_view<const T> h{};
    matrix_view<T> logits{};  ///< after backward_input: their gradient
    std::span<T> greatest{};  ///< [rows]
    std::span<T> sum{};       ///< of exp(logit - greatest), over the whole vocabulary
    std::span<T> picked{};    ///< the target's logit

    /// Memory for at most `rows` tokens.
    void place(carver<T>& memory, std::int64_t rows, std::int64_t local_vocabulary) {
      logits_memory = memory.take(rows * local_vocabulary);
      greatest_memory = memory.take(rows);
      sum_memory = memory.take(rows);
      picked_memory = memory.take(rows);
    }
    std::span<T> logits_memory{}, greatest_memory{}, sum_memory{}, picked_memory{};
  };
  matrix_view<const T> wte{};
  matrix_view<T> wte_gradient{};
  std::int64_t first_id = 0;

  /// The logits of this rank's words.
  template <class Context>
  void logits(Context& c, matrix_view<const T> h, matrix_view<T> out) const {
    c.compute.template matmul<transpose::no, transpose::yes>(h, wte, out, T(0));
  }

  /// The loss, summed over the targets that are not ignored: the same number on all ranks along tp.
  template <class Context>
  double forward(Context& c, saved& s, matrix_view<const T> h, compute::token_ids targets) const {
    const std::int64_t rows = h.extent(0);
    const auto n = static_cast<std::size_t>(rows);
    s.h = h;
    s.logits = as_matrix(s.logits_memory, rows, wte.extent(0));
    s.greatest = s.greatest_memory.first(n);
    s.sum = s.sum_memory.first(n);
    s.picked = s.picked_memory.first(n);
    logits(c, h, s.logits);
    c.compute.row_max(s.logits, s.greatest);
    settle<typename Plan::greatest, typename Plan::rows>(c.tp_group, s.greatest);
    c.compute.row_sum_exp(s.logits, s.greatest, s.sum);
    settle<typename Plan::total, typename Plan::rows>(c.tp_group, s.sum);
    c.compute.pick_target(s.logits, targets, first_id, s.picked);
    settle<typename Plan::total, typename Plan::rows>(c.tp_group, s.picked);
    double loss = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (targets[i] < 0) continue;
      const double below = static_cast<double>(s.greatest[i]) - static_cast<double>(s.picked[i]);
      loss += std::log(static_cast<double>(s.sum[i])) + below;
    }
    return loss;
  }
  /// Turns the saved logits into their gradient times `scale`; nothing but dh travels.
  template <class Context>
  void backward_input(Context& c, const saved& s, compute::token_ids targets, T scale, matrix_view<T> dh) const {
    c.compute.cross_entropy_backward(s.logits, s.greatest, s.sum, targets, first_id, scale);
    c.compute.template matmul<transpose::no, transpose::no>(s.logits, wte, dh, T(0));
    settle<typename Plan::logits_input_gradient, dual<typename Plan::rows>>(c.tp_group, dh.elements());
  }
  template <class Context>
  void backward_weight(Context& c, const saved& s) const {
    c.compute.template matmul<transpose::yes, transpose::no>(s.logits, s.h, wte_gradient, T(1));
  }
};

}  // namespace heddle::inline v0::model
