// heddle/train/trainer_weights.hpp: weights that a trainer keeps, for routes, or to be filled.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/parameter_route.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/optimizer_of_strategy.hpp>
#include <heddle/train/saved_boxes.hpp>
#include <heddle/train/saved_parameter.hpp>

#include <cstdint>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {

// Of a trainer, or of none: rows that it keeps from step to step, one for each bucket of each of its stages, and the boxes that they are.
// `kept(stage, optimizer)` is a row of a bucket, and the element of the bucket's flat buffer that it begins at.
template <class Trainer, class Row, class Kept>
std::vector<Row> kept_rows(Trainer* trainer, const Kept& kept) {
  std::vector<Row> rows;
  if (trainer == nullptr) return rows;
  if constexpr (requires { trainer->is_ahead(); })
    if (trainer->is_ahead())
      throw config_error(
          "heddle: the gradient norm of the last step is still on its way; call finish_step() before weights are sent");
  for (int k = 0; k < trainer->stages(); ++k)
    for_each_bucket(trainer->stage(k), trainer->optimizer_state(k),
                    [&](auto& stage, auto& optimizer, auto) { rows.push_back(kept(stage, optimizer).first); });
  return rows;
}
template <class Trainer, class Kept>
std::vector<model::parameter_box> kept_boxes(Trainer* trainer, const Kept& kept) {
  std::vector<model::parameter_box> boxes;
  int row = 0;
  for (int k = 0; trainer != nullptr && k < trainer->stages(); ++k)
    for_each_bucket(trainer->stage(k), trainer->optimizer_state(k), [&](auto& stage, auto& optimizer, auto) {
      const auto [elements, begin] = kept(stage, optimizer);
      for (const saved_parameter& p : parameters_to_save(stage)) {
        const kept_part part = part_in(p.offset, p.count, begin, element_count(elements));
        for (saved_box& b : saved_boxes(p, part))
          boxes.push_back({p.name, std::move(b.region.global), std::move(b.region.offset), std::move(b.region.local),
                           static_cast<std::int64_t>(b.at), row});
      }
      ++row;
    });
  return boxes;
}
struct keeps_weights {
  template <class Stage, class Optimizer>
  auto operator()(Stage& stage, Optimizer& optimizer) const {
    return std::pair(optimizer.weights_of(stage), optimizer.weights_begin());
  }
};
struct keeps_masters {
  template <class Stage, class Optimizer>
  auto operator()(Stage&, Optimizer& optimizer) const {
    return std::pair(optimizer.masters(), optimizer.owned_begin());
  }
};
template <bool Ok, class Trainer>
inline constexpr bool trainer_keeps_masters = Ok;

}  // namespace detail

/// The trained weights that the model of a trainer computes with as the source or the target of a `model::parameter_route`; none where the pointer is
/// null. They are sent from where they are: with `zero<3>` each rank's share, without a gather. As a target the optimizer's masters and moments stay
/// as they are (`adopt_weights`). The trainer must outlive it.
/// Errors: `config_error` while the gradient norm of a step is on its way (`post_validation`).
template <class Trainer>
class trainer_weights {
 public:
  using element = typename Trainer::scalar;
  using space = typename Trainer::space;
  using row = row_view<element, space>;

  explicit trainer_weights(Trainer* trainer) noexcept : trainer_(trainer) {}
  std::vector<model::parameter_box> boxes() const { return detail::kept_boxes(trainer_, detail::keeps_weights{}); }
  std::vector<row> rows() const { return detail::kept_rows<Trainer, row>(trainer_, detail::keeps_weights{}); }
  void written() const {
    for (int k = 0; trainer_ != nullptr && k < trainer_->stages(); ++k)
      model::of_stage::weights_written(trainer_->stage(k));
  }

 private:
  Trainer* trainer_;
};

/// The same of the master weights that its `precision` keeps (`masters_in`), of which with `zero<1>` and more each rank has a share: a source.
template <class Trainer>
class trainer_masters {
  using optimizer = typename detail::type_of_bucket<typename Trainer::optimizer_type>::type;
  static_assert(detail::trainer_keeps_masters<optimizer::keeps_masters, Trainer>,
                "heddle: this trainer keeps no master weights: take trainer_weights, or a strategy with "
                "precision<weights_in<bf16>, masters_in<float>>");

 public:
  using element = typename optimizer::master_type;
  using space = typename Trainer::space;
  using row = row_view<element, space>;

  explicit trainer_masters(Trainer* trainer) noexcept : trainer_(trainer) {}
  std::vector<model::parameter_box> boxes() const { return detail::kept_boxes(trainer_, detail::keeps_masters{}); }
  std::vector<row> rows() const { return detail::kept_rows<Trainer, row>(trainer_, detail::keeps_masters{}); }

 private:
  Trainer* trainer_;
};

/// Weights that a trainer is to go on with: `fill(stage)` writes those of each stage that a rank holds
/// (`model::read_parameters`, `stage.initialize`), which are whole then, with `zero<3>`, too; masters become what was
/// written (`adopt_weights`). Called on all ranks together, between steps.
template <class Trainer, class Fill>
void fill_weights(Trainer& trainer, Fill&& fill) {
  trainer.parameter_memory().with_weights([&] {
    for (int k = 0; k < trainer.stages(); ++k) {
      auto& filled = trainer.stage(k);
      fill(filled);
      model::of_stage::weights_written(filled);
      if constexpr (Trainer::zero_stage >= 3)
        detail::for_each_bucket(filled, trainer.optimizer_state(k), [](auto& stage, auto& optimizer, auto) {
          const auto whole = optimizer.owned(stage.weights()), share = optimizer.weights_of(stage);
          if (first_element(whole) != first_element(share))  // one rank
            detail::queue_of_stage(stage).copy(whole, share);
        });
    }
  });
  adopt_weights(trainer);
}

}  // namespace heddle::inline v0::train
