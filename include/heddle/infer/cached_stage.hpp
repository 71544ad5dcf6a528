// heddle/infer/cached_stage.hpp: one rank's part of a model, forward only, with a cache.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/infer/cache_extent.hpp>
#include <heddle/infer/memory_plan.hpp>
#include <heddle/infer/step.hpp>
#include <heddle/infer/step_inputs.hpp>
#include <heddle/infer/step_rows.hpp>
#include <heddle/model/language_checks.hpp>
#include <heddle/model/language_parameters.hpp>
#include <heddle/model/language_places.hpp>
#include <heddle/model/layers/cached_traits.hpp>
#include <heddle/model/layers/call.hpp>
#include <heddle/model/stage_layers.hpp>
#include <heddle/model/stage_types.hpp>
#include <heddle/model/stream_rows.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

namespace detail {
template <bool Ok, class How>
inline constexpr bool steps_have_whole_rows = Ok;
template <bool Ok, class How>
inline constexpr bool rows_have_an_order = Ok;
template <bool Ok, class Model>
inline constexpr bool steps_have_all_logits = Ok;
}  // namespace detail

/// One pipeline stage of a described language model on one rank, for inference: its blocks, on stage 0 the embedding, on the last
/// stage the final norm and the head. Layers are the same as in training; those that look at other tokens (attention, learned
/// positions) run their verb `forward_cached`. There are no gradients and nothing is saved. Weights are filled by `initialize` or `model::read_parameters`.
///
/// The cache is allocated once: the tensors that each block's layers list (`cached_tensors()`), consecutively, each
/// [blocks * block_rows, columns of this rank]. `cache_bytes()` is exact.
///
/// Memory is the backend's, also a device's. What a step has on the host (tokens, positions, pages) goes there by `step_inputs`; what the host reads of the
/// stage's memory, it copies, or reads where it can, after a wait for the queue. Errors: `config_error` for what does not fit. `World` and `Backend` must outlive it.
template <class Model, class World, class Backend, class Pipeline = pp>
class cached_stage : public model::detail::stage_types<Model, World, Backend, Pipeline> {
  using types = model::detail::stage_types<Model, World, Backend, Pipeline>;

 public:
  using typename types::block_layer, typename types::in_layer, typename types::out_layer;
  using typename types::config_type, typename types::description, typename types::how, typename types::whole_mesh;
  using typename types::const_row, typename types::row, typename types::space, typename types::T;
  using typename types::layouts, typename types::mesh_type, typename types::places;
  /// Whether each rank has a part of a step's rows between its layers (split<dim::sequence, ...>).
  static constexpr bool splits_rows = layouts::template splits_rows<model::dims<dim::width>>;
  static_assert(detail::steps_have_whole_rows < !splits_rows ||
                    model::layers::cached_traits<block_layer>::takes_split_rows,
                how >,
                "heddle: the layers of this model take all rows of a step of inference: take a sharding without "
                "split<dim::sequence, ...>");
  static_assert(
      detail::steps_have_whole_rows < layouts::context_axes::size == 0, how >,
      "heddle: engines read and make the tokens of a sequence on every rank: take the model without its context "
      "split, which has the same parameters");
  static_assert(
      detail::steps_have_all_logits<!model::layers::detail::makes_logits_in_chunks<out_layer>, Model>,
      "heddle: engines read all logits of a row: give them the model without with_chunked_loss, which has the "
      "same parameters");
  static_assert(model::detail::language_stage_is_possible<layouts, in_layer, block_layer, out_layer,
                                                          typename types::trained>::value);

  /// What its layers keep of earlier tokens.
  using keeps = model::layers::cached_traits<block_layer>;

