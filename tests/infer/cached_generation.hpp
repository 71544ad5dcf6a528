// tests/infer/cached_generation.hpp: logits of whole prefixes as a reference, and a driver that feeds sequences to a runner in steps.
#pragma once

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/testing/on_ranks.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace infer_test {

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;

using mesh_type = hd::mesh<hd::axis<hd::pp>, hd::axis<hd::tp>>;
using world_type = hd::world<hd::threads, mesh_type>;
using backend = hd::compute::host<>;

inline std::vector<std::int32_t> random_tokens(std::size_t n, int vocabulary, std::uint64_t seed) {
  const hd::counter_random random(seed, 3);
  std::vector<std::int32_t> v(n);
  for (std::size_t i = 0; i < n; ++i)
    v[i] = static_cast<std::int32_t>(random.integer(i) % static_cast<std::uint64_t>(vocabulary));
  return v;
}

/// Logits of every position of every sequence: [sequence][position][word].
template <class T>
using all_logits = std::vector<std::vector<std::vector<T>>>;

/// What the stage for training says of each prefix, on one rank.
template <class Model>
all_logits<typename Model::scalar> logits_of_prefixes(const typename Model::config& config, std::uint64_t seed,
                                                      const std::vector<std::vector<std::int32_t>>& sequences) {
  using T = typename Model::scalar;
  all_logits<T> all(sequences.size());
  hd::launch<hd::threads>(mesh_type{1, 1}, [&](world_type& world) {
    backend kernels{1};
    typename Model::template stage<world_type, backend> stage(config, world, kernels, Model::layers_of(config, 0, 1), 1,
                                                              1, 0);
    stage.initialize(seed);
    for (std::size_t s = 0; s < sequences.size(); ++s)
      for (std::size_t n = 1; n <= sequences[s].size(); ++n) {
        const std::vector<std::int32_t> prefix(sequences[s].begin(),
                                               sequences[s].begin() + static_cast<std::ptrdiff_t>(n));
        const md::batch<T> batch{prefix, {}, 1, T(1), static_cast<int>(n)};
        auto& logits = all[s].emplace_back(static_cast<std::size_t>(config.vocabulary));
        stage.last_logits(batch, {}, {}, logits);
      }
  });
  return all;
}

/// Feeds sequences to a runner and keeps the logits of every row. Blocks are taken in an order that has nothing to do with that of
/// the tokens.
template <class Runner>
class driver {
 public:
  using T = typename Runner::scalar;
  driver(Runner& runner, const std::vector<std::vector<std::int32_t>>& sequences, std::uint64_t seed)
      : runner_(&runner),
        sequences_(&sequences),
        position_(sequences.size()),
        blocks_(sequences.size()),
        found_(sequences.size()) {
    const hd::counter_random random(seed, 11);
    for (std::int64_t b = 0; b < runner.limits().blocks; ++b) free_.push_back(static_cast<std::int32_t>(b));
    for (std::size_t i = free_.size(); i > 1; --i) std::swap(free_[i - 1], free_[random.integer(i) % i]);
  }
  /// Fills every block with tokens of no sequence, so that nothing that was there before can be of use.
  void spoil(std::uint64_t seed) {
    const inf::step_limits limits = runner_->limits();
    for (std::int64_t first = 0; first < limits.blocks;) {
      inf::step step;
      for (; first < limits.blocks && step.rows() + limits.block_rows <= limits.max_rows; ++first) {
        step.sequences.push_back({step.rows(), limits.block_rows, 0, static_cast<std::int64_t>(step.blocks.size()), 1});
        step.blocks.push_back(static_cast<std::int32_t>(first));
        const auto junk =
            random_tokens(static_cast<std::size_t>(limits.block_rows), static_cast<int>(limits.vocabulary),
                          seed * 1000 + static_cast<std::uint64_t>(first));
        step.tokens.insert(step.tokens.end(), junk.begin(), junk.end());
      }
      runner_->run(step, {});
    }
  }
  std::int64_t left(std::size_t s) const { return static_cast<std::int64_t>((*sequences_)[s].size()) - position_[s]; }
  /// One step: of each of these sequences so many tokens.
  void feed(const std::vector<std::pair<std::size_t, std::int64_t>>& chunks) {
    const std::int64_t block_rows = runner_->limits().block_rows;
    inf::step step;
    step.copies = std::exchange(copies_, {});
    for (const auto& [s, rows] : chunks) {
      const std::int64_t end = position_[s] + rows;
      while (static_cast<std::int64_t>(blocks_[s].size()) * block_rows < end) blocks_[s].push_back(take());
      step.sequences.push_back({step.rows(), rows, position_[s], static_cast<std::int64_t>(step.blocks.size()),
                                static_cast<std::int64_t>(blocks_[s].size())});
      step.blocks.insert(step.blocks.end(), blocks_[s].begin(), blocks_[s].end());
      const auto first = (*sequences_)[s].begin() + static_cast<std::ptrdiff_t>(position_[s]);
      step.tokens.insert(step.tokens.end(), first, first + static_cast<std::ptrdiff_t>(rows));
    }
    for (std::int64_t r = 0; r < step.rows(); ++r) step.wanted.push_back(r);
    const auto words = static_cast<std::size_t>(runner_->limits().vocabulary);
    std::vector<T> logits(step.wanted.size() * words, std::numeric_limits<T>::quiet_NaN());
    runner_->run(step, logits);
    auto at = logits.begin();
    for (const auto& [s, rows] : chunks) {
      for (std::int64_t r = 0; r < rows; ++r, at += static_cast<std::ptrdiff_t>(words))
        found_[s].emplace_back(at, at + static_cast<std::ptrdiff_t>(words));
      position_[s] += rows;
    }
  }
  /// Sequence `to` begins as the first `tokens` of sequence `from` do: whole blocks are shared, the last is copied.
  void fork(std::size_t from, std::size_t to, std::int64_t tokens) {
    const std::int64_t block_rows = runner_->limits().block_rows;
    const std::int64_t whole = tokens / block_rows;
    blocks_[to].assign(blocks_[from].begin(), blocks_[from].begin() + static_cast<std::ptrdiff_t>(whole));
    if (tokens % block_rows != 0) {
      blocks_[to].push_back(take());
      copies_.push_back({blocks_[from][static_cast<std::size_t>(whole)], blocks_[to].back()});
    }
    position_[to] = tokens;
    found_[to].assign(found_[from].begin(), found_[from].begin() + static_cast<std::ptrdiff_t>(tokens));
  }
  const all_logits<T>& found() const { return found_; }
  /// The next steps go to another runner, whose cache holds what that of the one before held.
  void go_on_with(Runner& runner) { runner_ = &runner; }

 private:
  std::int32_t take() {
    const std::int32_t b = free_.back();
    free_.pop_back();
    return b;
  }
  Runner* runner_;
  const std::vector<std::vector<std::int32_t>>* sequences_;
  std::vector<std::int64_t> position_;
  std::vector<std::vector<std::int32_t>> blocks_;
  all_logits<T> found_;
  std::vector<std::int32_t> free_;
  std::vector<inf::block_copy> copies_;
};

/// The greatest difference; NaN stays, and what is missing is infinitely far.
template <class T>
double distance(const all_logits<T>& a, const all_logits<T>& b) {
  double worst = 0;
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  for (std::size_t s = 0; s < a.size(); ++s) {
    if (a[s].size() != b[s].size()) return std::numeric_limits<double>::infinity();
    for (std::size_t t = 0; t < a[s].size(); ++t)
      for (std::size_t w = 0; w < a[s][t].size(); ++w) {
        const double off = std::abs(static_cast<double>(a[s][t][w]) - static_cast<double>(b[s][t][w]));
        if (!(off <= worst)) worst = off;
      }
  }
  return worst;
}

/// Runs `body(runner, leads)` on every rank of a mesh of pp x tp ranks: on the leader the body drives, the others follow.
template <class Model, class Kernels = backend, class Body>
auto on_runners(const mesh_type& mesh, const typename Model::config& config, inf::cache_extent cache,
                std::int64_t max_rows, std::uint64_t seed, int threads, Body&& body) {
  return hd::testing::on_ranks(mesh, [&](world_type& world) {
    Kernels kernels{threads};
    inf::model_runner<Model, world_type, Kernels> runner(config, world, kernels, cache, max_rows);
    runner.stage().initialize(seed);
    if (!runner.leads()) {
      runner.follow();
      return decltype(body(runner)){};
    }
    auto result = body(runner);
    runner.finish();
    return result;
  });
}

/// What `all_ways` found: the worst differences from what was expected and from the first way, and that way's logits.
template <class T>
struct found_ways {
  double from_expected = 0, from_first = 0;
  all_logits<T> first{};
};

/// Everything that may not change the logits, on one mesh with one size of blocks: token by token, prompts together, random chunks of
/// random companions, and a fork of the last but one sequence, which shares `shared` tokens with the last.
template <class Model>
auto all_ways(const mesh_type& mesh, const typename Model::config& config, std::int64_t block_rows, std::int64_t shared,
              const std::vector<std::vector<std::int32_t>>& sequences,
              const all_logits<typename Model::scalar>& expected, std::uint64_t seed, int threads = 1) {
  using T = typename Model::scalar;
  const std::int64_t blocks =
      2 * static_cast<std::int64_t>(sequences.size()) * ((config.context + block_rows - 1) / block_rows);
  const auto ranks = on_runners<Model>(mesh, config, {blocks, block_rows}, 320, seed, threads, [&](auto& runner) {
    using driver_type = driver<std::remove_reference_t<decltype(runner)>>;
    found_ways<T> all;
    const auto compare = [&](const driver_type& d) {
      if (all.first.empty()) all.first = d.found();
      const double off = distance(d.found(), expected), moved = distance(d.found(), all.first);
      if (!(off <= all.from_expected)) all.from_expected = off;
      if (!(moved <= all.from_first)) all.from_first = moved;
    };
    {  // token by token, one sequence after the other
      driver_type d(runner, sequences, seed);
      d.spoil(seed);
      for (std::size_t s = 0; s < sequences.size(); ++s)
        while (d.left(s) > 0) d.feed({{s, 1}});
      compare(d);
    }
    {  // prompts at once, all together
      driver_type d(runner, sequences, seed + 1);
      d.spoil(seed + 1);
      std::vector<std::pair<std::size_t, std::int64_t>> whole;
      for (std::size_t s = 0; s < sequences.size(); ++s) whole.emplace_back(s, d.left(s));
      d.feed(whole);
      compare(d);
    }
    {  // random chunks of random companions
      driver_type d(runner, sequences, seed + 2);
      d.spoil(seed + 2);
      const hd::counter_random random(seed, 5);
      for (std::uint64_t i = 0;; ++i) {
        std::vector<std::pair<std::size_t, std::int64_t>> some;
        std::int64_t left = 0;
        for (std::size_t s = 0; s < sequences.size(); ++s) {
          left += d.left(s);
          const auto draw = random.integer(i * 64 + s);
          const std::int64_t n = (std::min)(d.left(s), static_cast<std::int64_t>(draw / 8 % 5));
          if (draw % 3 != 0 && n > 0) some.emplace_back((s + i) % sequences.size(), 0);  // another order each time
        }
        if (left == 0) break;
        for (auto& [s, n] : some)
          n = (std::min)(d.left(s), 1 + static_cast<std::int64_t>(random.integer(i * 64 + 32 + s) % 4));
        std::erase_if(some, [](const auto& one) { return one.second == 0; });
        if (!some.empty()) d.feed(some);
      }
      compare(d);
    }
    {  // the last two sequences share a beginning: blocks and a copy
      driver_type d(runner, sequences, seed + 3);
      d.spoil(seed + 3);
      const std::size_t last = sequences.size() - 1;
      for (std::size_t s = 0; s < last; ++s) d.feed({{s, s + 1 < last ? d.left(s) : shared}});
      d.fork(last - 1, last, shared);
      d.feed({{last, 2}});
      d.feed({{last - 1, d.left(last - 1)}});  // in blocks that the other has not touched
      d.feed({{last, d.left(last)}});
      compare(d);
    }
    return all;
  });
  return ranks[0];
}

}  // namespace infer_test
