// heddle/model/language_stage.hpp: a rank's part of a language model, with a pipeline's verbs.
#pragma once

#include <heddle/compute/rounded_weights.hpp>
#include <heddle/core/error.hpp>
#include <heddle/layout/gradient.hpp>
#include <heddle/model/batch_checks.hpp>
#include <heddle/model/language_checks.hpp>
#include <heddle/model/language_parameters.hpp>
#include <heddle/model/language_places.hpp>
#include <heddle/model/language_stage_sizes.hpp>
#include <heddle/model/layers/cached_traits.hpp>
#include <heddle/model/layers/call.hpp>
#include <heddle/model/microbatch_memory.hpp>
#include <heddle/model/microbatch_slots.hpp>
#include <heddle/model/pair_batch.hpp>
#include <heddle/model/recompute_plan.hpp>
#include <heddle/model/rows_of_batch.hpp>
#include <heddle/model/saved_activations.hpp>
#include <heddle/model/stage_layers.hpp>
#include <heddle/model/stage_memory.hpp>
#include <heddle/model/stage_types.hpp>
#include <heddle/model/stream_rows.hpp>
#include <heddle/model/token_positions.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// One pipeline stage of a described language model on one rank: its blocks, on stage 0 the embedding, on the last stage the
/// final norm and the head. `Model` names the elements (`scalar`), the configuration (`config`), the description
/// (`describe(config)`, a `layers::language_model`), the sharding (`how`) and what it is fed (`batch`); layouts, memory, names and
/// communications follow from these. What a rank holds lies in flat buffers of weights and of gradients, by `parameter_buckets`.
///
/// Saved activations live in a ring of `slots`, allocated at construction for at most `max_samples` samples of a whole
/// context. A microbatch goes through its slot as forward, then either `backward`, or `backward_input` and later
/// `backward_weight`; `deferred` is how many microbatches may wait for `backward_weight` at once (zero-bubble schedules). No
/// verb allocates memory for tensors.
///
/// A tied head stage that is given a `lender`, the embedding stage of the same rank, uses its token embedding instead of a
/// copy; the lender must outlive it, and its `tied_gradient` is the caller's to add to the lender's.
///
/// Gradients are added up; nothing is reduced over the axes that split samples. Everything lies in the memory of the backend, and
/// the verbs go in the order of its queue. Where the host may not touch that memory, verbs return when they are queued: then a
/// batch must stay as it is until somebody waits for the queue, as `loss_sum`, `forward_only` on the last stage and `initialize` do.
///
/// Shapes: `in`, `out`, `dout`, `din` are row-major [samples, sequence, width], or this rank's part of these rows where the
/// sharding splits the sequence (`boundary_elements`); the first stage ignores `in` and `din`, the last ignores `out` and `dout`.
/// Errors: `config_error` for what does not fit, `schedule_error` for verbs out of order. `World`, `Backend` must outlive it.
template <class Model, class World, class Backend, class Activations = activations::keep, class Pipeline = pp>
class language_stage : public detail::stage_types<Model, World, Backend, Pipeline> {
  using types = detail::stage_types<Model, World, Backend, Pipeline>;

