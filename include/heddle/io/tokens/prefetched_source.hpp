// heddle/io/tokens/prefetched_source.hpp: reads samples of the next steps while a step runs.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/dataset.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// How far ahead samples are read.
struct prefetch_options {
  std::int64_t batch = 0;  ///< samples of a step over all ranks: a block comes again so much later
  int depth = 2;           ///< steps
  int readers = 4;         ///< threads, each of which waits for one block: so many requests to a store are under way
};

/// A source of tokens whose blocks of the next steps threads read ahead. What a block was asked in one step is what
/// is read ahead of the next ones, so that any cut into ranks and microbatches does. A position in the data counts
/// what a step asked for: nothing that is read ahead is ever counted. `source` must outlive it. What reading ahead
/// throws, the call throws that asks for that block.
template <class Source>
class prefetched_source {
 public:
  /// Errors: `config_error` for a batch, a depth or a number of readers below 1.
  prefetched_source(const Source& source, prefetch_options options) : source_(&source), options_(options) {
    if (options.batch < 1 || options.depth < 1 || options.readers < 1)
      throw config_error("heddle: prefetched_source: batch, depth and readers are 1 or more, not " +
                         std::to_string(options.batch) + ", " + std::to_string(options.depth) + " and " +
                         std::to_string(options.readers));
    try {
      for (int r = 0; r < options.readers; ++r) readers_.emplace_back([this] { read_ahead(); });
    } catch (...) {  // no more threads
      end();
      throw;
    }
  }
  prefetched_source(const prefetched_source&) = delete;
  prefetched_source& operator=(const prefetched_source&) = delete;
  ~prefetched_source() { end(); }

  std::int64_t context() const { return source_->context(); }
  std::int64_t validation_samples() const { return source_->validation_samples(); }
  decltype(auto) order() const { return source_->order(); }

  template <class Id>
  void fill_train(sample_block block, std::span<Id> inputs, std::span<Id> targets) const {
    const auto n = static_cast<std::size_t>(block.count * context());
    if (block.count <= 0 || inputs.size() < n || targets.size() < n) {
      source_->fill_train(block, inputs, targets);  // which says what is wrong
      return;
    }
    const key at{block.first, block.count};
    std::unique_lock lock(mutex_);
    // What lies before this step is not asked again.
    blocks_.erase(blocks_.begin(), blocks_.lower_bound({block.first - options_.batch, 0}));
    std::erase_if(asked_, [&](const key& k) { return !blocks_.contains(k); });
    auto there = blocks_.find(at);
    changed_.wait(lock, [&] { return (there = blocks_.find(at)) == blocks_.end() || there->second.ready; });
    if (there != blocks_.end()) {
      const read_block got = std::move(there->second);
      blocks_.erase(there);
      ask(block);
      lock.unlock();
      if (got.error) std::rethrow_exception(got.error);
      std::copy(got.tokens.begin(), got.tokens.begin() + static_cast<std::ptrdiff_t>(n), inputs.begin());
      std::copy(got.tokens.begin() + static_cast<std::ptrdiff_t>(n), got.tokens.end(), targets.begin());
      return;
    }
    ask(block);
    lock.unlock();
    source_->fill_train(block, inputs, targets);
  }
  template <class Id>
  void fill_validation(sample_block block, std::span<Id> inputs, std::span<Id> targets) const {
    source_->fill_validation(block, inputs, targets);
  }

 private:
  using key = std::pair<std::int64_t, std::int64_t>;
  struct read_block {
    bool ready = false;
    std::vector<std::int32_t> tokens{};  // inputs, targets
    std::exception_ptr error{};
  };
  void ask(sample_block block) const {
    for (int step = 1; step <= options_.depth; ++step)
      if (const key k{block.first + step * options_.batch, block.count}; blocks_.try_emplace(k).second)
        asked_.push_back(k);
    changed_.notify_all();
  }
  void end() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    for (std::thread& t : readers_) t.join();
  }
  void read_ahead() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ends_ || !asked_.empty(); });
      if (ends_) return;
      const auto next = std::min_element(asked_.begin(), asked_.end());
      const key k = *next;
      asked_.erase(next);
      lock.unlock();
      read_block got;
      got.ready = true;
      try {
        const auto n = static_cast<std::size_t>(k.second * context());
        got.tokens.resize(2 * n);
        source_->fill_train(sample_block{k.first, k.second}, std::span(got.tokens).first(n),
                            std::span(got.tokens).last(n));
      } catch (...) {
        got.error = std::current_exception();
      }
      lock.lock();
      if (const auto there = blocks_.find(k); there != blocks_.end()) there->second = std::move(got);
      changed_.notify_all();
    }
  }

  const Source* source_;
  prefetch_options options_;
  mutable std::mutex mutex_{};
  mutable std::condition_variable changed_{};
  mutable std::map<key, read_block> blocks_{};
  mutable std::deque<key> asked_{};
  bool ends_ = false;
  std::vector<std::thread> readers_;  // last: they use all of the above
};

}  // namespace heddle::inline v0::io
