// heddle/train/optimizer.hpp: AdamW over one rank's flat parameters, its state whole or sharded over the ranks that hold them (ZeRO).
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/compute/facets.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/split.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/options.hpp>
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
class optimizer {
 public:
  static constexpr int zero_stage = Zero::stage;
  using space = Space;
  using row = row_view<T, Space>;
  using const_row = row_view<const T, Space>;

  /// `table`: one entry per tensor with offset, count, counted, decay. `elements`: size of the flat buffer.
  template <class Table>
  optimizer(const Table& table, std::int64_t elements, int rank, int ranks)
    requires std::is_same_v<Space, host_memory>
      : optimizer(*heddle::v0::detail::kept_queue<Space>(), table, elements, rank, ranks) {}
  template <class Table>
  optimizer(typename Space::queue& queue, const Table& table, std::int64_t elements, int rank, int ranks)
      : queue_(queue) {
    for (int r = 0; r < ranks; ++r) shares_.push_back(balanced_split{elements, ranks}.size(r));
    begin_ = Zero::stage == 0 ? 0 : balanced_split{elements, ranks}.offset(rank);
    end_ = Zero::stage == 0 ? elements : begin_ + shares_[static_cast<std::size_t>(rank)];
    // Without sharding every rank holds the same gradients: one of them counts.
    const bool counts_here = Zero::stage >= 1 || rank == 0;
    for (const auto& parameter : table) {
      const std::int64_t first = (std::max)(begin_, static_cast<std::int64_t>(parameter.offset));
      const std::int64_t last =
          (std::min)(end_, static_cast<std::int64_t>(parameter.offset) + static_cast<std::int64_t>(parameter.count));
      if (first >= last) continue;
      const segment s{first, last, counts_here && parameter.counted, parameter.decay};
      if (!segments_.empty() && segments_.back().end == s.begin && segments_.back().counted == s.counted &&
          segments_.back().decay == s.decay)
        segments_.back().end = s.end;
      else
        segments_.push_back(s);
    }
    first_moment_ = buffer<T, Space>(queue, end_ - begin_, "the first moments of the optimizer");
    second_moment_ = buffer<T, Space>(queue, end_ - begin_, "the second moments of the optimizer");
    if constexpr (Zero::stage >= 2)
      gradients_ = buffer<T, Space>(queue, end_ - begin_, "a rank's share of the gradients");
    if constexpr (Zero::stage >= 3) weights_ = buffer<T, Space>(queue, end_ - begin_, "a rank's share of the weights");
  }

  /// The part of the flat buffer whose state this rank keeps: [owned_begin, owned_end).
  std::int64_t owned_begin() const noexcept { return begin_; }
  std::int64_t owned_end() const noexcept { return end_; }
  row first_moment() noexcept { return all_of(first_moment_); }
  row second_moment() noexcept { return all_of(second_moment_); }
  /// What a rank keeps of a stage's weights from step to step, and of its gradients from their reduction to the next step:
  /// elements from `weights_begin()` (`gradients_begin()`) on of the flat buffers; all of them, or the owned part.
  template <class Stage>
  row weights_of(Stage& stage) noexcept {
    if constexpr (Zero::stage >= 3)
      return all_of(weights_);
    else
      return stage.weights();
  }
  template <class Stage>
  row gradients_of(Stage& stage) noexcept {
    if constexpr (Zero::stage >= 2)
      return all_of(gradients_);
    else
      return stage.gradients();
  }
  std::int64_t weights_begin() const noexcept { return Zero::stage >= 3 ? begin_ : 0; }
  std::int64_t gradients_begin() const noexcept { return Zero::stage >= 2 ? begin_ : 0; }
  /// Bytes of optimizer state on this rank, the copy of `remember` included.
  std::int64_t state_bytes() const noexcept {
    return (2 * (end_ - begin_) + static_cast<std::int64_t>(before_.size())) * static_cast<std::int64_t>(sizeof(T));
  }

  /// Sums gradients over a group of those ranks; afterwards the owned part holds the sum: in place, or with `zero<2>` and
  /// `zero<3>` in `gradients_of`. A group of one has nothing to sum: its `gradients` are there already.
  template <class Communicator>
  void reduce(Communicator& group, row gradients) {
    if (group.size() == 1) return;
    if constexpr (Zero::stage == 0)
      heddle::v0::all_reduce(*queue_, group, gradients, plus{});
    else
      heddle::v0::reduce_scatter_v(*queue_, group, const_row(gradients),
                                   Zero::stage >= 2 ? all_of(gradients_) : owned(gradients),
                                   std::span<const std::int64_t>(shares_), plus{});
  }

