// heddle/train/optimizer_shards.hpp: the part of a flat buffer that a rank owns (ZeRO).
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/split.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// What an update of one's own gets (`trainer::apply_gradients`): the parameters of one stage, or of one bucket of it, that this rank
/// owns, rows of equal length, or empty where the strategy's rule keeps fewer moments or acts on whole tensors. `gradients` times `gradient_scale` is the gradient of the
/// mean loss, not clipped. The moments begin as zeros, belong to the update, and are saved with the weights; the second one of AdamW may not be
/// negative. Where a `precision` keeps master
/// weights, `weights` are those.
template <class Weights, class Gradients, class Moments>
struct owned_parameters {
  Weights weights;
  Gradients gradients;
  Moments first_moment, second_moment;
  double gradient_scale = 1;
};

/// The share that one rank has of a flat buffer of parameters: the base of `sharded_optimizer`. With `zero<0>` it
/// is all of it, else the rank's part of the balanced cut over d ranks (of a rule of whole tensors: of a cut between tensors); `zero<2>` keeps this part's gradients here, `zero<3>`
/// its weights, too. Memory lies in `Space`; elsewhere than on the host all calls go in the order of one queue, which must
/// outlive the shares.
template <class T, class Zero, memory_space Space = host_memory>
class optimizer_shards {
 public:
  static constexpr int zero_stage = Zero::stage;
  using space = Space;
  using row = row_view<T, Space>;
  using const_row = row_view<const T, Space>;
  /// Of gradients, which are added up in float where weights have 16 bits.
  using sum = sum_of_type<T>;
  using sum_row = row_view<sum, Space>;
  using const_sum_row = row_view<const sum, Space>;

  /// The part of the flat buffer whose state this rank keeps: [owned_begin, owned_end).
  std::int64_t owned_begin() const noexcept { return begin_; }
  std::int64_t owned_end() const noexcept { return end_; }
  /// How many elements rank `rank` of `ranks` owns of so many.
  static std::int64_t owned_of(std::int64_t elements, int rank, int ranks) noexcept {
    return Zero::stage == 0 ? elements : balanced_split{elements, ranks}.size(rank);
  }
  /// That part of a whole flat buffer.
  row owned(row flat) const { return part_of(flat, begin_, end_); }
  /// What a rank keeps of a stage's weights from step to step, and of its gradients from their reduction to the next step:
  /// elements from `weights_begin()` (`gradients_begin()`) on of the flat buffers; all of them, or the owned part.
  row weights_of(auto& stage) noexcept {
    if constexpr (Zero::stage >= 3)
      return all_of(weights_);
    else
      return stage.weights();
  }
  sum_row gradients_of(auto& stage) noexcept {
    if constexpr (Zero::stage >= 2)
      return all_of(gradients_);
    else
      return stage.gradients();
  }
  /// Elements of the largest share, of any rank.
  std::int64_t largest_share() const noexcept { return *std::max_element(shares_.begin(), shares_.end()); }
  /// Shares of gradients, and of weights, that a rank keeps here lie in this memory of somebody else, who gives it back after this object's end. Their
  /// contents are whatever lies there.
  void lie_in([[maybe_unused]] T* weights, [[maybe_unused]] sum* gradients) noexcept
    requires heddle::v0::detail::lends_buffers<Space>
  {
    using heddle::v0::detail::borrowing;
    if constexpr (Zero::stage >= 2) gradients_ = borrowing::of<sum, Space>(gradients, owned_elements());
    if constexpr (Zero::stage >= 3) weights_ = borrowing::of<T, Space>(weights, owned_elements());
  }
  std::int64_t weights_begin() const noexcept { return Zero::stage >= 3 ? begin_ : 0; }
  std::int64_t gradients_begin() const noexcept { return Zero::stage >= 2 ? begin_ : 0; }