 public:
  using typename types::block_layer, typename types::in_layer, typename types::out_layer;
  using typename types::config_type, typename types::description, typename types::how, typename types::mesh_type;
  using typename types::const_row, typename types::row, typename types::space, typename types::T;
  using typename types::const_sum_row, typename types::sum, typename types::sum_row;
  using typename types::layouts, typename types::places, typename types::trained;
  using batch_type = typename Model::batch;
  using rows_type = rows_of_batch<batch_type, layouts, Backend, World>;
  /// The flat buffers by the axes over which gradients are summed: `bucket_elements()` says how long each bucket is. The layout of
  /// gradients is the dual of these.
  using buckets = typename language_parameters<T, layouts, description, space>::buckets::layouts;
  /// The first bucket's: copies along the axes that split samples, along the others parts of different tensors on each rank.
  using flat_weights =
      typename detail::flat_layout<mesh_type, detail::summed_axes_of<layouts>, typename mesh_type::tags>::type;
  /// The axes that split its work, and the layout of a step's samples.
  using axes = typename detail::sharding_rules<how>::axes;
  using samples = typename detail::samples_layout_of<mesh_type, how>::type;
  using loss = propagate<"b->", typename layouts::template edge<dims<>, dims<dim::vocabulary>>>;
  /// Where the blocks' saved activations are; what the head saves stays in the slots.
  using layers_memory = typename detail::layers_of_policy<Activations, T, space>::type;
  static_assert(
      detail::keeps_activations_in<detail::layers_of_policy<Activations, T, space>::there, Activations, space>,
      "heddle: this policy keeps activations in the host's memory only; for a backend with another memory take "
      "activations::keep, recompute or offload, or give the policy layers_in<T, Space>");
  static_assert(model::layer_memory<layers_memory, T, space>);
  static_assert(detail::batch_is_possible<T, in_layer, out_layer, batch_type>::value &&
                detail::language_stage_is_possible<layouts, in_layer, block_layer, out_layer, trained>::value &&
                detail::tail_checked<Activations, layouts>() && detail::reach_checked<Model, layouts>());
  static_assert(detail::stage_can_run<layouts::context_axes::size == 0 || !rows_type::of_samples, batch_type>,
                "heddle: a context split divides documents of tokens: the model's batch must be model::batch<scalar>");
  static constexpr bool only_queues =
      !layers_memory::moves && !model::layers::routes_on_host<block_layer, layouts, space> &&
      !requires { typename out_layer::own_loss; };  // called on the host
  /// Whether some may be computed again instead: whether the policy's settings have a `recompute_plan again`.
  static constexpr bool recomputes = requires(const typename layers_memory::settings& s) { s.again; };
  /// The axis along which ranks have other rows of the same documents; none where batches are of samples.
  using context_axes = typename layouts::context_axes;
  /// Whether rows travel to ranks with other samples, so that all ranks run forwards equally often.
  static constexpr bool exchanges_rows = model::layers::uses_routing<block_layer> &&
                                         layouts::template exchange_axes<dim::experts, dim::ffn>::size > 0;
  static constexpr bool tied = out_layer::tied;
  language_stage(const config_type& config, World& world, Backend& backend, stage_layers part, int slots,
                 std::int64_t max_samples, int deferred = 1, const language_stage* lender = nullptr,
                 const typename layers_memory::settings& saving = {})
      : config_(checked_stage(detail::checked_rows<out_layer, batch_type>(config), part, slots, max_samples, deferred)),
        world_(&world),
        backend_(&backend),
        part_(part),
        max_samples_(max_samples),
        again_(detail::checked_plan<layouts>(recompute_plan_of(saving))),
        description_(Model::describe(config)),
        at_(description_,
            {make_stage_mesh<mesh_type>(world.mesh()), rank_in_stage_mesh<mesh_type>(world.mesh(), world.rank())},
            max_rows(), config.context, config.width, again_),
        held_(queue(), at_, description_, make_stage_mesh<mesh_type>(world.mesh()),
              rank_in_stage_mesh<mesh_type>(world.mesh(), world.rank()), part,
              lender == nullptr ? nullptr : &lender->held_),
        saved_layers_(make_layers_memory(saving, slots)),
        stream_(world, config.width),
        memory_(queue(), at_, part_, again_, slots, deferred),
        given_(queue(), extents_of_sample<batch_type, out_layer>(config_), max_samples, slots + 1, is_first(), is_last()),
        rows_(world, backend, slots + 1),
        slots_(slots, deferred) {
    detail::reserve_blocks<layouts>(at_, part_.first, part_.count, routing_, queue(), world_->mesh(), max_rows());
    detail::prepare_blocks(at_, part_.first, part_.count, [&](int layer) {
      run_type c = run_of({0, 0});
      at_block(c, layer - part_.first, nullptr, nullptr);
      return c;
    });
  }
  language_stage(const language_stage&) = delete;
  language_stage& operator=(const language_stage&) = delete;

