// heddle/model/sharding.hpp: dimension tags of a model, their axes, and layouts.
#pragma once

#include <heddle/core/fixed_string.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/layout/gradient.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/layout/propagate.hpp>
#include <heddle/mesh/mesh.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {

/// Dimensions of a model's tensors, as types. Users declare their own beside these: any type will do.
namespace dim {
struct width {};       ///< elements of the residual stream
struct heads {};       ///< key-value heads; the query heads of a group stay with theirs
struct group {};       ///< query heads of one key-value head
struct head_size {};   ///< elements of a head
struct kinds {};       ///< query, key and value of a fused product
struct ffn {};         ///< hidden units of a feed-forward layer
struct vocabulary {};  ///< tokens that there are
struct positions {};   ///< places in a sequence, up to the context
struct taps {};        ///< pixels of a neighbourhood
struct features {};    ///< numbers of a sample's x
struct outputs {};     ///< numbers of a sample's y
struct experts {};     ///< the experts of a mixture
struct low_rank {};    ///< of an adapter: elements between its two matrices
struct candidates {};  ///< the experts as a router scores them: all of them, on every rank
struct choices {};     ///< the experts that a token chooses
struct samples {};     ///< samples of a batch; together with `sequence` the rows of every activation
struct sequence {};    ///< tokens of a sample

}  // namespace dim

/// How rows travel along the axis that splits the sequence: before the products that take them and after those that make them.
struct at_once {};
/// Beside these products, in rings of messages: each rank's rows are cut into so many, and what has arrived is multiplied while
/// the rest is under way (`compute::gather_rows_for`, `compute::scatter_sums_of`). On the host.
template <int Pieces = 1>
struct overlapped {
  static_assert(Pieces >= 1, "heddle: overlapped<Pieces> cuts the rows of a rank into at least one piece");
};
/// Not at all: each rank keeps the rows that it has of every document of the batch, and attention alone brings queries, keys and
/// values together (context parallelism). `Policies`, by kind: see `<heddle/train/context.hpp>`, which a trainer of it needs.
template <class... Policies>
struct context {
  using policies = type_list<Policies...>;
};

namespace detail {
template <class Moving>
inline constexpr bool is_context = false;
template <class... Policies>
inline constexpr bool is_context<context<Policies...>> = true;
template <class... Moving>
struct first_context {
  using type = at_once;
};
template <class Moving, class... More>
struct first_context<Moving, More...> {
  using type =
      typename std::conditional_t<is_context<Moving>, std::type_identity<Moving>, first_context<More...>>::type;
};
template <class Moving>
inline constexpr int pieces_of_moving = -1;
template <>
inline constexpr int pieces_of_moving<at_once> = 0;
template <int Pieces>
inline constexpr int pieces_of_moving<overlapped<Pieces>> = Pieces;
template <class... Policies>
inline constexpr int pieces_of_moving<context<Policies...>> = 0;
// Whether a split says something that can be done about how rows travel.
template <class Split>
inline constexpr bool moves_rows_well =
    std::is_same_v<typename Split::moving, at_once> || is_context<typename Split::moving> ||
    (std::is_same_v<typename Split::dimension, dim::sequence> && pieces_of_moving<typename Split::moving> > 0);
}  // namespace detail

namespace dim {
/// `Axis` splits dimension `Dim` wherever it occurs. `Moving`: for `sequence` how rows travel, `at_once`, `overlapped<Pieces>` or
/// `context<Policies...>`.
template <class Dim, class Axis, class Moving = at_once>
struct split {
  using dimension = Dim;
  using axis = Axis;
  using moving = Moving;
};
}  // namespace dim

/// Which axes split which dimensions of a model: `sharding<dim::split<dim::heads, tp>, dim::split<dim::samples, dp>>`. The
/// layouts of all parameters, activations and gradients follow, and from them every communication. Dimensions that are not
/// named are whole; axes that the mesh lacks split nothing.
template <class... Splits>
struct sharding {
  using splits = type_list<Splits...>;
};

