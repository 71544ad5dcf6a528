// heddle/model/any_model.hpp: any Hugging Face model for a trainer, chosen at run time.
#pragma once

#include <heddle/compute/rounded_weights.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/layout/propagate.hpp>
#include <heddle/model/any_config.hpp>
#include <heddle/model/any_layers.hpp>
#include <heddle/model/any_stage.hpp>
#include <heddle/model/families.hpp>
#include <heddle/model/layer.hpp>
#include <heddle/model/parameter_buckets.hpp>
#include <heddle/model/saved_activations.hpp>
#include <heddle/model/sharding.hpp>
#include <heddle/model/stage_layers.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

namespace detail {
template <bool Ok, class Activations>
inline constexpr bool any_model_keeps_by = Ok;

// Bit i: whether axis i has more than one rank. Over others nothing is summed, whatever a layout says.
template <class... Axes>
constexpr unsigned axes_of_several_ranks(const mesh<Axes...>& m) noexcept {
  unsigned bits = 0, bit = 1;
  for (const int extent : m.extents()) {
    bits |= extent > 1 ? bit : 0;
    bit <<= 1;
  }
  return bits;
}
}  // namespace detail

/// An `any_stage` with the types of a trainer's ranks, the same for all families: gradients are summed over the axes that split samples, or over all
/// (those of norms that split heads share, and of some matrices of adapters). Where a family has none of the latter, their bucket is empty.
/// Errors: as of `make_stage` and `require_experts`; `config_error` for parameters whose gradients are summed over other axes.
template <class T, class World, class Backend, class Activations = activations::keep>
class trained_any_stage {
  using mesh_type = stage_mesh<std::remove_cvref_t<decltype(std::declval<World&>().mesh())>, pp, megatron<>>;
  using layouts = model::layouts<mesh_type, megatron<>>;

 public:
  using scalar = T;
  using space = space_of<Backend>;
  using any = any_stage<T, space>;
  using batch_type = typename any::batch_type;
  using row = typename any::row;
  using const_row = typename any::const_row;
  using sum_row = typename any::sum_row;
  // As those of a `language_stage`.
  using flat_weights =
      typename detail::flat_layout<mesh_type, detail::summed_axes_of<layouts>, typename mesh_type::tags>::type;
  using buckets =
      type_list<flat_weights,
                typename detail::flat_layout<mesh_type, typename mesh_type::tags, typename mesh_type::tags>::type>;
  using axes = typename detail::sharding_rules<megatron_folded<>>::axes;
  using samples = typename detail::samples_layout_of<mesh_type, megatron<>>::type;
  using loss = propagate<"b->", typename layouts::template edge<dims<>, dims<dim::vocabulary>>>;
  /// Where the blocks' saved activations are.
  using layers_memory = typename detail::layers_of_policy<Activations, T, space>::type;
  static_assert(
      detail::any_model_keeps_by<!requires(const typename layers_memory::settings& s) { s.again; }, Activations>,
      "heddle: model::any_model computes nothing again: take activations::keep or activations::offload, or give the "
      "trainer the model's own type");

  trained_any_stage(const any_config& config, World& world, Backend& backend, stage_layers part, int slots,
                    std::int64_t max_samples, int deferred = 1, trained_any_stage* lender = nullptr,
                    const typename layers_memory::settings& saving = {})
      : stage_(make_stage<T>(config, world, backend, part, slots, max_samples, deferred,
                             lender == nullptr ? nullptr : lender->stage_.get(),
                             any_layers<T, space>::settings::template of<layers_memory>(saving))) {
    require_experts(config, world.mesh().template extent_or_one<ep>());
    static constexpr auto axes = detail::summed_axes_of_buckets(buckets{});
    const auto of_stage = stage_->axes_of_buckets();
    const unsigned several = detail::axes_of_several_ranks(make_stage_mesh<mesh_type>(world.mesh()));
    if (of_stage.size() > axes.size() || !std::equal(of_stage.begin(), of_stage.end(), axes.begin(),
                                                     [&](unsigned a, unsigned b) { return ((a ^ b) & several) == 0; }))
      throw config_error(
          "heddle: gradients of this model are summed over other axes than those that split samples, or all: give the "
          "trainer the model's own type in place of model::any_model");
    std::copy_n(stage_->bucket_elements().begin(), of_stage.size(), bucket_elements_.begin());
    copies_ = detail::copies_of_buckets(world, buckets{});
  }

  any& held() noexcept { return *stage_; }
  operator any&() noexcept { return *stage_; }

