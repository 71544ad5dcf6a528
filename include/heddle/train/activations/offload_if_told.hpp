// heddle/train/activations/offload_if_told.hpp: offloads where options say folders.
#pragma once

#include <heddle/core/policy.hpp>
#include <heddle/model/saved_activations.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/activations/store.hpp>

#include <cstdint>
#include <optional>
#include <span>

namespace heddle::inline v0::activations {

/// The memory of `Moved` where `offload_settings::store` names folders; else `model::resident_layers`, and no store is made.
template <class T, class Moved, memory_space Space = host_memory>
class layers_if_told {
 public:
  using settings = offload_settings;
  using row = row_view<T, Space>;
  static constexpr bool moves = true;  // perhaps

  layers_if_told(typename Space::queue& queue, const settings& how, int slots, std::span<const std::int64_t> elements) {
    if (how.store.directories.empty())
      kept_.emplace(queue, typename model::resident_layers<T, Space>::settings{}, slots, elements);
    else
      moved_.emplace(queue, how, slots, elements);
  }

  row begin(int slot, int layer) { return moved_ ? moved_->begin(slot, layer) : kept_->begin(slot, layer); }
  void saved(int slot, int layer) {
    if (moved_) moved_->saved(slot, layer);
  }
  row need(int slot, int layer) { return moved_ ? moved_->need(slot, layer) : kept_->need(slot, layer); }
  void done(int slot, int layer) {
    if (moved_) moved_->done(slot, layer);
  }
  void forget(int slot) {
    if (moved_) moved_->forget(slot);
  }
  void reload(int slot) {
    if (moved_) moved_->reload(slot);
  }
  void begin_step() {
    if (moved_) moved_->begin_step();
  }
  std::int64_t bytes_per_slot() const noexcept { return moved_ ? moved_->bytes_per_slot() : kept_->bytes_per_slot(); }
  /// Whether layers leave.
  bool moves_now() const noexcept { return moved_.has_value(); }
  /// What became of them; nothing where none leaves.
  offload_report report() const { return moved_ ? moved_->report() : offload_report{}; }

 private:
  std::optional<model::resident_layers<T, Space>> kept_{};
  std::optional<Moved> moved_{};
};

/// As `Offload` where `options.offload.store.directories` names folders, else as `keep`: the same type of trainer for both, as tools
/// need it that take the folders from their command line.
template <class Offload = offload<>>
struct offload_if_told {
  using kind = activations_kind;
  static constexpr bool reloads = true;
  /// Whether activations have to be brought back before a backward.
  static constexpr bool reloads_with(const offload_settings& how) noexcept { return !how.store.directories.empty(); }
  template <class T>
  using layers = layers_if_told<T, typename Offload::template layers<T>>;
  template <class T, class Space>
  using layers_in = layers_if_told<T, typename Offload::template layers_in<T, Space>, Space>;
};

}  // namespace heddle::inline v0::activations
