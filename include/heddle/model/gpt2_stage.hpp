// heddle/model/gpt2_stage.hpp: the part of a GPT-2 that one rank holds, with the verbs a pipeline schedule calls.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/gpt2_layers.hpp>
#include <heddle/model/recompute.hpp>
#include <heddle/model/saved_activations.hpp>
#include <heddle/tensor/sum_among.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// One pipeline stage of GPT-2 on one rank: its blocks, on stage 0 the embedding, on the last stage the final norm and
/// the tied head. Parameters are split over tp and replicated over dp; what a rank holds lies in one flat buffer of
/// weights and one of gradients.
///
/// Saved activations live in a ring of `slots`, allocated at construction for at most `max_samples` samples of a whole
/// context. A microbatch goes through its slot as forward, then either `backward`, or `backward_input` and later
/// `backward_weight`; `deferred` is how many microbatches may wait for `backward_weight` at once (zero-bubble
/// schedules). No call after construction allocates, but `reduce_tied_gradients`.
///
/// A head stage that is given a `lender`, the embedding stage of the same rank, uses its token embedding instead of a
/// copy; the lender must outlive it, and its `tied_gradient` is the caller's to add to the lender's.
///
/// Gradients are added up; nothing is reduced over dp. Over tp each block takes two all_reduces of the activations
/// forward and two in backward_input; the embedding takes one forward, the head three of one number per token forward
/// and one of the activations in backward_input. With one rank along tp nothing is sent.
///
/// Shapes: `in`, `out`, `dout`, `din` are row-major [samples, sequence, width]; the first stage ignores `in` and `din`,
/// the last ignores `out` and `dout`.
/// Errors: `config_error` for a configuration or batch that does not fit, `schedule_error` for verbs out of order.
/// `World` and `Backend` must outlive the stage.
template <class T, class World, class Backend, class Activations = activations::keep>
  requires compute::kernel_set<Backend, T>
class gpt2_stage {
 public:
  using scalar = T;
  using whole_mesh = std::remove_cvref_t<decltype(std::declval<World&>().mesh())>;
  using plan = tensor_parallel<layer_mesh<whole_mesh>>;
  using batch_type = batch<T>;
  /// The flat buffer of weights as one tensor over dp and tp: copies along dp, parts of other tensors on each rank
  /// along tp. The gradients' layout is its dual.
  using flat_weights = layout<layer_mesh<whole_mesh>, varying<tp>>;
  /// The loss over dp and tp.
  using loss = typename plan::loss;
  /// Where the blocks' saved activations are; what the head saves stays in the slots.
  using layers_memory = typename Activations::template layers<T>;
  static_assert(model::layer_memory<layers_memory, T>);
  /// Whether some may be computed again instead: whether the policy's settings have a `recompute_plan again`.
  static constexpr bool recomputes = requires(const typename layers_memory::settings& s) { s.again; };