  /// Whose memory weights and cache are in: its own, what the caller lends, or that of a stage of the same part with the same cache, which must outlive this one.
  struct memory_from {
    memory_from(stage_memory of) : whose(of) {}
    memory_from(cached_stage* of) : whose(of != nullptr ? stage_memory::lent : stage_memory::own), lender(of) {}
    stage_memory whose;
    cached_stage* lender = nullptr;
  };
  /// `max_rows`: of a step. Errors: `config_error` for a lender with other layers or another cache.
  cached_stage(const config_type& config, World& world, Backend& backend, model::stage_layers part, cache_extent cache,
               std::int64_t max_rows, memory_from from = stage_memory::own)
      : config_(checked(config, part, cache, max_rows)),
        world_(&world),
        backend_(&backend),
        part_(part),
        cache_(cache),
        max_rows_(max_rows),
        description_(Model::describe(config)),
        stream_(world, config.width),
        at_(description_, placer_of(world), max_rows, (std::min)(max_rows, head_rows), config.width, {}),
        cache_at_(place_cache(at_, world, part, rows_of_cache())),
        states_at_(place_states(at_, world, part, cache.states)),
        held_(queue(), at_, description_, model::make_stage_mesh<mesh_type>(world.mesh()),
              model::rank_in_stage_mesh<mesh_type>(world.mesh(), world.rank()), without_gradients(part, from), nullptr),
        tokens_(queue(), from.whose == stage_memory::lent ? 0 : cache_at_.back(),
                "the cache of keys and values of " + std::to_string(cache.blocks) + " blocks of " +
                    std::to_string(cache.block_rows) + " tokens"),
        states_(queue(), from.lender != nullptr ? 0 : states_at_.back(),
                "the states of " + std::to_string(cache.states) + " sequences"),
        work_(queue(), place_work(work_at_, at_, description_, part, max_rows, config.width),
              "the working memory of a stage for inference") {
    cached_stage& owner = from.lender != nullptr ? *from.lender : *this;
    if (owner.part_ != part || owner.cache_ != cache)
      throw config_error(
          "heddle: a stage that uses the memory of another should have its layers and the extents of its cache");
    cached_ = from.lender != nullptr ? owner.cached_ : tokens_.address();
    state_memory_ = from.lender != nullptr ? owner.state_memory_ : states_.address();
    if (from.lender != nullptr) {
      held_.frozen().lend_weights(owner.held_.frozen().weights());
      held_.lend_weights(backend, owner.held_.store().weights());
    }
    model::detail::reserve_blocks<layouts>(at_, part_.first, part_.count, routing_, queue(), world.mesh(), max_rows);
    model::detail::prepare_blocks(at_, part_.first, part_.count, [&](int layer) {
      run_type c = run_of(0);
      at_block(c, layer - part_.first);
      return c;
    });
    inputs_.reserve(queue(), max_rows, slices_of_row * max_rows, most_words(config, cache, max_rows));
  }
  cached_stage(const cached_stage&) = delete;
  cached_stage& operator=(const cached_stage&) = delete;

  // ---- what it is -----------------------------------------------------------------------------------------------
  const config_type& config() const noexcept { return config_; }
  model::stage_layers layers() const noexcept { return part_; }
  bool is_first() const noexcept { return part_.has_embedding(); }
  bool is_last() const noexcept { return part_.has_head(); }
  typename space::queue& queue() const noexcept { return compute::queue_of(*backend_); }
  const cache_extent& cache() const noexcept { return cache_; }
  std::int64_t max_rows() const noexcept { return max_rows_; }
  /// Tokens that rows of its windowed layers see; 0: it has none.
  std::int64_t window() const { return model::layers::window_of_blocks<block_layer>(description_); }
  /// Bytes of the cache on this rank.
  std::int64_t cache_bytes() const noexcept { return cache_at_.back() * static_cast<std::int64_t>(sizeof(T)); }
  /// Bytes of the states on this rank.
  std::int64_t state_bytes() const noexcept {
    return static_cast<std::int64_t>(states_.size() * sizeof(typename types::sum));
  }
  /// The same by formula, of one sequence.
  static std::int64_t state_bytes_of_sequence(const config_type& config, const whole_mesh& mesh, int rank,
                                              model::stage_layers part) {
    std::int64_t elements = 0;
    if constexpr (keeps::has_states) {
      const typename places::placer place(model::make_stage_mesh<mesh_type>(mesh),
                                          model::rank_in_stage_mesh<mesh_type>(mesh, rank));
      const description all = Model::describe(config);
      for (int l = part.first; l < part.first + part.count; ++l)
        all.with_block(l, [&]<class Layer>(const Layer& layer) {
          model::layers::placed<Layer> block(layer);
          place.place_states(block, elements);
        });
    }
    return elements * static_cast<std::int64_t>(sizeof(typename types::sum));
  }
  /// The same by formula, of one block of `block_rows` tokens on a rank of the mesh.
  static std::int64_t cache_bytes_of_block(const config_type& config, const whole_mesh& mesh, int rank,
                                           model::stage_layers part, std::int64_t block_rows) {
    const typename places::placer place(model::make_stage_mesh<mesh_type>(mesh),
                                        model::rank_in_stage_mesh<mesh_type>(mesh, rank));
    const description all = Model::describe(config);
    std::int64_t columns = 0;
    for (int l = part.first; l < part.first + part.count; ++l)
      all.with_block(l, [&]<class Layer>(const Layer& layer) {
        model::layers::placed<Layer> block(layer);
        place.place_cached(block, columns);
      });
    return columns * block_rows * static_cast<std::int64_t>(sizeof(T));
  }
  /// Bytes of the activations of a step; `plan` has what routes and inputs of a step take, too.
  std::int64_t workspace_bytes() const noexcept { return static_cast<std::int64_t>(work_.size() * sizeof(T)); }
  /// The most bytes that attention takes of the backend in a step and gives back, beside those: what parts of the keys leave for their combination. They must be free beside the cache. 0 for backends without.
  std::int64_t attention_bytes() {
    std::int64_t most = 0;
    for (int l = 0; l < part_.count; ++l) {
      run_type c = run_of(0);
      at_block(c, l);
      model::detail::call_block(at_, part_.first + l, c, [&](const auto& block) {
        most = (std::max)(most, most_cached_bytes(block, max_rows_, config_.context));
      });
    }
    return most;
  }

