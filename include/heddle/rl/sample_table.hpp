// heddle/rl/sample_table.hpp: a table of samples whose columns tasks make and read.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/rl/row_board.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::rl {

/// A column is a tag with `using type = ...;`, the type of what a row has there.
template <class C>
concept column = requires { typename C::type; };
/// Columns of a table.
template <column... Cs>
struct columns {};
/// Columns that a task reads.
template <column... Cs>
struct needs {};
/// Columns that a task writes.
template <column... Cs>
struct makes {};

/// A task of a pipeline, by the columns that it reads and writes. `OfGroup`: how many rows it compares with each other,
/// such as the answers to one prompt.
template <class Needs, class Makes, std::size_t OfGroup = 1>
struct stage {
  using needed = Needs;
  using made = Makes;
  static constexpr std::size_t of_group = OfGroup;
};

namespace detail {
template <class Columns, class... Lists>
struct joined_columns : std::type_identity<Columns> {};
template <column... Cs, column... Ds, class... More>
struct joined_columns<columns<Cs...>, makes<Ds...>, More...> : joined_columns<columns<Cs..., Ds...>, More...> {};
template <class Columns>
inline constexpr bool distinct_columns = false;
template <column... Cs>
inline constexpr bool distinct_columns<columns<Cs...>> = all_distinct<Cs...>;
template <class Columns, class Needs>
inline constexpr bool has_columns = false;
template <column... Cs, column... Ns>
inline constexpr bool has_columns<columns<Cs...>, needs<Ns...>> = (contains<Ns, Cs...> && ...);

// A function: clang takes a class whose own assertion failed for broken, and says so at every use.
template <class... Stages>
constexpr auto columns_of_stages() {
  using all = typename joined_columns<columns<>, typename Stages::made...>::type;
  static_assert(distinct_columns<all>, "heddle: two stages make one column; let one of them make it");
  static_assert(
      (has_columns<all, typename Stages::needed> && ...),
      "heddle: a stage needs a column that no stage makes; add a stage that makes it, or take it out of `needs`");
  return std::type_identity<all>{};
}

template <class T>
constexpr std::int64_t bytes_of(const T& value) {
  if constexpr (requires {
                  value.size();
                  sizeof(typename T::value_type);
                })
    return static_cast<std::int64_t>(value.size() * sizeof(typename T::value_type));
  else
    return static_cast<std::int64_t>(sizeof(T));
}
}  // namespace detail

/// The columns that some stages make, and no others. Ill-formed where a stage needs one that none makes, or two make the same.
template <class... Stages>
using columns_of = typename decltype(detail::columns_of_stages<Stages...>())::type;

/// Messages and bytes of a table. A write of several rows and columns is a message to each unit that has some of the
/// rows, and a notice when they have arrived; a read is a request, and a message from each unit. Columns that were not
/// asked for do not move, and a batch moves once to each replica.
struct table_traffic {
  std::int64_t writes = 0, notices = 0, requests = 0, reads = 0, bytes_written = 0, bytes_read = 0;
  friend bool operator==(const table_traffic&, const table_traffic&) = default;
};

template <class Columns>
class sample_table;

/// Rows and columns of samples for tasks that run beside each other. Row r lies in unit r % units; each unit has a lock
/// of its own. A row is seen by a task when the last column that it needs has been stored. Functions may be called from
/// any thread.
/// Source: AsyncFlow's TransferQueue, Han et al. 2025, arXiv:2507.01663, section 3; there a group need not begin at a
/// multiple of its size.
template <column... Cs>
class sample_table<columns<Cs...>> {
 public:
  template <column C>
  static constexpr bool has = contains<C, Cs...>;

  /// Errors: `config_error` for no rows or units.
  explicit sample_table(std::size_t rows, std::size_t units = 1) : board_(rows, sizeof...(Cs)), units_(units) {
    if (units == 0) throw config_error("heddle: a table of samples has at least one unit, got 0");
    for (unit& u : units_) u.rows.resize((rows + units - 1) / units);
  }

  std::size_t rows() const noexcept { return board_.rows(); }

