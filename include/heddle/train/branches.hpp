// heddle/train/branches.hpp: draws weights of trainers on branches together, and merges them.
#pragma once

#include <heddle/comm/gathered_words.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/compute/ops/elementwise.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/saved_parameter.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// How branches keep to themselves.
struct branch_options {
  double keep = 0.999;    ///< d in [0.5, 1]: 1 exchanges nothing, 0.5 makes the branches equal
  bool adaptive = false;  ///< of two branches: d = keep + (1 - keep) * the mean over tensors of the cosine between them
};

/// Losses of branches on their own held-out samples: with the weights of each, and with the mean of all.
struct branch_losses {
  std::vector<double> own{}, at_mean{};

  /// What the mean over branches rises by at the mean of the weights: above 0 there is a barrier between them.
  HEDDLE_INLINE double barrier() const;
};

namespace detail {

// Errors: `config_error` for a `keep` outside of [0.5, 1], `adaptive` with more than two branches, ranks that are no branches of a
// trainer's.
HEDDLE_INLINE void require_branches(const branch_options& options, int branches, int ranks, int ranks_of_trainer);
// Errors: `config_error` unless there is one for each branch and they add up to 1.
HEDDLE_INLINE void require_merge_weights(std::span<const double> weights, int branches);
// What tells tensors apart, as good as surely.
HEDDLE_INLINE std::int64_t word_of_name(const std::string& name);
// Which parameter differs from those of branch 0: "branch 1 has blocks.0.up.weight of 12 elements where branch 0 has ...".
struct branch_parameter {
  std::string name{};
  std::int64_t count = 0;
};
HEDDLE_INLINE std::string difference_of_branches(std::span<const branch_parameter> mine, int branch,
                                                 std::span<const branch_parameter> first);
HEDDLE_INLINE std::vector<std::int64_t> words_of(std::span<const branch_parameter> all);
HEDDLE_INLINE std::vector<branch_parameter> parameters_of(std::span<const std::int64_t> words);
// The mean of gb / sqrt(gg bb) over tensors, of three sums each; two tensors of zeros are equal.
HEDDLE_INLINE double mean_cosine(std::span<const double> sums);

template <bool Ok, class Axis, class World>
inline constexpr bool axis_of_branches = Ok;
template <bool Ok, class Optimizer>
inline constexpr bool keeps_small_changes = Ok;

// What an optimizer keeps of the weights of its part: the row that `change_weights` gives.
template <class Stage, class Optimizer>
auto kept_weights(Stage& stage, Optimizer& optimizer) {
  if constexpr (Optimizer::keeps_masters)
    return optimizer.masters();
  else if constexpr (Optimizer::zero_stage >= 3)
    return optimizer.weights_of(stage);
  else
    return optimizer.owned(optimizer.weights_of(stage));
}
// Memory for such a row.
template <class Trainer, class Optimizer = typename type_of_bucket<typename Trainer::optimizer_type>::type>
using kept_buffer = buffer<
    element_of<decltype(kept_weights(std::declval<typename Trainer::stage_type&>(), std::declval<Optimizer&>()))>,
    typename Trainer::space>;

}  // namespace detail

/// Draws the weights of branches together over `Axis`, an axis of the ranks that the trainers do not have: after an exchange the weights
/// of each are mean + (2d - 1)(W - mean), all branches at once, of the weights before. Made by `branches<Axis>`.
/// Sent: one all-reduce of the part that a rank's optimizer owns. Memory: that of the largest bucket once, of all with `adaptive`;
/// it is kept from one exchange to the next, and copies of an exchange share it. Moments are not exchanged, nor is what is frozen.
/// Source: PBaSR, arXiv:2407.14880; for more than two branches elastic averaging (arXiv:1412.6651).
template <class Axis, class World, class Buffer>
class branch_exchange {
  using T = typename Buffer::element_type;
  using space = typename Buffer::space;

 public:
  branch_exchange(World& world, branch_options options, std::vector<std::int64_t> tensors)
      : world_(&world), options_(options), tensors_(std::move(tensors)) {}

