// heddle/model/tensor_parallel.hpp: where a transformer's tensors live over dp and tp, and which reductions follow.
#pragma once

#include <heddle/core/monoid.hpp>
#include <heddle/layout/gradient.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/layout/propagate.hpp>
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
/// (outputs), rows (inputs), heads or vocabulary. What each product's result needs, and what its gradients need, follows
/// from them; the assertions below are the tensor-parallel plan, forward and backward.
///
/// Over tp the residual stream, the norms and the loss are one computation that all ranks repeat (`identical`), so their
/// gradients are whole. A layer whose weights are split takes the stream as copies, one for each rank's own use: nothing
/// moves forward, and backward the copies' gradients are summed (Megatron-LM's operator f). Its result is summed forward, and
/// backward every rank takes the gradient as it is (g). Over dp parameters are replicated, so their gradients are sums.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
template <mesh_like Mesh>
struct tensor_parallel {
  using mesh_type = Mesh;
  static_assert(Mesh::template has<dp> && Mesh::template has<tp>,
                "heddle: tensor_parallel<Mesh> needs the axes dp and tp; pass layer_mesh<Mesh>");

  // Activations, [rows, elements].
  using rows = layout<Mesh, shard<0, dp>, identical<tp>>;  // the residual stream
  using copies = layout<Mesh, shard<0, dp>>;               // the same, as each rank along tp uses it
  using columns = layout<Mesh, shard<0, dp>, shard<1, tp>>;
  // Weights.
  using whole = layout<Mesh, identical<tp>>;
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
  // Per-row results over a split vocabulary, [rows], and the loss, a sum over rows.
  using greatest = layout<Mesh, shard<0, dp>, partial<maximum, tp>>;
  using total = layout<Mesh, shard<0, dp>, partial<plus, tp>>;
  using loss = propagate<"b->", rows>;
  // Input gradients.
  using column_input_gradient = propagate<"bo,io->bi", dual<columns>, column_weight>;
  using qkv_input_gradient = propagate<"bthd,ithd->bi", dual<qkv>, qkv_weight>;
  using logits_input_gradient = propagate<"bv,vd->bd", dual<columns>, vocabulary_weight>;

  static_assert(std::same_as<propagate<"bi,io->bo", copies, column_weight>, columns>,
                "heddle: a column-parallel product leaves its output split by columns, without communication");
  static_assert(std::same_as<propagate<"bi,ithd->bthd", copies, qkv_weight>, qkv>,
                "heddle: queries, keys and values stay split by heads, without communication");
  static_assert(std::same_as<propagate<"bd,vd->bv", copies, vocabulary_weight>, columns>,
                "heddle: logits stay split by vocabulary, without communication");
  static_assert(std::same_as<column_input_gradient, dual<copies>> && std::same_as<qkv_input_gradient, dual<copies>> &&
                    std::same_as<logits_input_gradient, dual<copies>>,
                "heddle: the input gradients of products with split outputs are sums over tp");
  static_assert(
      std::same_as<dual<row_output>, copies> && std::same_as<dual<head_output>, copies> &&
          std::same_as<dual<embedding_output>, copies> && std::same_as<dual<rows>, rows>,
      "heddle: the gradient of the residual stream is whole on every rank along tp, and is used there as it is");
  static_assert(std::same_as<propagate<"bo,io->bi", dual<row_output>, row_weight>, dual<columns>>,
                "heddle: the input gradient of a row-parallel product needs no communication");
  static_assert(std::same_as<propagate<"bo,hdo->bhd", dual<head_output>, head_weight>, dual<heads>>,
                "heddle: the gradient of the heads' outputs needs no communication");
  static_assert(loss_layout<loss> && std::same_as<seed_gradient<loss>, whole>,
                "heddle: the loss is a sum over dp and one computation over tp");

