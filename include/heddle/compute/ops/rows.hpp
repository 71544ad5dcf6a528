// heddle/compute/ops/rows.hpp: operations on rows: norms, softmax cross-entropy, their gradients.
#pragma once

#include <heddle/compute/op.hpp>

#include <cstdint>

namespace heddle::inline v0::compute {
namespace ops {

/// y = (x - mean) rstd w + b with rstd = 1 / sqrt(variance + eps), over each row.
struct layer_norm : row_operation {
  static constexpr const char* name = "layer_norm";
  static constexpr const char* arguments[] = {"x", "w", "b", "eps", "y", "mean", "rstd"};
  using takes = signature<in<rows, columns>, in<columns>, in<columns>, number, out<rows, columns>, out_sums<rows>,
                          out_sums<rows>>;
  static constexpr std::int64_t flops(const dims& n) { return 10 * n.product(); }
};
/// Adds to dx.
struct layer_norm_backward_input : row_operation {
  static constexpr const char* name = "layer_norm_backward_input";
  static constexpr const char* arguments[] = {"dy", "x", "w", "mean", "rstd", "dx"};
  using takes =
      signature<in<rows, columns>, in<rows, columns>, in<columns>, in_sums<rows>, in_sums<rows>, inout<rows, columns>>;
  static constexpr std::int64_t flops(const dims& n) { return 15 * n.product(); }
};
/// dx = onto + what the form above adds: a residual connection need not copy its gradient. Optional.
struct layer_norm_backward_onto : row_operation {
  static constexpr const char* name = "layer_norm_backward_onto";
  static constexpr const char* arguments[] = {"dy", "x", "w", "mean", "rstd", "onto", "dx"};
  using takes = signature<in<rows, columns>, in<rows, columns>, in<columns>, in_sums<rows>, in_sums<rows>,
                          in<rows, columns>, out<rows, columns>>;
  static constexpr std::int64_t flops(const dims& n) { return 15 * n.product(); }
};
/// Adds to dw and db.
struct layer_norm_backward_weight : row_operation {
  static constexpr const char* name = "layer_norm_backward_weight";
  static constexpr const char* arguments[] = {"dy", "x", "mean", "rstd", "dw", "db"};
  using takes = signature<in<rows, columns>, in<rows, columns>, in_sums<rows>, in_sums<rows>, inout_sums<columns>,
                          inout_sums<columns>>;
  static constexpr std::int64_t flops(const dims& n) { return 5 * n.product(); }
};

/// y = x rstd w with rstd = 1 / sqrt(mean(x^2) + eps), over each row. A norm of each head is one of rows * heads rows.
/// Source: Zhang and Sennrich 2019, arXiv:1910.07467.
struct rms_norm : row_operation {
  static constexpr const char* name = "rms_norm";
  static constexpr const char* arguments[] = {"x", "w", "eps", "y", "rstd"};
  using takes = signature<in<rows, columns>, in<columns>, number, out<rows, columns>, out_sums<rows>>;
  static constexpr std::int64_t flops(const dims& n) { return 4 * n.product(); }
};
/// Adds to dx.
struct rms_norm_backward_input : row_operation {
  static constexpr const char* name = "rms_norm_backward_input";
  static constexpr const char* arguments[] = {"dy", "x", "w", "rstd", "dx"};
  using takes = signature<in<rows, columns>, in<rows, columns>, in<columns>, in_sums<rows>, inout<rows, columns>>;
  static constexpr std::int64_t flops(const dims& n) { return 10 * n.product(); }
};
/// dx = onto + what the form above adds. Optional.
struct rms_norm_backward_onto : row_operation {
  static constexpr const char* name = "rms_norm_backward_onto";
  static constexpr const char* arguments[] = {"dy", "x", "w", "rstd", "onto", "dx"};
  using takes = signature<in<rows, columns>, in<rows, columns>, in<columns>, in_sums<rows>, in<rows, columns>,
                          out<rows, columns>>;
  static constexpr std::int64_t flops(const dims& n) { return 10 * n.product(); }
};
/// Adds to dw.
struct rms_norm_backward_weight : row_operation {
  static constexpr const char* name = "rms_norm_backward_weight";
  static constexpr const char* arguments[] = {"dy", "x", "rstd", "dw"};
  using takes = signature<in<rows, columns>, in<rows, columns>, in_sums<rows>, inout_sums<columns>>;
  static constexpr std::int64_t flops(const dims& n) { return 3 * n.product(); }
};

/// sum = the sum of x^2 over each row, 0 for no columns: the part of a norm that a rank does where columns lie on several ones, over which the
/// caller adds up `sum` before this and the next but one.
struct row_sum_squares : row_operation {
  static constexpr const char* name = "row_sum_squares";
  static constexpr const char* arguments[] = {"x", "sum"};
  using takes = signature<in<rows, columns>, out_sums<rows>>;
  static constexpr std::int64_t flops(const dims& n) { return 2 * n.product(); }
};
/// y = x rstd w with rstd = 1 / sqrt(sum / count + eps), where `sum` and `count` are of all columns of a row, on whatever ranks.
struct rms_norm_of_sums : row_operation {
  static constexpr const char* name = "rms_norm_of_sums";
  static constexpr const char* arguments[] = {"x", "w", "sum", "count", "eps", "y", "rstd"};
  using takes =
      signature<in<rows, columns>, in<columns>, in_sums<rows>, number, number, out<rows, columns>, out_sums<rows>>;
  static constexpr std::int64_t flops(const dims& n) { return 2 * n.product(); }
};
/// sum = the sum of dy w x over each row, 0 for no columns.
struct rms_norm_row_dot : row_operation {
  static constexpr const char* name = "rms_norm_row_dot";
  static constexpr const char* arguments[] = {"dy", "x", "w", "sum"};
  using takes = signature<in<rows, columns>, in<rows, columns>, in<columns>, out_sums<rows>>;
  static constexpr std::int64_t flops(const dims& n) { return 3 * n.product(); }
};
/// Adds rstd (w dy - x rstd^2 sum / count) to dx, with `sum` of `rms_norm_row_dot` and `count` of all columns.
struct rms_norm_backward_of_sums : row_operation {
  static constexpr const char* name = "rms_norm_backward_of_sums";
  static constexpr const char* arguments[] = {"dy", "x", "w", "rstd", "sum", "count", "dx"};
  using takes = signature<in<rows, columns>, in<rows, columns>, in<columns>, in_sums<rows>, in_sums<rows>, number,
                          inout<rows, columns>>;
  static constexpr std::int64_t flops(const dims& n) { return 5 * n.product(); }
};

/// m = the greatest logit of each row, -inf for no columns.
/// Source of this and the next: Shoeybi et al. 2019, arXiv:1909.08053, section 3 (cross-entropy whose columns may lie
/// on several ranks, over which the caller combines `m`, `sum` and `picked`).
struct row_max : row_operation {
  static constexpr const char* name = "row_max";
  static constexpr const char* arguments[] = {"logits", "m"};
  using takes = signature<in<rows, columns>, out_sums<rows>>;
  static constexpr std::int64_t flops(const dims& n) { return n.product(); }
};
/// sum = the sum of exp(logit - m).
struct row_sum_exp : row_operation {
  static constexpr const char* name = "row_sum_exp";
  static constexpr const char* arguments[] = {"logits", "m", "sum"};
  using takes = signature<in<rows, columns>, in_sums<rows>, out_sums<rows>>;
  static constexpr std::int64_t flops(const dims& n) { return 3 * n.product(); }
};
/// picked = the target's logit; 0 where the target is not among the columns, which are the words from `first_id` on, or
/// negative (ignored).
struct pick_target : row_operation {
  static constexpr const char* name = "pick_target";
  static constexpr const char* arguments[] = {"logits", "targets", "first_id", "picked"};
  using takes = signature<in<rows, columns>, in_ids<rows>, index, out_sums<rows>>;
  static constexpr std::int64_t flops(const dims&) { return 0; }
};
/// logits := (softmax - onehot) scale; rows of ignored targets become 0.
struct cross_entropy_backward : row_operation {
  static constexpr const char* name = "cross_entropy_backward";
  static constexpr const char* arguments[] = {"logits", "m", "sum", "targets", "first_id", "scale"};
  using takes = signature<inout<rows, columns>, in_sums<rows>, in_sums<rows>, in_ids<rows>, index, number>;
  static constexpr std::int64_t flops(const dims& n) { return 3 * n.product(); }
};
/// The same of cross-entropies that each count with a factor of their own.
struct weighted_cross_entropy_backward : row_operation {
  static constexpr const char* name = "weighted_cross_entropy_backward";
  static constexpr const char* arguments[] = {"logits", "m", "sum", "targets", "first_id", "scales"};
  using takes = signature<inout<rows, columns>, in_sums<rows>, in_sums<rows>, in_ids<rows>, index, in_sums<rows>>;
  static constexpr std::int64_t flops(const dims& n) { return 3 * n.product(); }
};
/// The same of logits that `soft_cap` kept below a cap: the gradient of what it was given.
struct capped_cross_entropy_backward : row_operation {
  static constexpr const char* name = "capped_cross_entropy_backward";
  static constexpr const char* arguments[] = {"logits", "m", "sum", "targets", "first_id", "scale", "cap"};
  using takes = signature<inout<rows, columns>, in_sums<rows>, in_sums<rows>, in_ids<rows>, index, number, number>;
  static constexpr std::int64_t flops(const dims& n) { return 7 * n.product(); }
};
/// The forward pass of logits that come in chunks of columns, each read once: makes m the larger of itself and the
/// row's largest logit, scales sum by exp(m before - m) and adds the sum of exp(logit - m); picked becomes the logit of
/// a target that is in the chunk. Before the first chunk m is -inf, sum and picked 0; after the last they are those of
/// `row_max`, `row_sum_exp` and `pick_target` over all columns, up to rounding. A row of -inf alone has sum 0.
/// Source: Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3.
struct add_to_softmax : row_operation {
  static constexpr const char* name = "add_to_softmax";
  static constexpr const char* arguments[] = {"logits", "targets", "first_id", "m", "sum", "picked"};
  using takes = signature<in<rows, columns>, in_ids<rows>, index, inout_sums<rows>, inout_sums<rows>, inout_sums<rows>>;
  static constexpr std::int64_t flops(const dims& n) { return 4 * n.product(); }
};
/// sum *= exp(before - m), for sums in units of exp(before) that are added to others in units of exp(m); what is 0
/// stays 0.
struct rescale_softmax : operation {
  static constexpr const char* name = "rescale_softmax";
  static constexpr const char* arguments[] = {"before", "m", "sum"};
  using dims = sizes<rows>;
  using takes = signature<in_sums<rows>, in_sums<rows>, inout_sums<rows>>;
  static constexpr std::int64_t flops(const dims& n) { return 3 * n.product(); }
};

}  // namespace ops

/// Layer norms.
struct layer_norm_facet : operations<ops::layer_norm, ops::layer_norm_backward_input, ops::layer_norm_backward_weight> {
};
/// Root mean square norms.
struct rms_norm_facet : operations<ops::rms_norm, ops::rms_norm_backward_input, ops::rms_norm_backward_weight> {};
/// Root mean square norms whose columns may lie on several ranks, and their gradients in x; that in w is `ops::rms_norm_backward_weight`.
struct split_rms_norm_facet : operations<ops::row_sum_squares, ops::rms_norm_of_sums, ops::rms_norm_row_dot,
                                         ops::rms_norm_backward_of_sums, ops::rms_norm_backward_weight> {};
/// Gradients of both that are added to another tensor than they are written to.
struct norm_onto_facet : operations<ops::layer_norm_backward_onto, ops::rms_norm_backward_onto> {};
/// Softmax cross-entropy whose columns may lie on several ranks.
struct cross_entropy_facet : operations<ops::row_max, ops::row_sum_exp, ops::pick_target, ops::cross_entropy_backward> {
};
/// Its gradient with a factor for each row.
struct weighted_cross_entropy_facet : operations<ops::weighted_cross_entropy_backward> {};
/// Its gradient for logits below a cap.
struct capped_cross_entropy_facet : operations<ops::capped_cross_entropy_backward> {};
/// Its logits chunk by chunk.
struct chunked_cross_entropy_facet : operations<ops::add_to_softmax, ops::rescale_softmax> {};

}  // namespace heddle::inline v0::compute