  gpt2_stage(const gpt2_config& config, World& world, Backend& backend, stage_layers part, int slots,
             std::int64_t max_samples, int deferred = 1, const gpt2_stage* lender = nullptr,
             const typename layers_memory::settings& saving = {})
      : config_(checked_stage(config, part, slots, max_samples, deferred)),
        world_(&world),
        backend_(&backend),
        part_(part),
        max_samples_(max_samples),
        layers_(config, make_layer_mesh(world.mesh()), layer_rank(world.mesh(), world.rank()), part,
                lender == nullptr ? nullptr : &lender->layers_),
        extents_(layers_.blocks.empty() ? block_extents{.width = config.width} : layers_.blocks.front().local),
        again_(recompute_plan_of(saving), part.first, extents_, part.has_head() ? layers_.head.wte.extent(0) : -1),
        saved_layers_(make_layers_memory(saving, slots)) {
    carver<T> scratch;
    place_workspace(scratch);
    workspace_memory_ = buffer<T>(scratch.used());
    scratch = carver<T>(part_of(workspace_memory_, 0, scratch.used()));
    place_workspace(scratch);
    carver<T> count;
    slot_state one;
    place(count, one);
    slot_elements_ = count.used();
    saved_ = buffer<T>(slot_elements_ * slots);
    slots_.resize(static_cast<std::size_t>(slots));
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      carver<T> memory(part_of(saved_, s, slot_elements_));
      place(memory, slots_[s]);
      for (int l = 0; l < part_.count && !layers_memory::moves; ++l)
        place(saved_layers_.need(static_cast<int>(s), l), slots_[s], l);
    }
    carver<T> deferred_count;
    gradient_set set;
    place_deferred(deferred_count, set);
    deferred_elements_ = deferred_count.used();
    deferred_memory_ = buffer<T>(deferred_elements_ * deferred);
    deferred_.resize(static_cast<std::size_t>(deferred));
    for (std::size_t s = 0; s < deferred_.size(); ++s) {
      carver<T> memory(part_of(deferred_memory_, s, deferred_elements_));
      place_deferred(memory, deferred_[s]);
    }
  }
  gpt2_stage(const gpt2_stage&) = delete;
  gpt2_stage& operator=(const gpt2_stage&) = delete;

  // ---- what it is -----------------------------------------------------------------------------------------------
  const gpt2_config& config() const noexcept { return config_; }
  stage_layers layers() const noexcept { return part_; }
  bool is_first() const noexcept { return part_.has_embedding(); }
  bool is_last() const noexcept { return part_.has_head(); }
  int slots() const noexcept { return static_cast<int>(slots_.size()); }
  std::int64_t max_samples() const noexcept { return max_samples_; }
  /// Elements that travel between neighbouring stages for so many samples. `sequence` 0: the context.
  std::int64_t boundary_elements(std::int64_t samples, int sequence = 0) const noexcept {
    return samples * (sequence > 0 ? sequence : config_.context) * config_.width;
  }
  /// Whether this stage and the other may work at the same time, on two threads: each has a backend of its own, and
  /// nothing is sent along tp.
  bool runs_beside(const gpt2_stage& other) const {
    return this != &other && backend_ != other.backend_ && world_->template along_if<tp>().size() == 1;
  }
  /// Bytes of saved activations that one slot of the ring holds.
  std::int64_t saved_bytes_per_slot() const noexcept {
    return bytes(slot_elements_) + saved_layers_.bytes_per_slot();
  }
  /// What backward computes again.
  const recompute_plan& recomputed() const noexcept { return again_.plan(); }
  /// The memory of the blocks' saved activations.
  layers_memory& saved_layers() noexcept { return saved_layers_; }
  /// Bytes kept per microbatch between backward_input and backward_weight.
  std::int64_t deferred_bytes() const noexcept { return bytes(deferred_elements_); }
  /// Bytes of scratch that all microbatches share.
  std::int64_t workspace_bytes() const noexcept { return bytes(static_cast<std::int64_t>(workspace_memory_.size())); }

  // ---- parameters -----------------------------------------------------------------------------------------------
  const std::vector<parameter>& parameters() const noexcept { return layers_.parameters.table(); }
  std::span<T> weights() noexcept { return layers_.parameters.weights(); }
  std::span<const T> weights() const noexcept { return layers_.parameters.weights(); }
  std::span<T> gradients() noexcept { return layers_.parameters.gradients(); }
  std::span<const T> gradients() const noexcept { return layers_.parameters.gradients(); }
  /// Sets every gradient to zero.
  void zero_gradients() {
    backend_->fill(gradients(), T(0));
    if (layers_.borrows()) backend_->fill(layers_.token_embedding_gradient, T(0));
  }
  /// The gradient of the token embedding, where this stage has the embedding or the head; empty elsewhere. It is part
  /// of `gradients()` unless the embedding is borrowed.
  std::span<T> tied_gradient() noexcept { return layers_.token_embedding_gradient; }
  /// Whether the head uses the token embedding of another stage of this rank.
  bool borrows_embedding() const noexcept { return layers_.borrows(); }
  /// GPT-2's initial weights, the same on every mesh: N(0, initial_deviation) for matrices and embeddings,
  /// divided by sqrt(2 layers) for the projections back into the residual stream; biases 0, norms' weights 1.
  void initialize(std::uint64_t seed) { layers_.parameters.initialize(seed); }

  // ---- verbs ----------------------------------------------------------------------------------------------------
  void forward(int slot, const batch<T>& b, std::span<const T> in, std::span<T> out) {
    slot_state& s = slots_[checked_slot(slot)];
    if (s.at != phase::empty)
      throw schedule_error("heddle: forward into slot " + std::to_string(slot) +
                           ", which still holds a microbatch that has not been through backward");
    const extent_of_batch e = checked(b, true);
    if (!is_first()) check_size(in, e, "forward's `in`");
    if (!is_last()) check_size(out, e, "forward's `out`");
    with_context([&](auto& c) {
      s.extent = e;
      s.loss_sum = 0;
      begin_layer(slot, s, 0);
      enter(c, b, e, in, part_.count > 0 ? s.blocks[0].x : s.x, out);
      for (std::size_t l = 0; l < s.blocks.size(); ++l) {
        begin_layer(slot, s, static_cast<int>(l) + 1);
        layers_.blocks[l].forward(c, s.blocks[l], e, matrix(after(s, l, out), e));
        end_layer(slot, s, static_cast<int>(l));
      }
      if (is_last()) {
        again_.begin(s);
        layers_.ln_f.forward(c, s.ln_f, matrix(s.x, e), matrix(s.normed, e));
        s.loss_sum = layers_.head.forward(c, s.head, matrix(s.normed, e), b.targets);
        again_.wrote(s);
      }
    });
    s.at = phase::forward_done;
  }

  /// Computes again, ahead of time, what the backward of this slot needs first: behind the last block, and of it.
  void recompute(int slot) {
    slot_state& s = slots_[checked_slot(slot)];
    if (s.at != phase::forward_done)
      throw schedule_error("heddle: recompute of slot " + std::to_string(slot) + " before its forward");
    if constexpr (recomputes)
      with_context([&](auto& c) {
        again_.restore(c, layers_.ln_f, layers_.head, s, s.extent, nullptr);
        again_.wrote(s);
        if (part_.count > 0) restore(c, slot, s, s.blocks.size() - 1, nullptr);
        if (part_.count > 0) again_.wrote(s.blocks.back(), part_.count - 1);
      });
  }

  /// The gradient of the inputs; keeps what backward_weight needs.
  void backward_input(int slot, const batch<T>& b, std::span<const T> dout, std::span<T> din) {
    slot_state& s = slots_[checked_slot(slot)];
    std::size_t free = 0;
    while (free < deferred_.size() && deferred_[free].used) ++free;
    if (free == deferred_.size())
      throw schedule_error(
          "heddle: backward_input of slot " + std::to_string(slot) + ": " + std::to_string(free) +
          " microbatches already wait for backward_weight; construct the stage with a larger `deferred`");
    run_backward(slot, b, dout, din, deferred_[free], false);
    deferred_[free].used = true;
    s.deferred = free;
    s.at = phase::input_done;
  }

  /// Adds the microbatch's weight gradients; its slot is free afterwards.
  void backward_weight(int slot, const batch<T>& b) {
    slot_state& s = slots_[checked_slot(slot)];
    if (s.at != phase::input_done)
      throw schedule_error("heddle: backward_weight of slot " + std::to_string(slot) + " before its backward_input");
    checked(b, true);
    gradient_set& g = deferred_[s.deferred];
    with_context([&](auto& c) {
      head_weight(c, s, g);
      for (std::size_t l = s.blocks.size(); l-- > 0;) {
        layers_.blocks[l].backward_weight(c, s.blocks[l], g.blocks[l]);
        done_layer(slot, s, static_cast<int>(l));
      }
      embedding_weight(c, s, b, g);
    });
    g.used = false;
    s.at = phase::empty;
  }

  /// backward_input and backward_weight, layer by layer, with less memory traffic.
  void backward(int slot, const batch<T>& b, std::span<const T> dout, std::span<T> din) {
    run_backward(slot, b, dout, din, together_, true);
    slots_[checked_slot(slot)].at = phase::empty;
  }

  /// Forgets a microbatch whose backward will not run.
  void release(int slot) {
    slot_state& s = slots_[checked_slot(slot)];
    if (s.at == phase::input_done) deferred_[s.deferred].used = false;
    s.at = phase::empty;
    saved_layers_.forget(slot);
  }

  /// On the last stage: the loss of the microbatch last sent forward through this slot, summed over its targets (not
  /// scaled), the same on all ranks along tp. 0 on other stages.
  double loss_sum(int slot) const { return slots_[checked_slot(slot)].loss_sum; }

  /// Forward without saving. Returns, on the last stage, the loss summed over the targets; 0 on other stages and for a
  /// batch without targets.
  double forward_only(const batch<T>& b, std::span<const T> in, std::span<T> out) {
    const extent_of_batch e = checked(b, false);
    double loss = 0;
    with_context([&](auto& c) {
      evaluate(c, b, e, in, out);
      if (!is_last() || b.targets.empty()) return;
      for (std::int64_t i = 0; i < e.samples; ++i) {  // sample by sample: logits of one only need memory
        const auto first = static_cast<std::size_t>(i * e.sequence), n = static_cast<std::size_t>(e.sequence);
        const auto width = static_cast<std::size_t>(config_.width);
        const std::span<T> h = work_.normed.subspan(first * width, n * width);
        loss += layers_.head.forward(c, work_.head, matrix(h, {1, e.sequence}), b.targets.subspan(first, n));
      }
    });
    return loss;
  }

  /// Forward without saving, for sampling: the last stage gets the logits of each sample's last position over the whole
  /// vocabulary, on every rank along tp. Shapes: `logits` [samples, vocabulary]; other stages ignore it.
  void last_logits(const batch<T>& b, std::span<const T> in, std::span<T> out, std::span<T> logits) {
    const extent_of_batch e = checked(b, false);
    const std::int64_t d = config_.width, v = config_.vocabulary;
    if (is_last() && static_cast<std::int64_t>(logits.size()) != e.samples * v)
      throw config_error("heddle: last_logits needs room for " + std::to_string(e.samples) + " x " + std::to_string(v) +
                         " logits, got " + std::to_string(logits.size()));
    with_context([&](auto& c) {
      evaluate(c, b, e, in, out);
      if (!is_last() || e.rows() == 0) return;
      const std::int64_t local = layers_.head.wte.extent(0);
      for (std::int64_t i = 0; i < e.samples; ++i) {
        const auto last = static_cast<std::size_t>(((i + 1) * e.sequence - 1) * d);
        const auto row = as_matrix(work_.normed.subspan(last, static_cast<std::size_t>(d)), 1, d);
        const std::span<T> mine = work_.head.logits_memory.first(static_cast<std::size_t>(local));
        layers_.head.logits(c, row, as_matrix(mine, 1, local));
        const std::span<T> all = logits.subspan(static_cast<std::size_t>(i * v), static_cast<std::size_t>(v));
        if (c.tp_group.size() > 1)
          c.tp_group.all_gather_v(std::span<const T>(mine), all, std::span<const std::int64_t>(words_));
        else
          backend_->copy(mine, all);
      }
    });
  }

  /// Sums the token embedding's gradient over its two uses, when the embedding and the head lie on different ranks:
  /// afterwards both have the same sum. To be called by all ranks along pp, once per step, after the last backward,
  /// where rank r of pp has stage r. Nothing happens on the stages between, or when one stage has both.
  void reduce_tied_gradients() {
    if (is_first() == is_last()) return;
    if constexpr (whole_mesh::template has<pp>) {
      auto&& group = world_->template along<pp>();
      const std::array<int, 2> ends{0, group.size() - 1};
      const std::span<T> mine = tied_gradient();
      buffer<T> room((std::min)(exchange_elements, static_cast<std::int64_t>(mine.size())));
      sum_among(group, std::span<const int>(ends), mine, std::span<T>(room.data(), room.size()), tied_tag,
                [&](std::span<T> x, std::span<T> y, std::span<T> to) { backend_->add(x, y, to); });
    } else {
      throw config_error("heddle: the embedding and the head are on different stages, but the mesh has no axis pp");
    }
  }

  /// A place in the model, in the order of the forward pass; index -1: none.
  struct place_in_model {
    int index = -1;
    std::string name{};
  };
  /// The first layer whose output, as far as the slots still hold it, is not finite.
  place_in_model first_nonfinite_activation() const {
    const auto bad = [&](std::span<const T> x) {
      return !x.empty() && !backend_->all_finite(x);  // all of it: the last microbatch may have been a small one
    };
    for (int l = 0; l <= part_.count; ++l)
      for (const slot_state& s : slots_) {
        const bool after_blocks = l == part_.count;
        if (!bad(after_blocks ? s.x : s.blocks[static_cast<std::size_t>(l)].x)) continue;
        // What enters a block left the one before it.
        const int index = part_.first + l;
        return {index, index == 0 ? "the embedding" : "h." + std::to_string(index - 1)};
      }
    for (const slot_state& s : slots_)
      if (bad(s.normed)) return {config_.layers + 1, "ln_f"};
    return {};
  }

 private:
  enum class phase { empty, forward_done, input_done };
  static constexpr int tied_tag = 7001;
  static constexpr std::int64_t exchange_elements = std::int64_t{1} << 18;

  struct slot_state : end_saved<T, plan> {  // the end: on the last stage
    std::vector<typename block<T, plan>::saved> blocks{};
    extent_of_batch extent{};
    double loss_sum = 0;
    std::size_t deferred = 0;
    phase at = phase::empty;
  };
  struct gradient_set {
    std::vector<typename block<T, plan>::gradients> blocks{};
    std::span<T> d_normed{};     ///< last stage: at ln_f's output
    std::span<T> d_embedding{};  ///< first stage: at the embedding's output
    typename recomputation<T, plan>::waiting again{};
    bool used = false;
  };
  struct workspace {
    std::span<T> d_heads{};
    // forward_only: one block's activations, used by all blocks in turn.
    typename block<T, plan>::saved block{};
    std::span<T> x{}, y{}, normed{};
    typename layer_norm<T>::saved ln_f{};
    typename tied_head<T, plan>::saved head{};
  };

  static std::int64_t bytes(std::int64_t elements) noexcept { return elements * static_cast<std::int64_t>(sizeof(T)); }
  static std::span<T> part_of(buffer<T>& memory, std::size_t index, std::int64_t elements) noexcept {
    return std::span<T>(memory.data(), memory.size())
        .subspan(index * static_cast<std::size_t>(elements), static_cast<std::size_t>(elements));
  }
  std::int64_t max_rows() const noexcept { return max_samples_ * config_.context; }

  void place(carver<T>& memory, slot_state& s) const {
    s.blocks.resize(static_cast<std::size_t>(part_.count));
    if (is_last()) again_.place(memory, s, max_rows());
  }
  void place(std::span<T> memory, slot_state& s, int layer) const {
    carver<T> m(memory);
    again_.place(m, s.blocks[static_cast<std::size_t>(layer)], layer, max_rows());
  }
  layers_memory make_layers_memory(const typename layers_memory::settings& saving, int slots) const {
    std::vector<std::int64_t> elements;
    for (int l = 0; l < part_.count; ++l) {
      carver<T> count;
      typename block<T, plan>::saved one;
      again_.place(count, one, l, max_rows());
      elements.push_back(count.used());
    }
    return make_layer_memory<layers_memory>(saving, slots, std::span<const std::int64_t>(elements));
  }
  // Around what a block's forward saves, and before its backward. Memory that moves is placed each time, as is what is
  // computed again; what was saved there is not looked at in between.
  static constexpr bool places = layers_memory::moves || recomputes;
  void begin_layer(int slot, slot_state& s, int layer) {
    if (layer >= part_.count) return;
    const std::span<T> memory = saved_layers_.begin(slot, layer);
    if constexpr (places) place(memory, s, layer);
  }
  void end_layer(int slot, slot_state& s, int layer) {
    again_.wrote(s.blocks[static_cast<std::size_t>(layer)], layer);
    if constexpr (layers_memory::moves) s.blocks[static_cast<std::size_t>(layer)] = {};
    saved_layers_.saved(slot, layer);
  }
  template <class Context>
  void restore(Context& c, int slot, slot_state& s, std::size_t l, typename recomputation<T, plan>::waiting* waiting) {
    const int layer = static_cast<int>(l);
    const std::span<T> memory = saved_layers_.need(slot, layer);
    if constexpr (places) {
      place(memory, s, layer);
      layers_.blocks[l].view(s.blocks[l], s.extent);
    }
    if constexpr (recomputes) again_.restore(c, layers_.blocks[l], s.blocks[l], layer, waiting);
  }
  void done_layer(int slot, slot_state& s, int layer) {
    if constexpr (layers_memory::moves) s.blocks[static_cast<std::size_t>(layer)] = {};
    saved_layers_.done(slot, layer);
  }
  void place_ends(carver<T>& memory, gradient_set& g) const {
    if (is_last()) g.d_normed = memory.take(max_rows() * config_.width);
    if (is_first()) g.d_embedding = memory.take(max_rows() * config_.width);
  }
  void place_deferred(carver<T>& memory, gradient_set& g) const {
    g.blocks.resize(static_cast<std::size_t>(part_.count));
    for (auto& b : g.blocks) b.place(memory, max_rows(), extents_);
    again_.place(memory, g.again, part_.count, max_rows());
    place_ends(memory, g);
  }
  void place_workspace(carver<T>& memory) {
    const std::int64_t rows = max_rows();
    // `backward` needs the gradients of two blocks at a time.
    typename block<T, plan>::gradients pair[2];
    for (auto& b : pair) b.place(memory, part_.count > 0 ? rows : 0, extents_);
    together_.blocks.clear();
    for (int l = 0; l < part_.count; ++l) together_.blocks.push_back(pair[l % 2]);
    place_ends(memory, together_);
    work_.d_heads = memory.take(rows * extents_.heads * extents_.head_dim);
    if (part_.count > 0) work_.block.place(memory, rows, extents_);
    again_.share(work_.block, memory, rows);
    work_.y = memory.take(rows * config_.width);
    work_.x = part_.count > 0 ? work_.block.x : memory.take(rows * config_.width);
    if (!is_last()) return;
    work_.normed = memory.take(rows * config_.width);
    work_.ln_f.place(memory, rows);
    work_.head.place(memory, config_.context, layers_.head.wte.extent(0));
    words_.clear();
    using split = typename plan::vocabulary_weight;
    const auto mesh = make_layer_mesh(world_->mesh());
    for (int r = 0; r < mesh.template extent<tp>(); ++r)
      words_.push_back(split{mesh}.local_shape(dynamic_shape<1>(config_.vocabulary), r).extent(0));
  }

  template <class Body>
  void with_context(Body&& body) {
    auto&& group = world_->template along_if<tp>();
    layer_context<Backend, std::remove_reference_t<decltype(group)>> c{*backend_, group};
    body(c);
  }

  matrix_view<T> matrix(std::span<T> memory, extent_of_batch e) const noexcept {
    return as_matrix(memory, e.rows(), config_.width);
  }
  static std::span<T> rows_of(std::span<T> memory, std::int64_t elements) noexcept {
    return memory.first(static_cast<std::size_t>(elements));
  }

  std::size_t checked_slot(int slot) const {
    if (slot < 0 || slot >= static_cast<int>(slots_.size()))
      throw schedule_error("heddle: slot " + std::to_string(slot) + " of a stage with " +
                           std::to_string(slots_.size()) + " slots");
    return static_cast<std::size_t>(slot);
  }
  extent_of_batch checked(const batch<T>& b, bool needs_targets) const {
    const int sequence = b.sequence > 0 ? b.sequence : config_.context;
    if (b.samples < 0 || b.samples > max_samples_)
      throw config_error("heddle: a microbatch of " + std::to_string(b.samples) + " samples; this stage has room for " +
                         std::to_string(max_samples_));
    if (sequence > config_.context)
      throw config_error("heddle: a sequence of " + std::to_string(sequence) + " tokens; the model's context is " +
                         std::to_string(config_.context));
    const extent_of_batch e{b.samples, sequence};
    const auto check_ids = [&](compute::token_ids ids, const char* what, bool negative) {
      if (static_cast<std::int64_t>(ids.size()) != e.rows())
        throw config_error(std::string("heddle: a microbatch of ") + std::to_string(b.samples) + " x " +
                           std::to_string(sequence) + " tokens came with " + std::to_string(ids.size()) + " " + what);
      for (const std::int32_t id : ids)
        if (id >= config_.vocabulary || (id < 0 && !negative))
          throw config_error(std::string("heddle: ") + what + " hold the id " + std::to_string(id) +
                             ", outside the vocabulary of " + std::to_string(config_.vocabulary));
    };
    if (is_first()) check_ids(b.tokens, "tokens", false);
    if (is_last() && (needs_targets || !b.targets.empty())) check_ids(b.targets, "targets", true);
    return e;
  }
  template <class U>
  void check_size(std::span<U> s, extent_of_batch e, const char* what) const {
    if (static_cast<std::int64_t>(s.size()) != e.rows() * config_.width)
      throw config_error(std::string("heddle: ") + what + " must hold " + std::to_string(e.samples) + " x " +
                         std::to_string(e.sequence) + " x " + std::to_string(config_.width) + " elements, got " +
                         std::to_string(s.size()));
  }

  // Where the residual stream goes after block l.
  std::span<T> after(slot_state& s, std::size_t l, std::span<T> out) const noexcept {
    if (l + 1 < s.blocks.size()) return s.blocks[l + 1].x;
    return is_last() ? s.x : out;
  }
  // Fills the start of the residual stream: `x`, or `out` for a stage that only passes on.
  template <class Context>
  void enter(Context& c, const batch<T>& b, extent_of_batch e, std::span<const T> in, std::span<T> x,
             std::span<T> out) {
    const bool direct = part_.count == 0 && !is_last();
    const std::span<T> to = rows_of(direct ? out : x, e.rows() * config_.width);
    if (is_first())
      layers_.embedding.forward(c, b.tokens, e.sequence, matrix(to, e));
    else
      backend_->copy(in, to);
  }

  template <class Context>
  void evaluate(Context& c, const batch<T>& b, extent_of_batch e, std::span<const T> in, std::span<T> out) {
    if (!is_first()) check_size(in, e, "forward_only's `in`");
    if (!is_last()) check_size(out, e, "forward_only's `out`");
    std::span<T> x = work_.x, y = work_.y;
    again_.overwritten();
    enter(c, b, e, in, x, out);
    for (std::size_t l = 0; l < layers_.blocks.size(); ++l) {
      work_.block.x = x;
      const bool leaves = l + 1 == layers_.blocks.size() && !is_last();
      layers_.blocks[l].forward(c, work_.block, e, matrix(leaves ? out : y, e));
      std::swap(x, y);
    }
    if (is_last()) layers_.ln_f.forward(c, work_.ln_f, matrix(x, e), matrix(work_.normed, e));
  }

  template <class Context>
  void head_weight(Context& c, const slot_state& s, const gradient_set& g) {
    if (!is_last()) return;
    layers_.head.backward_weight(c, s.head);
    layers_.ln_f.backward_weight(c, s.ln_f, matrix(g.d_normed, s.extent));
  }
  template <class Context>
  void embedding_weight(Context& c, const slot_state& s, const batch<T>& b, const gradient_set& g) {
    if (is_first()) layers_.embedding.backward_weight(c, b.tokens, s.extent.sequence, matrix(g.d_embedding, s.extent));
  }

  void run_backward(int slot, const batch<T>& b, std::span<const T> dout, std::span<T> din, gradient_set& g,
                    bool weights_too) {
    slot_state& s = slots_[checked_slot(slot)];
    if (s.at != phase::forward_done)
      throw schedule_error("heddle: backward of slot " + std::to_string(slot) + " before its forward");
    const extent_of_batch e = checked(b, true);
    if (e.rows() != s.extent.rows() || e.samples != s.extent.samples)
      throw schedule_error("heddle: backward of slot " + std::to_string(slot) + " with " + std::to_string(e.samples) +
                           " samples, forward had " + std::to_string(s.extent.samples));
    if (!is_last()) check_size(dout, e, "backward's `dout`");
    if (!is_first()) check_size(din, e, "backward's `din`");
    const std::int64_t elements = e.rows() * config_.width;
    const std::span<T> start = rows_of(is_first() ? g.d_embedding : din, elements);
    const std::span<T> top = rows_of(part_.count > 0 ? g.blocks.back().d_out : start, elements);
    with_context([&](auto& c) {
      if (is_last()) {
        if constexpr (recomputes) again_.restore(c, layers_.ln_f, layers_.head, s, e, weights_too ? nullptr : &g.again);
        layers_.head.backward_input(c, s.head, b.targets, b.loss_scale, matrix(g.d_normed, e));
        backend_->fill(top, T(0));
        layers_.ln_f.backward_input(c, s.ln_f, matrix(g.d_normed, e), matrix(top, e));
        if (weights_too) head_weight(c, s, g);
      } else {
        backend_->copy(dout, top);
      }
      for (std::size_t l = s.blocks.size(); l-- > 0;) {
        const std::span<T> below = l > 0 ? g.blocks[l - 1].d_out : start;
        restore(c, slot, s, l, weights_too ? nullptr : &g.again);
        layers_.blocks[l].backward_input(c, s.blocks[l], g.blocks[l], work_.d_heads, matrix(below, e));
        if (!weights_too) continue;
        layers_.blocks[l].backward_weight(c, s.blocks[l], g.blocks[l]);
        done_layer(slot, s, static_cast<int>(l));
      }
      if (weights_too) embedding_weight(c, s, b, g);
    });
  }

  gpt2_config config_;
  World* world_;
  Backend* backend_;
  stage_layers part_;
  std::int64_t max_samples_ = 0;
  gpt2_layers<T, plan> layers_;
  block_extents extents_{};
  recomputation<T, plan> again_;
  layers_memory saved_layers_;
  std::int64_t slot_elements_ = 0;
  std::int64_t deferred_elements_ = 0;
  buffer<T> saved_{};
  buffer<T> deferred_memory_{};
  buffer<T> workspace_memory_{};
  std::vector<slot_state> slots_{};
  std::vector<gradient_set> deferred_{};
  gradient_set together_{};
  workspace work_{};
  std::vector<std::int64_t> words_{};
};

}  // namespace heddle::inline v0::model
