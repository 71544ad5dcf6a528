// heddle/model/any_stage.hpp: weights and verbs of a stage behind virtual calls.
#pragma once

#include <heddle/compute/rounded_weights.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/layout/gradient.hpp>
#include <heddle/model/any_layers.hpp>
#include <heddle/model/layer.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/model/stage_layers.hpp>
#include <heddle/model/write_parameters.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// The weights of a stage without its type: what `read_parameters`, `write_parameters`, `gather_falcon_base`, `train::read_weights` and
/// `train::save_weights` take as a stage. Members are those of a stage.
template <class T, memory_space Space = host_memory>
class any_weights {
 public:
  using scalar = T;
  using space = Space;
  using row = row_view<T, Space>;
  using const_row = row_view<const T, Space>;

  virtual ~any_weights() = default;
  virtual typename Space::queue& queue() const noexcept = 0;
  virtual const std::vector<parameter>& parameters() const noexcept = 0;
  virtual row weights() noexcept = 0;
  virtual const_row weights() const noexcept = 0;
  virtual std::int64_t flat_elements() const noexcept = 0;
  virtual const std::vector<parameter>& frozen_parameters() const noexcept = 0;
  virtual row frozen_weights() noexcept = 0;
  /// What a backend keeps of weights is made again.
  virtual void weights_written() noexcept = 0;
  /// Of its flat buffers: elements of each bucket, and which of the ranks with the same copy this one is.
  virtual std::span<const std::int64_t> bucket_elements() const noexcept = 0;
  virtual std::span<const detail::copy_of> copies_of_buckets() const noexcept = 0;
  /// Whether saves have the frozen parameters, too (`train::saves_frozen`).
  virtual bool has_saved_frozen() const noexcept = 0;
};

/// A stage without its type: code that is the same for all models, such as a trainer, is compiled once with it. A call costs a jump through an
/// address, which is nothing beside a verb. Members are those of a stage (`model::pipeline_stage`, `of_stage`).
template <class T, memory_space Space = host_memory>
class any_stage : public any_weights<T, Space> {
 public:
  using batch_type = batch<T>;
  using row = row_view<T, Space>;
  using const_row = row_view<const T, Space>;
  using sum_row = row_view<sum_of_type<T>, Space>;

  virtual stage_layers layers() const noexcept = 0;
  bool is_first() const noexcept { return layers().has_embedding(); }
  bool is_last() const noexcept { return layers().has_head(); }
  virtual std::int64_t vocabulary() const noexcept = 0;
  /// Of each bucket the axes over which its gradients are summed: bit i is axis i of the stage's mesh, which has no axis of the pipeline.
  virtual std::span<const unsigned> axes_of_buckets() const noexcept = 0;
  virtual std::int64_t boundary_elements(std::int64_t batch, int sequence = 0) const noexcept = 0;
  virtual bool runs_beside(const any_stage& other) const = 0;
  virtual std::int64_t saved_bytes_per_slot() const noexcept = 0;
  virtual std::int64_t deferred_bytes() const noexcept = 0;
  virtual std::int64_t workspace_bytes() const noexcept = 0;
  virtual any_layers<T, Space>& saved_layers() noexcept = 0;

  virtual sum_row gradients() noexcept = 0;
  virtual std::int64_t tied_elements() const noexcept = 0;
  virtual sum_row tied_gradient() noexcept = 0;
  virtual bool borrows_embedding() const noexcept = 0;
  virtual void lend_weights(row weights) = 0;
  virtual void lend_gradients(sum_row gradients) = 0;
  virtual void weights_stay(bool stay) = 0;
  virtual compute::kept_weight_memory kept_weights() const noexcept = 0;
  virtual void release_kept_weights() noexcept = 0;
  virtual void zero_gradients() = 0;
  virtual void initialize(std::uint64_t seed) = 0;
  virtual void merge_adapters() = 0;

  virtual void forward(int slot, const batch_type& b, const_row in, row out) = 0;
  virtual void recompute(int slot) = 0;
  virtual void backward(int slot, const batch_type& b, const_row dout, row din) = 0;
  virtual void backward_input(int slot, const batch_type& b, const_row dout, row din) = 0;
  virtual void backward_weight(int slot, const batch_type& b) = 0;
  virtual void release(int slot) = 0;
  virtual double loss_sum(int slot) const = 0;
  virtual double forward_only(const batch_type& b, const_row in, row out) = 0;
  virtual void last_logits(const batch_type& b, const_row in, row out, row logits) = 0;
};

namespace detail {

// The axes over which gradients of each layout are summed.
template <class Layout, class... Tags>
constexpr unsigned summed_axes_bits(type_list<Tags...>) noexcept {
  unsigned bits = 0, bit = 1;
  ((bits |= dual<Layout>::template is_partial_on<Tags> ? bit : 0, bit <<= 1), ...);
  return bits;
}
template <class... Layouts>
inline constexpr std::array<unsigned, sizeof...(Layouts)> summed_axes_of_buckets(type_list<Layouts...>) noexcept {
  return {summed_axes_bits<Layouts>(typename Layouts::mesh_type::tags{})...};
}

// `any_weights` of a stage, by a class between `Base`, which has it, and the stage; `Stage` may be a reference.
template <class Base, class Stage>
class held_weights : public Base {
  using stage_type = std::remove_reference_t<Stage>;

 public:
  template <class World, class... Arguments>
  explicit held_weights([[maybe_unused]] World& world, Arguments&&... arguments)
      : stage_(std::forward<Arguments>(arguments)...) {
    if constexpr (requires { typename stage_type::buckets; }) {
      const auto copies = model::detail::copies_of_buckets(world, typename stage_type::buckets{});
      copies_.assign(copies.begin(), copies.end());
    }
  }