  /// The bytes of a stage on this rank before it is made, with the backend's for attention; nothing of what a runner has besides. Errors: as the constructor's.
  static memory_plan plan(const config_type& config, World& world, Backend& backend, model::stage_layers part,
                          cache_extent cache, std::int64_t max_rows) {
    checked(config, part, cache, max_rows);
    const auto bytes = [](std::int64_t elements) { return elements * static_cast<std::int64_t>(sizeof(T)); };
    const auto mesh = model::make_stage_mesh<mesh_type>(world.mesh());
    const int rank = model::rank_in_stage_mesh<mesh_type>(world.mesh(), world.rank());
    const description all = Model::describe(config);
    places at(all, {mesh, rank}, max_rows, (std::min)(max_rows, head_rows), config.width, {});
    const model::language_parameters<T, layouts, description, space> held(at, all, mesh, rank, without_gradients(part),
                                                                          false);
    memory_plan plan;
    plan.parameters = bytes(held.store().size() + held.frozen().size());
    plan.frozen = bytes(held.frozen().size());
    plan.cache = cache.blocks * cache_bytes_of_block(config, world.mesh(), world.rank(), part, cache.block_rows);
    plan.states = cache.states * state_bytes_of_sequence(config, world.mesh(), world.rank(), part);
    work_offsets unused;
    plan.workspace = bytes(place_work(unused, at, all, part, max_rows, config.width));
    if constexpr (model::layers::uses_routing<block_layer>) {
      model::layers::routing_extents most;
      at.each_kind(part.first, part.count, [&](const auto& block, int) {
        most.cover(model::layers::most_routing<layouts>(block.layer, world.mesh(), max_rows));
      });
      plan.workspace += most.template bytes_in<space>();
    }
    plan.inputs =
        step_inputs<space>::bytes_for(max_rows, slices_of_row * max_rows, most_words(config, cache, max_rows));
    run_type run{backend, world};
    for (int l = part.first; l < part.first + part.count; ++l)
      model::detail::call_block(at, l, run, [&](const auto& block) {
        plan.attention = (std::max)(plan.attention, most_cached_bytes(block, max_rows, config.context));
      });
    return plan;
  }