  /// One exchange. Called on all ranks together: `train::every(1, exchange)`. Errors: `config_error` while a step's norm is on its way.
  template <class Trainer>
  void operator()(Trainer& trainer) {
    if (options_.keep == 1) return;
    if (!options_.adaptive) return mix(trainer, 2 * options_.keep - 1);
    const auto sums = sums_of(trainer);
    const double keep = options_.keep + (1 - options_.keep) * cosine(trainer, sums);
    last_->keep = keep;
    std::size_t at = 0;
    trainer.change_weights([&](auto row) { draw(trainer, row, sums[at++], 2 * keep - 1); });
  }
  /// Gives all branches the mean of their weights, or the sum by `weights`, one for each branch: then save any of them.
  /// Errors: `config_error` unless there is one for each branch and they add up to 1.
  template <class Trainer>
  void merge(Trainer& trainer, std::span<const double> weights = {}) {
    if (weights.empty()) return mix(trainer, 0);
    detail::require_merge_weights(weights, group().size());
    const double mine = weights[static_cast<std::size_t>(group().rank())];
    trainer.change_weights([&](auto row) {
      scale(trainer, row, mine);
      heddle::v0::all_reduce(queue_of(trainer), group(), row, plus{});
    });
  }
  /// What the losses on held-out samples of each branch's `data` are with its own weights and with the mean of all, which are then put back.
  template <class Trainer, class Data>
  branch_losses barrier(Trainer& trainer, const Data& data) {
    branch_losses losses;
    losses.own = of_branches(trainer.validate(data));
    std::vector<Buffer> before;
    each_kept(trainer, [&](auto&, auto&, auto kept) {
      before.emplace_back(queue_of(trainer), static_cast<std::int64_t>(kept.size()), "weights of a branch");
      queue_of(trainer).copy(kept, before.back());
    });
    mix(trainer, 0);
    losses.at_mean = of_branches(trainer.validate(data));
    std::size_t at = 0;
    trainer.change_weights([&](auto row) { queue_of(trainer).copy(before[at++], row); });
    return losses;
  }
  /// The `d` of the last exchange, of this or of a copy.
  double keep() const noexcept { return last_->keep; }

 private:
  struct last {
    double keep = 1;
    std::vector<Buffer> memory{};
  };

  auto& group() { return world_->template along<Axis>(); }
  template <class Trainer>
  static auto& queue_of(Trainer& trainer) {
    return compute::queue_of(trainer.backend());
  }
  // f(stage, optimizer, kept row) for each bucket.
  template <class Trainer, class F>
  static void each_kept(Trainer& trainer, F&& f) {
    for (int k = 0; k < trainer.stages(); ++k)
      detail::for_each_bucket(trainer.stage(k), trainer.optimizer_state(k),
                              [&](auto& stage, auto& of, auto) { f(stage, of, detail::kept_weights(stage, of)); });
  }
  // The sum of a row over the branches, in memory number `k`.
  template <class Trainer, class Row>
  row_view<T, space> sum_of(Trainer& trainer, std::size_t k, const Row& row) {
    std::vector<Buffer>& memory = last_->memory;
    if (memory.size() <= k) memory.resize(k + 1);
    const auto size = static_cast<std::int64_t>(row.size());
    if (static_cast<std::int64_t>(memory[k].size()) < size)
      memory[k] = Buffer(queue_of(trainer), size, "weights of branches");
    const auto sum = row_at<space>(memory[k].address(), size);
    queue_of(trainer).copy(row, sum);
    heddle::v0::all_reduce(queue_of(trainer), group(), sum, plus{});
    return sum;
  }
  template <class Trainer>
  std::vector<row_view<T, space>> sums_of(Trainer& trainer) {
    std::vector<row_view<T, space>> sums;
    each_kept(trainer, [&](auto&, auto&, auto kept) { sums.push_back(sum_of(trainer, sums.size(), kept)); });
    return sums;
  }
  template <class Trainer>
  void mix(Trainer& trainer, double rho) {
    trainer.change_weights([&](auto row) { draw(trainer, row, sum_of(trainer, 0, row), rho); });
    last_->keep = (1 + rho) / 2;
  }
  // row = mean + rho (row - mean), of the sum over branches, which is used up.
  template <class Trainer, class Row>
  void draw(Trainer& trainer, const Row& row, const row_view<T, space>& sum, double rho) {
    const T each = T(1) / static_cast<T>(group().size()), r = static_cast<T>(rho);
    if constexpr (std::is_same_v<space, host_memory>) {
      const T* const s = sum.data();
      T* const w = row.data();
      for (std::size_t i = 0; i < row.size(); ++i) {
        const T mean = s[i] * each;
        w[i] = rho == 0 ? mean : mean + r * (w[i] - mean);
      }
    } else {
      auto& backend = trainer.backend();
      const row_view<T, space> mean = sum;
      const row_view<const T, space> read_mean(mean), read_row(row);
      compute::run<compute::ops::scale>(backend, mean, rho == 0 ? each : -each);
      if (rho == 0) return queue_of(trainer).copy(mean, row);
      compute::run<compute::ops::add>(backend, read_row, read_mean, row);  // row - mean
      compute::run<compute::ops::scale>(backend, row, r);
      compute::run<compute::ops::scale>(backend, mean, T(-1));
      compute::run<compute::ops::add>(backend, read_mean, read_row, row);
    }
  }
  template <class Trainer, class Row>
  static void scale(Trainer& trainer, const Row& row, double factor) {
    if constexpr (std::is_same_v<space, host_memory>)
      for (T& w : row) w *= static_cast<T>(factor);
    else
      compute::run<compute::ops::scale>(trainer.backend(), row, static_cast<T>(factor));
  }
  // The mean over tensors of the cosine between the two branches: the same bits on all ranks.
  template <class Trainer>
  double cosine(Trainer& trainer, const std::vector<row_view<T, space>>& sums) {
    std::vector<double> all(3 * tensors_.size());
    const std::size_t branch = static_cast<std::size_t>(group().rank());
    std::size_t at = 0;
    each_kept(trainer, [&](auto& stage, auto& of, auto kept) {
      const auto own = detail::read_of_stage(stage, kept), sum = detail::read_of_stage(stage, sums[at++]);
      for (const detail::saved_parameter& p : detail::saved_parameters(stage)) {
        const detail::kept_part part = detail::part_in(p.offset, p.count, of.owned_begin(), own.elements().size());
        double both = 0, mine = 0;
        for (std::size_t i = part.at; i < part.at + part.count; ++i) {
          const auto w = static_cast<double>(own.elements()[i]);
          both += w * (static_cast<double>(sum.elements()[i]) - w);
          mine += w * w;
        }
        double* slot = &all[3 * place_of(p.name)];
        slot[0] += both / 2;
        slot[1 + branch] += mine;
      }
    });
    world_->control().all_reduce(std::span<double>(all), plus{});
    return detail::mean_cosine(all);
  }
  std::size_t place_of(const std::string& name) const {
    return static_cast<std::size_t>(std::lower_bound(tensors_.begin(), tensors_.end(), detail::word_of_name(name)) -
                                    tensors_.begin());
  }
  // What all ranks of a branch know, of each branch.
  std::vector<double> of_branches(double mine) {
    std::vector<double> all(static_cast<std::size_t>(group().size()));
    world_->template control_along<Axis>().all_gather(std::span<const double>(&mine, 1), std::span<double>(all));
    return all;
  }

