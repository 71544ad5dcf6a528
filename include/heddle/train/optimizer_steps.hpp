// heddle/train/optimizer_steps.hpp: optimizer steps of all stages, clipped or taken back.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/learning_rate.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/step_sums.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// Steps the stages that a rank holds (`local_stages`), each at most once between two calls of `begin`.
/// With `Copies`, steps are taken back from copies. Units: `step` counts from 0. The learning rate is read from the options at
/// each step: they must live as long. Where gradients lie in memory that the host may not touch, their squares are added up
/// there, one number for each stage, and read once for all of them (`squares`).
template <class HeldStages, class Backend, bool Copies = false>
class optimizer_steps {
 public:
  using held_type = typename HeldStages::held;
  using scalar = typename HeldStages::scalar;
  using space = typename HeldStages::space;
  using const_row = row_view<const scalar, space>;
  using const_sum_row = row_view<const sum_of_type<scalar>, space>;  // of gradients
  using optimizer_type = typename HeldStages::optimizer_type;
  using rule = typename optimizer_type::rule;
  using rule_options = typename optimizer_type::rule_options;

  template <class Options>
  optimizer_steps(HeldStages& held, Backend& backend, const Options& options)
      : held_(held),
        backend_(backend),
        constants_(detail::options_of_rule_in<rule>(options)),
        learning_rate_(options.learning_rate),
        clip_norm_(options.clip_norm) {
    if constexpr (detail::acts_on_whole_tensors<rule>)
      held_.for_each([&](held_type& h) {
        for_each_bucket(h, [&](auto&, auto& optimizer, auto) { optimizer.prepare(constants_); });
      });
    if constexpr (Copies)  // so that their memory is there, and counted, before the first step
      held_.for_each(
          [](held_type& h) { for_each_bucket(h, [](auto&, auto& optimizer, auto) { optimizer.allocate_copies(); }); });
  }

  /// As torch.nn.utils.clip_grad_norm_: the coefficient is applied always, and is 1 below the limit.
  double coefficient(double norm) const { return (std::min)(1.0, clip_norm_ / (norm + 1e-6)); }
  bool is_unclipped(double squares) const { return std::isfinite(squares) && coefficient(std::sqrt(squares)) == 1; }
  /// The same of a part of the sums of a step, and its loss is finite.
  bool is_unclipped(const step_sums& part) const { return std::isfinite(part.loss) && is_unclipped(part.squares); }
  /// What this rank adds to the squared norm, of one stage and of all. Both wait for the backend's queue.
  double squares_of(held_type& h) const {
    double sum = 0;
    for_each_bucket(h, [&](auto& stage, auto& optimizer, auto) {
      sum += optimizer.counted_sum_of_squares(backend_, const_sum_row(optimizer.gradients_of(stage)));
    });
    return sum;
  }
  double squares() {
    double sum = 0;
    if constexpr (std::is_same_v<space, host_memory>) {
      held_.for_each([&](held_type& h) { sum += squares_of(h); });
    } else if (held_.size() > 0) {
      auto& queue = compute::queue_of(backend_);
      std::vector<double> of_stages(static_cast<std::size_t>(held_.size()));
      queue.copy(squares_there(), of_stages);
      queue.wait();
      sum = std::accumulate(of_stages.begin(), of_stages.end(), 0.0);
    }
    return sum;
  }
  /// The squared norms of the stages in their memory, in the order of the queue.
  row_view<const double, space> squares_there()
    requires(!std::is_same_v<space, host_memory>)
  {
    auto& queue = compute::queue_of(backend_);
    if (static_cast<int>(sums_.size()) < held_.size())
      sums_ = buffer<double, space>(queue, held_.size(), "the squared gradient norms of stages");
    queue.zero(sums_);
    for (int k = 0; k < held_.size(); ++k)
      for_each_bucket(held_[k], [&](auto& stage, auto& optimizer, auto) {
        optimizer.add_counted_squares(backend_, const_sum_row(optimizer.gradients_of(stage)),
                                      scalar_view<double, space>(sums_.address() + k, {}));
      });
    return row_at<space>(sums_.address(), held_.size());
  }