  typename space::queue& queue() const noexcept { return stage_->queue(); }
  stage_layers layers() const noexcept { return stage_->layers(); }
  bool is_first() const noexcept { return stage_->is_first(); }
  bool is_last() const noexcept { return stage_->is_last(); }
  std::int64_t boundary_elements(std::int64_t batch, int sequence = 0) const noexcept {
    return stage_->boundary_elements(batch, sequence);
  }
  bool runs_beside(const trained_any_stage& other) const {
    return this != &other && stage_->runs_beside(*other.stage_);
  }
  std::int64_t saved_bytes_per_slot() const noexcept { return stage_->saved_bytes_per_slot(); }
  std::int64_t deferred_bytes() const noexcept { return stage_->deferred_bytes(); }
  std::int64_t workspace_bytes() const noexcept { return stage_->workspace_bytes(); }
  layers_memory& saved_layers() noexcept {
    return static_cast<held_layer_memory<layers_memory, T, space>&>(stage_->saved_layers().held()).memory();
  }

  const std::vector<parameter>& parameters() const noexcept { return stage_->parameters(); }
  row weights() noexcept { return stage_->weights(); }
  const_row weights() const noexcept { return std::as_const(*stage_).weights(); }
  const std::vector<parameter>& frozen_parameters() const noexcept { return stage_->frozen_parameters(); }
  row frozen_weights() noexcept { return stage_->frozen_weights(); }
  bool has_saved_frozen() const noexcept { return stage_->has_saved_frozen(); }
  sum_row gradients() noexcept { return stage_->gradients(); }
  std::int64_t flat_elements() const noexcept { return stage_->flat_elements(); }
  const auto& bucket_elements() const noexcept { return bucket_elements_; }
  const auto& copies_of_buckets() const noexcept { return copies_; }
  std::int64_t tied_elements() const noexcept { return stage_->tied_elements(); }
  sum_row tied_gradient() noexcept { return stage_->tied_gradient(); }
  bool borrows_embedding() const noexcept { return stage_->borrows_embedding(); }
  void lend_weights(row weights) { stage_->lend_weights(weights); }
  void lend_gradients(sum_row gradients) { stage_->lend_gradients(gradients); }
  void weights_stay(bool stay) { stage_->weights_stay(stay); }
  void weights_written() noexcept { stage_->weights_written(); }
  compute::kept_weight_memory kept_weights() const noexcept { return stage_->kept_weights(); }
  void release_kept_weights() noexcept { stage_->release_kept_weights(); }
  void zero_gradients() { stage_->zero_gradients(); }
  void initialize(std::uint64_t seed) { stage_->initialize(seed); }
  void merge_adapters() { stage_->merge_adapters(); }

  void forward(int slot, const batch_type& b, const_row in, row out) { stage_->forward(slot, b, in, out); }
  void recompute(int slot) { stage_->recompute(slot); }
  void backward(int slot, const batch_type& b, const_row dout, row din) { stage_->backward(slot, b, dout, din); }
  void backward_input(int slot, const batch_type& b, const_row dout, row din) {
    stage_->backward_input(slot, b, dout, din);
  }
  void backward_weight(int slot, const batch_type& b) { stage_->backward_weight(slot, b); }
  void release(int slot) { stage_->release(slot); }
  double loss_sum(int slot) const { return stage_->loss_sum(slot); }
  double forward_only(const batch_type& b, const_row in, row out) { return stage_->forward_only(b, in, out); }
  void last_logits(const batch_type& b, const_row in, row out, row logits) { stage_->last_logits(b, in, out, logits); }

 private:
  std::unique_ptr<any> stage_;
  std::array<std::int64_t, buckets::size> bucket_elements_{};
  std::array<detail::copy_of, buckets::size> copies_{};
};

/// Any model of Hugging Face with elements of type T, whole or with adapters, for a trainer: `train::make_trainer<strategy>(any_model<float>{}, world,
/// options)`, where `options.model` is an `any_config`. A trainer is compiled once for all of them; saves, messages and numbers are those of the
/// model's own type. Activations are kept or offloaded.
template <class T>
struct any_model {
  using scalar = T;
  using config = any_config;
  using batch = model::batch<T>;
  template <class World, class Backend, class Activations = activations::keep>
  using stage = trained_any_stage<T, World, Backend, Activations>;
  static constexpr stage_layers layers_of(const any_config& c, int stage, int stages) noexcept {
    return split_layers(c.layers, stage, stages);
  }
  static stage_layers layers_of(const any_config& c, int stage, std::span<const int> counts) {
    return given_layers(c.layers, stage, counts);
  }
};

}  // namespace heddle::inline v0::model