namespace model {

/// Dimensions of one tensor, in order.
template <class... Dims>
struct dims {
  static constexpr std::size_t count = sizeof...(Dims);
};

/// The plan of Megatron-LM over `Tensor`, and samples over `Data`: heads, hidden units and vocabulary are split.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
template <class Data = dp, class Tensor = tp>
using megatron = sharding<dim::split<dim::samples, Data>, dim::split<dim::heads, Tensor>, dim::split<dim::ffn, Tensor>,
                          dim::split<dim::vocabulary, Tensor>>;

/// `megatron`, and the experts of mixtures over `Expert`, whose ranks see the same samples.
template <class Data = dp, class Tensor = tp, class Expert = ep>
using megatron_with_experts =
    sharding<dim::split<dim::samples, Data>, dim::split<dim::heads, Tensor>, dim::split<dim::ffn, Tensor>,
             dim::split<dim::vocabulary, Tensor>, dim::split<dim::experts, Expert>>;

/// The same where the ranks along `Expert` have other samples, too: tokens travel to their experts and back.
/// Source: Lepikhin et al. 2020, arXiv:2006.16668, section 3; Liu et al. 2025, arXiv:2504.14960.
template <class Data = dp, class Tensor = tp, class Expert = ep>
using expert_parallel =
    sharding<dim::split<dim::samples, Data>, dim::split<dim::samples, Expert>, dim::split<dim::heads, Tensor>,
             dim::split<dim::ffn, Tensor>, dim::split<dim::vocabulary, Tensor>, dim::split<dim::experts, Expert>>;

/// `megatron` over `Expert` and `Tensor` together, whose ranks see the same samples: heads and vocabulary are split over both, the experts of
/// mixtures over `Expert`, and hidden units, those of each expert and of layers beside experts, over `Tensor`.
/// Source: Liu et al. 2025, arXiv:2504.14960, section 3 (attention and experts fold the same ranks in two ways).
template <class Data = dp, class Tensor = tp, class Expert = ep>
using megatron_folded =
    sharding<dim::split<dim::samples, Data>, dim::split<dim::heads, Expert>, dim::split<dim::heads, Tensor>,
             dim::split<dim::vocabulary, Expert>, dim::split<dim::vocabulary, Tensor>, dim::split<dim::experts, Expert>,
             dim::split<dim::ffn, Tensor>>;

/// `megatron`, with the rows of the residual stream split over `Tensor` as well: between attention and MLPs each rank has its
/// rows of each microbatch, and all_gather and reduce_scatter take the place of all_reduce. With `overlapped<Pieces>` as `Moving` these
/// run beside the products of linear layers (asynchronous tensor parallelism).
/// Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
template <class Data = dp, class Tensor = tp, class Moving = at_once>
using megatron_sequence =
    sharding<dim::split<dim::samples, Data>, dim::split<dim::heads, Tensor>, dim::split<dim::ffn, Tensor>,
             dim::split<dim::vocabulary, Tensor>, dim::split<dim::sequence, Tensor, Moving>>;

namespace detail {

template <class How>
struct sharding_rules;
template <class... S>
struct sharding_rules<sharding<S...>> {
  /// What a split divides of the rows that layers see: those of a context split are whole rows of the batch, as samples are.
  template <class Split>
  using divided = std::conditional_t<heddle::v0::detail::is_context<typename Split::moving>, dim::samples,
                                     typename Split::dimension>;
  /// The axes of the mesh that split a dimension, in the order of the sharding.
  template <class Mesh, class D>
  using axes_of = joined_lists<std::conditional_t<std::is_same_v<D, divided<S>> && Mesh::template has<typename S::axis>,
                                                  type_list<typename S::axis>, type_list<>>...>;
  /// The axes of context splits.
  template <class Mesh>
  using context_axes =
      joined_lists<type_list<>, std::conditional_t<heddle::v0::detail::is_context<typename S::moving> &&
                                                       Mesh::template has<typename S::axis>,
                                                   type_list<typename S::axis>, type_list<>>...>;
  template <class Split>
  static constexpr bool is_context_of_sequence = !heddle::v0::detail::is_context<typename Split::moving> ||
                                                 std::is_same_v<typename Split::dimension, dim::sequence>;
  static constexpr bool context_splits_sequence = (is_context_of_sequence<S> && ...);
  /// The `context<Policies...>` of the context split; `at_once` without.
  using context_policies = typename heddle::v0::detail::first_context<typename S::moving...>::type;
  static constexpr int contexts = (0 + ... + (heddle::v0::detail::is_context<typename S::moving> ? 1 : 0));
  template <class Axis>
  static constexpr bool axis_of_context =
      ((heddle::v0::detail::is_context<typename S::moving> && std::is_same_v<Axis, typename S::axis>) || ...);
  /// Whether no axis of a context split divides samples or heads, too.
  static constexpr bool context_splits_alone =
      ((heddle::v0::detail::is_context<typename S::moving> || !axis_of_context<typename S::axis> ||
        !(std::is_same_v<typename S::dimension, dim::samples> || std::is_same_v<typename S::dimension, dim::heads>)) &&
       ...);
  /// Messages of each rank's rows beside products; 0: none. Of a folded sharding several splits say the same.
  static constexpr int pieces = [] {
    int most = 0;
    ((most = heddle::v0::detail::pieces_of_moving<typename S::moving> > most
                 ? heddle::v0::detail::pieces_of_moving<typename S::moving>
                 : most),
     ...);
    return most;
  }();
  static constexpr bool moves_rows_well = (heddle::v0::detail::moves_rows_well<S> && ...);
  /// All axes that the sharding names.
  using axes = joined_lists<type_list<typename S::axis>...>;
};

template <class List, class Axis>
inline constexpr bool list_has = false;
template <class... A, class Axis>
inline constexpr bool list_has<type_list<A...>, Axis> = contains<Axis, A...>;

// The axes of `Of` that are in `Rows`, too, and may have several ranks.
template <class Mesh, class Rows, class Of>
struct exchanged_axes;
template <class Mesh, class Rows, class... A>
struct exchanged_axes<Mesh, Rows, type_list<A...>> {
  template <class Axis>
  static constexpr bool kept = list_has<Rows, Axis> && Mesh::template axis_of<Axis>::fixed_size != 1;
  using type = joined_lists<type_list<>, std::conditional_t<kept<A>, type_list<A>, type_list<>>...>;
};
// A sharding that does not split dimensions D... over axes that split rows.
template <class How, class... D>
struct without_exchange;
template <class... S, class... D>
struct without_exchange<sharding<S...>, D...> {
  template <class... Kept>
  static sharding<Kept...> as_sharding(type_list<Kept...>);
  template <class Axis>
  static constexpr bool splits_rows =
      ((std::is_same_v<Axis, typename S::axis> && (std::is_same_v<typename S::dimension, dim::samples> ||
                                                   std::is_same_v<typename S::dimension, dim::sequence>)) ||
       ...);
  template <class Split>
  static constexpr bool dropped = contains<typename Split::dimension, D...> && splits_rows<typename Split::axis>;
  using type =
      decltype(as_sharding(joined_lists<type_list<>, std::conditional_t<dropped<S>, type_list<>, type_list<S>>...>{}));
};

template <int At, class Axes>
struct shard_of {
  using type = type_list<>;
};
template <int At, class A, class... More>
struct shard_of<At, type_list<A, More...>> {
  using type = type_list<shard<At, A, More...>>;
};
template <class Axes>
struct identical_of {
  using type = type_list<>;
};
template <class A, class... More>
struct identical_of<type_list<A, More...>> {
  using type = type_list<identical<A, More...>>;
};
template <class Mesh, class Placements>
struct layout_of;
template <class Mesh, class... P>
struct layout_of<Mesh, type_list<P...>> {
  using type = layout<Mesh, P...>;
};

// A tensor whose dimensions are D..., the first of them number `First`; `Split`: the axes that split something of it,
// `Differs`: those over which its uses differ. All others repeat one computation.
template <class Mesh, class Placed, class Split, class Differs, class Tags>
struct spelled_layout;
template <class Mesh, class... Placed, class Split, class Differs, class... Tags>
struct spelled_layout<Mesh, type_list<Placed...>, Split, Differs, type_list<Tags...>> {
  using same = joined_lists<
      std::conditional_t<list_has<Split, Tags> || list_has<Differs, Tags>, type_list<>, type_list<Tags>>...>;
  using type = typename layout_of<Mesh, joined_lists<type_list<Placed...>, typename identical_of<same>::type>>::type;
};

template <class Mesh, class How, class Own, class Meets, class Indices>
struct parameter_layout_of;
template <class Mesh, class How, class... D, class... M, std::size_t... Is>
struct parameter_layout_of<Mesh, How, dims<D...>, dims<M...>, std::index_sequence<Is...>> {
  using rules = sharding_rules<How>;
  using own = joined_lists<type_list<>, typename rules::template axes_of<Mesh, D>...>;
  using differs =
      joined_lists<typename rules::template axes_of<Mesh, dim::samples>,
                   typename rules::template axes_of<Mesh, dim::sequence>, typename rules::template axes_of<Mesh, M>...>;
  using placed =
      joined_lists<type_list<>,
                   typename shard_of<static_cast<int>(Is), typename rules::template axes_of<Mesh, D>>::type...>;
  using type = typename spelled_layout<Mesh, placed, own, differs, typename Mesh::tags>::type;
};

// Those of some axes that are not among others.
template <class Axes, class Others>
struct axes_without;
template <class... A, class Others>
struct axes_without<type_list<A...>, Others> {
  using type = joined_lists<type_list<>, std::conditional_t<list_has<Others, A>, type_list<>, type_list<A>>...>;
};
template <class Mesh, class Axes>
struct axes_of_ranks;
template <class Mesh, class... A>
struct axes_of_ranks<Mesh, type_list<A...>> {
  using type =
      joined_lists<type_list<>,
                   std::conditional_t<Mesh::template axis_of<A>::fixed_size == 1, type_list<>, type_list<A>>...>;
};

// The rows of an activation: split over the axes that split samples, and over those that split sequences, unless such an axis
// splits another dimension of it or of what it is used with.
template <class Mesh, class How, class Own, class Beside>
struct rows_of_edge;
template <class Mesh, class How, class... D, class... B>
struct rows_of_edge<Mesh, How, dims<D...>, dims<B...>> {
  using rules = sharding_rules<How>;
  using samples = typename rules::template axes_of<Mesh, dim::samples>;
  using taken =
      joined_lists<samples, typename rules::template axes_of<Mesh, D>..., typename rules::template axes_of<Mesh, B>...>;
  using sequence = typename axes_without<typename rules::template axes_of<Mesh, dim::sequence>, taken>::type;
  using type = joined_lists<samples, sequence>;
};

template <class Mesh, class How, class Own, class Beside, class Indices>
struct edge_layout_of;
template <class Mesh, class How, class... D, class Beside, std::size_t... Is>
struct edge_layout_of<Mesh, How, dims<D...>, Beside, std::index_sequence<Is...>> {
  using rules = sharding_rules<How>;
  using rows = typename rows_of_edge<Mesh, How, dims<D...>, Beside>::type;
  using own = joined_lists<rows, typename rules::template axes_of<Mesh, D>...>;
  using placed =
      joined_lists<typename shard_of<0, rows>::type,
                   typename shard_of<static_cast<int>(Is) + 1, typename rules::template axes_of<Mesh, D>>::type...>;
  using type = typename spelled_layout<Mesh, placed, own, type_list<>, typename Mesh::tags>::type;
};

// Identical values that something split uses become copies: nothing moves, and the gradients of the copies are summed.
template <class X, class W>
struct layout_as_used : heddle::detail::in_words_of<X> {
  static constexpr auto table = [] {
    auto t = X::table;
    for (std::size_t a = 0; a < X::mesh_type::rank; ++a)
      if (t.use[a].role == axis_role::identical && W::table.use[a].role != axis_role::identical) t.use[a] = {};
    return t;
  }();
  static constexpr auto groups = heddle::detail::canonical_groups(table);
  using type = heddle::detail::layout_from<layout_as_used>;
};

// "bij,ijop->bop" and the like, for a product of rows with a weight: `b` rows, `i` the dimensions that go in, `o` those
// that come out.
template <std::size_t In, std::size_t Out>
constexpr auto product_formula(const char* left, const char* right, const char* result) {
  constexpr std::size_t length = 2 * (1 + In + Out) + 4;
  char text[length] = {};
  std::size_t n = 0;
  const auto add = [&](const char* what) {
    for (; *what != '\0'; ++what) {
      if (*what == 'b') text[n++] = 'b';
      for (std::size_t k = 0; *what == 'i' && k < In; ++k) text[n++] = static_cast<char>('i' + k);
      for (std::size_t k = 0; *what == 'o' && k < Out; ++k) text[n++] = static_cast<char>('o' + k);
    }
  };
  add(left);
  text[n++] = ',';
  add(right);
  text[n++] = '-';
  text[n++] = '>';
  add(result);
  return fixed_string<length>(text);
}

template <bool Ok, class How>
struct sharding_is_possible {
  static constexpr bool value = Ok;
};
}  // namespace detail

/// The layouts of a model's tensors on `Mesh` (without the pipeline's axis) under a sharding.
template <mesh_like Mesh, class How>
struct layouts {
  using mesh_type = Mesh;
  using how = How;