  typename Base::space::queue& queue() const noexcept override { return stage_.queue(); }
  const std::vector<parameter>& parameters() const noexcept override { return stage_.parameters(); }
  typename Base::row weights() noexcept override { return stage_.weights(); }
  typename Base::const_row weights() const noexcept override { return std::as_const(stage_).weights(); }
  std::int64_t flat_elements() const noexcept override {
    if constexpr (requires { stage_.flat_elements(); })
      return stage_.flat_elements();
    else
      return static_cast<std::int64_t>(weights().size());
  }
  const std::vector<parameter>& frozen_parameters() const noexcept override { return stage_.frozen_parameters(); }
  typename Base::row frozen_weights() noexcept override { return stage_.frozen_weights(); }
  void weights_written() noexcept override {
    if constexpr (requires { stage_.weights_written(); }) stage_.weights_written();
  }
  std::span<const std::int64_t> bucket_elements() const noexcept override {
    if constexpr (requires { stage_.bucket_elements(); })
      return stage_.bucket_elements();
    else
      return {};
  }
  std::span<const copy_of> copies_of_buckets() const noexcept override { return copies_; }
  bool has_saved_frozen() const noexcept override {
    return requires { requires stage_type::trained::saves_frozen; };
  }

 protected:
  Stage stage_;

 private:
  std::vector<copy_of> copies_{};
};

}  // namespace detail

/// A stage of a described model as an `any_stage`.
template <class Stage>
class held_stage final : public detail::held_weights<any_stage<typename Stage::scalar, typename Stage::space>, Stage> {
  using base = detail::held_weights<any_stage<typename Stage::scalar, typename Stage::space>, Stage>;
  using any = any_stage<typename Stage::scalar, typename Stage::space>;
  using base::stage_;

 public:
  using typename any::batch_type, typename any::const_row, typename any::row, typename any::sum_row;

  /// Arguments as of the stage's constructor, of a stage whose activations are `activations::chosen_at_run_time`; `lender` is an `any_stage` of
  /// the same type, or null.
  template <class Config, class World, class Backend>
  held_stage(const Config& config, World& world, Backend& backend, stage_layers part, int slots,
             std::int64_t max_samples, int deferred, any* lender,
             const typename any_layers<typename Stage::scalar, typename Stage::space>::settings& saving = {})
      : base(world, config, world, backend, part, slots, max_samples, deferred,
             lender == nullptr ? nullptr : &static_cast<held_stage*>(lender)->stage_, saving) {}

  stage_layers layers() const noexcept override { return stage_.layers(); }
  std::int64_t vocabulary() const noexcept override { return stage_.config().vocabulary; }
  std::span<const unsigned> axes_of_buckets() const noexcept override {
    static constexpr auto axes = detail::summed_axes_of_buckets(typename Stage::buckets{});
    return axes;
  }
  std::int64_t boundary_elements(std::int64_t batch, int sequence) const noexcept override {
    return stage_.boundary_elements(batch, sequence);
  }
  bool runs_beside(const any& other) const override {
    return stage_.runs_beside(static_cast<const held_stage&>(other).stage_);
  }
  std::int64_t saved_bytes_per_slot() const noexcept override { return stage_.saved_bytes_per_slot(); }
  std::int64_t deferred_bytes() const noexcept override { return stage_.deferred_bytes(); }
  std::int64_t workspace_bytes() const noexcept override { return stage_.workspace_bytes(); }
  any_layers<typename Stage::scalar, typename Stage::space>& saved_layers() noexcept override {
    return stage_.saved_layers();
  }

  sum_row gradients() noexcept override { return stage_.gradients(); }
  std::int64_t tied_elements() const noexcept override { return stage_.tied_elements(); }
  sum_row tied_gradient() noexcept override { return stage_.tied_gradient(); }
  bool borrows_embedding() const noexcept override { return stage_.borrows_embedding(); }
  void lend_weights(row weights) override { stage_.lend_weights(weights); }
  void lend_gradients(sum_row gradients) override { stage_.lend_gradients(gradients); }
  void weights_stay(bool stay) override { stage_.weights_stay(stay); }
  compute::kept_weight_memory kept_weights() const noexcept override { return stage_.kept_weights(); }
  void release_kept_weights() noexcept override { stage_.release_kept_weights(); }
  void zero_gradients() override { stage_.zero_gradients(); }
  void initialize(std::uint64_t seed) override { stage_.initialize(seed); }
  void merge_adapters() override { stage_.merge_adapters(); }

  void forward(int slot, const batch_type& b, const_row in, row out) override { stage_.forward(slot, b, in, out); }
  void recompute(int slot) override { stage_.recompute(slot); }
  void backward(int slot, const batch_type& b, const_row dout, row din) override {
    stage_.backward(slot, b, dout, din);
  }
  void backward_input(int slot, const batch_type& b, const_row dout, row din) override {
    stage_.backward_input(slot, b, dout, din);
  }
  void backward_weight(int slot, const batch_type& b) override { stage_.backward_weight(slot, b); }
  void release(int slot) override { stage_.release(slot); }
  double loss_sum(int slot) const override { return stage_.loss_sum(slot); }
  double forward_only(const batch_type& b, const_row in, row out) override { return stage_.forward_only(b, in, out); }
  void last_logits(const batch_type& b, const_row in, row out, row logits) override {
    stage_.last_logits(b, in, out, logits);
  }
};

}  // namespace heddle::inline v0::model
