// heddle/train/step_sums.hpp: what a step adds up over all ranks, and its way there beside the next step's forwards.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/error.hpp>
#include <heddle/mesh/mesh.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::train {

/// What ranks add up in a step: losses, targets that count, squares of gradients. Every part is counted on one rank only.
struct step_sums {
  double loss = 0;
  double targets = 0;
  double squares = 0;

  friend step_sums operator+(const step_sums& a, const step_sums& b) noexcept {
    return {a.loss + b.loss, a.targets + b.targets, a.squares + b.squares};
  }
};

/// What the sums over all ranks say of a step.
struct step_result {
  double loss = 0;            ///< mean over the step's targets
  double gradient_norm = 0;   ///< of the gradient of that mean, over all axes
  double gradient_scale = 1;  ///< what `stage().gradients()` must be multiplied by to be that gradient

  bool is_finite() const noexcept { return std::isfinite(loss) && std::isfinite(gradient_norm); }
  bool is_of_no_target() const noexcept { return std::isinf(gradient_scale); }
};

/// `targets`: of the step, ignored ones included, as the gradients were scaled.
inline step_result result_of(const step_sums& sums, std::int64_t targets) noexcept {
  step_result result;
  result.gradient_scale = static_cast<double>(targets) / sums.targets;
  result.loss = sums.loss / sums.targets;
  result.gradient_norm = std::sqrt(sums.squares) * result.gradient_scale;
  return result;
}

namespace detail {

// World ranks along an axis that the mesh may not have.
template <class Tag, class Mesh>
std::vector<int> members_along(const Mesh& mesh, int rank) {
  if constexpr (Mesh::template has<Tag>)
    return group<Tag>(mesh, rank);
  else
    return {rank};
}

// The sum over tp and dp, in the order of their ranks: the same bits on all of them.
template <communicator Dp, communicator Tp>
double sum_over_replicas(double mine, Dp& along_dp, Tp& along_tp) {
  const auto add = [&](auto& along) {
    if (along.size() == 1) return;
    std::vector<double> all(static_cast<std::size_t>(along.size()));
    along.all_gather(std::span<const double>(&mine, 1), std::span<double>(all));
    mine = std::accumulate(all.begin(), all.end(), 0.0);
  };
  add(along_tp);
  add(along_dp);
  return mine;
}

inline void refuse_no_targets(const step_result& r, std::int64_t step) {
  if (r.is_of_no_target())
    throw config_error("heddle: step " + std::to_string(step + 1) + " has no target to learn from: all are ignored");
}

}  // namespace detail

/// The sums of a step over a mesh of dp, pp and tp, in two parts: `start` adds them up over the ranks of this pipeline
/// rank and sends them along pp; `finish` takes in the others', which may be much later. Added in the order of the mesh's
/// ranks, so every rank gets the same bits, those of an all_reduce on threads.
/// Messages per rank: pp - 1, of 24 dp tp bytes.
template <communicator Pipeline>
class step_sums_on_the_way {
 public:
  /// `pipeline`: ranks along pp; this rank's messages with `tag` are this object's.
  template <mesh_like Mesh>
  step_sums_on_the_way(const Mesh& mesh, int rank, Pipeline& pipeline, int tag) : pipeline_(&pipeline), tag_(tag) {
    std::vector<int> world_rank;
    for (const int p : detail::members_along<pp>(mesh, rank))
      for (const int d : detail::members_along<dp>(mesh, p))
        for (const int t : detail::members_along<tp>(mesh, d)) world_rank.push_back(t);
    order_.resize(world_rank.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::sort(order_.begin(), order_.end(),
              [&](std::size_t a, std::size_t b) { return world_rank[a] < world_rank[b]; });
    all_.resize(world_rank.size());
    each_ = all_.size() / static_cast<std::size_t>(pipeline.size());
  }

  /// Called on all ranks together. Returns the sums over dp and tp of this pipeline rank.
  template <communicator Dp, communicator Tp>
  step_sums start(const step_sums& mine, Dp& along_dp, Tp& along_tp) {
    std::vector<step_sums> row(static_cast<std::size_t>(along_tp.size()), mine);
    if (along_tp.size() > 1) along_tp.all_gather(std::span<const step_sums>(&mine, 1), std::span<step_sums>(row));
    const std::span<step_sums> own = share(pipeline_->rank());
    if (along_dp.size() > 1)
      along_dp.all_gather(std::span<const step_sums>(row), own);
    else
      std::copy(row.begin(), row.end(), own.begin());
    for (int p = 0; p < pipeline_->size(); ++p)
      if (p != pipeline_->rank()) under_way_.push_back(pipeline_->irecv(share(p), p, tag_));
    for (int p = 0; p < pipeline_->size(); ++p)
      if (p != pipeline_->rank()) under_way_.push_back(pipeline_->isend(std::span<const step_sums>(own), p, tag_));
    return of(pipeline_->rank());
  }
  /// Waits for the other pipeline ranks' sums. Returns those over all ranks.
  step_sums finish() {
    for (auto& r : under_way_) r.wait();
    under_way_.clear();
    step_sums sum = all_[order_[0]];
    for (std::size_t k = 1; k < order_.size(); ++k) sum = sum + all_[order_[k]];
    return sum;
  }
  /// Those of one pipeline rank; of another, behind `finish`.
  step_sums of(int pipeline_rank) noexcept {
    const std::span<const step_sums> part = share(pipeline_rank);
    step_sums sum = part[0];
    for (const step_sums& s : part.subspan(1)) sum = sum + s;
    return sum;
  }

 private:
  std::span<step_sums> share(int pipeline_rank) noexcept {
    return std::span<step_sums>(all_).subspan(static_cast<std::size_t>(pipeline_rank) * each_, each_);
  }

  Pipeline* pipeline_;
  int tag_;
  std::vector<std::size_t> order_;  // of `all_`, by world rank
  std::vector<step_sums> all_;      // pipeline rank by pipeline rank, dp before tp
  std::size_t each_ = 1;
  std::vector<typename Pipeline::request> under_way_;
};

namespace detail {

// Where nothing is on its way.
struct no_sums_on_the_way {
  template <class... Arguments>
  explicit no_sums_on_the_way(Arguments&&...) noexcept {}
};

}  // namespace detail

}  // namespace heddle::inline v0::train