  // ---- parameters -----------------------------------------------------------------------------------------------
  const std::vector<model::parameter>& parameters() const noexcept { return held_.store().table(); }
  row weights() noexcept { return held_.store().weights(); }
  const_row weights() const noexcept { return held_.store().weights(); }
  /// The flat buffer may be the caller's, and may be away (`model::of_stage::can_lend_weights`): no step runs then.
  std::int64_t flat_elements() const noexcept { return held_.store().size(); }
  void lend_weights(row weights) { held_.lend_weights(*backend_, weights); }
  /// The same for the cache, of `cache_bytes()`. Errors: `layout_error` for another number of elements.
  void lend_cache(row cache) {
    if (static_cast<std::int64_t>(element_count(cache)) != cache_at_.back())
      throw layout_error("heddle: a stage with a cache of " + std::to_string(cache_at_.back()) +
                         " elements is lent memory for " + std::to_string(element_count(cache)));
    tokens_ = {};
    cached_ = start_of(cache);
  }
  /// Each parameter of this stage from now on is looked for where it lies in the weights of a stage that has the same layers whole, so that both may be lent the same memory.
  /// Errors: `config_error` naming a parameter of which this rank's part is not one run there.
  void lie_in(const cached_stage& whole) { held_.lie_in(at_, part_, whole.held_); }
  /// The model's initial weights, the same on every mesh.
  void initialize(std::uint64_t seed) { held_.initialize(queue(), seed); }
  /// Those that the description freezes, in a buffer of their own, as those of a `model::language_stage`.
  const std::vector<model::parameter>& frozen_parameters() const noexcept { return held_.frozen().table(); }
  row frozen_weights() noexcept { return held_.frozen().weights(); }
  /// After weights were written between two steps: what the backend made of them (`packed_weights`) is made again.
  void weights_written() noexcept {
    if constexpr (requires { backend_->weights_written(const_row()); }) {
      backend_->weights_written(std::as_const(*this).weights());
      backend_->weights_written(std::as_const(held_).frozen().weights());
    }
  }

  // ---- rows -----------------------------------------------------------------------------------------------------
  /// Elements of the residual stream that this rank has of so many rows.
  std::int64_t stream_elements(std::int64_t rows) const noexcept { return stream_.elements(rows); }
  /// From the next step on its rows are computed in an order of their tokens, `rows_by_experts` for one, all ranks with the same: the even parts
  /// of that order are what ranks have between layers. Logits stay where they were asked for. Rows of trees stay in the step's order.
  /// Errors: `config_error` for an order on other ranks than share rows, or of another vocabulary or number of experts.
  template <class Order>
  void order_rows(Order order) {
    static_assert(
        detail::rows_have_an_order < splits_rows && !keeps::has_states && !keeps::windows, how >,
        "heddle: order_rows: rows have an order of their own where split<dim::sequence, ...> cuts them into parts, "
        "and layers keep no states and no windows");
    const int ranks = parts_of_rows(typename layouts::template sequence_axes<model::dims<dim::width>>{});
    const auto require = [](std::int64_t expected, std::int64_t got, const char* what) {
      if (expected != got)
        throw config_error("heddle: order_rows: the model has " + std::to_string(expected) + what + ", the order " +
                           std::to_string(got));
    };
    require(ranks, order.ranks(), " ranks that share rows");
    require(config_.vocabulary, order.vocabulary(), " tokens");
    if constexpr (requires { config_.experts; }) require(config_.experts, order.experts(), " experts");
    order_ = std::move(order);
  }
  /// The order of a step's rows; empty: its own. Errors: `config_error` for one that does not name each row once.
  std::vector<std::int32_t> order_of(const step& s) const {
    if (!order_ || !s.parents.empty()) return {};
    std::vector<std::int32_t> order = order_(s.tokens);
    detail::require_each_row(order, s.rows());
    return order;
  }