  /// The same of elements [begin, end) only: all parts of a step together give the bits of the whole.
  template <class Communicator>
  void reduce(Communicator& group, row gradients, std::int64_t begin, std::int64_t end) {
    if (group.size() == 1 || begin >= end) return;
    const row some = part(gradients, begin, end - begin);
    if constexpr (Zero::stage == 0) {
      heddle::v0::all_reduce(*queue_, group, some, plus{});
    } else {
      std::vector<std::int64_t> shares;
      std::int64_t first = 0;
      for (const std::int64_t n : shares_) {
        const std::int64_t from = (std::max)(first, begin), to = (std::min)(first + n, end);
        shares.push_back((std::max)(to - from, std::int64_t{0}));
        first += n;
      }
      const std::int64_t from = (std::clamp)(begin_, begin, end), to = (std::clamp)(end_, begin, end);
      row mine = gradients;
      std::int64_t first_of_mine = 0;
      if constexpr (Zero::stage >= 2) {
        mine = all_of(gradients_);
        first_of_mine = from < to ? begin_ : from;
      }
      heddle::v0::reduce_scatter_v(*queue_, group, const_row(some), part(mine, from - first_of_mine, to - from),
                                   std::span<const std::int64_t>(shares), plus{});
    }
  }

  /// Sum of squares over the elements this rank owns and counts; summed over all ranks it is the squared global norm
  /// with every logical parameter once. `gradients` here and below: those of `gradients_of`, weights those of `weights_of`.
  template <class Backend>
  double counted_sum_of_squares(Backend& backend, const_row gradients) const {
    double sum = 0;
    for (const segment& s : segments_)
      if (s.counted) sum += backend.sum_of_squares(part(gradients, s.begin - gradients_begin(), s.end - s.begin));
    return sum;
  }
  /// The same, added to a number in the backend's memory (`compute::reduction_kernels`).
  template <class Backend>
  void add_counted_squares(Backend& backend, const_row gradients, compute::number_in<Space> sum) const {
    for (const segment& s : segments_)
      if (s.counted) backend.sum_of_squares(part(gradients, s.begin - gradients_begin(), s.end - s.begin), sum);
  }

  /// One AdamW step on the owned part. `step` counts from 1; gradients are multiplied by `gradient_scale` first.
  template <class Backend>
  void update(Backend& backend, row weights, const_row gradients, const adamw_options& constants, double learning_rate,
              std::int64_t step, double gradient_scale) {
    for_each_segment(weights, gradients, constants, learning_rate, step, gradient_scale,
                     [&](auto... arguments) { backend.adamw(arguments...); });
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
    const std::int64_t elements = 3 * (end_ - begin_);
    if (static_cast<std::int64_t>(before_.size()) < elements)
      before_ = buffer<T, Space>(*queue_, elements, "copies of weights and moments");
  }
  /// Copies the owned weights and their moments, for `restore`.
  void remember(const_row weights) {
    const std::int64_t n = end_ - begin_;
    allocate_copies();
    queue_->copy(part(weights, begin_ - weights_begin(), n), part(all_of(before_), 0, n));
    queue_->copy(first_moment_, part(all_of(before_), n, n));
    queue_->copy(second_moment_, part(all_of(before_), 2 * n, n));
  }
  /// The owned weights and their moments as they were at `remember`, bit for bit.
  void restore(row weights) {
    const std::int64_t n = end_ - begin_;
    queue_->copy(part(all_of(before_), 0, n), part(weights, begin_ - weights_begin(), n));
    queue_->copy(part(all_of(before_), n, n), first_moment_);
    queue_->copy(part(all_of(before_), 2 * n, n), second_moment_);
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

  row owned(row flat) const { return part(flat, begin_, end_ - begin_); }

 private:
  struct segment {
    std::int64_t begin, end;
    bool counted, decay;
  };

  static row all_of(buffer<T, Space>& memory) noexcept {
    return heddle::v0::detail::row_at<Space>(memory.address(), static_cast<std::int64_t>(memory.size()));
  }
  template <class Row>
  static Row part(Row whole, std::int64_t begin, std::int64_t count) noexcept {
    return heddle::v0::detail::part_of_row<Space>(whole, begin, count);
  }

  template <class F>
  void for_each_segment(row weights, const_row gradients, const adamw_options& constants, double learning_rate,
                        std::int64_t step, double gradient_scale, F&& f) {
    for (const segment& s : segments_) {
      const std::int64_t n = s.end - s.begin;
      compute::adamw_step hyper{};
      hyper.lr = learning_rate;
      hyper.beta1 = constants.beta1;
      hyper.beta2 = constants.beta2;
      hyper.eps = constants.epsilon;
      hyper.weight_decay = s.decay ? constants.weight_decay : 0.0;
      hyper.step = step;
      hyper.grad_scale = gradient_scale;
      f(part(weights, s.begin - weights_begin(), n), part(gradients, s.begin - gradients_begin(), n),
        part(first_moment(), s.begin - begin_, n), part(second_moment(), s.begin - begin_, n), hyper);
    }
  }

  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
  std::vector<std::int64_t> shares_;
  std::vector<segment> segments_;
  [[no_unique_address]] heddle::v0::detail::kept_queue<Space> queue_;
  buffer<T, Space> first_moment_;
  buffer<T, Space> second_moment_;
  buffer<T, Space> gradients_, weights_;  // the owned part, where the whole is not kept
  buffer<T, Space> before_;               // weights, first and second moments; empty if nobody asks for them
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