  // ---- what it is -----------------------------------------------------------------------------------------------
  const config_type& config() const noexcept { return config_; }
  stage_layers layers() const noexcept { return part_; }
  bool is_first() const noexcept { return part_.has_embedding(); }
  bool is_last() const noexcept { return part_.has_head(); }  // and in whose order it works:
  typename space::queue& queue() const noexcept { return compute::queue_of(*backend_); }
  int slots() const noexcept { return slots_.size(); }
  std::int64_t max_samples() const noexcept { return max_samples_; }
  /// Elements that travel between neighbouring stages for a batch of so many samples, from this rank. `sequence` 0: the context.
  std::int64_t boundary_elements(std::int64_t batch, int sequence = 0) const noexcept {
    return stream_.elements(batch * (sequence > 0 ? sequence : rows_type::of_sample(config_)));
  }
  /// Whether this stage and the other may work at the same time, on two threads: each has a backend of its own, and
  /// nothing is sent along the axes of the layers.
  bool runs_beside(const language_stage& other) const {
    return on_host && this != &other && backend_ != other.backend_ &&
           detail::layers_are_whole<layouts, block_layer>(*world_, typename mesh_type::tags{});
  }
  /// Bytes of saved activations that one slot of the ring holds.
  std::int64_t saved_bytes_per_slot() const noexcept {
    return bytes(memory_.slot_elements()) + saved_layers_.bytes_per_slot();
  }
  const recompute_plan& recomputed() const noexcept { return again_; }
  /// What its layers call by their tags, for `parse_recompute`.
  static own_activations named_by_tags(const config_type& c) { return own_activations_of(Model::describe(c)); }
  layers_memory& saved_layers() noexcept { return saved_layers_; }
  /// Bytes kept per microbatch between backward_input and backward_weight.
  std::int64_t deferred_bytes() const noexcept { return bytes(memory_.set_elements()); }
  std::int64_t workspace_bytes() const noexcept { return bytes(memory_.work_elements()) + routing_.bytes(); }

  // ---- parameters -----------------------------------------------------------------------------------------------
  const std::vector<parameter>& parameters() const noexcept { return held_.store().table(); }
  row weights() noexcept { return held_.store().weights(); }
  const_row weights() const noexcept { return held_.store().weights(); }
  sum_row gradients() noexcept { return held_.store().gradients(); }
  const_sum_row gradients() const noexcept { return held_.store().gradients(); }
  /// The flat buffers, and the tied gradient in them, may be lent and away (`of_stage`): so many elements have they.
  std::int64_t flat_elements() const noexcept { return held_.store().size(); }
  const auto& bucket_elements() const noexcept { return held_.bucket_elements(); }
  std::int64_t tied_elements() const noexcept { return held_.tied_elements(); }
  void lend_weights(row weights) { held_.lend_weights(*backend_, weights); }
  void weights_stay(bool stay) { held_.weights_stay(*backend_, stay); }
  void weights_written() noexcept { held_.weights_written(*backend_); }
  compute::kept_weight_memory kept_weights() const noexcept { return compute::kept_weights_of<T>(*backend_); }
  void release_kept_weights() noexcept { compute::release_kept_weights(*backend_); }
  void lend_gradients(sum_row gradients) { held_.lend_gradients(gradients); }
  void zero_gradients() {  ///< sets every gradient to zero
    compute::run<compute::ops::fill>(*backend_, gradients(), sum(0));
    if (borrows_embedding()) compute::run<compute::ops::fill>(*backend_, tied_gradient(), sum(0));
  }
  /// The gradient of the token embedding where the head is tied and an end is here, else empty; in `gradients()` unless borrowed.
  sum_row tied_gradient() noexcept { return held_.tied_gradient(); }
  sum_row table_gradient() noexcept { return held_.table_gradient(); }  ///< the embedding's share with `layers().tied_apart`
  /// Whether the head uses the token embedding of another stage of this rank.
  bool borrows_embedding() const noexcept { return held_.borrows(); }
  /// The model's initial weights, the same on every mesh: what the description says, from counted random numbers.
  void initialize(std::uint64_t seed) { held_.initialize(queue(), seed); }
  /// Those that the description freezes, with offsets in a buffer of their own: no gradient, no optimizer state, never lent.
  const std::vector<parameter>& frozen_parameters() const noexcept { return held_.frozen().table(); }
  row frozen_weights() noexcept { return held_.frozen().weights(); }
  /// Adds each block's adapters to the weights that they adapt (`layers::lora`): the stage computes the same.
  void merge_adapters() {
    detail::require_weights_here(*this, "merge_adapters");
    run_type c = run_of({0, 0});
    for (int l = 0; l < part_.count; ++l)
      at_block(c, l, nullptr, nullptr), on_block(c, l, [](const auto& b) { model::layers::merge_all(b); });
  }
  auto& routing() noexcept { return routing_; }  ///< what layers that route rows use, such as the load of experts
  void forward(int slot, const batch_type& b, const_row in, row out) {
    slot_state& s = slots_.for_forward(slot);
    const extent_of_batch e = checked(b, true);
    if (!is_first()) require_size(in, e, "forward's `in`");
    if (!is_last()) require_size(out, e, "forward's `out`");
    s.extent = e;
    s.loss_sum = 0;
    given_.take(queue(), slot, config_, b, e);
    rows_.take(slot, b);
    run_type c = run_of(slot, e);
    T* x = part_.count > 0 ? start_of(saved_layers_.begin(slot, 0))
           : is_last()     ? memory_.end_saved(slot)
                           : start_of(out);
    enter(c, slot, b, in, x);
    for (int l = 0; l < part_.count; ++l) {
      // What leaves a block enters the next, whose memory begins with it.
      T* const y = l + 1 < part_.count ? start_of(saved_layers_.begin(slot, l + 1))
                   : is_last()         ? memory_.end_saved(slot)
                                       : start_of(out);
      at_block(c, l, x + at_.stream, nullptr);
      on_block(c, l, [&](const auto& block) { return block.forward(const_matrix(x, e), matrix(y, e)); });
      wrote(slot, l);
      saved_layers_.saved(slot, l);
      x = y;
    }
    if (is_last()) {
      at_end(c, x + at_.stream, nullptr);
      add_loss_at(c, slot);
      [[maybe_unused]] const auto summed =
          call_type<out_layer>(at_.out, c).forward(const_matrix(x, e), given_.targets(slot, b));
      if constexpr (on_host) s.loss_sum = summed;
      last_end_ = slot;
    }
    s.at = microbatch_slots::phase::forward_done;
  }