  /// Sum of squares over the elements this rank owns and counts; summed over all ranks it is the squared global norm
  /// with every logical parameter once. `gradients`: those of `gradients_of`.
  template <class Backend>
  double counted_sum_of_squares(Backend& backend, const_sum_row gradients) const {
    double squares = 0;
    each_counted([&](std::int64_t begin, std::int64_t end) {
      squares += compute::sum_of<compute::ops::sum_of_squares>(
          backend, part_of(gradients, begin - gradients_begin(), end - gradients_begin()));
    });
    return squares;
  }
  /// f(row) for those elements of the gradients.
  template <class F>
  void each_counted_gradient(const_sum_row gradients, F&& f) const {
    each_counted([&](std::int64_t begin, std::int64_t end) {
      f(part_of(gradients, begin - gradients_begin(), end - gradients_begin()));
    });
  }
  /// The same, added to a number in the backend's memory (`compute::reduction_facet`).
  template <class Backend>
  void add_counted_squares(Backend& backend, const_sum_row gradients, compute::number_in<Space> squares) const {
    each_counted([&](std::int64_t begin, std::int64_t end) {
      compute::run<compute::ops::sum_of_squares>(
          backend, part_of(gradients, begin - gradients_begin(), end - gradients_begin()), squares);
    });
  }

  /// Starts to sum elements [begin, end) of whole gradients over the ranks that have the shares, in the type in which
  /// they are kept: until `started`, an empty `std::optional`, has been waited for. Then the owned part holds the sum,
  /// with the bits of `sharded_optimizer::reduce`.
  template <class Communicator, class Started>
  void start_reduce(Communicator& group, sum_row gradients, std::int64_t begin, std::int64_t end, Started& started) {
    static_assert(starting_communicator<Communicator>,
                  "heddle: reduce_beside needs a transport with started collectives (starting_communicator); leave it "
                  "out");
    const sum_row part = part_of(gradients, begin, end);
    const std::vector<std::int64_t> shares = shares_within(begin, end);
    if constexpr (Zero::stage == 0)
      started.emplace(group.start_all_reduce(part, plus{}));
    else
      started.emplace(group.start_reduce_scatter_v(as_const(part), share_within(gradients, begin, end),
                                                   std::span<const std::int64_t>(shares), plus{}));
  }

 protected:
  template <class U>
  static std::int64_t bytes(const buffer<U, Space>& b) noexcept {
    return static_cast<std::int64_t>(b.size() * sizeof(U));
  }
  template <class Row>
  static auto as_const(const Row& x) noexcept {
    return row_view<const element_of<const Row>, Space>(x);
  }
  // Behind the last element, whatever a buffer's size is.
  static constexpr std::int64_t to_the_end = (std::numeric_limits<std::int64_t>::max)();
  // Neighbours in the owned part that are counted and decayed alike.
  struct segment {
    std::int64_t begin, end;
    bool counted, decay;
  };
  struct named_range {
    std::int64_t begin, end;
    std::string name;
  };

  // `table`: one entry per tensor with offset, count, counted, decay. `elements`: size of the flat buffer.
  // `shares`: how many of these each rank owns.
  template <class Table>
  optimizer_shards(typename Space::queue& queue, const Table& table, std::int64_t elements, int rank,
                   std::vector<std::int64_t> shares)
      : queue_(queue), shares_(std::move(shares)) {
    const auto mine = shares_.begin() + rank;
    begin_ = Zero::stage == 0 ? 0 : std::accumulate(shares_.begin(), mine, std::int64_t{0});
    end_ = Zero::stage == 0 ? elements : begin_ + *mine;
    // Without sharding every rank holds the same gradients: one of them counts.
    const bool counts_here = Zero::stage >= 1 || rank == 0;
    for (const auto& p : table) {
      const std::int64_t first = (std::max)(begin_, static_cast<std::int64_t>(p.offset));
      const std::int64_t last =
          (std::min)(end_, static_cast<std::int64_t>(p.offset) + static_cast<std::int64_t>(p.count));
      if (first >= last) continue;
      if constexpr (requires { std::string(p.name); }) named_.push_back({first, last, std::string(p.name)});
      const segment s{first, last, counts_here && p.counted, p.decay};
      if (!segments_.empty() && segments_.back().end == s.begin && segments_.back().counted == s.counted &&
          segments_.back().decay == s.decay)
        segments_.back().end = s.end;
      else
        segments_.push_back(s);
    }
    if constexpr (Zero::stage >= 2)
      gradients_ = buffer<sum, Space>(queue, end_ - begin_, "a rank's share of the gradients");
    if constexpr (Zero::stage >= 3) weights_ = buffer<T, Space>(queue, end_ - begin_, "a rank's share of the weights");
  }