  void begin() {
    held_.for_each([](held_type& h) { h.stepped = false; });
  }
  void update(held_type& h, double gradient_scale, std::int64_t step) {
    for_each_bucket(h, [&](auto& stage, auto& optimizer, auto) {
      if constexpr (Copies)
        if (gradient_scale == 1.0) optimizer.remember(const_row(optimizer.weights_of(stage)));
      optimizer.update(backend_, optimizer.weights_of(stage), const_sum_row(optimizer.gradients_of(stage)), constants_,
                       learning_rate_(step), step + 1, gradient_scale);
    });
    h.stepped = true;
    model::of_stage::weights_written(h.stage);
  }
  /// Steps all stages by `update(owned_parameters)` in the place of the rule.
  template <class Update>
  void update_by(double gradient_scale, Update&& update) {
    held_.for_each([&](held_type& h) {
      for_each_bucket(h, [&](auto& stage, auto& optimizer, auto) {
        optimizer.update_by(optimizer.weights_of(stage), const_sum_row(optimizer.gradients_of(stage)), gradient_scale,
                            update);
      });
      h.stepped = true;
      model::of_stage::weights_written(h.stage);
    });
  }
  /// Calls `work(row)` for what this rank's optimizer keeps of each stage, or bucket of it.
  template <class Work>
  void change(Work&& work) {
    held_.for_each([&](held_type& h) {
      for_each_bucket(h, [&](auto& stage, auto& optimizer, auto) { optimizer.change(optimizer.weights_of(stage), work); });
      model::of_stage::weights_written(h.stage);
    });
  }
  /// The scalars that the kernels of a step read with `update_at`: f(scalars) for each.
  template <class F>
  void each_step(std::int64_t step, F&& f) {
    held_.for_each([&](held_type& h) {
      for_each_bucket(
          h, [&](auto&, auto& optimizer, auto) { optimizer.each_step(constants_, learning_rate_(step), step + 1, f); });
    });
  }
  /// Steps all stages, with what is read from memory when the kernels run.
  void update_at(typename optimizer_type::step_at at) {
    held_.for_each([&](held_type& h) {
      for_each_bucket(h, [&](auto& stage, auto& optimizer, auto) {
        at = optimizer.update_at(backend_, optimizer.weights_of(stage), const_sum_row(optimizer.gradients_of(stage)),
                                 constants_, at);
      });
      h.stepped = true;
      model::of_stage::weights_written(h.stage);
    });
  }
  double clip_norm() const noexcept { return clip_norm_; }
  /// Factors of the learning rate for some parameters.
  const parameter_rates& rates() const noexcept { return detail::rates_of(constants_); }
  bool all_stepped() const {
    bool all = true;
    held_.for_each([&](held_type& h) { all = all && h.stepped; });
    return all;
  }
  /// Steps those that have not.
  void update_others(double gradient_scale, std::int64_t step) {
    held_.for_each([&](held_type& h) {
      if (!h.stepped) update(h, gradient_scale, step);
    });
  }
  /// Takes back the steps with a scale of 1: weights and moments are those before, up to rounding where there is no copy.
  /// Whether there were any.
  bool take_back(std::int64_t step) {
    bool any = false;
    held_.for_each([&](held_type& h) {
      if (!std::exchange(h.stepped, false)) return;
      any = true;
      for_each_bucket(h, [&](auto& stage, auto& optimizer, auto) {
        if constexpr (Copies)
          optimizer.restore(optimizer.weights_of(stage));
        else
          optimizer.undo(backend_, optimizer.weights_of(stage), const_sum_row(optimizer.gradients_of(stage)),
                         constants_, learning_rate_(step), step + 1, 1.0);
      });
      model::of_stage::weights_written(h.stage);
    });
    return any;
  }

 private:
  template <class F>
  static void for_each_bucket(held_type& h, F&& f) {
    detail::for_each_bucket(h.stage, h.optimizer, f);
  }

  HeldStages& held_;
  Backend& backend_;
  rule_options constants_;
  const any_learning_rate& learning_rate_;
  double clip_norm_;
  buffer<double, space> sums_{};  // not on the host
};

}  // namespace heddle::inline v0::train
