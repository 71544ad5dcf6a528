// heddle/train/impl/weight_forecast.hpp: bodies of heddle/train/weight_forecast.hpp.
#pragma once

#include <heddle/train/weight_forecast.hpp>
#include <heddle/schedule/action.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/train/buffer_pool.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::train::detail {

// Counts elements that come and go, of all sizes together or of each for itself.
class size_meter {
 public:
  explicit size_meter(bool by_size) : by_size_(by_size) {}
  void take(std::int64_t elements) { of(elements).take(elements); }
  void give(std::int64_t elements) { of(elements).give(elements); }
  // At least one buffer of so many has been there.
  void once(std::int64_t elements) {
    byte_meter& meter = of(elements);
    meter.peak = (std::max)(meter.peak, elements);
  }
  std::int64_t peak() const {
    std::int64_t sum = 0;
    for (const auto& [size, meter] : meters_) sum += meter.peak;
    return sum;
  }

 private:
  byte_meter& of(std::int64_t elements) { return meters_[by_size_ ? elements : 0]; }
  bool by_size_;
  std::map<std::int64_t, byte_meter> meters_;
};

// Takes and gives the weights of the stages that UNSHARD and RESHARD of a stage are of.
class whole_weight_meter {
 public:
  explicit whole_weight_meter(std::span<const whole_stage> stages) : stages_(stages), users_(stages.size(), 0) {}

  void count(const schedule::action& a, size_meter& meter) {
    using schedule::action_kind;
    if (a.kind != action_kind::unshard && a.kind != action_kind::reshard) return;
    const auto own = std::find_if(stages_.begin(), stages_.end(), [&](const auto& s) { return s.index == a.stage; });
    for (std::size_t k = 0; k < stages_.size(); ++k) {
      if (stages_[k].index != a.stage && !(own->borrows && stages_[k].part == 0)) continue;
      if (a.kind == action_kind::unshard && users_[k]++ == 0) meter.take(stages_[k].elements);
      if (a.kind == action_kind::reshard && --users_[k] == 0) meter.give(stages_[k].elements);
    }
  }

 private:
  std::span<const whole_stage> stages_;
  std::vector<int> users_;
};

HEDDLE_INLINE std::int64_t most_whole_weights(schedule::table_view table, int rank,
                                              std::span<const whole_stage> stages) {
  size_meter meter(false);
  whole_weight_meter weights(stages);
  for (const schedule::action& a : table.list(rank)) weights.count(a, meter);
  return meter.peak();
}

HEDDLE_INLINE std::int64_t most_lent(schedule::table_view table, int rank, std::span<const whole_stage> stages,
                                     lent_kinds kinds, bool by_size) {
  using schedule::action_kind;
  size_meter meter(by_size);
  whole_weight_meter weights(stages);
  std::vector<int> has_gradients(stages.size(), 0), reduced(stages.size(), 0);
  const auto gradients = [&](std::size_t k) {
    if (kinds.gradients && std::exchange(has_gradients[k], 1) == 0) meter.take(stages[k].elements);
  };
  if (kinds.weights)
    for (const whole_stage& s : stages) meter.once(s.elements);
  for (const schedule::action& a : table.list(rank)) {
    const bool backward = a.kind == action_kind::backward || a.kind == action_kind::backward_input ||
                          a.kind == action_kind::backward_weight;
    for (std::size_t k = 0; k < stages.size(); ++k) {
      if (stages[k].index != a.stage) continue;
      if (backward || a.kind == action_kind::reduce_gradient) gradients(k);
      if (a.kind == action_kind::reduce_gradient && stages[k].complete_alone && kinds.gradients) {
        meter.give(stages[k].elements);
        reduced[k] = 1;
      }
    }
    if (kinds.weights) weights.count(a, meter);
  }
  for (std::size_t k = 0; k < stages.size(); ++k)
    if (reduced[k] == 0) gradients(k);
  return meter.peak();
}

}  // namespace heddle::inline v0::train::detail
