// heddle/collective/pass_states.hpp: passes states of linear attention along the sequence's ranks.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// How states travel. `ranks`: those that share the sequence, in its order, with the calling one among them; empty: all of the group.
struct state_options {
  int blocks = 4;  ///< messages that a state is cut into, so that a rank passes on the first while others come
  std::span<const int> ranks{};
  int tag = 0;
};

namespace detail {

// Where a rank stands among those that share a sequence. Errors: `config_error` if it is not among them.
class states_along {
 public:
  states_along(int rank, int size, std::span<const int> ranks) : ranks_(ranks.begin(), ranks.end()) {
    if (ranks_.empty()) {
      ranks_.resize(static_cast<std::size_t>(size));
      std::iota(ranks_.begin(), ranks_.end(), 0);
    }
    place_ = std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin();
    if (place_ == std::ssize(ranks_))
      throw config_error(text_of({"heddle: states: rank ", rank, " is not among those that share the sequence"}));
  }
  std::ptrdiff_t place() const noexcept { return place_; }
  std::ptrdiff_t size() const noexcept { return std::ssize(ranks_); }
  // The rank that stands `steps` behind this one, or before it; none beyond the ends.
  std::optional<int> neighbour(std::ptrdiff_t steps) const noexcept {
    const std::ptrdiff_t at = place_ + steps;
    return at < 0 || at >= size() ? std::nullopt : std::optional<int>(ranks_[static_cast<std::size_t>(at)]);
  }
  int operator[](std::ptrdiff_t place) const noexcept { return ranks_[static_cast<std::size_t>(place)]; }

 private:
  std::vector<int> ranks_;
  std::ptrdiff_t place_;
};

// Columns of a state whose rows decay alike. Errors: `layout_error`.
inline std::size_t state_columns(std::size_t decay, std::size_t state, std::initializer_list<std::size_t> others) {
  const bool whole = decay > 0 ? state % decay == 0 : state == 0;
  for (const std::size_t other : others)
    if (!whole || state != other)
      throw layout_error(text_of({"heddle: states: decays of ", static_cast<std::int64_t>(decay), " rows and states of ",
                                  static_cast<std::int64_t>(state), " and ", static_cast<std::int64_t>(other),
                                  " elements do not belong together: states have one size, a multiple of the rows"}));
  return decay > 0 ? state / decay : 0;
}

// From rank to rank, `Step` of them behind or before: what comes in is kept, and decay * in + own goes on.
template <int Step, communicator Group, class T>
void relay_states(Group& group, std::span<const T> decay, std::span<const T> own, std::span<T> in,
                  const state_options& options) {
  const std::size_t columns = state_columns(decay.size(), own.size(), {in.size()});
  if (options.blocks < 1)
    throw config_error(text_of({"heddle: states travel in at least 1 block, got ", options.blocks}));
  const states_along line(group.rank(), group.size(), options.ranks);
  const std::optional<int> before = line.neighbour(-Step), behind = line.neighbour(Step);
  const balanced_split cut{static_cast<std::int64_t>(decay.size()),
                           (std::min)(static_cast<std::int64_t>(options.blocks),
                                      (std::max)(std::int64_t{1}, static_cast<std::int64_t>(decay.size())))};
  const auto rows_of = [&](std::int64_t b) {
    return std::pair(static_cast<std::size_t>(cut.offset(b)), static_cast<std::size_t>(cut.size(b)));
  };
  using request = typename Group::request;
  std::vector<request> receives, sends;
  for (std::int64_t b = 0; before && b < cut.parts; ++b) {
    const auto [first, rows] = rows_of(b);
    receives.push_back(group.irecv(in.subspan(first * columns, rows * columns), *before, options.tag));
  }
  if (!before) std::fill(in.begin(), in.end(), T(0));
  std::vector<T> out(behind ? own.size() : 0);
  for (std::int64_t b = 0; b < cut.parts; ++b) {
    const auto [first, rows] = rows_of(b);
    if (before) receives[static_cast<std::size_t>(b)].wait();
    if (!behind) continue;
    for (std::size_t r = first; r < first + rows; ++r)
      for (std::size_t i = r * columns; i < (r + 1) * columns; ++i) out[i] = decay[r] * in[i] + own[i];
    sends.push_back(group.isend(std::span<const T>(out).subspan(first * columns, rows * columns), *behind, options.tag));
  }
  for (request& s : sends) s.wait();
}

}  // namespace detail

/// The state that enters this rank: 0 on the first, and behind each rank decay * in + local. States travel from rank to rank, each of their
/// rows times the rank's decay of it, plus the state that the rank's own tokens leave from zero. Each rank but the last sends one state, whatever
/// the number of ranks and tokens. Called by all ranks that share the sequence.
/// Shapes: decay [heads * keys], local, in [heads * keys, values].
/// Errors: `layout_error` for sizes, `config_error` for options, `comm_error`.
/// Source: Chou et al. 2025, arXiv:2507.01004 (ZeCO), section 3; as SpikingBrain uses it, arXiv:2509.05276.
template <communicator Group, class T>
void pass_states(Group& group, std::span<const T> decay, std::span<const T> local, std::span<T> in,
                 const state_options& options = {}) {
  detail::relay_states<1>(group, decay, local, in, options);
}

