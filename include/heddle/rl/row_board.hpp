// heddle/rl/row_board.hpp: rows of a table, and the next ones of each task.
#pragma once

#include <heddle/core/config.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::rl {

/// The kind of policies that choose the rows of a batch.
struct row_sampler_kind {};
/// Takes the first rows that are ready.
struct sequential {
  using kind = row_sampler_kind;
  static constexpr std::size_t of_group = 1;
  static constexpr std::size_t replicas = 0;
};
/// Takes the first groups that are ready as a whole: rows N g to N g + N - 1.
template <std::size_t N>
struct group {
  static_assert(N > 0, "heddle: a group has at least one row");
  using kind = row_sampler_kind;
  static constexpr std::size_t of_group = N;
  static constexpr std::size_t replicas = 0;
};
/// Takes whole groups for all of `Replicas` replicas at once, as many for each and nearly as many bytes of the columns
/// that the task needs (`equal_parts`).
template <std::size_t N, std::size_t Replicas>
struct balanced {
  static_assert(N > 0 && Replicas > 0, "heddle: a group has at least one row, and at least one replica reads it");
  using kind = row_sampler_kind;
  static constexpr std::size_t of_group = N;
  static constexpr std::size_t replicas = Replicas;
};

/// The bits of a table of samples: a row is ready for a task when all columns are there that the task needs, and each
/// task gets each row once. A batch is drawn by the first rank of a replica that asks for it; the replica's other ranks
/// get the same rows. Counters are kept with each bit, so that nobody looks through all rows; who waits sleeps.
/// Functions may be called from any thread.
class row_board {
 public:
  HEDDLE_INLINE row_board(std::size_t rows, std::size_t columns);

  std::size_t rows() const noexcept { return rows_; }
  std::size_t columns() const noexcept { return columns_; }
  /// A task that needs these columns. `of_group`, `replicas`: as in samplers, 0 replicas for batches of one. Of each
  /// replica `ranks_of_replica` ask for each batch. Errors: `config_error` for no or unknown columns, and rows that are
  /// no whole groups for each replica.
  HEDDLE_INLINE std::size_t add_task(std::vector<std::size_t> columns, std::size_t of_group, std::size_t replicas,
                                     std::size_t ranks_of_replica);
  /// Marks cells of some rows as there, after their bytes are. `bytes[i]` are those of row i in the column.
  /// Errors: `config_error` for a row that is not there, and a cell that has been marked before; `error` after `close`.
  HEDDLE_INLINE void mark(std::span<const std::size_t> rows, std::size_t column, std::span<const std::int64_t> bytes);
  /// The rows of the batch number `index` of a replica, `n`, or fewer at the end. Waits until they are ready; none: the
  /// task has had all rows, or the table is closed and no batch is ready any more.
  /// Errors: `config_error` where `n` is no number of whole groups, or a replica that a balanced sampler does not know.
  HEDDLE_INLINE std::optional<std::vector<std::size_t>> take(std::size_t task, std::size_t n, std::size_t replica,
                                                             std::size_t index);
  /// No further rows will come: wakes all that wait. What is ready is still taken, in smaller batches.
  HEDDLE_INLINE void close();
  /// No row is there and no task has had any, for the next step. Nobody may be waiting.
  HEDDLE_INLINE void clear();

  HEDDLE_INLINE bool is_there(std::size_t row, std::size_t column) const;
  HEDDLE_INLINE bool is_taken(std::size_t task, std::size_t row) const;
  /// Rows that are ready for the task and that it has not had, by their numbers. Looks at all rows.
  HEDDLE_INLINE std::vector<std::size_t> ready(std::size_t task) const;

 private:
  struct task {
    std::vector<std::size_t> columns{};
    std::size_t of_group = 1, replicas = 0, ranks = 1;
    std::vector<std::size_t> lacking{};  // of each group: cells that are not there
    std::set<std::size_t> ready{};       // groups
    std::size_t left = 0;                // groups that it has not had
    std::vector<bool> taken{};           // groups
    struct drawn {
      std::vector<std::size_t> rows{};
      std::size_t readers = 0;
    };
    std::map<std::pair<std::size_t, std::size_t>, drawn> batches{};  // by replica and index
    std::condition_variable changed{};
  };
  HEDDLE_INLINE void begin(task& t);
  HEDDLE_INLINE void draw(task& t, std::size_t groups, std::size_t replica, std::size_t index);
  std::size_t cell(std::size_t row, std::size_t column) const { return row * columns_ + column; }

  std::size_t rows_, columns_;
  mutable std::mutex mutex_{};
  std::vector<bool> there_{};
  std::vector<std::int64_t> bytes_{};
  std::deque<task> tasks_{};
  bool closed_ = false;
};

}  // namespace heddle::inline v0::rl

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/rl/impl/row_board.hpp>
#endif
