// heddle/compute/cudnn/attention_graphs.hpp: cuDNN's attention graphs (not run on a GPU).
#pragma once

#include <heddle/compute/cudnn/graph.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace heddle::inline v0::compute::detail::on_cudnn {

/// Strides of [batch, head, row] in elements; those of a head lie one behind the other.
struct attention_strides {
  std::int64_t batch = 0, head = 0, row = 0;
  constexpr extents all() const noexcept { return {batch, head, row, 1}; }
  /// With the rows as columns.
  constexpr extents transposed() const noexcept { return {batch, head, 1, row}; }
};

/// Attention of all queries to all keys, or of each query to the keys up to its own place (`causal`). Query head h reads key-value head
/// h * kv_heads / heads.
struct attention_problem {
  std::int64_t batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1, width = 8, value_width = 8;
  bool causal = true, backward = false;
  cudnnDataType_t type = CUDNN_DATA_BFLOAT16;
  attention_strides q{}, k{}, v{}, out{}, lse{};  ///< lse has rows of one float
  attention_strides dout{}, dq{}, dk{}, dv{};     ///< with `backward`
  /// All of it as numbers, for a table of plans.
  constexpr auto key() const noexcept {
    std::array<std::int64_t, 37> all{
        batch, heads,       kv_heads,       queries,          keys,
        width, value_width, causal ? 1 : 0, backward ? 1 : 0, static_cast<std::int64_t>(type)};
    std::size_t i = 10;
    for (const attention_strides& s : {q, k, v, out, lse, dout, dq, dk, dv})
      for (const std::int64_t n : {s.batch, s.head, s.row}) all[i++] = n;
    return all;
  }

  constexpr extents scores() const noexcept { return {batch, heads, queries, keys}; }
  constexpr extents rows() const noexcept { return {batch, heads, queries, 1}; }
  /// Floats that the gradients are added up in, and sums of dout out.
  constexpr std::int64_t floats_of_gradients() const noexcept { return batch * heads * queries * width; }
  constexpr std::int64_t floats_of_sums() const noexcept { return batch * heads * queries; }
};

/// What tensors of the graphs are called when a plan is run.
enum attention_id : std::int64_t {
  id_q = 1,
  id_k,
  id_v,
  id_out,
  id_lse,
  id_scale,
  id_lowest,
  id_dout,
  id_dq,
  id_dk,
  id_dv,
  id_sums,
  id_dq_sum,
  id_one
};

/// Scores of keys behind a query are -inf.
inline graph_tensor causal_scores(operation_graph& g, const graph_tensor& scores, const graph_tensor& lowest) {
  const graph_tensor row = g.between(scores.sizes, CUDNN_DATA_INT32), key = g.between(scores.sizes, CUDNN_DATA_INT32),
                     seen = g.between(scores.sizes, CUDNN_DATA_BOOLEAN), masked = g.between(scores.sizes);
  g.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, row, nullptr, nullptr, CUDNN_DATA_FLOAT, 2);
  g.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, key, nullptr, nullptr, CUDNN_DATA_FLOAT, 3);
  g.pointwise(CUDNN_POINTWISE_CMP_GE, row, seen, &key, nullptr, CUDNN_DATA_BOOLEAN);
  g.pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, masked, &lowest, &seen);
  return masked;
}

/// out = softmax(scale q k') v, lse = log(sum(exp(scale q k'))) by rows.
/// Source: the operation graph that the cuDNN developer guide describes for fused flash attention; Dao et al. 2022, arXiv:2205.14135.
inline operation_graph attention_forward_graph(const attention_problem& p, int device) {
  operation_graph g(device);
  const graph_tensor q = g.in_memory(id_q, p.type, {p.batch, p.heads, p.queries, p.width}, p.q.all());
  const graph_tensor k = g.in_memory(id_k, p.type, {p.batch, p.kv_heads, p.width, p.keys}, p.k.transposed());
  const graph_tensor v = g.in_memory(id_v, p.type, {p.batch, p.kv_heads, p.keys, p.value_width}, p.v.all());
  const graph_tensor out = g.in_memory(id_out, p.type, {p.batch, p.heads, p.queries, p.value_width}, p.out.all());
  const graph_tensor lse = g.in_memory(id_lse, CUDNN_DATA_FLOAT, p.rows(), p.lse.all());
  const graph_tensor scale = g.number(id_scale);

  const graph_tensor products = g.between(p.scores());
  g.multiply(q, k, products);
  graph_tensor scores = g.applied(CUDNN_POINTWISE_MUL, products, scale);
  if (p.causal) scores = causal_scores(g, scores, g.number(id_lowest));
  const graph_tensor top = g.between(p.rows()), total = g.between(p.rows());
  g.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, top);
  const graph_tensor shares = g.applied(CUDNN_POINTWISE_EXP, g.applied(CUDNN_POINTWISE_SUB, scores, top));
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, shares, total);
  const graph_tensor log_total = g.applied(CUDNN_POINTWISE_LOG, total);
  g.pointwise(CUDNN_POINTWISE_ADD, top, lse, &log_total);
  const graph_tensor rounded = g.between(p.scores(), p.type);
  g.pointwise(CUDNN_POINTWISE_DIV, shares, rounded, &total);
  g.multiply(rounded, v, out);
  return g;
}

