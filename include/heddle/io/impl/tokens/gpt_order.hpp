// heddle/io/impl/tokens/gpt_order.hpp: bodies of heddle/io/tokens/gpt_order.hpp.
#pragma once

#include <heddle/io/tokens/gpt_order.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {
namespace detail {

// numpy.random.RandomState(seed).shuffle of fewer than 2^32 elements: Fisher-Yates from the back, with numbers drawn
// below a power of two until one fits.
template <class T>
void numpy_shuffle(std::mt19937& random, std::span<T> x) {
  for (std::size_t i = x.size(); i-- > 1;) {
    std::uint32_t mask = static_cast<std::uint32_t>(i);
    for (int bits = 1; bits < 32; bits *= 2) mask |= mask >> bits;
    std::uint32_t j = 0;
    do j = static_cast<std::uint32_t>(random()) & mask;
    while (j > i);
    std::swap(x[i], x[j]);
  }
}

}  // namespace detail

HEDDLE_INLINE void gpt_order::require(std::int64_t documents) const {
  if (options_.context < 1 || options_.samples < 1)
    throw config_error("heddle: gpt_order: context and samples are 1 or more, not " + std::to_string(options_.context) +
                       " and " + std::to_string(options_.samples));
  if (options_.first < 0 || options_.first >= options_.end || options_.end > documents)
    throw config_error("heddle: gpt_order: documents " + std::to_string(options_.first) + " to " +
                       std::to_string(options_.end) + " of " + std::to_string(documents));
}
HEDDLE_INLINE void gpt_order::require_sample(std::int64_t sample) const {
  if (sample < 0 || sample >= samples())
    throw config_error("heddle: gpt_order: sample " + std::to_string(sample) + " of " + std::to_string(samples()) +
                       "; set `samples` to those of the whole run");
}

HEDDLE_INLINE void gpt_order::build(std::span<const std::int64_t> lengths) {
  constexpr std::int64_t most = (std::int64_t{1} << 31) - 2;
  const std::int64_t context = options_.context;
  const std::int64_t in_epoch = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  if (in_epoch == 0) throw io_error("heddle: gpt_order: the documents have no tokens");
  if (options_.samples > most)
    throw config_error("heddle: gpt_order: " + std::to_string(options_.samples) + " samples; at most " +
                       std::to_string(most));
  epochs_ = (options_.samples * context + 1 + in_epoch - 1) / in_epoch;
  const auto n = static_cast<std::int64_t>(lengths.size());
  const std::int64_t all = (epochs_ * in_epoch - 1) / context;
  if (n > most / epochs_ || all > most)
    throw config_error("heddle: gpt_order: " + std::to_string(epochs_) + " epochs of " + std::to_string(n) +
                       " documents, " + std::to_string(all) + " samples; at most " + std::to_string(most) + " of each");
  const std::int64_t before_last = ((epochs_ - 1) * in_epoch - 1) / context;
  // Megatron's int(0.8 * n), in doubles as there.
  const auto enough = static_cast<std::int64_t>(0.80 * static_cast<double>((in_epoch - 1) / context));
  const bool apart = epochs_ > 1 && options_.samples - before_last < enough;

  std::mt19937 random(options_.seed);
  documents_.resize(static_cast<std::size_t>(n * epochs_));
  for (std::size_t i = 0; i < documents_.size(); ++i)
    documents_[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % n);
  const auto together = static_cast<std::size_t>(n * (apart ? epochs_ - 1 : epochs_));
  detail::numpy_shuffle(random, std::span(documents_).first(together));
  detail::numpy_shuffle(random, std::span(documents_).subspan(together));
  begins_.assign(1, 0);
  for (const std::int32_t d : documents_) begins_.push_back(begins_.back() + lengths[static_cast<std::size_t>(d)]);

  order_.resize(static_cast<std::size_t>(all));
  std::iota(order_.begin(), order_.end(), 0u);
  const auto first = static_cast<std::size_t>(apart ? before_last : all);
  detail::numpy_shuffle(random, std::span(order_).first(first));
  detail::numpy_shuffle(random, std::span(order_).subspan(first));
}

HEDDLE_INLINE gpt_order::place gpt_order::token_place(std::int64_t token) const noexcept {
  // The first document is where Megatron begins, also if it has no token.
  const auto after = token == 0 ? begins_.begin() + 1 : std::upper_bound(begins_.begin(), begins_.end(), token);
  const auto position = static_cast<std::size_t>(after - begins_.begin() - 1);
  return {static_cast<std::int64_t>(position), options_.first + documents_[position], token - begins_[position]};
}

}  // namespace heddle::inline v0::io
