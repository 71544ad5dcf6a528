// heddle/model/layers/placed.hpp: a described layer with its offsets, and their placer.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/shape.hpp>
#include <heddle/model/layers/description.hpp>
#include <heddle/model/parameters.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace heddle::inline v0::model::layers {

/// Which of a layer's named activations are computed again. `named`: those that the plan names; `all`: every one of them;
/// `transient`: nothing is kept beyond the call, for passes without backward.
enum class dropping : unsigned char { named, all, transient };

namespace detail {
/// A weight and its gradient. Offsets from the first parameter that the block has in the bucket; units: elements.
struct parameter_place {
  std::int64_t offset = 0, rows = 0, columns = 0;
  std::size_t bucket = 0;
};
/// Where all gradients are summed over the same axes.
struct one_bucket {
  static constexpr std::size_t count = 1;
  template <class Parameter>
  static constexpr std::size_t of = 0;
};
/// Offsets in the arenas that a tensor may lie in. [0]: under `dropping::named`, [1]: under `dropping::all`.
struct activation_place {
  std::int64_t columns = 1;
  std::int64_t rows = -1;  ///< of a constant, and of routed rows the most that there may be
  std::array<bool, 2> dropped{};
  std::array<std::int64_t, 2> saved{}, waiting{};
  std::int64_t shared = 0;  ///< or deferred, scratch or constant, whichever it is
};

/// A tensor in a cache: its columns on this rank, and those before it in the block.
struct cached_place {
  std::int64_t first = 0, columns = 0;
};

template <class List>
struct placed_children;

// A parameter whose first `row_dims` dimensions are rows, the others columns; a vector has rows alone. `path` and `name` make its
// name.
HEDDLE_INLINE model::parameter named_matrix(const std::string& path, const char* name,
                                            std::span<const std::int64_t> extents, std::size_t row_dims,
                                            bool is_vector);
// Where this rank's part of it is.
HEDDLE_INLINE parameter_place place_of_matrix(const model::parameter& p, std::size_t row_dims) noexcept;
}  // namespace detail

/// How many buckets the parameters of a model may have: sets of axes over which gradients are summed, and one for what is frozen.
inline constexpr std::size_t most_buckets = 4;

/// A layer with the places of its tensors and those of its children.
template <class Layer>
struct placed {
  using layer_type = Layer;
  Layer layer;
  std::array<detail::parameter_place, parameters_of<Layer>::size> parameters{};
  std::array<detail::activation_place, activations_of<Layer>::size> activations{};
  std::array<detail::cached_place, cached_of<Layer>::size> cached{};
  std::array<detail::cached_place, states_of<Layer>::size> states{};
  typename detail::placed_children<children_of<Layer>>::type children;

  constexpr explicit placed(const Layer& of)
      : layer(of), children(detail::placed_children<children_of<Layer>>::make(of.children())) {}
};

/// Gives a second placement of a layer the parameters of the first.
template <class Layer>
constexpr void copy_parameter_places(const placed<Layer>& from, placed<Layer>& to) {
  to.parameters = from.parameters;
  from.children.each([&](auto at, const auto& child) {
    copy_parameter_places(child, to.children.template get<decltype(at)::value>());
  });
}

namespace detail {
template <class... C>
struct placed_children<list<C...>> {
  using type = list<placed<C>...>;
  static constexpr type make(const list<C...>& all) {
    if constexpr (sizeof...(C) == 0)
      return {};
    else
      return [&]<std::size_t... Is>(std::index_sequence<Is...>) {
        return type(placed<C>(all.template get<Is>())...);
      }(std::index_sequence_for<C...>{});
  }
};
}  // namespace detail

/// Elements of the arenas that a layer's activations need, each piece in whole cache lines. [0] and [1] as above.
struct arena_sizes {
  std::array<std::int64_t, 2> saved{}, waiting{};
  std::int64_t shared = 0;  ///< all that forward makes: for passes without backward, and for what is computed again
  std::int64_t deferred = 0;
  std::int64_t scratch = 0;  ///< children use it in turn
  std::int64_t constants = 0;
  std::int64_t tail_rows = 0;  ///< of `attn.out`, which are kept where it is dropped
  std::int64_t tail = 0;       ///< elements of these
};

/// Gives the tensors of layers their places on one rank.
template <class T, class Layouts>
class placer {
 public:
  using mesh_type = typename Layouts::mesh_type;