  /// Computes again, ahead of time, what the backward of this slot needs first: behind the last block, and of it.
  void recompute(int slot) {
    [[maybe_unused]] const slot_state& s = slots_.forwarded(slot, "recompute");
    if constexpr (recomputes) {
      run_type c = run_of(slot, s.extent);
      if (is_last()) restore_end(c, slot, false), last_end_ = slot;
      if (part_.count > 0) restore_block(c, slot, part_.count - 1, nullptr), wrote(slot, part_.count - 1);
    }
  }

  /// The gradient of the inputs; keeps what backward_weight needs.
  void backward_input(int slot, const batch_type& b, const_row dout, row din) {
    const std::size_t set = slots_.free_set(slot);
    run_backward(slot, b, dout, din, memory_.set(set), false);
    slots_.defer(slot, set);
  }

  /// Adds the microbatch's weight gradients; its slot is free afterwards.
  void backward_weight(int slot, const batch_type& b) {
    const slot_state& s = slots_.waiting(slot);
    require_same_extent(slot, checked(b, true), slots_[slot].extent);
    T* const set = memory_.set(s.deferred);
    run_type c = run_of(slot, s.extent);
    c.waits = true;
    if (is_last()) end_weight(c, slot, memory_.end_deferred(set), memory_.end_waiting(set));
    for (int l = part_.count; l-- > 0;) {
      block_weight(c, l, start_of(saved_layers_.need(slot, l)), set);
      saved_layers_.done(slot, l);
    }
    embedding_weight(c, slot, b, memory_.end_deferred(set));
    slots_.release(slot);
  }

  /// backward_input and backward_weight, layer by layer, with less memory traffic.
  void backward(int slot, const batch_type& b, const_row dout, row din) {
    run_backward(slot, b, dout, din, nullptr, true);
    slots_.release(slot);
  }

  /// Forgets a microbatch whose backward will not run.
  void release(int slot) {
    slots_.release(slot);
    saved_layers_.forget(slot);
  }

  /// On the last stage: the loss of the microbatch last sent forward through this slot, summed over its targets (not
  /// scaled), the same on all ranks that share its rows. 0 on other stages. Waits for the queue where the loss is in its memory.
  double loss_sum(int slot) const {
    if constexpr (!on_host)
      if (is_last() && slot >= 0 && slot < slots()) return given_.read_loss(queue(), slot);
    return slots_[slot].loss_sum;
  }
  /// On the last stage, where the loss is not on the host: copies it to a number there, in the order of the queue.
  void copy_loss(int slot, scalar_view<double, space> to) { given_.copy_loss(queue(), slot, to); }

  /// Forward without saving. Returns the loss summed over the targets on the last stage; 0 on others and for a batch without targets.
  double forward_only(const batch_type& b, const_row in, row out) {
    const extent_of_batch e = checked(b, false);
    T* const x = evaluate(b, e, in, out);
    if (!is_last()) return 0;
    if (b.targets.empty()) {
      if constexpr (!on_host) queue().wait();  // the caller's inputs have been read
      return 0;
    }
    double summed = 0;
    run_type c = run_of(slots(), e);
    add_loss_at(c, slots());
    each_head(b, e, x, [&](const auto& head, auto rows, auto targets, std::size_t) {
      head.run().loss = c.loss;
      [[maybe_unused]] const auto more = head.forward(rows, targets);
      if constexpr (on_host) summed += more;
    });
    if constexpr (!on_host) summed = given_.read_loss(queue(), slots());
    return summed;
  }

