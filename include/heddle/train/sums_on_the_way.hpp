// heddle/train/sums_on_the_way.hpp: a step's sums, reduced during the next forwards.
#pragma once

#include <heddle/core/type_list.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/train/step_sums.hpp>
#include <heddle/train/training_axes.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {

// The sum over two groups, in the order of their ranks: the same bits on all of them.
template <class Data, class Inside>
double sum_over_replicas(double mine, Data& data, Inside& inside) {
  const auto add = [&](auto& along) {
    if (along.size() == 1) return;
    std::vector<double> all(static_cast<std::size_t>(along.size()));
    along.all_gather(std::span<const double>(&mine, 1), std::span<double>(all));
    mine = std::accumulate(all.begin(), all.end(), 0.0);
  };
  add(inside);
  add(data);
  return mine;
}

}  // namespace detail

/// The sums of a step over a mesh, in two parts: `start` adds them up over the ranks of this pipeline rank, along the
/// axes `Data` and `Inside` (dp and tp, say), and sends them along `Pipeline`; `finish` takes in the others', which may be
/// much later. Added in the order of the mesh's ranks, so every rank gets the same bits, those of an all_reduce on threads.
/// All of it goes over the control plane.
/// Messages per rank: one to each other pipeline rank, of 32 bytes for each rank along `Data` and `Inside`.
template <class World, class Pipeline, class Data = type_list<>, class Inside = type_list<>>
class step_sums_on_the_way {
 public:
  using communicator = std::remove_reference_t<decltype(std::declval<World&>().control())>;

  /// Made on all ranks of the world together. The three lists are all axes of its mesh.
  explicit step_sums_on_the_way(World& world)
      : data_(&detail::control_along(world, Data{})),
        inside_(&detail::control_along(world, Inside{})),
        // Messages of its own: whatever the caller sends along the pipeline cannot meet them.
        pipeline_(detail::control_along(world, Pipeline{}).split(0, detail::control_along(world, Pipeline{}).rank())) {
    const auto& mesh = world.mesh();
    const int rank = world.rank();
    std::vector<int> world_rank;
    for (const int p : detail::members_along(mesh, rank, Pipeline{}))
      for (const int d : detail::members_along(mesh, p, Data{}))
        for (const int t : detail::members_along(mesh, d, Inside{})) world_rank.push_back(t);
    order_.resize(world_rank.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::sort(order_.begin(), order_.end(),
              [&](std::size_t a, std::size_t b) { return world_rank[a] < world_rank[b]; });
    all_.resize(numbers * world_rank.size());
    each_ = all_.size() / static_cast<std::size_t>(pipeline_.size());
  }

  /// Called on all ranks together. Returns the sums over `Data` and `Inside` of this pipeline rank.
  step_sums start(const step_sums& mine) {
    const double of_rank[numbers] = {mine.loss, mine.targets, mine.squares, mine.stops};
    std::vector<double> row(numbers * static_cast<std::size_t>(inside_->size()));
    if (inside_->size() > 1)
      inside_->all_gather(std::span<const double>(of_rank), std::span<double>(row));
    else
      for (std::size_t k = 0; k < numbers; ++k) row[k] = of_rank[k];
    const std::span<double> own = share(pipeline_.rank());
    if (data_->size() > 1)
      data_->all_gather(std::span<const double>(row), own);
    else
      for (std::size_t k = 0; k < row.size(); ++k) own[k] = row[k];
    for (int p = 0; p < pipeline_.size(); ++p)
      if (p != pipeline_.rank()) under_way_.push_back(pipeline_.irecv(share(p), p));
    for (int p = 0; p < pipeline_.size(); ++p)
      if (p != pipeline_.rank()) under_way_.push_back(pipeline_.isend(std::span<const double>(own), p));
    return of(pipeline_.rank());
  }
  /// Waits for the other pipeline ranks' sums. Returns those over all ranks.
  step_sums finish() {
    for (auto& r : under_way_) r.wait();
    under_way_.clear();
    step_sums sum = sums_at(numbers * order_[0]);
    for (std::size_t k = 1; k < order_.size(); ++k) sum = sum + sums_at(numbers * order_[k]);
    return sum;
  }
  /// The control plane along pp that the sums travel on: for verdicts of the same step, with a tag other than 0.
  communicator& pipeline() noexcept { return pipeline_; }
  /// Those of one pipeline rank; of another, behind `finish`.
  step_sums of(int pipeline_rank) noexcept {
    const std::size_t first = static_cast<std::size_t>(pipeline_rank) * each_;
    step_sums sum = sums_at(first);
    for (std::size_t at = first + numbers; at < first + each_; at += numbers) sum = sum + sums_at(at);
    return sum;
  }

 private:
  // They travel as numbers, which every trainer has collectives for.
  static constexpr std::size_t numbers = 4;
  step_sums sums_at(std::size_t first) const noexcept {
    return {all_[first], all_[first + 1], all_[first + 2], all_[first + 3]};
  }
  std::span<double> share(int pipeline_rank) noexcept {
    return std::span<double>(all_).subspan(static_cast<std::size_t>(pipeline_rank) * each_, each_);
  }

  communicator* data_;
  communicator* inside_;
  communicator pipeline_;
  std::vector<std::size_t> order_;  // of the ranks' places in `all_`, by world rank
  std::vector<double> all_;         // pipeline rank by pipeline rank, `data` before `inside`
  std::size_t each_ = numbers;      // of a pipeline rank
  std::vector<typename communicator::request> under_way_;
};

}  // namespace heddle::inline v0::train