  constexpr placer(const mesh_type& mesh, int rank) : mesh_(mesh), rank_(rank) {}

  /// Elements of this rank in dimensions of these extents.
  template <class Dims>
  constexpr std::int64_t local(const std::array<std::int64_t, Dims::count>& extents) const {
    if constexpr (Dims::count == 0)
      return 1;
    else
      return typename Layouts::template parameter<Dims>{mesh_}.local_shape(make_shape(extents), rank_).size();
  }

  /// The first of these dimensions on this rank.
  template <class Dims>
  constexpr std::int64_t local_rows(const std::array<std::int64_t, Dims::count>& extents) const {
    if constexpr (Dims::count == 0)
      return 1;
    else
      return typename Layouts::template parameter<Dims>{mesh_}.local_shape(make_shape(extents), rank_).extent(0);
  }

  /// Rows of an activation on this rank, of so many that its batch has.
  template <class Described>
  constexpr std::int64_t rows_of(std::int64_t rows) const {
    return rows_on_rank<Layouts, typename Described::own, typename detail::beside_of<Described>::type>(mesh_, rank_,
                                                                                                       rows)
        .count;
  }
  /// Elements of the residual stream, of so many rows, in whole cache lines; a rank without rows has room for one.
  constexpr std::int64_t stream_elements(std::int64_t rows, std::int64_t width) const {
    std::int64_t own = rows_on_rank<Layouts, dims<dim::width>>(mesh_, rank_, rows).count, used = 0;
    if (Layouts::template splits_rows<dims<dim::width>> && own == 0) own = 1;
    take(used, own * width);
    return used;
  }

  /// Adds the layer's parameters that are in this bucket to the store, in the order of the description. `at`: what their names
  /// begin with; `id`: of the next parameter in the whole model. Offsets are those in the store; `shift_parameters` makes them relative.
  template <class Buckets = detail::one_bucket, class Layer, class Space>
  void add_parameters(placed<Layer>& p, parameter_store<T, Space>& store, const std::string& at, int& id, bool counted,
                      std::size_t bucket = 0) const {
    std::string path = at;
    if (const char* const name = p.layer.name; name != nullptr && *name != '\0') (path += name) += '.';
    p.layer.parameters().each([&](auto index, const auto& described) {
      constexpr std::size_t own = Buckets::template of<std::remove_cvref_t<decltype(described)>>;
      if (own == bucket) {
        p.parameters[index] = model::detail::has_elements(described.extents)
                                  ? add(described, store, path, id, counted, false, own >= Buckets::count)
                                  : detail::parameter_place{};
        p.parameters[index].bucket = own;
      }
      ++id;
    });
    [&]<std::size_t... Is>(std::index_sequence<Is...>) {
      (add_parameters<Buckets>(p.children.template get<Is>(), store, path, id, counted, bucket), ...);
    }(std::make_index_sequence<children_of<Layer>::size>{});
  }
  /// Adds a copy of a parameter that another rank has, too.
  template <class Described, class Space>
  void add_tied_copy(const Described& d, parameter_store<T, Space>& store, const std::string& at, bool counted) const {
    static_cast<void>(add(d, store, at.empty() ? at : at + ".", 0, counted, true, false));
  }
  /// The place of the first parameter that a layer has in each bucket becomes 0.
  template <class Layer>
  static void shift_parameters(placed<Layer>& p, const std::array<std::int64_t, most_buckets>& by) {
    for (auto& one : p.parameters) one.offset -= by[one.bucket];
    [&]<std::size_t... Is>(std::index_sequence<Is...>) {
      (shift_parameters(p.children.template get<Is>(), by), ...);
    }(std::make_index_sequence<children_of<Layer>::size>{});
  }

  /// The place of each parameter, counted from where those of its bucket begin, is found again by `now(bucket, offset in the store)`.
  template <class Layer, class Now>
  static void move_parameters(placed<Layer>& p, const std::array<std::int64_t, most_buckets>& before,
                              const std::array<std::int64_t, most_buckets>& after, const Now& now) {
    for (auto& one : p.parameters) one.offset = now(one.bucket, one.offset + before[one.bucket]) - after[one.bucket];
    [&]<std::size_t... Is>(std::index_sequence<Is...>) {
      (move_parameters(p.children.template get<Is>(), before, after, now), ...);
    }(std::make_index_sequence<children_of<Layer>::size>{});
  }