  // ---- verbs ----------------------------------------------------------------------------------------------------
  /// Copies whole blocks of the cache.
  void copy_blocks(std::span<const block_copy> copies) {
    for (const block_copy& c : copies) copy_cached(c.from, c.to, cache_.block_rows);
  }
  /// Copies states that layers keep, one after the other.
  void copy_states([[maybe_unused]] std::span<const block_copy> copies) {
    if constexpr (keeps::has_states)
      for (const block_copy& c : copies)
        visit_states([&](int, int, const auto& states) {
          const std::int64_t n = states.extent(1);
          typename types::sum* const begin = start_of(states);
          if (c.from != c.to && n > 0)
            queue().copy(row_at<space>(static_cast<const typename types::sum*>(begin + c.from * n), n),
                         row_at<space>(begin + c.to * n, n));
        });
  }
  /// Moves rows of the cache, one after the other. Errors: `config_error` where the cache lies by head.
  void move_rows(std::span<const row_move> moves) {
    if (!moves.empty() && cache_.order == cache_order::by_head)
      throw config_error("heddle: rows of a cache that lies by_head are not moved; take cache_order::by_token");
    for (const row_move& m : moves) copy_cached(m.from, m.to, 1);
  }
  /// On the last stage, after `forward`: the residual stream of the wanted rows of the step as the last block left it.
  /// Shapes: to [wanted rows, width].
  void streams(row to) {
    const auto elements = static_cast<std::int64_t>(element_count(to));
    if (elements > 0) pick(0, elements / config_.width, start_of(to));
  }
  /// Calls f(layer of the model, tensor of its layer counted from 0, view) for each tensor of the cache on this rank, in order: to read it, or to fill it with what another mesh computed.
  /// Shapes: the view is [blocks * block_rows, columns of this rank], which are as the layer's dimensions are split (`heddle::transfer` brings it elsewhere).
  template <class F>
  void visit_cache(F&& f) {
    const std::int64_t rows = rows_of_cache();
    for (int l = 0; l < part_.count; ++l) {
      int at = 0;
      each_cached_of(l, [&](const auto& tensor) {
        f(part_.first + l, at++,
          matrix_view<T, space>(block_of_cache(l) + tensor.first * rows, dynamic_shape<2>(rows, tensor.columns)));
      });
    }
  }
  /// The same of what layers keep of sequences whatever their length. Shapes: the view is [states, columns of this rank], of `sum_of_type` of the model's.
  template <class F>
  void visit_states(F&& f) {
    if constexpr (keeps::has_states)
      for (int l = 0; l < part_.count; ++l) {
        int at = 0;
        auto* const begin = state_memory_ + states_at_[static_cast<std::size_t>(l)];
        at_.with_block(part_.first + l, [&](const auto& block) {
          each_state(block, [&](const auto& tensor) {
            f(part_.first + l, at++,
              matrix_view<typename types::sum, space>(begin + tensor.first * cache_.states,
                                                      dynamic_shape<2>(cache_.states, tensor.columns)));
          });
        });
      }
  }
  /// Of each tensor of `visit_cache`, or `OfStates` of `visit_states`, in the same order, f(layer, tensor, extents of a row's columns on all ranks together, those of
  /// this rank, where these begin).
  template <bool OfStates = false, class F>
  void visit_cached_columns(F&& f) const {
    const auto mesh = model::make_stage_mesh<mesh_type>(world_->mesh());
    const int rank = model::rank_in_stage_mesh<mesh_type>(world_->mesh(), world_->rank());
    for (int l = 0; l < part_.count; ++l) {
      int at = 0;
      description_.with_block(part_.first + l, [&](const auto& block) {
        each_described<OfStates>(block, [&]<class Described>(const Described& tensor) {
          const typename layouts::template parameter<typename Described::own> placement{mesh};
          const auto whole = make_shape(tensor.extents);
          const auto local = placement.local_shape(whole, rank);
          const auto first = placement.local_offset(whole, rank);
          std::vector<std::int64_t> extents, begins;
          for (std::size_t d = 0; d < tensor.extents.size(); ++d) {
            extents.push_back(local.extent(d));
            begins.push_back(first[d]);
          }
          f(part_.first + l, at++, std::vector<std::int64_t>(tensor.extents.begin(), tensor.extents.end()), extents,
            begins);
        });
      });
    }
  }
  /// Runs the rows of a step through the stage. The first stage takes the tokens, others what the stage before gave. On a device all that the queue was
  /// given before the last `forward` must be done; where kernels run on the host `rows` and `tokens` must live until the step is.
  /// Shapes: in, out [rows, width], where the sharding splits the sequence of this rank's rows; the first stage ignores `in`, the last `out`.
  void forward(const step_rows& rows, std::span<const std::int32_t> tokens, const_row in, row out) {
    const auto n = static_cast<std::int64_t>(rows.positions().size()), own = stream_.of(n).count;
    run_type c = run_of(n);
    inputs_.set(queue(), rows, tokens);
    c.positions = inputs_.positions();
    c.sequences = inputs_.slices();
    c.cache.places = inputs_.places();
    c.cache.pages = inputs_.pages();
    if constexpr (keeps::has_states) c.cache.state_rows = inputs_.states();
    if constexpr (keeps::windows) {
      c.windowed = inputs_.windowed();
      c.cache.windowed = inputs_.windowed_pages();
    }
    T* x = work(work_at_.x);
    T* y = work(work_at_.y);
    if (is_first()) {
      c.first_word = held_.first_input_word();
      model::detail::require_stream<layouts, in_layer>(
          call_type<in_layer>(at_.in, c).forward(inputs_.tokens(), matrix(x, own)));
    } else {
      compute::run<compute::ops::copy>(*backend_, in, elements_of(matrix(x, own)));
    }
    for (int l = 0; l < part_.count; ++l) {
      at_block(c, l);
      model::detail::call_block(at_, part_.first + l, c,
                                [&](const auto& block) { return block.forward(const_matrix(x, own), matrix(y, own)); });
      std::swap(x, y);
    }
    last_ = x;
    rows_ = n;
    if constexpr (splits_rows)
      if (is_last()) last_ = stream_.gather(queue(), static_cast<const T*>(x), {1, n}, work(work_at_.whole));
    if (!is_last()) compute::run<compute::ops::copy>(*backend_, elements_of(const_matrix(x, own)), out);
  }
  /// How many rows `logits` takes at once.
  static constexpr std::int64_t head_rows = 32;
  /// On the last stage, after `forward`: the logits of n wanted rows of the step from `first` on, at most `head_rows`, on the first rank along the
  /// axis that splits the vocabulary. Shapes: to [n, vocabulary]; other ranks give an empty one.
  void logits(std::int64_t first, std::int64_t n, row to) {
    T* const picked = work(work_at_.picked);
    pick(first, n, picked);
    run_type c = run_of(n);
    held_.place(c);
    c.shared = work(work_at_.head);
    c.first_word = held_.first_word();
    const call_type<out_layer> head(at_.brief_out, c);
    const std::int64_t words = description_.out.outputs();
    const std::int64_t rows = to.size() == 0 ? 0 : n;
    head.layer().predict_rows(head, stream_.part(static_cast<const T*>(picked), 0, {1, n}),
                              matrix_view<T, space>(start_of(to), dynamic_shape<2>(rows, words)),
                              row_at<space>(work(work_at_.room), n * words));
  }