  /// Stores columns of some rows: of each column as many values as rows. Errors: `config_error` for other numbers, rows
  /// that are not there and cells that are there already; `error` after `close`.
  template <column... Made>
  void put(std::span<const std::size_t> rows, std::vector<typename Made::type>... values) {
    static_assert(sizeof...(Made) > 0 && (has<Made> && ...),
                  "heddle: the table has no such column; name it among its `columns`");
    for (const std::size_t n : {values.size()...})
      if (n != rows.size())
        throw config_error("heddle: " + std::to_string(rows.size()) + " rows of a table of samples came with " +
                           std::to_string(n) + " values");
    for (const std::size_t row : rows)
      if (row >= board_.rows())
        throw config_error("heddle: row " + std::to_string(row) + " is not in a table of " +
                           std::to_string(board_.rows()));
    std::int64_t bytes = 0;
    const auto sizes = [&](const auto& of) {
      std::vector<std::int64_t> all;
      for (const auto& v : of) bytes += all.emplace_back(detail::bytes_of(v));
      return all;
    };
    const auto all_sizes = std::tuple{sizes(values)...};
    for (std::size_t u = 0; u < units_.size(); ++u) {
      std::optional<std::unique_lock<std::mutex>> lock;  // one message for all that the unit gets
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (rows[i] % units_.size() != u) continue;
        if (!lock) lock.emplace(units_[u].mutex);
        cells& at = units_[u].rows[rows[i] / units_.size()];
        (store<Made>(at, std::move(values[i]), rows[i]), ...);
      }
      if (lock) add([](table_traffic& t) { ++t.writes; });
    }
    std::apply([&](const auto&... of) { (board_.mark(rows, index_of<Made, Cs...>, of), ...); }, all_sizes);
    add([&](table_traffic& t) {
      ++t.notices;
      t.bytes_written += bytes;
    });
  }
  template <column... Made>
  void put(std::size_t row, typename Made::type... values) {
    put<Made...>(std::span(&row, 1), std::vector<typename Made::type>{std::move(values)}...);
  }

  /// Rows that a task got, and its columns of them.
  template <column... Ns>
  struct batch {
    std::vector<std::size_t> rows{};
    std::tuple<std::vector<typename Ns::type>...> values{};
    template <column C>
    const std::vector<typename C::type>& get() const {
      return std::get<index_of<C, Ns...>>(values);
    }
  };

  /// The batches of one rank of one replica, one after the other: a streaming loader.
  template <class Task>
  class stream {
   public:
    stream(Task& task, std::size_t n, std::size_t replica) : task_(&task), n_(n), replica_(replica) {}
    /// The next batch; null at the end. All ranks of a replica get the same.
    auto next() { return task_->take(n_, replica_, index_++); }

   private:
    Task* task_;
    std::size_t n_, replica_, index_ = 0;
  };

  /// What a task reads. It refers to the table.
  template <column... Ns>
  class task {
   public:
    using batch_type = batch<Ns...>;
    /// The batch number `index` of a replica, `n` rows or fewer at the end, as `row_board::take`; null where there is
    /// none any more.
    std::shared_ptr<const batch_type> take(std::size_t n, std::size_t replica, std::size_t index) {
      table_->add([](table_traffic& t) { ++t.requests; });
      const auto rows = table_->board_.take(number_, n, replica, index);
      if (!rows) return nullptr;
      std::shared_ptr<fetched> entry;
      {
        const std::lock_guard lock(mutex_);
        auto& here = batches_[{replica, index}];
        if (!here) here = std::make_shared<fetched>();
        entry = here;
        if (++entry->readers == ranks_) batches_.erase({replica, index});
      }
      const std::lock_guard lock(entry->mutex);  // the replica's others wait for the one that fetches
      if (!entry->data) entry->data = table_->template fetch<Ns...>(*rows);
      return entry->data;
    }
    stream<task> batches(std::size_t n, std::size_t replica = 0) { return {*this, n, replica}; }
    std::size_t number() const noexcept { return number_; }

   private:
    friend sample_table;
    struct fetched {
      std::mutex mutex{};
      std::size_t readers = 0;
      std::shared_ptr<const batch_type> data{};
    };
    task(sample_table& table, std::size_t number, std::size_t ranks) : table_(&table), number_(number), ranks_(ranks) {}
    sample_table* table_;
    std::size_t number_, ranks_;
    std::mutex mutex_{};
    std::map<std::pair<std::size_t, std::size_t>, std::shared_ptr<fetched>> batches_{};
  };

  /// A task that reads the columns `Needs` by a sampler; `OfGroup` rows are compared with each other, so that no
  /// sampler may cut them apart. Of each replica `ranks_of_replica` read each batch. Errors: as `row_board::add_task`.
  template <class Needs, std::size_t OfGroup = 1, class Sampler = sequential>
    requires std::same_as<typename Sampler::kind, row_sampler_kind>
  auto add_task(Sampler = {}, std::size_t ranks_of_replica = 1) {
    static_assert(
        detail::has_columns<columns<Cs...>, Needs>,
        "heddle: a task needs a column that the table has not; let a stage make it, or take it out of `needs`");
    static_assert(Sampler::of_group % OfGroup == 0,
                  "heddle: a task that compares rows of a group has a sampler that cuts groups; take `rl::group` or "
                  "`rl::balanced` with the group's size");
    return add<Sampler>(Needs{}, ranks_of_replica);
  }
  /// The same for a stage.
  template <class Stage, class Sampler>
  auto add_stage(Sampler sampler, std::size_t ranks_of_replica = 1) {
    return add_task<typename Stage::needed, Stage::of_group>(sampler, ranks_of_replica);
  }

  /// As `row_board::close`.
  void close() { board_.close(); }
  /// Empties the table for the next step. Nobody may read or write.
  void clear() {
    board_.clear();
    for (unit& u : units_) std::fill(u.rows.begin(), u.rows.end(), cells{});
  }
  const row_board& board() const noexcept { return board_; }
  table_traffic traffic() const {
    const std::lock_guard lock(traffic_mutex_);
    return traffic_;
  }

 private:
  using cells = std::tuple<std::optional<typename Cs::type>...>;
  struct unit {
    std::mutex mutex{};
    std::vector<cells> rows{};
  };

  template <column C>
  static void store(cells& at, typename C::type value, std::size_t row) {
    auto& cell = std::get<index_of<C, Cs...>>(at);
    if (cell)
      throw config_error("heddle: column " + std::to_string(index_of<C, Cs...>) + " of row " + std::to_string(row) +
                         " is there already");
    cell = std::move(value);
  }
  template <class Sampler, column... Ns>
  std::unique_ptr<task<Ns...>> add(needs<Ns...>, std::size_t ranks) {
    const std::size_t number = board_.add_task({index_of<Ns, Cs...>...}, Sampler::of_group, Sampler::replicas, ranks);
    return std::unique_ptr<task<Ns...>>(new task<Ns...>(*this, number, ranks));
  }
  template <column... Ns>
  std::shared_ptr<const batch<Ns...>> fetch(const std::vector<std::size_t>& rows) {
    auto all = std::make_shared<batch<Ns...>>();
    all->rows = rows;
    (std::get<index_of<Ns, Ns...>>(all->values).resize(rows.size()), ...);
    std::int64_t messages = 0, bytes = 0;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      std::optional<std::unique_lock<std::mutex>> lock;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (rows[i] % units_.size() != u) continue;
        if (!lock) {
          lock.emplace(units_[u].mutex);
          ++messages;
        }
        const cells& at = units_[u].rows[rows[i] / units_.size()];
        const auto copy = [&](const auto& from, auto& to) {
          to = *from;
          bytes += detail::bytes_of(to);
        };
        (copy(std::get<index_of<Ns, Cs...>>(at), std::get<index_of<Ns, Ns...>>(all->values)[i]), ...);
      }
    }
    add([&](table_traffic& t) {
      t.reads += messages;
      t.bytes_read += bytes;
    });
    return all;
  }
  template <class F>
    requires std::invocable<F, table_traffic&>
  void add(F&& f) {
    const std::lock_guard lock(traffic_mutex_);
    f(traffic_);
  }

  row_board board_;
  std::vector<unit> units_;
  mutable std::mutex traffic_mutex_{};
  table_traffic traffic_{};
};

}  // namespace heddle::inline v0::rl
