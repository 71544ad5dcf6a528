// heddle/train/validation.hpp: the mean loss over held-out samples that several ranks share.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/split.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

namespace heddle::inline v0::train::detail {

// Whether rows of a stage travel to ranks with other samples, as the stage says.
template <class Stage>
inline constexpr bool exchanges_rows = [] {
  if constexpr (requires { Stage::exchanges_rows; })
    return Stage::exchanges_rows;
  else
    return false;
}();
// Whether all ranks run forwards equally often, perhaps of no samples: they gather weights, or exchange rows.
template <class Trainer>
inline constexpr bool runs_together =
    Trainer::zero_stage >= 3 || Trainer::buckets > 1 || exchanges_rows<typename Trainer::stage_type>;

// A function that says this rank's loss and targets of a batch, without its type: trainers on several meshes share the loop below.
template <class Batch>
struct loss_of_batch {
  template <class F>
  explicit loss_of_batch(const F& f)
      : of(&f), call([](const void* function, const Batch& b) { return (*static_cast<const F*>(function))(b); }) {}
  std::array<double, 2> operator()(const Batch& b) const { return call(of, b); }
  const void* of;
  std::array<double, 2> (*call)(const void*, const Batch&);
};
// At most `most` samples, 0: all; `at_once` in one batch. `together`: all ranks call `forward` equally often, perhaps with an empty
// batch.
template <class All, class Shares, class Batches, class Data, class Batch>
double held_out_loss(bool together, All& all, const Shares& shares, Batches& batches, const Data& data,
                     std::int64_t most, std::int64_t at_once, const loss_of_batch<Batch>& forward) {
  std::int64_t samples = data.validation_samples();
  if (most > 0) samples = (std::min)(most, samples);
  batches.require_fitting(data);
  if (samples < 1) throw config_error("heddle: validation needs held-out samples; the data has none");
  const balanced_split cut{samples, shares.size()};
  std::int64_t first = cut.offset(shares.rank());
  const std::int64_t end = first + cut.size(shares.rank());
  std::array<double, 2> sums{};  // loss, targets
  const std::int64_t last = together ? first + cut.largest() : end;
  for (; first < last; first += at_once) {
    const std::int64_t count = (std::max)((std::min)(at_once, end - first), std::int64_t{0});
    const std::array<double, 2> part = forward(batches.held_out(data, (std::min)(first, end), count));
    sums[0] += part[0];
    sums[1] += part[1];
  }
  all.all_reduce(std::span<double>(sums), plus{});
  if (sums[1] == 0) throw config_error("heddle: every target of the held-out samples is ignored");
  return sums[0] / sums[1];
}

}  // namespace heddle::inline v0::train::detail
