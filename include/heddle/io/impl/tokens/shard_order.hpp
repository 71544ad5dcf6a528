// heddle/io/impl/tokens/shard_order.hpp: bodies of heddle/io/tokens/shard_order.hpp.
#pragma once

#include <heddle/io/tokens/shard_order.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/io/permutation.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

namespace heddle::inline v0::io {

HEDDLE_INLINE void shard_order::build() {
  const shard_order_options& o = options_;
  if (o.context < 1 || o.streams < 1 || o.window < 1)
    throw config_error("heddle: shard_order: context, streams and window are 1 or more, not " +
                       std::to_string(o.context) + ", " + std::to_string(o.streams) + " and " +
                       std::to_string(o.window));
  if (o.batch < 1 || o.batch % o.streams != 0)
    throw config_error("heddle: shard_order: a batch of " + std::to_string(o.batch) + " samples does not divide over " +
                       std::to_string(o.streams) + " streams");
  const std::int64_t documents = static_cast<std::int64_t>(begins_.size()) - 1;
  if (shards_.empty()) {
    shards_.resize(begins_.size() - 1);
    std::iota(shards_.begin(), shards_.end(), std::int64_t{0});
  }
  for (std::size_t i = 0; i < shards_.size(); ++i)
    if (shards_[i] < (i == 0 ? 0 : shards_[i - 1]) || shards_[i] > documents)
      throw config_error("heddle: shard_order: shard " + std::to_string(i) + " begins with document " +
                         std::to_string(shards_[i]) + " of " + std::to_string(documents) +
                         ", behind the shard before or beyond the last");
  shards_.push_back(documents);
  for (std::int64_t s = 0; s < shards(); ++s) all_ += samples_of_shard(s);
  of_stream_ = all_ / o.streams;
  if (of_stream_ < 1)
    throw io_error("heddle: shard_order: " + std::to_string(shards()) + " shards have " + std::to_string(all_) +
                   " samples of " + std::to_string(o.context + 1) + " tokens; " + std::to_string(o.streams) +
                   " streams need one each");
}

HEDDLE_INLINE std::int64_t shard_order::samples_of_shard(std::int64_t shard) const noexcept {
  const auto begin_of = [&](std::int64_t s) {
    return begins_[static_cast<std::size_t>(shards_[static_cast<std::size_t>(s)])];
  };
  return (std::max)(begin_of(shard + 1) - begin_of(shard) - 1, std::int64_t{0}) / options_.context;
}

HEDDLE_INLINE std::shared_ptr<const shard_order::table> shard_order::table_of(std::int64_t epoch) const {
  const std::lock_guard lock(epochs_->mutex);
  for (int i : {0, 1})
    if (epochs_->epoch[i] == epoch) return epochs_->begins[i];
  auto made = std::make_shared<table>(1, 0);
  const permutation order(shards(), options_.seed, static_cast<std::uint64_t>(epoch));
  for (std::int64_t i = 0; i < shards(); ++i) made->push_back(made->back() + samples_of_shard(order(i)));
  const int oldest = epochs_->epoch[0] < epochs_->epoch[1] ? 0 : 1;
  epochs_->epoch[oldest] = epoch;
  epochs_->begins[oldest] = made;
  return made;
}

HEDDLE_INLINE shard_order::place shard_order::operator()(std::int64_t k) const {
  if (k < 0) throw config_error("heddle: shard_order: sample " + std::to_string(k));
  const std::int64_t of_step = options_.batch / options_.streams, in_step = k % options_.batch;
  const std::int64_t stream = in_step / of_step, position = k / options_.batch * of_step + in_step % of_step;
  const std::int64_t epoch = position / of_stream_, at = position % of_stream_;
  const std::int64_t window = at / options_.window, first = window * options_.window;
  // Every window of every stream has numbers of its own.
  const std::int64_t windows = (of_stream_ + options_.window - 1) / options_.window;
  const counter_random random(options_.seed, 0x77696e646f77u);
  const std::uint64_t seed =
      random.integer(static_cast<std::uint64_t>((epoch * options_.streams + stream) * windows + window));
  const permutation shuffled((std::min)(options_.window, of_stream_ - first), seed);
  // Streams are cuts of one length; which samples lie between them depends on the epoch.
  const std::int64_t sample = stream * all_ / options_.streams + first + shuffled(at - first);
  const std::shared_ptr<const table> begins = table_of(epoch);
  const auto i = std::upper_bound(begins->begin(), begins->end(), sample) - begins->begin() - 1;
  return {permutation(shards(), options_.seed, static_cast<std::uint64_t>(epoch))(i),
          sample - (*begins)[static_cast<std::size_t>(i)]};
}

HEDDLE_INLINE std::string shard_order::text() const {
  return "shard_order seed " + std::to_string(options_.seed) + ", context " + std::to_string(options_.context) +
         ", batch " + std::to_string(options_.batch) + ", streams " + std::to_string(options_.streams) + ", window " +
         std::to_string(options_.window) + ", shards " + std::to_string(shards());
}

}  // namespace heddle::inline v0::io