  /// A parameter with dimensions `Own` that is used together with dimensions `Meets`: an axis that splits one of its own
  /// cuts it; where rows or what it meets are split its uses differ, so that its gradient is a sum; over all other axes
  /// every rank does the same with it.
  template <class Own, class Meets = dims<>>
  using parameter =
      typename detail::parameter_layout_of<Mesh, How, Own, Meets, std::make_index_sequence<Own::count>>::type;
  /// An activation [rows, Own...], with the rows that one has which carries dimensions `Beside` too. An axis that splits the
  /// sequence splits rows where it splits none of these: those of the residual stream, not those of hidden units or heads.
  template <class Own, class Beside = dims<>>
  using edge = typename detail::edge_layout_of<Mesh, How, Own, Beside, std::make_index_sequence<Own::count>>::type;
  /// The layout of `X` where a tensor in layout `W` uses it.
  template <class X, class W>
  using used = typename detail::layout_as_used<X, W>::type;

  /// Whether the gradient of a parameter in this layout is a sum over axis `Tag`.
  template <class Layout, class Tag>
  static constexpr bool sums_over = dual<Layout>::template is_partial_on<Tag>;
  /// The axes that split samples: every parameter's gradient is a sum over these.
  using row_axes = typename detail::sharding_rules<How>::template axes_of<Mesh, dim::samples>;
  /// In how many messages the rows of a rank travel beside products; 0: before them or after them.
  static constexpr int overlapped_pieces = detail::sharding_rules<How>::pieces;
  /// The axis of a context split, which is among `row_axes`, too; none without.
  using context_axes = typename detail::sharding_rules<How>::template context_axes<Mesh>;
  /// The axes that split sequences.
  using sequence_splits = typename detail::sharding_rules<How>::template axes_of<Mesh, dim::sequence>;
  /// The axes that split rows and one of the dimensions both: rows of a mixture of experts travel along them to where their part of
  /// the dimension is.
  template <class... D>
  using exchange_axes = typename detail::exchanged_axes<
      Mesh, joined_lists<row_axes, sequence_splits>,
      joined_lists<typename detail::sharding_rules<How>::template axes_of<Mesh, D>...>>::type;
  /// Of the axes that split sequences, those of more than one rank that split the rows of an edge<Own, Beside>.
  template <class Own, class Beside = dims<>>
  using sequence_axes =
      typename detail::axes_of_ranks<Mesh, typename detail::rows_of_edge<Mesh, How, Own, Beside>::sequence>::type;
  /// Whether a rank has a part of these rows only.
  template <class Own, class Beside = dims<>>
  static constexpr bool splits_rows = sequence_axes<Own, Beside>::size > 0;