  /// Places the activations of at most `rows` rows behind what `sizes` has already. `named`: those that the plan computes
  /// again; `all_shared`: whether the shared arena has a place for every tensor, or only for those; `own`: the
  /// names that are tags, to which those of the layer are added.
  template <class Layer>
  constexpr void place_activations(placed<Layer>& p, arena_sizes& sizes, std::int64_t rows, activation_set named,
                                   bool all_shared, own_activations& own) const {
    p.layer.activations().each([&](auto index, const auto& described) {
      using described_type = std::remove_cvref_t<decltype(described)>;
      auto& place = p.activations[index];
      const std::int64_t columns = local<typename described_type::own>(described.extents);
      if constexpr (described_type::lives == life::constant) {
        place.rows = local_rows<typename described_type::own>(described.extents);
        place.columns = place.rows > 0 ? columns / place.rows : 0;
        place.shared = take(sizes.constants, columns * memory_of<typename described_type::tag>);
      } else {
        std::int64_t elements = 0;
        if constexpr (detail::is_routed<described_type>) {
          place.rows = most_routed(described, rows);
          elements = place.rows * columns;
        } else if constexpr (constexpr int copies = detail::copies_in<Layouts, described_type>(); copies > 0) {
          elements = copies * rows_of<described_type>(rows) * columns;
        }
        place.columns = columns;
        elements *= memory_of<typename described_type::tag>;
        if constexpr (described_type::lives == life::deferred) {
          place.shared = take(sizes.deferred, elements);
        } else if constexpr (described_type::lives == life::scratch) {
          place.shared = take(sizes.scratch, elements);
        } else {
          const activation_set role = detail::role_of(described, own);
          place.dropped = {(role & named).any(), role.any()};
          if (role.has(model::activation::attn_out))
            take(sizes.tail, sizes.tail_rows * columns * memory_of<typename described_type::tag>);
          for (std::size_t v = 0; v < 2; ++v) {
            if (!place.dropped[v])
              place.saved[v] = take(sizes.saved[v], elements);
            else if (described_type::lives == life::until_weight)
              place.waiting[v] = take(sizes.waiting[v], elements);
          }
          if (all_shared || place.dropped[0]) place.shared = take(sizes.shared, elements);
        }
      }
    });
    const std::int64_t scratch = sizes.scratch;
    std::int64_t most = scratch;
    const auto child = [&](auto& c) {
      sizes.scratch = scratch;
      place_activations(c, sizes, rows, named, all_shared, own);
      most = (std::max)(most, sizes.scratch);
    };
    [&]<std::size_t... Is>(std::index_sequence<Is...>) {
      (child(p.children.template get<Is>()), ...);
    }(std::make_index_sequence<children_of<Layer>::size>{});
    sizes.scratch = most;
  }

  /// Places what a layer and its children leave in a cache behind the first `columns` of a token, and counts them.
  template <class Layer>
  constexpr void place_cached(placed<Layer>& p, std::int64_t& columns) const {
    detail::cached_list(p.layer).each([&](auto index, const auto& described) {
      auto& place = p.cached[index];
      place.first = columns;
      place.columns = local<typename std::remove_cvref_t<decltype(described)>::own>(described.extents);
      columns += place.columns;
    });
    [&]<std::size_t... Is>(std::index_sequence<Is...>) {
      (place_cached(p.children.template get<Is>(), columns), ...);
    }(std::make_index_sequence<children_of<Layer>::size>{});
  }

  /// Places the states of a layer and its children behind the first `columns` elements of a sequence's, and counts them.
  template <class Layer>
  constexpr void place_states(placed<Layer>& p, std::int64_t& columns) const {
    detail::state_list(p.layer).each([&](auto index, const auto& described) {
      auto& place = p.states[index];
      place.first = columns;
      place.columns = local<typename std::remove_cvref_t<decltype(described)>::own>(described.extents);
      columns += place.columns;
    });
    [&]<std::size_t... Is>(std::index_sequence<Is...>) {
      (place_states(p.children.template get<Is>(), columns), ...);
    }(std::make_index_sequence<children_of<Layer>::size>{});
  }