  /// Forward without saving, for sampling and prediction: the last stage gets the head's outputs for each sample's last
  /// position, for the mean of its rows behind `pooled`, or for all rows that have targets of their own; whole and the same on every
  /// rank that shares its rows.
  /// Shapes: `logits` [samples, 1 or rows, outputs of the head]; other stages ignore it.
  void last_logits(const batch_type& b, const_row in, row out, row logits) {
    static_assert(rows_type::of_samples,
                  "heddle: last_logits reads the last row of each sample: a model whose sharding has a context split has "
                  "none; take the model without it");
    const extent_of_batch e = checked(b, false);
    constexpr bool of_rows = has_targets_of_rows<batch_type, out_layer>;
    const std::int64_t n = description_.out.outputs(), of_sample = of_rows ? e.sequence : 1;
    if (is_last()) require_logits(static_cast<std::size_t>(logits.size()), e, of_sample * n);
    T* const x = evaluate(b, e, in, out);
    if (!is_last() || e.rows() == 0) return;
    const T* const all = stream_.gather(queue(), x, e, memory_.all_of_stream());
    const std::int64_t rows = detail::takes_means<out_layer> ? e.sequence : 1;
    for (std::int64_t i = 0; i < e.samples * of_sample; ++i) {
      run_type one = run_of(slots(), {1, rows});
      at_brief_end(one);
      const call_type<out_layer> head(at_.brief_out, one);
      const std::int64_t end = of_rows ? i + 1 : (i + 1) * e.sequence;
      head.layer().predict(head, stream_.part(all, end - rows, one.extent), row_at<space>(start_of(logits) + i * n, n));
    }
  }

  /// Forward without saving, of a model with a `layers::language_head`: the last stage gets the log-probability of each target, 0 where it is
  /// ignored, the same on every rank that shares its rows. Waits for the queue. Shapes: `to` [samples, sequence], on the host; others ignore it.
  void target_log_probabilities(const batch_type& b, const_row in, row out, std::span<double> to) {
    static_assert(rows_type::of_samples, "heddle: target_log_probabilities is of samples, which a context split has not");
    const extent_of_batch e = checked(b, true);
    if (is_last()) require_log_probabilities(to.size(), e);
    T* const x = evaluate(b, e, in, out);
    if (!is_last()) return;
    each_head(b, e, x, [&](const auto& head, auto rows, auto targets, std::size_t first) {
      head.layer().target_log_probabilities(head, rows, targets, to.subspan(first));
    });
  }

  /// A place in the model, in the order of the forward pass; index -1: none.
  struct place_in_model {
    int index = -1;
    std::string name{};
  };
  /// The first layer whose output, as far as the slots still hold it, is not finite.
  place_in_model first_nonfinite_activation() {
    constexpr const char* first_layer = std::is_same_v<batch_type, batch<T>> ? "the embedding" : "the first layer";
    const auto bad = [&](const T* x) {  // all of it: the last microbatch may have been a small one
      return !compute::all_finite(*backend_, row_at<space>(x, stream_.elements(max_rows())));
    };
    for (int l = 0; l <= part_.count; ++l)
      for (int slot = 0; slot < slots(); ++slot) {
        if (l < part_.count && moves_now(saved_layers_)) continue;
        if (l == part_.count && !is_last()) continue;
        if (!bad(l == part_.count ? memory_.end_saved(slot) : start_of(saved_layers_.need(slot, l)))) continue;
        const int index = part_.first + l;  // what enters a block left the one before it
        return {index, index == 0 ? first_layer : description_.block_name + std::to_string(index - 1)};
      }
    if constexpr (requires { description_.out.norm.name; })
      for (int slot = 0; is_last() && !again_.of_end().any() && slot < slots(); ++slot) {
        run_type c = run_of({max_samples_, rows_type::of_sample(config_)});
        at_end(c, memory_.end_saved(slot) + at_.stream, nullptr);
        if (!compute::all_finite(*backend_, call_type<out_layer>(at_.out, c).vector(model::layers::normed{})))
          return {static_cast<int>(description_.count) + 1, description_.out.norm.name};
      }
    return {};
  }