  World* world_;
  branch_options options_;
  std::vector<std::int64_t> tensors_;  // words of all names, in order; with `adaptive`
  std::shared_ptr<last> last_ = std::make_shared<last>();
};

/// Trainers on the ranks of `world.sub<...>()` of all axes but `Axis` are branches: each trains on data of its own, and no gradient crosses.
/// What this returns draws their weights together, and merges them. `trainer` must have the same parameters on all branches; `world` must
/// outlive it. Called on all ranks together.
/// ```
/// auto exchange = hd::train::branches<branch>(trainer, world, {.keep = 0.999});
/// trainer.run(data, hd::train::quiet{}, hd::train::every(1, exchange));
/// exchange.merge(trainer);
/// ```
/// Errors: `config_error` for options that are out of range, ranks that are no branches of a trainer's, other parameters.
template <class Axis, class Trainer, class World>
branch_exchange<Axis, World, detail::kept_buffer<Trainer>> branches(Trainer& trainer, World& world,
                                                                    branch_options options = {}) {
  constexpr bool known = World::mesh_type::template has<Axis>, apart = !Trainer::mesh_type::template has<Axis>;
  using optimizer = typename detail::type_of_bucket<typename Trainer::optimizer_type>::type;
  constexpr bool exact = optimizer::keeps_masters || sizeof(typename optimizer::weight_type) > 2;
  static_assert(detail::axis_of_branches<known, Axis, World>,
                "heddle: branches<Axis>: the world has no axis with this tag; name the axis that branches lie along");
  static_assert(detail::axis_of_branches<apart, Axis, World>,
                "heddle: branches are ranks along an axis that the trainer does not have: give it world.sub<...>() of "
                "the others");
  static_assert(
      detail::keeps_small_changes<exact, optimizer>,
      "heddle: branches exchange a thousandth of their difference, which weights of 16 bits round away: give the "
      "strategy precision<masters_in<float>>");
  std::vector<std::int64_t> tensors;
  if constexpr (known && apart && exact) {
    auto& across = world.template control_along<Axis>();
    detail::require_branches(options, across.size(), world.size(), trainer.ranks().size());
    std::vector<detail::branch_parameter> mine;
    for (int k = 0; k < trainer.stages(); ++k)
      for (const detail::saved_parameter& p : detail::saved_parameters(trainer.stage(k)))
        mine.push_back({p.name, p.count});
    const gathered_words all = gather_words(across, detail::words_of(mine));
    detail::throw_together<config_error>(
        world.control(), detail::difference_of_branches(mine, across.rank(), detail::parameters_of(all.of(0))));
    if (options.adaptive) {
      std::vector<std::int64_t> names;
      for (const detail::branch_parameter& p : mine) names.push_back(detail::word_of_name(p.name));
      tensors = gather_words(trainer.ranks().control(), names).words;
      std::sort(tensors.begin(), tensors.end());
      tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
    }
  }
  return {world, options, std::move(tensors)};
}

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/branches.hpp>
#endif