  static_assert(
      detail::sharding_is_possible < sequence_splits::size ==
          detail::axes_without<sequence_splits, row_axes>::type::size,
      How > ::value,
      "heddle: an axis splits samples or sequences, not both: name it once, in split<dim::samples, ...> or in "
      "split<dim::sequence, ...>");
  static_assert(
      detail::sharding_is_possible<detail::sharding_rules<How>::moves_rows_well, How>::value,
      "heddle: split<Dim, Axis, overlapped<Pieces>>: rows travel beside products where the sequence is split: the "
      "dimension must be dim::sequence");
  static_assert(detail::sharding_is_possible<detail::sharding_rules<How>::context_splits_sequence, How>::value,
                "heddle: split<Dim, Axis, context<...>>: a context split is one of dim::sequence");
  static_assert(detail::sharding_is_possible<detail::sharding_rules<How>::contexts <= 1, How>::value,
                "heddle: a sharding has one context split at most: leave out the others");
  static_assert(
      detail::sharding_is_possible<detail::sharding_rules<How>::context_splits_alone, How>::value,
      "heddle: the axis of a context split divides the rows of documents, and neither samples nor heads: give "
      "these an axis of their own");
  static_assert(
      detail::sharding_is_possible<sequence_axes<dims<>>::size <= 1, How>::value,
      "heddle: the sequences of a model are split over one axis: leave out all split<dim::sequence, ...> but one "
      "(folded_sharding makes one of each axis of the folded mesh)");
};

/// Consecutive rows of a batch.
struct row_range {
  std::int64_t first = 0, count = 0;
};
namespace detail {
template <class Axis, class... More, class Mesh>
constexpr row_range rows_on_rank(type_list<Axis, More...>, const Mesh& mesh, int rank, std::int64_t rows) {
  int part = 0;
  if constexpr (Mesh::template has<Axis>) part = mesh.template coordinate<Axis>(rank);
  const balanced_split cut{rows, mesh.template extent_or_one<Axis>()};
  return {cut.offset(part), cut.size(part)};
}
}  // namespace detail
/// Those of `rows` rows that a rank has of an edge<Own, Beside>, as even as possible. `mesh` and `rank`: of the world or of its
/// stage. Where nothing splits them all of them, without a look at the mesh.
template <class Layouts, class Own, class Beside = dims<>, class Mesh>
constexpr row_range rows_on_rank(const Mesh& mesh, int rank, std::int64_t rows) {
  if constexpr (Layouts::template splits_rows<Own, Beside>)
    return detail::rows_on_rank(typename Layouts::template sequence_axes<Own, Beside>{}, mesh, rank, rows);
  else
    return {0, rows};
}

namespace detail {
// Dimension 0, over the axes that split samples.
template <class Mesh, class How>
struct samples_layout_of {
  using axes = typename sharding_rules<How>::template axes_of<Mesh, dim::samples>;
  using type = typename layout_of<Mesh, typename shard_of<0, axes>::type>::type;
};

// The mesh without the pipeline's axis, with the axes that the sharding names and the mesh lacks as axes of one rank.
template <class Mesh, class Pipeline, class Tags, class Named>
struct stage_mesh_of;
template <class Mesh, class Pipeline, class... Tags, class... Named>
struct stage_mesh_of<Mesh, Pipeline, type_list<Tags...>, type_list<Named...>> {
  template <class... A>
  static mesh<A...> as_mesh(type_list<A...>);
  template <class Tag>
  static auto axis_of() {
    if constexpr (std::is_same_v<Tag, Pipeline>)
      return type_list<>{};
    else
      return type_list<typename Mesh::template axis_of<Tag>>{};
  }
  template <std::size_t At, class Tag>
  static auto missing() {
    constexpr bool first = index_of<Tag, Named...> == At;
    if constexpr (Mesh::template has<Tag> || !first || std::is_same_v<Tag, Pipeline>)
      return type_list<>{};
    else
      return type_list<axis<Tag, 1>>{};
  }
  template <std::size_t... Is>
  static auto all(std::index_sequence<Is...>)
      -> joined_lists<type_list<>, decltype(axis_of<Tags>())..., decltype(missing<Is, Named>())...>;
  using type = decltype(as_mesh(all(std::make_index_sequence<sizeof...(Named)>{})));
};
}  // namespace detail

/// The mesh that the tensors of one pipeline stage are laid out on: that of the world without the pipeline's axis. Axes
/// that the sharding names and the world lacks are there with one rank.
template <mesh_like Mesh, class Pipeline, class How>
using stage_mesh = typename detail::stage_mesh_of<Mesh, Pipeline, typename Mesh::tags,
                                                  typename detail::sharding_rules<How>::axes>::type;

namespace detail {
template <class To, class From, class... Tags>
constexpr To mesh_of_stage(const From& whole, type_list<Tags...>) {
  if constexpr (To::is_static)
    return {};
  else
    return To::from_extents({whole.template extent_or_one<Tags>()...});
}
template <class To, class From, class... Tags>
constexpr int rank_in_stage(const From& whole, int rank, type_list<Tags...>) {
  int result = 0;
  const auto next = [&]<class Tag>(std::type_identity<Tag>) {
    result *= whole.template extent_or_one<Tag>();
    if constexpr (From::template has<Tag>) result += whole.template coordinate<Tag>(rank);
  };
  (next(std::type_identity<Tags>{}), ...);
  return result;
}
}  // namespace detail

/// The mesh of a stage with the extents of the world's, and the place of a rank of the world in it.
template <class StageMesh, mesh_like Mesh>
constexpr StageMesh make_stage_mesh(const Mesh& whole) {
  return detail::mesh_of_stage<StageMesh>(whole, typename StageMesh::tags{});
}
/// The rank in its stage's mesh of a rank of the whole mesh.
template <class StageMesh, mesh_like Mesh>
constexpr int rank_in_stage_mesh(const Mesh& whole, int rank) {
  return detail::rank_in_stage<StageMesh>(whole, rank, typename StageMesh::tags{});
}

/// The layouts of a product of rows with a weight, as each verb makes them, before anybody settles them.
/// Shapes: x [rows, In...], weight [In..., Out...] (or [Out..., In...] where `Transposed`), y [rows, Out...].
template <class Layouts, class In, class Out, class Weight, bool Transposed = false>
struct product_layouts {
  static constexpr std::size_t in = In::count, out = Out::count;
  static constexpr const char* weight = Transposed ? "oi" : "io";
  using x_edge = typename Layouts::template edge<In>;
  using x_taken = typename Layouts::template edge<In, Out>;  ///< as the product takes it: of all rows that y has
  using x = typename Layouts::template used<x_taken, Weight>;
  using y = typename Layouts::template edge<Out>;
  using made = propagate<detail::product_formula<in, out>("bi", weight, "bo"), x, Weight>;
  using dx_made = propagate<detail::product_formula<in, out>("bo", weight, "bi"), dual<made>, Weight>;
  using dw_made = propagate<detail::product_formula<in, out>("bi", "bo", weight), x, dual<made>>;
  static_assert(
      std::is_same_v<dw_made, dual<Weight>>,
      "heddle: the gradient of a product's weight must be the dual of the weight's layout; check the dimensions "
      "that the parameter names");
};

}  // namespace model
}  // namespace heddle::inline v0
