// heddle/model/any_layers.hpp: saved activations without type, for stages compiled once.
#pragma once

#include <heddle/model/saved_activations.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <memory>
#include <span>

namespace heddle::inline v0::model {

/// A `layer_memory` without its type, behind one virtual call for each member.
template <class T, memory_space Space = host_memory>
class any_layer_memory {
 public:
  using row = row_view<T, Space>;

  virtual ~any_layer_memory() = default;
  virtual row begin(int slot, int layer) = 0;
  virtual void saved(int slot, int layer) = 0;
  virtual row need(int slot, int layer) = 0;
  virtual void done(int slot, int layer) = 0;
  virtual void forget(int slot) = 0;
  virtual std::int64_t bytes_per_slot() const = 0;
  virtual bool moves_now() const noexcept = 0;
};

/// A `layer_memory` as an `any_layer_memory`.
template <class Memory, class T, memory_space Space = host_memory>
class held_layer_memory final : public any_layer_memory<T, Space> {
 public:
  using typename any_layer_memory<T, Space>::row;

  held_layer_memory(typename Space::queue& queue, const typename Memory::settings& how, int slots,
                    std::span<const std::int64_t> elements)
      : memory_(make_layer_memory<Memory>(queue, how, slots, elements)) {}

  Memory& memory() noexcept { return memory_; }
  row begin(int slot, int layer) override { return memory_.begin(slot, layer); }
  void saved(int slot, int layer) override { memory_.saved(slot, layer); }
  row need(int slot, int layer) override { return memory_.need(slot, layer); }
  void done(int slot, int layer) override { memory_.done(slot, layer); }
  void forget(int slot) override { memory_.forget(slot); }
  std::int64_t bytes_per_slot() const override { return memory_.bytes_per_slot(); }
  bool moves_now() const noexcept override { return model::moves_now(memory_); }

 private:
  Memory memory_;
};

/// The memory of saved activations that whoever makes a stage chooses at run time.
template <class T, memory_space Space = host_memory>
class any_layers {
 public:
  /// What makes the memory, and from which settings; none: `resident_layers`. Both are read by the constructor only.
  struct settings {
    std::unique_ptr<any_layer_memory<T, Space>> (*make)(typename Space::queue& queue, const void* how, int slots,
                                                        std::span<const std::int64_t> elements) = nullptr;
    const void* how = nullptr;

    /// To make a `Memory` from these settings, which must outlive the constructor's call.
    template <class Memory>
    static settings of(const typename Memory::settings& how) noexcept {
      return {
          [](typename Space::queue& queue, const void* of_memory, int slots, std::span<const std::int64_t> elements) {
            return std::unique_ptr<any_layer_memory<T, Space>>(std::make_unique<held_layer_memory<Memory, T, Space>>(
                queue, *static_cast<const typename Memory::settings*>(of_memory), slots, elements));
          },
          &how};
    }
  };
  using row = row_view<T, Space>;
  static constexpr bool moves = true;  // perhaps

  any_layers(typename Space::queue& queue, const settings& how, int slots, std::span<const std::int64_t> elements)
      : held_(how.make != nullptr
                  ? how.make(queue, how.how, slots, elements)
                  : settings::template of<resident_layers<T, Space>>({}).make(queue, &resident, slots, elements)) {}

  row begin(int slot, int layer) { return held_->begin(slot, layer); }
  void saved(int slot, int layer) { held_->saved(slot, layer); }
  row need(int slot, int layer) { return held_->need(slot, layer); }
  void done(int slot, int layer) { held_->done(slot, layer); }
  void forget(int slot) { held_->forget(slot); }
  std::int64_t bytes_per_slot() const { return held_->bytes_per_slot(); }
  bool moves_now() const noexcept { return held_->moves_now(); }
  any_layer_memory<T, Space>& held() noexcept { return *held_; }

 private:
  static constexpr typename resident_layers<T, Space>::settings resident{};
  std::unique_ptr<any_layer_memory<T, Space>> held_;
};

}  // namespace heddle::inline v0::model

namespace heddle::inline v0::activations {

/// Saved activations are where the settings of the stage say at run time (`model::any_layers`).
struct chosen_at_run_time {
  using kind = activations_kind;
  template <class T>
  using layers = model::any_layers<T>;
  template <class T, class Space>
  using layers_in = model::any_layers<T, Space>;
};

}  // namespace heddle::inline v0::activations
