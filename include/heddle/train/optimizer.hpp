// heddle/train/optimizer.hpp: AdamW over one rank's flat parameters, its state whole or sharded over the ranks that hold them (ZeRO).
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/compute/adamw_scalars.hpp>
#include <heddle/compute/facets.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/rank_shares.hpp>
#include <heddle/train/zero.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::train {

/// AdamW for the parameters a rank holds in one flat buffer; the ranks over which their gradients are summed, d of them
/// (dp, say), hold the same. With `zero<1>` rank r of them owns the r-th part of the balanced cut of that buffer: it
/// alone keeps moments for it and updates it; with `zero<2>` it alone keeps this part's gradients, too, with `zero<3>` its
/// weights: in memory of the optimizer, while the whole buffers come and go (`held_stage`).
/// One step is `reduce` (gradients over those ranks), `counted_sum_of_squares` (for the global norm), `update`, `gather`.
/// Bytes sent per rank and step by the ring formulas: zero<0> an all-reduce, 2(d-1)/d n s; zero<1> a reduce-scatter
/// (or 2) and an all-gather, the same 2(d-1)/d n s; zero<3> the reduce-scatter here, the all-gathers at each UNSHARD.
/// Weights, gradients, moments and their copies lie in `Space`; elsewhere than on the host all calls go in the order of one queue,
/// which must outlive the optimizer.
template <class T, class Zero, memory_space Space = host_memory>
class optimizer : public rank_shares<T, Zero, Space> {
  using base = rank_shares<T, Zero, Space>;

 public:
  using base::gradients_begin, base::owned, base::weights_begin;
  using typename base::const_row, typename base::row;

  /// `table`: one entry per tensor with offset, count, counted, decay. `elements`: size of the flat buffer.
  optimizer(const auto& table, std::int64_t elements, int rank, int ranks)
    requires std::is_same_v<Space, host_memory>
      : optimizer(*heddle::v0::detail::kept_queue<Space>(), table, elements, rank, ranks) {}
  optimizer(typename Space::queue& queue, const auto& table, std::int64_t elements, int rank, int ranks)
      : base(queue, table, elements, rank, ranks) {
    first_moment_ = buffer<T, Space>(queue, owned_elements(), "the first moments of the optimizer");
    second_moment_ = buffer<T, Space>(queue, owned_elements(), "the second moments of the optimizer");
  }

  row first_moment() noexcept { return all_of(first_moment_); }
  row second_moment() noexcept { return all_of(second_moment_); }
  /// Bytes of optimizer state on this rank, the copy of `remember` included.
  std::int64_t state_bytes() const noexcept {
    return (2 * owned_elements() + static_cast<std::int64_t>(before_.size())) * static_cast<std::int64_t>(sizeof(T));
  }

  /// The same before it is made, for rank `rank` of `ranks` that share `elements`; `copies`: with that of `remember`.
  static std::int64_t state_bytes_of(std::int64_t elements, int rank, int ranks, bool copies) noexcept {
    return (copies ? 5 : 2) * base::owned_of(elements, rank, ranks) * static_cast<std::int64_t>(sizeof(T));
  }

  /// Sums gradients over a group of those ranks; afterwards the owned part holds the sum: in place, or with `zero<2>` and
  /// `zero<3>` in `gradients_of`. A group of one has nothing to sum: its `gradients` are there already.
  /// Of elements [begin, end), by default all: all parts of a step together give the bits of the whole.
  template <class Communicator>
  void reduce(Communicator& group, row gradients, std::int64_t begin = 0, std::int64_t end = base::to_the_end) {
    end = (std::min)(end, static_cast<std::int64_t>(gradients.size()));
    if (group.size() == 1 || begin >= end) return;
    const row some = part_of(gradients, begin, end);
    if constexpr (Zero::stage == 0) {
      heddle::v0::all_reduce(*queue_, group, some, plus{});
    } else {
      const std::vector<std::int64_t> shares = base::shares_within(begin, end);
      heddle::v0::reduce_scatter_v(*queue_, group, const_row(some), base::share_within(gradients, begin, end),
                                   std::span<const std::int64_t>(shares), plus{});
    }
  }

