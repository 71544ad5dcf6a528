// heddle/infer/step_rows.hpp: positions, cache rows and attention slices of the rows of a step.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/infer/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::infer {

/// What layers read of a step besides its tokens. Keys are counted in the order of `step::blocks`: key j is row
/// blocks[j / block_rows] * block_rows + j % block_rows of the cache.
class step_rows {
 public:
  step_rows() = default;
  /// Requires a step that `require_step` accepts, and a cache of fewer than 2^31 rows. `window`: tokens that rows of `windowed` see, of a step without trees; 0: there are none.
  /// `order`: the row of the step that is row i here, of a step without trees, states and windows; empty: the step's own. Each row then has a slice of
  /// its own.
  void prepare(const step& s, std::int64_t block_rows, std::int64_t window = 0,
               std::span<const std::int32_t> order = {}) {
    block_rows_ = block_rows;
    positions_.clear();
    places_.clear();
    slices_.clear();
    other_slices_.clear();
    few_rows_.clear();
    most_keys_ = 0;
    pages_.assign(s.blocks.begin(), s.blocks.end());
    wanted_.clear();
    for (const std::int64_t w : s.wanted) wanted_.push_back(static_cast<std::int32_t>(w));
    for (const sequence_rows& q : s.sequences) {
      const bool is_few = q.rows <= most_few_rows;
      std::vector<compute::attention_slice>& slices = is_few ? slices_ : other_slices_;
      if (is_few) {
        most_keys_ = (std::max)(most_keys_, q.reach());
        for (std::int64_t r = 0; r < q.rows; ++r) few_rows_.push_back(static_cast<std::int32_t>(q.first_row + r));
      }
      if (!s.parents.empty()) {
        add_tree(s, q, slices);
        continue;
      }
      for (std::int64_t t = q.position; t < q.position + q.rows; ++t) {
        const std::int64_t block = pages_[static_cast<std::size_t>(q.first_block + t / block_rows)];
        positions_.push_back(static_cast<std::int32_t>(t));
        places_.push_back(static_cast<std::int32_t>(block * block_rows + t % block_rows));
      }
      const std::int64_t key = q.first_block * block_rows;
      slices.push_back({q.first_row, q.first_row + q.rows, key, key + q.reach(),
                        s.everywhere ? compute::slice_mask::full : compute::slice_mask::causal});
    }
    few_slices_ = static_cast<std::int64_t>(slices_.size());
    if (other_slices_.empty()) few_rows_.clear();  // all are
    slices_.insert(slices_.end(), other_slices_.begin(), other_slices_.end());
    if (window > 0) see_windows(s, window);
    states_.clear();
    for (const sequence_rows& q : s.sequences)
      if (q.state >= 0)
        states_.push_back({static_cast<std::int32_t>(q.first_row), static_cast<std::int32_t>(q.rows),
                           static_cast<std::int32_t>(q.state), q.position == 0 ? 1 : 0});
    tokens_.assign(s.tokens.begin(), s.tokens.end());
    if (!order.empty()) put_in_order(s, order);
  }
  /// Of each row its token.
  std::span<const std::int32_t> tokens() const noexcept { return tokens_; }
  /// Of each row: its position in its sequence, and its row in the cache.
  std::span<const std::int32_t> positions() const noexcept { return positions_; }
  std::span<const std::int32_t> places() const noexcept { return places_; }
  /// Rows of sequences that have states.
  std::span<const compute::state_rows> states() const noexcept { return states_; }
  /// The rows whose logits are wanted.
  std::span<const std::int32_t> wanted() const noexcept { return wanted_; }
  /// Attention of each sequence's rows to its tokens up to the row itself; in a tree to its ancestors, everywhere to all of its keys. Sequences with up to `most_few_rows` rows come first.
  std::span<const compute::attention_slice> slices() const noexcept { return slices_; }
  /// The same to the last tokens of the window.
  std::span<const compute::attention_slice> windowed() const noexcept { return windowed_; }
  compute::key_pages windowed_pages() const noexcept {
    return {pages_, block_rows_, (std::min)(most_keys_, most_keys_windowed_), few_rows_, few_windowed_};
  }
  /// Where keys lie, and which rows are those of sequences with few.
  compute::key_pages pages() const noexcept { return {pages_, block_rows_, most_keys_, few_rows_, few_slices_}; }
  /// Rows of a sequence in one step up to which attention shares their keys among threads, where a backend does.
  static constexpr std::int64_t most_few_rows = 8;

