// heddle/io/tokens/shard_order.hpp: an order of samples in which each node reads its own shards.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/tokens/token_store.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// Settings of `shard_order`.
struct shard_order_options {
  std::int64_t context = 1024;  ///< tokens a sample feeds to the model; it spans one more
  std::int64_t batch = 64;      ///< samples of a step, over all ranks
  std::int64_t streams = 8;     ///< canonical nodes: ranks that divide them read different shards; divides the batch
  std::int64_t window = 4096;   ///< samples of a stream that are shuffled among themselves
  std::uint64_t seed = 0;
  std::int64_t samples = 0;  ///< of a `held_out` order: how many of it are used
};

/// An endless order for shards that are read from far. Each epoch shuffles the shards, puts their samples behind each
/// other and cuts them into `streams` parts of one length, whose samples are shuffled in windows. A step takes as many
/// samples of every stream. The block of one of D ranks is whole streams where D divides `streams`: it needs a D-th of
/// the shards. Samples are the same for any D. A sample does not go beyond its shard; less than `streams` samples of an
/// epoch are left out.
/// Memory: 8 bytes for each document, 24 for each shard. Source: the idea is that of MosaicML Streaming's canonical
/// nodes and `py1s`; the shuffles are `io::permutation`, which keeps no table.
class shard_order {
 public:
  /// `shard_begins`: document with which each shard begins, as of MDS; empty: every document is one, as of llm.c.
  /// Errors: `config_error` for settings that cannot be; `io_error` if shards have less samples than there are streams.
  template <token_store Store>
  shard_order(const Store& store, shard_order_options options, std::span<const std::int64_t> shard_begins = {})
      : options_(options), shards_(shard_begins.begin(), shard_begins.end()), epochs_(std::make_shared<kept_epochs>()) {
    begins_.push_back(0);
    for (std::int64_t d = 0; d < store.documents(); ++d) begins_.push_back(begins_.back() + store.length(d));
    build();
  }

  /// It is endless.
  static constexpr std::int64_t samples() noexcept { return (std::numeric_limits<std::int64_t>::max)(); }
  /// Of one epoch.
  std::int64_t samples_of_epoch() const noexcept { return of_stream_ * options_.streams; }
  std::int64_t shards() const noexcept { return static_cast<std::int64_t>(shards_.size()) - 1; }
  const shard_order_options& options() const noexcept { return options_; }

  struct place {
    std::int64_t shard = 0, sample = 0;  ///< and the how manieth of it
    friend bool operator==(place, place) = default;
  };
  /// Where sample k of the run is. Errors: `config_error` for a negative one.
  place operator()(std::int64_t k) const;

  /// Calls f(document, first, count) for the pieces of which sample k, of `context + 1` tokens, consists.
  template <class F>
  void each_piece(std::int64_t k, F&& f) const {
    const place at = (*this)(k);
    std::int64_t token =
        begins_[static_cast<std::size_t>(shards_[static_cast<std::size_t>(at.shard)])] + at.sample * options_.context;
    auto d = static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), token) - begins_.begin() - 1);
    for (std::int64_t left = options_.context + 1; left > 0; ++d) {
      const std::int64_t count = (std::min)(left, begins_[d + 1] - token);
      if (count > 0) f(static_cast<std::int64_t>(d), token - begins_[d], count);
      left -= count;
      token += count;
    }
  }
  friend std::string to_string(const shard_order& o) { return o.text(); }

 private:
  using table = std::vector<std::int64_t>;  // samples before each shard in the order of an epoch
  struct kept_epochs {
    std::mutex mutex{};
    std::int64_t epoch[2] = {-1, -1};
    std::shared_ptr<const table> begins[2] = {};
  };
  void build();
  std::shared_ptr<const table> table_of(std::int64_t epoch) const;
  std::int64_t samples_of_shard(std::int64_t shard) const noexcept;
  std::string text() const;

  shard_order_options options_;
  table begins_{};  // of each document in all tokens
  table shards_;    // document with which each begins, and the number of documents
  std::int64_t all_ = 0, of_stream_ = 0;
  std::shared_ptr<kept_epochs> epochs_;  // of the last two: computed anew for others
};

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/tokens/shard_order.hpp>
#endif