  // Calls f(begin, end) for the owned elements that count, in order, decayed or not: neighbours at once.
  template <class F>
  void each_counted(F&& f) const {
    for (auto s = segments_.begin(); s != segments_.end();) {
      const std::int64_t begin = s->begin;
      std::int64_t end = begin;
      for (; s != segments_.end() && s->counted && s->begin == end; ++s) end = s->end;
      if (begin < end)
        f(begin, end);
      else
        ++s;  // does not count
    }
  }
  // Calls f(begin, end, decay, factor of the learning rate) for the owned elements, in order; without rates for each segment once.
  template <class Rates, class F>
  void each_rated(const Rates& rates, F&& f) const {
    if (!rates.empty() && named_.empty() && !segments_.empty())
      throw config_error("heddle: rates of parameters go by their names, and the optimizer's parameters have none");
    for (const segment& s : segments_) {
      if (rates.empty()) {
        f(s.begin, s.end, s.decay, 1.0);
        continue;
      }
      for (const named_range& n : named_) {
        const std::int64_t begin = (std::max)(s.begin, n.begin), end = (std::min)(s.end, n.end);
        if (begin >= end) continue;
        const auto rate =
            std::find_if(rates.begin(), rates.end(), [&](const auto& r) { return n.name.starts_with(r.first); });
        f(begin, end, s.decay, rate == rates.end() ? 1.0 : rate->second);
      }
    }
  }
  static std::vector<std::int64_t> balanced_shares(std::int64_t elements, int ranks) {
    std::vector<std::int64_t> shares;
    for (int r = 0; r < ranks; ++r) shares.push_back(balanced_split{elements, ranks}.size(r));
    return shares;
  }
  std::int64_t owned_elements() const noexcept { return end_ - begin_; }
  // The owned part of what a rank keeps of its weights.
  template <class Row>
  auto kept_of(const Row& weights) const noexcept {
    return part_of(weights, begin_ - weights_begin(), end_ - weights_begin());
  }
  template <class Row>
  auto kept_of_gradients(const Row& gradients) const noexcept {
    return part_of(gradients, begin_ - gradients_begin(), end_ - gradients_begin());
  }
  // How many of the elements [begin, end) each rank owns.
  std::vector<std::int64_t> shares_within(std::int64_t begin, std::int64_t end) const {
    std::vector<std::int64_t> shares;
    std::int64_t first = 0;
    for (const std::int64_t n : shares_) {
      const std::int64_t from = (std::max)(first, begin), to = (std::min)(first + n, end);
      shares.push_back((std::max)(to - from, std::int64_t{0}));
      first += n;
    }
    return shares;
  }
  // Elements [from, to) of the flat buffer, of the owned ones, where their sum goes.
  sum_row share_of(sum_row gradients, std::int64_t from, std::int64_t to) noexcept {
    if constexpr (Zero::stage >= 2)
      return from < to ? part_of(all_of(gradients_), from - begin_, to - begin_) : sum_row{};
    else
      return part_of(gradients, from, to);
  }
  // The same of those owned ones that lie in [begin, end).
  sum_row share_within(sum_row gradients, std::int64_t begin, std::int64_t end) noexcept {
    return share_of(gradients, (std::clamp)(begin_, begin, end), (std::clamp)(end_, begin, end));
  }

  template <class U>
  static row_view<U, Space> all_of(buffer<U, Space>& b) noexcept {
    return row_at<Space>(b.address(), static_cast<std::int64_t>(b.size()));
  }
  // Elements [begin, end) of a row.
  template <class Row>
  static auto part_of(const Row& flat, std::int64_t begin, std::int64_t end) noexcept {
    return part_of_row<Space>(flat, begin, end - begin);
  }

  [[no_unique_address]] heddle::v0::detail::kept_queue<Space> queue_;
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
  std::vector<std::int64_t> shares_;  // elements that each rank owns
  std::vector<segment> segments_;
  std::vector<named_range> named_;  // of parameters, for rates by name
  buffer<sum, Space> gradients_;    // the owned part, where the whole is not kept
  buffer<T, Space> weights_;
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