  /// One AdamW step on the owned part. `step` counts from 1; gradients are multiplied by `gradient_scale` first. `weights` and
  /// `gradients` here and below: those of `weights_of` and `gradients_of`.
  template <class Backend>
  void update(Backend& backend, row weights, const_row gradients, const adamw_options& constants, double learning_rate,
              std::int64_t step, double gradient_scale) {
    for_each_segment(weights, gradients, constants, learning_rate, step, gradient_scale,
                     [&](auto... arguments) { backend.adamw(arguments...); });
  }

  /// A step that is not AdamW's: `update(owned_parameters)` writes the owned weights.
  template <class Update>
  void update_by(row weights, const_row gradients, double gradient_scale, Update&& update) {
    update(owned_parameters<row, const_row, row>{base::kept_of(weights), base::kept_of_gradients(gradients),
                                                 first_moment(), second_moment(), gradient_scale});
  }

  /// The scalars of each kernel of an `update`, in its order: f(step).
  template <class F>
  void each_step(const adamw_options& constants, double learning_rate, std::int64_t step, F&& f) const {
    base::each_rated(constants.rates, [&](std::int64_t, std::int64_t, bool decay, double factor) {
      f(step_of(constants, decay, factor, learning_rate, step, 1.0));
    });
  }
  /// Whether a backend has the kernels of `update_at`.
  template <class Backend>
  static constexpr bool updates_at = compute::remote_optimizer_kernels<Backend, T>;
  /// `update` whose kernels read the scalars of `each_step` and the scale of gradients from memory when they run, `at` and behind it.
  /// Returns what is behind the last. Nothing changes where the scale there is negative.
  template <class Backend>
    requires updates_at<Backend>
  compute::adamw_step_at<T> update_at(Backend& backend, row weights, const_row gradients,
                                      const adamw_options& constants, compute::adamw_step_at<T> at) {
    for_each_segment(weights, gradients, constants, 0.0, 1, 1.0,
                     [&](row p, const_row g, row m, row v, const compute::adamw_step&) {
                       backend.adamw(p, g, m, v, at);
                       ++at.scalars;
                     });
    return at;
  }

  /// Takes back the `update` with the same arguments, weights and moments up to rounding. Requires
  /// learning_rate weight_decay < 1.
  template <class Backend>
  void undo(Backend& backend, row weights, const_row gradients, const adamw_options& constants, double learning_rate,
            std::int64_t step, double gradient_scale) {
    if constexpr (compute::require_facet<optimizer, compute::reversible_optimizer_facet, Backend, T>())
      for_each_segment(weights, gradients, constants, learning_rate, step, gradient_scale,
                       [&](auto... arguments) { backend.undo_adamw(arguments...); });
  }

  /// Memory for the copies of `remember`, which allocates it otherwise.
  void allocate_copies() {
    const std::int64_t elements = 3 * owned_elements();
    if (static_cast<std::int64_t>(before_.size()) < elements)
      before_ = buffer<T, Space>(*queue_, elements, "copies of weights and moments");
  }
  /// Copies the owned weights and their moments, for `restore`.
  void remember(const_row weights) {
    const std::int64_t n = owned_elements();
    allocate_copies();
    queue_->copy(base::kept_of(weights), part_of(all_of(before_), 0, n));
    queue_->copy(first_moment_, part_of(all_of(before_), n, 2 * n));
    queue_->copy(second_moment_, part_of(all_of(before_), 2 * n, 3 * n));
  }
  /// The owned weights and their moments as they were at `remember`, bit for bit.
  void restore(row weights) {
    const std::int64_t n = owned_elements();
    queue_->copy(part_of(all_of(before_), 0, n), base::kept_of(weights));
    queue_->copy(part_of(all_of(before_), n, 2 * n), first_moment_);
    queue_->copy(part_of(all_of(before_), 2 * n, 3 * n), second_moment_);
  }