  /// Elements of this rank's parameters of a layer in a bucket, each in whole cache lines.
  template <class Buckets = detail::one_bucket, class Layer>
  constexpr std::int64_t parameter_elements(const Layer& layer, std::size_t bucket = 0) const {
    std::int64_t n = 0;
    layer.parameters().each([&](auto, const auto& p) {
      if (Buckets::template of<std::remove_cvref_t<decltype(p)>> == bucket) take(n, local_parameter(p));
    });
    layer.children().each([&](auto, const auto& child) { n += parameter_elements<Buckets>(child, bucket); });
    return n;
  }
  /// Elements of this rank's part of a described parameter.
  template <class Described>
  constexpr std::int64_t local_parameter(const Described& p) const {
    using placement = typename Layouts::template parameter<typename Described::own, typename Described::meets>;
    return placement{mesh_}.local_shape(make_shape(p.extents), rank_).size();
  }

  /// The most routed rows of a tensor, for microbatches of at most `batch_rows` rows.
  template <class Described>
  constexpr std::int64_t most_routed(const Described& d, std::int64_t batch_rows) const {
    using over = typename Layouts::template exchange_axes<typename Described::over>;
    using within = typename Layouts::template exchange_axes<typename Described::within>;
    const std::int64_t parts = ranks_along(typename Layouts::template sequence_axes<dims<dim::width>>{});
    const std::int64_t rows = (batch_rows + parts - 1) / parts;
    const auto limited = [&](std::int64_t n) {
      if (d.limit.factor == 0) return n;
      return (std::min)(n, local<dims<typename Described::over>>({d.limit.parts}) * d.limit.of(rows));
    };
    if constexpr (over::size + within::size == 0) {
      return limited(rows * d.per_row.alone);
    } else if constexpr (Described::inside::size > 0) {
      using others = model::detail::axes_without<joined_lists<over, within>, typename Described::inside>;
      return ranks_along(typename others::type{}) * rows * d.per_row.received;
    } else {
      const std::int64_t copies = ranks_along(within{});
      return copies * rows * d.per_row.sent +
             copies * ranks_along(over{}) * (limited(rows * d.per_row.received) + d.more);
    }
  }

  /// The next so many elements, to the end of a cache line.
  static constexpr std::int64_t take(std::int64_t& used, std::int64_t elements) noexcept {
    constexpr std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
    const std::int64_t at = used;
    used += (elements + line - 1) / line * line;
    return at;
  }

 private:
  // Elements of memory that one of a tensor takes.
  template <class Tag>
  static constexpr auto memory_of = static_cast<std::int64_t>(sizeof(element_of_tag<Tag, T>) / sizeof(T));

  template <class Described, class Space>
  detail::parameter_place add(const Described& d, parameter_store<T, Space>& store, const std::string& path, int id,
                              bool counted, bool tied_copy, bool frozen) const {
    using own = typename Described::own;
    using placement = typename Layouts::template parameter<own, typename Described::meets>;
    const placement where{mesh_};
    model::parameter p = detail::named_matrix(path, d.name, d.extents, Described::rows::count, Described::is_vector);
    p.id = id;
    p.initial_mean = d.mean;
    p.initial_deviation = d.deviation;
    p.tied_copy = tied_copy;
    p.counted = counted && !tied_copy && counts_here<placement>(frozen, typename mesh_type::tags{});
    const std::size_t at = store.add(std::move(p), d.extents, where, rank_);
    return detail::place_of_matrix(store.table()[at], Described::rows::count);
  }
  template <class... Tags>
  constexpr std::int64_t ranks_along(type_list<Tags...>) const {
    return (std::int64_t{1} * ... * std::int64_t{mesh_.template extent<Tags>()});
  }
  // Among ranks that hold the same elements because nothing splits them, the first counts; over axes along which their gradient is
  // summed all do, as they share one gradient. What is frozen has none.
  template <class Placement, class... Tags>
  bool counts_here(bool frozen, type_list<Tags...>) const {
    return ((Placement::template is_sharded_on<Tags> || (!frozen && Layouts::template sums_over<Placement, Tags>) ||
             mesh_.template coordinate<Tags>(rank_) == 0) &&
            ...);
  }

  [[no_unique_address]] mesh_type mesh_;
  int rank_;
};

}  // namespace heddle::inline v0::model::layers

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/model/impl/layers/placed.hpp>
#endif
