// heddle/compute/ops/rows.hpp: layer norm and root mean square norm of rows, and their gradients.
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

}  // namespace ops

/// Layer norms.
struct layer_norm_facet : operations<ops::layer_norm, ops::layer_norm_backward_input, ops::layer_norm_backward_weight> {
};
/// Root mean square norms.
struct rms_norm_facet : operations<ops::rms_norm, ops::rms_norm_backward_input, ops::rms_norm_backward_weight> {};
/// Gradients of both that are added to another tensor than they are written to.
struct norm_onto_facet : operations<ops::layer_norm_backward_onto, ops::rms_norm_backward_onto> {};

}  // namespace heddle::inline v0::compute