  /// Brings every rank of the group up to date after `update`; with `zero<3>` the next UNSHARD does.
  template <class Communicator>
  void gather(Communicator& group, row weights) {
    if constexpr (Zero::stage == 1 || Zero::stage == 2) {
      if (group.size() > 1)
        heddle::v0::all_gather_v(*queue_, group, const_row(owned(weights)), weights,
                                 std::span<const std::int64_t>(shares_));
    }
  }

  /// With `zero<3>`: gathers all ranks' shares of the weights into `to`, a whole flat buffer; on the host `started` gets the call
  /// that is under way, where the communicator starts calls, elsewhere the call is in the order of the queue.
  template <class Communicator, class Started>
  void start_gather(Communicator& group, row to, [[maybe_unused]] Started& started) {
    const const_row mine = all_of(weights_);
    const std::span<const std::int64_t> shares(shares_);
    if constexpr (starting_communicator<Communicator> && std::is_same_v<Space, host_memory>)
      started.emplace(group.start_all_gather_v(mine, to, shares));
    else
      heddle::v0::all_gather_v(*queue_, group, mine, to, shares);
  }

 private:
  using base::all_of, base::part_of, base::owned_elements;
  using base::begin_, base::queue_, base::shares_, base::weights_;

  template <class F>
  void for_each_segment(row weights, const_row gradients, const adamw_options& constants, double learning_rate,
                        std::int64_t step, double gradient_scale, F&& f) {
    base::each_rated(constants.rates, [&](std::int64_t begin, std::int64_t end, bool decay, double factor) {
      f(part_of(weights, begin - weights_begin(), end - weights_begin()),
        part_of(gradients, begin - gradients_begin(), end - gradients_begin()),
        part_of(first_moment(), begin - begin_, end - begin_), part_of(second_moment(), begin - begin_, end - begin_),
        step_of(constants, decay, factor, learning_rate, step, gradient_scale));
    });
  }
  static compute::adamw_step step_of(const adamw_options& constants, bool decay, double factor, double learning_rate,
                                     std::int64_t step, double gradient_scale) {
    compute::adamw_step hyper{};
    hyper.lr = factor * learning_rate;
    hyper.beta1 = constants.beta1;
    hyper.beta2 = constants.beta2;
    hyper.eps = constants.epsilon;
    hyper.weight_decay = decay ? constants.weight_decay : 0.0;
    hyper.step = step;
    hyper.grad_scale = gradient_scale;
    return hyper;
  }

  buffer<T, Space> first_moment_;
  buffer<T, Space> second_moment_;
  buffer<T, Space> before_;  // weights, first and second moments; empty if nobody asks for them
};

namespace detail {

// The intersection of a parameter with the optimizer's share, relative to the parameter: first, count, place in the share.
template <class Parameter, class Optimizer, class F>
void for_owned_part(const Parameter& p, const Optimizer& optimizer, F&& f) {
  const std::int64_t first = (std::max)(std::int64_t{p.offset}, optimizer.owned_begin());
  const std::int64_t last = (std::min)(p.offset + p.count, optimizer.owned_end());
  if (first < last) f(first - p.offset, last - first, first - optimizer.owned_begin());
}
// The part of a parameter in a buffer that begins at element `begin` of the flat one: f(first, count, place in the buffer).
template <class Parameter, class F>
void for_kept_part(const Parameter& p, std::int64_t begin, std::size_t elements, F&& f) {
  const std::int64_t first = (std::max)(std::int64_t{p.offset}, begin);
  const std::int64_t last = (std::min)(std::int64_t{p.offset} + p.count, begin + static_cast<std::int64_t>(elements));
  if (first < last) f(first - p.offset, last - first, first - begin);
}

}  // namespace detail

}  // namespace heddle::inline v0::train