/// dq, dk and dv of dout. dq is added up in floats of `id_dq_sum`, by the threads that have parts of it, in any order.
/// Source: the same; Dao 2023, arXiv:2307.08691, algorithm 2.
inline operation_graph attention_backward_graph(const attention_problem& p, int device) {
  operation_graph g(device);
  const extents of_q{p.batch, p.heads, p.queries, p.width}, of_out{p.batch, p.heads, p.queries, p.value_width};
  const graph_tensor q = g.in_memory(id_q, p.type, of_q, p.q.all());
  const graph_tensor k = g.in_memory(id_k, p.type, {p.batch, p.kv_heads, p.width, p.keys}, p.k.transposed());
  const graph_tensor v = g.in_memory(id_v, p.type, {p.batch, p.kv_heads, p.value_width, p.keys}, p.v.transposed());
  const graph_tensor out = g.in_memory(id_out, p.type, of_out, p.out.all());
  const graph_tensor dout = g.in_memory(id_dout, p.type, of_out, p.dout.all());
  const graph_tensor lse = g.in_memory(id_lse, CUDNN_DATA_FLOAT, p.rows(), p.lse.all());
  const graph_tensor dq = g.in_memory(id_dq, p.type, of_q, p.dq.all());
  const graph_tensor dk = g.in_memory(id_dk, p.type, {p.batch, p.kv_heads, p.keys, p.width}, p.dk.all());
  const graph_tensor dv = g.in_memory(id_dv, p.type, {p.batch, p.kv_heads, p.keys, p.value_width}, p.dv.all());
  const graph_tensor sums = g.in_memory(id_sums, CUDNN_DATA_FLOAT, p.rows(), packed(p.rows()));
  const graph_tensor dq_sum = g.in_memory(id_dq_sum, CUDNN_DATA_FLOAT, of_q, packed(of_q));
  const graph_tensor scale = g.number(id_scale), one = g.number(id_one);

  // dout out of each row
  const graph_tensor products =
      g.between(of_out, {p.heads * p.queries * p.value_width, p.queries * p.value_width, p.heads * p.value_width, 1});
  g.pointwise(CUDNN_POINTWISE_MUL, dout, products, &out);
  const graph_tensor added = g.between(p.rows());
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, products, added);
  g.pointwise(CUDNN_POINTWISE_MUL, added, sums, &one);

  // shares of the keys again, and dv
  const graph_tensor again = g.between(p.scores());
  g.multiply(q, k, again);
  graph_tensor levels = g.applied(CUDNN_POINTWISE_SUB, g.applied(CUDNN_POINTWISE_MUL, again, scale), lse);
  if (p.causal) levels = causal_scores(g, levels, g.number(id_lowest));
  const graph_tensor shares = g.applied(CUDNN_POINTWISE_EXP, levels);
  const extents turned{p.heads * p.queries * p.keys, p.queries * p.keys, 1, p.keys};
  const auto add_up = [&](const graph_tensor& left, const graph_tensor& right, const graph_tensor& to) {
    if (p.heads == p.kv_heads) return g.multiply(left, right, to);
    const graph_tensor of_all = g.between({p.batch, p.heads, p.keys, right.sizes[3]}, p.type);
    g.multiply(left, right, of_all);
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, of_all, to);
  };
  add_up(g.transposed(shares, turned, p.type), dout, dv);

  // gradients of the scores, dk and dq
  const graph_tensor of_shares = g.between(p.scores());
  g.multiply(dout, v, of_shares);
  const graph_tensor less = g.applied(CUDNN_POINTWISE_SUB, of_shares, sums);
  const graph_tensor dscores = g.applied(CUDNN_POINTWISE_MUL, g.applied(CUDNN_POINTWISE_MUL, less, shares), scale);
  add_up(g.transposed(dscores, turned, p.type), q, dk);
  g.multiply(dscores, g.transposed(k, p.k.all(), p.type), dq_sum);
  g.pointwise(CUDNN_POINTWISE_IDENTITY, dq_sum, dq);
  return g;
}

}  // namespace heddle::inline v0::compute::detail::on_cudnn