 private:
  using cache_type = model::layers::token_cache<T, space>;
  using run_type = model::layers::layer_run<T, layouts, Backend, World, cache_type>;
  template <class Layer>
  using call_type = model::layers::call<Layer, run_type>;

  template <class... Tags>
  int parts_of_rows(type_list<Tags...>) const {
    return (1 * ... * world_->mesh().template extent_or_one<Tags>());
  }
  static const config_type& checked(const config_type& config, model::stage_layers part, cache_extent cache,
                                    std::int64_t max_rows) {
    model::checked_stage(config, part, 1, 1, 0);
    detail::require_extent(cache, max_rows, keeps::has_states);
    if constexpr (!requires { requires Backend::takes_blocks_by_head; })
      if (cache.order == cache_order::by_head)
        throw config_error(
            "heddle: this backend's attention reads blocks of a cache token by token; expected cache_order::by_token, "
            "got by_head");
    return config;
  }
  static model::stage_layers without_gradients(model::stage_layers part,
                                               memory_from from = stage_memory::own) noexcept {
    part.lent_gradients = true;
    part.lent_weights = from.whose == stage_memory::lent;
    part.lent_frozen = from.lender != nullptr;
    return part;
  }
  typename places::placer placer_of(World& world) const {
    return {model::make_stage_mesh<mesh_type>(world.mesh()),
            model::rank_in_stage_mesh<mesh_type>(world.mesh(), world.rank())};
  }
  // Where the cache of each block of the stage begins, and where that of the last ends.
  std::vector<std::int64_t> place_cache(places& at, World& world, model::stage_layers part, std::int64_t rows) const {
    std::vector<std::int64_t> begins{0};
    for (int l = 0; l < part.count; ++l) {
      std::int64_t columns = 0;
      at.with_block(part.first + l, [&](auto& block) { placer_of(world).place_cached(block, columns); });
      begins.push_back(begins.back() + columns * rows);
    }
    return begins;
  }
  std::vector<std::int64_t> place_states(places& at, World& world, model::stage_layers part,
                                         std::int64_t states) const {
    std::vector<std::int64_t> begins{0};
    for (int l = 0; l < part.count; ++l) {
      std::int64_t elements = 0;
      if constexpr (keeps::has_states)
        at.with_block(part.first + l, [&](auto& block) { placer_of(world).place_states(block, elements); });
      begins.push_back(begins.back() + elements * states);
    }
    return begins;
  }
  template <class F>
  void each_cached_of(int layer, const F& f) const {
    at_.with_block(part_.first + layer, [&](const auto& block) { each_cached(block, f); });
  }
  template <class Call>
  static std::int64_t most_cached_bytes(const Call& b, std::int64_t rows, std::int64_t keys) {
    std::int64_t most = 0;
    if constexpr (requires { b.layer().cached_bytes(b, rows, keys); }) most = b.layer().cached_bytes(b, rows, keys);
    b.children().each([&](auto, const auto& child) { most = (std::max)(most, most_cached_bytes(child, rows, keys)); });
    return most;
  }
  template <class Layer, class F>
  static void each_cached(const model::layers::placed<Layer>& at, const F& f) {
    for (const auto& tensor : at.cached) f(tensor);
    at.children.each([&](auto, const auto& child) { each_cached(child, f); });
  }
  template <class Layer, class F>
  static void each_state(const model::layers::placed<Layer>& at, const F& f) {
    for (const auto& tensor : at.states) f(tensor);
    at.children.each([&](auto, const auto& child) { each_state(child, f); });
  }
  template <bool OfStates, class Layer, class F>
  static void each_described(const Layer& layer, const F& f) {
    const auto take = [&](auto, const auto& tensor) { f(tensor); };
    if constexpr (OfStates)
      model::layers::detail::state_list(layer).each(take);
    else
      model::layers::detail::cached_list(layer).each(take);
    layer.children().each([&](auto, const auto& child) { each_described<OfStates>(child, f); });
  }
  std::int64_t rows_of_cache() const noexcept { return cache_.blocks * cache_.block_rows; }
  T* block_of_cache(int layer) noexcept { return cached_ + cache_at_[static_cast<std::size_t>(layer)]; }
  // Copies `count` rows of all layers; places are counted in such runs of rows.
  void copy_cached(std::int64_t from, std::int64_t to, std::int64_t count) {
    if (from == to) return;
    for (int l = 0; l < part_.count; ++l)
      each_cached_of(l, [&](const auto& tensor) {
        T* const begin = block_of_cache(l) + tensor.first * rows_of_cache();
        const std::int64_t n = tensor.columns * count;
        if (n > 0)
          compute::run<compute::ops::copy>(*backend_, row_at<space>(static_cast<const T*>(begin + from * n), n),
                                           row_at<space>(begin + to * n, n));
      });
  }

