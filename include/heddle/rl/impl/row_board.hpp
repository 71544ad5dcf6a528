// heddle/rl/impl/row_board.hpp: bodies of heddle/rl/row_board.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/rl/equal_parts.hpp>
#include <heddle/rl/row_board.hpp>

#include <algorithm>
#include <string>

namespace heddle::inline v0::rl {

HEDDLE_INLINE row_board::row_board(std::size_t rows, std::size_t columns)
    : rows_(rows), columns_(columns), there_(rows * columns), bytes_(rows * columns) {
  if (rows == 0 || columns == 0)
    throw config_error("heddle: a table of samples has at least one row and one column, got " + std::to_string(rows) +
                       " and " + std::to_string(columns));
}

HEDDLE_INLINE void row_board::begin(task& t) {
  const std::size_t groups = rows_ / t.of_group;
  t.lacking.assign(groups, t.of_group * t.columns.size());
  t.taken.assign(groups, false);
  t.ready.clear();
  t.batches.clear();
  t.left = groups;
  for (std::size_t row = 0; row < rows_; ++row)
    for (const std::size_t c : t.columns)
      if (there_[cell(row, c)] && --t.lacking[row / t.of_group] == 0) t.ready.insert(row / t.of_group);
}

HEDDLE_INLINE std::size_t row_board::add_task(std::vector<std::size_t> columns, std::size_t of_group,
                                              std::size_t replicas, std::size_t ranks_of_replica) {
  std::sort(columns.begin(), columns.end());
  columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
  if (columns.empty() || columns.back() >= columns_)
    throw config_error("heddle: a task needs some of the " + std::to_string(columns_) + " columns of its table");
  const std::size_t unit = of_group * (std::max)(replicas, std::size_t{1});
  if (of_group == 0 || ranks_of_replica == 0 || rows_ % unit != 0)
    throw config_error("heddle: the " + std::to_string(rows_) + " rows of a table should be whole groups of " +
                       std::to_string(of_group) + ", as many for each of " +
                       std::to_string((std::max)(replicas, std::size_t{1})) + " replicas of at least one rank");
  const std::lock_guard lock(mutex_);
  task& t = tasks_.emplace_back();
  t.columns = std::move(columns);
  t.of_group = of_group;
  t.replicas = replicas;
  t.ranks = ranks_of_replica;
  begin(t);
  return tasks_.size() - 1;
}

HEDDLE_INLINE void row_board::mark(std::span<const std::size_t> rows, std::size_t column,
                                   std::span<const std::int64_t> bytes) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw error("heddle: a row came to a table of samples that is closed");
  if (column >= columns_ || bytes.size() != rows.size())
    throw config_error("heddle: column " + std::to_string(column) + " of " + std::to_string(columns_) +
                       " was marked in " + std::to_string(rows.size()) + " rows of " + std::to_string(bytes.size()) +
                       " sizes");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t row = rows[i];
    if (row < rows_ && !there_[cell(row, column)]) {
      there_[cell(row, column)] = true;
      bytes_[cell(row, column)] = bytes[i];
      continue;
    }
    for (std::size_t k = 0; k < i; ++k) there_[cell(rows[k], column)] = false;
    throw config_error(row >= rows_
                           ? "heddle: row " + std::to_string(row) + " is not in a table of " + std::to_string(rows_)
                           : "heddle: column " + std::to_string(column) + " of row " + std::to_string(row) +
                                 " is there already");
  }
  for (task& t : tasks_) {
    if (!std::binary_search(t.columns.begin(), t.columns.end(), column)) continue;
    bool news = false;
    for (const std::size_t row : rows)
      if (--t.lacking[row / t.of_group] == 0) {
        t.ready.insert(row / t.of_group);
        news = true;
      }
    if (news) t.changed.notify_all();
  }
}