/// Its gradients, from those of `in` on each rank, and `in` itself: they travel the other way, one state from each rank but the first.
/// Shapes: d_in, d_local [heads * keys, values], d_decay [heads * keys].
template <communicator Group, class T>
void pass_states_backward(Group& group, std::span<const T> decay, std::span<const T> in, std::span<const T> d_in,
                          std::span<T> d_decay, std::span<T> d_local, const state_options& options = {}) {
  const std::size_t columns = detail::state_columns(decay.size(), in.size(), {d_in.size(), d_local.size()});
  if (d_decay.size() != decay.size())
    throw layout_error("heddle: states: d_decay should have " + std::to_string(decay.size()) + " elements, got " +
                       std::to_string(d_decay.size()));
  // What comes is the gradient of the state that leaves this rank, which is that of `local`.
  detail::relay_states<-1>(group, decay, d_in, d_local, options);
  for (std::size_t r = 0; r < decay.size(); ++r) {
    T sum = 0;
    for (std::size_t i = r * columns; i < (r + 1) * columns; ++i) sum += d_local[i] * in[i];
    d_decay[r] = sum;
  }
}

/// Decays of all ranks that share a sequence, which `gather_states` keeps for its backward pass.
template <class T>
struct gathered_decays {
  std::vector<T> of_ranks{};
};

namespace detail {
// What each rank of a sequence gives, one behind the other: each sends its own to all others.
template <communicator Group, class T>
std::vector<T> exchange_states(Group& group, std::span<const T> mine, const states_along& line, int tag) {
  const std::size_t n = mine.size();
  std::vector<T> all(n * static_cast<std::size_t>(line.size()));
  using request = typename Group::request;
  std::vector<request> waits;
  for (std::ptrdiff_t p = 0; p < line.size(); ++p)
    if (p != line.place())
      waits.push_back(group.irecv(std::span<T>(all).subspan(static_cast<std::size_t>(p) * n, n), line[p], tag));
  for (std::ptrdiff_t p = 0; p < line.size(); ++p)
    if (p != line.place()) waits.push_back(group.isend(mine, line[p], tag));
  std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(n) * line.place());
  for (request& w : waits) w.wait();
  return all;
}
}  // namespace detail

/// The same in one exchange: every rank sends its decays and its state to all others, and adds up those before it. Fewer steps for few ranks;
/// each sends heads * keys * (values + 1) elements to each other one.
/// Shapes and errors: as `pass_states`. Source: Sun et al. 2025, arXiv:2502.07563 (LASP-2), section 3.
template <communicator Group, class T>
gathered_decays<T> gather_states(Group& group, std::span<const T> decay, std::span<const T> local, std::span<T> in,
                                 const state_options& options = {}) {
  const std::size_t columns = detail::state_columns(decay.size(), local.size(), {in.size()});
  const detail::states_along line(group.rank(), group.size(), options.ranks);
  std::vector<T> mine(decay.begin(), decay.end());
  mine.insert(mine.end(), local.begin(), local.end());
  const std::vector<T> all = detail::exchange_states(group, std::span<const T>(mine), line, options.tag);
  gathered_decays<T> decays;
  std::fill(in.begin(), in.end(), T(0));
  for (std::ptrdiff_t p = 0; p < line.size(); ++p) {
    const T* const of_rank = all.data() + static_cast<std::ptrdiff_t>(mine.size()) * p;
    decays.of_ranks.insert(decays.of_ranks.end(), of_rank, of_rank + decay.size());
    for (std::size_t r = 0; p < line.place() && r < decay.size(); ++r)
      for (std::size_t i = r * columns; i < (r + 1) * columns; ++i) in[i] = of_rank[r] * in[i] + of_rank[decay.size() + i];
  }
  return decays;
}

/// Its gradients: every rank sends that of `in` to all others, and adds up those behind it.
template <communicator Group, class T>
void gather_states_backward(Group& group, const gathered_decays<T>& decays, std::span<const T> in,
                            std::span<const T> d_in, std::span<T> d_decay, std::span<T> d_local,
                            const state_options& options = {}) {
  const std::size_t rows = d_decay.size();
  const std::size_t columns = detail::state_columns(rows, in.size(), {d_in.size(), d_local.size()});
  const detail::states_along line(group.rank(), group.size(), options.ranks);
  if (decays.of_ranks.size() != rows * static_cast<std::size_t>(line.size()))
    throw layout_error("heddle: states: decays of " + std::to_string(line.size()) + " ranks should have " +
                       std::to_string(rows) + " elements each, got " + std::to_string(decays.of_ranks.size()));
  const std::vector<T> all = detail::exchange_states(group, d_in, line, options.tag);
  std::fill(d_local.begin(), d_local.end(), T(0));
  for (std::ptrdiff_t p = line.size(); --p > line.place();) {
    const T* const of_rank = all.data() + static_cast<std::ptrdiff_t>(d_in.size()) * p;
    const T* const decay = decays.of_ranks.data() + static_cast<std::ptrdiff_t>(rows) * p;
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t i = r * columns; i < (r + 1) * columns; ++i) d_local[i] = decay[r] * d_local[i] + of_rank[i];
  }
  for (std::size_t r = 0; r < rows; ++r) {
    T sum = 0;
    for (std::size_t i = r * columns; i < (r + 1) * columns; ++i) sum += d_local[i] * in[i];
    d_decay[r] = sum;
  }
}

}  // namespace heddle::inline v0
