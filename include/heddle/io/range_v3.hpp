// heddle/io/range_v3.hpp: a data set as lazy views, to combine with range-v3.
//
//   auto steps = text.tokens() | io::views::chunks(context) | io::views::training(0.05) | io::views::shuffled(seed)
//              | io::views::from(position) | io::views::batches(batch) | io::views::share(dp_rank, dp_size)
//              | io::views::microbatches(count);
//
// The same samples in the same order as `io::dataset`; nothing is computed before it is looked at. Host only: nvcc
// cannot compile range-v3, so no `.cu` file may include this header, and <heddle/heddle.hpp> does not.
#pragma once

#if !__has_include(<range/v3/view/sliding.hpp>)
#error "heddle/io/range_v3.hpp needs range-v3 (Debian: librange-v3-dev): link the CMake target heddle::range_v3"
#else

#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/text.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/io/permutation.hpp>

#include <range/v3/iterator/operations.hpp>
#include <range/v3/range/access.hpp>
#include <range/v3/range/primitives.hpp>
#include <range/v3/view/all.hpp>
#include <range/v3/view/chunk.hpp>
#include <range/v3/view/drop.hpp>
#include <range/v3/view/drop_exactly.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/sliding.hpp>
#include <range/v3/view/stride.hpp>
#include <range/v3/view/take_exactly.hpp>
#include <range/v3/view/transform.hpp>
#include <range/v3/view/view.hpp>

#include <cstdint>
#include <string>
#include <utility>

namespace heddle::inline v0::io::views {

namespace detail {

inline constexpr auto part_of_view = [](auto view, std::int64_t part, std::int64_t parts) {
  const balanced_split cut{static_cast<std::int64_t>(ranges::distance(view)), parts};
  return std::move(view) | ranges::views::drop_exactly(cut.offset(part)) | ranges::views::take_exactly(cut.size(part));
};

inline void require_part(const char* what, std::int64_t part, std::int64_t parts) {
  if (parts < 1 || part < 0 || part >= parts)
    throw config_error(std::string("heddle: views::") + what + ": part " + std::to_string(part) + " of " +
                       std::to_string(parts) + " does not exist");
}

inline std::int64_t held_out(std::int64_t chunks, double validation) {
  if (!(validation >= 0.0 && validation < 1.0))
    throw config_error("heddle: the validation part must be in [0, 1), got " + number_text(validation));
  if (!(validation > 0.0) || chunks < 2) return 0;
  const auto n = static_cast<std::int64_t>(static_cast<double>(chunks) * validation);
  return n < 1 ? 1 : n > chunks - 1 ? chunks - 1 : n;
}

}  // namespace detail

/// Tokens to chunks of `context + 1` that overlap by one.
inline auto chunks(std::int64_t context) {
  if (context < 1) throw config_error("heddle: the context must be at least 1 token, got " + std::to_string(context));
  return ranges::make_view_closure([context](auto&& tokens) {
    return ranges::views::all(static_cast<decltype(tokens)>(tokens)) | ranges::views::sliding(context + 1) |
           ranges::views::stride(context);
  });
}

/// The chunks that training sees, when a part `validation` of them at the end is held out.
inline auto training(double validation) {
  return ranges::make_view_closure([validation](auto&& chunks) {
    auto view = ranges::views::all(static_cast<decltype(chunks)>(chunks));
    const auto n = static_cast<std::int64_t>(ranges::distance(view));
    return std::move(view) | ranges::views::take_exactly(n - detail::held_out(n, validation));
  });
}

/// The chunks that are held out.
inline auto validation(double part) {
  return ranges::make_view_closure([part](auto&& chunks) {
    auto view = ranges::views::all(static_cast<decltype(chunks)>(chunks));
    const auto n = static_cast<std::int64_t>(ranges::distance(view));
    return std::move(view) | ranges::views::drop_exactly(n - detail::held_out(n, part));
  });
}

/// A finite random-access range to an endless one: each epoch visits every element once, in an order computed from
/// (seed, epoch). Any position in constant time. Errors: `io_error` for an empty range.
inline auto shuffled(std::uint64_t seed) {
  return ranges::make_view_closure([seed](auto&& samples) {
    auto view = ranges::views::all(static_cast<decltype(samples)>(samples));
    const auto n = static_cast<std::int64_t>(ranges::distance(view));
    if (n < 1) throw io_error("heddle: views::shuffled of an empty range");
    return ranges::views::iota(std::int64_t{0}) |
           ranges::views::transform([view = std::move(view), n, seed](std::int64_t sample) -> decltype(auto) {
             const permutation order(n, seed, static_cast<std::uint64_t>(sample / n));
             return *ranges::next(ranges::begin(view), order(sample % n));
           });
  });
}

/// Leaves out what was trained on before.
inline auto from(data_position position) {
  return ranges::views::drop(position.consumed);
}

/// Samples to batches of `size`.
inline auto batches(std::int64_t size) {
  if (size < 1) throw config_error("heddle: the batch must be at least 1 sample, got " + std::to_string(size));
  return ranges::views::chunk(size);
}

/// Of every batch the balanced share of one data-parallel rank.
inline auto share(std::int64_t dp_rank, std::int64_t dp_size) {
  detail::require_part("share", dp_rank, dp_size);
  return ranges::views::transform(
      [dp_rank, dp_size](auto batch) { return detail::part_of_view(std::move(batch), dp_rank, dp_size); });
}

/// Every batch to a range of `count` balanced microbatches.
inline auto microbatches(std::int64_t count) {
  detail::require_part("microbatches", 0, count);
  return ranges::views::transform([count](auto batch) {
    return ranges::views::iota(std::int64_t{0}, count) |
           ranges::views::transform([batch = std::move(batch), count](std::int64_t part) {
             return detail::part_of_view(batch, part, count);
           });
  });
}

/// What the model reads of a chunk: all tokens but the last.
inline constexpr auto inputs = [](auto chunk) {
  const auto n = static_cast<std::int64_t>(ranges::distance(chunk));
  return std::move(chunk) | ranges::views::take_exactly(n - 1);
};
/// What a model should say: all tokens but the first.
inline constexpr auto targets = [](auto chunk) { return std::move(chunk) | ranges::views::drop_exactly(1); };

}  // namespace heddle::inline v0::io::views

#endif