HEDDLE_INLINE void row_board::draw(task& t, std::size_t groups, std::size_t replica, std::size_t index) {
  std::vector<std::size_t> chosen;
  for (auto g = t.ready.begin(); chosen.size() < groups; g = t.ready.erase(g)) {
    chosen.push_back(*g);
    t.taken[*g] = true;
  }
  t.left -= groups;
  const auto give = [&](std::size_t to, const std::vector<std::size_t>& some) {
    task::drawn& batch = t.batches[{to, index}];
    for (const std::size_t g : some)
      for (std::size_t i = 0; i < t.of_group; ++i) batch.rows.push_back(g * t.of_group + i);
  };
  if (t.replicas == 0) return give(replica, chosen);
  std::vector<std::int64_t> weights;
  for (const std::size_t g : chosen) {
    std::int64_t& sum = weights.emplace_back(0);
    for (std::size_t i = 0; i < t.of_group; ++i)
      for (const std::size_t c : t.columns) sum += bytes_[cell(g * t.of_group + i, c)];
  }
  const auto parts = equal_parts(weights, t.replicas);
  for (std::size_t r = 0; r < parts.size(); ++r) {
    std::vector<std::size_t> some;
    for (const std::size_t i : parts[r]) some.push_back(chosen[i]);
    give(r, some);
  }
}

HEDDLE_INLINE std::optional<std::vector<std::size_t>> row_board::take(std::size_t of, std::size_t n,
                                                                      std::size_t replica, std::size_t index) {
  std::unique_lock lock(mutex_);
  task& t = tasks_.at(of);
  if (n == 0 || n % t.of_group != 0 || (t.replicas > 0 && replica >= t.replicas))
    throw config_error("heddle: a batch of " + std::to_string(n) + " rows for replica " + std::to_string(replica) +
                       " should be whole groups of " + std::to_string(t.of_group) +
                       (t.replicas > 0 ? " for one of " + std::to_string(t.replicas) + " replicas" : std::string()));
  const std::size_t replicas = (std::max)(t.replicas, std::size_t{1});
  for (;;) {
    if (const auto found = t.batches.find({replica, index}); found != t.batches.end()) {
      task::drawn& batch = found->second;
      std::vector<std::size_t> rows = batch.rows;
      if (++batch.readers == t.ranks) t.batches.erase(found);
      return rows;
    }
    std::size_t groups = (std::min)(n / t.of_group * replicas, t.left);
    if (closed_) groups = (std::min)(groups, t.ready.size() / replicas * replicas);
    if (groups == 0) return std::nullopt;
    if (t.ready.size() >= groups) {
      draw(t, groups, replica, index);
      t.changed.notify_all();
    } else {
      t.changed.wait(lock);
    }
  }
}

HEDDLE_INLINE void row_board::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (task& t : tasks_) t.changed.notify_all();
}

HEDDLE_INLINE void row_board::clear() {
  const std::lock_guard lock(mutex_);
  closed_ = false;
  there_.assign(there_.size(), false);
  for (task& t : tasks_) begin(t);
}

HEDDLE_INLINE bool row_board::is_there(std::size_t row, std::size_t column) const {
  const std::lock_guard lock(mutex_);
  return there_.at(cell(row, column));
}

HEDDLE_INLINE bool row_board::is_taken(std::size_t of, std::size_t row) const {
  const std::lock_guard lock(mutex_);
  const task& t = tasks_.at(of);
  return t.taken.at(row / t.of_group);
}

HEDDLE_INLINE std::vector<std::size_t> row_board::ready(std::size_t of) const {
  const std::lock_guard lock(mutex_);
  const task& t = tasks_.at(of);
  std::vector<std::size_t> all;
  for (std::size_t row = 0; row < rows_; ++row)
    if (!t.taken[row / t.of_group] &&
        std::all_of(t.columns.begin(), t.columns.end(), [&](std::size_t c) { return there_[cell(row, c)]; }))
      all.push_back(row);
  return all;
}

}  // namespace heddle::inline v0::rl