  // Weight gradients: split as their weight, with a sum over dp left to the caller, once.
  static_assert(std::same_as<propagate<"bi,bo->io", copies, dual<columns>>, dual<column_weight>> &&
                    std::same_as<propagate<"bi,bo->io", columns, dual<row_output>>, dual<row_weight>> &&
                    std::same_as<propagate<"bi,bthd->ithd", copies, dual<qkv>>, dual<qkv_weight>> &&
                    std::same_as<propagate<"bhd,bo->hdo", heads, dual<head_output>>, dual<head_weight>> &&
                    std::same_as<propagate<"bv,bd->vd", columns, dual<embedding_output>>, dual<vocabulary_weight>> &&
                    std::same_as<propagate<"bv,bd->vd", dual<columns>, copies>, dual<vocabulary_weight>>,
                "heddle: the gradient of every weight that tp splits is the dual of the weight's layout");
  static_assert(std::same_as<propagate<"bo->o", dual<columns>>, dual<column_bias>> &&
                    std::same_as<propagate<"bthd->thd", dual<qkv>>, dual<qkv_bias>> &&
                    std::same_as<propagate<"bd->d", dual<rows>>, dual<whole>> &&
                    std::same_as<propagate<"bd,bd->d", rows, dual<rows>>, dual<whole>>,
                "heddle: the gradients of biases, norms and positions are the duals of their layouts");
};

/// The gradient of a parameter must be a sum over dp, which the trainer reduces, and over nothing else.
template <class Layout>
struct trained_parameter {
  static constexpr bool value = dual<Layout>::template is_partial_on<dp> && !dual<Layout>::template is_partial_on<tp>;
  static_assert(
      value,
      "heddle: a trainer sums gradients over dp and nothing else, but the gradient of a parameter in this layout is a "
      "sum over "
      "tp too, or not over dp; make the parameter identical<tp> where tp does not split it, and replicated over dp");
};

namespace detail {
// What brings a result from one layout to another in place: nothing, or one all_reduce over tp.
enum class settlement : unsigned char { nothing, reduce_over_tp, refused };

template <class From, class To, class... Tags>
constexpr settlement find_settlement(type_list<Tags...>) {
  using mesh_type = typename From::mesh_type;
  constexpr int extents[]{mesh_type::template axis_of<Tags>::fixed_size...};
  constexpr bool is_tp[]{std::is_same_v<Tags, tp>...};
  settlement found = settlement::nothing;
  using role = heddle::v0::detail::axis_role;
  for (std::size_t a = 0; a < sizeof...(Tags); ++a) {
    const auto& from = From::table.use[a];
    const auto& to = To::table.use[a];
    const bool same_value = to.role == role::replicated || to.role == role::identical;
    const bool same_op = from.role != role::partial || std::is_same_v<typename From::ops, typename To::ops>;
    if (extents[a] == 1 || (from == to && same_op)) continue;
    if (from.role == role::identical && same_value) continue;
    if (!is_tp[a] || from.role != role::partial || !same_value) return settlement::refused;
    found = settlement::reduce_over_tp;
  }
  return found;
}
}  // namespace detail

/// Brings a result from layout `From` to layout `To`, in place. The collective follows from the types: contributions
/// still to be combined over tp become an all_reduce over `tp_group` with their operator, equal layouts cost nothing, nor does
/// using an identical value as copies, and everything else does not compile. With one rank along tp nothing is sent.
/// Backward it is `settle<dual<To>, dual<From>>`.
template <class From, class To, class Communicator, class T>
void settle([[maybe_unused]] Communicator& tp_group, [[maybe_unused]] std::span<T> values) {
  constexpr detail::settlement found = detail::find_settlement<From, To>(typename From::mesh_type::tags{});
  static_assert(found != detail::settlement::refused,
                "heddle: settle<From, To> combines contributions over tp, with one all_reduce; for another change of "
                "layout use redistribute");
  if constexpr (found == detail::settlement::reduce_over_tp)
    if (tp_group.size() > 1 && !values.empty()) tp_group.all_reduce(values, typename From::template op_of<tp>{});
}

}  // namespace heddle::inline v0::model