  struct work_offsets {
    std::int64_t scratch = 0, shared = 0, constants = 0, x = 0, y = 0, whole = 0, head = 0, picked = 0, room = 0;
  };
  static std::int64_t place_work(work_offsets& to, const places& at, const description& of, model::stage_layers part,
                                 std::int64_t max_rows, std::int64_t width) {
    std::int64_t used = 0;
    const auto take = [&](std::int64_t elements) { return places::placer::take(used, elements); };
    const bool head = part.has_head();
    const model::layers::arena_sizes blocks = at.shared_by(part.first, part.count);
    const std::int64_t few = (std::min)(max_rows, head_rows);
    to.scratch = take(at.scratch(part.has_embedding(), part.first, part.count, head));
    to.shared = take(blocks.shared);
    to.constants = take(blocks.constants);
    to.x = take(max_rows * width);
    to.y = take(max_rows * width);
    to.whole = take(head && splits_rows ? max_rows * width : 0);
    to.head = take(head ? at.of_brief_end.shared : 0);
    to.picked = take(head ? few * width : 0);
    to.room = take(head ? few * of.out.outputs() : 0);
    return used;
  }
  // Wanted rows of the step's residual stream: on a device a look-up in the table that they are.
  void pick(std::int64_t first, std::int64_t n, T* to) {
    if constexpr (heddle::v0::detail::kernels_run_on_host<space>()) {
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t row = first_element(inputs_.wanted())[first + i];
        compute::run<compute::ops::copy>(*backend_, elements_of(const_matrix(last_ + row * config_.width, 1)),
                                         elements_of(matrix(to + i * config_.width, 1)));
      }
    } else {
      compute::run<compute::ops::embedding>(*backend_, part_of_row<space>(inputs_.wanted(), first, n),
                                            const_matrix(last_, rows_), 0, matrix(to, n));
    }
  }
  // Slices for each row of a step for which there is room at once: one, or those of ancestors in a tree, of which there may be more.
  static constexpr std::int64_t slices_of_row = 8;
  // Pages that steps list, each sequence all of its own, for which there is room at once: of as many sequences as rows, up to 16 MiB.
  static std::int64_t most_pages(const config_type& config, const cache_extent& cache, std::int64_t max_rows) noexcept {
    const std::int64_t tokens = (std::min)(static_cast<std::int64_t>(config.context), cache.blocks * cache.block_rows);
    const std::int64_t of_sequence = (tokens + cache.block_rows - 1) / cache.block_rows;
    constexpr std::int64_t most = (std::int64_t{16} << 20) / static_cast<std::int64_t>(sizeof(std::int32_t));
    return max_rows > most / of_sequence ? most : max_rows * of_sequence;
  }
  // The same with the rows of states.
  static std::int64_t most_words(const config_type& config, const cache_extent& cache, std::int64_t max_rows) noexcept {
    constexpr auto words = static_cast<std::int64_t>(sizeof(compute::state_rows) / sizeof(std::int32_t));
    return most_pages(config, cache, max_rows) + (keeps::has_states ? words * max_rows : 0);
  }
  T* work(std::int64_t at) noexcept { return work_.address() + at; }
  template <class Row>
  static auto* start_of(const Row& x) noexcept {
    return first_element(x);
  }
  matrix_view<T, space> matrix(T* at, std::int64_t rows) const noexcept {
    return {at, dynamic_shape<2>(rows, config_.width)};
  }
  matrix_view<const T, space> const_matrix(const T* at, std::int64_t rows) const noexcept {
    return {at, dynamic_shape<2>(rows, config_.width)};
  }

  run_type run_of(std::int64_t rows) {
    run_type c{*backend_, *world_};
    c.extent = {1, rows};
    c.constants = work(work_at_.constants);
    c.scratch = work(work_at_.scratch);
    c.drops = model::layers::dropping::transient;
    c.cache.rows = rows_of_cache();
    c.cache.by_head = cache_.order == cache_order::by_head ? cache_.block_rows : 0;
    held_.place(c);
    if constexpr (out_layer::tied) c.tied = held_.tied_weight();
    if constexpr (model::layers::uses_routing<block_layer>) c.routing = &routing_;
    return c;
  }
  void at_block(run_type& c, int layer) {
    held_.place_block(c, layer);
    c.shared = work(work_at_.shared);
    c.constants = work(work_at_.constants) + at_.constants_of(part_.first + layer, part_.first, part_.count);
    c.cache.of_block = block_of_cache(layer);
    if constexpr (keeps::has_states) {
      c.cache.states = cache_.states;
      c.cache.states_of_block = state_memory_ + states_at_[static_cast<std::size_t>(layer)];
    }
  }

  config_type config_;
  World* world_;
  Backend* backend_;
  model::stage_layers part_;
  cache_extent cache_;
  std::int64_t max_rows_;
  description description_;
  model::stream_rows<layouts, World, space> stream_;
  std::function<std::vector<std::int32_t>(std::span<const std::int32_t>)> order_{};
  places at_;
  std::vector<std::int64_t> cache_at_;   ///< where each block's begins in the cache, and the end
  std::vector<std::int64_t> states_at_;  ///< the same of states
  model::language_parameters<T, layouts, description, space> held_;
  buffer<T, space> tokens_;  ///< empty where the cache is lent
  T* cached_ = nullptr;      ///< its own, another stage's, or the caller's
  buffer<typename types::sum, space> states_;
  typename types::sum* state_memory_ = nullptr;
  work_offsets work_at_{};
  buffer<T, space> work_;
  [[no_unique_address]] model::layers::routing_memory_of<block_layer, space> routing_{};
  step_inputs<space> inputs_{};
  const T* last_ = nullptr;  ///< what left the last block in the last step
  std::int64_t rows_ = 0;    ///< of that step
};

}  // namespace heddle::inline v0::infer