 private:
  using run_type = model::layers::layer_run<T, layouts, Backend, World, typename rows_type::seen, trained>;
  template <class Layer>
  using call_type = model::layers::call<Layer, run_type>;
  using dropping = model::layers::dropping;
  using slot_state = microbatch_slots::slot;
  static std::int64_t bytes(std::int64_t elements) noexcept { return elements * static_cast<std::int64_t>(sizeof(T)); }
  std::int64_t max_rows() const noexcept { return max_samples_ * rows_type::of_sample(config_); }
  static constexpr bool on_host = std::is_same_v<space, host_memory>;
  template <class Row>
  static auto* start_of(const Row& x) noexcept {
    return first_element(x);
  }
  // A rank without rows has memory all the same: a null matrix is one that nobody wants.
  matrix_view<T, space> matrix(T* at, extent_of_batch e) noexcept {
    return stream_.matrix(at == nullptr && decltype(stream_)::are_split ? memory_.x() : at, e);
  }
  matrix_view<const T, space> const_matrix(const T* at, extent_of_batch e) const noexcept {
    return stream_.matrix(at, e);
  }

  // ---- memory -----------------------------------------------------------------------------------------------------
  layers_memory make_layers_memory(const typename layers_memory::settings& saving, int slots) const {
    std::vector<std::int64_t> elements;
    for (int l = 0; l < part_.count; ++l) elements.push_back(at_.kept(again_, part_.first + l));
    return make_layer_memory<layers_memory>(queue(), saving, slots, std::span<const std::int64_t>(elements));
  }
  dropping drops_of(int layer) const noexcept { return places::drops(again_, part_.first + layer); }
  bool drops_any(int layer) const noexcept { return again_.of_block(part_.first + layer).any(); }

  // ---- what layers are called with ----------------------------------------------------------------------------------
  run_type run_of(extent_of_batch e, sum loss_scale = 1) {
    run_type c{*backend_, *world_, e};
    c.loss_scale = loss_scale;
    c.scratch = memory_.scratch();
    held_.place(c);
    if constexpr (tied) {
      c.tied = held_.tied_weight();
      c.tied_gradient = {start_of(held_.tied_gradient()), held_.tied_weight().shape()};
    }
    if constexpr (rows_type::of_samples &&
                  (model::layers::uses_sequences<block_layer> || model::layers::uses_sequences<out_layer>)) {
      sequences_.prepare(queue(), max_samples_, e.sequence, layers::window_of_blocks<block_layer>(description_));
      c.windowed = sequences_.windowed(e), c.positions = sequences_.rows(e), c.sequences = sequences_.slices(e);
    }
    if constexpr (model::layers::uses_routing<block_layer>) c.routing = &routing_;
    return c;
  }
  // The same, of the microbatch in this place.
  run_type run_of(int place, extent_of_batch e, sum loss_scale = 1) {
    run_type c = run_of(e, loss_scale);
    if constexpr (!rows_type::of_samples) rows_.show(place, c);
    return c;
  }
  template <class F>
  void on_block(run_type& c, int layer, F&& f) const {
    detail::call_block(at_, part_.first + layer, c, f);
  }
  void at_block(run_type& c, int layer, T* saved, T* deferred) {
    held_.place_block(c, layer);
    c.saved = saved;
    c.shared = memory_.shared();
    c.constants = memory_.constants() + at_.constants_of(part_.first + layer, part_.first, part_.count);
    c.deferred = deferred;
    c.drops = drops_of(layer);
    if constexpr (!rows_type::of_samples) c.cache.tail = at_.tail_in(again_, part_.first + layer, saved);
  }
  void at_end(run_type& c, T* saved, T* deferred) {
    held_.place(c);
    c.saved = saved;
    c.shared = memory_.end_shared();
    c.first_word = held_.first_word();
    c.deferred = deferred;
    c.drops = dropping::named;
  }
  void at_brief_end(run_type& c) {
    at_end(c, nullptr, nullptr);
    c.shared = memory_.brief();
    c.drops = dropping::transient;
  }
  // Where the head adds the loss of this slot to, elsewhere than on the host.
  void add_loss_at([[maybe_unused]] run_type& c, [[maybe_unused]] int slot) {
    if constexpr (!on_host) c.loss = given_.new_loss(queue(), slot);
  }

