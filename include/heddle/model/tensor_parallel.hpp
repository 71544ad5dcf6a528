// heddle/model/tensor_parallel.hpp: where a transformer's tensors live over dp and tp, and which reductions follow.
#pragma once

#include <heddle/core/monoid.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/layout/propagate.hpp>
#include <heddle/layout/redistribution.hpp>
#include <heddle/mesh/mesh.hpp>

#include <concepts>
#include <span>
#include <type_traits>

namespace heddle::inline v0::model {

namespace detail {
template <class Mesh, class Tag, bool Has>
struct axis_or_one {
  using type = axis<Tag, 1>;
};
template <class Mesh, class Tag>
struct axis_or_one<Mesh, Tag, true> {
  using type = typename Mesh::template axis_of<Tag>;
};
}  // namespace detail

/// The mesh that one layer's tensors are laid out on: the dp and tp axes of `Mesh`, of extent 1 where it has none.
template <mesh_like Mesh>
using layer_mesh = mesh<typename detail::axis_or_one<Mesh, dp, Mesh::template has<dp>>::type,
                        typename detail::axis_or_one<Mesh, tp, Mesh::template has<tp>>::type>;

/// The layer mesh with the extents of this mesh.
template <mesh_like Mesh>
constexpr layer_mesh<Mesh> make_layer_mesh(const Mesh& whole) {
  if constexpr (layer_mesh<Mesh>::is_static)
    return {};
  else
    return layer_mesh<Mesh>::from_extents({whole.template extent_or_one<dp>(), whole.template extent_or_one<tp>()});
}

/// The place of a rank of the whole mesh in its layer mesh.
template <mesh_like Mesh>
constexpr int layer_rank(const Mesh& whole, int rank) {
  int result = 0;
  if constexpr (Mesh::template has<dp>) result = whole.template coordinate<dp>(rank);
  result *= whole.template extent_or_one<tp>();
  if constexpr (Mesh::template has<tp>) result += whole.template coordinate<tp>(rank);
  return result;
}

/// The layouts of a layer's tensors: activations split by rows (samples) over dp, weights over tp by columns
/// (outputs), rows (inputs), heads or vocabulary. What each product's result needs follows from them; the assertions
/// below are the tensor-parallel plan.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
template <mesh_like Mesh>
struct tensor_parallel {
  using mesh_type = Mesh;
  static_assert(Mesh::template has<dp> && Mesh::template has<tp>,
                "heddle: tensor_parallel<Mesh> needs the axes dp and tp; pass layer_mesh<Mesh>");

  // Activations, [rows, elements].
  using rows = layout<Mesh, shard<0, dp>>;
  using columns = layout<Mesh, shard<0, dp>, shard<1, tp>>;
  // Weights.
  using whole = layout<Mesh>;
  using column_weight = layout<Mesh, shard<1, tp>>;      // [in, out]
  using column_bias = layout<Mesh, shard<0, tp>>;        // [out]
  using row_weight = layout<Mesh, shard<0, tp>>;         // [in, out]
  using qkv_weight = layout<Mesh, shard<2, tp>>;         // [in, 3, heads, head_dim]
  using qkv_bias = layout<Mesh, shard<1, tp>>;           // [3, heads, head_dim]
  using head_weight = layout<Mesh, shard<0, tp>>;        // [heads, head_dim, out]
  using vocabulary_weight = layout<Mesh, shard<0, tp>>;  // [vocabulary, width]
  // Heads of one kind, [rows, heads, head_dim], and the three kinds, [rows, 3, heads, head_dim].
  using heads = layout<Mesh, shard<0, dp>, shard<1, tp>>;
  using qkv = layout<Mesh, shard<0, dp>, shard<2, tp>>;

  // Forward results.
  using row_output = propagate<"bi,io->bo", columns, row_weight>;
  using head_output = propagate<"bhd,hdo->bo", heads, head_weight>;
  using embedding_output = propagate<"bv,vd->bd", columns, vocabulary_weight>;  // one-hot rows
  // Per-row results over a split vocabulary, [rows].
  using greatest = layout<Mesh, shard<0, dp>, partial<maximum, tp>>;
  using total = layout<Mesh, shard<0, dp>, partial<plus, tp>>;
  // Input gradients.
  using column_input_gradient = propagate<"bo,io->bi", columns, column_weight>;
  using qkv_input_gradient = propagate<"bthd,ithd->bi", qkv, qkv_weight>;
  using logits_input_gradient = propagate<"bv,vd->bd", columns, vocabulary_weight>;

  static_assert(std::same_as<propagate<"bi,io->bo", rows, column_weight>, columns>,
                "heddle: a column-parallel product leaves its output split by columns, without communication");
  static_assert(std::same_as<propagate<"bi,ithd->bthd", rows, qkv_weight>, qkv>,
                "heddle: queries, keys and values stay split by heads, without communication");
  static_assert(std::same_as<propagate<"bd,vd->bv", rows, vocabulary_weight>, columns>,
                "heddle: logits stay split by vocabulary, without communication");
  static_assert(std::same_as<propagate<"bo,io->bi", rows, row_weight>, columns>,
                "heddle: the input gradient of a row-parallel product needs no communication");
  static_assert(std::same_as<propagate<"bo,hdo->bhd", rows, head_weight>, heads>,
                "heddle: the gradient of the heads' outputs needs no communication");

  // Weight gradients: split as their weight, with a sum over dp left to the caller.
  static_assert(
      std::same_as<propagate<"bi,bo->io", rows, columns>, layout<Mesh, shard<1, tp>, partial<plus, dp>>> &&
          std::same_as<propagate<"bi,bo->io", columns, rows>, layout<Mesh, shard<0, tp>, partial<plus, dp>>> &&
          std::same_as<propagate<"bi,bthd->ithd", rows, qkv>, layout<Mesh, shard<2, tp>, partial<plus, dp>>> &&
          std::same_as<propagate<"bhd,bo->hdo", heads, rows>, layout<Mesh, shard<0, tp>, partial<plus, dp>>> &&
          std::same_as<propagate<"bv,bd->vd", columns, rows>, layout<Mesh, shard<0, tp>, partial<plus, dp>>>,
      "heddle: every weight gradient has the layout of its weight, summed over dp only");
};

/// Brings a result from layout `From` to layout `To`, in place. The collective follows from the types: contributions
/// still to be combined over tp become an all_reduce over `tp_group` with their operator, equal layouts cost nothing,
/// and everything else does not compile. With one rank along tp nothing is sent.
template <class From, class To, class Communicator, class T>
void settle(Communicator& tp_group, std::span<T> values) {
  if constexpr (!std::same_as<From, To>) {
    constexpr auto& steps = redistribution_plan<From, To>::steps;  // none if tp is known to have one rank
    constexpr bool is_sum_over_tp =
        steps.size() == 1 && steps[0].kind == step_kind::all_reduce && From::template is_partial_on<tp>;
    static_assert(steps.size() == 0 || is_sum_over_tp,
                  "heddle: settle<From, To> combines contributions over tp, with one all_reduce; for another change of "
                  "layout use redistribute");
    if constexpr (is_sum_over_tp)
      if (tp_group.size() > 1 && !values.empty()) tp_group.all_reduce(values, typename From::template op_of<tp>{});
  }
}

}  // namespace heddle::inline v0::model