 private:
  void put_in_order(const step& s, std::span<const std::int32_t> order) {
    const auto in_order = [&](std::vector<std::int32_t>& rows) {
      const std::vector<std::int32_t> old(rows);
      for (std::size_t i = 0; i < order.size(); ++i) rows[i] = old[static_cast<std::size_t>(order[i])];
    };
    in_order(tokens_);
    in_order(positions_);
    in_order(places_);
    std::vector<std::int32_t> place(order.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      place[static_cast<std::size_t>(order[i])] = static_cast<std::int32_t>(i);
    for (std::int32_t& w : wanted_) w = place[static_cast<std::size_t>(w)];
    slices_.assign(order.size(), {});
    most_keys_ = 0;
    for (const sequence_rows& q : s.sequences)
      for (std::int64_t r = 0; r < q.rows; ++r) {
        const std::int64_t i = place[static_cast<std::size_t>(q.first_row + r)], key = q.first_block * block_rows_;
        const std::int64_t seen = s.everywhere ? q.reach() : q.position + r + 1;
        slices_[static_cast<std::size_t>(i)] = {i, i + 1, key, key + seen,
                                                s.everywhere ? compute::slice_mask::full : compute::slice_mask::causal};
        most_keys_ = (std::max)(most_keys_, seen);
      }
    few_slices_ = static_cast<std::int64_t>(slices_.size());
    few_rows_.clear();  // all are
  }
  void see_windows(const step& s, std::int64_t window) {
    windowed_.clear();
    most_keys_windowed_ = window + most_few_rows - 1;
    for (const bool few : {true, false}) {
      for (const sequence_rows& q : s.sequences)
        if (few == (q.rows <= most_few_rows))
          for (const compute::attention_slice& a : compute::causal_window(q.first_row, q.first_row + q.rows, q.position,
                                                                          q.first_block * block_rows_, window))
            windowed_.push_back(a);
      if (few) few_windowed_ = static_cast<std::int64_t>(windowed_.size());
    }
  }
  // Rows that follow one another see what plain rows do. All others see together the tokens in the cache and the rows that all of them
  // follow, and then each its own ancestors.
  void add_tree(const step& s, const sequence_rows& q, std::vector<compute::attention_slice>& slices) {
    const std::int64_t* const parents = s.parents.data() + q.first_row;
    const std::int64_t key = q.first_block * block_rows_;
    std::int64_t chain = 0;
    while (chain < q.rows && parents[chain] == chain - 1) ++chain;
    depths_.clear();
    std::int64_t shared = chain;
    for (std::int64_t i = 0; i < q.rows; ++i) {
      depths_.push_back(parents[i] < 0 ? 0 : depths_[static_cast<std::size_t>(parents[i])] + 1);
      const std::int64_t slot = q.position + i;
      const std::int64_t block = pages_[static_cast<std::size_t>(q.first_block + slot / block_rows_)];
      positions_.push_back(static_cast<std::int32_t>(q.position + depths_.back()));
      places_.push_back(static_cast<std::int32_t>(block * block_rows_ + slot % block_rows_));
      std::int64_t up = i;
      while (up >= chain) up = parents[up];
      if (i >= chain) shared = (std::min)(shared, up + 1);
    }
    const std::int64_t first = key + q.position;
    if (chain > 0)
      slices.push_back({q.first_row, q.first_row + chain, key, first + chain, compute::slice_mask::causal});
    if (chain < q.rows)
      slices.push_back({q.first_row + chain, q.first_row + q.rows, key, first + shared, compute::slice_mask::full});
    for (std::int64_t i = chain; i < q.rows; ++i)
      for (std::int64_t last = i; last >= shared;) {  // stretches of ancestors that lie one behind the other
        std::int64_t begin = last;
        while (begin - 1 >= shared && parents[begin] == begin - 1) --begin;
        slices.push_back(
            {q.first_row + i, q.first_row + i + 1, first + begin, first + last + 1, compute::slice_mask::full});
        last = parents[begin];
      }
  }

  std::int64_t block_rows_ = 0, most_keys_ = 0, few_slices_ = 0;
  std::vector<std::int32_t> tokens_{}, positions_{}, places_{}, pages_{}, wanted_{}, few_rows_{};
  std::vector<std::int64_t> depths_{};
  std::vector<compute::state_rows> states_{};
  std::vector<compute::attention_slice> slices_{}, other_slices_{}, windowed_{};
  std::int64_t most_keys_windowed_ = 0, few_windowed_ = 0;
};

}  // namespace heddle::inline v0::infer