  // ---- what is computed again ---------------------------------------------------------------------------------------
  // The shared memory now belongs to this block.
  void wrote(int slot, int layer) noexcept {
    if (drops_any(layer)) last_block_ = {slot, layer};
  }
  // Before backward_input of a block. `waiting`: where what backward_weight needs goes; null if that follows at once.
  void restore_block(run_type& c, int slot, int layer, T* waiting) {
    T* const x = start_of(saved_layers_.need(slot, layer));
    at_block(c, layer, x + at_.stream, c.deferred);
    c.waiting = waiting;
    if constexpr (recomputes) {
      if (!drops_any(layer)) return;
      const bool there = last_block_ == std::pair(slot, layer);
      last_block_ = {-1, -1};
      at_.with_block(part_.first + layer, [&](const auto& block) {
        restore(c, block, there, waiting != nullptr,
                [&](const auto& b) { b.forward(const_matrix(x, c.extent), matrix_view<T, space>{}); });
      });
    }
  }
  void restore_end(run_type& c, int slot, bool waits) {
    at_end(c, memory_.end_saved(slot) + at_.stream, c.deferred);
    if constexpr (recomputes) {
      if (!again_.of_end().any()) return;
      const bool there = last_end_ == slot;
      last_end_ = -1;
      restore(c, at_.out, there, waits,
              [&](const auto& b) { b.layer().project(b, const_matrix(memory_.end_saved(slot), c.extent)); });
    }
  }
  template <class Layer, class Forward>
  void restore(run_type& c, const model::layers::placed<Layer>& layer, bool there, bool waits, Forward&& again) {
    c.waits = waits;
    if (there) {
      if (waits) model::layers::move_to_waiting(layer, c);
      return;
    }
    c.replays = true;
    again(call_type<Layer>(layer, c));
    c.replays = false;
  }

  // ---- passes -------------------------------------------------------------------------------------------------------
  // Fills the start of the residual stream.
  void enter(run_type& c, int slot, const batch_type& b, const_row in, T* to) {
    const matrix_view<T, space> x = matrix(to, c.extent);
    c.first_word = held_.first_input_word();
    if (is_first())
      detail::require_stream<layouts, in_layer>(
          call_type<in_layer>(at_.in, c).forward(given_.inputs(slot, config_, b, c.extent), x));
    else
      compute::run<compute::ops::copy>(*backend_, in, elements_of(x));
  }
  // Forward without saving, up to the last block: where the residual stream is.
  T* evaluate(const batch_type& b, extent_of_batch e, const_row in, row out) {
    if (!is_first()) require_size(in, e, "forward_only's `in`");
    if (!is_last()) require_size(out, e, "forward_only's `out`");
    last_block_ = {-1, -1};
    T* x = memory_.x();
    T* y = memory_.y();
    if (part_.count == 0 && !is_last()) x = start_of(out);
    given_.take(queue(), slots(), config_, b, e);
    rows_.take(slots(), b);
    run_type c = run_of(slots(), e);
    enter(c, slots(), b, in, x);
    for (int l = 0; l < part_.count; ++l) {
      if (l + 1 == part_.count && !is_last()) y = start_of(out);
      at_block(c, l, nullptr, nullptr);
      c.drops = dropping::transient;
      on_block(c, l, [&](const auto& block) { return block.forward(const_matrix(x, e), matrix(y, e)); });
      std::swap(x, y);
    }
    return x;
  }
  template <class F>  // f(head, rows, targets, first row) for some samples at a time, whose logits only need memory
  void each_head(const batch_type& b, extent_of_batch e, const T* x, F&& f) {
    const T* const all = stream_.gather(queue(), x, e, memory_.all_of_stream());
    for (std::int64_t i = 0, at_once = rows_type::samples_of_head(config_); i < e.samples; i += at_once) {
      const std::int64_t n = (std::min)(at_once, e.samples - i), targets = std::ssize(b.targets) / e.samples;
      run_type some = run_of(slots(), {n, e.sequence});
      at_brief_end(some);
      f(call_type<out_layer>(at_.brief_out, some), stream_.part(all, i * e.sequence, some.extent),
        row_at<space>(start_of(given_.targets(slots(), b)) + i * targets, n * targets),
        static_cast<std::size_t>(i * e.sequence));
    }
  }
  void run_backward(int slot, const batch_type& b, const_row dout, row din, T* set, bool weights_too) {
    static_cast<void>(slots_.forwarded(slot, "backward"));
    const extent_of_batch e = checked(b, true);
    require_same_extent(slot, e, slots_[slot].extent);
    if (!is_last()) require_size(dout, e, "backward's `dout`");
    if (!is_first()) require_size(din, e, "backward's `din`");
    T* const end = weights_too ? memory_.end_deferred_now() : memory_.end_deferred(set);
    const auto deferred_of = [&](int l) { return weights_too ? memory_.deferred_now(l) : memory_.deferred(set, l); };
    T* const start = is_first() ? memory_.embedding_gradient(end) : start_of(din);
    T* const top = part_.count > 0 ? deferred_of(part_.count - 1) : start;
    run_type c = run_of(slot, e, b.loss_scale);
    if (is_last()) {
      c.waiting = weights_too ? nullptr : memory_.end_waiting(set);
      c.deferred = end;
      restore_end(c, slot, !weights_too);
      const call_type<out_layer> head(at_.out, c);
      detail::require_stream<layouts, out_layer>(head.backward_input(
          const_matrix(memory_.end_saved(slot), e), given_.targets(slot, b), b.loss_scale, matrix(top, e)));
      if (weights_too) head.backward_weight(const_matrix(memory_.end_saved(slot), e));
    } else {
      compute::run<compute::ops::copy>(*backend_, dout, elements_of(matrix(top, e)));
    }
    for (int l = part_.count; l-- > 0;) {
      T* const below = l > 0 ? deferred_of(l - 1) : start;
      T* const own = deferred_of(l);
      c.deferred = own + at_.stream;
      c.waits = false;
      restore_block(c, slot, l, weights_too ? nullptr : memory_.waiting(set, l));
      const auto x = const_matrix(c.saved - at_.stream, e), dy = const_matrix(own, e);
      on_block(c, l, [&](const auto& block) {
        const auto left = block.backward_input(x, dy, matrix(below, e));
        if (weights_too) block.backward_weight(x, dy);
        return left;
      });
      if (weights_too) saved_layers_.done(slot, l);
    }
    if (weights_too) embedding_weight(c, slot, b, end);
  }
  void block_weight(run_type& c, int layer, T* x, T* set) {
    T* const own = memory_.deferred(set, layer);
    at_block(c, layer, x + at_.stream, own + at_.stream);
    c.waiting = memory_.waiting(set, layer);
    on_block(c, layer,
             [&](const auto& b) { b.backward_weight(const_matrix(x, c.extent), const_matrix(own, c.extent)); });
  }
  void end_weight(run_type& c, int slot, T* end, T* waiting) {
    at_end(c, memory_.end_saved(slot) + at_.stream, end);
    c.waiting = waiting;
    call_type<out_layer>(at_.out, c).backward_weight(const_matrix(memory_.end_saved(slot), c.extent));
  }
  void embedding_weight(run_type& c, int slot, const batch_type& b, T* end) {
    if (!is_first()) return;
    at_end(c, nullptr, nullptr);
    c.first_word = held_.first_input_word();
    call_type<in_layer>(at_.in, c).backward_weight(given_.inputs(slot, config_, b, c.extent),
                                                   matrix(memory_.embedding_gradient(end), c.extent));
  }
  extent_of_batch checked(const batch_type& b, bool needs_targets) const {
    return detail::checked_batch_of<out_layer>(config_, max_samples_, b, is_first(),
                                               is_last() && (needs_targets || !b.targets.empty()));
  }
  template <class Row>
  void require_size(const Row& s, extent_of_batch e, const char* what) const {
    require_stream_size(static_cast<std::size_t>(s.size()), e, stream_.of(e.rows()).count, config_.width, what);
  }

  config_type config_;
  World* world_;
  Backend* backend_;
  stage_layers part_;
  std::int64_t max_samples_ = 0;
  recompute_plan again_;
  description description_;
  places at_;
  language_parameters<T, layouts, description, space> held_;
  layers_memory saved_layers_;
  stream_rows<layouts, World, space> stream_;
  stage_memory<T, places, space> memory_;
  mutable microbatch_memory<batch_type, space> given_;
  [[no_unique_address]] rows_type rows_;
  microbatch_slots slots_;
  std::pair<int, int> last_block_{-1, -1};  ///< whose recomputed activations are in the shared memory: slot, layer
  int last_end_ = -1;
  token_positions_in<space> sequences_{reach_rows<reach_of<Model>>};
  [[no_unique_address]] model::layers::routing_memory_of<block_layer, space> routing_{};
};

}  // namespace heddle::inline v0::model
